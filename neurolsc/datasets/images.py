"""Images: MNIST as spike latencies or as grey levels, and CIFAR."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from neurolsc.datasets.batches import SAMPLES, SPLITS, Batch, BatchDataset, Split, carve, count_bins, generator
from neurolsc.datasets.download import fetch, read_unpacked
from neurolsc.io import refusing
from neurolsc.validation import number, one_of, whole

SIDE = 28  # pixels along an edge of a digit
MNIST_SIZES = {"validation": 5_000, "train": 45_000}
SAMPLE_SIZES = {"validation": 200, "train": 1_800}


def spike_latency(pixels: Tensor, *, tau: float = 50.0, threshold: float = 0.2) -> Tensor:
    r"""Return when a leaky membrane driven by each pixel first reaches its threshold.

    .. math::

        T(x) = \tau \log \frac{x}{x - \vartheta} \text{ for } x > \vartheta,
               \quad \infty \text{ otherwise}

    The membrane starts at rest and tends to x, :math:`v(t) = x (1 - e^{-t/\tau})`. The comparison is made in the
    precision of the pixels, the logarithm in float64: a rounding error would move a spike into another bin.

    Args:
        pixels: brightness in [0, 1], floating point, any shape.
        tau: time constant of the membrane, in ms.
        threshold: spike threshold, in units of brightness, in [0, 1).

    Returns:
        Time of each pixel's only spike, in ms, infinite where it stays silent; float64, shaped like pixels.

    Raises:
        ValueError: if a pixel is NaN or outside [0, 1], or a number is out of range.

    Source: Herranz-Celotti & Rouat, arXiv:2308.12075 (sl-MNIST), after Zenke & Vogels, Neural Computation 33 (2021).

    Example:
        >>> spike_latency(torch.tensor([0.1, 0.2, 0.5, 1.0]))
        tensor([    inf,     inf, 25.5413, 11.1572], dtype=torch.float64)
    """
    tau = number("tau", tau)
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be a brightness in [0, 1), got {threshold}.")
    inside = (pixels >= 0) & (pixels <= 1)
    if not inside.all():
        raise ValueError(f"pixels must lie in [0, 1], got {pixels[~inside][0].item():g}.")
    x = pixels.double()
    return torch.where(pixels > threshold, tau * torch.log(x / (x - threshold)), math.inf)


@dataclass(frozen=True)
class LatencyEncoding:
    """A spike-latency code, by default that of sl-MNIST.

    A spike at time t falls into bin floor(t / dt); one at the end of the window or later is left out.

    Args:
        tau: time constant of the membrane, in ms.
        threshold: its spike threshold, in units of brightness.
        dt: width of a bin, in ms.
        window: length of the recording, in ms, a whole number of bins.
        repeat: how often in a row each frame is shown.

    Raises:
        ValueError: if a number is out of range.

    Source: Herranz-Celotti & Rouat, arXiv:2308.12075 (sl-MNIST: 1 ms bins over 50 ms, every step twice).

    Example:
        >>> LatencyEncoding(window=2.0).frames(torch.tensor([0.5, 1.0, 2.0]))
        tensor([[1, 0, 0],
                [1, 0, 0],
                [0, 1, 0],
                [0, 1, 0]], dtype=torch.uint8)
    """

    tau: float = 50.0
    threshold: float = 0.2
    dt: float = 1.0
    window: float = 50.0
    repeat: int = 2

    def __post_init__(self) -> None:
        whole("repeat", self.repeat)
        self.frames(self.times(torch.zeros(1)))  # raises for numbers out of range

    @property
    def steps(self) -> int:
        """Number of time steps T."""
        return self.repeat * count_bins(self.dt, self.window)

    def times(self, pixels: Tensor) -> Tensor:
        """Return the spike times in ms of pixels in [0, 1], by :func:`spike_latency`."""
        return spike_latency(pixels, tau=self.tau, threshold=self.threshold)

    def frames(self, times: Tensor) -> Tensor:
        """Return frames (T, ..., N), uint8 zeros and ones, of spike times (..., N) in ms, infinite for no spike."""
        bins = count_bins(self.dt, self.window)
        late = ~(times < self.window)
        # The clamp keeps a time just below the window in its last bin when the division rounds up.
        index = (times.double() / self.dt).floor().clamp(max=bins - 1).masked_fill(late, bins).long()
        frames = torch.zeros(bins + 1, *times.shape, dtype=torch.uint8, device=times.device)
        return frames.scatter_(0, index.unsqueeze(0), 1)[:bins].repeat_interleave(self.repeat, dim=0)


@dataclass(frozen=True)
class ReleasedEncoding:
    r"""The sl-MNIST of the paper's released code, to compare results with; it differs from the sl-MNIST of the text.

    The code multiplies the brightness x in [0, 1] by tau before it compares it with the threshold, and a millisecond
    has ten bins,

    .. math::

        T(x) = 10\, \tau \log \frac{\tau x}{\tau x - 0.2} \text{ for } \tau x > 0.2, \quad \tau = 50,

    rounded, halves to even; pixels with T of 100 or more stay silent. The array of N pixels times 100 bins is then
    *read* as one of 100 steps times N channels, without being transposed: a spike of pixel p in bin T is shown at step
    :math:`\lfloor (100 p + T) / N \rfloor` in channel :math:`(100 p + T) \bmod N`. The step of a spike therefore says
    where its pixel is in the image, from the top to the bottom, and hardly how bright it is.

    Args:
        repeat: how often in a row each step is shown.

    Source: the released code of Herranz-Celotti & Rouat, arXiv:2308.12075.
    """

    repeat: int = 2

    def __post_init__(self) -> None:
        whole("repeat", self.repeat)

    @property
    def steps(self) -> int:
        """Number of time steps T."""
        return self.repeat * 100

    def times(self, pixels: Tensor) -> Tensor:
        """Return the spike times in ms of pixels in [0, 1], float64, infinite for no spike."""
        return spike_latency(pixels, tau=50.0, threshold=0.2 / 50.0)

    def frames(self, times: Tensor) -> Tensor:
        """Return frames (T, ..., N), uint8 zeros and ones, of spike times (..., N) in ms, infinite for no spike."""
        *batch, n = times.shape
        bins = (times.double() * 10).round()
        place = torch.arange(n, device=times.device) * 100 + bins  # in the array of N pixels times 100 bins
        place = place.masked_fill(~(bins < 100), n * 100)  # silent pixels go behind the last entry, which is cut off
        flat = torch.zeros(*batch, n * 100 + 1, dtype=torch.uint8, device=times.device)
        frames = flat.scatter_(-1, place.long(), 1)[..., :-1].view(*batch, 100, n).movedim(-2, 0)
        return frames.repeat_interleave(self.repeat, dim=0)


def read_idx(path: str | PathLike[str]) -> Tensor:
    """Read an IDX file of unsigned bytes, plain or packed by gzip.

    Returns:
        The bytes, uint8, in the shape that the file's header states.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, or not an IDX file of unsigned bytes.

    Source: the format's description at http://yann.lecun.com/exdb/mnist (THE IDX FILE FORMAT).
    """
    data = read_unpacked(path)
    with refusing(path, "not an IDX file"):
        zeros, code, axes = struct.unpack_from(">HBB", data)
        shape = struct.unpack_from(f">{axes}I", data, 4)
        # code 8 means unsigned bytes; a header with no axis or more than 8 is taken for damaged
        if zeros != 0 or code != 8 or not 1 <= axes <= 8:
            raise ValueError(f"it must start with 0x000008 and 1 to 8 axes, got 0x{data[:4].hex()}.")
        start = 4 + 4 * axes
        wanted = math.prod(shape)
        if len(data) - start != wanted:
            raise ValueError(f"the header states {shape}, so {wanted} bytes after it, got {len(data) - start}.")
        return torch.from_numpy(np.frombuffer(data, np.uint8, offset=start).reshape(shape).copy())


def read_mnist(root: str | PathLike[str] | None, split: Split, seed: int) -> tuple[Tensor, Tensor]:
    """Read a split of MNIST.

    Args:
        root: folder of the IDX files, into which missing ones are downloaded; None: the sample in the package.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: seed by which train and validation images are drawn from the training file.

    Returns:
        Images (n, 784), uint8, and labels (n,), int64.
    """

    def read(name: str) -> Tensor:
        if root is None:
            return read_idx(SAMPLES / "mnist" / f"{name}.gz")
        return read_idx(fetch(root, name))

    part = "train"
    if one_of("split", split, SPLITS) == "test":
        part = "t10k"
    images = read(f"{part}-images-idx3-ubyte")
    labels = read(f"{part}-labels-idx1-ubyte")
    if images.shape != (len(labels), SIDE, SIDE) or labels.ndim != 1 or (labels > 9).any():
        raise ValueError(
            f"{root}: {part} must hold images (n, {SIDE}, {SIDE}) with n digits 0 to 9, got {tuple(images.shape)} and "
            f"{tuple(labels.shape)}, up to {labels.max().item()}."
        )
    images = images.flatten(1)
    labels = labels.long()
    if split == "test":
        return images, labels
    chosen = carve(len(images), SAMPLE_SIZES if root is None else MNIST_SIZES, seed)[split]
    return images[chosen], labels[chosen]


def check_shift(shift: int) -> int:
    """Return a largest shift of digits, in pixels; ``ValueError`` if it is negative, or moves them out of the image."""
    if whole("shift", shift, at_least=0) >= SIDE:
        raise ValueError(f"shift must be below {SIDE}, by which a digit leaves the image, got {shift}.")
    return shift


class SpikeLatencyMNIST(BatchDataset):
    """MNIST digits in which every pixel spikes at most once, the brighter the sooner.

    Item i is a pair (x, label): x of shape (T, 784), uint8 zeros and ones, and the digit as an int. Images are stored
    as grey levels and encoded when they are read.

    As in the paper 45,000 images are for training, 5,000 for validation and 10,000 for the test. The first two are
    drawn without overlap from MNIST's 60,000 training images, of which 10,000 stay unused.

    Args:
        root: folder of MNIST's IDX files, plain or as ``.gz``; the missing ones are downloaded into it. None: the
            sample in the package.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: draws the train and the validation images.
        encoding: the spike code; :class:`ReleasedEncoding` is the one of the paper's released code.
        shift: for training: the largest distance, in pixels along both axes, by which an image is moved whenever it is
            read, below 28. All are equally likely, and pixels from beyond the edge are 0. The distances follow from
            seed and indices in :func:`neurolsc.train`, else from torch's random numbers.

    Attributes:
        encoding: the code.
        images: grey levels (n, 784), uint8.
        labels: digits (n,), int64.

    Raises:
        ValueError: if an argument is out of range, or a file damaged.
        ConnectionError: if a missing file could not be downloaded.

    Source: Herranz-Celotti & Rouat, arXiv:2308.12075 (sl-MNIST; sizes of the splits in table S1).

    Example:
        >>> digits = SpikeLatencyMNIST.embedded("test")
        >>> x, label = digits[0]
        >>> len(digits), x.shape, label
        (500, torch.Size([100, 784]), 9)
    """

    def __init__(
        self,
        root: str | PathLike[str] | None,
        split: Split,
        *,
        seed: int = 0,
        encoding: LatencyEncoding | ReleasedEncoding = LatencyEncoding(),  # frozen
        shift: int = 0,
    ) -> None:
        if check_shift(shift) and split != "train":
            raise ValueError(f"shift is for the training split, got {shift} for {split!r}.")
        self.split = split
        self.encoding = encoding
        self.shift = shift
        self.images, self.labels = read_mnist(root, split, seed)
        self.n_in = SIDE * SIDE
        self.n_classes = 10
        self.steps = encoding.steps
        self._time_of_level = encoding.times(torch.arange(256, dtype=torch.float64) / 255)  # (256,), in ms

    @classmethod
    def embedded(cls, split: Split, **options: Any) -> "SpikeLatencyMNIST":
        """Return the sample in the package: 1,800 train, 200 validation and 500 test digits."""
        return cls(None, split, **options)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices, dtype=torch.long)
        images = self.images[chosen]
        if self.shift:
            padded = nn.functional.pad(images.view(-1, SIDE, SIDE), (self.shift,) * 4)
            moves = generator(indices).integers(0, 2 * self.shift + 1, (2, len(images)), np.int64)
            top, left = torch.from_numpy(moves)  # each (B,): upper left corner of the part of the padded image shown
            rows = top[:, None] + torch.arange(SIDE)
            columns = left[:, None] + torch.arange(SIDE)
            images = padded[torch.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None]].flatten(1)
        return Batch(self.encoding.frames(self._time_of_level[images.long()]), self.labels[chosen])


class Pixels(BatchDataset):
    r"""Images shown for one step: item i is a pair (x (1, N), label).

    .. math:: x = \mathrm{byte} / 255, \quad \text{float32, from 0 to 1}

    Args:
        images: bytes (n, N), uint8.
        labels: classes (n,), int64.
        names: names of the classes.
        split: name of the part.
    """

    def __init__(self, images: Tensor, labels: Tensor, names: Sequence[str], split: Split) -> None:
        self.split = split
        self.images = images
        self.labels = labels
        self.names = tuple(names)
        self.n_in = images.shape[1]
        self.n_classes = len(names)
        self.steps = 1

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return Batch(self.images[chosen].unsqueeze(0) / 255, self.labels[chosen])


class MNISTPixels(Pixels):
    """MNIST digits as grey levels from 0 to 1, x (1, 784), for one step; splits as of :class:`SpikeLatencyMNIST`.

    Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Proceedings of the IEEE 86 (1998).
    """

    def __init__(self, root: str | PathLike[str] | None, split: Split, *, seed: int = 0) -> None:
        super().__init__(*read_mnist(root, split, seed), "0123456789", split)

    @classmethod
    def embedded(cls, split: Split, **options: Any) -> Self:
        """Return the sample in the package: 1,800 train, 200 validation and 500 test digits."""
        return cls(None, split, **options)


class SequentialMNIST(MNISTPixels):
    """MNIST digits pixel by pixel: x (784, 1), grey levels from 0 to 1; splits as of :class:`SpikeLatencyMNIST`.

    Args:
        root: folder of MNIST's files, as for :class:`SpikeLatencyMNIST`; None: the sample in the package.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: draws the train and the validation images.
        permutation: order of the pixels, the same for every image: None, row by row; a seed, which draws it; or the
            places 0 ... 783 in their order.

    Attributes:
        permutation: places (784,), int64: step t shows pixel ``permutation[t]``.

    Raises:
        ValueError: if the permutation does not hold each place once, another argument is out of range, or a file is
            damaged.

    Source: Q. V. Le, N. Jaitly, G. E. Hinton, arXiv:1504.00941 (both tasks).
    """

    def __init__(
        self, root: str | PathLike[str] | None, split: Split, *, seed: int = 0, permutation: int | Tensor | None = None
    ) -> None:
        n = SIDE * SIDE
        if permutation is None:
            permutation = torch.arange(n)
        elif not isinstance(permutation, Tensor):
            seed_of_order = whole("permutation", permutation, at_least=0)
            permutation = carve(n, {"order": n}, seed_of_order)["order"]  # one part with all pixels
        if permutation.shape != (n,) or not torch.equal(permutation.sort().values, torch.arange(n)):
            got = f"{permutation.dtype} {tuple(permutation.shape)}"
            raise ValueError(f"permutation must hold each of the places 0 ... {n - 1} once, int64 ({n},), got {got}.")
        super().__init__(root, split, seed=seed)
        self.permutation = permutation
        self.images = self.images[:, permutation]
        self.n_in = 1
        self.steps = n

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return Batch(self.images[chosen].T.unsqueeze(-1) / 255, self.labels[chosen])


class CIFAR10(Pixels):
    """CIFAR-10: 32 x 32 colour pictures of ten classes as x (1, 3072), each number from 0 to 1.

    The 1,024 inputs of red come first, then green, then blue, each row by row. 45,000 and 5,000 of the 50,000 training
    pictures are for training and validation, the 10,000 test pictures for the test.

    Args:
        root: folder of the binary version: its files, its folder, or ``cifar-10-binary.tar.gz``, which is downloaded
            if nothing of it is there (170 MB), and unpacked there.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: draws the train and the validation pictures.

    Raises:
        ValueError: if an argument is out of range, or a file damaged or another.
        ConnectionError: if the archive could not be downloaded.

    Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009;
    https://www.cs.toronto.edu/~kriz/cifar.html.
    """

    _sizes = {"train": 50_000, "test": 10_000}  # noqa: RUF012
    _train: Sequence[str] = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
    _test = "test_batch.bin"
    _classes: Sequence[int] = (10,)  # number of classes of each byte before an image; the last byte is the label
    _names: Sequence[str] = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    def __init__(self, root: str | PathLike[str], split: Split, *, seed: int = 0) -> None:
        test = one_of("split", split, SPLITS) == "test"
        if test:
            files = [self._test]
            n = self._sizes["test"]
            chosen = torch.arange(n)
        else:
            files = self._train
            n = self._sizes["train"]
            chosen = carve(n, {"validation": n // 10, "train": n - n // 10}, seed)[split]
        parts = [read_records(fetch(root, name), self._classes, n // len(files)) for name in files]
        images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
        super().__init__(images[chosen], labels[chosen].long(), self._names, split)


class CIFAR100(CIFAR10):
    """CIFAR-100: as :class:`CIFAR10`, with a hundred classes (the fine labels), whose names are numbers."""

    _train = ("train.bin",)
    _test = "test.bin"
    _classes = (20, 100)
    _names = tuple(map(str, range(100)))


def read_records(path: str | PathLike[str], classes: Sequence[int], count: int) -> tuple[Tensor, Tensor]:
    """Read a binary file of CIFAR.

    For each image the file holds one or more labels, a byte each, and then 3,072 bytes.

    Args:
        path: the file.
        classes: for each label of an image the number of its classes.
        count: number of images in the file.

    Returns:
        Images (count, 3072), and the last label of each (count,), uint8.

    Raises:
        ValueError: if the file has another size, or a label is out of range.
    """
    head = len(classes)  # bytes before an image
    length = head + 3072
    data = np.fromfile(path, np.uint8)
    if len(data) != count * length:
        raise ValueError(f"{path}: {count:,} images are {count * length:,} bytes, {length:,} each, got {len(data):,}.")
    table = torch.from_numpy(data).view(count, length)
    if (high := int(table[:, head - 1].max())) >= classes[-1]:
        raise ValueError(f"{path}: labels must lie in 0 ... {classes[-1] - 1}, got {high}.")
    return table[:, head:], table[:, head - 1]
