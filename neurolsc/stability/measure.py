"""Radii at the points of a run, through time and through depth, and which terms hold them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from neurolsc.eigen.maps import Cycle
from neurolsc.eigen.pieces import with_matrices
from neurolsc.eigen.radii import TOLERANCE, Method, Radii, leading_pairs, radii, root, small
from neurolsc.eigen.radius import (
    largest_singular_value,
    radius_and_gradient,
    random_submatrix,
    spectral_radius,
)
from neurolsc.neurons.cell import synapses
from neurolsc.neurons.derivatives import StepMap
from neurolsc.stability.cycles import NonSquare, by_input, depth_cycle, time_cycle
from neurolsc.stability.findings import surrogate_fault
from neurolsc.stability.recurrence import without
from neurolsc.stability.transition import Transitions, depth_factors, flat, sum_of, time_derivative

NON_SQUARE: tuple[NonSquare, ...] = ("submatrix", "singular")

SOURCES, BY_AUTOGRAD = 64, 16
"""points of a layer at which the terms of the derivative are compared where that is not done
everywhere, and those of a cell without a closed form, whose products are slower"""


def time_radius(t: Transitions, layer: int, method: Method = "krylov", tolerance: float = TOLERANCE) -> Radii:
    """Radii through time at the points of t, shape (K B,), differentiable by the parameters."""
    if method == "exact":
        return _dense(spectral_radius(_finite(time_derivative(t), t, layer, "time")))
    known = t.cell.derivatives()
    with_input = known is None or known.reads_input
    some, which = _distinct(t, flat(t.before), *((t.x,) if with_input else ()))
    with _named(t, layer, "time"):
        return radii(time_cycle(some), t.x, tolerance).at(which)


def depth_radius(
    t: Transitions,
    layer: int,
    non_square: NonSquare,
    generator: torch.Generator,
    method: Method = "krylov",
    tolerance: float = TOLERANCE,
) -> Radii:
    """Radii through depth at the points of t, shape (K B,), differentiable by the parameters."""
    points, unequal = t.x.shape[0], is_non_square(t)
    if method == "exact":
        return _dense(_dense_depth_radius(t, layer, non_square, generator).expand(points))
    which = torch.arange(points, device=t.x.device)
    if not (unequal and non_square == "submatrix"):  # another choice at every point
        below = () if t.state_below is None else (flat(t.state_below),)
        alike = all(part.same for part in by_input(t))
        t, which = _distinct(t, *below, *(() if alike else (t.x, flat(t.before))))
    cycle = depth_cycle(t, non_square, generator)
    with _named(t, layer, "depth"):
        found = radii(cycle, t.x, tolerance)
    if unequal and non_square == "singular":  # the cycle is M times its transpose
        found = found._replace(radius=root(found.radius))
    return found.at(which if cycle.points > 1 else torch.zeros_like(which))


def _dense(radius: Tensor) -> Radii:
    return Radii(radius, torch.ones_like(radius, dtype=torch.bool))


def _distinct(t: Transitions, *parts: Tensor) -> tuple[Transitions, Tensor]:
    """The points that differ in what they hold (P, ...), and which of them each point is like.

    Before the first spikes arrive all samples are alike, which is a fifth of the steps of
    spike-latency MNIST.
    """
    if not parts:
        return t, torch.arange(len(t.x), device=t.x.device)
    rows = torch.cat([part.detach() for part in parts], 1)
    which = torch.unique(rows, dim=0, return_inverse=True)[1]
    points = torch.arange(len(rows), device=rows.device)
    first = points.new_full((int(which.max()) + 1,), len(rows)).scatter_reduce(0, which, points, "amin")
    return (t, points) if len(first) == len(rows) else (at_points(t, first), which)


def _dense_depth_radius(t: Transitions, layer: int, non_square: NonSquare, generator: torch.Generator) -> Tensor:
    by_input, below = depth_factors(t)
    if not is_non_square(t):
        # A B and B A have the same eigenvalues but for zeros, and B A is no larger than the layer
        # below
        return spectral_radius(_finite(by_input if below is None else below @ by_input, t, layer, "depth"))
    m = _finite(by_input if below is None else by_input @ below, t, layer, "depth")
    if non_square == "singular":
        return largest_singular_value(m)
    return spectral_radius(random_submatrix(m.expand(t.x.shape[0], -1, -1), generator))


def contributions_of(t: Transitions, layer: int, method: Method, radius: Tensor) -> dict[str, Tensor]:
    """What each term contributes to the radius through time, at some or all points; they sum to it.

    The contribution of a term is its product with the gradient of the radius. Without a closed form
    the terms are the recurrent weights and the rest, where the cell says what its voltage is.

    Args:
        t: the points.
        layer: number of the layer, for errors.
        method: as in :func:`time_radius`.
        radius: the radii at the points (P,).

    Returns:
        Contributions by name; empty if nothing is known.
    """
    known = t.cell.derivatives()
    if known is not None and not known.terms:
        return {}
    if known is not None and (method == "exact" or small(states(t))):
        pieces = [_dense_contributions(piece, layer) for piece in chunks(t, with_matrices(states(t)))]
        return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    count = min(len(t.x), BY_AUTOGRAD if known is None else SOURCES)
    some = at_points(t, torch.arange(count) * len(t.x) // count)
    if known is not None:
        return contributions(time_cycle(some), t.x)
    thresholds, reset = t.cell.thresholds(), getattr(t.cell, "reset", t.cell)
    if t.cell.membrane() is None and not t.cell.integrator:
        return {}
    carries = getattr(reset, "gradient", getattr(reset, "reset_gradient", None))
    adapts = thresholds is not None and len(thresholds.names) > 1
    own = " and ".join(["leak", *(["reset"] if carries else []), *(["adaptation"] if adapts else [])])
    matrices = synapses(t.cell, "time")
    if not matrices:
        return {own: radius}
    cycle = time_cycle(some)
    pairs = leading_pairs(cycle, t.x)
    with without(matrices), torch.no_grad():
        (step,) = time_cycle(some).maps
        x, y = pairs.right, pairs.left.conj()
        rest = (y * torch.complex(step.matvec(x.real), step.matvec(x.imag))).sum(1)
    size = pairs.value.abs()
    leak = (rest * pairs.value.conj() / size.clamp(min=torch.finfo(t.x.dtype).tiny)).real
    return {own: leak, "recurrence": size - leak}


def contributions(cycle: Cycle, like: Tensor) -> dict[str, Tensor]:
    """What each named term of a closed form contributes to the radius at every point, (P,).

    The contributions sum up to the radius.
    """
    (step,) = cycle.maps
    assert isinstance(step, StepMap)
    pairs = leading_pairs(cycle, like)
    x, y = pairs.right, pairs.left
    with torch.no_grad():
        parts = [step.terms(a, b) for a in (x.real, x.imag) for b in (y.real, y.imag)]
        phase = pairs.value.conj() / pairs.value.abs().clamp(min=torch.finfo(like.dtype).tiny)
        return {
            name: (phase * torch.complex(parts[0][name] + parts[3][name], parts[2][name] - parts[1][name])).real
            for name in parts[0]
        }


def _dense_contributions(t: Transitions, layer: int) -> dict[str, Tensor]:
    known = t.cell.derivatives()
    assert known is not None
    terms = known.by_state(t.x, t.before)
    gradient = radius_and_gradient(_finite(sum_of(terms), t, layer, "time")).gradient
    return {name: (gradient * term).sum((-2, -1)).expand(len(t.x)) for name, term in terms.items()}


def is_non_square(t: Transitions) -> bool:
    """Whether the depth derivative of a layer is not square: state and input differ in size."""
    below = t.cell.n_in if t.state_below is None else flat(t.state_below).shape[1]
    return below != states(t)


def states(t: Transitions) -> int:
    """Number of real state variables of the layer."""
    return flat(t.before).shape[1]


def _finite(m: Tensor, t: Transitions, layer: int, direction: str) -> Tensor:
    if not m.isfinite().all():
        raise _not_finite(t, layer, direction)
    return m


@contextmanager
def _named(t: Transitions, layer: int, direction: str) -> Iterator[None]:
    try:
        yield
    except FloatingPointError as error:
        raise _not_finite(t, layer, direction) from error


def _not_finite(t: Transitions, layer: int, direction: str) -> FloatingPointError:
    of, number = (t.cell, layer) if direction == "time" or t.below is None else (t.below, layer - 1)
    if fault := surrogate_fault(of, number):
        return FloatingPointError(str(fault))
    return FloatingPointError(
        f"layer {layer + 1}: the derivative through {direction} holds NaN or infinity. Its weights or states have "
        "run away; lower the learning rate, or start from smaller weights."
    )


def chunks(t: Transitions, size: int) -> Iterator[Transitions]:
    """The transitions, so many points at a time."""
    for start in range(0, t.x.shape[0], size):
        yield at_points(t, slice(start, start + size))


def at_points(t: Transitions, points: slice | Tensor) -> Transitions:
    """The transitions at some of their points."""
    below = None if t.state_below is None else type(t.state_below)(*(leaf[points] for leaf in t.state_below))
    return Transitions(t.cell, t.x[points], type(t.before)(*(leaf[points] for leaf in t.before)), t.below, below)
