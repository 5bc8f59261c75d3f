"""Small changes forward and gradients backward, against closed forms and autograd."""

import math

import pytest
import torch
from torch import nn

from neurolsc import ALIFPlus, Network, wrap
from neurolsc.stability.transitions import flat
from neurolsc.theory import PascalRNN, perturbation_growth
from tests.stability.linear_cell import Linear

pytestmark = pytest.mark.usefixtures("float64")
both = pytest.mark.parametrize("layer_delay", [0, 1])


def linear(layers: int, layer_delay: int) -> Network:
    cells = [Linear(0.9 * torch.randn(4, 4), torch.randn(4, 4)) for _ in range(layers)]
    return Network(cells, 3, layer_delay=layer_delay)


@both
@pytest.mark.parametrize("size", [0.5, 1.0])
def test_of_the_pascal_rnn_both_ways_are_counted_paths(size, layer_delay):
    steps, layers, at = 12, 3, 2
    network = Network([PascalRNN(time=size, depth=size) for _ in range(layers)], nn.Identity(), layer_delay=layer_delay)
    found = perturbation_growth(network, torch.randn(steps, 5, 1), step=at, size=0.1)
    torch.testing.assert_close(found.difference, found.tangent, rtol=1e-8, atol=1e-12)
    for layer in range(1, layers + 1):
        for t in range(steps):
            n, k = (t - at - 1, layer - 1) if layer_delay else (t - at, layer - 1)  # after the arrow from the input
            arrows = n if layer_delay else n + k
            wanted = size ** (arrows + 1) * math.comb(arrows, k) if n >= 0 else 0
            torch.testing.assert_close(found.tangent[layer - 1, t], torch.full((5,), float(wanted)))
            n, k = steps - 1 - t, layers - layer
            arrows = n if layer_delay else n + k
            wanted = size**arrows * math.comb(arrows, k)
            torch.testing.assert_close(found.gradient[layer - 1, t], torch.full((5,), float(wanted)))


@both
def test_of_linear_layers_two_runs_differ_by_the_tangent_whatever_the_size(layer_delay):
    network, x = linear(3, layer_delay), torch.randn(7, 4, 4)
    found = perturbation_growth(network, x, step=1, size=5.0)
    torch.testing.assert_close(found.difference, found.tangent)
    first = 1 + layer_delay  # the step at which the first layer hears of it
    assert not found.tangent[:, :first].any()
    assert (found.tangent[0, first:] > 0).all()
    assert found.tangent[2, first + 2 * layer_delay :].all() and not found.tangent[2, : first + 2 * layer_delay].any()


@both
def test_of_smooth_networks_two_runs_differ_by_the_tangent_to_first_order(layer_delay):
    layers = [nn.GRU(4, 5), nn.GRU(5, 3), nn.Linear(3, 2)]
    network = wrap(layers)
    network.layer_delay = layer_delay
    x = torch.randn(9, 3, 4)
    errors = []
    for size in (1e-3, 1e-4):
        found = perturbation_growth(network, x, size=size)
        errors.append((found.difference - found.tangent).abs().max().item())
    assert found.tangent[1, -1].min() > 0
    assert errors[0] < 1e-3 and errors[1] == pytest.approx(errors[0] / 10, rel=0.2)


@both
def test_of_spiking_layers_the_tangent_is_that_of_autograd_with_surrogates(layer_delay, make_network, make_spikes):
    network = make_network(ALIFPlus, width=5, layers=2, gain=3, tau_v=5.0, layer_delay=layer_delay)
    x = make_spikes(T=6, B=2).requires_grad_()
    found = perturbation_growth(network, x.detach())
    generator = torch.Generator().manual_seed(0)
    change = torch.randn(2, x.shape[2], generator=generator, dtype=torch.float64)
    change = change / change.norm(dim=1, keepdim=True)
    spikes = 0
    for t, moment in enumerate(network.records(x)):
        spikes += sum(z.sum().item() for z in moment.outputs)
        for layer, state in enumerate(moment.after.layers):
            h = flat(state)
            rows = (
                [
                    torch.autograd.grad(h[:, i].sum(), x, retain_graph=True, materialize_grads=True)[0][0]
                    for i in range(h.shape[1])
                ]
                if h.requires_grad
                else []
            )
            wanted = torch.stack([(row * change).sum(1) for row in rows], 1).norm(dim=1)
            torch.testing.assert_close(found.tangent[layer, t], wanted.detach())
    assert spikes > 4 and found.tangent[1].any()


def test_a_small_change_moves_no_spike_or_whole_ones(make_network, make_spikes):
    network, x = make_network(gain=3, tau_v=5.0), make_spikes(T=8, B=4)
    small, large = (perturbation_growth(network, x, size=size) for size in (1e-9, 3.0))
    assert small.tangent[1, -1].any() and not small.difference[1].any()  # no spike of the first layer has moved
    assert large.difference[1].any()
    torch.testing.assert_close(small.tangent, large.tangent)


def test_bad_input_is_refused(make_network, make_spikes):
    with pytest.raises(TypeError, match=r"network must be a neurolsc\.Network"):
        perturbation_growth(nn.Linear(2, 2), make_spikes())
    with pytest.raises(ValueError, match=r"step must be in 0 \.\.\. 3, got 4"):
        perturbation_growth(make_network(), make_spikes(T=4), step=4)
    with pytest.raises(ValueError, match="size must be positive and finite, got 0"):
        perturbation_growth(make_network(), make_spikes(), size=0.0)
    with pytest.raises(ValueError, match=r"x must have shape \(T, B, 30\)"):
        perturbation_growth(make_network(), torch.zeros(4, 2, 3))
