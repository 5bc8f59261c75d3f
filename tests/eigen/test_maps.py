"""Derivatives applied without matrices equal the dense ones, and so do the solutions with their
factorisations."""

import pytest
import torch
from torch import Tensor

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus, Network
from neurolsc.eigen.autograd import Differentiated
from neurolsc.neurons.derivatives import SpikingStep
from neurolsc.stability.cycles import depth_cycle, time_cycle
from neurolsc.stability.measure import depth_radius
from neurolsc.stability.transition import Transitions, flat, follow, time_derivative, unflat
from neurolsc.surrogate import FastSigmoid

pytestmark = pytest.mark.usefixtures("float64")

every_cell = pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass])
every_reset = pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def points(network: Network, x: Tensor) -> list[Transitions]:
    transitions, outputs = follow(network, x, torch.arange(x.shape[0]))
    assert all(0 < z.mean() < 1 for z in outputs), "points with and without spikes"
    return transitions


def vectors(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


@every_cell
@every_reset
@pytest.mark.parametrize("reset_gradient", [False, True], ids=["detached", "gradient"])
def test_products_through_time_are_those_of_the_dense_derivative(
    kind, reset, reset_gradient, make_network, make_spikes
):
    network = make_network(kind, width=5, gain=6, tau_v=2.0, reset=reset, reset_gradient=reset_gradient)
    for t in points(network, make_spikes(T=8, B=3)):
        m = time_derivative(t)
        x, y = vectors(24, m.shape[1], 0), vectors(24, m.shape[1], 1)
        after_x, after_y = (m @ x.unsqueeze(2)).squeeze(2), (m.mT @ y.unsqueeze(2)).squeeze(2)
        closed = time_cycle(t)
        assert isinstance(closed.maps[0], SpikingStep)
        by_autograd = Differentiated(
            lambda h, i, t=t: flat(t.cell.step(i, unflat(h, t.before))[1]), flat(t.before), t.x
        )
        for products in (closed, by_autograd):
            torch.testing.assert_close(products.matvec(x), after_x, **CLOSE)
            torch.testing.assert_close(products.rmatvec(y), after_y, **CLOSE)
        some = torch.tensor([3, 20])
        torch.testing.assert_close(closed.take(some).matvec(x[some]), after_x[some], **CLOSE)
        torch.testing.assert_close(closed.matrices(t.x), m, **CLOSE)
        terms = closed.maps[0].terms(x, y)
        for name, term in t.cell.derivatives().by_state(t.x, t.before).items():
            torch.testing.assert_close(terms[name], torch.einsum("pi,pij,pj->p", y, term, x), **CLOSE)


@every_cell
@every_reset
@pytest.mark.parametrize("shift", [0.7, 0.4 - 0.8j], ids=["real", "complex"])
@pytest.mark.parametrize("dampening", [0.5, 0.0], ids=["spiking", "silent"])
def test_factorisation_without_threshold_rows_solves_the_whole_system(
    kind, reset, shift, dampening, make_network, make_spikes
):
    spike = FastSigmoid(dampening=dampening)
    network = make_network(kind, width=5, gain=6, tau_v=2.0, reset=reset, reset_gradient=True, spike=spike)
    for t in points(network, make_spikes(T=4, B=2)):
        m, shift = time_derivative(t)[5].detach(), torch.as_tensor(shift)
        rhs = vectors(2, len(m), 2).to(shift.dtype)
        factors = time_cycle(t).factors(5, shift, t.x)
        shifted = m - shift * torch.eye(len(m))
        torch.testing.assert_close(factors.solve(rhs[0]), torch.linalg.solve(shifted, rhs[0]), rtol=1e-8, atol=1e-10)
        expected = torch.linalg.solve(shifted.mH, rhs[1])
        torch.testing.assert_close(factors.solve_adjoint(rhs[1]), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("opaque", [False, True], ids=["closed form", "autograd"])
@pytest.mark.parametrize("non_square", ["submatrix", "singular"])
@pytest.mark.parametrize("widths", [(30, 6, 9), (9, 6, 4), (8, 5, 5), (12, 6, 6)])
@every_cell
def test_radii_through_depth_are_those_of_the_dense_path_with_the_same_draws(
    kind, widths, non_square, opaque, make_spikes
):
    surrogate = FastSigmoid()
    spike = (lambda v: surrogate(v)) if opaque else surrogate
    n_in, first, second = widths
    network = Network([kind(n_in, first, spike=spike), kind(first, second, spike=spike)], 2)
    for layer, t in enumerate(follow(network, make_spikes(T=5, B=2, N=n_in), torch.arange(5))[0]):
        exact, fast = (
            depth_radius(t, layer, non_square, torch.Generator().manual_seed(3), method)
            for method in ("exact", "krylov")
        )
        torch.testing.assert_close(fast.radius, exact.radius, rtol=1e-8, atol=1e-10)
        gradients = [torch.autograd.grad(r.radius.sum(), t.cell.w_in)[0] for r in (fast, exact)]
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-8)
        assert exact.radius.any()


def test_a_cycle_is_entered_where_it_is_narrowest(make_network, make_spikes):
    network = make_network(width=7, layers=1)
    (t,) = points(network, make_spikes(T=4, B=2))
    cycle = depth_cycle(t, "submatrix", torch.Generator().manual_seed(0))
    assert cycle.size == 7, "not 14, the state's size, nor 30, the input's"
