"""An orthonormal basis for each of many matrices, and the eigenpairs on it.

It grows by the products of the matrices with vectors.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.powers import dominant_pairs
from neurolsc.eigen.vectors import norm

AGAIN = 0.5
"""share of a vector outside the basis from which one pass of orthogonalisation will do"""
SMALL = 1e-3
"""share of a vector outside the basis below which its known product does not tell that of the
share"""


class RitzPairs(NamedTuple):
    """Approximate eigenpairs of largest modulus, on a basis."""

    value: Tensor
    """(P,) complex"""
    vector: Tensor
    """x (P, n) complex, of norm 1"""
    rest: Tensor
    """M x - value x (P, n)"""
    condition: Tensor
    """(P,) of the eigenvalue, on the basis: 1 / |y^H x| with the left vector y of norm 1"""
    followed: Tensor
    """M on the part of the basis that follows the start (P, m, m)"""

    def residual(self) -> Tensor:
        """Norms of the rest (P,), relative to the modulus of the value where that is not 0."""
        size, modulus = norm(self.rest), self.value.abs()
        return torch.where(modulus > 0, size / modulus, size)

    def at(self, index: Tensor) -> "RitzPairs":
        """Some of them."""
        return RitzPairs(*(part[index] for part in self))

    def replaced(self, index: Tensor, other: "RitzPairs") -> "RitzPairs":
        """These, with others in the places of some."""
        return RitzPairs(*(a.index_copy(0, index, b) for a, b in zip(self, other, strict=True)))

    def real_vectors(self) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts of the vectors, and their products (P, 2, n)."""
        product = self.rest + self.value.unsqueeze(1) * self.vector
        vectors, products = (torch.stack((x.real, x.imag), 1) for x in (self.vector, product))
        return vectors, products


class Basis:
    """Orthonormal vectors for each of P matrices M, and their products with them.

    First come those that follow the products of a start, then what is put beside them.

    Args:
        apply: products of vectors (p, n) with the matrices at points (p,).
        start: the first vector at each point (P, n).
        room: how many vectors there will be at most.
        enough: relative residual to which eigenpairs on the basis are found.

    Attributes:
        left: the points (p,) that it is for; their number shrinks.
        followed: number of vectors that follow the start.
        count: the number of all vectors.
    """

    def __init__(self, apply: Callable[[Tensor, Tensor], Tensor], start: Tensor, room: int, enough: float) -> None:
        self.apply, self.enough, self.count, self.followed = apply, enough, 0, 1
        self.left = torch.arange(len(start), device=start.device)
        self.room = start.new_empty(2, len(start), room, start.shape[1])
        self.widen(start)

    def parts(self) -> Tensor:
        """The vectors and their products (2, p, count, n)."""
        return self.room[:, : len(self.left), : self.count]

    def keep(self, index: Tensor) -> None:
        """Go on with some of the points."""
        if len(index) < len(self.left):
            kept = self.parts()[:, index]
            self.left = self.left[index]
            self.parts().copy_(kept)

    def copied(self, index: Tensor, more: int) -> "Basis":
        """A basis of its own for some of the points, with room for some vectors more."""
        new = object.__new__(Basis)
        new.apply, new.enough, new.count, new.followed = self.apply, self.enough, self.count, self.followed
        new.left = self.left[index]
        new.room = self.room.new_empty(2, len(index), self.count + more, self.room.shape[3])
        new.parts().copy_(self.parts()[:, index])
        return new

    def widen(self, v: Tensor, product: Tensor | None = None) -> None:
        """Add the direction that vectors (p, n) bring, or zeros where they lie in the basis.

        Where their products (p, n) are known none is made; directions that bring little are then
        left out.
        """
        (have, products), size, rest = self.parts(), norm(v), norm(v)
        for _ in range(2):  # once is not enough where v lies nearly in the basis
            # a row times a matrix: ten times as fast in torch as the same as columns
            row = v.unsqueeze(1)
            along = row @ have.mT
            v = torch.baddbmm(row, along, have, alpha=-1).squeeze(1)
            if product is not None:
                product = torch.baddbmm(product.unsqueeze(1), along, products, alpha=-1).squeeze(1)
            rest = norm(v)
            if (rest > AGAIN * size).all():
                break
        new = rest > (10 * torch.finfo(v.dtype).eps if product is None else SMALL) * size
        scale = torch.where(new, 1 / rest, 0).unsqueeze(1)
        vector, after = self.room[:, : len(self.left), self.count]
        vector.copy_(scale * v)
        after.copy_(self.apply(vector, self.left) if product is None else scale * product)
        self.count += 1

    def follow(self, count: int) -> None:
        """Follow the start to so many vectors; what stood beside them is forgotten."""
        self.count = self.followed
        while self.count < count:
            self.widen(self.parts()[1, :, -1])
        self.followed = count

    def pairs(self) -> RitzPairs:
        """The eigenpairs of largest modulus of the matrices, projected on the basis.

        Raises:
            FloatingPointError: if a product is NaN or infinite.
        """
        vectors, products = self.parts()
        h = vectors @ products.mT
        if not h.isfinite().all():
            raise FloatingPointError("a product with a derivative holds NaN or infinity.")
        value, y, condition = dominant_pairs(h, self.enough)
        weights = torch.stack((y.real, y.imag), 1)
        x, m_x = (torch.complex(*(weights @ part).unbind(1)) for part in (vectors, products))
        return RitzPairs(value, x, m_x - value.unsqueeze(1) * x, condition, h[:, : self.followed, : self.followed])
