r"""When a value counts: small residual, stands still, not too sensitive, and nothing larger grows beside it.

The last asks more than the others. What a value leaves out is seen by the rate g at which it grows
(:mod:`neurolsc.eigen.growth`), in units of the value's modulus. An eigenvalue that is larger by the
tolerance and holds 1/n of the start's square, the mean, has after m steps

.. math:: \frac1n \Big(\frac{1 + \text{tolerance}}{g}\Big)^{2 m}

of the square of what is left out. From a hundredth on it shows among the values of the basis; so g is
asked to lie where it would, and with some to spare at the first look, which has no look before it to
compare with. Where much grows at nearly the rate of the value itself, that takes many steps, or
eigenvalues of the whole matrix.

A value far below the norm of the matrix never counts. Products with a nilpotent matrix, whose radius
is 0, settle on such values, and no product tells that they are none of its eigenvalues.
"""

from typing import NamedTuple

from torch import Tensor

from neurolsc.eigen.basis import RitzPairs
from neurolsc.eigen.growth import growth_beside
from neurolsc.eigen.vectors import norm

SHOWN = 0.01
"""share of the square of what is left out, from which an eigenvalue shows"""
EARLY = 0.025
"""that at the first look, where no change tells how far the products have come"""


LATER = 0.4
"""of the residual at the first look, what is asked for at later ones: an eigenvalue that is found late has others near"""
CLEAR = 0.03
"""residual times condition number, in tolerances, from which a value need not have stood still"""
LEAST = 0.01
"""modulus relative to the norm of the matrix below which no value counts: so far from normal is the matrix then"""


class Acceptance(NamedTuple):
    """What settles a value, all of it relative; made by :meth:`within`."""

    tolerance: float
    """error that is aimed at"""
    residual: float
    """norm of M x - value x, at the first look"""
    drift: float
    """change since the last look; and growth beside the value"""
    exposed: float
    """residual times the condition number of the eigenvalue"""

    @classmethod
    def within(cls, tolerance: float, *, strict: bool = False) -> "Acceptance":
        """Those for errors within a tolerance; strict: with some of it left for the eigenvectors."""
        return cls(tolerance, (0.3 if strict else 0.5) * tolerance, 0.3 * tolerance, tolerance)

    def met(self, pairs: RitzPairs, last: Tensor, *, early: bool = False) -> Tensor:
        """Whether each of the pairs counts (P,), given the moduli at the last look (P,); early: at the first, given guesses."""
        modulus, residual = pairs.value.abs(), pairs.residual()
        exposed = residual * pairs.condition
        still = ((modulus - last).abs() <= self.drift * modulus) | (exposed <= CLEAR * self.tolerance)
        done = (residual <= (1 if early else LATER) * self.residual) & (exposed <= self.exposed) & still
        done &= modulus >= LEAST * norm(pairs.followed.mT).amax(1)
        some = done.nonzero().squeeze(1)
        if len(some):
            followed = pairs.followed[some]
            limit = self._limit(followed.shape[1], (EARLY if early else SHOWN) * pairs.vector.shape[1])
            done[some] = growth_beside(followed, pairs.value[some]) <= limit
        return done

    def _limit(self, steps: int, shown: float) -> float:
        return min(1 + self.drift, (1 + self.tolerance) * shown ** (-0.5 / steps))
