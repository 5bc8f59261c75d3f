"""sl-MNIST: handwritten digits as spike latencies."""

from collections.abc import Sequence
from contextlib import ExitStack
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from neurolsc.datasets.augment import generator
from neurolsc.datasets.collate import Batch
from neurolsc.datasets.latency import LatencyEncoding
from neurolsc.datasets.mnist_files import TEST, TRAIN, fetch_mnist, read_pair
from neurolsc.datasets.released import ReleasedEncoding
from neurolsc.datasets.splits import carve
from neurolsc.validation import one_of, whole

Split = Literal["train", "validation", "test"]
SIDE = 28
"""pixels along an edge of an image"""
SPLITS = ("train", "validation", "test")
Encoding = LatencyEncoding | ReleasedEncoding
"""Spike-latency codes."""
SL_MNIST = LatencyEncoding()
FULL_SIZES = {"validation": 5_000, "train": 45_000}
SAMPLE_SIZES = {"validation": 200, "train": 1_800}


class SpikeLatencyMNIST(Dataset[tuple[Tensor, int]]):
    """MNIST digits in which every pixel spikes at most once, the brighter the sooner.

    Item i is a pair (x, label): x of shape (T, 784), uint8 zeros and ones, and the digit as an int.
    The images are kept as grey levels and encoded when asked for; a ``DataLoader`` asks for a batch
    at once.

    As in the paper 45,000 images are for training, 5,000 for validation and 10,000 for the test.
    The first two are drawn without overlap from MNIST's 60,000 training images, of which 10,000
    stay unused.

    Args:
        root: folder of MNIST's IDX files, plain or as ``.gz``; the missing ones are downloaded into
            it.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: draws the train and the validation images; without effect on the test images.
        encoding: the code, by default the paper's; that of its released code is
            :class:`ReleasedEncoding`.
        shift: move each image, whenever it is asked for, by up to so many pixels along both axes,
            each distance as likely; what is moved in is 0, and what is moved out is lost. The
            distances follow from seed and indices in :func:`neurolsc.train`, else from torch's
            random numbers. For training alone: the other splits refuse it.

    Attributes:
        split: name of the split.
        encoding: the code.
        images: grey levels (n, 784), uint8.
        labels: digits (n,), int64.
        n_in: number of inputs, 784.
        n_classes: number of classes, 10.
        steps: number of time steps T, by default 100.

    Raises:
        TypeError: if the seed is not an int.
        ValueError: if the split is unknown, the seed negative, a shift negative or not of the
            training split, or a file damaged or not MNIST's.
        ConnectionError: if a missing file could not be downloaded.

    Source: Herranz-Celotti & Rouat, arXiv:2308.12075 (sl-MNIST; sizes of the splits in table S1).

    Example:
        >>> digits = SpikeLatencyMNIST.embedded("test")
        >>> x, label = digits[0]
        >>> len(digits), x.shape, label
        (500, torch.Size([100, 784]), 9)
    """

    def __init__(
        self, root: str | Path, split: Split, *, seed: int = 0, encoding: Encoding = SL_MNIST, shift: int = 0
    ) -> None:
        """Find or download, check and read the files, and draw the split."""
        names, shift = _names(split), _shift(shift, split)
        paths = fetch_mnist(root, names)
        self._hold(*read_pair(*(paths[name] for name in names)), split, FULL_SIZES, seed, encoding, shift)

    @classmethod
    def embedded(
        cls, split: Split, *, seed: int = 0, encoding: Encoding = SL_MNIST, shift: int = 0
    ) -> "SpikeLatencyMNIST":
        """Return the sample in the package: 1,800 train, 200 validation and 500 test digits.

        Args:
            split: ``"train"``, ``"validation"`` or ``"test"``.
            seed: draws the validation images among the sample's 2,000 training images.
            encoding: the code, by default the paper's.
            shift: as above.

        Raises:
            TypeError: if the seed is not an int.
            ValueError: if the split is unknown, the seed negative, or a shift negative or not of
                the training split.
        """
        shift = _shift(shift, split)
        folder = resources.files("neurolsc.datasets") / "samples" / "mnist"
        self = cls.__new__(cls)
        with ExitStack() as stack:
            paths = [stack.enter_context(resources.as_file(folder / f"{name}.gz")) for name in _names(split)]
            self._hold(*read_pair(*paths), split, SAMPLE_SIZES, seed, encoding, shift)
        return self

    def _hold(
        self,
        images: Tensor,
        labels: Tensor,
        split: Split,
        sizes: dict[str, int],
        seed: int,
        encoding: Encoding,
        shift: int,
    ) -> None:
        chosen = slice(None) if split == "test" else carve(len(images), sizes, seed)[split]
        self.split = split
        self.encoding = encoding
        self.shift = shift
        self.images = images[chosen].flatten(1)
        self.labels = labels[chosen].long()
        self.n_in = self.images.shape[1]
        self.n_classes = 10
        self.steps = encoding.steps
        self._time_of_level = encoding.times(torch.arange(256, dtype=torch.float64) / 255)

    def __len__(self) -> int:
        """Number of items."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One item: x (T, 784) and the digit."""
        return self._encode(self._moved([index])[0]), int(self.labels[index])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return several items, encoded together: what a ``DataLoader`` calls for a batch."""
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return Batch(self._encode(self._moved(indices)), self.labels[chosen])

    def __repr__(self) -> str:
        """What a log needs to tell this set from another."""
        return (
            f"{type(self).__name__}(split={self.split!r}, {len(self)} items, x ({self.steps}, {self.n_in}), "
            f"{self.n_classes} classes, {self.encoding}{f', shift={self.shift}' if self.shift else ''})"
        )

    @property
    def left_out(self) -> int:
        """How many pixels would spike only after the window, and so stay silent."""
        late = self._time_of_level.isfinite() & ~self.encoding.shown(self._time_of_level)
        return int(torch.bincount(self.images.flatten(), minlength=256)[late].sum())

    def _moved(self, indices: Sequence[int]) -> Tensor:
        """Images (B, 784), moved at random where that is asked for."""
        images = self.images[torch.as_tensor(indices, dtype=torch.long)]
        if not self.shift:
            return images
        padded = nn.functional.pad(images.view(-1, SIDE, SIDE), (self.shift,) * 4)
        random = generator(indices)
        down, right = torch.from_numpy(random.integers(0, 2 * self.shift + 1, (2, len(images)), np.int64))
        rows, columns = (start[:, None] + torch.arange(SIDE) for start in (down, right))
        return padded[torch.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None]].flatten(1)

    def _encode(self, images: Tensor) -> Tensor:
        return self.encoding.frames(self._time_of_level[images.long()])


def _shift(shift: int, split: str) -> int:
    if whole("shift", shift, at_least=0) and split != "train":
        raise ValueError(f"shift is for the training split; of {split!r} every image stays where it is, got {shift}.")
    return shift


def _names(split: str) -> tuple[str, str]:
    return TEST if one_of("split", split, SPLITS) == "test" else TRAIN
