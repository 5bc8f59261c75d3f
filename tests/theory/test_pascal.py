"""The PascalRNN in a real network, differentiated by autograd, against the formulas."""

import math

import pytest
import torch
from torch import nn

from neurolsc import Network, radius_profile
from neurolsc.stability import lyapunov_exponents, singular_values
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
def test_at_one_it_is_a_whole_number_of_paths_that_autograd_finds_exactly(layer_delay):
    found = input_paths(T, L, layer_delay=layer_delay)
    wanted = by_autograd(pascal(L, layer_delay, time=1.0, depth=1.0), T)[:, 0, 0]
    assert [int(value) for value in wanted] == found  # below 2^53 no sum is rounded
    assert found == [math.comb(T - 1 - t + (0 if layer_delay else L), L) for t in range(T)]


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
