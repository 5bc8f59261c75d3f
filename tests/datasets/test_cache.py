import json
import multiprocessing
import os
import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

from neurolsc.datasets import SHD, EventCache, EventFile, cache, collate
from tests.words import draw_words, write_words


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_words(tmp_path / "words.h5", draw_words(30))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def equal(one, other) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("indices", [[3], [7, 2, 2, 29], range(30)], ids=str)
def test_the_cache_gives_what_the_file_gives(tmp_path: Path, folder: Path, dtype: str, indices, monkeypatch):
    monkeypatch.setattr(cache, "CHUNK", 7)  # several parts
    file = EventFile(write_words(tmp_path / "words.h5", draw_words(30, dtype=dtype)))
    assert equal(EventCache(file, folder).read(indices), file.read(indices))
    assert equal(pickle.loads(pickle.dumps(EventCache(file, folder))).read(indices), file.read(indices))


def test_with_a_cache_no_spike_is_read_from_hdf5_again(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    wanted = collate(SHD.from_file(path, channels=70).__getitems__(range(30)))
    SHD.from_file(path, channels=70, cache=folder)

    def refuse(self, indices):
        raise AssertionError("HDF5 was read")

    monkeypatch.setattr(EventFile, "read", refuse)
    data = SHD.from_file(path, channels=70, cache=folder)
    for _ in range(2):
        for got, same in zip(collate(data.__getitems__(range(30))), wanted, strict=True):
            assert got.equal(same)


def test_one_cache_serves_all_settings_and_a_file_of_other_content_has_its_own(path: Path, folder: Path):
    for settings in ({"dt": 4e-3}, {"dt": 0.01, "channels": 70}, {"window": None}):
        SHD.from_file(path, cache=folder, **settings)
    (only,) = [p for p in folder.iterdir() if p.is_dir()]
    before = SHD.from_file(path, cache=folder)
    write_words(path.with_name("new.h5"), draw_words(30, seed=1)).replace(path)
    after = SHD.from_file(path, cache=folder)
    assert sorted(p for p in folder.iterdir() if p.is_dir()) == sorted([only, after._source.path])  # type: ignore[union-attr]
    assert equal(after.events([4]), EventFile(path).read([4]))
    assert not equal(after.events([4]), before.events([4]))


def test_a_touched_file_is_hashed_again_and_keeps_its_cache(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    hashed = []
    real = cache.sha256_of
    monkeypatch.setattr(cache, "sha256_of", lambda p: hashed.append(p) or real(p))
    first = EventCache(EventFile(path), folder).path
    hashed.clear()
    assert EventCache(EventFile(path), folder).path == first
    assert not hashed
    os.utime(path, (1, 1))
    assert EventCache(EventFile(path), folder).path == first
    assert hashed == [path]


def build(path: Path, folder: Path, barrier, results) -> None:
    file = EventFile(path)
    barrier.wait()
    results.put(equal(EventCache(file, folder).read(range(30)), file.read(range(30))))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_that_build_it_at_once_all_end_with_a_good_one(path: Path, folder: Path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=build, args=(path, folder, barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [True] * 4
    for process in processes:
        process.join()
    assert len([p for p in folder.iterdir() if p.is_dir()]) == 1


def test_a_damaged_utterance_leaves_no_cache(tmp_path: Path, folder: Path):
    words = draw_words(30)
    words[20] = (words[20][0][::-1], words[20][1])
    with pytest.raises(ValueError, match=r"words\.h5: spikes/times .* of utterance 20"):
        SHD.from_file(write_words(tmp_path / "words.h5", words), cache=folder)
    assert not [p for p in folder.iterdir() if p.is_dir()]


def test_a_file_that_changes_while_its_cache_is_made_leaves_none(path: Path, folder: Path, monkeypatch):
    real = cache.sha256_of
    digests = iter([real(path), "another"])
    monkeypatch.setattr(cache, "sha256_of", lambda p: next(digests))
    with pytest.raises(ValueError, match=r"words\.h5: the file has changed while its cache was made"):
        EventCache(EventFile(path), folder)
    assert not [p for p in folder.iterdir() if p.is_dir()]


def test_a_damaged_note_of_the_hash_is_written_anew(path: Path, folder: Path):
    first = EventCache(EventFile(path), folder)
    (note,) = folder.glob(".*.json")
    note.write_text("{")
    assert EventCache(EventFile(path), folder).path == first.path
    assert json.loads(note.read_text())["sha256"].startswith(first.path.name.split("-")[-1])


def test_a_note_that_names_another_hash_is_not_believed(path: Path, folder: Path):
    first = EventCache(EventFile(path), folder)
    (note,) = folder.glob(".*.json")
    told = json.loads(note.read_text())
    note.write_text(json.dumps(told | {"sha256": "0" * 64}))
    assert EventCache(EventFile(path), folder).path == first.path
    assert json.loads(note.read_text()) == told


@pytest.mark.parametrize("index", [-1, 30])
def test_an_utterance_that_is_not_there_is_refused(path: Path, folder: Path, index: int):
    with pytest.raises(IndexError, match="utterances run from 0 to 29"):
        EventCache(EventFile(path), folder).read([index])


def test_a_cache_takes_four_bytes_a_spike_on_disk(path: Path, folder: Path):
    where = EventCache(EventFile(path), folder).path
    with h5py.File(path) as file:
        spikes = sum(map(len, file["spikes/times"]))
    assert (where / "rows").stat().st_size == 4 * spikes
