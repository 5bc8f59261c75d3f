"""The recurrence alone; and values set by their measure."""

import math
from collections.abc import Callable

import norse
import pytest
import snntorch as snn
import torch
from torch import nn

from neurolsc import LIF, ALIFPlusMinus, wrap
from neurolsc.stability.one_layer import bracket, recurrence_radius, settle
from neurolsc.stability.transitions import follow


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
