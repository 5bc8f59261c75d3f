r"""Transition derivatives as products with vectors: applied, never formed.

A derivative at P points is a cycle of linear maps, each between vectors (P, n). For LIF and ALIF a
product costs one matrix product with the weights, shared by all points; for any other cell it is a
vector-Jacobian product of autograd. Eigenvalues other than 0 do not depend on where a cycle is
entered, so it is entered where it is narrowest.
"""

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from neurolsc.neurons.derivatives import Factors, LinearOperator, lu_factors
from neurolsc.neurons.isolated import Known, has_few

ROWS = 8
"""rows of a matrix that are looked at where all are not at hand"""


class Cycle:
    """A square derivative at P points: the product of maps that end where the first begins.

    Args:
        maps: in the order in which they act.
        points: their number.

    Attributes:
        size: its number of rows where it is narrowest, which is where it is entered.
        points: P.
    """

    def __init__(self, maps: Sequence[LinearOperator], points: int) -> None:
        narrowest = min(range(len(maps)), key=lambda i: maps[i].columns)
        self.maps = (*maps[narrowest:], *maps[:narrowest])
        self.size, self.points = self.maps[0].columns, points

    def matvec(self, x: Tensor) -> Tensor:
        """M x, real vectors (P, size)."""
        for part in self.maps:
            x = part.matvec(x)
        return x

    def rmatvec(self, y: Tensor) -> Tensor:
        """The transpose of M times y, real vectors (P, size)."""
        for part in reversed(self.maps):
            y = part.rmatvec(y)
        return y

    def take(self, index: Tensor) -> "Cycle":
        """The derivative at some of the points."""
        return Cycle([part.take(index) for part in self.maps], len(index))

    def known(self, right: bool, tolerance: float) -> Known | None:
        """The largest eigenvalues with right or left eigenvectors, where no product is needed.

        None where nothing is known.
        """
        return self.maps[0].known(right, tolerance) if len(self.maps) == 1 else None

    def hears_few(self, like: Tensor) -> Tensor:
        """At which points M may fall into small blocks (P,).

        Where a map does not tell, some rows of M are looked at: whether one has few entries beside
        the diagonal.
        """
        few = torch.zeros(self.points, dtype=torch.bool, device=like.device)
        told = [part.splits for part in self.maps]
        if any(told):
            return ~few
        if None in told:
            for i in range(ROWS):
                unit = torch.zeros(self.points, self.size, dtype=like.dtype, device=like.device)
                line = i * self.size // ROWS
                unit[:, line] = 1
                row = self.rmatvec(unit).detach()
                few |= has_few(row.index_fill(1, torch.tensor([line], device=like.device), 0))
        return few

    def matrix(self, point: int, like: Tensor) -> Tensor:
        """M of one point (size, size), from products with the unit vectors.

        It has the dtype and device of a tensor.
        """
        return self.take(torch.tensor([point], device=like.device)).matrices(like)[0]

    def matrices(self, like: Tensor) -> Tensor:
        """M of all points (P, size, size), likewise."""
        known = [part.dense() for part in self.maps]
        if all(m is not None for m in known):
            product = reduce(lambda below, m: m @ below, known)  # type: ignore[operator]
            return product.expand(self.points, -1, -1)  # type: ignore[union-attr]
        unit = torch.eye(self.size, dtype=like.dtype, device=like.device)
        copies = self.take(torch.arange(self.points, device=like.device).repeat_interleave(self.size))
        return copies.matvec(unit.repeat(self.points, 1)).view(self.points, self.size, self.size).mT

    def factors(self, point: int, shift: Tensor, like: Tensor) -> Factors:
        """M - shift I of one point, factorised; real if the shift is."""
        if len(self.maps) == 1:
            cheaper = self.maps[0].take(torch.tensor([point], device=like.device)).factors(shift)
            if cheaper is not None:
                return cheaper
        m = self.matrix(point, like).to(shift.dtype)
        return lu_factors(m - shift * torch.eye(self.size, dtype=shift.dtype, device=m.device))


class Choice(LinearOperator):
    """Lines of a longer vector: (P, k) drawn of `long`, another choice at each point.

    They come in the order given.

    Args:
        chosen: which (P, k).
        long: length of the vector that is chosen from.
    """

    splits = False

    def __init__(self, chosen: Tensor, long: int) -> None:
        self.chosen, self.rows, self.columns = chosen, chosen.shape[1], long

    def matvec(self, x: Tensor) -> Tensor:
        return x.gather(1, self.chosen)

    def rmatvec(self, y: Tensor) -> Tensor:
        return y.new_zeros(y.shape[0], self.columns).scatter(1, self.chosen, y)

    def take(self, index: Tensor) -> "Choice":
        return Choice(self.chosen[index], self.columns)


class Flipped(LinearOperator):
    """The transpose of a map."""

    def __init__(self, inner: LinearOperator) -> None:
        self.inner, self.rows, self.columns, self.splits = inner, inner.columns, inner.rows, inner.splits

    def matvec(self, x: Tensor) -> Tensor:
        return self.inner.rmatvec(x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.inner.matvec(y)

    def take(self, index: Tensor) -> "Flipped":
        return Flipped(self.inner.take(index))
