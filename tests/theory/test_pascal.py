"""The PascalRNN in a real network, differentiated by autograd, against the formulas."""

import math

import pytest
import torch
from torch import nn

from neurolsc import Network, radius_profile
from neurolsc.stability import lyapunov_exponents, singular_values
from neurolsc.stability.transitions import (
    depth_derivative,
    follow,
    input_derivative_by_autograd,
    output_derivative_by_autograd,
    time_derivative,
    time_derivative_by_autograd,
)
from neurolsc.theory import PascalRNN, input_paths, log_derivative, log_input_derivatives

pytestmark = pytest.mark.usefixtures("float64")
both = pytest.mark.parametrize("layer_delay", [0, 1])
T, L = 100, 10


def pascal(layers: int, layer_delay: int, width: int = 1, **sizes: float) -> Network:
    return Network([PascalRNN(width, **sizes) for _ in range(layers)], nn.Identity(), layer_delay=layer_delay)


def by_autograd(network: Network, steps: int, width: int = 1) -> torch.Tensor:
    x = (2 * torch.randn(steps, 6, width)).requires_grad_()
    return torch.autograd.grad(network(x).sum(), x)[0]


@both
@pytest.mark.parametrize("size", [0.5, 1.0])
def test_the_derivative_of_the_summed_outputs_is_that_of_autograd_through_a_network(size, layer_delay):
    found = log_input_derivatives(T, L, time=size, depth=size, layer_delay=layer_delay).exp()
    wanted = by_autograd(pascal(L, layer_delay, time=size, depth=size), T)
    torch.testing.assert_close(found[:, None, None].expand(T, 6, 1), wanted, rtol=1e-9, atol=0)


@both
def test_of_two_sizes_and_several_neurons_too(layer_delay):
    found = log_input_derivatives(30, 4, time=0.8, depth=0.3, layer_delay=layer_delay).exp()
    wanted = by_autograd(pascal(4, layer_delay, 3, time=0.8, depth=0.3), 30, 3)
    torch.testing.assert_close(found[:, None, None].expand(30, 6, 3), wanted, rtol=1e-9, atol=0)


@both
def test_at_one_it_is_a_whole_number_of_paths_that_autograd_finds_exactly(layer_delay):
    found = input_paths(T, L, layer_delay=layer_delay)
    wanted = by_autograd(pascal(L, layer_delay, time=1.0, depth=1.0), T)[:, 0, 0]
    assert [int(value) for value in wanted] == found  # below 2^53 no sum is rounded
    assert found == [math.comb(T - 1 - t + (0 if layer_delay else L), L) for t in range(T)]


def test_the_figures_of_a_hundred_steps_and_ten_layers():
    assert input_paths(T, L, layer_delay=0)[0] == 42634215112710
    assert input_paths(T, L, layer_delay=1)[0] == 15579278510796
    same, late = (log_input_derivatives(T, L, time=0.5, depth=0.5, layer_delay=d).exp() for d in (0, 1))
    assert [round(same[t].item(), 7) for t in (0, 80)] == [1.0, 0.9692858]
    assert same[99].item() == pytest.approx(0.0009765625)
    assert late[0].item() == pytest.approx(1.0) and late[80].item() == pytest.approx(0.5)
    assert late[99] == 0 == late[90] != late[89]


@both
def test_with_the_sum_one_it_is_the_chance_that_enough_arrows_go_down(layer_delay):
    found = log_input_derivatives(T, L, time=0.8, depth=0.2, layer_delay=layer_delay).exp()
    for t in range(T):
        arrows = T - 1 - t + (0 if layer_delay else L)
        chance = 1 - sum(math.comb(arrows, k) * 0.2**k * 0.8 ** (arrows - k) for k in range(min(L, arrows + 1)))
        assert found[t].item() == pytest.approx(chance if arrows >= L else 0, abs=1e-12)


@both
def test_long_and_deep_runs_stay_finite(layer_delay):
    found = log_input_derivatives(10_000, 2000, layer_delay=layer_delay)
    exact = input_paths(10_000, 2000, layer_delay=layer_delay)
    for t in (0, 5000, 7999):
        assert found[t].item() == pytest.approx(math.log(exact[t]), abs=1e-8)
    assert found[0] > 4000
    half = log_input_derivatives(10_000, 2000, time=0.5, depth=0.5, layer_delay=layer_delay)
    assert half[0].item() == pytest.approx(0, abs=1e-8) and half.max() < 1e-8


@both
def test_more_layers_than_steps(layer_delay):
    found = input_paths(3, 5, layer_delay=layer_delay)
    assert found == ([0, 0, 0] if layer_delay else [21, 6, 1])
    assert log_input_derivatives(3, 5, layer_delay=layer_delay).exp().round().tolist() == found


@both
def test_of_one_state_by_another_it_is_the_formula_for_paths(layer_delay):
    network = pascal(3, layer_delay, time=0.7, depth=0.4)
    moments = []
    states = network.initial_states(1)
    first = [leaf.h.requires_grad_() for leaf in states.layers]
    for _ in range(8):
        _, states = network.step(torch.zeros(1, 1), states)
        moments.append(states.layers[2].h)
    for t, h in enumerate(moments):
        found = torch.autograd.grad(h, first, retain_graph=True, materialize_grads=True)
        for below, gradient in enumerate(reversed(found)):
            # without a delay the first arrow from a state leads through time
            n = t + 1
            wanted = log_derivative(n, below, time=0.7, depth=0.4, layer_delay=layer_delay).exp().item()
            if not layer_delay and below:
                wanted -= 0.4 * log_derivative(n, below - 1, time=0.7, depth=0.4, layer_delay=0).exp().item()
            assert gradient.item() == pytest.approx(wanted, abs=1e-14)


@both
def test_its_derivatives_in_closed_form_are_those_of_autograd(layer_delay):
    network = pascal(2, layer_delay, 3, time=0.7, depth=0.4)
    for t in follow(network, torch.randn(5, 2, 3), torch.arange(5))[0]:
        by_input = input_derivative_by_autograd(t)
        torch.testing.assert_close(time_derivative(t), time_derivative_by_autograd(t))
        wanted = by_input if t.below is None else by_input @ output_derivative_by_autograd(t)
        torch.testing.assert_close(depth_derivative(t).expand_as(wanted), wanted)


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
    assert profile.sources == ({"leak": 1.0}, {"leak": 1.0})


def test_it_tells_its_numbers_and_refuses_bad_ones():
    cell = PascalRNN(3, time=0.25, depth=0.75)
    assert cell.config() == {"width": 3, "time": 0.25, "depth": 0.75}
    assert not list(cell.parameters())
    with pytest.raises(ValueError, match="n_in must be at least 1"):
        PascalRNN(0)
    with pytest.raises(ValueError, match="depth must be zero or positive and finite, got -1"):
        PascalRNN(depth=-1.0)
    with pytest.raises(ValueError, match="layers must be at least 1, got 0"):
        input_paths(3, 0, layer_delay=1)
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        log_input_derivatives(0, 3, layer_delay=1)
    with pytest.raises(ValueError, match="layer_delay must be 0 or 1, got 2"):
        input_paths(3, 3, layer_delay=2)
