"""gzip and xz, unpacked as a stream that ends where the room does."""

import gzip
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any, BinaryIO

from neurolsc.untrusted.room import Room

__all__ = ["opened", "read_most"]

GZIP_MAGIC = b"\x1f\x8b"
XZ_MAGIC = b"\xfd7zXZ\x00"
BLOCK = 2**20
DICTIONARY = 128 * 2**20
"""memory that unpacking xz may take; the strongest preset takes 65 MiB"""


@contextmanager
def opened(path: str | PathLike[str]) -> Iterator[tuple[BinaryIO, Room]]:
    """Open a file, unpacked if it is a gzip or an xz file, as its first bytes tell.

    Yields:
        A stream of its content, and the room that a file of its length has.

    Raises:
        OSError: if it cannot be opened.
    """
    with open(path, "rb") as file:
        magic = file.read(len(XZ_MAGIC))
        file.seek(0)
        room = Room(os.fstat(file.fileno()).st_size)
        if magic.startswith(GZIP_MAGIC):
            with gzip.open(file) as content:
                yield content, room  # type: ignore[misc]
        elif magic == XZ_MAGIC:
            yield _Xz(file), room  # type: ignore[misc]
        else:
            yield file, room


def read_most(content: BinaryIO, most: int) -> bytes:
    """Read a stream to its end, or one byte more than the most that is wanted.

    Memory grows with what there is, not with what was wanted.
    """
    parts, left = [], most + 1
    while left > 0 and (part := content.read(min(BLOCK, left))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


class _Xz:
    """The content of an xz file of one or more streams.

    ``lzma.open`` has no bound on the memory that a stream may ask for.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.rest = file, b""
        self.unpacker: Any = None

    def read(self, size: int) -> bytes:
        while True:
            if self.unpacker is None or self.unpacker.eof:
                start = (self.unpacker.unused_data if self.unpacker else b"") or self.file.read(BLOCK)
                while start and not (start := start.lstrip(b"\0")):  # padding between streams
                    start = self.file.read(BLOCK)
                if not start:
                    return b""
                self.unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=DICTIONARY)
                found = self.unpacker.decompress(start, size)
            else:
                more = self.file.read(BLOCK) if self.unpacker.needs_input else b""
                if self.unpacker.needs_input and not more:
                    raise EOFError("the xz stream is cut off")
                found = self.unpacker.decompress(more, size)
            if found:
                return found
