"""Stability below threshold: closed forms against autograd and eigenvalues, and published initialisations.

And surrogates whose derivative is not finite.
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus, SpikingCell
from neurolsc.neurons import BRF, PLIF, RF, RNN, TCLIF, CubaLIF, EFAdLIF, ExactRF, RadLIF, SEAdLIF
from neurolsc.stability import at_threshold, below_threshold
from neurolsc.stability.conditions import finite_distances, neuron_radii, surrogate_fault
from neurolsc.stability.transitions import flat
from neurolsc.surrogate import FastSigmoid

DRAWS = 200_000
KINDS = [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass, CubaLIF, EFAdLIF, SEAdLIF, RadLIF, RF, BRF, ExactRF, PLIF, TCLIF]


def undrawn(weights: Tensor) -> Tensor:
    return weights


def many(kind: type, n: int = DRAWS, **settings: object):
    """A layer of so many neurons without the weights between them, which have n² entries and are not drawn."""
    cell = kind(1, 2, **settings)
    made = [kind(1, 100, initial=(undrawn, undrawn), **settings) for _ in range(n // 100)]
    drawn = [dict(one.named_parameters()) for one in made]
    for name, parameter in cell.named_parameters():
        if name not in ("w_in", "w_rec") and parameter.shape == (2,) and name != "c":
            parameter.data = torch.cat([parameters[name].data for parameters in drawn])
    for name, buffer in list(cell.named_buffers()):
        setattr(cell, name, buffer[:1].expand(n).clone())
    cell.n_hidden = n
    return cell


def blocks_by_autograd(cell, slope: bool = False) -> Tensor:
    """The derivative of each neuron's step by its own variables (n, k, k), at rest, without weights."""
    cell.w_rec.data.zero_()
    rest = cell.initial_state(1)
    if slope:
        membrane = cell.membrane()
        by = membrane.thresholds(rest) - membrane.voltage(rest)
        rest = membrane.moved(rest, by)
    n, k = cell.n_hidden, len(rest)

    def step(h: Tensor) -> Tensor:
        state = type(rest)(*h.view(k, 1, n))
        z = cell.output(state) if slope else torch.zeros(1, n)
        return flat(cell.update(torch.zeros(1, cell.n_in), z, state))[0]

    whole = torch.autograd.functional.jacobian(step, flat(rest)[0].detach()).view(k, n, k, n)
    return whole.diagonal(dim1=1, dim2=3).movedim(-1, 0)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_below_threshold_is_that_of_autograd_of_the_step(kind):
    cell = kind(3, 200)
    found = below_threshold(cell)
    expected = blocks_by_autograd(cell)
    torch.testing.assert_close(found.matrix, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.radius, torch.linalg.eigvals(expected).abs().amax(1), rtol=0, atol=2e-8)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", KINDS)
def test_the_matrix_at_threshold_is_that_of_autograd_with_the_derivative_of_the_spike(kind):
    for settings in ({"reset_gradient": False}, {"reset_gradient": True}) if issubclass(kind, SpikingCell) else ({},):
        cell = kind(3, 50, spike=FastSigmoid(0.7), **settings)
        found = at_threshold(cell).matrix
        torch.testing.assert_close(found, blocks_by_autograd(cell, slope=True), rtol=0, atol=1e-10)


def wide(kind: type):
    """A layer whose parameters lie on both sides of every condition."""
    if issubclass(kind, RF | BRF):
        cell = many(kind, omega_range=(1, 99), damping_range=(0, 250))
    elif kind is RadLIF:
        cell = many(kind, clamp=False)
        cell.a.data = torch.empty(DRAWS).uniform_(-2, 60)
    else:
        cell = many(kind, clamp=False, tau_u_range=(0.5, 50), tau_w_range=(0.5, 100))
        cell.a.data = torch.empty(DRAWS).uniform_(-0.05, 0.5) * torch.empty(DRAWS).exponential_(1.0)
    return cell


@pytest.mark.slow
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", [EFAdLIF, SEAdLIF, RadLIF, RF, BRF])
def test_conditions_and_radii_are_those_of_eigenvalues_on_200_000_neurons(kind):
    found = below_threshold(wide(kind))
    eigenvalues = torch.linalg.eigvals(found.matrix).abs().amax(1)
    clear = (eigenvalues - 1).abs() > 1e-7
    stable = torch.stack([bound.margin for bound in found.bounds]).amin(0) > 0
    assert torch.equal(stable[clear], (eigenvalues < 1)[clear])
    for bound in found.bounds:  # each is broken by some
        assert 0.001 < (bound.margin < 0).double().mean() < 0.999, bound.violated
    # numeric eigenvalues of nearly equal pairs are right to the root of the rounding
    torch.testing.assert_close(found.radius, eigenvalues, rtol=0, atol=1e-6)
    close = (found.radius - eigenvalues).abs() < 1e-10
    assert close.double().mean() > 0.999
    assert found.outside == pytest.approx((eigenvalues > 1 + 1e-6).double().mean().item(), abs=1e-5)


@pytest.mark.long
@pytest.mark.usefixtures("float64")
def test_the_shares_of_published_initialisations():
    sparch = below_threshold(many(RadLIF))
    assert sparch.outside == pytest.approx(0.489, abs=0.004)
    assert sparch.radius.max() == pytest.approx(1.42, abs=0.01)
    broken = sparch.main_bound()
    assert broken is not None
    assert broken.violated == "a < -(1 - beta)"
    for parametrisation in ("cadlif", "silif"):
        assert below_threshold(many(RadLIF, parametrisation=parametrisation)).outside == 0
    explicit = below_threshold(many(EFAdLIF))
    assert explicit.outside == pytest.approx(0.036, abs=0.002)
    symplectic = below_threshold(many(SEAdLIF))
    assert symplectic.outside == 0
    assert symplectic.oscillating == pytest.approx(0.97, abs=0.005)
    assert below_threshold(many(RF)).outside == 0
    digits = below_threshold(many(RF, omega_range=(15, 85), damping_range=(0.1, 1.0)))
    assert digits.outside == 1
    assert digits.radius.max() == pytest.approx(1.31, abs=0.005)
    assert below_threshold(many(BRF, omega_range=(15, 85), damping_range=(0.1, 1.0))).outside == 0
    for logits in torch.randn(20, 2):
        two = TCLIF(2, 3)
        two.c.data = 3 * logits
        torch.testing.assert_close(below_threshold(two).radius, torch.ones(3), rtol=0, atol=1e-14)
        assert below_threshold(two).outside == 0


@pytest.mark.usefixtures("float64")
def test_the_adaptation_of_an_alif_has_a_range_in_which_its_feedback_is_stable():
    dampening = torch.linspace(0.1, 0.9, 400)  # each neuron has its own
    cell = ALIFPlusMinus(3, 400, tau_theta=50.0, spike=FastSigmoid(dampening))
    decay = cell.decay_theta.detach()
    low, high = -(1 - decay) / dampening, (1 + decay) / dampening
    outside = (cell.adaptation < low) | (cell.adaptation > high)
    assert 0.1 < outside.double().mean() < 0.9
    assert torch.equal(at_threshold(cell).radius > 1, outside)
    assert below_threshold(cell).outside == 0


class Other(SEAdLIF):
    """Another step, of which the condition of SE-adLIF says nothing."""

    def update(self, x, z, state):
        return state


@pytest.mark.parametrize("kind", [RNN, Other])
def test_a_condition_of_a_cell_without_one_is_refused_by_name(kind):
    with pytest.raises(TypeError, match=f"a {kind.__name__} does not state its matrix below threshold"):
        below_threshold(kind(2, 3))


@pytest.mark.usefixtures("float64")
def test_radii_of_three_variables_and_of_triangular_matrices_are_those_of_eigenvalues():
    full, triangular = torch.randn(50, 3, 3), torch.randn(50, 3, 3).tril()
    for m in (full, triangular):
        torch.testing.assert_close(neuron_radii(m), torch.linalg.eigvals(m).abs().amax(1))


# ---- surrogates


class Step(torch.autograd.Function):
    """A spike with any derivative, a function of v - theta."""

    @staticmethod
    def forward(ctx: Any, v: Tensor, derivative: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(v)
        ctx.derivative = derivative
        return (v > 0).to(v)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (v,) = ctx.saved_tensors
        return gradient * ctx.derivative(v), None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "derivative", [lambda v: 1 / v.abs(), lambda v: v / v, lambda v: v**-8], ids=["infinite", "NaN", "overflows nearby"]
)
def test_a_derivative_that_is_not_finite_at_the_threshold_alone_is_a_fault(derivative, dtype):
    cell = LIF(2, 3, spike=lambda v: Step.apply(v, derivative), threshold=0.3).to(dtype)
    voltage = cell.theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cell.spike(voltage - cell.theta).sum(), voltage)
    assert not gradient.isfinite().any()
    assert "derivative of its surrogate is not finite at the threshold (" in str(surrogate_fault(cell, 0))
    assert finite_distances(cell) == (-math.inf, math.inf), "there is no end of a range to clamp voltages to"
    cell.spike = FastSigmoid()
    assert surrogate_fault(cell, 0) is None


@pytest.mark.parametrize(("side", "sign"), [("below", -1), ("above", 1)])
def test_where_a_derivative_is_not_finite_is_said_by_distance_and_side(side, sign):
    cell = LIF(2, 3, spike=lambda v: Step.apply(v, lambda v: torch.where(sign * v > 1.5, math.inf, 1)))
    assert f"not finite 1.5 or more {side} the threshold" in str(surrogate_fault(cell, 0))
    assert sorted(map(abs, finite_distances(cell))) == [pytest.approx(1.5, abs=0.0021), math.inf]
