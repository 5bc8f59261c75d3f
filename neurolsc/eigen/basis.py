"""An orthonormal basis for each of many matrices, that grows by their products with vectors, and the eigenpairs on it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.powers import dominant_pairs


SMALL = 1e-3
"""share of a vector's norm outside the basis below which its product is not known well enough"""


class RitzPairs(NamedTuple):
    """Approximate eigenpairs of largest modulus, on a basis."""

    value: Tensor
    """(P,) complex"""
    vector: Tensor
    """x (P, n) complex, of norm 1"""
    rest: Tensor
    """M x - value x (P, n)"""

    def residual(self) -> Tensor:
        """Norms of the rest (P,), relative to the modulus of the value where that is not 0."""
        size, modulus = self.rest.norm(dim=1), self.value.abs()
        return torch.where(modulus > 0, size / modulus, size)

    def at(self, index: Tensor) -> "RitzPairs":
        """Some of them."""
        return RitzPairs(*(part[index] for part in self))


class Basis:
    """Orthonormal vectors for each of P matrices M, and their products with them.

    Args:
        apply: products of vectors (p, n) with the matrices at points (p,).
        left: the points (p,) that it is for; their number shrinks.
        room: how many vectors there will be at most.
        like: vectors (..., n) of the dtype and device of all.

    Attributes:
        count: the number of vectors; that of the last ones may be lowered to forget them.
    """

    def __init__(self, apply: Callable[[Tensor, Tensor], Tensor], left: Tensor, room: int, like: Tensor) -> None:
        self.apply, self.left, self.count = apply, left, 0
        self.room = like.new_empty(2, len(left), room, like.shape[-1])

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
        new = Basis(self.apply, self.left[index], self.count + more, self.room)
        new.count = self.count
        new.parts().copy_(self.parts()[:, index])
        return new

    def widen(self, v: Tensor, product: Tensor | None = None) -> None:
        """Add the direction that vectors (p, n) bring, or zeros where they lie in the basis.

        Their products (p, n), where they are known, save one; what is small beside the basis is then left out.
        """
        (have, products), size = self.parts(), v.norm(dim=1)
        for _ in range(2):  # once is not enough where v lies nearly in the basis
            # a row times a matrix: ten times as fast in torch as the same as columns
            row = v.unsqueeze(1)
            along = row @ have.mT
            v = torch.baddbmm(row, along, have, alpha=-1).squeeze(1)
            if product is not None:
                product = torch.baddbmm(product.unsqueeze(1), along, products, alpha=-1).squeeze(1)
        rest = v.norm(dim=1)
        new = rest > (10 * torch.finfo(v.dtype).eps if product is None else SMALL) * size
        scale = torch.where(new, 1 / rest, 0).unsqueeze(1)
        vector, after = self.room[:, : len(self.left), self.count]
        vector.copy_(scale * v)
        after.copy_(self.apply(vector, self.left) if product is None else scale * product)
        self.count += 1

    def follow(self, count: int) -> None:
        """Widen it to so many vectors by the product of the last one."""
        while self.count < count:
            self.widen(self.parts()[1, :, -1])

    def pairs(self) -> tuple["RitzPairs", Tensor]:
        """The eigenpairs of largest modulus of the matrices projected on the basis, and these (p, count, count).

        Raises:
            FloatingPointError: if a product is NaN or infinite.
        """
        vectors, products = self.parts()
        h = vectors @ products.mT
        if not h.isfinite().all():
            raise FloatingPointError("a product with a derivative holds NaN or infinity.")
        value, y = dominant_pairs(h)
        weights = torch.stack((y.real, y.imag), 1)
        x, m_x = (torch.complex(*(weights @ part).unbind(1)) for part in (vectors, products))
        return RitzPairs(value, x, m_x - value.unsqueeze(1) * x), h
