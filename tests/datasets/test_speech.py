"""Spoken words: spikes into bins, items and splits of SHD; the same frames as tonic's."""

import gzip
import math
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader

from neurolsc.datasets import (
    SHD,
    Binning,
    ChannelJitter,
    EventFile,
    Events,
    collate,
)
from tests.patterns import names
from tests.words import draw_words, events_of, write_words


@pytest.mark.parametrize(("dtype", "dt", "channels"), [("f2", 4e-3, 700), ("f4", 0.05, 70), ("f8", 0.1, 4)])
def test_a_spike_counts_in_the_bin_and_channel_of_the_definition(dtype: str, dt: float, channels: int):
    words, bins = draw_words(6, dtype=dtype), round(1 / dt)
    wanted, late = torch.zeros(bins, 6, channels, dtype=torch.uint8), 0
    for b, (times, units) in enumerate(words):
        for t, u in zip(times.tolist(), units.tolist(), strict=True):
            if (k := math.floor(t / dt)) < bins:
                wanted[k, b, u * channels // 700] += 1
            late += t >= 1
    x, mask = Binning(dt, 1.0, channels, repeat=1).frames(events_of(words))
    assert torch.equal(x, wanted) and mask is None
    assert late > 0 and x.sum() + late == sum(len(t) for t, _ in words)


@pytest.mark.parametrize(("bins", "dt"), [(250, 4e-3), (143, 7e-3), (3, 1 / 3), (17, 0.1)])
def test_every_half_precision_time_falls_into_a_bin_that_holds_it(bins: int, dt: float):
    times = np.arange(0x4000, dtype=np.uint16).view(np.float16)  # from 0 to 2 s
    times = times[times < (window := bins * dt)]
    events = Events(times, np.zeros(len(times), np.uint16), np.arange(len(times) + 1))
    step = Binning(dt, window, 4, binary=True, repeat=1).frames(events)[0][..., 0].int().argmax(0).numpy()
    seconds, slack = times.astype(np.float64), 1e-12 * window  # of the products
    assert (step * dt <= seconds + slack).all() and (seconds < (step + 1) * dt + slack).all()


def test_binary_gives_one_for_every_count_and_repeat_shows_each_frame_again():
    events = events_of(draw_words(5, most=2000))
    counts, _ = Binning(0.05, 1.0, 70, repeat=1).frames(events)
    assert counts.max() > 1
    assert torch.equal(Binning(0.05, 1.0, 70, binary=True, repeat=1).frames(events)[0], counts.clamp(max=1))
    assert torch.equal(Binning(0.05, 1.0, 70, repeat=3).frames(events)[0], counts.repeat_interleave(3, dim=0))
    assert Binning(0.05, 1.0, 70, repeat=3).steps == 60


def test_without_a_window_every_spike_counts_and_a_mask_has_the_lengths():
    words = draw_words(6)
    words[2] = (words[2][0][:4], words[2][1][:4])
    x, mask = Binning(0.01, None, repeat=2).frames(events_of(words))
    lengths = [2 * (int(float(t[-1]) / 0.01) + 1) for t, _ in words]
    assert x.shape == (max(lengths), 6, 700)
    assert mask is not None and mask.sum(0).tolist() == lengths
    assert (mask.int().diff(dim=0) <= 0).all()  # first the utterance, then the padding
    assert x.sum(dim=(0, 2)).tolist() == [2 * len(t) for t, _ in words]
    assert not x.sum(-1)[~mask].any()


def test_a_count_above_255_is_refused():
    def burst(n: int) -> Events:  # and 300 more spikes after the window, which do not count
        times = np.concatenate([np.full(n, 0.5), np.full(300, 1.5)]).astype(np.float16)
        return Events(times, np.zeros(n + 300, np.uint16), np.array([0, n + 300]))

    grid = Binning(0.01, 1.0)
    assert grid.frames(burst(255))[0].max() == 255
    with pytest.raises(ValueError, match="a bin of 10 ms and 1 units holds 256 spikes, at most 255 fit"):
        grid.frames(burst(256))
    assert Binning(0.01, 1.0, binary=True).frames(burst(256))[0].max() == 1


# SHD


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a tiny SHD: 40 training and 15 test utterances."""
    write_words(tmp_path / "shd_train.h5", draw_words(40))
    write_words(tmp_path / "shd_test.h5", draw_words(15, seed=1))
    return tmp_path


def test_a_batch_is_made_by_binning_of_the_spikes_of_the_file(root: Path):
    data = SHD.from_file(root / "shd_train.h5", dt=0.01, window=0.5, channels=140, repeat=1)
    x, labels = collate(data.__getitems__([5, 2, 39]))
    assert torch.equal(
        x, Binning(0.01, 0.5, 140, repeat=1).frames(EventFile(data.path).events.take(np.array([5, 2, 39])))[0]
    )
    assert labels.tolist() == [15, 6, 117 % 20]
    assert (data.n_in, data.n_classes, data.steps, len(data)) == (140, 20, 50, 40)
    assert torch.equal(data[2][0], x[:, 1]) and data[2][1] == 6
    assert torch.equal(data[-1][0], x[:, 2]) and data[-38][1] == 6
    assert data.left_out == sum(int((t >= 0.5).sum()) for t, _ in draw_words(40)) > 0
    with pytest.warns(UserWarning, match=r"9\d% of the spikes stand at the end of the window of 0\.05 s"):
        SHD.from_file(root / "shd_train.h5", window=0.05, dt=0.01)
    assert SHD(root, "test").binning == Binning(dt=4e-3, window=1.0, channels=700, binary=False, repeat=2)
    with pytest.raises(IndexError, match="items run from 0 to 39"):
        data[40]


def test_a_file_as_root_is_read_for_training_and_validation(root: Path):
    mine = (root / "shd_train.h5").rename(root / "mine.h5")
    sizes = [len(SHD(mine, split, share=0.25)) for split in ("train", "validation")]
    assert sizes == [30, 10]
    with pytest.raises(ValueError, match=r"mine\.h5 is for training and validation: a test takes a folder"):
        SHD(mine, "test")


@pytest.mark.parametrize(("there", "missing"), [("train", "test"), ("test", "train")])
@pytest.mark.parametrize("published", [(), ("shd_test.h5",), ("shd_train.h5",)])
def test_one_file_of_ones_own_is_not_completed_by_one_of_shd(root: Path, tmp_path_factory, there, missing, published):
    mine = tmp_path_factory.mktemp("mine")
    shutil.copy(root / "shd_train.h5", mine / f"{there}.h5")
    for name in published:
        shutil.copy(root / name, mine / name)
    before = names(mine)
    own, other = [{"train": "validation", "test": "test"}[part] for part in (there, missing)]
    assert SHD(mine, own).path == mine / f"{there}.h5"
    with pytest.raises(FileNotFoundError, match=rf"has {there}\.h5 but no {missing}\.h5: put {missing}\.h5 next to it"):
        SHD(mine, other)
    assert names(mine) == before  # nothing was downloaded


def test_the_first_whole_pair_is_read_and_a_file_may_be_packed_by_gzip(root: Path):
    def read(place: Path = root) -> list[str]:
        return [SHD(place, split).path.name for split in ("train", "validation", "test")]

    for part in ("train", "test"):
        (root / f"{part}.h5").write_bytes((root / f"shd_{part}.h5").read_bytes())
    assert read() == ["shd_train.h5", "shd_train.h5", "shd_test.h5"]
    (root / "shd_test.h5").unlink()
    assert read() == ["train.h5", "train.h5", "test.h5"]
    packed = root / "train.h5.gz"
    packed.write_bytes(gzip.compress((root / "train.h5").read_bytes()))
    (root / "train.h5").unlink()
    assert read() == read(packed) == ["train.h5.gz", "train.h5.gz", "test.h5"]
    (root / "shd_test.h5.gz").write_bytes(gzip.compress((root / "test.h5").read_bytes()))
    assert read() == ["shd_train.h5", "shd_train.h5", "shd_test.h5.gz"]


@pytest.mark.parametrize("by", ["random", "speaker"])
def test_train_and_validation_are_cut_from_the_training_file_and_test_is_the_test_file(root: Path, by):
    train, validation, test = (SHD(root, split, by=by, share=0.25) for split in ("train", "validation", "test"))
    assert sorted([*train.indices, *validation.indices]) == list(range(40))
    assert len(validation) == 10
    assert test.indices.tolist() == list(range(15))
    assert (by == "speaker") == (not set(train.speakers.tolist()) & set(validation.speakers.tolist()))
    for part in (train, validation):
        file = EventFile(part.path)
        assert_close(part.labels, torch.from_numpy(file.labels[part.indices]))
        assert_close(part.speakers, torch.from_numpy(file.speakers[part.indices]))
        assert np.array_equal(part.events([3, 1]).times, file.events.take(part.indices[[3, 1]]).times)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loader_with_workers_gives_the_same_seeded_batches(root):
    data = SHD.from_file(root / "shd_train.h5", dt=0.02, channels=70)
    everything, labels = collate(data.__getitems__(range(40)))
    sent = pickle.loads(pickle.dumps(data))  # as to a spawned worker
    assert torch.equal(collate(sent.__getitems__(range(40)))[0], everything)
    order = torch.Generator().manual_seed(3)
    got = list(DataLoader(data, 16, shuffle=True, num_workers=2, collate_fn=collate, generator=order))
    again = torch.Generator().manual_seed(3)
    torch.empty((), dtype=torch.int64).random_(generator=again)  # the loader draws its workers' seed first
    drawn = torch.randperm(40, generator=again)
    assert torch.equal(torch.cat([y for _, y in got]), labels[drawn])
    assert torch.equal(torch.cat([x for x, _ in got], dim=1), everything[:, drawn])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dt": 0.3}, "whole number of bins, got 1.0 s with bins of 0.3 s"),
        ({"channels": 60}, r"channels must divide 700 .*got 60"),
        ({"repeat": 0}, "repeat must be at least 1"),
        ({"dt": 4e-4}, r"resolution of the times, 0.488 ms in float16 below .* got 0\.4 ms"),
        ({"dt": 4e-4, "window": None}, r"resolution of the times, 0.488 ms in float16 below .* got 0\.4"),
        ({"augment": ChannelJitter(20.0)}, "augment must be a tuple of augmentations, got ChannelJitter"),
    ],
)
def test_settings_that_do_not_fit_are_refused(root: Path, arguments, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        SHD(root, "train", **arguments)
