"""Pre-training by root finding: reaches the target, changes scales alone, stays finite where it cannot."""

import copy

import pytest
import torch

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Criteria, TransitionRule, pretrain
from neurolsc.stability.lsc.scale import _bracket
from neurolsc.surrogate import FastSigmoid


@pytest.mark.parametrize(
    ("kind", "target"), [(LIF, 0.5), (ALIFPlus, 0.5), (ALIFPlus, 0.7), (ALIFPlusMinus, 0.5), (ALIFPlusMinus, 0.7)]
)
def test_reaches_the_target_in_one_sweep(kind, target, make_network, make_spikes):
    # inputs as wide as the state, so that no sub-matrix is drawn; a LIF threshold low enough to fire at these radii
    settings = {"n_in": 16, "threshold": 0.1} if kind is LIF else {"n_in": 32}
    network = make_network(kind, **settings)
    x = make_spikes(N=network.n_in)
    result = pretrain(network, [x], target=target, method="scale", progress=False)
    assert result.converged
    # samples and steps are drawn anew: within the criteria's tolerance
    assert (result.profile.time_mean - target).abs().max() <= 0.02
    assert (result.profile.depth_mean - target).abs().max() <= 0.02
    assert (result.profile.firing_rate > 0).all()
    assert result.steps == len(result.history)
    assert not result.findings


def test_weights_are_multiples_of_the_first_ones_and_decays_too(make_network, make_spikes):
    torch.set_default_dtype(torch.float64)
    network = make_network(n_in=32)
    before = copy.deepcopy(network)
    pretrain(network, [make_spikes(N=32)], target=0.5, method="scale", progress=False)
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
    pretrain(network, [make_spikes()], target=0.5, method="scale", include_input=False, progress=False)
    assert torch.equal(network.cells[0].w_in, before)


def test_a_target_out_of_reach_leaves_the_closest_scale_and_a_finding(make_network, make_spikes):
    # a silent surrogate and no decay above exp(-1/2): the radius cannot exceed 0.61
    network = make_network(spike=FastSigmoid(dampening=0.0), n_in=32)
    settings = {"method": "scale", "rule": TransitionRule(longest=2.0), "progress": False}
    result = pretrain(network, [make_spikes(N=32)], target=0.9, criteria=Criteria(), **settings)
    assert not result.converged
    torch.testing.assert_close(result.profile.time_mean, torch.full((2,), 0.6065), rtol=0, atol=1e-3)
    assert all(p.isfinite().all() for p in network.parameters())
    assert any("held by the leak" in str(finding) for finding in result.findings)


@pytest.mark.parametrize("root", [-9.0, -3.1, -0.01, 0.0, 0.2, 5.0, 9.1])
def test_bracket_holds_a_root_within_its_range(root):
    low, high = _bracket(lambda x: x - root)
    assert low <= root <= high
    assert (low < high) == (root != 0)


@pytest.mark.parametrize("sign", [-1, 1])
def test_bracket_is_empty_without_a_root(sign):
    tried = []
    low, high = _bracket(lambda x: tried.append(x) or sign)
    assert low == high == 0
    assert max(map(abs, tried)) == pytest.approx(9.21, abs=0.01), "up to a factor of 1e4"
