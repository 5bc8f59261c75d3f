"""Findings: what is wrong with a network before training, by name."""

import dataclasses

import pytest
import torch

from neurolsc import LIF, ALIFPlus, Network, diagnose, pretrain, radius_profile
from neurolsc.stability.findings import held_by, missed_targets, wide_spread
from neurolsc.surrogate import FastSigmoid

pytestmark = pytest.mark.usefixtures("float64")


def problems(network: Network, x: torch.Tensor) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for finding in diagnose(network, x):
        found.setdefault(finding.layer, []).append(finding.problem)
        assert finding.cure
        assert str(finding) == f"layer {finding.layer}: {finding.problem}; {finding.cure}."
    return found


def test_a_pretrained_network_has_no_findings(make_network, make_spikes):
    # 0.48 and 0.48: below the sum of 1 in every sample of steps
    network, x = make_network(), make_spikes()
    assert pretrain(network, [x], target=0.48, progress=False).converged
    assert problems(network, x) == {}


def test_a_dead_layer_is_named(make_network, make_spikes):
    network = make_network(gain=2)
    network.cells[1].theta_rest = 1e3
    found = problems(network, make_spikes())
    assert "never fires" in found[2]
    assert "never fires" not in found.get(1, [])


def test_a_layer_that_always_fires_is_named(make_spikes):
    cell = LIF(30, 8, threshold=1e-3, reset="zero")
    with torch.no_grad():
        cell.w_in.abs_()
        cell.w_rec.abs_()
    found = problems(Network([cell], 2), make_spikes(rate=0.9))
    assert any(p.startswith("fires 0.9") or p.startswith("fires 1.0") for p in found[1])


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("feedback", {"adaptation": 50.0}),
        ("reset", {"reset_gradient": True, "spike": FastSigmoid(sharpness=1e-3), "b_theta": 1.0}),
    ],
)
def test_a_radius_above_one_is_named_with_what_holds_it(source, settings, make_network, make_spikes):
    found = problems(make_network(**settings), make_spikes())
    for layer in (1, 2):
        (problem,) = [p for p in found[layer] if "above 1" in p]
        assert problem.endswith(f"through time, above 1, held by the {source}")


def test_the_source_named_is_that_of_most_points(make_network, make_spikes):
    profile = radius_profile(make_network(), make_spikes(T=2))
    shares = ({"feedback": 0.3, "leak": 0.6, "reset": 0.1}, {})
    profile = dataclasses.replace(profile, sources=shares)
    assert held_by(profile, 0).name == "leak"
    assert held_by(profile, 1).name == "unknown"
    first, second = missed_targets(profile, [(0, "time", 0.9, 0.5), (1, "depth", 0.1, 0.5)], ([0.01, 0.0], [0.0, 0.0]))
    held = "held by the leak at 60% of the points"
    assert first.problem == f"radius 0.900 ± 0.010 through time against a target of 0.5, {held}"
    assert second.cure.startswith("scale w_in up")


def test_the_widest_spread_is_named_without_a_first_layer_that_does_not_count(make_network, make_spikes):
    profile = radius_profile(make_network(), make_spikes(T=2))
    time, depth = torch.ones_like(profile.time), torch.ones_like(profile.depth)
    depth[0, 0], time[1, 0] = 9.0, 3.0
    profile = dataclasses.replace(profile, time=time, depth=depth)
    assert str(wide_spread(profile)).startswith("layer 1: mean radii are on target, but those through depth")
    without = wide_spread(profile, include_input=False)
    assert str(without).startswith("layer 2: mean radii are on target, but those through time")


def test_a_sum_above_one_and_a_vanishing_one_are_named(make_spikes):
    growing = ALIFPlus(16, 8, spike=FastSigmoid(dampening=0.0))  # leaks of 0.99 and the input's radius
    (problem,) = problems(Network([growing], 2), make_spikes(N=16))[1]
    assert "sum to more than 1" in problem
    vanishing = LIF(8, 8, spike=FastSigmoid(dampening=0.0))
    with torch.no_grad():
        vanishing.w_in.mul_(1e-3)
    found = problems(Network([vanishing], 2), make_spikes(N=8))[1]
    assert "never fires" in found
    assert "radii 0.00 through time and 0.00 through depth" in found
