"""Radii and rates set by scales alone: reached, and nothing else changed."""

import copy
import math
from collections.abc import Callable

import pytest
import torch

from neurolsc import (
    GRU,
    LIF,
    LSTM,
    ALIFLowPass,
    ALIFPlus,
    ALIFPlusMinus,
    Network,
    match_firing_rates,
    scale_to_radius,
)
from neurolsc.neurons import LI
from neurolsc.stability import rules, scale
from neurolsc.stability.scale import rate, solve
from neurolsc.surrogate import FastSigmoid

# ---- radii


@pytest.mark.parametrize(("kind", "target"), [(LIF, 0.5), (ALIFPlusMinus, 0.7)])
def test_reaches_the_target_in_one_sweep(kind, target, make_network, make_spikes):
    # inputs as wide as the state: no sub-matrix is drawn; a LIF threshold low enough to fire, a soft surrogate
    soft = {"n_in": 16, "threshold": 0.1, "spike": FastSigmoid(0.5, 0.5)}
    network = make_network(kind, **(soft if kind is LIF else {"n_in": 32}))
    result = scale_to_radius(network, make_spikes(N=network.n_in), target=target, progress=False)
    assert result.converged and not result.findings
    for means in (result.profile.time_mean, result.profile.depth_mean):  # samples and steps are drawn anew
        assert (means - target).abs().max() <= 0.02
    assert (result.profile.firing_rate > 0).all()
    assert result.steps == len(result.history)


@pytest.mark.parametrize(("cell", "target"), [(GRU, 1.0), pytest.param(LSTM, 0.5, marks=pytest.mark.long)])
def test_both_radii_of_gated_cells_are_reached_though_each_scale_moves_both(cell, target, make_spikes):
    torch.manual_seed(1)
    network = Network([cell(24, 24), cell(24, 24)], 3)
    x = make_spikes(T=20, B=16, N=24)
    result = scale_to_radius(network, x, target=target, samples=8, steps=None, progress=False)
    missed = torch.cat((result.profile.time_mean, result.profile.depth_mean)) - target
    assert missed.abs().max() < 0.05, result
    assert result.steps < 45
    if cell is GRU:
        assert network.cells[0].retention.max() < 0.99  # at 1 a closed gate would do through time, and let nothing in


def test_weights_are_multiples_of_the_first_ones_and_decays_too(make_network, make_spikes):
    torch.set_default_dtype(torch.float64)
    network = make_network(n_in=32)
    before = copy.deepcopy(network)
    scale_to_radius(network, make_spikes(N=32), target=0.5, progress=False)
    for old, new in zip(before.cells, network.cells, strict=True):
        factors = {}
        for name in ("w_in", "w_rec", "adaptation", "decay_theta"):
            ratio = (getattr(new, name) / getattr(old, name)).detach()
            torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio))
            factors[name] = ratio.mean().item()
        assert factors["w_rec"] == pytest.approx(factors["adaptation"])
        assert factors["w_rec"] == pytest.approx(factors["decay_theta"])
        assert factors["w_rec"] < 1
        assert torch.equal(new.b_theta, old.b_theta)


def test_a_target_out_of_reach_leaves_the_closest_scale_and_a_finding(make_network, make_spikes, monkeypatch):
    # a silent surrogate and no decay above exp(-1/2): the radius cannot exceed 0.61
    network = make_network(spike=FastSigmoid(dampening=0.0), n_in=32, tau_v=1.0, tau_theta=1.0)
    monkeypatch.setattr(rules, "LONGEST", 2.0)
    result = scale_to_radius(network, make_spikes(N=32), target=0.9, progress=False)
    assert not result.converged
    torch.testing.assert_close(result.profile.time_mean, torch.full((2,), 0.6065), rtol=0, atol=1e-3)
    assert all(p.isfinite().all() for p in network.parameters())
    assert any("due to the leak" in str(finding) for finding in result.findings)


def test_an_integrator_that_is_at_rest_does_not_count_as_dead():
    network = Network([LIF(8, 16, threshold=1e6), LI(16, 3)], torch.nn.Identity())
    result = scale_to_radius(network, (torch.rand(10, 4, 8) < 0.5).double(), progress=False)
    assert [finding.layer for finding in result.findings if "never fires" in str(finding)] == [1]


# ---- firing rates


@pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFLowPass])
def test_reaches_the_rates_and_changes_thresholds_alone(kind, make_network, make_spikes, wanted=(0.02, 0.1)):
    network, x = make_network(kind, gain=2).double(), make_spikes().double()
    before = copy.deepcopy(network.state_dict())
    reached = match_firing_rates(network, x, wanted, tolerance=0.75)
    assert reached == [layer.mean().item() for layer in network.run(x).spikes]
    assert reached == pytest.approx(wanted, abs=0.015)  # in so small a network rates move in jumps
    for name, value in network.state_dict().items():
        changed = not torch.equal(value, before[name])
        assert changed == (name.split(".")[-1] in {"b_theta", "adaptation", "theta"}), name
        if changed:  # the whole threshold by one factor
            ratio = value / before[name]
            torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio))
    assert match_firing_rates(network, x, [0.0, 0.0]) == [0, 0]


def test_a_rate_that_no_threshold_gives_is_an_error_and_changes_nothing_or_the_nearest(make_network, make_spikes):
    network, x = make_network(gain=2), make_spikes()
    before, rest = copy.deepcopy(network.state_dict()), network.cells[1].theta_rest.clone()
    with pytest.raises(ValueError, match=r"layer 2: no scale .* from 0.001 to 1000 gives 0.95 .* was found is 0\.\d+"):
        match_firing_rates(network, x, [0.05, 0.95])
    torch.testing.assert_close(network.state_dict(), before, rtol=1e-6, atol=0)
    reached = match_firing_rates(network, x, [0.05, 0.95], tolerance=math.inf)
    assert 0.05 < reached[1] < 0.9
    torch.testing.assert_close(network.cells[1].theta_rest, rest * 1e-3), "the least scale"


def test_rates_and_cells_that_do_not_fit_are_refused(make_network, make_spikes):
    class Other(LIF):
        def thresholds(self):
            return None

    for bad in ([0.1], [0.1, 1.2], [-0.1, 0.1], [math.nan, 0.1]):
        with pytest.raises(ValueError, match=r"rates must be 2 numbers in \[0, 1\]"):
            match_firing_rates(make_network(), make_spikes(), bad)
    with pytest.raises(TypeError, match="layer 1, a Other, does not say how its thresholds scale"):
        match_firing_rates(Network([Other(30, 4)], 2), make_spikes(), [0.1])


# ---- roots

REACH = math.log(1e4)
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
    found = solve(values.append, lambda: function(values[-1]) + 3, 3.0, reach=REACH, tolerance=1e-9)
    assert values[-1] == pytest.approx(at, abs=3e-4)
    assert found == function(values[-1]) + 3
    assert abs(found - 3) == pytest.approx(min(abs(function(x)) for x in values), abs=1e-9)
    assert len(values) < 40 and all(-REACH <= x <= REACH for x in values)


@pytest.mark.parametrize("slope", [0.7, 1.5, 4.0])
def test_of_a_line_whose_slope_is_about_known_few_values_are_tried(slope):
    values = [0.0]
    solve(
        values.append, lambda: slope * values[-1] + 0.1 * values[-1] ** 2, 3.0, reach=REACH, tolerance=1e-3, slope=1.5
    )
    assert slope * values[-1] + 0.1 * values[-1] ** 2 == pytest.approx(3.0, abs=1e-3)
    assert len(values) <= 9


def test_rates_take_a_handful_of_runs_and_wide_layers_are_searched_on_some_samples(monkeypatch):
    runs = []

    def counted(cell, read):
        runs.append(read.shape[1])
        return rate(cell, read)

    monkeypatch.setattr(scale, "rate", counted)
    torch.manual_seed(0)
    narrow, wide = Network([LIF(40, 200)], 2), Network([LIF(700, 600)], 2)
    for network, batch in ((narrow, 40), (wide, 64)):
        x = (torch.rand(20, batch, network.n_in) < 0.1).float()
        runs.clear()
        (reached,) = match_firing_rates(network, x, [0.15])
        assert reached == pytest.approx(0.15, rel=5e-3)
        assert reached == network.run(x).spikes[0].double().mean().item()
        assert runs.count(batch) <= 11
        assert (min(runs) < batch) == (network is wide)
    assert runs.count(64) <= 4
