"""Lists and texts of variable length in an HDF5 file, read without the library.

Such a data set holds a *place* for each entry: a length, and where its elements lie in a *global
heap*, a collection of objects one after the other, each with its index and size. Given a heap with
a free object of size 0, such as a block of zeros that a disk lost, HDF5 2.0 goes round in a circle
for ever, and it takes memory for whatever length a place states. Here every place is known, and
compared with the length of the file, before anything is read; it takes less time, too.

Source: HDF5 File Format Specification 3.0, III.E (global heap) and IV.A.2.d (variable-length).
"""

import math
import struct
from typing import Any

import h5py
import numpy as np

from neurolsc.untrusted.chunks import unpack
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
        data: the data set (``h5py.h5d.DatasetID``), checked: all of its chunks are there.
        dtype: h5py's, which says what the entries hold.
        filters: what its chunks are packed by, in order: shuffle, deflate or none; None: it lies in
            one piece.
        file: the bytes of the file.

    Raises:
        ValueError: if the places of its entries cannot be read.
    """

    def __init__(self, name: str, data: Any, dtype: np.dtype, filters: list[int] | None, file: Bytes) -> None:
        self.name, self.file = name, file
        inside = h5py.check_vlen_dtype(dtype)
        self.dtype = inside if isinstance(inside, np.dtype) else np.dtype("u1")
        self._heaps: dict[int, dict[int, tuple[int, int]]] = {}
        self.places = (
            self._whole(data) if filters is None else unpack(name, data, filters, PLACE, file.length).reshape(-1)
        )

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
        places, at = np.empty(math.prod(data.shape), PLACE), data.get_offset()
        if len(places):
            if at is None:
                raise ValueError(f"{self.name}: its layout is not read.")
            self.file.into(at, places)
        return places
