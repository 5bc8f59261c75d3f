"""Radii by source at a given rate, measured after they were set."""

from dataclasses import replace
from typing import NamedTuple

import pytest
import snntorch
import torch

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus, Network, radius_profile, wrap
from neurolsc.initialisers import BySource, named
from neurolsc.neurons import ScaledParameter, SpikingCell
from neurolsc.positive import set_value
from neurolsc.stability.one_layer import recurrence_share
from neurolsc.stability.transitions import follow


@pytest.fixture
def x(make_spikes):
    return make_spikes(T=12, B=8, N=40)


@pytest.mark.parametrize("cell", [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass])
@pytest.mark.slow
def test_radii_and_rates_are_where_they_were_wanted(cell, make_network, x):
    network = make_network(cell, n_in=40, width=32, layers=3)
    taus = [c.tau_v.clone() for c in network.cells]
    for c in network.cells:
        set_value(c, "w_rec", 4 * c.w_rec.detach())  # so that the bound is reached from above
    all_points = BySource(depth=0.5, recurrence=0.3, rate=0.2, samples=8, steps=12)
    assert all_points.apply(network, [x], seed=3) == ()
    profile = radius_profile(network, x)
    transitions, spikes = follow(network, x, torch.arange(12))
    for t, layer, tau in zip(transitions, spikes, taus, strict=True):
        assert layer.mean().item() == pytest.approx(0.2, rel=0.05)
        assert recurrence_share(t) == pytest.approx(0.3, rel=0.05)
        assert torch.equal(t.cell.tau_v, tau)
    torch.testing.assert_close(profile.depth_mean[1:], torch.full((2,), 0.5), rtol=0.05, atol=0)


def test_recurrence_is_only_scaled_down_where_a_narrow_surrogate_passes_no_derivative(x):
    narrow = snntorch.surrogate.fast_sigmoid(slope=25)
    modules = [torch.nn.Linear(40, 32), snntorch.RLeaky(beta=0.9, linear_features=32, spike_grad=narrow)]
    modules += [torch.nn.Linear(32, 32), snntorch.RLeaky(beta=0.9, linear_features=32, spike_grad=narrow)]
    before = [module.recurrent.weight.clone() for module in modules[1::2]]
    network = wrap([*modules, torch.nn.Linear(32, 4)])
    BySource(depth=0).apply(network, [x])
    for module, drawn, z in zip(modules[1::2], before, network.run(x).spikes, strict=True):
        assert z.mean().item() == pytest.approx(0.15, rel=0.1)
        scale = (module.recurrent.weight / drawn).detach()
        torch.testing.assert_close(scale, scale.mean().expand_as(scale))
        assert scale.mean() <= 1.0001
    assert (radius_profile(network, x).time_mean <= 1.05).all()


def test_the_first_input_matrix_stays(make_network, x):
    network = make_network(n_in=40, width=32)
    before = network.cells[0].w_in.clone()
    BySource().apply(network, [x])
    assert torch.equal(network.cells[0].w_in, before)


def test_zero_takes_the_recurrence_away_and_leaves_what_is_not_asked_for(make_network, x):
    network = make_network(n_in=40, width=32, gain=2)
    w_in, rest = network.cells[1].w_in.clone(), network.cells[1].theta_rest.clone()
    assert BySource(depth=0, recurrence=0, rate=0).apply(network, [x]) == ()
    assert not network.cells[1].w_rec.any()
    assert torch.equal(network.cells[1].w_in, w_in) and torch.equal(network.cells[1].theta_rest, rest)


@pytest.mark.parametrize(("tau_v", "bounded"), [(0.1, False), (20.0, True)])
@pytest.mark.parametrize("depth", [0.0, 0.4])
def test_a_recurrence_is_no_more_than_the_bound_on_the_radius_through_time_allows(
    tau_v, bounded, depth, make_network, make_spikes
):
    x = make_spikes(T=60, B=8, N=40)
    network, free = (make_network(LIF, n_in=40, width=32, tau_v=tau_v) for _ in range(2))
    drawn = [cell.w_rec.clone() for cell in network.cells]
    start = BySource(depth=depth, recurrence=10.0, samples=8, steps=20)
    assert start.apply(network, [x]) == ()
    assert replace(start, time=9.0).apply(free, [x]) == ()
    ours, theirs = (radius_profile(found, x) for found in (network, free))
    assert (ours.time_mean <= 1.03).all()
    assert (theirs.time_mean > 1.03).all() == bounded
    transitions, spikes = follow(network, x, torch.arange(60))
    for t, before, layer in zip(transitions, drawn, spikes, strict=True):
        scale = (t.cell.w_rec / before).mean()
        torch.testing.assert_close(t.cell.w_rec, scale * before)
        assert layer.mean().item() == pytest.approx(0.15, rel=0.05)
        if bounded:
            assert recurrence_share(t) > 0.02
    if depth:
        assert ours.depth_mean[1].item() == pytest.approx(depth, rel=0.06)
    if not bounded:
        assert all(map(torch.equal, network.state_dict().values(), free.state_dict().values()))


class State(NamedTuple):
    v: torch.Tensor


class Growing(SpikingCell):
    """A voltage that grows by itself."""

    scaled_parameters = (ScaledParameter("w_in", "depth"), ScaledParameter("w_rec", "time"))

    def initial_state(self, batch):
        return State(torch.zeros(batch, self.n_hidden))

    def distance(self, state):
        return state.v - 1

    def update(self, x, z, state):
        return State(1.3 * state.v * (1 - z.detach()) + x @ self.w_in.T + z @ self.w_rec.T)


def test_a_radius_that_no_recurrence_holds_is_told(x):
    network = Network([Growing(40, 32)], 4)
    found = BySource(rate=0.0).apply(network, [x])
    assert [f.problem for f in found] == ["radius through time 1.3, not 1"]
    assert "no scale of the recurrence" in found[0].cure


def test_what_is_missed_is_told(make_network, x):
    network = make_network(n_in=40, width=32)
    found = BySource().apply(network, [0 * x])
    assert [(f.layer, f.problem) for f in found if "rate" in f.problem] == [
        (1, "firing rate 0, not 0.15"),
        (2, "firing rate 0, not 0.15"),
    ]


def test_the_same_seed_gives_the_same_network(make_network, x):
    networks = [make_network(n_in=40, width=32) for _ in range(2)]
    for number, network in enumerate(networks):
        torch.manual_seed(number)
        BySource().apply(network, [x], seed=5)
    assert all(map(torch.equal, networks[0].state_dict().values(), networks[1].state_dict().values()))


def test_a_network_of_snntorch(x):
    layers = [torch.nn.Linear(40, 32), snntorch.RLeaky(beta=0.5, linear_features=32, learn_threshold=True)]
    layers += [torch.nn.Linear(32, 32), snntorch.RLeaky(beta=0.5, linear_features=32, learn_threshold=True)]
    network = wrap([*layers, torch.nn.Linear(32, 4)])
    assert BySource(depth=0.5, samples=8, steps=12, rate=0.2).apply(network, [x]) == ()
    assert network.run(x).spikes[1].mean().item() == pytest.approx(0.2, rel=0.05)
    assert radius_profile(network, x).depth_mean[1].item() == pytest.approx(0.5, rel=0.05)


def test_as_a_text():
    assert named("BySource(depth=0.5)") == BySource(depth=0.5)
    assert str(BySource(recurrence=0.1)) == "BySource(recurrence=0.1)"
    with pytest.raises(ValueError, match="below 1, got 2"):
        named("BySource(rate=2)")


def test_cells_without_thresholds_are_refused_before_anything_changes(x):
    lstm = torch.nn.LSTM(40, 16)
    before = lstm.weight_ih_l0.clone()
    with pytest.raises(TypeError, match="does not say how its thresholds scale"):
        BySource().apply(wrap([lstm, torch.nn.Linear(16, 2)]), [x])
    assert torch.equal(lstm.weight_ih_l0, before)
