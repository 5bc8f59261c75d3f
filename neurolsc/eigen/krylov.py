r"""The largest eigenvalue of many matrices at once from their products with vectors.

Each point has a basis of its own, which follows the products of a start (Arnoldi); those of all points are made side by side.
Its largest eigenvalue counts when the residual is small and it has hardly moved since the last look. A basis is never
restarted, so nothing that it has found is lost.

Where a part D of M is known that is easily inverted, and M is nearly D, a few vectors beside the first basis do what dozens of
products would: eigenvectors of D, and :math:`(D - \lambda)^{-1} (M x - \lambda x)` a few times (Davidson). They count only
where the eigenvector lies mostly in those of D and no other that the basis has found is larger; else they are forgotten.

Source: Arnoldi 1951; Davidson, J. Comput. Phys. 17 (1975); Saad, Numerical Methods for Large Eigenvalue Problems (2011), ch. 6
and 8; two passes of orthogonalisation after Giraud et al. 2005.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.basis import Basis, RitzPairs
from neurolsc.eigen.growth import growth_beside

LOOKS = (24, 36, 48, 64, 84, 108)
"""sizes of the basis at which the eigenvalue is looked at; it ends at the last, or at half the size of the matrix. With 16 at first
larger eigenvalues were missed beside those of D (benchmarks/radii.py)"""
CORRECTIONS = 4
"""how many vectors of Davidson's are tried"""
SHARE = 0.5
"""of the eigenvector's squared norm, that is to lie in the guessed ones"""


class Guess(NamedTuple):
    """What is known of the eigenpairs of P matrices M before any product is made, by a part D of them."""

    modulus: Tensor
    """the largest of an eigenvalue of D (P,)"""
    vectors: Tensor
    """those of the largest eigenvalues of D (P, k, n), real and orthonormal"""
    corrected: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(D - value)^-1 times complex vectors (p, n), for values (p,), at points (p,)"""


class Dominant(NamedTuple):
    """The eigenpairs of largest modulus."""

    value: Tensor
    """(P,) complex"""
    vector: Tensor
    """(P, n) complex, of norm 1"""
    residual: Tensor
    """(P,) norm of M x - value x, relative to the modulus of the value"""
    settled: Tensor
    """(P,) bool: the estimate of the error is within the tolerance"""


class _Search(NamedTuple):
    """What has been found, and what settles a value."""

    found: Dominant
    residual: float
    drift: float

    def settle(self, left: Tensor, pairs: RitzPairs, last: Tensor, followed: Tensor) -> Tensor:
        """Write down the pairs at points (p,), given their last moduli (p,) and the matrices (p, m, m) of what was followed.

        Returns:
            Those that have not settled, as an index.
        """
        modulus, residual = pairs.value.abs(), pairs.residual()
        done = (residual <= self.residual) & ((modulus - last).abs() <= self.drift * modulus)
        some = done.nonzero().squeeze(1)
        if len(some):
            done[some] = growth_beside(followed[some], pairs.value[some]) <= self._limit(followed.shape[1], pairs.vector.shape[1])
        for whole, part in zip(self.found, (pairs.value, pairs.vector, residual, done), strict=True):
            whole[left] = part
        return (~done).nonzero().squeeze(1)


    def _limit(self, m: int, n: int) -> float:
        return min(1 + self.drift, (1 + self.drift / 0.3) * (0.01 * n) ** (-0.5 / m))


def dominant(
    apply: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    guess: Guess | None = None,
    *,
    residual: float,
    drift: float,
    looks: tuple[int, ...] = LOOKS,
) -> Dominant:
    """Find the eigenvalues of largest modulus.

    Args:
        apply: products of vectors (p, n) with the matrices at points (p,).
        start: where to start (P, n); without symmetry, so that it has a part in every eigenvector.
        guess: what is known of the eigenpairs.
        residual: the relative residual at which a value has settled,
        drift: if it has moved relatively no more than this since the last look.
        looks: sizes of the basis at which to look, increasing.

    Returns:
        The pairs; where they have not settled at the last look, those of that look.

    Raises:
        FloatingPointError: if a product is NaN or infinite.
    """
    points, n = start.shape
    looks = tuple(m for m in looks if 2 * m <= n) or (min(n, looks[0]),)
    value = start.new_zeros(points, dtype=start.dtype.to_complex())
    found = Dominant(
        value, value.new_zeros(points, n), start.new_zeros(points), value.new_zeros(points, dtype=torch.bool)
    )
    search = _Search(found, residual, drift)
    beside = 0 if guess is None else guess.vectors.shape[1]
    basis = Basis(apply, torch.arange(points, device=start.device), looks[-1] + max(2, beside), start)
    basis.widen(start)
    kept, last = None, start.new_full((points,), torch.inf)
    for now in looks:
        basis.follow(now)
        if guess is not None and now == looks[0]:
            pairs, stay, kept = _beside(search, guess, basis)
        else:
            if kept is not None:
                for v, product in zip(*kept, strict=True):
                    basis.widen(v, product)
            pairs, h = basis.pairs()
            basis.count = now
            stay = search.settle(basis.left, pairs, last, h[:, :now, :now])
            pairs = pairs.at(stay)
            if kept is not None:
                kept = _kept(pairs)
        if not len(stay):
            break
        basis.keep(stay)
        last = pairs.value.abs()
    return found


def _kept(pairs: RitzPairs) -> tuple[Tensor, Tensor]:
    """The vectors of pairs and their products, as two real ones each (2, p, n)."""
    product = pairs.rest + pairs.value.unsqueeze(1) * pairs.vector
    return tuple(torch.stack((x.real, x.imag)) for x in (pairs.vector, product))


def _beside(search: _Search, guess: Guess, basis: Basis) -> tuple[RitzPairs, Tensor, tuple]:
    """Try the guess at all points; the pairs that it gives at once, and where they have not settled, as an index."""
    before = basis.count
    for v in guess.vectors.unbind(1):
        basis.widen(v)
    first, h = basis.pairs()
    h = h[:, :before, :before]
    best = RitzPairs(*(x.clone() for x in first))
    search.settle(basis.left, first, torch.full_like(guess.modulus, torch.inf), h)
    near = (_share(guess.vectors, first.vector) > SHARE).nonzero().squeeze(1)
    pairs, h = first.at(near), h[near]
    stay = search.settle(basis.left[near], pairs, guess.modulus[near], h)
    stay = stay[pairs.residual()[stay] > search.residual]
    if len(stay):
        side, pairs, h, near = basis.copied(near[stay], CORRECTIONS), pairs.at(stay), h[stay], near[stay]
        for _ in range(CORRECTIONS):
            side.widen(guess.corrected(pairs.rest, pairs.value, side.left).real)
            last, pairs = pairs.value.abs(), side.pairs()[0]
            for whole, part in zip(best, pairs, strict=True):
                whole[near] = part
            far = _share(guess.vectors[side.left], pairs.vector) <= SHARE
            last[far] = torch.inf
            stay = search.settle(side.left, pairs, last, h)
            if not len(stay):
                break
            side.keep(stay)
            pairs, h, near = pairs.at(stay), h[stay], near[stay]
    basis.count = before
    stay = (~search.found.settled).nonzero().squeeze(1)
    best = best.at(stay)
    return best, stay, _kept(best)


def _share(vectors: Tensor, x: Tensor) -> Tensor:
    """Share of the squared norms of complex vectors (p, n) that lies in orthonormal ones (p, k, n)."""
    return (torch.stack((x.real, x.imag), 1) @ vectors.mT).square().sum((1, 2))
