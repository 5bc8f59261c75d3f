"""Our surrogates in snnTorch and norse, and theirs in our cells."""

import math

import pytest
import snntorch as snn
import torch
from norse.torch.functional.threshold import threshold
from norse.torch.module.snn import SNNCell
from snntorch import surrogate as theirs
from torch import nn
from torch.func import jacfwd, jacrev, vjp, vmap
from torch.testing import assert_close

from neurolsc import LIF, ALIFPlus, Network, diagnose, radius_profile, train, wrap
from neurolsc.stability.findings import finite_distances, surrogate_fault
from neurolsc.surrogate import (
    Arctan,
    Exponential,
    FastSigmoid,
    Gaussian,
    Logistic,
    MultiGaussian,
    Rectangular,
    Surrogate,
    Triangular,
)

OURS = [
    kind(dampening=0.7, sharpness=1.5)
    for kind in (Arctan, Exponential, FastSigmoid, Gaussian, Logistic, MultiGaussian, Rectangular, Triangular)
]
SNNTORCH = {  # every factory of snnTorch whose result can be called; LSO's raises, triangular's derivative is wrong
    "straight_through_estimator": theirs.straight_through_estimator(),
    "fast_sigmoid": theirs.fast_sigmoid(slope=5),
    "atan": theirs.atan(alpha=2.0),
    "heaviside": theirs.heaviside(),
    "sigmoid": theirs.sigmoid(slope=5),
    "spike_rate_escape": theirs.spike_rate_escape(beta=1, slope=5),
    "custom_surrogate": theirs.custom_surrogate(lambda x, gradient, spikes: gradient / (1 + x**2)),
    "SSO": theirs.SSO(mean=0, variance=0.2),
    "SFS": theirs.SFS(slope=5, B=1),
}
NORSE = ["super", "triangle", "tanh", "circ", "heavi_erfc"]
every_one_of_ours = pytest.mark.parametrize("spike", OURS, ids=lambda s: type(s).__name__)


@pytest.fixture(autouse=True)
def empty_registry():
    """I4: snnTorch keeps every layer that was ever made."""
    snn.SpikingNeuron.instances.clear()
    yield
    snn.SpikingNeuron.instances.clear()


def derivative(spike, v):
    """The derivative that a spike is given at each entry of v."""
    v = v.clone().requires_grad_()
    return torch.autograd.grad(spike(v).sum(), v)[0]


def points(steps=80):
    """From -2 to 2 without 0 and without the corners of any of the shapes."""
    return torch.linspace(-2, 2, steps) + 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@every_one_of_ours
def test_g1_ours_give_spikes_of_the_same_dtype_and_none_at_zero(spike, dtype):
    v = torch.tensor([-1.0, 0.0, 1e-3, 1.0], dtype=dtype)
    assert spike(v).dtype == dtype
    assert spike(v).tolist() == [0, 0, 1, 1]


@every_one_of_ours
def test_g1_ours_go_into_snntorch_as_they_are(spike):
    layer, plain = snn.Leaky(beta=0.9, spike_grad=spike), snn.Leaky(beta=0.9)
    x, mem, other = torch.rand(20, 3, 5), torch.zeros(3, 5), torch.zeros(3, 5)
    fired = 0
    for frame in x:
        before = mem.detach()
        at = frame.clone().requires_grad_()
        spk, mem = layer(at, before)
        other_spk, other = plain(frame, other)
        assert torch.equal(spk, other_spk) and torch.equal(mem, other)
        assert_close(torch.autograd.grad(spk.sum(), at)[0], spike.derivative(mem.detach() - 1))
        fired += spk.sum()
    assert fired > 0


class Straight(nn.Module):
    """A user's own module of one tensor."""

    def forward(self, v):
        return (v > 0).to(v.dtype) + (v - v.detach())


THEIRS = [pytest.param(spike, id=f"snntorch {name}") for name, spike in SNNTORCH.items()] + [
    *(pytest.param(lambda x, m=method: threshold(x, m, 2.0), id=f"norse {method}") for method in NORSE),
    pytest.param(Straight(), id="nn.Module"),
]


@pytest.fixture
def overflows():
    """Two layers of snnTorch whose second has its sigmoid, whose voltages go far below."""
    torch.manual_seed(0)
    first, second = (snn.Leaky(0.9, spike_grad=spike) for spike in (theirs.atan(), theirs.sigmoid(slope=25)))
    network = wrap([nn.Linear(30, 16), first, nn.Linear(16, 16), second, nn.Linear(16, 4)])
    with torch.no_grad():
        network.cells[1].before[0].weight.mul_(20)
    return network


def test_g1_a_derivative_that_is_not_finite_is_a_finding_of_its_layer(overflows, make_spikes):
    x, labels = make_spikes(T=10, B=4), torch.arange(4)
    spike = overflows.cells[1].layer.spike_grad
    distance = -finite_distances(overflows.cells[1])[0]
    assert derivative(spike, torch.tensor(-1.001 * distance)).isnan()
    assert derivative(spike, torch.tensor(-0.999 * distance)).isfinite()
    found = diagnose(overflows, (x, labels), samples=1, steps=2)
    (fault,) = [f for f in found if f.name == "surrogate not finite"]
    assert str(fault).startswith(f"layer 2: the derivative of its surrogate is not finite {distance:.3g} or more below")
    assert fault.cure == "use fast_sigmoid or atan"
    assert all(layer.activity.rate > 0 and 0 < layer.gradient < math.inf for layer in found.measurements.layers)
    items = list(zip(x.unbind(1), labels, strict=True))
    with pytest.raises(FloatingPointError, match=r"see what neurolsc\.diagnose finds"):
        train(overflows, items, items, epochs=2, progress=False)
    overflows.cells[1].layer.spike_grad = theirs.atan()
    assert surrogate_fault(overflows.cells[1], 1) is None


@pytest.mark.parametrize("cell", [LIF, ALIFPlus])
@pytest.mark.parametrize("spike", THEIRS)
def test_g1_theirs_go_into_our_cells(spike, cell, make_spikes):
    network = Network([cell(30, 6, spike=spike, tau_v=5.0)], n_out=2)
    with torch.no_grad():
        network.cells[0].w_in.uniform_(0.1, 0.5)
    run = network.run(make_spikes(T=6, B=2))
    assert run.spikes[0].sum() > 0
    assert set(run.spikes[0].unique().tolist()) <= {0.0, 1.0}
    run.logits.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())
    profile = radius_profile(network, make_spikes(T=4, B=2))
    assert all(math.isfinite(mean) for mean in profile.time_mean)


@every_one_of_ours
def test_g2_every_way_to_differentiate_gives_the_same_derivative(spike, float64):
    v = points()
    closed = spike.derivative(v)
    assert_close(derivative(spike, v), closed)
    assert_close(vjp(spike, v)[1](torch.ones_like(v))[0], closed)
    assert_close(jacrev(spike)(v), closed.diag())
    assert_close(jacfwd(spike)(v), closed.diag())
    assert_close(vmap(jacrev(spike))(v), closed)
    assert torch.equal(vmap(spike)(v.view(4, -1)), spike(v.view(4, -1)))
    at = v.clone().requires_grad_()
    (batched,) = torch.autograd.grad(spike(at), at, torch.eye(len(v)), is_grads_batched=True)
    assert_close(batched, closed.diag())


@every_one_of_ours
def test_g2_the_second_derivative_is_that_of_the_formula(spike, float64):
    def first(x):
        at = x if x.requires_grad else x.clone().requires_grad_()
        return torch.autograd.grad(spike(at).sum(), at, create_graph=True)[0]

    v = points().requires_grad_()
    (second,) = torch.autograd.grad((first(v) + 0 * v).sum(), v)  # a constant one has no graph
    step = 1e-6
    with torch.no_grad():
        numeric = (spike.derivative(v + step) - spike.derivative(v - step)) / (2 * step)
    assert_close(second, numeric, rtol=1e-5, atol=1e-7)  # of the finite difference
    assert_close(jacrev(jacrev(lambda x: spike(x).sum()))(v.detach()), second.diag())
    assert_close(jacfwd(jacrev(lambda x: spike(x).sum()))(v.detach()), second.diag())


@pytest.mark.parametrize("k", [1.0, 5.0, 25.0])
def test_g3_snntorchs_surrogates_in_our_words(k):
    v = points()
    assert_close(derivative(theirs.fast_sigmoid(slope=k), v), FastSigmoid(dampening=1.0, sharpness=k).derivative(v))
    assert_close(derivative(theirs.atan(alpha=k), v), Arctan(dampening=k / 2, sharpness=k).derivative(v))
    assert_close(derivative(theirs.sigmoid(slope=k), v), Logistic(dampening=k, sharpness=k).derivative(v))
    at_threshold = torch.zeros(1)
    assert_close(derivative(theirs.atan(alpha=k), at_threshold).item(), k / 2)
    assert_close(derivative(theirs.sigmoid(slope=k), at_threshold).item(), k / 4)


@pytest.mark.parametrize("alpha", [1.0, 100.0])
def test_g3_norses_super_spike_has_no_alpha(alpha):
    v = points()
    assert_close(derivative(lambda x: threshold(x, "super", alpha), v), (1 + v.abs()) ** -2)
    assert_close(derivative(lambda x: threshold(x, "super", alpha), v), FastSigmoid(dampening=1.0).derivative(v))
    by_hand = alpha * (1 - v.abs()).clamp(min=0)
    assert_close(derivative(lambda x: threshold(x, "triangle", alpha), v), by_hand)
    assert_close(Triangular(dampening=alpha).derivative(v), by_hand)


@every_one_of_ours
def test_g3_ours_go_into_norse_by_an_own_step(spike: Surrogate):
    """norse names its surrogates by strings; a step of one's own takes any."""

    def step(x, state, p, dt):
        v = state + dt * p * (x - state)
        z = spike(v - 1)
        return z, v - z.detach()

    cell = SNNCell(step, lambda x: torch.zeros_like(x), p=torch.tensor(100.0))
    x = 30 * torch.rand(2, 5)
    at = x.clone().requires_grad_()
    z, _ = cell(at)
    v = 0.1 * x
    assert z.sum() > 0
    assert torch.equal(z, (v > 1).float())
    assert_close(torch.autograd.grad(z.sum(), at)[0], 0.1 * spike.derivative(v - 1))
