"""Caches that are damaged, cut short while they are read, built at once, or have no place."""

import errno
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from neurolsc.datasets import Binning, EventCache, EventFile, FrameCache, frame_cache, store
from tests.words import draw_words, write_words

GRID = Binning(dt=0.01, window=0.6, channels=70, repeat=2)
N = 30
Cache = EventCache | FrameCache
KINDS: dict[str, Callable[[EventFile, Path], Cache]] = {
    "spikes": EventCache,
    "frames": lambda file, folder: FrameCache(file, folder, GRID),
    "frames in memory": lambda file, folder: FrameCache(file, folder, GRID),
}
PARTS = {kind: ("rows", "offsets" if kind == "spikes" else "left_out", "checks") for kind in KINDS}
every_part = pytest.mark.parametrize(("kind", "part"), [(k, p) for k, ps in PARTS.items() for p in (*ps, "about.json")])
both = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Frames are held in memory only where the test says so."""
    if "frames in memory" not in request.node.name:
        monkeypatch.setattr(frame_cache, "HELD", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_words(tmp_path / "words.h5", draw_words(N))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def everything(cache: Cache) -> list[np.ndarray]:
    return [np.asarray(part) for part in cache.read(range(N)) if part is not None]


def wanted(path: Path, kind: str) -> list[np.ndarray]:
    events = EventFile(path).read(range(N))
    return [np.asarray(part) for part in (events if kind == "spikes" else GRID.dense(events)) if part is not None]


def same(cache: Cache, path: Path, kind: str) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(everything(cache), wanted(path, kind), strict=True))


def left_over(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.is_dir() and p.name.startswith(".")]


DAMAGES = {
    "cut short": lambda data: data[:-8],
    "bytes inserted": lambda data: data[: len(data) // 2] + bytes(16) + data[len(data) // 2 :],
    "a bit": lambda data: data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@every_part
def test_a_damaged_cache_is_made_anew_with_a_warning_and_then_good(path: Path, folder: Path, kind, part, damage):
    where = KINDS[kind](EventFile(path), folder).path
    (where / part).write_bytes(damage((where / part).read_bytes()))
    with pytest.warns(RuntimeWarning, match=f"a damaged cache is made anew: .*{where.name}"):
        assert same(KINDS[kind](EventFile(path), folder), path, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(KINDS[kind](EventFile(path), folder), path, kind)
    assert not left_over(folder)


@every_part
def test_a_part_that_is_missing_or_a_folder_is_made_anew(path: Path, folder: Path, kind: str, part: str):
    where = KINDS[kind](EventFile(path), folder).path
    (where / part).unlink()
    with pytest.warns(RuntimeWarning, match="made anew"):
        assert same(KINDS[kind](EventFile(path), folder), path, kind)
    (where / part).unlink()
    (where / part).mkdir()
    with pytest.warns(RuntimeWarning, match="made anew"):
        assert same(KINDS[kind](EventFile(path), folder), path, kind)


@pytest.mark.parametrize(
    "change",
    [
        {"times": "|O"},
        {"times": "<f8"},
        {"format": 1},
        {"format": True},
        {"source": "0" * 64},
        {"utterances": 29},
        {"utterances": 2**40},
        {"utterances": -1},
        {"more": 1},
        {"times.crc32": 0},
    ],
    ids=str,
)
@pytest.mark.parametrize("sealed", [True, False])
def test_what_it_says_of_itself_is_compared_with_what_the_file_needs(path: Path, folder: Path, change, sealed):
    where = EventCache(EventFile(path), folder).path
    about = json.loads((where / "about.json").read_text()) | change
    if sealed:  # as if somebody had known how
        about["crc32"] = store._crc({key: value for key, value in about.items() if key != "crc32"})
    (where / "about.json").write_text(json.dumps(about))
    with pytest.warns(RuntimeWarning, match="made anew"):
        assert same(EventCache(EventFile(path), folder), path, "spikes")


def forge(cache: EventCache, name: str, value: float) -> None:
    """Write a number over a spike, and set all checksums right."""
    events = cache.read(range(N))
    getattr(events, name)[5] = value
    with store.Building(cache.path) as building:
        for a, b in pairwise(events.offsets):
            building.add(events.times[a:b], events.units[a:b])
        building.finish(cache._about, {"offsets": events.offsets})


@pytest.mark.parametrize(("name", "value"), [("units", 700), ("times", np.nan), ("times", -1), ("times", 0.0)])
def test_units_and_times_out_of_range_are_not_read_even_with_a_right_checksum(path, folder, name, value):
    cache = EventCache(EventFile(path), folder)
    assert cache.read([0]).times[4] > 0
    forge(cache, name, value)
    with pytest.warns(RuntimeWarning, match="must"):
        assert same(EventCache(EventFile(path), folder), path, "spikes")


@both
def test_a_reader_under_which_the_cache_is_cut_short_reads_on(path: Path, folder: Path, kind: str):
    cache = KINDS[kind](EventFile(path), folder)
    everything(cache)
    os.truncate(cache.path / "rows", 100)
    if kind == "frames in memory":
        assert same(cache, path, kind)
    with pytest.warns(RuntimeWarning, match="made anew"):
        again = KINDS[kind](EventFile(path), folder) if kind == "frames in memory" else cache
        assert same(again, path, kind)
    assert same(cache, path, kind)


@both
def test_a_reader_whose_cache_is_removed_reads_on(path: Path, folder: Path, kind: str):
    cache = KINDS[kind](EventFile(path), folder)
    for part in cache.path.iterdir():
        part.unlink()
    cache.path.rmdir()
    assert same(cache, path, kind)


def build(kind: str, path: Path, folder: Path, barrier, results) -> None:
    torch.set_num_threads(1)
    made = []
    real = store.Building.finish
    store.Building.finish = lambda self, *a: (made.append(1), real(self, *a))[1]  # type: ignore[method-assign]
    barrier.wait()
    cache = KINDS[kind](EventFile(path), folder)
    results.put((same(cache, path, kind), len(made)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("count", [2, 8])
@both
def test_of_processes_that_want_it_at_once_one_makes_it(path: Path, folder: Path, kind: str, count: int):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(count), context.Queue()
    processes = [context.Process(target=build, args=(kind, path, folder, barrier, results)) for _ in range(count)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert all(good for good, _ in found)
    assert sum(made for _, made in found) == 1
    assert not left_over(folder)


def test_a_full_disk_is_told_before_the_work_with_the_size(path: Path, folder: Path, monkeypatch):
    def full(file: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"cannot be made \(No space left on device; it takes 0 MB\).*words-") as error:
        FrameCache(EventFile(path), folder, GRID)
    assert error.value.errno == errno.ENOSPC
    assert not [p for p in folder.iterdir() if p.is_dir()]


def in_child(do: Callable[[], int]) -> int:
    """What a forked process returns; minus the signal that ended it."""
    if (child := os.fork()) == 0:
        code = 99
        try:
            code = do()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@both
def test_what_a_killed_builder_left_is_removed_by_the_next(path: Path, folder: Path, kind: str, monkeypatch):
    def do() -> int:
        torch.set_num_threads(1)
        monkeypatch.setattr(store.Building, "finish", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        KINDS[kind](EventFile(path), folder)
        return 0

    assert in_child(do) == -signal.SIGKILL
    assert len(left_over(folder)) == 1
    assert same(KINDS[kind](EventFile(path), folder), path, kind)
    assert not left_over(folder)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@both
def test_no_space_while_it_is_made_is_an_error_and_no_signal(path: Path, folder: Path, kind: str):
    def do() -> int:
        torch.set_num_threads(1)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            KINDS[kind](EventFile(path), folder)
        except OSError as error:
            return 0 if error.errno == errno.EFBIG and "the cache cannot be made" in str(error) else 1
        return 2

    assert in_child(do) == 0
    assert not [p for p in folder.iterdir() if p.is_dir()]
    assert same(KINDS[kind](EventFile(path), folder), path, kind)


@both
def test_a_disk_that_is_really_full_is_told(path: Path, small_disk: Path, kind: str):
    with pytest.raises(OSError, match="No space"), (small_disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    with pytest.raises(OSError, match=r"the cache cannot be made \(No space left on device"):
        KINDS[kind](EventFile(path), small_disk)
    assert not [p for p in small_disk.iterdir() if p.is_dir()]


@both
def test_a_folder_that_cannot_be_written_serves_a_good_cache_and_names_itself_else(path, small_disk: Path, kind: str):
    file = EventFile(write_words(path.with_name("few.h5"), draw_words(N, most=20)))
    grid = Binning(dt=0.05, window=0.6, channels=70)
    make = EventCache if kind == "spikes" else lambda file, folder: FrameCache(file, folder, grid)
    cache = make(file, small_disk)
    for note in small_disk.glob(".*.json"):
        note.unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert everything(make(file, small_disk))
    assert everything(cache)
    with pytest.raises(OSError, match=r"the cache cannot be made \(Read-only file system\)"):
        make(EventFile(path), small_disk)
