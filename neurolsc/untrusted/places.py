"""The bytes of a file at any place."""

import os
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import numpy as np

__all__ = ["Bytes"]

_turn = threading.Lock()


def _sought(file: int, size: int, place: int) -> bytes:
    """As ``os.pread``, for Windows: there is no fork, so that nobody else moves in the file."""
    with _turn:
        os.lseek(file, place, os.SEEK_SET)
        return os.read(file, size)


def _copied(file: int, parts: Sequence[np.ndarray], place: int) -> int:
    """As ``os.preadv``, where there is none."""
    data, at = _pread(file, sum(part.nbytes for part in parts), place), 0
    for part in parts:
        piece = data[at : at + part.nbytes]
        _flat(part)[: len(piece)] = piece
        at += len(piece)
    return len(data)


def _flat(part: np.ndarray) -> memoryview:
    return part.reshape(-1).view(np.uint8).data


_pread = getattr(os, "pread", _sought)
_preadv = getattr(os, "preadv", _copied)


class Bytes:
    """The bytes of a file, or of something in memory, at any place.

    A file stays open until the object goes: what replaces it does not touch a reader. It is read,
    not mapped into memory: a mapped file that somebody else cuts short ends the process.

    Args:
        source: the path, or the bytes.

    Attributes:
        length: how many there were when it was opened.
    """

    def __init__(self, source: bytes | Path) -> None:
        self._memory = memoryview(source) if isinstance(source, bytes) else memoryview(b"")
        self._file: int | None = None
        self.length = len(self._memory)
        if isinstance(source, Path):
            self._file = os.open(source, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            self._closes = weakref.finalize(self, os.close, self._file)
            self.length = os.fstat(self._file).st_size

    def at(self, place: int, size: int) -> bytes:
        """Some bytes, or as many as there are before the end."""
        if self._file is None:
            return bytes(self._memory[place : place + size])
        return _pread(self._file, min(size, self.length - place), place) if place < self.length else b""

    def into(self, place: int, *parts: np.ndarray) -> None:
        """Fill contiguous arrays, one behind the other.

        Raises:
            ValueError: if the file ends before.
        """
        size = 0
        for part in parts:
            size += part.nbytes
        if self._file is None or place >= self.length or _preadv(self._file, parts, place) != size:
            for part in parts:
                self._piecewise(place, _flat(part))
                place += part.nbytes

    def _piecewise(self, place: int, part: memoryview) -> None:
        while len(part):  # more than 2 GB come in pieces
            found = self.at(place, len(part))
            if not found:
                raise ValueError(f"the file ends at byte {place}.")
            part[: len(found)] = found
            part, place = part[len(found) :], place + len(found)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._closes()
