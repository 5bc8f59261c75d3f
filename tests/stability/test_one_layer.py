"""Layers run alone, against the whole network; the recurrence alone; and values set by their measure."""

import math
from collections.abc import Callable

import norse
import pytest
import snntorch as snn
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Network, wrap
from neurolsc.neurons import State
from neurolsc.stability.one_layer import bottom_up, bracket, recurrence_radius, recurrence_share, settle
from neurolsc.stability.transitions import follow

T, B, N = 12, 5, 6
SOME, TIMES = torch.tensor([3, 0, 4]), torch.tensor([0, 4, 5, 11])


def ours(delay: int) -> Network:
    torch.manual_seed(0)
    cells = [ALIFPlus(N, 8, tau_theta=5.0), LIF(8, 7, tau_v=3.0), ALIFPlus(7, 9)]
    network = Network(cells, 3, layer_delay=delay).double()
    for cell in network.cells:
        cell.thresholds().scale(0.1)
    return network


def theirs() -> Network:
    torch.manual_seed(0)
    return wrap([nn.Linear(N, 8), snn.RLeaky(0.8, linear_features=8), nn.Linear(8, 7), snn.Leaky(0.9)]).double()


def x() -> Tensor:
    return torch.rand(T, B, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64).round()


def same(a: State | None, b: State | None) -> None:
    assert (a is None) == (b is None)
    for one, other in zip(a or (), b or (), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("make", [lambda: ours(0), lambda: ours(1), theirs], ids=["no delay", "delay", "snntorch"])
def test_bottom_up_finds_the_points_of_the_whole_network_changed_on_the_way(make: Callable[[], Network]):
    network, found, activity = make(), [], []
    for layer, (read, points) in enumerate(bottom_up(network, x(), SOME, TIMES)):
        before = follow(network, x()[:, SOME], TIMES)[0][layer]  # at its turn those below it have changed
        torch.testing.assert_close(points.x, before.x, rtol=0, atol=0)
        same(points.before, before.before)
        same(points.state_below, before.state_below)
        assert (points.cell, points.below) == (before.cell, before.below)
        activity.append(read.sum().item())
        found.append(points)
        network.cells[layer].thresholds().scale(0.5)
    assert len(found) == len(network.cells)
    assert min(activity) > 0
    after = follow(network, x()[:, SOME], TIMES)[0]
    for now, then in zip(after, found, strict=True):
        torch.testing.assert_close(then.x, now.x, rtol=0, atol=0)
        same(then.state_below, now.state_below)


# ---- recurrence


@pytest.mark.parametrize("cell", [LIF, ALIFPlusMinus])
def test_the_recurrence_radius_is_that_of_the_weights_times_the_surrogate(cell, make_network, make_spikes, float64):
    network, x = make_network(cell, gain=4), make_spikes()
    transitions, spikes = follow(network, x, torch.tensor([5, 12, 19]))
    for layer, t in enumerate(transitions):
        assert spikes[layer].any()
        s = t.cell.spike_derivative(t.before)
        wanted = torch.linalg.eigvals(s.unsqueeze(-1) * t.cell.w_rec).abs().amax(-1)
        torch.testing.assert_close(recurrence_radius(t), wanted)


def test_layers_of_other_libraries(make_spikes, float64):
    fast = snn.surrogate.fast_sigmoid(slope=2)
    ours = snn.RLeaky(beta=0.8, linear_features=8, spike_grad=fast, threshold=0.3)
    model = nn.Sequential(nn.Linear(30, 8), ours, nn.Linear(8, 2))
    network, x = wrap(model), make_spikes()
    (t,), (spikes,) = follow(network, x, torch.tensor([5, 12]))
    assert spikes.any()
    s = 1 / (1 + 2 * (t.before.mem.flatten(1) - 0.3).abs()) ** 2
    wanted = torch.linalg.eigvals(s.unsqueeze(-1) * ours.recurrent.weight).abs().amax(-1)
    torch.testing.assert_close(recurrence_radius(t), wanted)


def test_without_recurrent_synapses_it_is_zero(make_spikes, float64):
    network = wrap([nn.Linear(30, 8), norse.torch.LIFCell(), nn.Linear(8, 2)])
    (t,), _ = follow(network, 5 * make_spikes(), torch.tensor([5, 12]))
    assert recurrence_radius(t).tolist() == [0] * 12


@pytest.mark.parametrize("cell", [LIF, ALIFPlus])
def test_the_share_is_that_of_the_currents(cell, make_network, make_spikes, float64):
    t = follow(make_network(cell, gain=4), make_spikes(), torch.tensor([5, 12, 19]))[0][1]
    z = t.cell.output(t.before)
    assert z.any() and t.x.any()
    wanted = (z @ t.cell.w_rec.T).norm() / (t.x @ t.cell.w_in.T).norm()
    assert recurrence_share(t) == pytest.approx(wanted.item())


# ---- roots


REACH = math.log(1e4)


@pytest.mark.parametrize("at", [-9.0, -0.01, 0.0, 0.2, 9.1])
def test_bracket_holds_a_root_within_its_range(at):
    low, high = bracket(lambda x: x - at, REACH)
    assert low <= at <= high
    assert (low < high) == (at != 0)


CASES: dict[str, tuple[Callable[[float], float], float]] = {
    "line": (lambda x: 2 * x - 1, 0.5),
    "exponential": (lambda x: math.exp(5 * x) - 40, math.log(40) / 5),
    "jump": (lambda x: 1.0 if x > 0.3 else -2.0, 0.3),
    "flat": (lambda x: 0.01 * x - 0.001 if x < 0.9 else 100.0, 0.1),
    "infinite": (lambda x: math.inf if x > 0.7 else x - 0.6, 0.6),
    "the same everywhere": (lambda x: 1.0, 0.0),
    "out of reach": (lambda x: x - 20, REACH),
}


@pytest.mark.parametrize("name", CASES)
def test_a_value_is_set_so_that_its_measure_is_nearest_to_the_target(name):
    function, at = CASES[name]
    values = [0.0]
    found = settle(values.append, lambda: function(values[-1]) + 3, 3.0, reach=REACH, close=1e-9)
    assert values[-1] == pytest.approx(at, abs=3e-4)
    assert found == function(values[-1]) + 3
    assert abs(found - 3) == pytest.approx(min(abs(function(x)) for x in values), abs=1e-9)
    assert len(values) < 40 and all(-REACH <= x <= REACH for x in values)
