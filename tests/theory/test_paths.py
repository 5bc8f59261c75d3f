"""Paths counted by walking them, and the sums of Lemma 2 and Theorem 1 over them."""

import math
from functools import cache

import pytest
import torch

from neurolsc.theory import (
    log_bound_at_half,
    log_bound_at_one,
    log_derivative,
    log_mean_power,
    log_path_sums,
    log_paths,
    paths,
)

both = pytest.mark.parametrize("layer_delay", [0, 1])


@cache
def walk(steps: int, layers: int, layer_delay: int, time: float = 1, depth: float = 1) -> float:
    """Every path through the grid, arrow by arrow: the sum of the products of their arrows."""
    if steps == layers == 0:
        return 1
    total = 0
    if steps:
        total += time * walk(steps - 1, layers, layer_delay, time, depth)
    if layers and steps >= layer_delay:
        total += depth * walk(steps - layer_delay, layers - 1, layer_delay, time, depth)
    return total


def every_path(steps: int, layers: int, layer_delay: int) -> int:
    """The same, one path after the other, without a memory of those before."""
    count, open_ends = 0, [(steps, layers)]
    while open_ends:
        n, k = open_ends.pop()
        count += n == k == 0
        open_ends += [(n - 1, k)] * (n > 0) + [(n - layer_delay, k - 1)] * (k > 0 and n >= layer_delay)
    return count


@both
def test_the_number_of_paths_is_that_of_a_walk_along_each(layer_delay):
    for steps in range(9):
        for layers in range(9):
            assert paths(steps, layers, layer_delay=layer_delay) == every_path(steps, layers, layer_delay)


@both
def test_logarithms_are_those_of_the_exact_counts_up_to_ten_thousand(layer_delay):
    n, k = torch.tensor([0, 1, 5, 100, 9999, 10_000]), torch.tensor([[0], [1], [7], [5000], [10_000]])
    found = log_paths(n, k, layer_delay=layer_delay)
    exact = [[paths(a, b, layer_delay=layer_delay) for a in n.tolist()] for b in k.flatten().tolist()]
    wanted = torch.tensor([[math.log(c) if c else -math.inf for c in row] for row in exact], dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


@both
@pytest.mark.parametrize(("time", "depth"), [(0.5, 0.5), (0.9, 0.2), (1.0, 0.0), (0.0, 0.7)])
def test_a_derivative_is_the_sum_over_all_paths_of_their_products(time, depth, layer_delay):
    for layers in range(9):
        n = torch.arange(9)
        found = log_derivative(n, layers, time=time, depth=depth, layer_delay=layer_delay).exp()
        wanted = [walk(steps, layers, layer_delay, time, depth) for steps in n.tolist()]
        torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))


# Lemma 2


@both
def test_lemma_2_is_the_sum_over_all_steps_pairs_and_walks(layer_delay):
    for T in range(1, 9):
        for layers in range(9):
            wanted = sum(every_path(t - s, layers, layer_delay) for t in range(T + 1) for s in range(t + 1))
            coefficient = math.comb(T + 2, layers + 2) if layer_delay else math.comb(T + layers + 2, T)
            assert coefficient == wanted
            found = log_bound_at_one(T, layers, layer_delay=layer_delay).exp().item()
            assert found == pytest.approx(wanted / T, rel=1e-12)
            sums = log_path_sums(T, layers, layer_delay=layer_delay)
            assert sums.shape == (T,) and sums[-1].exp().item() == pytest.approx(wanted / T, rel=1e-12)


# Theorems 1 and 3


@both
@pytest.mark.parametrize("time", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("layers", [1, 3, 10])
def test_with_the_sum_one_the_sum_is_below_the_linear_bound_and_tends_to_a_constant(time, layers, layer_delay):
    found = log_path_sums(10_000, layers, time=time, depth=1 - time, layer_delay=layer_delay)
    T = torch.arange(1, 10_001)
    assert (found <= ((T + 1.0) * (T + 2) / (2 * T)).log() + 1e-9).all()  # over T + 1 steps, as Lemma 2
    assert (found <= log_bound_at_half(T))[2:].all()
    # each later step adds what all paths to the top sum up to: 1 / depth by the first arrow to hear
    assert found[-1].exp().item() == pytest.approx(1 / (1 - time), rel=0.02)
    assert log_bound_at_half(10_000).exp().item() == pytest.approx(5000.5)


def test_the_power_of_a_mean_grows_while_the_mean_converges_and_the_product_stays():
    shape, n = 25.0, 20
    torch.manual_seed(0)
    norms = torch.distributions.Gamma(torch.tensor(shape, dtype=torch.float64), shape).sample((200_000, n))
    power = norms.mean(1) ** n
    wanted = log_mean_power(n, 1 / math.sqrt(shape)).exp().item()
    assert power.mean().item() == pytest.approx(wanted, rel=0.01)
    assert norms.prod(1).mean().item() == pytest.approx(1, rel=0.02)
    assert norms.log().sum(1).median().item() < -0.3  # the typical product fades
    assert wanted > 1.4
    growth = log_mean_power(torch.tensor([1000, 2000, 4000]), 0.1)
    torch.testing.assert_close(
        growth.diff() / torch.tensor([1000, 2000]), torch.full((2,), 0.005).double(), rtol=0.02, atol=0
    )
    assert log_mean_power(1, 0.3).item() == pytest.approx(0, abs=1e-12)
    assert log_mean_power(9, 0).item() == 0


def test_what_is_no_count_and_another_wiring_are_refused():
    with pytest.raises(ValueError, match=r"steps must be whole numbers from 0, got 1\.5"):
        log_paths(1.5, 2, layer_delay=0)
    with pytest.raises(ValueError, match="steps must be whole numbers from 1, got 0"):
        log_bound_at_one(0, 1, layer_delay=0)
    with pytest.raises(ValueError, match="time must be zero or positive and finite, got -1"):
        log_derivative(1, 1, time=-1, layer_delay=0)
    with pytest.raises(ValueError, match="layer_delay must be 0 or 1, got 2"):
        paths(3, 2, layer_delay=2)
