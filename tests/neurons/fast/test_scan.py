"""The kernels for other libraries' neurons: derivatives of spikes, sums of rows, threads, and what they refuse."""

import math
import multiprocessing
import warnings
from collections.abc import Callable

import pytest
import snntorch.surrogate as theirs
import torch
from norse.torch.functional.threshold import threshold
from spikingjelly.activation_based import surrogate as jelly
from torch import Tensor

from neurolsc.interop.fused import FAST_SIGMOID, GIVEN, SIGN, Slope, slope_of
from neurolsc.neurons.fast import scan as scans
from neurolsc.neurons.fast.scan import Neuron, can_scan, linear, scan

LEAKY = Neuron("leaky", 1, 0, 1, (0, True), False)


def slope_at(slope: Slope, distances: Tensor) -> Tensor:
    """The derivative of spikes that the kernels take, by one step from such voltages at threshold 0."""
    x = distances.clone().requires_grad_()
    zero = torch.zeros(())
    z = scan(LEAKY, x[None], 1, [torch.zeros_like(x)], [zero, zero, zero + 1], slope).z
    return torch.autograd.grad(z.sum(), x)[0]


@pytest.mark.parametrize(
    "spike",
    [
        theirs.atan(2.5),
        theirs.fast_sigmoid(10),
        theirs.sigmoid(7),
        theirs.triangular(2),
        theirs.straight_through_estimator(),
        theirs.spike_rate_escape(1, 5),
        jelly.ATan(3.0),
        jelly.Sigmoid(4.0),
        jelly.PiecewiseQuadratic(1.5),
        jelly.PiecewiseExp(2.0),
        jelly.SoftSign(2.0),
        jelly.Erf(2.0),
    ],
    ids=lambda spike: getattr(spike, "__qualname__", type(spike).__name__).split(".")[0],
)
def test_derivatives_are_those_of_the_library(float64: None, spike: Callable[[Tensor], Tensor]):
    distances = torch.cat([torch.linspace(-3, 3, 401), torch.zeros(1)])  # at the threshold, too
    x = distances.clone().requires_grad_()
    wanted = torch.autograd.grad(spike(x).sum(), x)[0]
    slope = slope_of(spike)
    assert slope is not None
    torch.testing.assert_close(slope_at(slope, distances), wanted, rtol=1e-12, atol=1e-14)


def test_norses_super_spike_has_no_width(float64: None):
    x = torch.linspace(-3, 3, 401).requires_grad_()
    wanted = torch.autograd.grad(threshold(x, "super", 100.0).sum(), x)[0]
    torch.testing.assert_close(slope_at(Slope(FAST_SIGMOID, 1.0), x.detach()), wanted, rtol=1e-12, atol=0)


def test_a_sigmoid_far_from_threshold_has_a_derivative_of_zero_where_snntorchs_is_nan():
    far = torch.tensor([-40.0, 40.0])
    assert slope_at(slope_of(theirs.sigmoid(25)), far).tolist() == [0, 0]  # type: ignore[arg-type]


def test_random_and_unknown_surrogates_have_no_known_derivative():
    for spike in (theirs.SSO(), torch.sigmoid, jelly.ATan(spiking=False), object()):
        assert slope_of(spike) is None
    assert slope_of(theirs.triangular(2)) == Slope(SIGN, 2.0)


@pytest.mark.parametrize("density", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_map_of_spikes_is_the_dense_product(float64: None, density: float, bias: bool):
    spikes = (torch.rand(10, 30, 40) < density).double().requires_grad_()
    layer = torch.nn.Linear(40, 50, bias=bias)
    assert spikes.numel() > scans.LEAST_ENTRIES and layer.out_features >= scans.LEAST_ROW
    random = torch.randn(10, 30, 50)
    inputs = [spikes, *layer.parameters()]
    ours = torch.autograd.grad((linear(spikes, layer.weight, layer.bias) * random).sum(), inputs)
    wanted = torch.autograd.grad((layer(spikes) * random).sum(), inputs)
    torch.testing.assert_close(linear(spikes, layer.weight, layer.bias), layer(spikes))
    torch.testing.assert_close(ours, wanted)


def test_weights_that_are_not_finite_reach_where_no_spike_is():
    weight = torch.full((40, 300), math.inf)
    assert linear(torch.zeros(100, 300), weight).isnan().all()


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch):
    x = torch.rand(20, 4, 300)
    wanted = scan(LEAKY, x, 20, [torch.zeros(())], [torch.full((), 0.9), torch.ones(()), torch.ones(())], Slope(GIVEN))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(scans, "PER_THREAD", 1)
    came = scan(LEAKY, x, 20, [torch.zeros(())], [torch.full((), 0.9), torch.ones(()), torch.ones(())], Slope(GIVEN))
    assert torch.equal(came.z, wanted.z) and torch.equal(came.states[0], wanted.states[0])


def test_a_process_that_is_forked_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(scans, "PER_THREAD", 1)
    x = 2 * torch.rand(20, 4, 300)
    params = [torch.full((), 0.9), torch.ones(()), torch.ones(())]
    spikes = scan(LEAKY, x, 20, [torch.zeros(())], params, Slope(GIVEN)).z
    assert spikes.any()
    fork = multiprocessing.get_context("fork")
    there = fork.Queue()

    def scan_there():
        there.put(scan(LEAKY, x, 20, [torch.zeros(())], params, Slope(GIVEN)).z.sum().item())

    child = fork.Process(target=scan_there)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads are there at the fork: that is the point
        child.start()
    try:
        assert there.get(timeout=30) == spikes.sum().item()
    finally:
        child.kill()
        child.join()


def test_other_dtypes_and_devices_are_not_scanned():
    assert can_scan([torch.zeros(3)]) and can_scan([torch.zeros(3, dtype=torch.float64)])
    assert not can_scan([torch.zeros(3, dtype=torch.bfloat16)])
    assert not can_scan([torch.zeros(3), torch.zeros(3, device="meta")])
