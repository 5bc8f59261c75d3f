r"""Transition derivatives as products with vectors: applied, never formed.

A derivative at P points is a cycle of linear maps, each between vectors (P, n). For LIF and ALIF a
product costs one matrix product with the weights, shared by all points; for any other cell it is a
vector-Jacobian product of autograd. Eigenvalues other than 0 do not depend on where a cycle is
entered, so it is entered where it is narrowest.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.known import Known

PARTNERS = 4.0
"""entries that a row is to have at least, for the matrix not to fall into small blocks"""
ROWS = 8
"""rows of a matrix that are looked at where all are not at hand"""


def has_few(rows: Tensor) -> Tensor:
    r"""Whether rows (..., n) that have any entry have few.

    They have :math:`(\sum_j w_j^2)^2 / \sum_j w_j^4` of them.
    """
    square = rows.square()
    all_of_it, most_of_it = square.sum(-1).square(), square.square().sum(-1)
    return all_of_it < PARTNERS * most_of_it


class Factors(NamedTuple):
    """A factorised M - shift I of one point, M real (n, n).

    What is here are its inverse and that of its adjoint, on vectors (n,).
    """

    solve: Callable[[Tensor], Tensor]
    solve_adjoint: Callable[[Tensor], Tensor]


class Map(ABC):
    """A linear map at each of P points, from vectors (P, columns) to vectors (P, rows)."""

    rows: int
    columns: int
    splits: bool | None = None
    """whether it may fall into blocks so small that a start at random has hardly a part in each;
    None if that is not known"""
    same: bool = False
    """whether it is the same map at all points, whatever their number"""

    @abstractmethod
    def times(self, x: Tensor) -> Tensor:
        """M x, differentiable by the parameters."""

    @abstractmethod
    def transposed(self, y: Tensor) -> Tensor:
        """The transpose of M times y, likewise."""

    @abstractmethod
    def take(self, index: Tensor) -> "Map":
        """The map at some of the points."""

    def known(self, right: bool, tolerance: float) -> Known | None:
        """The largest eigenvalues with right or left eigenvectors, where no product is needed.

        None where nothing is known.
        """
        return None

    def dense(self) -> Tensor | None:
        """The matrices (P, rows, columns), or one (1, rows, columns) for all points.

        None where they are not at hand.
        """
        return None

    def factors(self, shift: Tensor) -> Factors | None:
        """A factorisation of M - shift I at the only point.

        None where there is none that is cheaper than that of a dense matrix.
        """
        return None


class Cycle:
    """A square derivative at P points: the product of maps that end where the first begins.

    Args:
        maps: in the order in which they act.
        points: their number.

    Attributes:
        size: its number of rows where it is narrowest, which is where it is entered.
        points: P.
    """

    def __init__(self, maps: Sequence[Map], points: int) -> None:
        narrowest = min(range(len(maps)), key=lambda i: maps[i].columns)
        self.maps = (*maps[narrowest:], *maps[:narrowest])
        self.size, self.points = self.maps[0].columns, points

    def times(self, x: Tensor) -> Tensor:
        """M x, real vectors (P, size)."""
        for part in self.maps:
            x = part.times(x)
        return x

    def transposed(self, y: Tensor) -> Tensor:
        """The transpose of M times y, real vectors (P, size)."""
        for part in reversed(self.maps):
            y = part.transposed(y)
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
                row = self.transposed(unit).detach()
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
        return copies.times(unit.repeat(self.points, 1)).view(self.points, self.size, self.size).mT

    def factors(self, point: int, shift: Tensor, like: Tensor) -> Factors:
        """M - shift I of one point, factorised; real if the shift is."""
        if len(self.maps) == 1:
            cheaper = self.maps[0].take(torch.tensor([point], device=like.device)).factors(shift)
            if cheaper is not None:
                return cheaper
        m = self.matrix(point, like).to(shift.dtype)
        return lu_factors(m - shift * torch.eye(self.size, dtype=shift.dtype, device=m.device))


class Choice(Map):
    """Lines of a longer vector: (P, k) drawn of `long`, another choice at each point.

    They come in the order given.

    Args:
        chosen: which (P, k).
        long: length of the vector that is chosen from.
    """

    splits = False

    def __init__(self, chosen: Tensor, long: int) -> None:
        self.chosen, self.rows, self.columns = chosen, chosen.shape[1], long

    def times(self, x: Tensor) -> Tensor:
        return x.gather(1, self.chosen)

    def transposed(self, y: Tensor) -> Tensor:
        return y.new_zeros(y.shape[0], self.columns).scatter(1, self.chosen, y)

    def take(self, index: Tensor) -> "Choice":
        return Choice(self.chosen[index], self.columns)


class Flipped(Map):
    """The transpose of a map."""

    def __init__(self, inner: Map) -> None:
        self.inner, self.rows, self.columns, self.splits = inner, inner.columns, inner.rows, inner.splits

    def times(self, x: Tensor) -> Tensor:
        return self.inner.transposed(x)

    def transposed(self, y: Tensor) -> Tensor:
        return self.inner.times(y)

    def take(self, index: Tensor) -> "Flipped":
        return Flipped(self.inner.take(index))


def lu_factors(m: Tensor) -> Factors:
    """Factors of one matrix (n, n), never nearly singular.

    A pivot below eps times the largest becomes this.
    """
    # one matrix at a time: torch's batched LU on the CPU is broken after torch.set_num_threads
    # (pytorch#142815)
    lu, pivots, _ = torch.linalg.lu_factor_ex(m)
    pivot = lu.diagonal()
    smallest = torch.finfo(m.dtype).eps * pivot.abs().max().clamp(min=torch.finfo(m.dtype).tiny)
    pivot[pivot.abs() < smallest] = smallest.to(m.dtype)

    def solve(b: Tensor, adjoint: bool = False) -> Tensor:
        return torch.linalg.lu_solve(lu, pivots, b.to(m.dtype).unsqueeze(1), adjoint=adjoint).squeeze(1)

    return Factors(solve, lambda b: solve(b, adjoint=True))
