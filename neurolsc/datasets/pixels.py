"""Images as they are: one step of grey levels or colours, for networks without time."""

from collections.abc import Sequence
from contextlib import ExitStack
from importlib import resources
from os import PathLike
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from neurolsc.datasets.collate import Batch
from neurolsc.datasets.mnist import FULL_SIZES, SAMPLE_SIZES, SPLITS
from neurolsc.datasets.mnist_files import TEST, TRAIN, fetch_mnist, read_pair
from neurolsc.datasets.splits import carve
from neurolsc.validation import one_of

Split = Literal["train", "validation", "test"]


class Pixels(Dataset[tuple[Tensor, int]]):
    r"""Images shown for one step: item i is a pair (x (1, N), label).

    .. math:: x = \mathrm{byte} / 255, \quad \text{float32, from 0 to 1}

    and nothing else: no mean is taken away. They are kept as bytes and divided when asked for.

    Args:
        images: bytes (n, N).
        labels: classes (n,), integers.
        names: of the classes.
        split: what this part is called.

    Attributes:
        split: name of the split.
        images: bytes (n, N), uint8.
        labels: classes (n,), int64.
        names: of the classes.
        n_in: number of inputs N.
        n_classes: number of classes.
        steps: number of time steps, 1.

    Raises:
        ValueError: if images are not bytes (n, N) with a label each, or a label names no class.
    """

    def __init__(self, images: Tensor, labels: Tensor, names: Sequence[str], split: Split) -> None:
        if images.dtype != torch.uint8 or images.ndim != 2 or labels.shape != images.shape[:1]:
            raise ValueError(
                f"images must be bytes (n, N) with labels (n,), got {images.dtype} {tuple(images.shape)} "
                f"and {tuple(labels.shape)}."
            )
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(names):
            raise ValueError(f"labels must lie in 0 ... {len(names) - 1}, got {int(labels.min())} ... {labels.max()}.")
        self.split, self.images, self.labels, self.names = split, images, labels.long(), tuple(names)
        self.n_in, self.n_classes, self.steps = images.shape[1], len(names), 1

    def __len__(self) -> int:
        """Number of items."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One item: x (1, N) and the class."""
        return self.images[index].unsqueeze(0) / 255, int(self.labels[index])

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return several items at once: what a ``DataLoader`` calls for a batch."""
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return Batch(self.images[chosen].unsqueeze(0) / 255, self.labels[chosen])

    def __repr__(self) -> str:
        """What a log needs to tell this set from another."""
        shape = f"x ({self.steps}, {self.n_in})"
        return f"{type(self).__name__}(split={self.split!r}, {len(self)} items, {shape}, {self.n_classes} classes)"


class MNISTPixels(Pixels):
    """MNIST digits as grey levels from 0 to 1, x (1, 784), for one step.

    The splits are those of :class:`SpikeLatencyMNIST`: 45,000 and 5,000 of the 60,000 training
    images, drawn with the seed, and the 10,000 test images.

    Args:
        root: folder of MNIST's IDX files, plain or as ``.gz``; the missing ones are downloaded into
            it.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: draws the train and the validation images; without effect on the test images.

    Raises:
        TypeError: if the seed is not an int.
        ValueError: if the split is unknown, the seed negative, or a file damaged or not MNIST's.
        ConnectionError: if a missing file could not be downloaded.

    Source: Y. LeCun, L. Bottou, Y. Bengio, P. Haffner, Proceedings of the IEEE 86 (1998).

    Example:
        >>> digits = MNISTPixels.embedded("test")
        >>> x, label = digits[0]
        >>> len(digits), x.shape, label
        (500, torch.Size([1, 784]), 9)
    """

    def __init__(self, root: str | PathLike[str], split: Split, *, seed: int = 0) -> None:
        names = TEST if one_of("split", split, SPLITS) == "test" else TRAIN
        paths = fetch_mnist(str(root), names)
        self._hold(*read_pair(*(paths[name] for name in names)), split, FULL_SIZES, seed)

    @classmethod
    def embedded(cls, split: Split, *, seed: int = 0) -> "MNISTPixels":
        """Return the sample in the package: 1,800 train, 200 validation and 500 test digits.

        Args:
            split: ``"train"``, ``"validation"`` or ``"test"``.
            seed: draws the validation images among the sample's 2,000 training images.

        Raises:
            TypeError: if the seed is not an int.
            ValueError: if the split is unknown or the seed negative.
        """
        names = TEST if one_of("split", split, SPLITS) == "test" else TRAIN
        folder = resources.files("neurolsc.datasets") / "samples" / "mnist"
        self = cls.__new__(cls)
        with ExitStack() as stack:
            paths = [stack.enter_context(resources.as_file(folder / f"{name}.gz")) for name in names]
            self._hold(*read_pair(*paths), split, SAMPLE_SIZES, seed)
        return self

    def _hold(self, images: Tensor, labels: Tensor, split: Split, sizes: dict[str, int], seed: int) -> None:
        chosen = slice(None) if split == "test" else carve(len(images), sizes, seed)[split]
        super().__init__(images[chosen].flatten(1), labels[chosen], [str(digit) for digit in range(10)], split)
