"""Gradients by states and parameters, and what batches share of them."""

import math

import pytest
import torch
from torch import nn

from neurolsc import Network, wrap
from neurolsc.stability import parameter_gradients, signal_to_noise, state_gradients
from neurolsc.tasks import Classification, cross_entropy
from tests.stability.linear_cell import Linear

pytestmark = pytest.mark.usefixtures("float64")


def linear(layers: int, layer_delay: int = 1) -> Network:
    cells = [Linear(0.9 * torch.randn(3, 3), torch.randn(3, 3)) for _ in range(layers)]
    return Network(cells, 2, layer_delay=layer_delay)


def test_of_a_linear_layer_they_are_powers_of_its_matrix():
    network, x = linear(1), torch.randn(6, 2, 3)
    found = state_gradients(network, x, lambda logits: logits[-1, :, 0].sum())
    g = network.readout.weight[0].detach()
    for back in range(6):
        torch.testing.assert_close(found[0, 5 - back], g.norm().expand(2))
        g = network.cells[0].a.detach().T @ g


@pytest.mark.parametrize("layer_delay", [0, 1])
def test_a_layer_below_hears_of_it_through_the_one_above(layer_delay):
    network, x = linear(2, layer_delay), torch.randn(4, 2, 3)
    found = state_gradients(network, x, lambda logits: logits[-1, :, 1].sum())
    first = network.cells[1].w.detach().T @ network.readout.weight[1].detach()
    torch.testing.assert_close(found[0, 3 - layer_delay], first.norm().expand(2))
    assert layer_delay == 0 or (found[0, 3] == 0).all()


def test_of_spiking_layers_they_are_those_of_autograd_by_hand(make_network, make_spikes):
    network, x, labels = make_network(gain=3, tau_v=5.0), make_spikes(T=5, B=3), torch.tensor([0, 1, 3])
    found = state_gradients(network, x, lambda logits: cross_entropy(logits, labels))
    states, kept, logits = network.initial_states(3), [], []
    for frame in x:
        o, states = network.step(frame, states)
        logits.append(o)
        kept.append(states.layers)
        for layer in states.layers:
            for leaf in layer:
                leaf.retain_grad()
    cross_entropy(torch.stack(logits), labels).backward()
    for t, layers in enumerate(kept):
        for i, layer in enumerate(layers):
            wanted = torch.cat([torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in layer], 1)
            torch.testing.assert_close(found[i, t], wanted.norm(dim=1))
    assert found.count_nonzero() > 20


def test_a_network_that_learns_nothing_has_the_same_gradients(make_network, make_spikes):
    network, x = make_network(gain=3, tau_v=5.0), make_spikes(T=5, B=3)
    wanted = state_gradients(network, x, lambda logits: logits[-1].sum())
    network.requires_grad_(False)
    assert wanted[0].any()
    torch.testing.assert_close(state_gradients(network, x, lambda logits: logits[-1].sum()), wanted)


def test_a_sample_that_ends_earlier_has_the_gradients_that_it_has_alone(make_network, make_spikes):
    network, x = make_network(gain=3, tau_v=5.0), make_spikes(T=8, B=2)
    last = torch.zeros(8, 2, dtype=torch.bool)
    last[7, 0] = last[4, 1] = True
    labels = torch.tensor([1, 2])
    both = state_gradients(network, x, lambda o: Classification().loss(o, labels, last))
    alone = state_gradients(network, x[:5, 1:], lambda o: cross_entropy(o[-1:], labels[1:]) / 2)
    torch.testing.assert_close(both[:, :5, 1], alone[:, :, 0])
    assert alone.any() and not both[:, 5:, 1].any()


def test_parameters_get_the_gradients_of_a_backward_pass_and_keep_their_own(make_network, make_spikes):
    network, x, labels = make_network(gain=3), make_spikes(), torch.arange(6) % 4
    network.cells[0].w_rec.requires_grad_(False)
    found = parameter_gradients(network, x, lambda logits: cross_entropy(logits, labels))
    assert all(p.grad is None for p in network.parameters())
    cross_entropy(network(x), labels).backward()
    assert len(found) == 3 and "w_rec" not in found[0]
    for part, gradients in zip((*network.cells, network.readout), found, strict=True):
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, part.get_parameter(name).grad)
    assert found[0]["w_in"].any()


def test_layers_of_one_module_do_not_count_each_others_parameters():
    network = wrap([nn.LSTM(5, 4, num_layers=2), nn.Linear(4, 3)])
    below, above, _ = parameter_gradients(network, torch.randn(6, 2, 5), lambda o: cross_entropy(o, torch.arange(2)))
    assert all(name.endswith("_l0") for name in below) and all(name.endswith("_l1") for name in above)
    assert below and above


def test_a_loss_without_gradient_has_gradients_of_zero(make_network, make_spikes):
    network, x = make_network(), make_spikes(T=3)
    assert not state_gradients(network, x, lambda logits: torch.zeros(())).any()
    assert not any(g.any() for g in parameter_gradients(network, x, lambda logits: torch.zeros(()))[0].values())


def test_signal_to_noise_is_that_of_the_formula():
    gradients = torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    assert signal_to_noise(gradients) == pytest.approx(29.0)  # (4 + 25) / 1
    assert signal_to_noise(gradients[:1].expand(3, 2)) == math.inf
    assert math.isnan(signal_to_noise(torch.zeros(3, 2)))
    with pytest.raises(ValueError, match=r"K >= 2 batches, got \(1, 2\)"):
        signal_to_noise(gradients[:1])


def test_noise_alone_has_one_in_the_number_of_batches_and_larger_batches_more():
    noise = torch.randn(8, 100_000)
    assert signal_to_noise(noise) == pytest.approx(1 / 8, rel=0.05)
    gradients = 1 + 20 * torch.randn(64, 100_000)
    of_four = gradients.view(16, 4, -1).mean(1)
    few, many = (signal_to_noise(g) - 1 / len(g) for g in (gradients, of_four))  # what is not of noise alone
    assert many / few == pytest.approx(4, rel=0.1)
