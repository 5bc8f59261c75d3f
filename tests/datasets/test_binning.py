import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from neurolsc.datasets import Binning, EventFile, Events
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


@pytest.mark.parametrize(("count", "fits"), [(255, True), (256, False)])
def test_a_count_of_nothing_but_one_bin_is_checked_too(count: int, fits: bool):
    events = Events(np.full(count, 0.5, np.float16), np.zeros(count, np.uint16), np.array([0, count]))
    for make in (Binning(0.01, 1.0, repeat=1).dense, Binning(0.01, 1.0, repeat=1).sparse):
        if fits:
            assert int(make(events).x.to_dense().max()) == count
        else:
            with pytest.raises(ValueError, match="holds 256 spikes"):
                make(events)


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


@pytest.mark.parametrize("bins", [56, 112, 120])
def test_where_tonic_forgets_the_last_frame_the_others_are_equal(bins: int, tmp_path: Path):
    theirs = tonic_set(tmp_path, draw_words(5), time_window=1e6 / bins, start_time=0, end_time=1e6)
    ours = Binning(1 / bins, 1.0, repeat=1).dense(EventFile(tmp_path / "SHD" / "shd_train.h5").read(range(5))).x
    for i in range(5):
        frames = theirs[i][0]
        assert len(ours) == bins == len(frames) + 1
        # tonic cuts times to whole microseconds first; at its own edges, not multiples of one, that
        # may move a spike
        differ = ours[:-1, i].numpy() != frames[:, 0]
        assert differ.mean() < 1e-3
