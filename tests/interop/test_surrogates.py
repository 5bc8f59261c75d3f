"""G1: surrogates of snnTorch in our cells, and ours in snnTorch's layers."""

import pytest
import snntorch as snn
import torch
from snntorch import surrogate as theirs

from neurolsc import LIF, Network, radius_profile, surrogate, wrap
from neurolsc.stability.measure import time_radius
from neurolsc.stability.transition import follow, time_derivative

THEIRS = {
    "atan": theirs.atan(2.0),
    "fast_sigmoid": theirs.fast_sigmoid(25),
    "sigmoid": theirs.sigmoid(2),  # a steeper one overflows to NaN in its own backward
    "spike_rate_escape": theirs.spike_rate_escape(),
    "straight_through": theirs.straight_through_estimator(),
    "triangular": theirs.triangular(),
    "sparse_fast_sigmoid": theirs.SFS(25, B=1),
    "module": torch.nn.Sequential(surrogate.FastSigmoid()),
}


@pytest.mark.parametrize("name", THEIRS)
def test_g1_surrogates_of_snntorch_work_in_our_cells(name):
    spike = THEIRS[name]
    network, x = Network([LIF(7, 5, spike=spike, tau_v=2.0)], 3), 10 * torch.rand(8, 3, 7)
    cell = network.cells[0]
    t = follow(network, x, torch.tensor([5]))[0][0]
    v = (t.before.v - cell.theta).requires_grad_()
    (s,) = torch.autograd.grad(spike(v).sum(), v)
    expected = torch.diag(cell.decay_v) + cell.w_rec * s.unsqueeze(1)
    torch.testing.assert_close(time_derivative(t), expected)
    assert network.run(x).spikes[0].any()
    time_radius(t, 0).radius.sum().backward()  # pre-training differentiates the derivative again
    assert cell.w_rec.grad.isfinite().all()


def test_g1_our_surrogates_work_in_snntorch_layers_in_every_dtype():
    spike = surrogate.FastSigmoid(dampening=0.5)
    for dtype in (torch.float32, torch.float64):
        layer = snn.Leaky(0.9, spike_grad=spike).to(dtype)
        network = wrap([torch.nn.Linear(7, 5, dtype=dtype), layer])
        x = 10 * torch.rand(8, 3, 7, dtype=dtype)
        assert network.run(x).spikes[0].dtype == dtype
        assert network.run(x).spikes[0].any()
        torch.testing.assert_close(radius_profile(network, x).time.flatten(), torch.full((24,), 0.9, dtype=dtype))
