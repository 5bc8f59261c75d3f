r"""When a value counts.

Nothing larger is left out, and it is an eigenvalue.

That no eigenvalue is larger by the tolerance is for :mod:`neurolsc.eigen.exclusion` to show. That
the value is none of a basis only asks for a small residual r, as the value is off by r times the
condition number of an eigenvalue; on the basis that is found too low as long as the left
eigenvector does not lie in it, so that only part of the tolerance may be used up. The residual is
no smaller than what rounding makes it, which for matrices far from normal is much: a nilpotent one,
whose radius is 0, has eigenvalues of :math:`\sqrt[k]{\epsilon}\,\|M\|` when it is rounded. So
rounding counts like a residual, and a value far below the norm never counts.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.basis import RitzPairs
from neurolsc.eigen.exclusion import beyond
from neurolsc.eigen.vectors import norm

LEAST = 0.01
"""modulus relative to the norm of the matrix below which no value counts: so far from normal is the
matrix then"""

SQUARES = 0.4
"""power of the smallest number of a precision below which products are too small to be squared:
7e-16 in float32"""
EXPOSED = 0.2
"""of the tolerance, that residual and condition number together may use up: on the basis the latter
is too low"""


class Acceptance(NamedTuple):
    """What settles a value, all of it relative; made by :meth:`within`."""

    tolerance: float
    """by which a larger eigenvalue is excluded"""
    residual: float
    """norm of M x - value x"""
    exposed: float
    """residual times the condition number of the eigenvalue"""

    @classmethod
    def within(cls, tolerance: float, *, strict: bool = False) -> "Acceptance":
        """Those for errors within a tolerance.

        Strict: with some of it left for the eigenvectors.
        """
        return cls(tolerance, (0.3 if strict else 0.5) * tolerance, EXPOSED * tolerance)

    def met(self, pairs: RitzPairs, h: Tensor, n: int, least: Tensor) -> tuple[Tensor, Tensor]:
        """Whether each of the pairs on bases counts (P,), and how many more products it may take.

        Args:
            pairs: those of the bases.
            h: the matrices (P, m + 1, m) on them.
            n: size of the matrices themselves.
            least: eigenvalues that are known (P,), or 0; a value that is not larger than one by
                half the tolerance need not be an eigenvalue itself.
        """
        modulus, columns = pairs.value.abs(), norm(h.mT)
        largest = columns.amax(1)
        size = torch.maximum(largest, n**0.5 * columns[:, 0])  # the second: of all entries, by the random start
        exposed = (pairs.residual + torch.finfo(h.dtype).eps * size / modulus) * pairs.condition
        miss = torch.maximum(pairs.residual / self.residual, exposed / self.exposed)
        lost = (modulus < LEAST * largest) | (largest < torch.finfo(h.dtype).tiny ** SQUARES)
        miss = torch.where(lost, torch.inf, miss)
        miss = torch.where(modulus <= (1 + self.tolerance / 2) * least.abs(), 0, miss)
        shown = beyond(h, torch.where(modulus < least.abs(), least, pairs.value), self.tolerance, n)
        # residuals fall like the square root of what is shown rises
        more = torch.maximum(-shown.share.log(), 2 * miss.log()) / shown.rate
        return (miss <= 1) & (shown.share >= 1), more
