"""Transition derivatives: closed forms = autograd = what the network's own step does, along runs
with spikes."""

import pytest
import torch
from torch import Tensor
from torch.func import jacrev, vmap

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus, Network, NetworkState, surrogate
from neurolsc.stability.transition import (
    Transitions,
    depth_derivative,
    depth_factors,
    flat,
    follow,
    input_derivative_by_autograd,
    output_derivative_by_autograd,
    time_derivative,
    time_derivative_by_autograd,
    unflat,
)

pytestmark = pytest.mark.usefixtures("float64")

CELLS = (LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass)
SURROGATES = [getattr(surrogate, name) for name in surrogate.__all__ if name != "Surrogate"]
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def points_of_a_run(network: Network, x: Tensor) -> list[Transitions]:
    transitions, outputs = follow(network, x, torch.arange(x.shape[0]))
    for layer, z in enumerate(outputs):
        assert 0 < z.mean() < 1, f"layer {layer} needs points with and without spikes"
    return transitions


def time_derivative_by_torch_func(t: Transitions) -> Tensor:
    def step(h: Tensor, x: Tensor) -> Tensor:
        _, after = t.cell.step(x.unsqueeze(0), unflat(h.unsqueeze(0), t.before))
        return flat(after).squeeze(0)

    return vmap(jacrev(step))(flat(t.before), t.x)


@pytest.mark.parametrize("reset_gradient", [False, True], ids=["detached", "gradient"])
@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
@pytest.mark.parametrize("spike", SURROGATES, ids=lambda s: s.__name__)
@pytest.mark.parametrize("kind", CELLS)
def test_closed_forms_equal_autograd_and_torch_func(kind, spike, reset, reset_gradient, make_spikes):
    settings = {"spike": spike(0.7, 1.4), "reset": reset, "reset_gradient": reset_gradient, "tau_v": 2.0}
    network = Network([kind(8, 6, **settings), kind(6, 5, **settings)], 2)
    with torch.no_grad():
        network.cells[1].w_in.mul_(3)
    for t in points_of_a_run(network, make_spikes(T=10, B=3, N=8, rate=0.5)):
        assert t.cell.derivatives() is not None
        closed = time_derivative(t)
        torch.testing.assert_close(closed, time_derivative_by_autograd(t), **TOLERANCE)
        torch.testing.assert_close(closed, time_derivative_by_torch_func(t), **TOLERANCE)
        by_input, below = depth_factors(t)
        torch.testing.assert_close(by_input.expand(30, -1, -1), input_derivative_by_autograd(t), **TOLERANCE)
        if t.below is not None:
            torch.testing.assert_close(below, output_derivative_by_autograd(t), **TOLERANCE)


@pytest.mark.parametrize("kind", CELLS)
def test_depth_derivative_is_that_of_the_networks_step_with_delay(kind, make_network, make_spikes):
    network, x = make_network(kind, width=5, tau_v=2.0, gain=8), make_spikes(T=6, B=1)
    transitions = points_of_a_run(network, x)
    for k, moment in enumerate(network.moments(x)):
        pending, (first, second) = moment.before.x, moment.before.layers

        def second_after(h: Tensor, pending=pending, first=first, second=second) -> Tensor:
            states = NetworkState((unflat(h.unsqueeze(0), first), second), pending)
            return flat(network.step(torch.zeros(1, 30), states)[1].layers[1]).squeeze(0)

        def first_after(x: Tensor, first=first, second=second) -> Tensor:
            states = NetworkState((first, second), x.unsqueeze(0))
            return flat(network.step(torch.zeros(1, 30), states)[1].layers[0]).squeeze(0)

        expected = jacrev(second_after)(flat(first)[0])
        torch.testing.assert_close(depth_derivative(transitions[1])[k], expected, **TOLERANCE)
        expected = jacrev(first_after)(pending[0])
        torch.testing.assert_close(depth_derivative(transitions[0]).expand(6, -1, -1)[k], expected, **TOLERANCE)
    assert depth_derivative(transitions[1]).any()


@pytest.mark.parametrize("kind", CELLS)
def test_without_delay_the_path_over_both_layers_is_depth_times_time(kind, make_network, make_spikes):
    # d h[t, 2] / d h[t-1, 1] = (d h[t, 2] / d h[t, 1]) (d h[t, 1] / d h[t-1, 1])
    network, x = make_network(kind, width=5, layer_delay=0, tau_v=2.0, gain=8), make_spikes(T=6, B=1)
    transitions = points_of_a_run(network, x)
    path = depth_derivative(transitions[1]) @ time_derivative(transitions[0])
    for k, (frame, moment) in enumerate(zip(x, network.moments(x), strict=True)):
        first, second = moment.before.layers

        def second_after(h: Tensor, frame=frame, first=first, second=second) -> Tensor:
            states = NetworkState((unflat(h.unsqueeze(0), first), second), None)
            return flat(network.step(frame, states)[1].layers[1]).squeeze(0)

        torch.testing.assert_close(path[k], jacrev(second_after)(flat(first)[0]), **TOLERANCE)
    assert path.any()


@pytest.mark.parametrize("kind", CELLS)
def test_both_ways_have_the_same_gradient_by_the_parameters(kind, make_network, make_spikes):
    settings = {"reset_gradient": True, "tau_v": 2.0, "spike": surrogate.Gaussian(learnable=True)}
    network = make_network(kind, width=5, gain=8, **settings)
    for t in points_of_a_run(network, make_spikes(T=4, B=2)):
        weights = torch.randn(8, *time_derivative(t).shape[1:])
        gradients = [
            torch.autograd.grad((weights * m).sum(), list(t.cell.parameters()), allow_unused=True)
            for m in (time_derivative(t), time_derivative_by_autograd(t))
        ]
        torch.testing.assert_close(*gradients, **TOLERANCE)
        assert gradients[0][1].any()


def test_points_are_ordered_by_step_and_sample_and_keep_the_chosen_steps(make_network, make_spikes):
    network, x = make_network(width=5, gain=8), make_spikes(T=9, B=2)
    steps = torch.tensor([1, 4, 8])
    some, _ = follow(network, x, steps)
    every, outputs = follow(network, x, torch.arange(9))
    for t, u in zip(some, every, strict=True):
        kept = flat(u.before).view(9, 2, -1)[steps].flatten(0, 1)
        assert torch.equal(flat(t.before), kept)
        assert not flat(t.before).requires_grad
    run = network.run(x)
    assert all(map(torch.equal, outputs, run.spikes))


def test_cells_of_unequal_kinds_and_widths_stack(make_spikes):
    network = Network([LIF(30, 7), ALIFPlus(7, 4)], 2)
    first, second = follow(network, make_spikes(T=5, B=2), torch.arange(5))[0]
    assert time_derivative(first).shape == (10, 7, 7)
    assert time_derivative(second).shape == (10, 8, 8)
    assert depth_derivative(first).shape[1:] == (7, 30)
    assert depth_derivative(second).shape == (10, 8, 7)
