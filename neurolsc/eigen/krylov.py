r"""The largest eigenvalue of many matrices at once from their products with vectors.

Each point has a basis of its own, which follows the products of a start (Arnoldi); those of all
points are made side by side. The largest eigenvalue on it counts when it meets the criteria. A
basis is never restarted, so nothing that it has found is lost.

Source: Arnoldi 1951; Saad, Numerical Methods for Large Eigenvalue Problems (2011), ch. 6; two
passes of orthogonalisation after Giraud et al. 2005.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.acceptance import Acceptance
from neurolsc.eigen.basis import Basis, Products, RitzPairs
from neurolsc.eigen.powers import ENOUGH

FIRST, LAST = 20, 108
"""sizes of the basis between which the eigenvalue is looked at; none is larger than three quarters
of the matrix"""

SOON = 0.3
"""share of the points that are to settle at the next look, by what is foreseen"""
SAMPLE, MANY = 16, 96
"""so many points of many tell when it is time to look at all"""


class Dominant(NamedTuple):
    """The eigenpairs of largest modulus."""

    value: Tensor
    """(P,) complex"""
    vector: Tensor
    """(P, n) complex, of norm 1"""
    settled: Tensor
    """(P,) bool: the criteria are met"""


def dominant(
    products: Products, start: Tensor, least: Tensor | None = None, *, criteria: Acceptance, last: int = LAST
) -> Dominant:
    """Find the eigenvalues of largest modulus.

    Args:
        products: for points (p,), what multiplies vectors (p, n) with the matrices.
        start: where to start (P, n); at random, so that it has a part in every eigenvector.
        least: eigenvalues that are known (P,) complex, or 0; smaller values count for nothing.
        criteria: when a value has settled.
        last: size of the basis at which it ends.

    Returns:
        The pairs; where they have not settled at the last look, those of that look.

    Raises:
        FloatingPointError: if a product is NaN or infinite.
    """
    n = start.shape[1]
    now, last = min(FIRST, n), max(min(last, 3 * n // 4), min(FIRST, n))
    basis = Basis(products, start, last, min(ENOUGH, criteria.residual / 3))
    vector = torch.zeros_like(start, dtype=start.dtype.to_complex())
    least = torch.zeros_like(vector[:, 0]) if least is None else least
    found = Dominant(vector[:, 0].clone(), vector, torch.zeros(len(start), dtype=torch.bool, device=start.device))
    nothing = ~products(basis.left)(start).any(1)
    found.settled[nothing] = True
    basis.keep((~nothing).nonzero().squeeze(1))
    while len(basis.left):
        basis.follow(now)
        if now < last and len(basis.left) > MANY:
            done, more = _look(basis, criteria, least, _sample(len(basis.left), basis.left))[1:]
            if done.double().mean() < SOON:
                now = min(last, now + _until(more, now))
                continue
        every = torch.arange(len(basis.left), device=basis.left.device)
        pairs, done, more = _look(basis, criteria, least, every)
        ends = done | (now == last)
        write, stay = ends.nonzero().squeeze(1), (~ends).nonzero().squeeze(1)
        where = basis.left[write]
        found.value[where], found.settled[where] = pairs.value[write], done[write]
        found.vector[where] = basis.combined(pairs.weights[write], write)
        basis.keep(stay)
        if len(stay):
            now = min(last, now + _until(more[stay], now))
    return found


def _look(basis: Basis, criteria: Acceptance, least: Tensor, index: Tensor) -> tuple[RitzPairs, Tensor, Tensor]:
    """The pairs of some points, which of them count, and how many more products each may take."""
    pairs = basis.pairs(index)
    return pairs, *criteria.met(pairs, basis.h[index], basis.vectors.shape[2], least[basis.left[index]])


def _sample(count: int, like: Tensor) -> Tensor:
    """An index of some of so many points, evenly spread."""
    return torch.arange(SAMPLE, device=like.device) * count // SAMPLE


def _until(more: Tensor, now: int) -> int:
    """After how many products to look again, given how many each point may take."""
    step = more.nan_to_num(now, now, now).quantile(SOON).item()
    return max(2 + now // 10, min(math.ceil(step), now))
