"""Determinants of derivatives through time: the paper's lower bound (arXiv:2308.12075, App. D)."""

import json
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from neurolsc import (
    GRU,
    LIF,
    LRU,
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
from neurolsc.neurons import DiagonalRNN
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


@pytest.mark.parametrize("loop", ["neurolsc", "paper", "released"])
def test_a_layer_without_memory_is_refused_by_name(loop):
    torch.manual_seed(0)
    network = Network([GRU(6, 8), FeedForward(8, 8)], n_out=2)
    x = torch.randn(5, 3, 6)
    wanted = r"layer 2 \(FeedForward\) has no memory: its derivative through time is 0, and has no determinant"
    with pytest.raises(TypeError, match=wanted):
        log_determinant_profile(network, x)
    with pytest.raises(TypeError, match=wanted):
        pretrain(network, x, bounds="both", loop=loop, progress=False)


@pytest.mark.parametrize("cell", [LRU, DiagonalRNN])
def test_that_of_a_diagonal_recurrence_is_of_its_memory_alone(cell):
    """Each complex number of it is a rotation by lambda of two real ones, whose determinant is |lambda|^2."""
    torch.manual_seed(0)
    layer = cell(6, 8, n_state=5)
    network = Network([layer], n_out=2)
    found = log_determinant_profile(network, torch.randn(5, 3, 6))
    moduli = layer.modulus.detach()
    assert_close(found.mean, moduli.log().mean(0, keepdim=True).double(), rtol=1e-5, atol=1e-6)
    assert_close(found.radius, torch.full_like(found.radius, moduli.max().item()), rtol=1e-5, atol=0)
    assert found.states == (2 * len(moduli),) and not found.singular.any()


def test_the_eigenvalues_of_an_lru_come_to_the_target():
    torch.manual_seed(0)
    network = Network([LRU(6, 8)], n_out=2)
    x = torch.randn(5, 3, 6)
    assert log_determinant_profile(network, x).mean < -0.2
    result = pretrain(network, x, target=0.9, direction="time", bounds="both", lr=0.05, max_steps=60, progress=False)
    assert abs(log_determinant_profile(network, x).mean - math.log(0.9)) < 0.1, str(result)


@pytest.mark.parametrize("loop", ["neurolsc", "paper", "released"])
@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_is_singular_at_rest_alone(loop, layers):
    """At rest the cell is 0, and its next output is half of it whatever the output gate: 2n states, of rank n."""
    torch.manual_seed(0)
    network = Network([LSTM(10, 12), LSTM(12, 12)][:layers], n_out=2)
    x = torch.randn(10, 8, 10)
    singular = log_determinant_profile(network, x, steps=None).singular
    assert ((singular > 0) & (singular < 0.3)).all()
    result = pretrain(network, x, target=0.5, direction="time", bounds="both", loop=loop, max_steps=15, progress=False)
    rows = [row["log_determinant"] for row in result.history]
    assert all(math.isfinite(value) for row in rows[2:10] for value in row)
    assert all(p.isfinite().all() for p in network.parameters()), "singular points have a gradient of 0, not NaN"
    if loop != "neurolsc":
        assert rows[0] == [None] * layers and result.history[0]["loss"] < 1
    json.dumps(result.history, allow_nan=False)


@pytest.mark.parametrize(("loop", "where"), [("neurolsc", "that were drawn"), ("paper", "of the first batch")])
def test_a_layer_that_is_singular_throughout_is_refused_by_name(loop, where):
    torch.manual_seed(0)
    network = Network([RNN(10, 12, activation="tanh"), RNN(12, 12)], n_out=2)
    before = network.cells[0].w_rec.clone()
    cure = "a ReLU's derivative is 0 where a neuron is inactive: give activation='tanh'"
    wanted = rf"layer 2 \(RNN\) has none: its derivative through time is singular at all points {where}; {cure}"
    with pytest.raises(ValueError, match=wanted):
        pretrain(network, torch.randn(10, 8, 10), bounds="both", loop=loop, progress=False)
    assert torch.equal(network.cells[0].w_rec, before)
    assert "nan" not in str(log_determinant_profile(network, torch.randn(10, 8, 10)))


def test_an_rnn_of_active_neurons_has_a_determinant():
    torch.manual_seed(0)
    network = Network([RNN(4, 5)], n_out=2)
    with torch.no_grad():
        network.cells[0].w_rec.copy_(0.6 * torch.eye(5))
        network.cells[0].w_in.zero_()
        network.cells[0].bias.fill_(1)
    result = pretrain(network, torch.rand(4, 3, 4), direction="time", bounds="both", loop="paper", progress=False)
    assert result.history[0]["log_determinant"][0] == pytest.approx(math.log(0.6), abs=1e-3)


def test_a_run_that_ends_where_a_layer_is_singular_says_so():
    torch.manual_seed(0)
    network = Network([LSTM(10, 12)], n_out=2)
    x = torch.randn(10, 8, 10)
    result = pretrain(network, x, direction="time", bounds="both", loop="paper", max_steps=0, progress=False)
    assert not result.converged
    assert "the derivative through time is singular at all measured points" in str(result)


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
    assert lower_bound_loss(some[1:], 0.5) == 0  # and so they have no mean
    some[1, 0, 0] = -1
    assert_close(lower_bound_loss(some, 0.5), torch.tensor(0.5))  # but negative eigenvalues


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


def test_determinants_that_are_missed_are_those_of_the_weights_that_are_kept():
    torch.manual_seed(1)
    network = Network([GRU(10, 12), GRU(12, 12)], n_out=2)
    x = torch.randn(10, 8, 10)
    result = pretrain(network, x, target=1.0, direction="time", bounds="both", lr=0.3, max_steps=15, progress=False)
    best = min(result.history, key=lambda row: max(abs(mean - 1) for mean in row["time"]))
    assert best is not result.history[-1]
    means = [math.exp(mean) for mean in best["log_determinant"]]
    named = [f.problem.partition(" against")[0].rpartition(" ")[2] for f in result.findings if "geometric" in f.problem]
    assert named == [f"{mean:.3g}" for mean in means]


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
    for options, wanted in (
        ({"gradient": False}, "bounds='both' needs optimizer steps: give gradient=True, got False"),
        (
            {"direction": "depth"},
            "bounds='both' needs a target through time: give direction='both' or 'time', got 'depth'",
        ),
    ):
        with pytest.raises(ValueError, match=wanted):
            PretrainOptions(bounds="both", **options)
    with pytest.raises(ValueError, match=r"needs a target through time: .*, got RadiusTarget\(time=None, depth=0.5\)"):
        pretrain(make_network(), make_spikes(), target=lambda steps, layers: (None, 0.5), bounds="both", progress=False)
    with pytest.raises(ValueError, match="bounds must be one of 'upper', 'both', got 'lower'"):
        PretrainOptions(bounds="lower")
    with pytest.raises(TypeError, match="takes the options"):
        scale_to_radius(make_network(), make_spikes(), bounds="both")


@pytest.mark.parametrize("name", ["steps", "samples"])
def test_steps_and_samples_are_numbers_from_1(name, make_network, make_spikes):
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got {wrong}"):
            log_determinant_profile(make_network(), make_spikes(), **{name: wrong})
    for wrong in (2.5, "3", True):
        with pytest.raises(TypeError, match=f"{name} must be an int"):
            log_determinant_profile(make_network(), make_spikes(), **{name: wrong})
