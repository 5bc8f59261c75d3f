import multiprocessing
import pickle
from pathlib import Path

import pytest
import torch

from neurolsc.datasets import SHD, Binning, ChannelJitter, EventFile, FrameCache, cache, collate, frame_cache
from tests.words import draw_words, write_words

GRID = Binning(dt=0.01, window=0.6, channels=70, repeat=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_words(tmp_path / "words.h5", draw_words(30))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def folders(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.is_dir()]


@pytest.mark.parametrize("held", [0, 10**9])
@pytest.mark.parametrize("repeat", [1, 3])
@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("indices", [[3], [7, 2, 2, 29], range(30)], ids=str)
def test_cached_frames_are_those_that_binning_makes(path, folder, held, repeat, binary, indices, monkeypatch):
    monkeypatch.setattr(frame_cache, "HELD", held)
    monkeypatch.setattr(cache, "CHUNK", 7)  # several parts
    grid = Binning(dt=0.01, window=0.6, channels=70, repeat=repeat, binary=binary)
    file = EventFile(path)
    wanted = grid.dense(file.read(indices))
    assert wanted.x.any() and wanted.left_out.any()
    made = FrameCache(file, folder, grid)
    for source in (made, FrameCache(file, folder, grid), pickle.loads(pickle.dumps(made))):
        got = source.read(indices)
        assert got.x.equal(wanted.x) and got.mask is None and got.left_out.equal(wanted.left_out)


def test_a_batch_may_be_changed_without_changing_the_cache(path: Path, folder: Path):
    frames = FrameCache(EventFile(path), folder, GRID)
    frames.read([0]).x.fill_(9)
    assert not frames.read([0]).x.eq(9).all()


def test_with_cached_frames_no_spike_is_read_again(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch):
    settings = {"dt": 0.01, "window": 0.6, "channels": 70}
    plain = SHD.from_file(path, **settings)
    wanted, left_out = collate(plain.__getitems__(range(30))), plain.left_out
    SHD.from_file(path, cache=folder, cached="frames", **settings)

    def refuse(self, indices):
        raise AssertionError("HDF5 was read")

    monkeypatch.setattr(EventFile, "read", refuse)
    data = SHD.from_file(path, cache=folder, cached="frames", **settings)
    assert data.left_out == left_out > 0
    for got, same in zip(collate(data.__getitems__(range(30))), wanted, strict=True):
        assert got.equal(same)


def test_splits_read_their_own_utterances(folder: Path):
    plain, cached = (
        SHD.embedded("validation", channels=70, **more) for more in ({}, {"cache": folder, "cached": "frames"})
    )
    assert torch.equal(plain.frames(range(len(plain))).x, cached.frames(range(len(plain))).x)
    assert cached.left_out == plain.left_out


def test_every_grid_and_every_content_has_its_own_cache_and_repeats_share_one(path: Path, folder: Path):
    file = EventFile(path)
    first = FrameCache(file, folder, GRID).path
    assert FrameCache(file, folder, Binning(dt=0.01, window=0.6, channels=70, repeat=1)).path == first
    others = [
        Binning(dt=0.02, window=0.6, channels=70),
        Binning(dt=0.01, window=0.5, channels=70),
        Binning(dt=0.01, window=0.6, channels=140),
        Binning(dt=0.01, window=0.6, channels=70, binary=True),
    ]
    assert len({first} | {FrameCache(file, folder, grid).path for grid in others}) == 5
    new = EventFile(write_words(path.with_name("new.h5"), draw_words(30, seed=1)).replace(path))
    after = FrameCache(new, folder, GRID)
    assert after.path != first
    assert after.read([4]).x.equal(GRID.dense(new.read([4])).x)


def build(path: Path, folder: Path, barrier, results) -> None:
    torch.set_num_threads(1)  # as in the workers of a DataLoader: a pool of threads does not outlive a fork
    file = EventFile(path)
    barrier.wait()
    results.put(FrameCache(file, folder, GRID).read(range(30)).x.equal(GRID.dense(file.read(range(30))).x))


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
    assert len(folders(folder)) == 1


def test_a_damaged_utterance_or_a_changed_file_leaves_no_cache(tmp_path: Path, folder: Path, monkeypatch):
    words = draw_words(30)
    good = EventFile(write_words(tmp_path / "good.h5", words))
    words[20] = (words[20][0][::-1], words[20][1])
    with pytest.raises(ValueError, match=r"bad\.h5: spikes/times .* of utterance 20"):
        FrameCache(EventFile(write_words(tmp_path / "bad.h5", words)), folder, GRID)
    digests = iter([cache.sha256_of(good.path), "another"])
    monkeypatch.setattr(cache, "sha256_of", lambda p: next(digests))
    with pytest.raises(ValueError, match=r"good\.h5: the file has changed while its cache was made"):
        FrameCache(good, folder, GRID)
    assert not folders(folder)


@pytest.mark.parametrize("index", [-1, 30])
def test_an_utterance_that_is_not_there_is_refused(path: Path, folder: Path, index: int):
    with pytest.raises(IndexError, match="utterances run from 0 to 29"):
        FrameCache(EventFile(path), folder, GRID).read([index])


@pytest.mark.parametrize(
    "options", [{"sparse": True}, {"augment": [ChannelJitter(1.0)]}, {"cache": None}, {"window": None}], ids=str
)
def test_what_needs_the_spikes_is_refused(path: Path, folder: Path, options):
    with pytest.raises(ValueError, match=r"cached='frames' needs|frames of unequal length"):
        SHD.from_file(path, **{"cache": folder, "cached": "frames"} | options)


def test_an_unknown_kind_of_cache_is_refused(path: Path, folder: Path):
    with pytest.raises(ValueError, match="cached"):
        SHD.from_file(path, cache=folder, cached="bins")  # type: ignore[arg-type]
