"""The IDX format, in which MNIST and its relatives are published."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

GZIP_MAGIC = b"\x1f\x8b"
UNSIGNED_BYTE = 0x08


def read_idx(path: str | Path) -> Tensor:
    """Read an IDX file of unsigned bytes, plain or gzipped, as its first bytes tell.

    The file holds the magic number (two zero bytes, the type code, the number of axes), each axis
    length as a big-endian uint32, then the bytes with the last axis running fastest.

    Args:
        path: the file.

    Returns:
        Its contents, uint8, in the shape that the header states.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the compressed stream is damaged, the magic number is not that of unsigned
            bytes, or there are more or fewer bytes than the header states; the message names the
            file.

    Source: the format's description at http://yann.lecun.com/exdb/mnist (THE IDX FILE FORMAT).
    """
    data = read_contents(path)
    if len(data) < 4:
        raise ValueError(f"{path}: an IDX file starts with 4 bytes of magic number, got {len(data)} in all.")
    zeros, code, n_axes = struct.unpack_from(">HBB", data)
    if zeros != 0 or code != UNSIGNED_BYTE or n_axes == 0:
        raise ValueError(
            f"{path}: the magic number of an IDX file of unsigned bytes is 0x000008 and the number of axes "
            f"(at least 1), got 0x{data[:4].hex()}."
        )
    header = 4 + 4 * n_axes
    if len(data) < header:
        raise ValueError(f"{path}: a header of {n_axes} axes takes {header} bytes, got {len(data)} in all.")
    shape = struct.unpack_from(f">{n_axes}I", data, 4)
    wanted, got = math.prod(shape), len(data) - header
    if wanted != got:
        raise ValueError(f"{path}: the header states {shape}, so {wanted} bytes after it, got {got}.")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)[header:].reshape(shape)


def read_contents(path: str | Path) -> bytes:
    """Return the bytes of a file, uncompressed if it is a gzip file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the compressed stream is cut off or damaged.
    """
    data = Path(path).read_bytes()
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: the gzip stream is cut off or damaged ({error}).") from error
