"""Closed forms against autograd and their matrices; where isolated neurons hold the radius."""

import pytest
import torch
from torch import Tensor

from neurolsc import LIF, LRU, ALIFLowPass, ALIFPlus, ALIFPlusMinus, Network
from neurolsc.neurons import CubaLIF
from neurolsc.neurons.blocks import IsolatedNeurons, SpikingStep
from neurolsc.neurons.spiking import alif_blocks
from neurolsc.stability.transitions import follow
from tests.neurons.steps import KINDS, RESETS, layers
from tests.stability.dense import (
    depth_factors,
    input_derivative_by_autograd,
    output_derivative_by_autograd,
    time_derivative,
    time_derivative_by_autograd,
)

pytestmark = pytest.mark.usefixtures("float64")

P, S, N_IN, N = 4, 5, 3, 2


def check_operator(operator, dense: Tensor) -> None:
    """Products, transposes and some of the points are those of the matrices (P, rows, columns)."""
    points, rows, columns = dense.shape
    assert (operator.rows, operator.columns) == (rows, columns)
    x, y, some = torch.randn(points, columns), torch.randn(points, rows), torch.tensor([points - 1, 0, 0])
    torch.testing.assert_close(operator.matvec(x), torch.einsum("pij,pj->pi", dense, x))
    torch.testing.assert_close(operator.rmatvec(y), torch.einsum("pij,pi->pj", dense, y))
    part = operator.take(some)
    torch.testing.assert_close(part.matvec(x[some]), torch.einsum("pij,pj->pi", dense[some], x[some]))
    torch.testing.assert_close(part.rmatvec(y[some]), torch.einsum("pij,pi->pj", dense[some], y[some]))


def check_terms(step, parts: dict[str, Tensor], points: int) -> None:
    some = torch.tensor([points - 1, 0])
    x, y = torch.randn(points, step.columns), torch.randn(points, step.rows)
    whole, part = step.terms(x, y), step.take(some).terms(x[:2], y[:2])
    assert set(whole) == set(part) == set(parts)
    for name, m in parts.items():
        m = m.expand(points, -1, -1)
        torch.testing.assert_close(whole[name], torch.einsum("pi,pij,pj->p", y, m, x))
        torch.testing.assert_close(part[name], torch.einsum("pi,pij,pj->p", y[:2], m[some], x[:2]))


SPIKING = {
    f"{kind.__name__}, {reset}{', gradient' * gradient}": (kind, {"reset": reset, "reset_gradient": gradient})
    for kind in (LIF, CubaLIF, ALIFPlus, ALIFLowPass)
    for reset in RESETS
    for gradient in (True, False)
} | {"ALIF±": (ALIFPlusMinus, {})}


@pytest.mark.parametrize("case", [*SPIKING, "LRU", *KINDS])
def test_closed_forms_are_those_of_autograd_as_matrices_and_as_products(case, make_network, make_spikes):
    if case in SPIKING:
        kind, settings = SPIKING[case]
        network = make_network(kind, width=5, gain=6, tau_v=2.0, **settings)
    elif case in KINDS:
        network = layers(case)
    else:
        network = Network([LRU(30, 5, n_state=5, dropout=0), LRU(5, 5, dropout=0)], 2)
    steps = 20 if case in KINDS else 6
    transitions, outputs = follow(network, make_spikes(T=steps, B=2), torch.arange(steps))
    for t, z in zip(transitions, outputs, strict=True):
        assert case == "LRU" or 0 < z.mean() < 1
        known, dense = t.cell.derivatives(), time_derivative(t)
        torch.testing.assert_close(dense, time_derivative_by_autograd(t))
        step = known.state_map(t.x, t.before)
        check_operator(step, dense)
        check_terms(step, known.by_state(t.x, t.before), len(dense))
        by_input, below = depth_factors(t)
        wanted = input_derivative_by_autograd(t)
        if case == "LRU":
            wanted[:, 10:] = 0  # the skip connection, which is no memory
        torch.testing.assert_close(by_input.expand(2 * steps, -1, -1), wanted)
        product = torch.eye(by_input.shape[2]).expand(2 * steps, -1, -1)
        for operator in known.input_maps(t.x, t.before):
            product = torch.stack([operator.matvec(column) for column in product.unbind(2)], 2)
        torch.testing.assert_close(product, wanted)
        if t.below is not None:
            wanted = output_derivative_by_autograd(t)
            if case == "LRU":
                wanted[..., 10:] = 0
            torch.testing.assert_close(below, wanted)
            (operator,) = t.below.derivatives().output_maps(t.state_below)
            check_operator(operator, below)


@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
@pytest.mark.parametrize("shift", [0.7, 0.3 + 0.4j], ids=["real", "complex"])
def test_factors_solve_with_the_shifted_matrix_and_its_adjoint(kind, shift, make_network, make_spikes):
    network = make_network(kind, width=6, gain=6, tau_v=2.0, reset_gradient=True)
    t = follow(network, make_spikes(T=6, B=2), torch.arange(6))[0][1]
    dense = time_derivative(t)[7].detach()
    shift = torch.tensor(shift)
    m = dense.to(shift.dtype) - shift * torch.eye(len(dense))
    b = torch.randn(len(dense)).to(shift.dtype)
    factors = t.cell.derivatives().state_map(t.x, t.before).take(torch.tensor([7])).factors(shift)
    torch.testing.assert_close(m @ factors.solve(b), b)
    torch.testing.assert_close(m.mH @ factors.solve_adjoint(b), b)


# ---- isolated neurons


def blocks(m: Tensor, neurons: int) -> Tensor:
    """m (P, n, n) with all entries between different neurons put to 0."""
    variables = m.shape[1] // neurons
    return m * torch.eye(neurons).repeat(variables, variables)


@pytest.mark.parametrize(("kind", "right"), [(LIF, True), (ALIFPlus, True), (ALIFPlus, False), (ALIFLowPass, False)])
def test_isolated_neurons_are_the_diagonal_blocks_and_their_gain_is_bounded(kind, right, make_network, make_spikes):
    network = make_network(kind, width=6, gain=6, tau_v=2.0, reset_gradient=True)
    t = follow(network, make_spikes(T=6, B=2), torch.arange(6))[0][1]
    step, d = t.cell.linearised(t.before), blocks(time_derivative(t).detach(), 6)
    alone, largest = IsolatedNeurons.of(step), torch.linalg.eigvals(d).abs().amax(1)
    torch.testing.assert_close(alone.modulus.amax(1), largest)
    real = alone.real.gather(1, alone.modulus.argmax(1, keepdim=True)).squeeze(1)
    assert real.any()
    known = step.eigenpair_hint(right, 0.01)
    x, value, m = known.vector.unsqueeze(2)[real], known.value[real], (d if right else d.mT)[real]
    torch.testing.assert_close(value.abs(), largest[real])
    torch.testing.assert_close(m.to(x.dtype) @ x, value[:, None, None] * x)
    torch.testing.assert_close(x.norm(dim=1).squeeze(1), torch.ones(len(x)))

    radius = 1.05 * alone.modulus.amax(1, keepdim=True)
    bound, variables = alone.gain(radius).detach(), d.shape[1] // 6
    into = torch.eye(d.shape[1])[:, :6].to(torch.complex128)
    out = torch.cat((torch.eye(6), -torch.eye(6)), 1)[:, : 6 * variables].to(torch.complex128)
    found = torch.zeros_like(bound)
    for angle in torch.linspace(0, 3.14159, 40):
        for far in (1.0, 1.5):
            mu = torch.polar(far * radius, angle.expand_as(radius)).unsqueeze(2)
            g = alone.s * (out @ torch.linalg.inv(mu * torch.eye(d.shape[1]) - d) @ into).diagonal(dim1=1, dim2=2)
            found = torch.maximum(found, g.abs().detach())
    assert (found <= (1 + 1e-9) * bound).all()
    assert (found > 0.97 * bound).double().mean() > 0.9, "nor is it far above"


def slow_thresholds(n: int, coupling: float, seed: int = 0, *, strong: int | None = None) -> SpikingStep:
    """An ALIF layer with slow thresholds, of a given radius of its coupling; `strong` has the eigenvalue 1.2 alone."""
    g = torch.Generator().manual_seed(seed)
    w_rec = torch.randn(n, n, generator=g) * coupling / n**0.5
    decay, rise = 0.9 + 0.09 * torch.rand(n, generator=g), torch.full((n,), 0.001)
    if strong is not None:
        rise[strong], decay[strong] = -0.6, 0.6
        w_rec[strong], w_rec[:, strong] = 3 * w_rec[strong], 3 * w_rec[:, strong]
    s, zero = torch.ones(1, n), torch.zeros(1, n)
    into = torch.stack([torch.ones(n), torch.zeros(n)])
    return SpikingStep(alif_blocks(s, zero, zero, zero, rise, decay), torch.stack([s, -s], 1), w_rec, into)


def test_isolated_neurons_hold_the_radius_only_where_the_network_has_no_more():
    for seed in range(2):
        assert not slow_thresholds(100, 1.05, seed).eigenpair_hint(False, 0.01).largest.any()
        mild = slow_thresholds(100, 0.4, seed).eigenpair_hint(False, 0.01)
        assert mild.exists.all()
        assert mild.largest.all()


def test_an_eigenvalue_that_the_network_moves_is_not_taken():
    step = slow_thresholds(100, 0.4, strong=7)  # the largest eigenvalue is of a neuron that the others read
    known = step.eigenpair_hint(False, 0.01)
    assert known.value.abs() > 1.1
    assert not known.exists.any()
    assert not known.largest.any()
