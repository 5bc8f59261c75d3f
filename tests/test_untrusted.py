"""Packed files, and the memory that a file may fill."""

import gzip
import lzma
from pathlib import Path

import pytest

from neurolsc.untrusted.packed import opened, read_most
from neurolsc.untrusted.room import Room


def test_the_room_of_a_file_is_64_mebibytes_and_16_times_its_length():
    room = Room(1000)
    room.take(2**26, "a")
    room.take(16_000, "b")
    with pytest.raises(ValueError, match="c would fill"):
        room.take(1, "c")


PACKED = {
    "one gzip": lambda data: gzip.compress(data),
    "two gzips and padding": lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:]) + bytes(7),
    "one xz": lambda data: lzma.compress(data, preset=0),
    "two xz": lambda data: lzma.compress(data[:999], preset=0) + bytes(8) + lzma.compress(data[999:], preset=0),
    "plain": lambda data: data,
}


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000])
def test_what_was_packed_is_unpacked(tmp_path: Path, pack, size: int):
    data = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
    path = tmp_path / "a"
    path.write_bytes(pack(data))
    with opened(path) as (content, _):
        assert read_most(content, size) == data
    with opened(path) as (content, _):
        assert len(read_most(content, size // 2)) == min(size, size // 2 + 1)
