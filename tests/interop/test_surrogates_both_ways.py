"""Our surrogates in snnTorch and norse, and theirs in our cells."""

import math

import pytest
import snntorch as snn
import torch
from norse.torch.functional.threshold import threshold
from snntorch import surrogate as theirs
from torch import nn
from torch.testing import assert_close

from neurolsc import LIF, Network, diagnose, radius_profile, wrap
from neurolsc.stability.conditions import finite_distances, surrogate_fault
from neurolsc.surrogate import Arctan, FastSigmoid, Logistic, Triangular


def derivative(spike, v):
    """The spikes' derivative at each entry of v."""
    v = v.clone().requires_grad_()
    return torch.autograd.grad(spike(v).sum(), v)[0]


def points():
    """From -2 to 2 without 0 and without the corners of any of the shapes."""
    return torch.linspace(-2, 2, 80) + 1e-3


@pytest.mark.parametrize("spike", [FastSigmoid(dampening=0.7, sharpness=1.5), Triangular(dampening=0.7)], ids=str)
def test_g1_ours_go_into_snntorch_as_they_are(spike):
    layer, plain = snn.Leaky(beta=0.9, spike_grad=spike), snn.Leaky(beta=0.9)
    mem, other, fired = torch.zeros(3, 5), torch.zeros(3, 5), 0
    for frame in torch.rand(20, 3, 5):
        at = frame.clone().requires_grad_()
        spk, mem = layer(at, mem.detach())
        other_spk, other = plain(frame, other)
        assert torch.equal(spk, other_spk) and torch.equal(mem, other)
        assert_close(torch.autograd.grad(spk.sum(), at)[0], spike.derivative(mem.detach() - 1))
        fired += spk.sum()
    assert fired > 0


class Straight(nn.Module):
    """A user's own module of one tensor."""

    def forward(self, v):
        return (v > 0).to(v.dtype) + (v - v.detach())


THEIRS = {  # every factory of snnTorch whose result can be called; LSO's raises, triangular's derivative is wrong
    **{name: getattr(theirs, name)() for name in ("straight_through_estimator", "fast_sigmoid", "atan", "heaviside")},
    **{name: getattr(theirs, name)() for name in ("sigmoid", "spike_rate_escape", "SSO", "SFS")},
    "custom_surrogate": theirs.custom_surrogate(lambda x, gradient, spikes: gradient / (1 + x**2)),
    **{m: (lambda x, m=m: threshold(x, m, 2.0)) for m in ("super", "triangle", "tanh", "circ", "heavi_erfc")},  # norse
    "nn.Module": Straight(),
}


@pytest.mark.parametrize("spike", THEIRS.values(), ids=THEIRS)
def test_g1_theirs_go_into_our_cells(spike, make_spikes):
    network = Network([LIF(30, 6, spike=spike, tau_v=5.0)], n_out=2)
    with torch.no_grad():
        network.cells[0].w_in.uniform_(0.1, 0.5)
    run = network.run(make_spikes(T=6, B=2))
    assert set(run.spikes[0].unique().tolist()) == {0.0, 1.0}
    run.logits.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())
    assert radius_profile(network, make_spikes(T=4, B=2)).time.isfinite().all()


def test_g1_a_derivative_that_is_not_finite_is_a_finding_of_its_layer(make_spikes):
    first, second = (snn.Leaky(0.9, spike_grad=spike) for spike in (theirs.atan(), theirs.sigmoid(slope=25)))
    network = wrap([nn.Linear(30, 16), first, nn.Linear(16, 16), second, nn.Linear(16, 4)])
    with torch.no_grad():
        network.cells[1].before[0].weight.mul_(20)  # voltages far below the threshold
    x, labels = make_spikes(T=10, B=4), torch.arange(4)
    distance = -finite_distances(network.cells[1])[0]
    assert derivative(second.spike_grad, torch.tensor(-1.001 * distance)).isnan()
    assert derivative(second.spike_grad, torch.tensor(-0.999 * distance)).isfinite()
    found = diagnose(network, (x, labels), samples=1, steps=2)
    (fault,) = [f for f in found if f.name == "surrogate not finite"]
    assert str(fault).startswith(f"layer 2: the derivative of its surrogate is not finite {distance:.3g} or more below")
    assert all(layer.activity.rate > 0 and 0 < layer.gradient < math.inf for layer in found.measurements.layers)
    second.spike_grad = theirs.atan()
    assert surrogate_fault(network.cells[1], 1) is None


@pytest.mark.parametrize("k", [1.0, 5.0, 25.0])
def test_g3_their_surrogates_in_our_words(k):
    v = points()
    assert_close(derivative(theirs.fast_sigmoid(slope=k), v), FastSigmoid(dampening=1.0, sharpness=k).derivative(v))
    assert_close(derivative(theirs.atan(alpha=k), v), Arctan(dampening=k / 2, sharpness=k).derivative(v))
    assert_close(derivative(theirs.sigmoid(slope=k), v), Logistic(dampening=k, sharpness=k).derivative(v))
    # norse's super has no alpha
    assert_close(derivative(lambda x: threshold(x, "super", k), v), FastSigmoid(dampening=1.0).derivative(v))
    assert_close(derivative(lambda x: threshold(x, "triangle", k), v), Triangular(dampening=k).derivative(v))
