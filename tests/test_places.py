"""Bytes at any place of a file, and what HDF5 files hold in chunks, next to what h5py reads."""

import io
import os
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neurolsc.datasets import Binning, EventCache, EventFile, FrameCache, frame_cache
from neurolsc.untrusted import places
from neurolsc.untrusted.hdf5 import Content
from neurolsc.untrusted.places import Bytes
from tests.words import draw_words, write_words

DATA = np.random.default_rng(0).integers(0, 256, 5000, np.uint8).tobytes()
SYSTEMS = {"preadv": {}, "pread alone": {"_preadv": "_copied"}, "neither": {"_preadv": "_copied", "_pread": "_sought"}}


@pytest.fixture(params=SYSTEMS)
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Linux; macOS before 11; Windows."""
    for name, instead in SYSTEMS[request.param].items():
        monkeypatch.setattr(places, name, getattr(places, instead))
    monkeypatch.setattr(os, "O_BINARY", 0, raising=False)
    return request.param


@pytest.mark.parametrize("memory", [False, True])
def test_arrays_are_filled_from_any_place_one_behind_the_other(tmp_path: Path, system: str, memory: bool):
    (tmp_path / "a").write_bytes(DATA)
    found = Bytes(DATA if memory else tmp_path / "a")
    parts = np.empty((3, 4), ">u2"), np.empty(0, np.float16), np.empty(7, [("a", "<u4"), ("b", "u1")])
    for place in (0, 17, len(DATA) - 59):
        found.into(place, *parts)
        assert b"".join(part.tobytes() for part in parts) == DATA[place : place + 59]
        assert found.at(place, 9) == DATA[place : place + 9]
    for place in (len(DATA) - 58, len(DATA), 2**61):
        with pytest.raises(ValueError, match=f"the file ends at byte {max(place, len(DATA))}"):
            found.into(place, *parts)
    assert found.at(len(DATA) - 3, 9) == DATA[-3:]
    assert found.at(2**63, 1) == b""
    assert found.length == len(DATA)


def test_short_reads_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "a").write_bytes(DATA)
    whole = places._pread
    monkeypatch.setattr(places, "_preadv", lambda *_: 1)
    monkeypatch.setattr(places, "_pread", lambda file, size, place: whole(file, min(size, 7), place))
    out = np.empty(100, np.uint8)
    Bytes(tmp_path / "a").into(3, out)
    assert out.tobytes() == DATA[3:103]


def test_caches_and_files_are_read_alike_on_every_system(tmp_path: Path, system: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(frame_cache, "HELD", 0)
    file = EventFile(write_words(tmp_path / "words.h5", draw_words(30)))
    with h5py.File(tmp_path / "words.h5") as known:
        times = np.concatenate([known["spikes/times"][i] for i in (4, 2)])
    grid = Binning(dt=0.01, window=0.6, channels=70, repeat=2)
    for source in (file, EventCache(file, tmp_path / "cache")):
        assert np.array_equal(source.read([4, 2]).times, times)
    assert FrameCache(file, tmp_path / "cache", grid).read([4, 2]).x.equal(grid.dense(file.read([4, 2])).x)


KINDS = ["<i2", ">i4", "u1", "<f2", ">f8", "<f4", "?", "S3"]
FILTERS = [
    {},
    {"compression": "gzip"},
    {"compression": "gzip", "shuffle": True},
    {"shuffle": True},
    {"compression": "lzf"},
    {"compression": "lzf", "shuffle": True},
    {"fletcher32": True},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
]


@given(
    st.sampled_from(KINDS),
    st.sampled_from(FILTERS),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=200, deadline=None)
def test_whatever_the_chunks_and_filters_are_h5py_reads_the_same(kind, filters, shape, chunks, seed):
    values = np.random.default_rng(seed).integers(0, 4, shape).astype(kind)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        chunks = tuple(min(c, n) or 1 for c, n in zip(chunks, shape, strict=False))
        file.create_dataset("a", data=values, chunks=chunks, **filters)
        file.create_dataset("one", data=values.reshape(-1)[0] if values.size else 1)
    with Content(buffer.getvalue()) as content, h5py.File(buffer) as file:
        found, wanted = content.values("a"), file["a"][()]
        assert found.dtype == wanted.dtype
        assert np.array_equal(found, wanted)
        assert content.values("one") == file["one"][()]


@pytest.mark.parametrize("fletcher", [False, True])
@pytest.mark.parametrize("length", [0, 799, 801, 10**6])
def test_a_chunk_that_unpacks_to_another_size_is_refused(length: int, fletcher: bool):
    if fletcher and length < 800:
        return  # the library sees that itself
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        data = file.create_dataset("a", (100,), "<f8", chunks=(100,), compression="gzip", fletcher32=fletcher)
        data.id.write_direct_chunk((0,), zlib.compress(bytes(length)))
    with Content(buffer.getvalue()) as content:
        if fletcher and length == 801:  # within what a checksum would take
            with pytest.raises(OSError):
                content.values("a")
            return
        with pytest.raises(ValueError, match=r"a chunk of a unpacks to (more|less) than"):
            content.values("a")
