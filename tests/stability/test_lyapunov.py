"""Finite-time Lyapunov exponents against closed forms and plain products of matrices."""

import math

import pytest
import torch

from neurolsc import LIF, ALIFPlus, Network, wrap
from neurolsc.neurons import Cell
from neurolsc.stability import lyapunov_exponents
from neurolsc.stability.measure import at_points
from neurolsc.stability.transition import follow, time_derivative_by_autograd
from tests.stability.linear_cell import Linear

pytestmark = pytest.mark.usefixtures("float64")


def linear(a: torch.Tensor) -> Network:
    return Network([Linear(a, torch.eye(len(a)))], 2)


def derivatives(network: Network, x: torch.Tensor, layer: int) -> torch.Tensor:
    """All derivatives through time (T, B, S, S), by autograd."""
    transitions, outputs = follow(network, x, torch.arange(len(x)))
    assert outputs[layer].count_nonzero() > 0
    t = transitions[layer]
    points = [at_points(t, slice(k, k + 1)) for k in range(len(t.x))]
    dense = torch.cat([time_derivative_by_autograd(point) for point in points]).detach()
    return dense.view(*x.shape[:2], *dense.shape[1:])


def test_a_scaled_rotation_has_the_logarithm_of_its_scale_in_all_directions():
    rotation = torch.linalg.qr(torch.randn(6, 6))[0]
    found = lyapunov_exponents(linear(0.7 * rotation), torch.randn(9, 3, 6), count=6)
    torch.testing.assert_close(found, torch.full((1, 3, 6), math.log(0.7)))


def test_of_a_long_run_they_are_the_logarithms_of_the_eigenvalues():
    values = torch.tensor([1.5, -1.0, 0.5, 0.1])
    basis = torch.eye(4) + 0.3 * torch.randn(4, 4)
    a = basis @ torch.diag(values) @ torch.linalg.inv(basis)
    found = lyapunov_exponents(linear(a), torch.zeros(400, 1, 4), count=3)[0, 0]
    torch.testing.assert_close(found, values[:3].abs().log(), atol=0.02, rtol=0)


@pytest.mark.parametrize("cell", [LIF, ALIFPlus])
def test_one_exponent_is_the_growth_of_one_direction_through_the_product(cell: type[Cell], make_network, make_spikes):
    network, x = make_network(cell, gain=3, tau_v=5.0), make_spikes(T=12, B=3)
    found = lyapunov_exponents(network, x, seed=3)
    for layer in range(2):
        steps = derivatives(network, x, layer)
        q = torch.linalg.qr(torch.randn(steps.shape[-1], 1, generator=torch.Generator().manual_seed(3)))[0]
        for sample in range(3):
            moved = q
            for m in steps[:, sample]:
                moved = m @ moved
            wanted = moved.norm().log() / len(x)
            torch.testing.assert_close(found[layer, sample, 0], wanted)


def test_all_of_them_sum_up_to_the_mean_logarithm_of_the_determinant(make_network, make_spikes):
    network, x = make_network(gain=3, width=7, tau_v=5.0), make_spikes(T=10, B=2)
    found = lyapunov_exponents(network, x, count=14)
    for layer in range(2):
        logs = torch.linalg.slogdet(derivatives(network, x, layer)).logabsdet.mean(0)
        torch.testing.assert_close(found[layer].sum(1), logs)
        assert (found[layer, :, 0] > found[layer, :, -1]).all()


def test_a_direction_that_is_lost_is_minus_infinity():
    a = torch.zeros(3, 3)
    assert lyapunov_exponents(linear(a), torch.randn(4, 2, 3), count=2).tolist() == [[[-math.inf] * 2] * 2]


def test_layers_of_other_libraries_are_measured_by_autograd():
    network = wrap([torch.nn.RNN(5, 4), torch.nn.Linear(4, 2)])
    layer = network.cells[0].layer
    with torch.no_grad():
        layer.weight_hh_l0.copy_(0.3 * torch.linalg.qr(torch.randn(4, 4))[0])
        for rest in (layer.weight_ih_l0, layer.bias_ih_l0, layer.bias_hh_l0):
            rest.zero_()
    found = lyapunov_exponents(network, torch.zeros(6, 2, 5), count=4)  # at rest tanh' is 1
    torch.testing.assert_close(found, torch.full((1, 2, 4), math.log(0.3)))


def test_too_many_are_refused(make_network, make_spikes):
    with pytest.raises(ValueError, match="count must be at most the 32 state variables"):
        lyapunov_exponents(make_network(), make_spikes(), count=33)
    with pytest.raises(TypeError, match=r"network must be a neurolsc\.Network"):
        lyapunov_exponents(torch.nn.Linear(2, 2), make_spikes())
