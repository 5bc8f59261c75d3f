"""Determinants of derivatives through time: the paper's lower bound (arXiv:2308.12075, App. D)."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from neurolsc import (
    GRU,
    LIF,
    LSTM,
    RNN,
    ALIFPlus,
    FeedForward,
    Network,
    pretrain,
    radius_profile,
    scale_to_radius,
    wrap,
)
from neurolsc.stability import PretrainOptions, log_determinant_profile
from neurolsc.stability.determinants import log_determinants, lower_bound_loss, time_matrices
from neurolsc.stability.transitions import follow
from tests.stability.dense import time_derivative_by_autograd


@pytest.mark.parametrize("cell", [LIF, ALIFPlus, GRU, LSTM])
def test_they_are_those_of_dense_derivatives(cell, float64, make_network, make_spikes):
    network, x = make_network(cell, gain=3), make_spikes(T=6, B=3)
    found = log_determinant_profile(network, x, steps=None)
    radii = radius_profile(network, x, steps=6, method="exact")
    for layer, t in enumerate(follow(network, x, torch.arange(6))[0]):
        dense = time_derivative_by_autograd(t)
        wanted = torch.linalg.det(dense).abs().log() / dense.shape[1]
        assert_close(found.log_determinant[layer].flatten(), wanted)
        assert found.states[layer] == dense.shape[1]
    assert_close(found.radius, radii.time.double())


def test_those_of_another_library_and_without_a_surrogate_are_the_leaks(make_spikes):
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    spike = snn.surrogate.straight_through_estimator()
    alone = wrap([nn.Linear(30, 8), snn.Leaky(0.8, spike_grad=spike), nn.Linear(8, 4)])
    found = log_determinant_profile(alone, make_spikes())
    assert_close(found.mean, torch.tensor([math.log(0.8)], dtype=torch.float64))
    assert "+" not in str(found) and "0.800" in str(found)


def test_a_layer_without_memory_is_singular(make_network, make_spikes):
    network, x = make_network(FeedForward), make_spikes()
    found = log_determinant_profile(network, x)
    assert found.singular.tolist() == [1, 1] and found.mean.isnan().all()
    assert found.to_dict()["mean"] == [None, None]
    with pytest.raises(ValueError, match="singular at all points"):
        pretrain(network, x, bounds="both", progress=False)


def test_the_determinant_is_multiplicative_and_of_semi_definite_matrices_super_additive(float64):
    """Theorem 6: only there it may serve as an anti-norm; for all matrices it does not."""
    torch.manual_seed(0)
    a, b = torch.randn(2, 50, 4, 4)
    assert_close(log_determinants(a @ b), log_determinants(a) + log_determinants(b))
    a, b = a @ a.mT, b @ b.mT
    assert (torch.linalg.det(a + b) >= torch.linalg.det(a) + torch.linalg.det(b)).all()
    minus = torch.diag(torch.tensor([1.0, -1.0]))
    assert torch.linalg.det(minus - minus) > 2 * torch.linalg.det(minus)  # 0 > -2: it holds by chance
    assert torch.linalg.det(torch.eye(2) - torch.eye(2)) < 2 * torch.linalg.det(torch.eye(2))


def test_the_loss_is_zero_on_target_and_counts_negative_eigenvalues(float64):
    on_target = 0.5 * torch.eye(3).expand(2, 3, 3)
    assert lower_bound_loss(on_target, 0.5) == 0
    assert_close(lower_bound_loss(on_target, 1.0), torch.tensor(math.log(2) ** 2))
    turned = torch.diag(torch.tensor([1.0, -1.0]))[None]
    assert_close(lower_bound_loss(turned, 1.0), torch.tensor(1.0))  # |det| is on target, the eigenvalue -1 is not
    some = torch.stack([0.5 * torch.eye(2), torch.zeros(2, 2)])
    assert lower_bound_loss(some, 0.5) == 0  # a singular one has no logarithm


def test_its_gradient_reaches_the_parameters(float64, make_network, make_spikes):
    network = make_network(GRU)
    (first, _), _ = follow(network, make_spikes(T=4), torch.arange(4))
    lower_bound_loss(time_matrices(first), 1.0).backward()
    assert network.cells[0].w_rec.grad.any()


def test_both_bounds_are_stabilised_at_once():
    """A linear rotation of radius 0.7 has all eigenvalues on one circle, so that both are reached together."""
    torch.manual_seed(0)
    network = Network([RNN(6, 8, activation="tanh")], n_out=2)
    with torch.no_grad():
        network.cells[0].w_rec.copy_(0.7 * torch.eye(8))
        network.cells[0].w_in.mul_(0.01)
        network.cells[0].bias.zero_()
    x = torch.randn(10, 4, 6)
    result = pretrain(network, x, target=1.0, direction="time", bounds="both", progress=False)
    assert result.converged, str(result)
    assert log_determinant_profile(network, x).mean.abs().max() < 0.1
    assert abs(result.history[0]["log_determinant"][0] - math.log(0.7)) < 0.05


def test_what_is_missed_is_named_and_the_mean_comes_nearer():
    torch.manual_seed(0)
    network = Network([GRU(10, 12), GRU(12, 12)], n_out=2)
    x = torch.randn(10, 8, 10)
    before = log_determinant_profile(network, x).mean
    result = pretrain(network, x, target=1.0, direction="time", bounds="both", max_steps=15, progress=False)
    after = log_determinant_profile(network, x).mean
    assert (before < after).all() and (after < -0.1).any()
    assert not result.converged
    worst = int(after.argmin()) + 1
    assert [f for f in result.findings if f.layer == worst and "geometric mean of |eigenvalues|" in f.problem]
    assert "log_determinant" not in pretrain(network, x, max_steps=1, progress=False).history[0]


def test_options_that_contradict_it_are_refused(make_network, make_spikes):
    for options in ({"gradient": False}, {"direction": "depth"}):
        with pytest.raises(ValueError, match="bounds='both' needs gradient=True and a target through time"):
            PretrainOptions(bounds="both", **options)
    with pytest.raises(ValueError, match="bounds must be one of 'upper', 'both', got 'lower'"):
        PretrainOptions(bounds="lower")
    with pytest.raises(TypeError, match="takes the options"):
        scale_to_radius(make_network(), make_spikes(), bounds="both")
