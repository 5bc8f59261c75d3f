"""Orthonormal bases that follow the products of many matrices, and the eigenpairs on them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen import compiled
from neurolsc.eigen.pieces import in_cache
from neurolsc.eigen.powers import dominant_pairs
from neurolsc.eigen.vectors import norm

AGAIN = 0.5
"""share of a product outside the basis from which one pass of orthogonalisation will do"""


Products = Callable[[Tensor], Callable[[Tensor], Tensor]]
"""for points (p,): what multiplies vectors (p, n) with their matrices"""


class RitzPairs(NamedTuple):
    """Approximate eigenpairs of largest modulus, on a basis of m vectors."""

    value: Tensor
    """(P,) complex"""
    weights: Tensor
    """(P, m) complex, of norm 1: the eigenvector on the basis"""
    residual: Tensor
    """(P,) norm of M x - value x, relative to the modulus of the value where that is not 0"""
    condition: Tensor
    """(P,) of the eigenvalue, on the basis: 1 / |y^H x| with the left vector y of norm 1"""

    def at(self, index: Tensor) -> "RitzPairs":
        """Some of them."""
        return RitzPairs(*(part[index] for part in self))


class Basis:
    r"""Orthonormal vectors for each of P matrices M, of which each follows the product of the last.

    That is Arnoldi's process: :math:`M V_m = V_{m+1} H_m` with H of m + 1 rows.

    Args:
        products: what multiplies vectors (p, n) with the matrices, at points (p,).
        start: the first vector at each point (P, n).
        room: how many products there will be at most.
        enough: relative residual to which eigenpairs on the basis are found.

    Attributes:
        left: the points (p,) that it is for; their number shrinks.
        count: number of products, m.
    """

    def __init__(self, products: Products, start: Tensor, room: int, enough: float) -> None:
        self.products, self.enough, self.count = products, enough, 0
        self.left = torch.arange(len(start), device=start.device)
        self._vectors = start.new_empty(len(start), room + 1, start.shape[1])
        self._columns = start.new_zeros(len(start), room, room + 1)  # of H
        self._vectors[:, 0] = start / norm(start).unsqueeze(1)

    @property
    def vectors(self) -> Tensor:
        """V (p, m + 1, n)."""
        return self._vectors[:, : self.count + 1]

    @property
    def h(self) -> Tensor:
        """H (p, m + 1, m)."""
        return self._columns[:, : self.count, : self.count + 1].mT

    def keep(self, index: Tensor) -> None:
        """Go on with some of the points."""
        if len(index) < len(self.left):
            rows, p = self.count + 1, len(index)
            kept = self._vectors[index, :rows]
            self.left, self._columns, self._vectors = self.left[index], self._columns[index], self._vectors[:p]
            self._vectors[:, :rows] = kept

    def follow(self, count: int) -> None:
        """Go on to so many products; where one lies in the basis zeros follow.

        Some of the points at a time, whose vectors stay in the cache meanwhile.

        Raises:
            FloatingPointError: if a product is NaN or infinite.
        """
        few = in_cache(self._vectors, count * self._vectors.shape[2])
        for some in torch.arange(len(self.left), device=self.left.device).split(few):
            product = self.products(self.left[some])
            vectors, columns = (part[some[0] : some[-1] + 1] for part in (self._vectors, self._columns))
            for m in range(self.count, count):
                widen(vectors, columns, m + 1, product(vectors[:, m]))
        self.count = count
        if not self.h.sum().isfinite():
            raise FloatingPointError("a product with a derivative holds NaN or infinity.")

    def pairs(self, index: Tensor) -> RitzPairs:
        """The eigenpairs of largest modulus of some of the matrices, projected on the basis."""
        h = self.h[index]
        value, x, condition = dominant_pairs(h[:, :-1], self.enough)
        h_x = torch.complex(*(torch.stack((x.real, x.imag), 1) @ h.mT).unbind(1))
        h_x[:, :-1] -= value.unsqueeze(1) * x
        size, modulus = norm(h_x), value.abs()
        return RitzPairs(value, x, torch.where(modulus > 0, size / modulus, size), condition)

    def combined(self, weights: Tensor, index: Tensor) -> Tensor:
        """The vectors (k, n) that weights (k, m), complex, give at some of the points, by index."""
        parts = torch.stack((weights.real, weights.imag), 1) @ self._vectors[index, : self.count]
        return torch.complex(*parts.unbind(1))


def widen(vectors: Tensor, columns: Tensor, m: int, product: Tensor) -> None:
    """Make the vector m (p, room, n) of a product (p, n), and the column of H before it.

    The product is the vectors up to m times that column (p, m, room), which holds zeros before.
    """
    if compiled.at_hand(vectors):
        compiled.widen(vectors, columns, m, product, AGAIN)
        return
    have, column, rest = vectors[:, :m], columns[:, m - 1, : m + 1], norm(product)
    for _ in range(2):  # once is not enough where a product lies nearly in the basis
        # a row times a matrix: ten times as fast in torch as the same as columns
        along = product.unsqueeze(1) @ have.mT
        product = torch.baddbmm(product.unsqueeze(1), along, have, alpha=-1).squeeze(1)
        column[:, :-1] += along.squeeze(1)
        size, rest = norm(along.squeeze(1)), norm(product)
        if (rest > AGAIN * size).all():
            break
    new = rest > 10 * torch.finfo(rest.dtype).eps * norm(column[:, :-1])
    column[:, -1] = torch.where(new, rest, 0)
    torch.mul(product, torch.where(new, 1 / rest, 0).unsqueeze(1), out=vectors[:, m])
