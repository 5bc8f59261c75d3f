"""HDF5 files that anybody may have made, read through h5py.

h5py follows links into other files, returns zeros for values that were never written, and takes
memory for whatever size a file states. Here links, external storage and virtual data sets are
refused, and every size is compared with the length of the file before memory is taken.

Values of variable length are read without the library: on a heap that holds a block of zeros, such
as a disk leaves where it lost one, HDF5 2.0 never returns, and for a length that a file only states
it takes gigabytes.
"""

import io
import math
import struct
import zlib
from collections.abc import Iterator
from os import PathLike
from typing import Any

import h5py
import numpy as np

from neurolsc.io import clean

PLACE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("index", "<u4")])  # an entry of variable length, as stored
KINDS = {"b": "booleans", "i": "integers", "u": "integers", "f": "floats", "S": "texts", "O": "texts"}  # by dtype.kind
MOST_OBJECTS = 10_000
DEEPEST = 16  # groups within groups


class MemoryBudget:
    """The memory that the content of a file may fill: 64 MiB and 16 times its length.

    Args:
        length: of the file, in bytes.

    Example:
        >>> MemoryBudget(1000).take(2**30, "spikes")
        Traceback (most recent call last):
        ValueError: spikes would fill 1.07 GB, more than a file of 1,000 bytes may (64 MiB and ...
    """

    def __init__(self, length: int) -> None:
        self.length, self.left = length, 64 * 2**20 + 16 * length

    def take(self, size: int, what: str) -> None:
        """Take some bytes.

        Raises:
            ValueError: if fewer are left.
        """
        if size > self.left:
            raise ValueError(
                f"{clean(what, 200)} would fill {size / 1e9:.3g} GB, more than a file of {self.length:,} bytes may "
                "(64 MiB and 16 times its length)."
            )
        self.left -= size


class HDF5:
    """An open HDF5 file; a context manager.

    Args:
        source: its path, or its bytes.

    Attributes:
        file: the ``h5py.File``.
        memory: bytes that its content may still fill.

    Every method raises ``ValueError`` where a link leads elsewhere, a value is of another kind than
    wanted, or a stated size is more than the file holds.
    """

    def __init__(self, source: bytes | str | PathLike[str]) -> None:
        packed = isinstance(source, bytes)
        self.bytes: np.ndarray = np.frombuffer(source, np.uint8) if packed else np.asarray(np.memmap(source, mode="r"))
        self.file: Any = h5py.File(io.BytesIO(source) if packed else source, "r")
        self.memory = MemoryBudget(len(self.bytes))
        plist = self.file.id.get_create_plist()
        if plist.get_sizes() != (8, 8) or plist.get_userblock() != 0:
            raise ValueError("its addresses must take 8 bytes each, and it must have no user block.")

    def __enter__(self) -> "HDF5":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def find(self, name: str) -> Any:
        """The group or data set of a path; None if there is none."""
        found: Any = self.file
        for part in name.split("/"):
            link = found.get(part, getlink=True) if isinstance(found, h5py.Group) else None
            if link is None:
                return None
            if not isinstance(link, h5py.HardLink):
                raise ValueError(f"{clean(name)} is a {type(link).__name__}, which is not followed.")
            found = found[part]
        return found

    def has(self, name: str) -> bool:
        """Whether there is a group or data set of that path."""
        return self.find(name) is not None

    def group(self, name: str) -> list[str]:
        """The names in a group."""
        found = self.find(name)
        if not isinstance(found, h5py.Group) or len(found) > MOST_OBJECTS:
            raise ValueError(f"wanted a group {clean(name)} of at most {MOST_OBJECTS} entries, got {found}.")
        return list(found)

    def tree(self, name: str) -> dict[str, Any]:
        """All values in a group; groups in it are dicts."""
        left = iter(range(MOST_OBJECTS))

        def values(name: str, depth: int) -> dict[str, Any]:
            if depth > DEEPEST:
                raise ValueError(f"{clean(name)} lies deeper than {DEEPEST} groups, or a group holds itself.")
            read: dict[str, Any] = {}
            for key in self.group(name):
                if next(left, None) is None:
                    raise ValueError(f"more than {MOST_OBJECTS} entries, or a group holds itself.")
                inner = f"{name}/{key}"
                read[key] = values(inner, depth + 1) if isinstance(self.find(inner), h5py.Group) else self.values(inner)
            return read

        return values(name, 0)

    def dataset(self, name: str, ndim: int | None = None, kinds: str = "") -> h5py.Dataset:
        """A data set whose stated size is stored in the file.

        Args:
            name: its path.
            ndim: number of axes; None: any.
            kinds: NumPy's letters of the dtypes that are wanted; empty: any.
        """
        data, shown = self.find(name), clean(name)
        if not isinstance(data, h5py.Dataset) or data.shape is None:
            raise ValueError(
                f"wanted a data set {shown} with values, got {'nothing' if data is None else clean(data)}."
            )
        if data.external or data.is_virtual:
            raise ValueError(f"{shown} takes its values from another file, which is not followed.")
        if kinds and data.dtype.kind not in kinds:
            wanted = " or ".join(dict.fromkeys(KINDS[kind] for kind in kinds))
            raise ValueError(f"{shown} must hold {wanted}, got {data.dtype}.")
        if ndim is not None and data.ndim != ndim:
            raise ValueError(f"{shown} must have {ndim} axes, got the shape {data.shape}.")
        item = PLACE.itemsize if data.dtype.kind == "O" else data.dtype.itemsize
        if data.id.get_storage_size() > self.memory.length:
            raise ValueError(f"{shown} states more bytes than the file holds.")
        if data.chunks:
            wanted = math.prod(-(-n // c) for n, c in zip(data.shape, data.chunks, strict=True))
            if data.id.get_num_chunks() != wanted:
                raise ValueError(f"{shown} states {wanted} chunks, the file holds {data.id.get_num_chunks()}.")
            MemoryBudget(self.memory.length).take(math.prod(data.chunks) * item, f"a chunk of {name}")
        elif math.prod(data.shape) * item > data.id.get_storage_size():
            raise ValueError(f"{shown} states {math.prod(data.shape) * item} bytes, which the file does not hold.")
        return data

    def values(self, name: str, ndim: int | None = None, kinds: str = "biufSO") -> Any:
        """All values of a data set: an array, or one value."""
        data = self.dataset(name, ndim, kinds)
        if data.dtype.kind != "O":
            self.memory.take(math.prod(data.shape) * data.dtype.itemsize, name)
            return _unpacked(data, data.dtype) if data.compression == "gzip" else data[()]
        if h5py.check_string_dtype(data.dtype) is None:
            raise ValueError(f"{clean(name)} must hold numbers or texts, got {data.dtype}.")
        read = np.empty(math.prod(data.shape), object)
        read[:] = [text.tobytes().rstrip(b"\0") for text in self.lists(name)]
        return read.reshape(data.shape)[()]

    def lists(self, name: str) -> "Lists":
        """The entries of a data set of variable length, usable after the file is closed."""
        data = self.dataset(name, kinds="O")
        self.memory.take(math.prod(data.shape) * PLACE.itemsize, name)
        if data.chunks:
            places = _unpacked(data, PLACE).reshape(-1)
        else:
            start, size = data.id.get_offset() or 0, math.prod(data.shape) * PLACE.itemsize
            places = self.bytes[start : start + size].view(PLACE).copy()
        if len(places) != math.prod(data.shape):
            raise ValueError(f"{clean(name)}: the file ends before its entries do.")
        inside = h5py.check_vlen_dtype(data.dtype)
        found = Lists(clean(name), places, inside if isinstance(inside, np.dtype) else np.dtype("u1"), self.bytes)
        if found.lengths.sum() * found.dtype.itemsize > self.memory.length:  # they may all be the same long one
            raise ValueError(f"{clean(name)}: its entries are longer than the file.")
        return found


class Lists:
    """Entries of variable length: a sequence of arrays, each a view of the file.

    An entry is a length and a place, an object of a *global heap*: a collection of objects one
    after the other, each with its index and size.

    Attributes:
        dtype: of the elements.
        lengths: elements of each entry (n,), int64.

    Raises:
        ValueError: when an entry is read that does not lie where it should.

    Source: HDF5 File Format Specification 3.0, III.E (global heap) and IV.A.2.d (variable-length).
    """

    def __init__(self, name: str, places: np.ndarray, dtype: np.dtype, data: np.ndarray) -> None:
        self.name, self.dtype, self.lengths = name, dtype, places["length"].astype(np.int64)
        self._places, self._bytes = (
            list(zip(*(places[field].tolist() for field in PLACE.names or ()), strict=True)),
            data,
        )
        self._heaps: dict[int, dict[int, tuple[int, int]]] = {}  # start and end of each object, by heap and index

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> np.ndarray:
        length, heap, index = self._places[i]
        if length == 0:
            return np.empty(0, self.dtype)
        if heap not in self._heaps:
            self._heaps[heap] = self._objects(heap)
        start, end = self._heaps[heap].get(index, (0, 0))
        if end - start != length * self.dtype.itemsize:
            raise ValueError(
                f"{self.name}: entry {i} is damaged: {length} elements in an object of {end - start} bytes."
            )
        return self._bytes[start:end].view(self.dtype)

    def _objects(self, heap: int) -> dict[int, tuple[int, int]]:
        data, found = self._bytes.data, {}
        magic, size = struct.unpack_from("<5s3xQ", data, heap) if heap + 16 <= len(data) else (b"", 0)
        if magic != b"GCOL\x01" or size > len(data) - heap:
            raise ValueError(f"{self.name}: the heap at byte {heap} is damaged.")
        at, stop = heap + 16, heap + size
        while at + 16 <= stop:
            index, size = struct.unpack_from("<H6xQ", data, at)
            if index == 0:  # the free space, which is the last object
                break
            at += 16
            if size > stop - at or index in found:
                raise ValueError(f"{self.name}: the heap at byte {heap} is damaged.")
            found[index] = at, at + size
            at += -(-size // 8) * 8
        return found


def _unpacked(data: Any, dtype: np.dtype) -> np.ndarray:
    """All values of a chunked data set; no chunk is unpacked beyond its stated size."""
    plist = data.id.get_create_plist()
    filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
    size, found = math.prod(data.chunks) * dtype.itemsize, np.empty(data.shape, dtype)
    for i in range(data.id.get_num_chunks()):
        place = data.id.get_chunk_info(i).chunk_offset
        mask, raw = data.id.read_direct_chunk(place)
        for n, code in reversed(list(enumerate(filters))):
            if mask >> n & 1:  # did not shrink, and is stored as it is
                continue
            if code == h5py.h5z.FILTER_DEFLATE:
                raw = zlib.decompressobj().decompress(raw, size + 1)
            elif code == h5py.h5z.FILTER_SHUFFLE:
                raw = np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
            else:
                raise ValueError(f"{clean(data.name)} is packed by filter {code}, which is not read.")
        if len(raw) != size:
            raise ValueError(f"a chunk of {clean(data.name)} does not hold the {size} bytes that it states.")
        part = found[tuple(slice(a, a + n) for a, n in zip(place, data.chunks, strict=True))]
        part[...] = np.frombuffer(raw, dtype).reshape(data.chunks)[tuple(slice(n) for n in part.shape)]
    return found
