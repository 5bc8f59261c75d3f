"""The four files of MNIST: found or downloaded, verified, read in pairs."""

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

from neurolsc.datasets.download import downloaded
from neurolsc.datasets.idx import contents_digest, read_idx

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

SHA256 = {  # of the uncompressed contents: gzip containers differ from one mirror to the next
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}

MIRRORS: tuple[str, ...] = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def fetch_mnist(root: str | Path, names: Iterable[str] = TRAIN + TEST) -> dict[str, Path]:
    """Return the paths of MNIST's files in a folder, after downloading the missing ones.

    A file that is there, plain or as ``.gz``, is used without any network. A downloaded one appears
    in the folder complete and verified, or not at all.

    Args:
        root: the folder; made if need be.
        names: which of the four files, by default all.

    Returns:
        The path of each file by its name without ``.gz``.

    Raises:
        ValueError: if a file in the folder is damaged or is not MNIST's.
        ConnectionError: if no mirror gave a file; the message says why for each.
    """
    root = Path(root)
    return {name: _present(root, name) or _download(root, name) for name in names}


def read_pair(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    """Read an image file and its label file.

    Args:
        images_path: the images.
        labels_path: their labels.

    Returns:
        Images (n, 28, 28) and labels (n,), both uint8.

    Raises:
        ValueError: if a file is damaged, holds something else, or the two differ in number; the
            message names it.
    """
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.shape[1:] != (28, 28) or len(images) == 0:
        raise ValueError(f"{images_path}: images must be (n, 28, 28), n > 0, got {tuple(images.shape)}.")
    if labels.ndim != 1:
        raise ValueError(f"{labels_path}: labels must be (n,), got {tuple(labels.shape)}.")
    if len(labels) != len(images):
        raise ValueError(f"{labels_path}: {len(images)} images need as many labels, got {len(labels)}.")
    if (labels > 9).any():
        raise ValueError(f"{labels_path}: labels must be digits from 0 to 9, got {int(labels.max())}.")
    return images, labels


def _present(root: Path, name: str) -> Path | None:
    for path in (root / name, root / f"{name}.gz"):
        if path.exists():
            _verify(path, name)
            return path
    return None


def _download(root: Path, name: str) -> Path:
    return downloaded(
        root,
        f"{name}.gz",
        [f"{mirror}{name}.gz" for mirror in MIRRORS],
        lambda path: _verify(path, name),
        called=name,
        otherwise=f"Put it, plain or as .gz, into {root} by hand, or use SpikeLatencyMNIST.embedded(split).",
    )


def _verify(path: Path, name: str) -> None:
    got, wanted = contents_digest(path), SHA256[name]
    if got != wanted:
        raise ValueError(f"{path}: not MNIST's {name}; the sha256 of its contents is {got}, wanted {wanted}.")
