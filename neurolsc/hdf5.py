"""HDF5 files that anybody may have made, read by h5py: no links, and no more memory than the file allows."""

import io
import math
from os import PathLike
from typing import Any

import h5py

from neurolsc.io import clean

KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "floats", "S": "texts", "O": "texts"}  # by dtype.kind
DEEPEST = 16  # groups within groups


class MemoryBudget:
    """The memory that the content of a file may fill: 64 MiB and 16 times its length in bytes.

    Small files thus have room, and a damaged one cannot claim any amount that is out of proportion to it.

    Args:
        length: length of the file, in bytes.

    Attributes:
        left: bytes that may still be taken.
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.left = 64 * 2**20 + 16 * length

    def take(self, size: int, what: str) -> None:
        """Take `size` bytes; if fewer are left, a ``ValueError`` names `what` they are for."""
        if size > self.left:
            raise ValueError(
                f"{clean(what, most=200)} would fill {size / 1e9:.3g} GB, more than a file of {self.length:,} bytes may "
                "(64 MiB and 16 times its length)."
            )
        self.left -= size


class HDF5:
    """An HDF5 file that is open for reading, by its path or its bytes; a context manager, which closes it.

    Every method raises ``ValueError`` at a link, at values of another file, at values of another kind than wanted, and
    at more values than `memory` still allows.
    """

    def __init__(self, source: bytes | str | PathLike[str]) -> None:
        self.file: Any = h5py.File(io.BytesIO(source) if isinstance(source, bytes) else source, "r")
        self.memory = MemoryBudget(self.file.id.get_filesize())

    def __enter__(self) -> "HDF5":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def find(self, path: str) -> Any:
        """Return the group or data set of a path; None if there is none.

        ValueError at a soft or external link, which may lead to another file or in circles.
        """
        found: Any = self.file
        for part in path.split("/"):
            link = None
            if isinstance(found, h5py.Group):
                link = found.get(part, getlink=True)
            if link is None:
                return None
            if not isinstance(link, h5py.HardLink):
                raise ValueError(f"{clean(path)} is a {type(link).__name__}, which is not followed.")
            found = found[part]
        return found

    def has(self, name: str) -> bool:
        """Return True if there is a group or data set of that path."""
        return self.find(name) is not None

    def group(self, name: str) -> list[str]:
        """Return the names of the groups and data sets in a group."""
        if not isinstance(found := self.find(name), h5py.Group):
            raise ValueError(f"wanted a group {clean(name)}, got {clean(found)}.")
        return list(found)

    def tree(self, name: str) -> dict[str, Any]:
        """Return all values in a group, by name; a group within it is a dict of its own, and a text is a string."""
        if name.count("/") > DEEPEST:
            raise ValueError(f"{clean(name)} lies deeper than {DEEPEST} groups, or a group holds itself.")
        values: dict[str, Any] = {}
        for key in self.group(name):
            path = f"{name}/{key}"
            if isinstance(self.find(path), h5py.Group):
                value = self.tree(path)
            else:
                value = self.values(path)
            values[key] = value.decode() if isinstance(value, bytes) else value
        return values

    def dataset(self, name: str, ndim: int | None = None, kinds: str = "") -> h5py.Dataset:
        """Return a data set that has values, and has them in this file; the values are not read yet.

        Args:
            name: its path in the file.
            ndim: the number of axes that it must have; None: any.
            kinds: the kinds of values that it may have, letters of NumPy's ``dtype.kind``; empty: any.
        """
        data = self.find(name)
        shown = clean(name)
        if not isinstance(data, h5py.Dataset) or data.shape is None:
            found = "nothing" if data is None else clean(data)
            raise ValueError(f"wanted a data set {shown} with values, got {found}.")
        if data.external or data.is_virtual:
            raise ValueError(f"{shown} takes its values from another file, which is not followed.")
        if kinds and data.dtype.kind not in kinds:
            wanted = " or ".join(dict.fromkeys(KINDS[kind] for kind in kinds))
            raise ValueError(f"{shown} must hold {wanted}, got {data.dtype}.")
        if ndim is not None and data.ndim != ndim:
            raise ValueError(f"{shown} must have {ndim} axes, got the shape {data.shape}.")
        # h5py unpacks a chunk at a time: a damaged file may claim a huge one. Its memory is free again afterwards, so
        # that it counts against a budget of its own.
        MemoryBudget(self.memory.length).take(math.prod(data.chunks or ()) * data.dtype.itemsize, f"a chunk of {name}")
        return data

    def values(self, name: str, ndim: int | None = None, kinds: str = "biufSO") -> Any:
        """Return all values of a data set: an array, or one value; texts are bytes. Arguments: see :meth:`dataset`."""
        data = self.dataset(name, ndim, kinds)
        if data.dtype.kind == "O" and h5py.check_string_dtype(data.dtype) is None:
            raise ValueError(f"{clean(name)} must hold numbers or texts, got {data.dtype}.")
        self.memory.take(math.prod(data.shape) * data.dtype.itemsize, name)
        return data[()]
