r"""The largest eigenvalue of many matrices at once from their products with vectors.

Each point has a basis of its own, which follows the products of a start (Arnoldi); those of all
points are made side by side. The largest eigenvalue on it counts when it meets the criteria. A basis
is never restarted, so nothing that it has found is lost.

Where a part D of M is known that is easily inverted, and M is nearly D, a few vectors beside the
first basis do what dozens of products would: eigenvectors of D, and
:math:`(D - \lambda)^{-1} (M x - \lambda x)` a few times (Davidson). They count only where the
eigenvector lies mostly in those of D; what they found stays beside the basis while that grows.

Source: Arnoldi 1951; Davidson, J. Comput. Phys. 17 (1975); Saad, Numerical Methods for Large
Eigenvalue Problems (2011), ch. 6 and 8; two passes of orthogonalisation after Giraud et al. 2005.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.acceptance import Acceptance
from neurolsc.eigen.basis import Basis, RitzPairs
from neurolsc.eigen.guess import Guess
from neurolsc.eigen.powers import ENOUGH

LOOKS = (24, 36, 48, 64, 84, 108)
"""sizes of the basis at which the eigenvalue is looked at; it ends at the last, or at half the size of the matrix"""
CORRECTIONS = 4
"""how many vectors of Davidson's are tried"""


class Dominant(NamedTuple):
    """The eigenpairs of largest modulus."""

    value: Tensor
    """(P,) complex"""
    vector: Tensor
    """(P, n) complex, of norm 1"""
    residual: Tensor
    """(P,) norm of M x - value x, relative to the modulus of the value"""
    settled: Tensor
    """(P,) bool: the criteria are met"""


def dominant(
    apply: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    guess: Guess | None = None,
    *,
    criteria: Acceptance,
    looks: tuple[int, ...] = LOOKS,
) -> Dominant:
    """Find the eigenvalues of largest modulus.

    Args:
        apply: products of vectors (p, n) with the matrices at points (p,).
        start: where to start (P, n); at random, so that it has a part in every eigenvector.
        guess: what is known of the eigenpairs.
        criteria: when a value has settled.
        looks: sizes of the basis at which to look, increasing.

    Returns:
        The pairs; where they have not settled at the last look, those of that look.

    Raises:
        FloatingPointError: if a product is NaN or infinite.
    """
    n = start.shape[1]
    looks = tuple(m for m in looks if 2 * m <= n) or (min(n, looks[0]),)
    room = looks[-1] + (0 if guess is None else max(2, guess.vectors.shape[1]))
    basis = Basis(apply, start, room, min(ENOUGH, criteria.residual / 3))
    search, best = _Search(criteria, start), None
    for now in looks:
        basis.follow(now)
        if best is None:
            best = search.first(basis) if guess is None else search.beside(basis, guess)
        else:
            if guess is not None:
                for v, product in zip(*(x.unbind(1) for x in best.real_vectors()), strict=True):
                    basis.widen(v, product)
            last, best = best.value.abs(), basis.pairs()
            search.settle(basis.left, best, last)
        stay = (~search.found.settled[basis.left]).nonzero().squeeze(1)
        if not len(stay):
            break
        basis.keep(stay)
        best = best.at(stay)
    return search.found


class _Search:
    """What has been found so far.

    Args:
        criteria: when a value has settled.
        like: vectors (P, n) of the dtype and device of all.
    """

    def __init__(self, criteria: Acceptance, like: Tensor) -> None:
        self.criteria = criteria
        vector = torch.zeros_like(like, dtype=like.dtype.to_complex())
        self.found = Dominant(vector[:, 0].clone(), vector, like.new_zeros(len(like)), like.new_zeros(len(like)).bool())

    def settle(self, left: Tensor, pairs: RitzPairs, last: Tensor, *, early: bool = False) -> Tensor:
        """Write down pairs at points (p,), given their moduli at the last look (p,); those that do not count, as an index."""
        done = self.criteria.met(pairs, last, early=early)
        for whole, part in zip(self.found, (pairs.value, pairs.vector, pairs.residual(), done), strict=True):
            whole[left] = part
        return (~done).nonzero().squeeze(1)

    def first(self, basis: Basis) -> RitzPairs:
        """The pairs of the first look, which count where they are clear: nothing tells whether they stand still."""
        pairs = basis.pairs()
        self.settle(basis.left, pairs, torch.full_like(pairs.condition, torch.inf), early=True)
        return pairs

    def beside(self, basis: Basis, guess: Guess) -> RitzPairs:
        """Those of the first look with a guess, and corrected ones where that is what is missing."""
        for v in guess.vectors.unbind(1):
            basis.widen(v)
        pairs = self.first(basis)
        near = guess.holds(pairs.vector, basis.left).nonzero().squeeze(1)
        near = near[self.settle(basis.left[near], pairs.at(near), guess.modulus[near], early=True)]
        near = near[pairs.residual()[near] > self.criteria.residual]
        if not len(near):
            return pairs
        side, some = basis.copied(near, CORRECTIONS), pairs.at(near)
        for _ in range(CORRECTIONS):
            side.widen(guess.corrected(some.rest, some.value, side.left).real)
            last, some = some.value.abs(), side.pairs()
            pairs = pairs.replaced(near, some)
            last[~guess.holds(some.vector, side.left)] = torch.inf
            stay = self.settle(side.left, some, last, early=True)
            if not len(stay):
                break
            side.keep(stay)
            some, near = some.at(stay), near[stay]
        return pairs
