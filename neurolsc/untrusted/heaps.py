"""The heaps of an HDF5 file, looked at before the library reads texts and lists from them.

What has a variable length lies in *global heaps*, collections of objects one after the other, each
with its size. At a free object of size 0, such as a block of zeros that a disk lost, HDF5 2.0 goes
round in a circle for ever.

Source: HDF5 File Format Specification 3.0, III.E, disk format level 1E, global heap.
"""

import struct
from typing import BinaryIO

__all__ = ["check_heaps"]

START = b"GCOL\x01"
BLOCK = 2**22
OBJECT = struct.Struct("<HHIQ")


def check_heaps(file: BinaryIO) -> None:
    """Refuse a file with a heap in which the library would not come to an end.

    Args:
        file: the file, which is read from its start.

    Raises:
        ValueError: naming the place of the heap.
    """
    found, at, tail = [], 0, b""
    file.seek(0)
    while block := file.read(BLOCK):
        data, start = tail + block, at - len(tail)
        place = data.find(START)
        while place >= 0:
            found.append(start + place)
            place = data.find(START, place + 1)
        at += len(block)
        tail = data[-len(START) + 1 :]
    for place in found:
        file.seek(place)
        head = file.read(16)
        size = int.from_bytes(head[8:16], "little")
        if len(head) == 16 and size <= at - place:
            file.seek(place)
            _check_heap(file.read(size), place)


def _check_heap(heap: bytes, place: int) -> None:
    at = 16
    while at + OBJECT.size <= len(heap):
        index, _, _, size = OBJECT.unpack_from(heap, at)
        needed = OBJECT.size + -(-size // 8) * 8 if index else size
        if needed == 0:
            raise ValueError(f"the heap at byte {place} is damaged: a free object without a size at {at}.")
        at += needed
