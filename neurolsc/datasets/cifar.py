"""CIFAR-10 and CIFAR-100: small pictures, shown for one step."""

from os import PathLike

from neurolsc.datasets.cifar_files import CIFAR10_FILES, CIFAR100_FILES, Layout, fetch_cifar, read_part
from neurolsc.datasets.mnist import SPLITS
from neurolsc.datasets.pixels import Pixels, Split
from neurolsc.datasets.splits import carve
from neurolsc.validation import one_of

HELD_OUT = 10
"""of so many training images one is for validation"""


class CIFAR10(Pixels):
    """CIFAR-10: 32 x 32 colour pictures of ten classes as x (1, 3072), each number from 0 to 1.

    The 1,024 inputs of red come first, then green, then blue, each row by row; no mean is taken
    away. 45,000 and 5,000 of the 50,000 training pictures are for training and validation, the
    10,000 test pictures for the test.

    Args:
        root: folder of the binary version: its files, its folder, or ``cifar-10-binary.tar.gz``,
            which is downloaded if nothing of it is there (170 MB), and unpacked there.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: draws the train and the validation pictures; without effect on the test.

    Raises:
        TypeError: if the seed is not an int.
        ValueError: if the split is unknown, the seed negative, or a file damaged or another.
        ConnectionError: if the archive could not be downloaded.

    Source: A. Krizhevsky, "Learning multiple layers of features from tiny images", 2009;
    https://www.cs.toronto.edu/~kriz/cifar.html.
    """

    _layout: Layout = CIFAR10_FILES
    _names: tuple[str, ...] = (
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    )

    def __init__(self, root: str | PathLike[str], split: Split, *, seed: int = 0) -> None:
        part = "test" if one_of("split", split, SPLITS) == "test" else "train"
        images, labels = read_part(fetch_cifar(root, self._layout, part), self._layout, part)
        if split != "test":
            held_out = len(images) // HELD_OUT
            chosen = carve(len(images), {"validation": held_out, "train": len(images) - held_out}, seed)[split]
            images, labels = images[chosen], labels[chosen]
        super().__init__(images, labels, self._names, split)


class CIFAR100(CIFAR10):
    """CIFAR-100: as :class:`CIFAR10`, of a hundred classes, which have numbers here.

    The label is the fine one; the twenty coarse ones are read, checked and left.

    Args:
        root: folder of the binary version: its files, its folder, or ``cifar-100-binary.tar.gz``,
            which is downloaded if nothing of it is there (169 MB), and unpacked there.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: draws the train and the validation pictures; without effect on the test.

    Raises:
        TypeError: if the seed is not an int.
        ValueError: if the split is unknown, the seed negative, or a file damaged or another.
        ConnectionError: if the archive could not be downloaded.

    Source: as :class:`CIFAR10`.
    """

    _layout = CIFAR100_FILES
    _names = tuple(str(number) for number in range(100))
