"""Transition derivatives: closed forms = autograd = the network's own step, as matrices and as products, along runs
with spikes."""

import pytest
import torch
from torch import Tensor
from torch.func import jacrev

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus, Network, NetworkState, spectral_radius, surrogate
from neurolsc.stability.profile import depth_radius
from neurolsc.stability.transitions import Transitions, draw_steps, flat, follow, unflat
from tests.stability.dense import (
    depth_derivative,
    random_submatrix,
    time_derivative,
)

pytestmark = pytest.mark.usefixtures("float64")

every_cell = pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass])
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def points(network: Network, x: Tensor) -> list[Transitions]:
    transitions, outputs = follow(network, x, torch.arange(x.shape[0]))
    assert all(0 < z.mean() < 1 for z in outputs), "points with and without spikes"
    return transitions


# ---- matrices


@pytest.mark.parametrize("layer_delay", [0, 1])
@every_cell
def test_derivatives_are_those_of_the_networks_step(kind, layer_delay, make_network, make_spikes):
    # without a delay d h[t, 2] / d h[t-1, 1] = (d h[t, 2] / d h[t, 1]) (d h[t, 1] / d h[t-1, 1])
    network, x = make_network(kind, width=5, tau_v=2.0, gain=8, layer_delay=layer_delay), make_spikes(T=6, B=1)
    first, second = points(network, x)
    path = depth_derivative(second) if layer_delay else depth_derivative(second) @ time_derivative(first)
    for k, (frame, moment) in enumerate(zip(x, network.records(x), strict=True)):
        pending, (one, two) = moment.before.x, moment.before.layers

        def second_after(h: Tensor, frame=frame, pending=pending, one=one, two=two) -> Tensor:
            states = NetworkState((unflat(h.unsqueeze(0), one), two), pending)
            return flat(network.step(frame, states)[1].layers[1]).squeeze(0)

        torch.testing.assert_close(path[k], jacrev(second_after)(flat(one)[0]), **TOLERANCE)
        if layer_delay:

            def first_after(x: Tensor, frame=frame, one=one, two=two) -> Tensor:
                return flat(network.step(frame, NetworkState((one, two), x.unsqueeze(0)))[1].layers[0]).squeeze(0)

            by_input = depth_derivative(first).expand(6, -1, -1)[k]
            torch.testing.assert_close(by_input, jacrev(first_after)(pending[0]), **TOLERANCE)
    assert path.any()


# ---- products


@pytest.mark.parametrize("opaque", [False, True], ids=["closed form", "autograd"])
@pytest.mark.parametrize("non_square", ["submatrix", "singular"])
@pytest.mark.parametrize(("kind", "widths"), [(LIF, (9, 6, 4)), (ALIFPlus, (30, 6, 9)), (ALIFPlus, (12, 6, 6))])
def test_radii_through_depth_are_those_of_the_matrices_with_the_same_draws(
    kind, widths, non_square, opaque, make_spikes
):
    smooth = surrogate.FastSigmoid()
    spike = (lambda v: smooth(v)) if opaque else smooth
    n_in, first, second = widths
    network = Network([kind(n_in, first, spike=spike), kind(first, second, spike=spike)], 2)
    for layer, t in enumerate(follow(network, make_spikes(T=5, B=2, N=n_in), torch.arange(5))[0]):
        found = depth_radius(t, layer, non_square, torch.Generator().manual_seed(3)).radius
        m = depth_derivative(t).expand(10, -1, -1)
        if t.non_square and non_square == "singular":
            wanted = torch.linalg.matrix_norm(m, 2)
        else:
            wanted = spectral_radius(random_submatrix(m, torch.Generator().manual_seed(3)))
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-10)
        gradients = [torch.autograd.grad(radius.sum(), t.cell.w_in)[0] for radius in (found, wanted)]
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-8)
        assert wanted.any()


# ---- points


def test_points_are_ordered_by_step_and_sample_at_the_chosen_steps(make_network, make_spikes):
    network, x = make_network(width=5, gain=8), make_spikes(T=9, B=2)
    steps = torch.tensor([1, 4, 8])
    some, _ = follow(network, x, steps)
    every, outputs = follow(network, x, torch.arange(9))
    for t, u in zip(some, every, strict=True):
        assert torch.equal(flat(t.before), flat(u.before).view(9, 2, -1)[steps].flatten(0, 1))
        assert not flat(t.before).requires_grad
    assert all(map(torch.equal, outputs, network.run(x).spikes))


def test_drawn_steps_are_one_of_each_stretch_and_every_step_can_be_drawn():
    for total, count in ((10, 4), (5, 5)):
        drawn = set()
        for seed in range(60):
            steps = draw_steps(total, count, torch.Generator().manual_seed(seed)).tolist()
            assert all(i * total // count <= s < (i + 1) * total // count for i, s in enumerate(steps))
            drawn |= set(steps)
        assert drawn == set(range(total))
    with pytest.raises(ValueError, match="steps must be at most the 20 steps of the input, got 21"):
        draw_steps(20, 21, torch.Generator())
