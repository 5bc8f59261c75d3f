"""Closed forms against autograd and their matrices."""

import pytest
import torch

from neurolsc import LIF, LRU, ALIFLowPass, ALIFPlus, ALIFPlusMinus, Network
from neurolsc.neurons import CubaLIF, DiagonalRNN
from neurolsc.stability.transitions import follow
from tests.neurons.steps import KINDS, RESETS, layers
from tests.stability.dense import (
    check_operator,
    check_terms,
    depth_factors,
    input_derivative_by_autograd,
    output_derivative_by_autograd,
    time_derivative,
    time_derivative_by_autograd,
)

pytestmark = pytest.mark.usefixtures("float64")

P, S, N_IN, N = 4, 5, 3, 2
LINEAR = ("LRU", "DiagonalRNN")


SPIKING = {
    f"{kind.__name__}, {reset}{', gradient' * gradient}": (kind, {"reset": reset, "reset_gradient": gradient})
    for kind in (LIF, CubaLIF, ALIFPlus, ALIFLowPass)
    for reset in RESETS
    for gradient in (True, False)
} | {"ALIF±": (ALIFPlusMinus, {})}


@pytest.mark.parametrize("case", [*SPIKING, *LINEAR, *KINDS])
def test_closed_forms_are_those_of_autograd_as_matrices_and_as_products(case, make_network, make_spikes):
    if case in SPIKING:
        kind, settings = SPIKING[case]
        network = make_network(kind, width=5, gain=6, tau_v=2.0, **settings)
    elif case in KINDS:
        network = layers(case)
    elif case == "LRU":
        network = Network([LRU(30, 5, n_state=5, dropout=0), LRU(5, 5, dropout=0)], 2)
    else:
        network = Network([DiagonalRNN(30, 5, n_state=5), DiagonalRNN(5, 5)], 2)
    steps = 20 if case in KINDS else 6
    transitions, outputs = follow(network, make_spikes(T=steps, B=2), torch.arange(steps))
    for t, z in zip(transitions, outputs, strict=True):
        assert case in LINEAR or 0 < z.mean() < 1
        known, dense = t.cell.derivatives(), time_derivative(t)
        torch.testing.assert_close(dense, time_derivative_by_autograd(t))
        step = known.state_map(t.x, t.before)
        check_operator(step, dense)
        check_terms(step, known.by_state(t.x, t.before), len(dense))
        by_input, below = depth_factors(t)
        wanted = input_derivative_by_autograd(t)
        if case in LINEAR:
            wanted[:, 10:] = 0  # the skip connection or D, which is no memory
        torch.testing.assert_close(by_input.expand(2 * steps, -1, -1), wanted)
        product = torch.eye(by_input.shape[2]).expand(2 * steps, -1, -1)
        for operator in known.input_maps(t.x, t.before):
            product = torch.stack([operator.matvec(column) for column in product.unbind(2)], 2)
        torch.testing.assert_close(product, wanted[:, : known.depth_size(t.before)])
        if t.below is not None:
            wanted = output_derivative_by_autograd(t)
            if case in LINEAR:
                wanted[..., 10:] = 0
            torch.testing.assert_close(below, wanted)
            (operator,) = t.below.derivatives().output_maps(t.state_below)
            check_operator(operator, below[..., : t.below.derivatives().depth_size(t.state_below)])
