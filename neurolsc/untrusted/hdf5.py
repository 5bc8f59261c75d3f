"""Data sets of an HDF5 file, each looked at before it is read.

HDF5 lets a file point at other files (external links, external storage, virtual data sets), at
itself, and at sizes without content. None of the files that are read here needs that, so it is
refused, and what a data set states is compared with what the file holds of it.
"""

import io
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from neurolsc.untrusted.lists import PLACE, Lists
from neurolsc.untrusted.places import Bytes
from neurolsc.untrusted.room import Room
from neurolsc.untrusted.words import clean

__all__ = ["Content", "text"]

DEEPEST = 16
"""groups within groups"""
MOST_OBJECTS = 10_000
BLOCK = 2**16
"""bytes that are unpacked at once to see how many there are"""
PLAIN = "biufSO"
WORDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "floats", "S": "texts", "O": "texts"}
"""kinds of dtype that are read at all, by numpy's letters"""
FILTERS = {
    h5py.h5z.FILTER_SHUFFLE: 0,
    h5py.h5z.FILTER_DEFLATE: 1,
    h5py.h5z.FILTER_LZF: 1,
    h5py.h5z.FILTER_FLETCHER32: 2,
}
"""the filters that are read, each once, in this order"""


class Content:
    """An open HDF5 file whose data sets are checked before they are read.

    Args:
        source: its bytes, or the path of a file.

    Attributes:
        file: the open file.
        length: its length, in bytes.
        room: what may still be read.

    Every method raises ValueError that names the place, where a link leads out of the file or in a
    circle, there is something else than was asked for, or more than the file has room for.
    """

    def __init__(self, source: bytes | Path) -> None:
        self.bytes = Bytes(source)
        self.length = self.bytes.length
        self.file: Any = h5py.File(source if isinstance(source, Path) else io.BytesIO(source), "r")
        self.room = Room(self.length)
        self._groups: dict[str, Any] = {"": self.file}
        plist = self.file.id.get_create_plist()
        if plist.get_sizes() != (8, 8) or plist.get_userblock() != 0:
            raise ValueError("its addresses and sizes must take 8 bytes each, and it must start with itself.")

    def __enter__(self) -> "Content":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.bytes.close()

    def has(self, name: str) -> bool:
        """Whether there is something of that name."""
        return self._find(name) is not None

    def dataset(self, name: str, ndim: int | None = None, kinds: str = "") -> Any:
        """A data set (``h5py.Dataset``), not read yet.

        Args:
            name: its path.
            ndim: number of axes; None: any.
            kinds: numpy's letters of the dtypes that are wanted; empty: any.
        """
        return self._dataset(name, self._find(name), ndim, kinds)

    def values(self, name: str, ndim: int | None = None, kinds: str = PLAIN) -> Any:
        """What a data set holds: an array, or one value."""
        return self._values(name, self._dataset(name, self._find(name), ndim, kinds))

    def _dataset(self, name: str, found: Any, ndim: int | None, kinds: str) -> Any:
        if not isinstance(found, h5py.Dataset):
            raise ValueError(f"wanted a data set {clean(name)}, there is {_said(found)}.")
        self._check(name, found)
        if ndim is not None and found.ndim != ndim:
            raise ValueError(f"{clean(name)} must have {ndim} axes, got the shape {found.shape}.")
        if kinds and found.dtype.kind not in kinds:
            wanted = " or ".join(dict.fromkeys(WORDS[kind] for kind in kinds))
            raise ValueError(f"{clean(name)} must hold {wanted}, got {found.dtype}.")
        return found

    def _values(self, name: str, found: Any) -> Any:
        if found.dtype.kind in "SO" and found.size > MOST_OBJECTS:
            raise ValueError(f"{clean(name)} holds {found.size} texts, at most {MOST_OBJECTS} are read.")
        if found.dtype.kind != "O":
            self.room.take(found.size * found.dtype.itemsize, clean(name))
            return found[()]
        if h5py.check_string_dtype(found.dtype) is None:
            raise ValueError(f"{clean(name)} must hold numbers or texts, got {found.dtype}.")
        texts = self.lists(name, found)
        read = np.empty(len(texts.lengths), object)
        for i, length in enumerate(texts.lengths.tolist()):  # all of them may be the same long one
            self.room.take(length, clean(name))
            out = np.empty(length, np.uint8)
            texts.read(i, out)
            read[i] = out.tobytes().rstrip(b"\0")
        return read.reshape(found.shape)[()]

    def lists(self, name: str, found: Any) -> Lists:
        """The entries of a data set of variable length, not read yet."""
        plist = found.id.get_create_plist()
        return Lists(clean(name), found, [plist.get_filter(i)[0] for i in range(plist.get_nfilters())], self.bytes)

    def group(self, name: str) -> list[str]:
        """The names in a group."""
        found = self._groups.get(name) or self._find(name)
        if not isinstance(found, h5py.Group):
            raise ValueError(f"wanted a group {clean(name)}, there is {_said(found)}.")
        if len(found) > MOST_OBJECTS:
            raise ValueError(f"{clean(name)} has {len(found)} entries, at most {MOST_OBJECTS} are read.")
        return list(found)

    def tree(self, name: str) -> dict[str, Any]:
        """All that is in a group, groups in it as dicts."""
        left = iter(range(MOST_OBJECTS))
        return self._tree(name, 0, left)

    def _tree(self, name: str, depth: int, left: Iterator[int]) -> dict[str, Any]:
        if depth > DEEPEST:
            raise ValueError(f"{clean(name)} lies deeper than {DEEPEST} groups, or groups hold themselves.")
        read: dict[str, Any] = {}
        for key in self.group(name):
            if next(left, None) is None:
                raise ValueError(f"more than {MOST_OBJECTS} entries: groups may hold themselves.")
            inner = f"{name}/{key}"
            found = self._find(inner)
            if isinstance(found, h5py.Group):
                self._groups[inner] = found
                read[key] = self._tree(inner, depth + 1, left)
            else:
                read[key] = self._values(inner, self._dataset(inner, found, None, PLAIN))
        return read

    def _find(self, name: str) -> Any:
        """The object of a path; None if there is none."""
        above, _, last = name.rpartition("/")
        group = self._groups.get(above)
        if group is None:
            group = self._groups[above] = self._find(above)
        if not isinstance(group, h5py.Group):
            return None
        link = group.get(last, getlink=True)
        if link is None:
            return None
        if not isinstance(link, h5py.HardLink):
            raise ValueError(f"{clean(name)} is a {type(link).__name__}, which is not followed.")
        return group[last]

    def _check(self, name: str, found: Any) -> None:
        if found.shape is None:
            raise ValueError(f"{clean(name)} is empty.")
        if found.external or found.is_virtual:
            raise ValueError(f"{clean(name)} takes its values from another file, which is not followed.")
        size = found.size * found.dtype.itemsize
        if found.dtype.kind == "O":
            size = PLACE.itemsize * found.size
        stored = found.id.get_storage_size()
        if found.chunks is None:
            if stored < size or stored > self.length:
                raise ValueError(f"{clean(name)} states {size} bytes, the file holds {min(stored, self.length)} of it.")
            return
        self._check_chunks(name, found)

    def _check_chunks(self, name: str, found: Any) -> None:
        """Demand that all chunks are there, and unpack to what they state and no more."""
        plist = found.id.get_create_plist()
        filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
        order = [FILTERS.get(code, -1) for code in filters]
        if -1 in order or order != sorted(set(order)):
            raise ValueError(f"{clean(name)} is packed by filters {filters}, which are not read.")
        wanted = math.prod(-(-n // c) for n, c in zip(found.shape, found.chunks, strict=True))
        there = found.id.get_num_chunks()
        if wanted != there:
            raise ValueError(f"{clean(name)} states {wanted} chunks, the file holds {there} of them.")
        size = math.prod(found.chunks) * max(found.dtype.itemsize, 16)
        what = f"a chunk of {clean(name)}"
        Room(self.length).take(size, what)
        if h5py.h5z.FILTER_DEFLATE not in filters:
            return
        for i in range(there):  # the library unpacks a stream to its end, whatever the chunk states
            info = found.id.get_chunk_info(i)
            if info.filter_mask >> filters.index(h5py.h5z.FILTER_DEFLATE) & 1:
                continue  # it did not shrink, and is stored as it is
            if info.size > self.length:
                raise ValueError(f"{what} states {info.size} bytes, more than the file has.")
            _, data = found.id.read_direct_chunk(info.chunk_offset)
            if _unpacks_to_more(data, size):
                raise ValueError(f"{what} unpacks to more than it states.")


def _unpacks_to_more(data: bytes, size: int) -> bool:
    """Whether a zlib stream gives more bytes than that."""
    unpacker, found = zlib.decompressobj(), 0
    while data and found <= size and not unpacker.eof:
        found += len(unpacker.decompress(data, BLOCK))
        data = unpacker.unconsumed_tail
    return found > size


def _said(found: Any) -> str:
    return "nothing of that name" if found is None else f"a {type(found).__name__.lower()}"


def text(value: Any) -> str:
    """A string of a file as text, cleaned."""
    if isinstance(value, np.ndarray):
        raise ValueError(f"wanted a text, got an array of shape {value.shape}.")
    return clean(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
