import gzip
import re
import struct

import pytest
import torch
from torch.testing import assert_close

from neurolsc.datasets import read_idx


def bytes_of_shape(*shape):
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + bytes(array.flatten().tolist())


DATA = idx_bytes(bytes_of_shape(5, 3, 2))


@pytest.mark.parametrize("shape", [(7,), (5, 3), (4, 3, 2), (0, 28, 28)], ids=str)
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_what_was_written_is_read_back_whatever_the_name(tmp_path, shape, pack):
    path = tmp_path / "some.bin"
    path.write_bytes(pack(idx_bytes(bytes_of_shape(*shape))))
    assert_close(read_idx(path), bytes_of_shape(*shape))
    assert_close(read_idx(str(path)), bytes_of_shape(*shape))


DAMAGES = {
    "empty": (b"", "4 bytes of magic number, got 0"),
    "three bytes": (DATA[:3], "4 bytes of magic number, got 3"),
    "cut off in the header": (DATA[:11], "a header of 3 axes takes 16 bytes, got 11"),
    "cut off at the end": (DATA[:-1], r"the header states \(5, 3, 2\), so 30 bytes after it, got 29"),
    "one byte too many": (DATA + b"\0", r"the header states \(5, 3, 2\), so 30 bytes after it, got at least 31"),
    "32-bit integers": (struct.pack(">HBBI", 0, 0x0C, 1, 1) + bytes(4), "magic number .* got 0x00000c01"),
    "no axes": (struct.pack(">HBB", 0, 0x08, 0), "magic number .* got 0x00000800"),
    "leading bytes not zero": (b"\1" + DATA[1:], "magic number .* got 0x01000803"),
    "a web page": (b"<!DOCTYPE html>", "magic number .* got 0x3c21444f"),
    "gzip, cut off": (gzip.compress(DATA)[:-10], "gzip stream is cut off or damaged"),
    "gzip, other checksum": (gzip.compress(DATA)[:-8] + bytes(8), "gzip stream is cut off or damaged"),
    "gzip, other header": (b"\x1f\x8b" + bytes(30), "gzip stream is cut off or damaged"),
    "gzip, other contents": (gzip.compress(DATA)[:10] + b"\xff" * 20, "gzip stream is cut off or damaged"),
}


@pytest.mark.parametrize(("data", "message"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused_by_name_with_what_came_and_what_was_wanted(tmp_path, data, message):
    path = tmp_path / "damaged-idx3-ubyte.gz"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: .*{message}"):
        read_idx(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent-idx1-ubyte"):
        read_idx(tmp_path / "absent-idx1-ubyte")
