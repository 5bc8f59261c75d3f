"""Largest singular values against those of the dense derivatives."""

import pytest
import torch

from neurolsc import LIF, ALIFPlus, Network, wrap
from neurolsc.stability import singular_values
from neurolsc.stability.transition import depth_derivative, follow, time_derivative
from tests.stability.linear_cell import Linear

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize(("cell", "width"), [(LIF, 20), (ALIFPlus, 20), (ALIFPlus, 60)])  # the last by products
@pytest.mark.parametrize("layer_delay", [0, 1])
def test_they_are_those_of_the_dense_derivatives(cell, width, layer_delay, make_network, make_spikes):
    network = make_network(cell, width=width, layer_delay=layer_delay, gain=3, tau_v=5.0)
    x = make_spikes(T=8, B=2)
    time, depth = singular_values(network, x, tolerance=1e-3)
    assert time.shape == depth.shape == (2, 8, 2)
    transitions, outputs = follow(network, x, torch.arange(8))
    for layer, t in enumerate(transitions):
        assert outputs[layer].any()
        for found, dense in ((time, time_derivative(t)), (depth, depth_derivative(t))):
            wanted = torch.linalg.matrix_norm(dense.detach(), 2).expand(16).view(8, 2)
            torch.testing.assert_close(found[layer], wanted, rtol=1e-3, atol=1e-12)


def test_they_see_what_a_radius_does_not():
    shear = torch.tensor([[0.5, 30.0], [0.0, 0.5]])
    network = Network([Linear(shear, torch.tensor([[3.0], [4.0]]))], 2)
    time, depth = singular_values(network, torch.zeros(4, 2, 1), steps=3)
    torch.testing.assert_close(time, torch.linalg.matrix_norm(shear, 2).expand(1, 3, 2))
    torch.testing.assert_close(depth, torch.full((1, 3, 2), 5.0))


def test_of_other_libraries_too():
    network = wrap([torch.nn.RNN(5, 4), torch.nn.Linear(4, 2)])
    x = torch.randn(3, 2, 5)
    (t,), _ = follow(network, x, torch.arange(3))
    time, depth = singular_values(network, x)
    wanted = torch.linalg.matrix_norm(time_derivative(t), 2)
    torch.testing.assert_close(time.flatten(), wanted.detach(), rtol=1e-6, atol=0)
    wanted = torch.linalg.matrix_norm(depth_derivative(t), 2)
    torch.testing.assert_close(depth.flatten(), wanted.detach(), rtol=1e-6, atol=0)
