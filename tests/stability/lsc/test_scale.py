"""Radii set by root finding: reaches the target, changes scales alone, says so where it cannot."""

import copy
import math

import pytest
import torch

from neurolsc import (
    GRU,
    LIF,
    LSTM,
    RNN,
    ALIFPlus,
    ALIFPlusMinus,
    Criteria,
    Network,
    TransitionRule,
    scale_to_radius,
)
from neurolsc.stability.lsc.targets import Along
from neurolsc.surrogate import FastSigmoid


@pytest.mark.parametrize(
    ("kind", "target"), [(LIF, 0.5), (ALIFPlus, 0.5), (ALIFPlus, 0.7), (ALIFPlusMinus, 0.5), (ALIFPlusMinus, 0.7)]
)
def test_reaches_the_target_in_one_sweep(kind, target, make_network, make_spikes):
    # inputs as wide as the state, so that no sub-matrix is drawn; a LIF threshold low enough to
    # fire at these radii
    settings = {"n_in": 16, "threshold": 0.1} if kind is LIF else {"n_in": 32}
    network = make_network(kind, **settings)
    x = make_spikes(N=network.n_in)
    result = scale_to_radius(network, x, target=target, progress=False)
    assert result.converged
    # samples and steps are drawn anew: within the criteria's tolerance
    assert (result.profile.time_mean - target).abs().max() <= 0.02
    assert (result.profile.depth_mean - target).abs().max() <= 0.02
    assert (result.profile.firing_rate > 0).all()
    assert result.steps == len(result.history)
    assert not result.findings


@pytest.mark.parametrize("target", [0.5, 1.0])
@pytest.mark.parametrize("cell", [RNN, GRU, pytest.param(LSTM, marks=pytest.mark.slow)])
def test_both_radii_of_gated_cells_are_reached_though_each_scale_moves_both(cell, target, make_spikes):
    torch.manual_seed(1)
    network = Network([cell(24, 24), cell(24, 24)], 3)
    x = make_spikes(T=30, B=32, N=24)
    result = scale_to_radius(network, x, target=target, samples=8, steps=None, progress=False)
    missed = torch.cat((result.profile.time_mean, result.profile.depth_mean)) - target
    assert missed.abs().max() < 0.05, result
    assert result.steps < 45
    if cell is GRU:
        assert network.cells[0].kept.max() < 0.99  # at 1 a closed gate would do through time, and let nothing in


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


def test_the_input_row_can_be_left_out(make_network, make_spikes):
    network = make_network()
    before = network.cells[0].w_in.detach().clone()
    scale_to_radius(network, make_spikes(), target=0.5, include_input=False, progress=False)
    assert torch.equal(network.cells[0].w_in, before)


@pytest.mark.parametrize(
    ("direction", "moved"), [("time", {"w_rec", "adaptation", "log_tau_theta"}), ("depth", {"w_in"})]
)
def test_one_direction_alone_moves_only_what_answers_for_it(direction, moved, make_network, make_spikes):
    network = make_network(n_in=32)
    before = copy.deepcopy(network)
    result = scale_to_radius(network, make_spikes(N=32), target=Along(0.5, direction), progress=False)
    assert result.converged
    means = getattr(result.profile, f"{direction}_mean")
    assert (means - 0.5).abs().max() <= 0.02
    assert str(result).count(f"target: {direction} 0.5\n") == 1
    for old, new in zip(before.cells, network.cells, strict=True):
        named = dict(new.named_parameters())
        changed = {name for name, value in old.named_parameters() if not torch.equal(value, named[name])}
        assert changed - {"log_tau_v"} == moved


def test_a_target_out_of_reach_leaves_the_closest_scale_and_a_finding(make_network, make_spikes):
    # a silent surrogate and no decay above exp(-1/2): the radius cannot exceed 0.61
    network = make_network(spike=FastSigmoid(dampening=0.0), n_in=32)
    settings = {"rule": TransitionRule(longest=2.0), "progress": False}
    result = scale_to_radius(network, make_spikes(N=32), target=0.9, criteria=Criteria(), **settings)
    assert not result.converged
    torch.testing.assert_close(result.profile.time_mean, torch.full((2,), 0.6065), rtol=0, atol=1e-3)
    assert all(p.isfinite().all() for p in network.parameters())
    assert any("held by the leak" in str(finding) for finding in result.findings)


def test_scales_that_miss_on_fresh_samples_are_no_success(make_network, make_spikes):
    # all on one sample, and the others fire at another rate
    x = torch.cat([make_spikes(T=20, B=2, N=32, rate=0.02), make_spikes(T=20, B=6, N=32, rate=0.6)], 1)
    chosen = torch.randperm(8, generator=torch.Generator().manual_seed(0))[:2]
    x = torch.cat([make_spikes(T=20, B=8, N=32, rate=0.6)])
    x[:, chosen] = make_spikes(T=20, B=2, N=32, rate=0.02)
    result = scale_to_radius(make_network(n_in=32), x, target=0.5, samples=1, progress=False)
    assert result.points == (20, 2)  # of the 6 others: two are enough to see it
    assert not result.converged
    assert any("against a target of 0.5" in finding.problem for finding in result.findings)


def test_a_dead_layer_is_never_converged(make_network, make_spikes):
    network = make_network(n_in=32)
    network.cells[1].theta_rest = 1000.0
    criteria = Criteria(tolerance=math.inf, deviation=None)
    result = scale_to_radius(network, make_spikes(N=32), target=0.5, criteria=criteria, progress=False)
    assert not result.converged
    assert [f.problem for f in result.findings] == ["never fires"]


def test_what_does_not_fit_is_refused(make_network, make_spikes):
    x = make_spikes()
    with pytest.raises(TypeError, match=r"network must be a neurolsc.Network, got LSTM: give neurolsc.wrap\(module\)"):
        scale_to_radius(torch.nn.LSTM(30, 4), x)
    with pytest.raises(TypeError, match=r"a batch must be an input .* got int"):
        scale_to_radius(make_network(), 3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'shuffle'"):
        scale_to_radius(make_network(), x, shuffle=False)
    with pytest.raises(ValueError, match=r"x must have shape \(T, B, 30\)"):
        scale_to_radius(make_network(), x[..., :29], progress=False)
