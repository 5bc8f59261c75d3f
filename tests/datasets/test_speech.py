"""Spoken words: spikes into bins, items and splits of SHD; the same frames as tonic's."""

import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils.data import DataLoader

from neurolsc.datasets import (
    SHD,
    Binning,
    ChannelJitter,
    EventFile,
    Events,
    SpikeDrop,
    TimeStretch,
    collate,
    collate_padded,
    input_batches,
)
from tests.words import draw_words, write_words


def flat(words) -> Events:
    offsets = np.concatenate([[0], np.cumsum([len(t) for t, _ in words])])
    return Events(np.concatenate([t for t, _ in words]), np.concatenate([u for _, u in words]), offsets)


def by_hand(words, dt: float, bins: int, channels: int = 700) -> torch.Tensor:
    """The definition, spike by spike."""
    x = torch.zeros(bins, len(words), channels, dtype=torch.uint8)
    for b, (times, units) in enumerate(words):
        for t, u in zip(times.tolist(), units.tolist(), strict=True):
            if (k := math.floor(t / dt)) < bins:
                x[k, b, u * channels // 700] += 1
    return x


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize(("dt", "channels"), [(4e-3, 700), (0.05, 70), (0.1, 4)])
def test_a_spike_counts_in_the_bin_and_channel_of_the_definition(dtype: str, dt: float, channels: int):
    words = draw_words(6, dtype=dtype)
    frames = Binning(dt, 1.0, channels, repeat=1).dense(flat(words))
    wanted = by_hand(words, dt, round(1 / dt), channels)
    assert wanted.max() > 1 or channels == 700
    assert torch.equal(frames.x, wanted)
    assert frames.mask is None
    assert frames.left_out.tolist() == [int((t >= 1).sum()) for t, _ in words]
    assert frames.left_out.sum() > 0
    assert frames.x.sum() + frames.left_out.sum() == sum(len(t) for t, _ in words)


@given(st.integers(1, 400), st.sampled_from([1e-3, 2e-3, 4e-3, 5e-3, 7e-3, 1e-2, 0.1, 1 / 3]))
def test_every_half_precision_time_falls_into_a_bin_that_holds_it(bins: int, dt: float):
    window = bins * dt
    times = np.arange(0x7C00, dtype=np.uint16).view(np.float16)  # all that are finite and not negative
    grid = Binning(dt, window, repeat=1)
    _, step, _ = grid._grid(Events(times, np.zeros(len(times), np.uint16), np.array([0, len(times)])))
    seconds = times.astype(np.float64)
    assert ((step == bins) == (seconds >= window)).all()
    inside = seconds < window
    slack = 1e-12 * window  # of the products
    assert (step[inside] * dt <= seconds[inside] + slack).all()
    assert (seconds[inside] < (step[inside] + 1) * dt + slack).all()


def test_binary_gives_one_for_every_count_and_repeat_shows_each_frame_again():
    events = flat(draw_words(5, most=2000))
    counts = Binning(0.05, 1.0, 70, repeat=1).dense(events).x
    assert counts.max() > 1
    assert torch.equal(Binning(0.05, 1.0, 70, binary=True, repeat=1).dense(events).x, counts.clamp(max=1))
    for binary in (True, False):
        once, thrice = (Binning(0.05, 1.0, 70, binary, repeat).dense(events).x for repeat in (1, 3))
        assert torch.equal(thrice, once.repeat_interleave(3, dim=0))
    assert Binning(0.05, 1.0, 70, repeat=3).steps == 60


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(("window", "repeat"), [(1.0, 1), (1.0, 2), (None, 2)])
def test_sparse_frames_are_the_dense_ones(window, repeat: int, binary: bool):
    events = flat(draw_words(5, most=2000))
    grid = Binning(0.02, window, 70, binary, repeat)
    dense, sparse = grid.dense(events), grid.sparse(events)
    assert sparse.x.is_sparse
    assert sparse.x.is_coalesced()
    assert torch.equal(sparse.x.to_dense(), dense.x)
    again = torch.sparse_coo_tensor(sparse.x.indices(), sparse.x.values(), sparse.x.shape, check_invariants=True)
    assert torch.equal(again.coalesce().indices(), sparse.x.indices())  # sorted, as it says
    assert_close(sparse.left_out, dense.left_out)
    assert (sparse.mask is None) == (dense.mask is None)
    assert sparse.mask is None or torch.equal(sparse.mask, dense.mask)  # type: ignore[arg-type]


def test_without_a_window_every_spike_counts_and_a_mask_tells_how_long_each_utterance_lasts():
    words = draw_words(6)
    words[2] = (words[2][0][:4], words[2][1][:4])
    frames = Binning(0.01, None, repeat=2).dense(flat(words))
    lengths = [2 * (int(float(t[-1]) / 0.01) + 1) for t, _ in words]
    assert frames.x.shape == (max(lengths), 6, 700)
    assert frames.mask is not None
    assert frames.mask.sum(0).tolist() == lengths
    assert (frames.mask.int().diff(dim=0) <= 0).all()  # first the utterance, then the padding
    assert frames.x.sum(dim=(0, 2)).tolist() == [2 * len(t) for t, _ in words]
    assert not frames.x.sum(-1)[~frames.mask].any()
    assert frames.left_out.tolist() == [0] * 6
    assert Binning(0.01, None).steps is None


def test_an_utterance_that_lost_all_its_spikes_is_silent():
    events = Events(np.float16([0.1, 0.25]), np.uint16([3, 4]), np.array([0, 0, 2, 2]))
    for window in (1.0, None):
        frames = Binning(0.1, window, repeat=1).dense(events)
        assert frames.x.sum(dim=(0, 2)).tolist() == [0, 2, 0]
        assert frames.mask is None or frames.mask.sum(0).tolist() == [1, 3, 1]
    nothing = Events(np.float16([]), np.uint16([]), np.array([0, 0]))
    assert Binning(0.1, None, repeat=1).dense(nothing).x.shape == (1, 1, 700)


def test_a_count_that_does_not_fit_a_byte_is_refused_and_255_is_kept():
    def burst(n: int) -> Events:  # and 300 more spikes after the window, which do not count
        times = np.concatenate([np.full(n, 0.5), np.full(300, 1.5)]).astype(np.float16)
        return Events(times, np.zeros(n + 300, np.uint16), np.array([0, n + 300]))

    grid = Binning(0.01, 1.0)
    for make in (grid.dense, grid.sparse):
        assert int(make(burst(255)).x.to_dense().max()) == 255
        with pytest.raises(ValueError, match="a bin of 10 ms and 1 units holds 256 spikes, at most 255 fit"):
            make(burst(256))
    assert int(Binning(0.01, 1.0, binary=True).dense(burst(256)).x.max()) == 1


@pytest.mark.parametrize(
    ("settings", "kind", "told"),
    [
        ({"dt": 0.0}, ValueError, "dt must be positive"),
        ({"dt": float("nan")}, ValueError, "dt must be positive"),
        ({"window": -1.0}, ValueError, "window must be positive"),
        ({"dt": 0.3, "window": 1.0}, ValueError, "whole number of bins, got 1.0 s with bins of 0.3 s"),
        ({"channels": 60}, ValueError, r"channels must divide 700 .*got 60"),
        ({"channels": 70.0}, TypeError, "channels must be an int"),
        ({"repeat": 0}, ValueError, "repeat must be at least 1"),
    ],
)
def test_a_grid_out_of_range_is_refused(settings, kind, told: str):
    with pytest.raises(kind, match=told):
        Binning(**settings)


def test_bins_finer_than_the_times_are_refused():
    half = np.dtype(np.float16)
    Binning(5e-4, 1.0).check_resolution(half)  # 0.49 ms below 1 s
    Binning(2**-11, 1.0).check_resolution(half)  # just that
    Binning(1e-4, 0.2).check_resolution(np.dtype(np.float32))
    for dt, window, told in ((4e-4, 1.0, "0.488 ms"), (5e-4, 1.4, "0.977 ms"), (4e-4, None, "0.488 ms")):
        with pytest.raises(ValueError, match=rf"resolution of the times, {told} in float16 below .* got 0\.[45] ms"):
            Binning(dt, window).check_resolution(half)


# SHD


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a tiny SHD: 40 training and 15 test utterances."""
    write_words(tmp_path / "shd_train.h5", draw_words(40))
    write_words(tmp_path / "shd_test.h5", draw_words(15, seed=1))
    return tmp_path


def test_a_batch_is_what_binning_makes_of_the_files_spikes(root: Path):
    data = SHD.from_file(root / "shd_train.h5", dt=0.01, window=0.5, channels=140, repeat=1)
    x, labels = collate(data.__getitems__([5, 2, 39]))
    wanted = Binning(0.01, 0.5, 140, repeat=1).dense(EventFile(data.path).read([5, 2, 39]))
    assert torch.equal(x, wanted.x)
    assert labels.tolist() == [15, 6, 117 % 20]
    assert (data.n_in, data.n_classes, data.steps, len(data)) == (140, 20, 50, 40)
    assert torch.equal(data[2][0], x[:, 1])
    assert data[2][1] == 6
    assert data.left_out == sum(int((t >= 0.5).sum()) for t, _ in draw_words(40)) > 0
    assert SHD(root, "test").binning == Binning(dt=4e-3, window=1.0, channels=700, binary=False, repeat=2)
    with pytest.raises(IndexError, match="items run from 0 to 39"):
        data[40]


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
        assert np.array_equal(part.events([3]).times, file.read(part.indices[[3]]).times)


def test_the_test_file_is_opened_for_the_test_split_only(root: Path):
    (root / "shd_test.h5").write_bytes(b"")
    for split in ("train", "validation"):
        assert len(SHD(root, split))
    with pytest.raises(ValueError, match=r"shd_test\.h5: not a whole HDF5 file"):
        SHD(root, "test")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")  # torch, taking from a worker
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_same_seeded_batches_with_and_without_workers(root, tmp_path, workers, sparse, cached):
    cache = tmp_path / "cache" if cached else None
    data = SHD.from_file(root / "shd_train.h5", dt=0.02, channels=70, sparse=sparse, cache=cache)
    everything, labels = collate(data.__getitems__(range(40)))
    sent = pickle.loads(pickle.dumps(data))  # as to a spawned worker
    assert torch.equal(collate(sent.__getitems__(range(40)))[0].to_dense(), everything.to_dense())
    assert torch.equal(data[7][0].to_dense(), everything.to_dense()[:, 7])
    order = torch.Generator().manual_seed(3)
    loader = DataLoader(data, 16, shuffle=True, num_workers=workers, collate_fn=collate, generator=order)
    got = list(loader)
    assert [x.is_sparse for x, _ in got] == [sparse] * 3
    again = torch.Generator().manual_seed(3)
    torch.empty((), dtype=torch.int64).random_(generator=again)  # the loader draws its workers' seed first
    drawn = torch.randperm(40, generator=again)
    assert torch.equal(torch.cat([y for _, y in got]), labels[drawn])
    assert torch.equal(torch.cat([x.to_dense() for x, _ in got], dim=1), everything.to_dense()[:, drawn])


def test_whole_utterances_come_with_a_mask_from_either_collate(root: Path):
    data = SHD.from_file(root / "shd_train.h5", dt=0.01, window=None, channels=70)
    items = [data[i] for i in (7, 8, 9)]
    assert len({len(x) for x, _ in items}) > 1
    batch = data.__getitems__([7, 8, 9])
    for got in (collate(batch), collate_padded(batch), collate_padded(items)):
        x, labels, mask = got
        assert mask.sum(0).tolist() == [len(x) for x, _ in items]
        assert torch.equal(labels, data.labels[[7, 8, 9]])
        assert all(torch.equal(x[: len(one), b], one) for b, (one, _) in enumerate(items))
        assert not x[~mask].any()
    for (one, label), (other, same) in zip(batch, items, strict=True):
        assert torch.equal(one, other)
        assert label == same
    assert all(x.ndim == 3 for x in input_batches(data, 16))
    with pytest.raises(ValueError, match="collate_padded takes unequal lengths"):
        collate(items)


# augmentation


def test_augmentation_follows_torchs_seed_and_leaves_the_file_alone(root: Path):
    changes = (ChannelJitter(20.0), TimeStretch(0.8, 1.2), SpikeDrop(0.1))
    plain, changed = (SHD.from_file(root / "shd_train.h5", augment=augment) for augment in ((), changes))
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(collate(changed.__getitems__(range(40)))[0])
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert 0.7 * plain.__getitems__(range(40)).x.sum() < draws[0].sum() < plain.__getitems__(range(40)).x.sum()
    before = torch.random.get_rng_state()
    first = collate(plain.__getitems__(range(40)))[0]
    assert torch.equal(torch.random.get_rng_state(), before)  # without augmentation nothing is drawn
    assert torch.equal(collate(plain.__getitems__(range(40)))[0], first)


# refusals


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ({"split": "valid"}, ValueError, "split must be one of 'train', 'validation', 'test', got 'valid'"),
        ({"split": "train", "by": "voice"}, ValueError, "by must be one of"),
        ({"split": "train", "dt": 1e-4}, ValueError, "dt must not be below the resolution"),
        ({"split": "train", "window": 0.9999}, ValueError, "whole number of bins"),
        ({"split": "train", "bins": 3}, TypeError, "bins"),
    ],
)
def test_settings_that_do_not_fit_are_refused(root: Path, arguments, kind, told: str):
    with pytest.raises(kind, match=told):
        SHD(root, **arguments)


# tonic


def tonic_set(root: Path, words, **settings):
    import tonic

    write_words(root / "SHD" / "shd_train.h5", words)
    (root / "SHD" / "shd_train.h5.zip").touch()  # tonic looks for the archive beside the file
    to_frame = tonic.transforms.ToFrame(sensor_size=tonic.datasets.SHD.sensor_size, **settings)
    return tonic.datasets.SHD(str(root), train=True, transform=to_frame)


@pytest.mark.parametrize("bins", [100, 125, 200, 250])
def test_frames_equal_those_of_tonic_bin_for_bin(bins: int, tmp_path: Path):
    theirs = tonic_set(tmp_path, draw_words(20), time_window=1e6 / bins, start_time=0, end_time=1e6)
    file = EventFile(tmp_path / "SHD" / "shd_train.h5")
    ours = Binning(1 / bins, 1.0, repeat=1).dense(file.read(range(20))).x
    for i in range(20):
        frames, label = theirs[i]  # (T, 1, 700), int16
        assert label == file.labels[i]
        np.testing.assert_array_equal(ours[:, i].numpy(), frames[:, 0])
        assert frames.sum() > 0


# The spoken digits of NEUROLSC_DATA


def test_the_real_file_agrees_with_its_description(digits_root: Path):
    train, test = (SHD.from_file(digits_root / f"{part}.h5", dt=0.01, channels=70) for part in ("train", "test"))
    assert (len(train), len(test)) == (1800, 400)
    assert train.labels.bincount().tolist() == [90] * 20
    assert train.speakers.unique().tolist() == list(range(10))
    assert test.speakers.bincount().tolist() == [20] * 10 + [100] * 2
    assert train.names[15] == "fuenf"
    counts = torch.from_numpy(train.events(range(1800)).counts)
    assert (int(counts.min()), int(counts.max()), round(counts.double().mean().item())) == (1523, 12546, 6842)
