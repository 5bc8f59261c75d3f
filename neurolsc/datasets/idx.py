"""The IDX format, in which MNIST and its relatives are published."""

import hashlib
import io
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neurolsc.io import refusing
from neurolsc.untrusted.packed import opened

UNSIGNED_BYTE = 0x08
MOST_AXES = 8
BLOCK = 2**20
DAMAGED = "the gzip stream is cut off or damaged"


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
            bytes, the header states more than 64 MiB and 16 times the file's length, or there are
            more or fewer bytes than it states; the message names the file.

    Source: the format's description at http://yann.lecun.com/exdb/mnist (THE IDX FILE FORMAT).
    """
    with opened(path) as (content, room), refusing(path, DAMAGED):
        head = content.read(4)
        if len(head) < 4:
            raise ValueError(f"an IDX file starts with 4 bytes of magic number, got {len(head)} in all.")
        zeros, code, n_axes = struct.unpack(">HBB", head)
        if zeros != 0 or code != UNSIGNED_BYTE or not 1 <= n_axes <= MOST_AXES:
            raise ValueError(
                f"the magic number of an IDX file of unsigned bytes is 0x000008 and the number of axes "
                f"(1 to {MOST_AXES}), got 0x{head.hex()}."
            )
        axes = content.read(4 * n_axes)
        if len(axes) < 4 * n_axes:
            raise ValueError(f"a header of {n_axes} axes takes {4 + 4 * n_axes} bytes, got {4 + len(axes)} in all.")
        shape = struct.unpack(f">{n_axes}I", axes)
        wanted = math.prod(shape)
        room.take(wanted, f"an array of shape {shape}")
        data = np.empty(wanted, np.uint8)  # memory that is not written to is not taken yet
        got = _fill(content, data)
        if got < wanted or content.read(1):
            told = f"{got}" if got < wanted else f"at least {wanted + 1}"
            raise ValueError(f"the header states {shape}, so {wanted} bytes after it, got {told}.")
        return torch.from_numpy(data).reshape(shape)


def _fill(content: Any, data: np.ndarray) -> int:
    """Read into an array; the number of bytes that there were."""
    if isinstance(content, io.BufferedReader):
        return content.readinto(data.data)
    got = 0
    while got < len(data) and (block := content.read(min(BLOCK, len(data) - got))):
        data[got : got + len(block)] = np.frombuffer(block, np.uint8)
        got += len(block)
    return got


def contents_digest(path: str | Path) -> str:
    """The sha256 of a file's contents, uncompressed if it is a gzip file; nothing of them is kept.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the compressed stream is cut off or damaged, or longer than such a file may
            be.
    """
    digest = hashlib.sha256()
    with opened(path) as (content, room), refusing(path, DAMAGED):
        while block := content.read(BLOCK):
            room.take(len(block), "its content")
            digest.update(block)
    return digest.hexdigest()
