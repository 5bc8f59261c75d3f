"""Lists and texts of variable length in an HDF5 file, read without the library.

Such a data set holds a *place* for each entry: a length, and where its elements lie in a *global
heap*, a collection of objects one after the other, each with its index and size. Given a heap with
a free object of size 0, such as a block of zeros that a disk lost, HDF5 2.0 goes round in a circle
for ever, and it takes memory for whatever length a place states. Here every place is known, and
compared with the length of the file, before anything is read; it takes less time, too.

Source: HDF5 File Format Specification 3.0, III.E (global heap) and IV.A.2.d (variable-length).
"""

import struct
import zlib
from typing import Any

import h5py
import numpy as np

from neurolsc.untrusted.places import Bytes

__all__ = ["PLACE", "Lists"]

PLACE = np.dtype([("length", "<u4"), ("heap", "<u8"), ("index", "<u4")])
HEAP = struct.Struct("<4sB3xQ")
OBJECT = struct.Struct("<HHIQ")
HEAD = 4096
"""bytes read at once of a heap: most hold a few objects"""


class Lists:
    """The entries of a data set of variable length.

    Args:
        name: its path, for errors.
        data: the data set, checked: all of its chunks are there.
        filters: what its chunks are packed by, in order: shuffle, deflate or none.
        file: the bytes of the file.

    Raises:
        ValueError: if the places of its entries cannot be read.
    """

    def __init__(self, name: str, data: Any, filters: list[int], file: Bytes) -> None:
        self.name, self.file = name, file
        inside = h5py.check_vlen_dtype(data.dtype)
        self.dtype = inside if isinstance(inside, np.dtype) else np.dtype("u1")
        self._heaps: dict[int, dict[int, tuple[int, int]]] = {}
        self.places = self._whole(data) if data.chunks is None else self._chunks(data, filters)

    @property
    def lengths(self) -> np.ndarray:
        """Elements of each entry (n,), int64, as the places state them."""
        return self.places["length"].astype(np.int64)

    def read(self, i: int, out: np.ndarray) -> None:
        """Fill an array with entry i.

        Raises:
            ValueError: if it does not lie where it should.
        """
        length, heap, index = self.places[i].item()
        if length == 0:
            return
        objects = self._heaps.get(heap)
        if objects is None:
            objects = self._heaps[heap] = self._objects(heap)
        place, size = objects.get(index, (0, -1))
        if size != length * self.dtype.itemsize:
            raise ValueError(f"{self.name}: entry {i} is damaged: {length} elements, in an object of {size} bytes.")
        self.file.into(place, out)

    def _objects(self, heap: int) -> dict[int, tuple[int, int]]:
        """Place and size of the objects of a heap, by their index."""
        told = f"{self.name}: the heap at byte {heap} is damaged"
        head = self.file.at(heap, HEAD)
        if len(head) < HEAP.size or head[:5] != b"GCOL\x01":
            raise ValueError(f"{told}: there is none.")
        _, _, whole = HEAP.unpack_from(head)
        if whole > self.file.length - heap:
            raise ValueError(f"{told}: it states {whole} bytes, more than there are.")
        found, at, start = {}, HEAP.size, 0
        while at + OBJECT.size <= whole:
            if at + OBJECT.size > start + len(head):
                head, start = self.file.at(heap + at, HEAD), at
            index, _, _, size = OBJECT.unpack_from(head, at - start)
            if index == 0:
                break  # what is free stands at the end
            at += OBJECT.size
            if size > whole - at or index in found:
                raise ValueError(f"{told}: object {index} has {size} bytes.")
            found[index] = heap + at, size
            at += -(-size // 8) * 8
        return found

    def _whole(self, data: Any) -> np.ndarray:
        """The places where they stand in one piece."""
        places, at = np.empty(data.size, PLACE), data.id.get_offset()
        if len(places):
            if at is None:
                raise ValueError(f"{self.name}: its layout is not read.")
            self.file.into(at, places)
        return places

    def _chunks(self, data: Any, filters: list[int]) -> np.ndarray:
        """The places where they stand in chunks, in the order of the data set."""
        places = np.empty(data.shape, PLACE)
        for i in range(data.id.get_num_chunks()):
            info = data.id.get_chunk_info(i)
            mask, raw = data.id.read_direct_chunk(info.chunk_offset)
            size = int(np.prod(data.chunks)) * PLACE.itemsize
            for n in reversed(range(len(filters))):
                if not mask >> n & 1:
                    raw = self._unpacked(filters[n], raw, size)
            if len(raw) != size:
                raise ValueError(f"{self.name}: a chunk has {len(raw)} bytes instead of {size}.")
            where = tuple(slice(a, a + n) for a, n in zip(info.chunk_offset, data.chunks, strict=True))
            part = places[where]
            part[...] = np.frombuffer(raw, PLACE).reshape(data.chunks)[tuple(slice(n) for n in part.shape)]
        return places.reshape(-1)

    def _unpacked(self, code: int, raw: bytes, size: int) -> bytes:
        if code == h5py.h5z.FILTER_DEFLATE:
            return zlib.decompressobj().decompress(raw, size + 1)
        if code == h5py.h5z.FILTER_SHUFFLE and len(raw) % PLACE.itemsize == 0:
            return np.frombuffer(raw, np.uint8).reshape(PLACE.itemsize, -1).T.tobytes()
        raise ValueError(f"{self.name} is packed by filter {code}, which is not read.")
