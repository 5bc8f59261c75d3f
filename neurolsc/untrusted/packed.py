"""gzip and xz, unpacked as a stream that ends where the room does."""

import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any, BinaryIO

from neurolsc.untrusted.room import Room

__all__ = ["opened", "read_most"]

BLOCK = 2**20
DICTIONARY = 128 * 2**20
"""memory that unpacking xz may take; the strongest preset takes 65 MiB"""
UNPACKERS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"\xfd7zXZ\x00": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=DICTIONARY),
}
"""first bytes of a file -> what unpacks it"""


@contextmanager
def opened(path: str | PathLike[str]) -> Iterator[tuple[io.RawIOBase | BinaryIO, Room]]:
    """Open a file, unpacked if it is a gzip or an xz file, as its first bytes tell.

    Yields:
        A stream of its content, and the room that a file of its length has.

    Raises:
        OSError: if it cannot be opened.
    """
    with open(path, "rb") as file:
        start = file.read(8)
        file.seek(0)
        room = Room(os.fstat(file.fileno()).st_size)
        unpacker = next((make for magic, make in UNPACKERS.items() if start.startswith(magic)), None)
        yield (file if unpacker is None else _Unpacked(file, unpacker)), room


def read_most(content: io.RawIOBase | BinaryIO, most: int) -> bytes:
    """Read a stream to its end, or one byte more than the most that is wanted.

    Memory grows with what there is, not with what was wanted.
    """
    parts, left = [], most + 1
    while left > 0 and (part := content.read(min(BLOCK, left))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


class _Unpacked(io.RawIOBase):
    """The content of a packed file, of one packed stream or several."""

    def __init__(self, file: BinaryIO, unpacker: Callable[[], Any]) -> None:
        self.file, self.make, self.unpacker, self.rest = file, unpacker, unpacker(), b""

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most as many; none at the end.

        Raises:
            EOFError: if the packed stream is cut off; zlib and lzma have errors of their own.
        """
        while True:
            if self.unpacker.eof:
                start = self.unpacker.unused_data.lstrip(b"\0") or self._next_start()
                if not start:
                    return b""
                self.unpacker, self.rest = self.make(), start
            given = self.rest or (b"" if self._holds() else self.file.read(BLOCK))
            found = self.unpacker.decompress(given, size)
            self.rest = getattr(self.unpacker, "unconsumed_tail", b"")
            if found:
                return found
            if not given and not self.unpacker.eof:
                raise EOFError("the packed stream is cut off")

    def _next_start(self) -> bytes:
        """The next bytes of the file that are no padding."""
        while start := self.file.read(BLOCK):
            if start := start.lstrip(b"\0"):
                return start
        return b""

    def _holds(self) -> bool:
        """Whether the unpacker still has something of what it was given."""
        return not getattr(self.unpacker, "needs_input", True)
