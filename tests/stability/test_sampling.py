"""Points at which radii are measured: drawn evenly, until the means are known, within seconds."""

import itertools

import pytest
import snntorch as snn
import torch
from torch import nn

from neurolsc import ALIFPlus, Network, radius_profile, wrap
from neurolsc.stability import sampling
from neurolsc.stability.profile import profile_at
from neurolsc.stability.rules import standard_error
from neurolsc.stability.sampling import ENOUGH, Grid, affordable, draws, first_shape, next_shape, operations, spread

pytestmark = pytest.mark.usefixtures("float64")


def grid(total: int, batch: int, seed: int = 0, **most: int) -> Grid:
    return Grid.drawn(total, batch, torch.Generator().manual_seed(seed), **most)


# ---- which points


@pytest.mark.parametrize("count", [1, 2, 5, 16, 25, 32])
def test_the_first_numbers_lie_evenly(count):
    order = spread(count)
    assert sorted(order.tolist()) == list(range(count))
    if count == 32:
        for first in (2, 4, 8, 16):
            assert order[:first].sort().values.tolist() == list(range(0, 32, 32 // first))


def test_rectangles_grow_and_hold_what_was_measured():
    drawn = grid(200, 40)
    assert drawn.shape == (32, 32)
    shapes = [(2, 2), (4, 4), (8, 4), (32, 32)]
    for small, large in itertools.pairwise(shapes):
        before, after = (set(drawn.rectangle(shape).flatten().tolist()) for shape in (small, large))
        assert len(before) == small[0] * small[1]
        assert before < after
    assert grid(7, 3).rectangle((7, 3)).flatten().tolist() == list(range(21))


def test_the_mean_over_few_drawn_steps_is_that_of_all_in_expectation():
    values = torch.linspace(0, 1, 160) ** 2  # along a run values grow
    means = []
    for seed in range(400):
        drawn = grid(160, 1, seed)
        few = drawn.steps[drawn.order[:4]]
        means.append(values[few].mean())
    spread_of_means = torch.stack(means)
    assert spread_of_means.mean().item() == pytest.approx(values.mean().item(), rel=0.02)


# ---- how many


def test_all_points_of_a_small_input_are_measured_at_once_unless_that_takes_long():
    small = grid(8, 8)
    assert first_shape(small, 1e3) == (8, 8)
    assert first_shape(small, 1e10) == (2, 2)
    assert first_shape(grid(8, 9), 1e3) == (2, 2)
    assert first_shape(grid(1, 100), 1e9) == (1, 2)


def test_points_are_drawn_until_the_means_are_known_where_they_differ_most():
    drawn = grid(100, 100)
    assert next_shape((2, 2), drawn, [torch.ones(2, 2)], 0) == (4, 4), "no error is believed yet"
    assert next_shape((4, 4), drawn, [torch.ones(4, 4)], 0) == (8, 4), "the steps may have missed the start of the run"
    assert next_shape((4, 4), grid(4, 100), [torch.ones(4, 4)], 0) is None, "there are no more steps"
    steady = torch.ones(16, 16)
    assert next_shape((16, 16), drawn, [steady], 0) is None
    by_sample = steady + torch.arange(16.0)
    assert next_shape((16, 16), drawn, [steady, by_sample], 0) == (16, 32)
    by_step = by_sample.T
    assert next_shape((16, 16), drawn, [steady, by_step], 0) == (32, 16)
    assert next_shape((16, 16), grid(100, 16), [by_sample], 0) == (32, 16), "there are no more samples"
    assert next_shape((16, 16), drawn, [by_step], 0.6 * sampling.WORK) is None
    assert next_shape((16, 16), drawn, [torch.zeros(16, 16)], 0) is None
    assert next_shape((32, 32), drawn, [torch.rand(32, 32)], 0) is None


def test_operations_of_dense_matrices_are_those_of_the_cube():
    dense, products = torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)
    assert operations(200, dense) == pytest.approx(8 * operations(100, dense))
    assert operations(1000, products) < operations(1000, dense) / 50
    assert operations(0, dense) == 0
    assert [draws(size) for size in (1, 10, 64, 65, 128, 784)] == [16, 12, 2, 1, 1, 1]
    assert affordable(32, 64).tolist() == list(range(32))
    assert affordable(32, 1000).tolist() == [0, 8, 16, 24]
    assert affordable(3, 1000).tolist() == [0, 1, 2]


# ---- in a profile


def test_radii_at_drawn_points_are_those_of_all_points_there(make_network, make_spikes):
    network, x = make_network(ALIFPlus, n_in=32, gain=2), make_spikes(T=40, B=12, N=32)  # no sub-matrix is drawn
    some, every = radius_profile(network, x), radius_profile(network, x, steps=40)
    assert some.time.shape == (2, len(some.steps), len(some.samples))
    assert ENOUGH <= some.time[0].numel() < every.time[0].numel()
    for measured, whole in ((some.time, every.time), (some.depth, every.depth)):
        torch.testing.assert_close(measured, whole[:, some.steps][:, :, some.samples])
    assert torch.equal(some.firing_rate, every.firing_rate), "rates are those of the whole input"
    for measured, error in zip((some.time, some.depth), some.error, strict=True):
        wanted = [standard_error(layer, 40) for layer in measured]
        torch.testing.assert_close(error, torch.tensor(wanted))


def test_means_are_known_as_well_as_is_said(make_network, make_spikes):
    network, x = make_network(ALIFPlus, n_in=32, gain=3, tau_v=5.0), make_spikes(T=40, B=12, N=32)
    whole = radius_profile(network, x, steps=40)
    for seed in range(3):
        some = radius_profile(network, x, seed=seed)
        means, wanted = (torch.stack((p.time_mean, p.depth_mean)) for p in (some, whole))
        assert (some.error <= 0.01 * means).all() or some.time[0].numel() == 32 * 12
        assert ((means - wanted).abs() <= 4 * some.error + 1e-9).all()
        assert "standard errors at most" in str(some)


def test_a_profile_of_wide_layers_takes_few_points(make_spikes, monkeypatch):
    torch.manual_seed(0)
    network = Network([ALIFPlus(90, 80), ALIFPlus(80, 60)], 3)
    x = make_spikes(T=20, B=20, N=90)
    monkeypatch.setitem(profile_at.__kwdefaults__, "work", 1e6)
    profile = radius_profile(network, x)
    assert profile.time.shape == (2, 2, 2)
    assert "2 of 20 steps and 2 of 20 samples" in str(profile)


def test_small_sub_matrices_are_drawn_several_times():
    torch.manual_seed(0)
    layers = [nn.Linear(40, 50), snn.Leaky(0.9), nn.Linear(50, 4), snn.Leaky(0.9)]
    network = wrap(layers).double()
    x = 4 * torch.rand(20, 20, 40)
    once, often = radius_profile(network, x, steps=20), radius_profile(network, x)
    assert often.depth[1].std() < 0.5 * once.depth[1].std()
    assert often.depth_mean[1].item() == pytest.approx(once.depth_mean[1].item(), rel=0.2)
