"""Data sets of an HDF5 file, each looked at before it is read.

HDF5 lets a file point at other files (external links, external storage, virtual data sets), at
itself, and at sizes without content. None of the files that are read here needs that, so it is
refused, and what a data set states is compared with what the file holds of it.
"""

import io
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5l, h5o  # type: ignore[attr-defined]

from neurolsc.io import clean
from neurolsc.untrusted.chunks import READ, unpack
from neurolsc.untrusted.lists import PLACE, Lists
from neurolsc.untrusted.places import Bytes
from neurolsc.untrusted.room import Room

__all__ = ["Content", "Part", "text"]

DEEPEST = 16
"""groups within groups"""
MOST_OBJECTS = 10_000
BLOCK = 2**16
"""bytes that are unpacked at once to see how many there are"""
CHECKSUM = 4
"""bytes that a filter may add to a chunk"""
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


@dataclass(frozen=True)
class Part:
    """A data set that was looked at, and not read yet."""

    name: str
    id: Any
    """``h5py.h5d.DatasetID``"""
    dtype: np.dtype
    shape: tuple[int, ...]
    filters: list[int] | None
    """what its chunks are packed by, in order; None: it lies in one piece"""

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


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
        self._groups: dict[str, Any] = {"": self.file.id}
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

    def dataset(self, name: str, ndim: int | None = None, kinds: str = "") -> Part:
        """A data set, not read yet.

        Args:
            name: its path.
            ndim: number of axes; None: any.
            kinds: numpy's letters of the dtypes that are wanted; empty: any.
        """
        return self._part(name, self._find(name), ndim, kinds)

    def values(self, name: str, ndim: int | None = None, kinds: str = PLAIN) -> Any:
        """What a data set holds: an array, or one value."""
        return self._read(self.dataset(name, ndim, kinds))

    def lists(self, part: Part) -> Lists:
        """The entries of a data set of variable length, not read yet."""
        return Lists(clean(part.name), part.id, part.dtype, part.filters, self.bytes)

    def group(self, name: str) -> list[str]:
        """The names in a group."""
        found = self._groups.get(name) or self._find(name)
        if not _is_group(found):
            raise ValueError(f"wanted a group {clean(name)}, there is {_said(found)}.")
        if len(found) > MOST_OBJECTS:
            raise ValueError(f"{clean(name)} has {len(found)} entries, at most {MOST_OBJECTS} are read.")
        return [key.decode("utf-8", "surrogateescape") for key in found]

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
            if _is_group(found):
                self._groups[inner] = found
                read[key] = self._tree(inner, depth + 1, left)
            else:
                read[key] = self._read(self._part(inner, found, None, PLAIN))
        return read

    def _find(self, name: str) -> Any:
        """The low-level object of a path; None if there is none."""
        above, _, last = name.rpartition("/")
        group = self._groups.get(above)
        if group is None:
            group = self._groups[above] = self._find(above)
        key = last.encode("utf-8", "surrogateescape")
        if not _is_group(group) or not group.links.exists(key):
            return None
        kind = group.links.get_info(key).type
        if kind != h5l.TYPE_HARD:
            told = {h5l.TYPE_SOFT: "SoftLink", h5l.TYPE_EXTERNAL: "ExternalLink"}.get(kind, "foreign link")
            raise ValueError(f"{clean(name)} is a {told}, which is not followed.")
        return h5o.open(group, key)

    def _part(self, name: str, found: Any, ndim: int | None, kinds: str) -> Part:
        """A data set, once nothing about it is wrong."""
        if not isinstance(found, h5py.h5d.DatasetID):
            raise ValueError(f"wanted a data set {clean(name)}, there is {_said(found)}.")
        if found.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            raise ValueError(f"{clean(name)} is empty.")
        plist = found.get_create_plist()
        layout = plist.get_layout()
        if plist.get_external_count() or layout == h5py.h5d.VIRTUAL:
            raise ValueError(f"{clean(name)} takes its values from another file, which is not followed.")
        filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())] if layout == h5py.h5d.CHUNKED else None
        part = Part(name, found, found.dtype, found.shape, filters)
        if filters is None:
            size = part.size * (PLACE.itemsize if part.dtype.kind == "O" else part.dtype.itemsize)
            stored = found.get_storage_size()
            if stored < size or stored > self.length:
                raise ValueError(f"{clean(name)} states {size} bytes, the file holds {min(stored, self.length)} of it.")
        else:
            self._check_chunks(part, plist.get_chunk(), filters)
        if ndim is not None and len(part.shape) != ndim:
            raise ValueError(f"{clean(name)} must have {ndim} axes, got the shape {part.shape}.")
        if kinds and part.dtype.kind not in kinds:
            wanted = " or ".join(dict.fromkeys(WORDS[kind] for kind in kinds))
            raise ValueError(f"{clean(name)} must hold {wanted}, got {part.dtype}.")
        return part

    def _check_chunks(self, part: Part, chunk: tuple[int, ...], filters: list[int]) -> None:
        """Demand that all chunks are there."""
        order = [FILTERS.get(code, -1) for code in filters]
        if -1 in order or order != sorted(set(order)):
            raise ValueError(f"{clean(part.name)} is packed by filters {filters}, which are not read.")
        wanted = math.prod(-(-n // c) for n, c in zip(part.shape, chunk, strict=True))
        there = part.id.get_num_chunks()
        if wanted != there:
            raise ValueError(f"{clean(part.name)} states {wanted} chunks, the file holds {there} of them.")
        Room(self.length).take(math.prod(chunk) * max(part.dtype.itemsize, 16), f"a chunk of {part.name}")

    def _read(self, part: Part) -> Any:
        if part.dtype.kind == "O":
            return self._texts(part)
        if part.dtype.kind == "S" and part.size > MOST_OBJECTS:
            raise ValueError(f"{clean(part.name)} holds {part.size} texts, at most {MOST_OBJECTS} are read.")
        self.room.take(part.size * part.dtype.itemsize, part.name)
        filters = part.filters or []
        if h5py.h5z.FILTER_DEFLATE in filters:
            if {*filters} <= {*READ} and part.id.get_type() == h5py.h5t.py_create(part.dtype):
                return unpack(clean(part.name), part.id, filters, part.dtype, self.length)
            self._check_streams(part, filters.index(h5py.h5z.FILTER_DEFLATE))
        found = np.empty(part.shape, part.dtype)
        if found.size:
            part.id.read(h5py.h5s.ALL, h5py.h5s.ALL, found)
        return found[()]

    def _texts(self, part: Part) -> Any:
        if h5py.check_string_dtype(part.dtype) is None:
            raise ValueError(f"{clean(part.name)} must hold numbers or texts, got {part.dtype}.")
        if part.size > MOST_OBJECTS:
            raise ValueError(f"{clean(part.name)} holds {part.size} texts, at most {MOST_OBJECTS} are read.")
        texts = self.lists(part)
        read = np.empty(part.size, object)
        for i, length in enumerate(texts.lengths.tolist()):  # all of them may be the same long one
            self.room.take(length, part.name)
            out = np.empty(length, np.uint8)
            texts.read(i, out)
            read[i] = out.tobytes().rstrip(b"\0")
        return read.reshape(part.shape)[()]

    def _check_streams(self, part: Part, deflate: int) -> None:
        """Demand that streams hold no more than is stated: the library unpacks to their end."""
        size = math.prod(part.id.get_create_plist().get_chunk()) * part.dtype.itemsize + CHECKSUM
        for i in range(part.id.get_num_chunks()):
            info = part.id.get_chunk_info(i)
            if info.size > self.length:
                raise ValueError(f"a chunk of {clean(part.name)} states {info.size} bytes, more than the file has.")
            mask, data = part.id.read_direct_chunk(info.chunk_offset)
            if not mask >> deflate & 1 and _unpacks_to_more(data, size):
                raise ValueError(f"a chunk of {clean(part.name)} unpacks to more than it states.")


def _unpacks_to_more(data: bytes, size: int) -> bool:
    """Whether a zlib stream gives more bytes than that."""
    unpacker, found = zlib.decompressobj(), 0
    while data and found <= size and not unpacker.eof:
        found += len(unpacker.decompress(data, BLOCK))
        data = unpacker.unconsumed_tail
    return found > size


def _is_group(found: Any) -> bool:
    return isinstance(found, h5py.h5g.GroupID)


def _said(found: Any) -> str:
    return "nothing of that name" if found is None else f"a {type(found).__name__.lower().removesuffix('id')}"


def text(value: Any) -> str:
    """A string of a file as text, cleaned."""
    if isinstance(value, np.ndarray):
        raise ValueError(f"wanted a text, got an array of shape {value.shape}.")
    return clean(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
