"""Radii of derivatives that are applied and not formed, with a dense path for those that are small or do not settle."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.eigenpairs import Pairs, matched, modulus, pairs_near
from neurolsc.eigen.krylov import Dominant, dominant
from neurolsc.eigen.maps import Cycle
from neurolsc.eigen.radius import leading_pair, spectral_radius

Method = Literal["krylov", "exact"]
"""How a radius is found: from products with vectors where that pays, or by dense eigenvalues always."""

METHODS: tuple[Method, ...] = ("krylov", "exact")

DENSE_BELOW = 75
"""size up to which dense eigenvalues are taken: there they cost no more than a basis (benchmarks/radii.py)"""

FACTORED_BELOW = 1024
"""size up to which eigenvectors come from factorisations, one point at a time; of larger ones from two bases"""

# relative, at which a value has settled: errors are below 1 % (benchmarks/radii.py)
_RESIDUAL, _STRICT = 0.005, 0.003  # without a gradient, and with one
_DRIFT = 0.003
_CLOSE = 1e-3  # the relative residual of both eigenvectors where they come from bases
_NEAR = 0.99  # a gradient is that of an eigenvalue with at least this share of the largest modulus
PIECES = {"cpu": 2**15, "other": 2**20}
"""numbers that the vectors of the points done at a time may hold together: on a CPU as many as stay in the cache, on a GPU as many
as keep it busy; a basis takes some 200 times as many"""


class Radii(NamedTuple):
    """Radii of a batch of derivatives."""

    radius: Tensor
    """(P,) largest eigenvalue modulus"""
    exact: Tensor
    """(P,) bool: found by the dense path"""

    def at(self, index: Tensor) -> "Radii":
        """Those at some points."""
        return Radii(self.radius[index], self.exact[index])


def radii(cycle: Cycle, like: Tensor) -> Radii:
    """Radii of the derivatives at all points, differentiable by the parameters behind their products.

    Args:
        cycle: the derivatives.
        like: a tensor of their dtype and device.

    Returns:
        The radii, each from a basis that has settled or, where it has not, from dense eigenvalues; and which.

    Of eigenvalues that share the largest modulus any may answer for the gradient, of a complex pair either, and where several
    lie within 1 % of the largest, one of these. The gradient of the radius 0 is 0. Nearly defective matrices go the exact
    way, where their gradient is capped as in :func:`neurolsc.spectral_radius`.

    Raises:
        FloatingPointError: if a product is NaN or infinite.
    """
    pieces = torch.arange(cycle.points, device=like.device).split(at_once(like, cycle.size))
    parts = [_piece(cycle.take(index) if len(pieces) > 1 else cycle, like) for index in pieces]
    return Radii(*(torch.cat(part) for part in zip(*parts, strict=True)))


def at_once(like: Tensor, size: int) -> int:
    """How many points with so many variables are done at a time."""
    return max(1, PIECES.get(like.device.type, PIECES["other"]) // size)


def small(size: int) -> bool:
    """Whether dense eigenvalues of matrices of this size are cheaper than a basis."""
    return size <= DENSE_BELOW


def leading_pairs(cycle: Cycle, like: Tensor) -> Pairs:
    """Eigenpairs of the largest eigenvalue at every point, without gradient."""
    with torch.no_grad():
        return _pairs(cycle, _dominant(cycle, like), like)[1]


def root(radius: Tensor) -> Tensor:
    """The square root, whose gradient at 0 is 0."""
    positive = radius > 0
    return torch.where(positive, torch.where(positive, radius, 1).sqrt(), 0)


def _piece(cycle: Cycle, like: Tensor) -> Radii:
    if small(cycle.size):
        matrices = cycle.matrices(like)
        if not matrices.isfinite().all():
            raise FloatingPointError("a derivative holds NaN or infinity.")
        return Radii(spectral_radius(matrices), torch.ones(cycle.points, dtype=torch.bool, device=like.device))
    residual = _STRICT if torch.is_grad_enabled() else _RESIDUAL
    with torch.no_grad():
        largest = _dominant(cycle, like, residual=residual)
    if not torch.is_grad_enabled():
        radius = largest.value.abs()
        for i in (~largest.settled).nonzero().flatten().tolist():
            radius[i] = torch.linalg.eigvals(cycle.matrix(i, like).cpu()).abs().max()
        return Radii(radius, ~largest.settled)
    with torch.no_grad():
        radius, pairs, exact = _pairs(cycle, largest, like)
    slope = modulus(cycle, pairs)
    return Radii(radius + (slope - slope.detach()), exact)


def _dominant(cycle: Cycle, like: Tensor, *, right: bool = False, residual: float = _STRICT) -> Dominant:
    """The largest eigenvalues with left eigenvectors, of which a product is cheaper by autograd, or with right ones."""
    start, guess = starting_values(cycle.size, like).expand(cycle.points, -1), cycle.guess(right)
    taken, part = torch.empty(0), cycle

    def apply(x: Tensor, index: Tensor) -> Tensor:
        nonlocal taken, part
        if index is not taken:  # the same points are asked for many times
            taken, part = index, cycle if len(index) == cycle.points else cycle.take(index)
        return part.times(x) if right else part.transposed(x)

    found = dominant(apply, start, guess, residual=residual, drift=_DRIFT)
    return found if right else found._replace(value=found.value.conj())  # M^T y = l y is y^H M = conj(l) y^H, M real


def _pairs(cycle: Cycle, largest: Dominant, like: Tensor) -> tuple[Tensor, Pairs, Tensor]:
    """Radii, eigenpairs of each point, and which of them are dense (P,)."""
    radius = largest.value.abs()
    if cycle.size <= FACTORED_BELOW:
        pairs = pairs_near(cycle, largest.value, largest.vector)
    else:
        right = _dominant(cycle, like, right=True, residual=_CLOSE)
        pairs = matched(right, _dominant(cycle, like, residual=_CLOSE), _CLOSE)
    good = largest.settled & pairs.found & (pairs.value.abs() >= _NEAR * radius)
    radius = torch.where(good, torch.maximum(radius, pairs.value.abs()), radius)
    for i in (~good).nonzero().flatten().tolist():
        value, right, left = leading_pair(cycle.matrix(i, like).cpu())
        radius[i], pairs.value[i], pairs.right[i], pairs.left[i] = value.abs(), value, right, left
    return radius, pairs, ~good


def starting_values(n: int, like: Tensor) -> Tensor:
    """A fixed vector (n,) without symmetry: the same run gives the same radii."""
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, generator=generator, dtype=torch.float64).to(like)
