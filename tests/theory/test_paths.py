"""Paths counted by walking them, the sums of Lemma 2 and Theorems 1 and 3, the PascalRNN; covariances as scipy's."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

from neurolsc import Network, radius_profile
from neurolsc.stability import lyapunov_exponents, singular_values
from neurolsc.theory import PascalRNN, covariance_decay, log_input_derivatives, log_path_sums, log_paths

pytestmark = pytest.mark.usefixtures("float64")
both = pytest.mark.parametrize("layer_delay", [0, 1])
T, L = 60, 10


def walk(steps: int, layers: int, layer_delay: int, time: float = 1, depth: float = 1) -> float:
    """The sum over all paths, one after the other, of the products of their arrows."""
    total, open_ends = 0.0, [(steps, layers, 1.0)]
    while open_ends:
        n, k, product = open_ends.pop()
        total += product * (n == k == 0)
        open_ends += [(n - 1, k, product * time)] * (n > 0)
        open_ends += [(n - layer_delay, k - 1, product * depth)] * (k > 0 and n >= layer_delay)
    return total


@both
def test_logarithms_are_those_of_the_exact_counts_up_to_ten_thousand(layer_delay):
    n, k = torch.tensor([0, 1, 5, 100, 9999, 10_000]), torch.tensor([[0], [1], [7], [5000], [10_000]])
    found = log_paths(n, k, layer_delay=layer_delay)
    exact = [[math.comb(a if layer_delay else a + b, b) for a in n.tolist()] for b in k.flatten().tolist()]
    wanted = torch.tensor([[math.log(c) if c else -math.inf for c in row] for row in exact], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


@both
@pytest.mark.parametrize(("time", "depth"), [(1.0, 1.0), (0.9, 0.2), (1.0, 0.0), (0.0, 0.7)])
def test_a_derivative_is_the_sum_over_all_paths_of_their_products(time, depth, layer_delay):
    for layers in range(6):
        found = log_paths(torch.arange(7), layers, time=time, depth=depth, layer_delay=layer_delay).exp()
        wanted = [walk(steps, layers, layer_delay, time, depth) for steps in range(7)]
        torch.testing.assert_close(found, torch.tensor(wanted))


@both
def test_lemma_2_is_the_sum_over_all_steps_pairs_and_walks(layer_delay):
    for layers in range(5):
        sums = log_path_sums(6, layers, layer_delay=layer_delay).exp()
        for steps in range(1, 7):
            wanted = sum(walk(t - s, layers, layer_delay) for t in range(steps + 1) for s in range(t + 1))
            lemma = math.comb(steps + 2, layers + 2) if layer_delay else math.comb(steps + layers + 2, steps)
            assert lemma == wanted
            assert sums[steps - 1].item() == pytest.approx(wanted / steps, rel=1e-12)


@both
@pytest.mark.parametrize("time", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("layers", [1, 10])
def test_with_the_sum_one_the_sum_is_below_the_linear_bound_and_tends_to_a_constant(time, layers, layer_delay):
    found = log_path_sums(10_000, layers, time=time, depth=1 - time, layer_delay=layer_delay)
    steps = torch.arange(1, 10_001)
    assert (found <= ((steps + 1.0) * (steps + 2) / (2 * steps)).log() + 1e-9).all()  # Theorem 3, over T + 1 steps
    # each later step adds what all paths to the top sum up to: 1 / depth by the first arrow to hear
    assert found[-1].exp().item() == pytest.approx(1 / (1 - time), rel=0.02)


def test_what_is_no_count_and_another_wiring_are_refused():
    with pytest.raises(ValueError, match=r"steps must be whole numbers from 0, got 1\.5"):
        log_paths(1.5, 2, layer_delay=0)
    with pytest.raises(ValueError, match="time must be zero or positive and finite, got -1"):
        log_paths(1, 1, time=-1, layer_delay=0)
    with pytest.raises(TypeError, match="time must be a number, got 'a'"):
        log_paths(1, 1, time="a", layer_delay=0)
    for bad in ("a", None, 1j):
        with pytest.raises(TypeError, match=f"layers must be whole numbers from 0, got {bad!r}"):
            log_paths(1, bad, layer_delay=0)
        with pytest.raises(TypeError, match="layers must be an int, got"):
            log_path_sums(3, bad, layer_delay=0)
    with pytest.raises(ValueError, match="layer_delay must be 0 or 1, got 2"):
        log_paths(3, 2, layer_delay=2)


# ---- the PascalRNN


def pascal(layers: int, layer_delay: int, width: int = 1, **sizes: float) -> Network:
    return Network([PascalRNN(width, **sizes) for _ in range(layers)], nn.Identity(), layer_delay=layer_delay)


@both
@pytest.mark.parametrize("size", [0.5, 1.0])
def test_the_derivative_of_the_summed_outputs_is_that_of_autograd_through_a_network(size, layer_delay):
    found = log_input_derivatives(T, L, time=size, depth=size, layer_delay=layer_delay).exp()
    x = (2 * torch.randn(T, 2, 1)).requires_grad_()
    (wanted,) = torch.autograd.grad(pascal(L, layer_delay, time=size, depth=size)(x).sum(), x)
    torch.testing.assert_close(found[:, None, None].expand(T, 2, 1), wanted, rtol=1e-9, atol=0)
    if size == 1:  # a whole number of paths
        wanted = [math.comb(T - 1 - t + (0 if layer_delay else L), L) for t in range(T)]
        torch.testing.assert_close(found, torch.tensor(wanted).double(), rtol=1e-9, atol=0)
    few = [0, 0, 0] if layer_delay else [21, 6, 1]  # more layers than steps
    assert log_input_derivatives(3, 5, layer_delay=layer_delay).exp().round().tolist() == few


@both
def test_whatever_measures_radii_finds_its_numbers(layer_delay):
    network, x = pascal(2, layer_delay, 3, time=0.7, depth=0.4), torch.randn(6, 2, 3)
    profile = radius_profile(network, x)
    time, depth = singular_values(network, x)
    for found in (profile.time, time):
        torch.testing.assert_close(found, torch.full((2, 6, 2), 0.7))
    for found in (profile.depth, depth):
        torch.testing.assert_close(found, torch.full((2, 6, 2), 0.4))
    torch.testing.assert_close(lyapunov_exponents(network, x), torch.full((2, 2, 1), math.log(0.7)))


# ---- covariance


@pytest.mark.parametrize("samples", [3, 12, 257])
def test_covariance_correlation_and_p_value_are_those_of_scipy(samples):
    sizes = torch.randn(2, 6, samples).cumsum(1)
    found = covariance_decay(sizes, step=1)
    for layer in range(2):
        for t in (0, 2, 5):
            wanted = stats.pearsonr(sizes[layer, t].numpy(), sizes[layer, 1].numpy())
            assert found.covariance[layer, t].item() == pytest.approx(torch.cov(sizes[layer])[t, 1].item())
            assert found.correlation[layer, t].item() == pytest.approx(wanted.statistic)
            assert found.p_value[layer, t].item() == pytest.approx(wanted.pvalue, rel=1e-8)


def test_a_step_at_which_all_samples_are_alike_has_no_covariance_and_no_correlation(make_network, make_spikes):
    """A network at rest: its first derivatives are the same whatever the input."""
    network = make_network(gain=3, tau_v=5.0)
    sizes, _ = singular_values(network, make_spikes(T=12, B=9))
    at_rest = covariance_decay(sizes)
    assert (at_rest.covariance == 0).all() and at_rest.correlation.isnan().all() and at_rest.p_value.isnan().all()
    late = covariance_decay(sizes, step=6)
    assert late.correlation[:, :1].isnan().all()
    assert late.correlation[:, 6:].isfinite().all() and late.covariance[0, 6:].abs().min() > 0
    torch.testing.assert_close(late.correlation[:, 6], torch.ones(2))


@pytest.mark.parametrize(
    ("shape", "step", "words"), [((4, 2), 0, r"B >= 3 samples, got \(4, 2\)"), ((4, 5), 4, "in 0 ... 3, got 4")]
)
def test_too_few_samples_and_a_step_outside_are_refused(shape, step, words):
    with pytest.raises(ValueError, match=words):
        covariance_decay(torch.zeros(shape), step=step)
