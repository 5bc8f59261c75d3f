"""Radii of derivatives that are applied and not formed.

Those that are small go a dense path; those that do not settle are formed and squared, and go the
dense path where that does not tell.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.acceptance import Acceptance
from neurolsc.eigen.bounds import CLOSEST, between
from neurolsc.eigen.eigenpairs import Pairs, matched, modulus, pairs_near
from neurolsc.eigen.krylov import Dominant, dominant
from neurolsc.eigen.maps import Cycle
from neurolsc.eigen.pieces import with_bases, with_matrices
from neurolsc.eigen.radius import leading_pair, spectral_radius
from neurolsc.eigen.vectors import start

Method = Literal["krylov", "exact"]
"""How a radius is found: by products with vectors where that pays, or always dense."""

METHODS: tuple[Method, ...] = ("krylov", "exact")

DENSE_BELOW = 75
"""size up to which dense eigenvalues are taken: there they cost no more than a basis
(benchmarks/radii.py)"""

FACTORED_BELOW = 1024
"""size up to which whole matrices are squared, and eigenvectors come from factorisations, one point
at a time; of larger ones from two bases"""

TOLERANCE = 0.01
"""relative error of a radius that is not from dense eigenvalues"""
LOOSEST = 0.1
"""the largest tolerance"""


class Radii(NamedTuple):
    """Radii of a batch of derivatives."""

    radius: Tensor
    """(P,) largest eigenvalue modulus"""
    exact: Tensor
    """(P,) bool: found by the dense path"""

    def at(self, index: Tensor) -> "Radii":
        """Those at some points."""
        return Radii(self.radius[index], self.exact[index])


def radii(cycle: Cycle, like: Tensor, tolerance: float = TOLERANCE) -> Radii:
    """Radii of the derivatives at all points.

    They are differentiable by the parameters behind their products.

    Args:
        cycle: the derivatives.
        like: a tensor of their dtype and device.
        tolerance: relative error up to which a radius counts; the larger, the fewer products.

    Returns:
        The radii, each from a basis that meets the criteria or, where it does not, from bounds that
        meet or else from dense eigenvalues; and which are dense.

    Of eigenvalues that share the largest modulus any may answer for the gradient, of a complex pair
    either, and where several lie within the tolerance of the largest, one of these. The gradient of
    the radius 0 is 0. Nearly defective matrices go the exact way, where their gradient is capped as
    in :func:`neurolsc.spectral_radius`.

    Raises:
        ValueError: if the tolerance is not in 0 ... 0.1.
        FloatingPointError: if a product is NaN or infinite.
    """
    if not 0 < tolerance <= LOOSEST:
        raise ValueError(f"tolerance must be above 0 and at most {LOOSEST}, got {tolerance}.")
    pieces = torch.arange(cycle.points, device=like.device).split(with_bases(like, cycle.size))
    parts = [_piece(cycle.take(index) if len(pieces) > 1 else cycle, like, tolerance) for index in pieces]
    return Radii(*(torch.cat(part) for part in zip(*parts, strict=True)))


def small(size: int) -> bool:
    """Whether dense eigenvalues of matrices of this size are cheaper than a basis."""
    return size <= DENSE_BELOW


def leading_pairs(cycle: Cycle, like: Tensor) -> Pairs:
    """Eigenpairs of the largest eigenvalue at every point, without gradient."""
    with torch.no_grad():
        return _pairs(cycle, _dominant(cycle, like, _strict(TOLERANCE)), like, TOLERANCE)[1]


def root(radius: Tensor) -> Tensor:
    """The square root, whose gradient at 0 is 0."""
    positive = radius > 0
    return torch.where(positive, torch.where(positive, radius, 1).sqrt(), 0)


def _finite(m: Tensor) -> Tensor:
    if not m.isfinite().all():
        raise FloatingPointError("a derivative holds NaN or infinity.")
    return m


def _strict(tolerance: float) -> Acceptance:
    return Acceptance.within(tolerance, strict=True)


def _piece(cycle: Cycle, like: Tensor, tolerance: float) -> Radii:
    if small(cycle.size):
        radius = spectral_radius(_finite(cycle.matrices(like)))
        return Radii(radius, torch.ones(cycle.points, dtype=torch.bool, device=like.device))
    if not torch.is_grad_enabled():
        largest = _dominant(cycle, like, Acceptance.within(tolerance))
        radius = largest.value.abs()
        for i in (~largest.settled).nonzero().flatten().tolist():
            radius[i] = spectral_radius(_finite(cycle.matrix(i, like)))
        return Radii(radius, ~largest.settled)
    with torch.no_grad():
        radius, pairs, exact = _pairs(cycle, _dominant(cycle, like, _strict(tolerance)), like, tolerance)
    slope = modulus(cycle, pairs)
    return Radii(radius + (slope - slope.detach()), exact)


def _dominant(cycle: Cycle, like: Tensor, criteria: Acceptance, *, right: bool = False) -> Dominant:
    """The largest eigenvalues with left eigenvectors, or with right ones.

    Products for left ones are cheaper by autograd.
    """
    vector = like.new_zeros(cycle.points, cycle.size, dtype=like.dtype.to_complex())
    found = Dominant(vector[:, 0].clone(), vector, torch.zeros(cycle.points, dtype=torch.bool, device=like.device))
    least, known = found.value, cycle.known(right, criteria.tolerance)
    if known is not None:
        found = Dominant(known.value.clone(), known.vector, known.largest.clone())
        least = torch.where(known.exists, known.value, 0)
    open_points = ~found.settled & (~cycle.hears_few(like) if cycle.size <= FACTORED_BELOW else True)
    rest = open_points.nonzero().squeeze(1)
    if len(rest):
        part = cycle if len(rest) == cycle.points else cycle.take(rest)
        new = _by_products(part, like, criteria, least[rest], right=right)
        found.settled[rest] = new.settled
        larger = new.value.abs() > least[rest].abs()
        found.value[rest[larger]], found.vector[rest[larger]] = new.value[larger], new.vector[larger]
        rest = rest[~new.settled]
    if len(rest) and cycle.size <= FACTORED_BELOW and criteria.tolerance >= CLOSEST:
        new = _by_bounds(cycle.take(rest), like, criteria.tolerance, right=right)
        shown = rest[new.settled]
        found.value[shown], found.vector[shown] = new.value[new.settled], new.vector[new.settled]
        found.settled[shown] = True
    return found


def _by_products(cycle: Cycle, like: Tensor, criteria: Acceptance, least: Tensor, *, right: bool) -> Dominant:
    def products(index: Tensor) -> Callable[[Tensor], Tensor]:
        part = cycle if len(index) == cycle.points else cycle.take(index)
        return part.matvec if right else part.rmatvec

    found = dominant(products, start(cycle.size, like).expand(cycle.points, -1), least, criteria=criteria)
    return found if right else found._replace(value=found.value.conj())  # M^T y = l y is y^H M = conj(l) y^H, M real


def _by_bounds(cycle: Cycle, like: Tensor, tolerance: float, *, right: bool) -> Dominant:
    pieces = torch.arange(cycle.points, device=like.device).split(with_matrices(cycle.size))
    whole = (_finite(cycle.take(index).matrices(like)) for index in pieces)
    parts = [between(m if right else m.mT, tolerance) for m in whole]
    value, vector, settled = (torch.cat(part) for part in zip(*parts, strict=True))
    value, vector = (part.to(like.dtype.to_complex()) for part in (value, vector))
    return Dominant(value if right else value.conj(), vector, settled)


def _pairs(cycle: Cycle, largest: Dominant, like: Tensor, tolerance: float) -> tuple[Tensor, Pairs, Tensor]:
    """Radii, eigenpairs of each point, and which of them are dense (P,)."""
    radius = largest.value.abs()
    if cycle.size <= FACTORED_BELOW:
        pairs = pairs_near(cycle, largest.value, largest.vector)
    else:
        close = tolerance / 10
        criteria = Acceptance.within(tolerance)._replace(residual=close, exposed=2 * close)
        right, left = (_dominant(cycle, like, criteria, right=side) for side in (True, False))
        pairs = matched(right, left, close)
    good = largest.settled & pairs.found & (pairs.value.abs() >= (1 - tolerance / 2) * radius)
    radius = torch.where(good, torch.maximum(radius, pairs.value.abs()), radius)
    for i in (~good).nonzero().flatten().tolist():
        value, right, left = leading_pair(_finite(cycle.matrix(i, like)))
        radius[i], pairs.value[i], pairs.right[i], pairs.left[i] = value.abs(), value, right, left
    return radius, pairs, ~good
