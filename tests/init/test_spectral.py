"""Initialisers by spectra: radii, exponents, singular values, orthogonal matrices."""

import copy

import pytest
import torch

from neurolsc import LIF, Network, TransitionRule, pretrain, scale_to_radius
from neurolsc.init import LSC, LSCLyapunov, LSCSingular, Orthogonal, named
from neurolsc.init.spectral import largest_exponent
from neurolsc.neurons.weights import weight_matrices
from neurolsc.stability.transitions import follow
from neurolsc.surrogate import FastSigmoid
from tests.init.networks import NETWORKS, rates, spikes
from tests.stability.dense import depth_derivative, time_derivative


def test_lsc_is_pre_training_or_scaling_with_the_same_options():
    x = [spikes(20, 4, rate=0.3)]
    for text, function, options in (
        ("LSC(0.7, kappa=False, max_steps=2)", pretrain, {"target": 0.7, "kappa": False, "max_steps": 2}),
        ("LSC(1.0, loop='released', max_steps=2)", pretrain, {"target": 1.0, "loop": "released", "max_steps": 2}),
        ("LSC(0.5, method='scale', samples=2, steps=4)", scale_to_radius, {"target": 0.5, "samples": 2, "steps": 4}),
    ):
        ours, theirs = NETWORKS["LIF"](), NETWORKS["LIF"]()
        found = named(text).apply(ours, x, seed=3)
        result = function(theirs, x[0] if function is scale_to_radius else x, seed=3, progress=False, **options)
        assert found == result.findings
        assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
    with pytest.raises(ValueError, match="shuffle: of the loop, which method='scale' does without"):
        LSC(0.5, method="scale", shuffle=False)


@pytest.mark.parametrize(
    ("name", "exponent"),
    [
        ("LIF", 0.05),
        ("ALIFPlus", 0.0),
        ("norse", 0.0),
    ],
)
def test_the_largest_exponent_is_the_target(exponent, name):
    network, x = NETWORKS[name](), spikes()
    initialiser = LSCLyapunov(exponent)
    found = {f.layer for f in initialiser.apply(network, [x], seed=1)}
    assert 1 not in found
    assert min(rates(network, x)[0:1]) > 0.005
    read = torch.cat([torch.zeros_like(x[:1]), x[:-1]]) if network.layer_delay else x
    measured = largest_exponent(network.cells[0], read, 1)
    assert measured.mean().item() == pytest.approx(exponent, abs=0.03)  # on all samples; it was set on some
    fewer = copy.deepcopy(network.cells[0])
    TransitionRule().apply(fewer, time=0.5, depth=1.0)
    assert largest_exponent(fewer, read, 1).mean() < measured.mean()


def test_a_silent_layer_has_the_exponent_of_its_leak_and_no_recurrence_changes_it():
    network = Network([LIF(40, 8, spike=FastSigmoid(0.0))], 4)
    network.cells[0].tau_v = torch.full((8,), 4.0)
    assert largest_exponent(network.cells[0], spikes(), 0).tolist() == pytest.approx([-0.25] * 8, rel=1e-5)
    (finding,) = LSCLyapunov().apply(network, [spikes()])
    assert "its largest Lyapunov exponent is -0.25, not 0" in str(finding)
    (finding,) = LSCLyapunov(-1.0).apply(network, [spikes()])
    assert "shorten its leaks" in str(finding)


@pytest.mark.parametrize(("name", "target"), [("ALIFPlus", 2.5), ("snntorch", 1.5)])
def test_the_largest_singular_values_are_the_target(name, target):
    network, x = NETWORKS[name](), spikes(20, 4, rate=0.4)
    all_points = LSCSingular(target, samples=4, steps=20)
    assert all_points.apply(network, [x], seed=1) == ()
    assert rates(network, x)[0] > 0.005
    for layer, t in enumerate(follow(network, x, torch.arange(20))[0], start=1):
        for direction, m in (("time", time_derivative(t)), ("depth", depth_derivative(t))):
            mean = torch.linalg.svdvals(m.detach())[:, 0].mean().item()
            assert mean == pytest.approx(target, rel=0.06), (layer, direction)


@pytest.mark.parametrize("name", ["LIF", "snntorch"])
def test_orthogonal_matrices_have_one_singular_value(name):
    network = NETWORKS[name]()
    own, below = (weight_matrices(network.cells[1], way)[0] for way in ("time", "depth"))
    before = below.weights.clone()
    Orthogonal(0.7).apply(network, [])
    assert torch.equal(below.weights, before)
    torch.testing.assert_close(torch.linalg.svdvals(own.weights), torch.full((32,), 0.7), rtol=1e-5, atol=0)
