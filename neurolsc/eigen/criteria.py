r"""When a value counts: its residual is small, it stands still, it is not too sensitive, and nothing larger grows beside it.

The last asks more than the others. What a value leaves out is seen by the rate g at which it grows
(:mod:`neurolsc.eigen.growth`), in units of the value's modulus. An eigenvalue that is larger by the
tolerance and holds 1/n of the start's square, the mean, has after m steps

.. math:: \frac1n \Big(\frac{1 + \text{tolerance}}{g}\Big)^{2 m}

of the square of what is left out. From a hundredth on it shows among the values of the basis; so g is
asked to lie where it would. Where much grows at nearly the rate of the value itself, that takes
many steps, or eigenvalues of the whole matrix.
"""

from typing import NamedTuple

from torch import Tensor

from neurolsc.eigen.basis import RitzPairs
from neurolsc.eigen.growth import growth_beside

SHOWN = 0.01
"""share of the square of what is left out, from which an eigenvalue shows"""


class Criteria(NamedTuple):
    """What settles a value, all of it relative; made by :meth:`within`."""

    tolerance: float
    """error that is aimed at"""
    residual: float
    """norm of M x - value x"""
    drift: float
    """change since the last look; and growth beside the value"""
    exposed: float
    """residual times the condition number of the eigenvalue"""

    @classmethod
    def within(cls, tolerance: float, *, strict: bool = False) -> "Criteria":
        """Those for errors within a tolerance; strict: with some of it left for the eigenvectors."""
        return cls(tolerance, (0.3 if strict else 0.5) * tolerance, 0.3 * tolerance, 2 * tolerance)

    def met(self, pairs: RitzPairs, last: Tensor) -> Tensor:
        """Whether each of the pairs counts (P,), given the moduli at the last look (P,)."""
        modulus, residual = pairs.value.abs(), pairs.residual()
        done = (residual <= self.residual) & ((modulus - last).abs() <= self.drift * modulus)
        done &= residual * pairs.condition <= self.exposed
        some = done.nonzero().squeeze(1)
        if len(some):
            followed = pairs.followed[some]
            limit = self._limit(followed.shape[1], pairs.vector.shape[1])
            done[some] = growth_beside(followed, pairs.value[some]) <= limit
        return done

    def _limit(self, steps: int, n: int) -> float:
        return min(1 + self.drift, (1 + self.tolerance) * (SHOWN * n) ** (-0.5 / steps))
