import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from neurolsc.datasets import LatencyEncoding, latency_frames, spike_latency

GREY_LEVELS = torch.arange(256, dtype=torch.float64) / 255


def float64(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_spike_time_is_the_closed_form():
    times = spike_latency(float64(1.0, 0.5, 0.4, 0.25))
    assert_close(times, 50 * float64(math.log(5 / 4), math.log(5 / 3), math.log(2), math.log(5)))


@pytest.mark.parametrize(("tau", "threshold"), [(50.0, 0.2), (20.0, 0.2), (50.0, 0.7)])
def test_at_its_spike_time_the_leaky_membrane_stands_at_the_threshold(tau, threshold):
    times = spike_latency(GREY_LEVELS, tau=tau, threshold=threshold)
    spiking = times.isfinite()
    assert spiking.any()
    v = GREY_LEVELS * (1 - torch.exp(-times / tau))
    assert_close(v[spiking], torch.full_like(v[spiking], threshold))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_pixel_at_the_threshold_is_silent_and_the_next_one_above_spikes_late(dtype):
    at = torch.tensor(0.2, dtype=dtype)
    assert spike_latency(at) == math.inf
    assert 50 < spike_latency(at.nextafter(torch.ones((), dtype=dtype))) < math.inf


def test_grey_level_51_is_the_last_silent_one():
    assert_close(spike_latency(GREY_LEVELS).isfinite(), torch.arange(256) > 51)


def test_black_is_silent_even_at_threshold_zero():
    assert_close(spike_latency(float64(0.0, 0.5), threshold=0.0), float64(math.inf, 0.0))


def test_the_brightest_pixel_spikes_in_bin_11_shown_twice():
    frames = latency_frames(spike_latency(torch.ones(1)))
    assert frames.shape == (100, 1)
    assert frames.flatten().nonzero().flatten().tolist() == [22, 23]


def test_brighter_pixels_spike_earlier():
    times = spike_latency(GREY_LEVELS[52:])
    assert (times.diff() < 0).all()
    steps = latency_frames(times)[:, times < 50].int().argmax(dim=0)
    assert len(steps) > 100
    assert (steps.diff() <= 0).all()


def test_a_pixel_spikes_in_one_bin_if_its_time_lies_in_the_window_and_in_none_otherwise():
    times = spike_latency(torch.rand(7, 400, generator=torch.Generator().manual_seed(0)))
    frames = latency_frames(times)
    assert frames.shape == (100, 7, 400)
    assert_close(frames[::2], frames[1::2])
    assert_close(frames[::2].sum(0), (times < 50).long())
    assert 0 < (times < 50).sum() < times.isfinite().sum() < times.numel()


def test_a_spike_at_the_end_of_the_window_or_later_is_left_out_and_does_not_wrap():
    times = float64(49.999, 50.0, 50.001, 61.2, 100.0, 1e30, math.inf)
    frames = latency_frames(times, repeat=1)
    assert frames.nonzero().tolist() == [[49, 0]]


@given(
    st.lists(st.floats(0, 100) | st.just(math.inf), min_size=1, max_size=20),
    st.sampled_from([(1.0, 50.0), (0.5, 50.0), (0.1, 10.0), (4.0, 100.0)]),
    st.integers(1, 3),
)
def test_frames_are_those_of_a_loop_over_the_spikes(times, bins, repeat):
    dt, window = bins
    expected = torch.zeros(round(window / dt) * repeat, len(times), dtype=torch.uint8)
    for n, t in enumerate(times):
        if t < window:
            first = math.floor(t / dt) * repeat
            expected[first : first + repeat, n] = 1
    frames = latency_frames(float64(*times), dt=dt, window=window, repeat=repeat)
    assert_close(frames, expected)


def test_a_spike_just_before_the_end_stays_in_the_last_bin_when_the_division_rounds_up():
    dt, window = 0.1, 0.1 * 17
    t = math.nextafter(window, 0)
    assert math.floor(t / dt) == round(window / dt)
    frames = latency_frames(float64(t), dt=dt, window=window, repeat=1)
    assert frames.flatten().nonzero().item() == len(frames) - 1


def test_the_inputs_are_left_as_they_were():
    pixels, times = torch.tensor([0.0, 0.5, 1.0]), torch.tensor([1.5, 60.0, math.inf])
    spike_latency(pixels)
    latency_frames(times)
    assert_close(pixels, torch.tensor([0.0, 0.5, 1.0]))
    assert_close(times, torch.tensor([1.5, 60.0, math.inf]))


@pytest.mark.parametrize("pixel", [-0.01, 1.01, 255.0, math.nan, math.inf])
def test_a_pixel_outside_the_unit_interval_is_refused(pixel):
    with pytest.raises(ValueError, match=rf"pixels must lie in \[0, 1\], got {pixel:g}"):
        spike_latency(torch.tensor([0.5, pixel]))


def test_grey_levels_are_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"got torch\.uint8; divide grey levels by 255"):
        spike_latency(torch.tensor([0, 255], dtype=torch.uint8))


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf])
def test_a_time_constant_that_is_not_positive_is_refused(tau):
    with pytest.raises(ValueError, match="tau must be positive"):
        spike_latency(torch.ones(1), tau=tau)


@pytest.mark.parametrize("threshold", [-0.1, 1.0, math.nan])
def test_a_threshold_outside_the_unit_interval_is_refused(threshold):
    with pytest.raises(ValueError, match=rf"threshold must be a brightness in \[0, 1\), got {threshold}"):
        spike_latency(torch.ones(1), threshold=threshold)


@pytest.mark.parametrize("time", [-0.5, -math.inf, math.nan])
def test_a_time_before_zero_or_undefined_is_refused(time):
    with pytest.raises(ValueError, match=rf"times must be zero or positive.*got {time:g} ms"):
        latency_frames(torch.tensor([1.0, time]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dt": 0.0}, "dt must be positive"),
        ({"window": -50.0}, "window must be positive"),
        ({"dt": 3.0}, "whole number of bins, got 50.0 ms with bins of 3.0 ms"),
        ({"dt": 100.0}, "whole number of bins"),
        ({"repeat": 0}, "repeat must be at least 1"),
    ],
)
def test_a_window_that_bins_do_not_fill_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        latency_frames(torch.ones(1), **arguments)
    with pytest.raises(ValueError, match=message):
        LatencyEncoding(**arguments)


def test_an_encoding_is_its_two_functions_with_their_numbers_kept():
    code = LatencyEncoding(tau=20.0, threshold=0.1, dt=0.5, window=30.0, repeat=3)
    times = spike_latency(GREY_LEVELS, tau=20.0, threshold=0.1)
    assert_close(code.times(GREY_LEVELS), times)
    assert_close(code.frames(times), latency_frames(times, dt=0.5, window=30.0, repeat=3))
    assert code.steps == len(code.frames(times)) == 180
    assert code.frames(times).any()


def test_the_defaults_are_those_of_sl_mnist_and_nothing_can_be_changed():
    code = LatencyEncoding()
    assert code == LatencyEncoding(tau=50.0, threshold=0.2, dt=1.0, window=50.0, repeat=2)
    assert_close(code.times(GREY_LEVELS), spike_latency(GREY_LEVELS))
    assert_close(code.frames(code.times(GREY_LEVELS)), latency_frames(spike_latency(GREY_LEVELS)))
    with pytest.raises(FrozenInstanceError):
        code.dt = 2.0  # type: ignore[misc]


def test_a_window_may_be_one_bin():
    frames = latency_frames(float64(0.0, 1.9, 2.0), dt=2.0, window=2.0, repeat=1)
    assert frames.tolist() == [[1, 1, 0]]
