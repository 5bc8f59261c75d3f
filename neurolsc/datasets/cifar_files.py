"""The binary files of CIFAR-10 and CIFAR-100: found, or downloaded and unpacked, and read.

The versions "for C programs" are taken: records of a fixed length, nothing that runs.
"""

import hashlib
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from neurolsc.datasets.download import downloaded, first_there
from neurolsc.io import atomic_write, refusing
from neurolsc.validation import one_of

HOME = "https://www.cs.toronto.edu/~kriz/"
PIXELS = 3 * 32 * 32
"""bytes of an image: red, green and blue, each 32 rows of 32"""


@dataclass(frozen=True)
class Layout:
    """What the files of one of the two are called, and what stands in them.

    Attributes:
        called: the data set.
        archive: the published file.
        md5: of it, as told on its page.
        folder: in the archive.
        files: of each part, in order, in that folder.
        records: in each file.
        labels: classes of each byte before an image; the last one is the label.
    """

    called: str
    archive: str
    md5: str
    folder: str
    files: dict[str, tuple[str, ...]]
    records: dict[str, int]
    labels: tuple[int, ...]


CIFAR10_FILES = Layout(
    "CIFAR-10",
    "cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-batches-bin",
    {"train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)), "test": ("test_batch.bin",)},
    {"train": 10_000, "test": 10_000},
    (10,),
)
CIFAR100_FILES = Layout(
    "CIFAR-100",
    "cifar-100-binary.tar.gz",
    "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-binary",
    {"train": ("train.bin",), "test": ("test.bin",)},
    {"train": 50_000, "test": 10_000},
    (20, 100),
)


def fetch_cifar(root: str | PathLike[str], layout: Layout, part: str) -> list[Path]:
    """Return the paths of the files of a part, after downloading and unpacking the archive.

    Files that are there, in the folder or in that of the archive's name in it, are used as they
    are. Else the archive is, downloaded if it is missing; of it the named files are unpacked, each
    whole or not at all, and nothing else.

    Args:
        root: the folder; made if need be.
        layout: of which data set.
        part: ``"train"`` or ``"test"``.

    Raises:
        ValueError: if the part is unknown, or the archive damaged, another one, or without a file
            of the size that it must have; the message names it.
        ConnectionError: if the archive could not be downloaded.
    """
    root, names = Path(root), layout.files[one_of("part", part, tuple(layout.files))]
    paths = [first_there(root, (name, f"{layout.folder}/{name}")) for name in names]
    if None not in paths:
        return [path for path in paths if path is not None]
    archive = root / layout.archive
    if archive.exists():
        _verify(archive, layout)
    else:
        otherwise = f"Put it, or the files in it, into {root} by hand."
        downloaded(
            root,
            layout.archive,
            (HOME + layout.archive,),
            lambda path: _verify(path, layout),
            called=layout.archive,
            otherwise=otherwise,
        )
    return unpack(archive, layout, part, root / layout.folder)


def unpack(archive: Path, layout: Layout, part: str, into: Path) -> list[Path]:
    """Unpack the files of a part out of the archive, and nothing else of what it holds.

    Raises:
        ValueError: if the archive is damaged, or a file is missing, no plain file, or of another
            size; the message names both.
    """
    size = layout.records[part] * (len(layout.labels) + PIXELS)
    paths = []
    with archive.open("rb") as file, refusing(archive, "the archive is damaged"), tarfile.open(fileobj=file) as tar:
        members = {member.name: member for member in tar}
        for name in layout.files[part]:
            member = members.get(f"{layout.folder}/{name}")
            found = tar.extractfile(member) if member and member.isreg() and member.size == size else None
            if found is None:
                raise ValueError(f"{layout.folder}/{name} must be a plain file of {size:,} bytes in it, and is none.")
            into.mkdir(parents=True, exist_ok=True)
            content = found.read(size)
            atomic_write(into / name, lambda out, content=content: out.write(content))
            paths.append(into / name)
    return paths


def read_records(path: Path, layout: Layout, records: int) -> tuple[Tensor, Tensor]:
    """Read a file of images.

    Args:
        path: the file: of each image its labels, a byte each, then 3,072 bytes, all of red, then
            green, then blue, row by row.
        layout: which labels there are.
        records: how many images it must hold.

    Returns:
        Images (n, 3072), uint8, and their last labels (n,), uint8.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it has another size, or a label is out of range; the message names it.
    """
    length = len(layout.labels) + PIXELS
    wanted = records * length
    with path.open("rb") as file, refusing(path, "it cannot be read"):
        got = path.stat().st_size
        if got != wanted:
            raise ValueError(
                f"{records:,} images of {layout.called} are {wanted:,} bytes, {length:,} each, got {got:,} bytes."
            )
        data = np.fromfile(file, np.uint8, wanted)
        if len(data) < wanted:
            raise ValueError(f"wanted {wanted:,} bytes, got {len(data):,}.")
        table = torch.from_numpy(data).view(records, length)
        for column, classes in enumerate(layout.labels):
            if (high := int(table[:, column].max())) >= classes:
                at = int(table[:, column].argmax())
                raise ValueError(f"image {at}: its label must lie in 0 ... {classes - 1}, got {high}.")
        head = len(layout.labels)
        return table[:, head:].contiguous(), table[:, head - 1].clone()


def read_part(paths: Sequence[Path], layout: Layout, part: str) -> tuple[Tensor, Tensor]:
    """Read all files of a part: images (n, 3072) and labels (n,), both uint8.

    Raises:
        ValueError: as :func:`read_records`.
    """
    images, labels = zip(*(read_records(path, layout, layout.records[part]) for path in paths), strict=True)
    return torch.cat(images), torch.cat(labels)


def _verify(path: Path, layout: Layout) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if got != layout.md5:
        raise ValueError(f"{path}: not {layout.archive} as published; its md5 is {got}, wanted {layout.md5}.")
