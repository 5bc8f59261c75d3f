"""Growth, singular values, gradients, surrogates, similarity to the input, activity, time constants: closed forms."""

import math

import pytest
import torch
from torch import nn

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Network, wrap
from neurolsc.stability import (
    active_surrogate_fraction,
    activity,
    exponent_loss,
    lyapunov_exponents,
    parameter_gradients,
    signal_to_noise,
    similarity_to_input,
    singular_values,
    state_gradients,
    time_constants,
)
from neurolsc.stability.indicators import layer_exponents, recurrence_radius
from neurolsc.stability.transitions import follow
from neurolsc.surrogate import FastSigmoid, MultiGaussian, Rectangular
from neurolsc.tasks import cross_entropy
from tests.stability.dense import depth_derivative, time_derivative, time_derivative_by_autograd
from tests.stability.linear_cell import Linear

pytestmark = pytest.mark.usefixtures("float64")


class Autograd(ALIFPlus):
    """An ALIF whose derivatives are by autograd."""

    def derivatives(self):
        return None


# ---- growth


def of_matrix(a: torch.Tensor) -> Network:
    return Network([Linear(a, torch.eye(len(a)))], 2)


def derivatives(network: Network, x: torch.Tensor, layer: int) -> torch.Tensor:
    """All derivatives through time (T, B, S, S), by autograd."""
    transitions, outputs = follow(network, x, torch.arange(len(x)))
    assert outputs[layer].count_nonzero() > 0
    t = transitions[layer]
    points = [t.at(slice(k, k + 1)) for k in range(len(t.x))]
    dense = torch.cat([time_derivative_by_autograd(point) for point in points]).detach()
    return dense.view(*x.shape[:2], *dense.shape[1:])


def test_one_exponent_is_the_growth_of_one_direction_through_the_product(make_network, make_spikes):
    network, x = make_network(ALIFPlus, gain=3, tau_v=5.0), make_spikes(T=8, B=3)
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


def test_of_a_linear_layer_the_loss_and_its_gradient_are_in_closed_form():
    """Of M = c R with a rotation R, exponent log c and loss (log c - target)^2."""
    rotation = torch.linalg.qr(torch.randn(6, 6))[0]
    network = of_matrix(0.7 * rotation)
    loss = exponent_loss(network, torch.randn(9, 3, 6), -0.1, count=2)
    gap = math.log(0.7) + 0.1
    assert loss.item() == pytest.approx(gap**2)
    (gradient,) = torch.autograd.grad(loss, network.cells[0].a)
    # along M itself, which only scales it: d log c / d c = 1 / c
    assert (gradient * rotation).sum().item() == pytest.approx(2 * gap / 0.7)


@pytest.mark.parametrize(("cell", "count"), [(ALIFPlus, 1), (ALIFPlus, 3), (Autograd, 1)])
def test_the_gradient_of_the_loss_is_that_of_finite_differences_at_fixed_states(cell, count, make_network, make_spikes):
    network, x = make_network(cell, gain=3, tau_v=5.0, tau_theta=8.0, reset_gradient=True), make_spikes(T=8, B=3)
    target = 0.05
    exponent_loss(network, x, target, count=count, seed=3).backward()
    transitions, outputs = follow(network, x, torch.arange(len(x)))
    assert all(z.mean() > 0.02 for z in outputs)

    def loss() -> float:
        found = torch.stack([layer_exponents(t, 3, count, 3) for t in transitions])
        return (found - target).square().mean().item()

    for name, parameter in network.cells.named_parameters():
        direction, small = torch.randn_like(parameter), 1e-5
        with torch.no_grad():
            ends = []
            for step in (small, -2 * small):
                parameter += step * direction
                ends.append(loss())
            parameter += small * direction
        difference = (ends[0] - ends[1]) / (2 * small)
        gradient = 0.0 if parameter.grad is None else (parameter.grad * direction).sum().item()
        assert gradient == pytest.approx(difference, rel=1e-5, abs=1e-9), name


def test_layers_that_lose_a_direction_are_left_out_of_the_loss():
    network, x = of_matrix(torch.zeros(4, 4)), torch.randn(5, 2, 4)
    exponent_loss(network, x).backward()
    assert network.cells[0].a.grad is None
    cells = [Linear(torch.zeros(4, 4), torch.eye(4)), Linear(0.5 * torch.eye(4), torch.eye(4))]
    assert exponent_loss(Network(cells, 2), x).item() == pytest.approx(math.log(2) ** 2)


# ---- singular values


@pytest.mark.parametrize(("cell", "width", "layer_delay"), [(LIF, 20, 0), (ALIFPlus, 60, 1)])  # the second by products
def test_they_are_those_of_the_dense_derivatives(cell, width, layer_delay, make_network, make_spikes):
    network = make_network(cell, width=width, layer_delay=layer_delay, gain=3, tau_v=5.0)
    x = make_spikes(T=8, B=2)
    time, depth = singular_values(network, x)
    assert time.shape == depth.shape == (2, 8, 2)
    transitions, outputs = follow(network, x, torch.arange(8))
    for layer, t in enumerate(transitions):
        assert outputs[layer].any()
        for found, dense in ((time, time_derivative(t)), (depth, depth_derivative(t))):
            wanted = torch.linalg.matrix_norm(dense.detach(), 2).expand(16).view(8, 2)
            torch.testing.assert_close(found[layer], wanted, rtol=0.01, atol=1e-12)


# ---- recurrence


@pytest.mark.parametrize("cell", [LIF, ALIFPlusMinus])
def test_the_recurrence_radius_is_that_of_the_weights_times_the_surrogate(cell, make_network, make_spikes):
    network, x = make_network(cell, gain=4), make_spikes()
    transitions, spikes = follow(network, x, torch.tensor([5, 12, 19]))
    for layer, t in enumerate(transitions):
        assert spikes[layer].any()
        s = t.cell.spike_derivative(t.before)
        wanted = torch.linalg.eigvals(s.unsqueeze(-1) * t.cell.w_rec).abs().amax(-1)
        torch.testing.assert_close(recurrence_radius(t), wanted)


# ---- gradients


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


def test_signal_to_noise_is_that_of_the_formula():
    gradients = torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    assert signal_to_noise(gradients) == pytest.approx(29.0)  # (4 + 25) / 1
    turned = signal_to_noise(gradients * 1j)  # gradients of complex parameters count by their moduli
    assert isinstance(turned, float) and turned == pytest.approx(29.0)
    assert signal_to_noise(gradients[:1].expand(3, 2)) == math.inf
    assert math.isnan(signal_to_noise(torch.zeros(3, 2)))


# ---- similarity to the input


def samples(samples: int = 40) -> torch.Tensor:
    """Inputs whose rates differ from sample to sample (T, B, N)."""
    rates = torch.rand(1, samples, 30)
    return (torch.rand(50, samples, 30) < 0.3 * rates).double()


def test_an_identity_a_rotation_and_a_scale_keep_all_of_it():
    x = samples()
    rotation = torch.linalg.qr(torch.randn(30, 30))[0]
    for layer in (x, -3 * x, x @ rotation, x[..., torch.randperm(30)], x + 5):
        assert similarity_to_input(x, layer) == pytest.approx(1)


def test_a_layer_that_is_dead_or_the_same_for_all_keeps_nothing():
    x = samples()
    assert similarity_to_input(x, torch.zeros(50, 40, 8)) == 0
    assert similarity_to_input(x, torch.rand(50, 1, 8).expand(50, 40, 8)) == 0


@pytest.mark.parametrize("wrong", [0, -1])
def test_windows_are_a_number_from_1(wrong: int):
    with pytest.raises(ValueError, match=f"windows must be at least 1, got {wrong}"):
        similarity_to_input(samples(), samples(), windows=wrong)


# ---- active surrogates


OF_EACH = FastSigmoid(dampening=torch.linspace(0.02, 1, 16))


@pytest.mark.parametrize(
    ("cell", "spike"), [(LIF, Rectangular()), (ALIFPlus, MultiGaussian()), (ALIFPlus, OF_EACH)], ids=repr
)
def test_the_share_is_that_of_the_formula(cell, spike, make_network, make_spikes):
    network, x = make_network(cell, gain=3, spike=spike, tau_v=5.0), make_spikes()
    found = active_surrogate_fraction(network, x, threshold=0.2)
    transitions, outputs = follow(network, x, torch.arange(len(x)))
    for layer, t in enumerate(transitions):
        assert outputs[layer].any()
        slopes = spike.derivative(t.cell.distance(t.before)).abs()
        largest = spike.derivative(torch.zeros(()))
        wanted = (slopes >= 0.2 * largest).double().mean()
        assert 0 < wanted < 1
        assert found[layer] == pytest.approx(wanted.item(), abs=1e-6)


@pytest.mark.slow
def test_spikes_that_are_a_state_of_their_own_are_asked_a_step_on():
    norse = pytest.importorskip("norse.torch")
    network = wrap([norse.LIFRecurrentCell(6, 20), nn.Linear(20, 2)])
    x = (torch.rand(20, 4, 6) < 0.5).double()
    assert network.run(x).spikes[0].any()
    (t,), _ = follow(network, x, torch.arange(20))
    layer = network.cells[0].layer
    v = t.before.v.clone().requires_grad_()
    z, _ = layer(t.x, network.cells[0].state_of_layer(z=t.before.z, v=v, i=t.before.i))
    (slopes,) = torch.autograd.grad(z.sum(), v)
    wanted = (slopes >= 0.3).double().mean().item()
    assert 0 < wanted < 1
    assert active_surrogate_fraction(network, x, threshold=0.3).item() == pytest.approx(wanted, abs=1e-6)


# ---- activity


def test_shares_and_rate_are_counted():
    spikes = torch.zeros(10, 2, 4)
    spikes[:, :, 0] = 1
    spikes[3, 1, 1] = 1
    found = activity(spikes)
    assert (found.rate, found.dead, found.saturated) == (21 / 80, 0.5, 0.25)
    assert math.isnan(activity(spikes / 2).rate)
    assert all(math.isnan(activity(torch.ones(steps, 2, 4)).synchrony) for steps in range(2, 60))


def test_synchrony_is_one_for_copies_and_one_in_n_for_strangers():
    one = (torch.rand(2000, 3, 1) < 0.2).double()
    assert activity(one.expand(2000, 3, 50)).synchrony == pytest.approx(1)
    assert activity((torch.rand(2000, 3, 50) < 0.2).double()).synchrony == pytest.approx(1 / 50, rel=0.1)


# ---- time constants


def test_time_constants_say_whether_they_move(make_network):
    cell = make_network().cells[0]
    tau = torch.full((16,), 20.0)
    tau[:4] = 1e9
    cell.tau_theta = tau
    cell.log_tau_v.requires_grad_(False)
    voltage, threshold = time_constants(cell)
    assert (voltage.name, voltage.fixed, voltage.trained) == ("tau_v", False, False)
    assert (threshold.name, threshold.trained, threshold.stuck) == ("tau_theta", True, 0.25)
    assert threshold.decay == pytest.approx((12 * math.exp(-1 / 20) + 4) / 16)
