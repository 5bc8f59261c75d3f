"""When the radii have become what they are to become, and how well that is known."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.stability.lsc.targets import Aim
from neurolsc.stability.profile import RadiusProfile
from neurolsc.validation import whole


class Measured(NamedTuple):
    """Radii of a look, each layer's at the points (step, sample) that were looked at (K, B)."""

    time: tuple[Tensor, ...]
    depth: tuple[Tensor, ...]
    lower: Tensor | None = None
    """how far the derivatives are from the lower bound's conditions, if that was asked"""

    @classmethod
    def of(cls, profile: RadiusProfile) -> "Measured":
        """The radii of a profile."""
        return cls(tuple(profile.time), tuple(profile.depth))

    def means(self) -> tuple[list[float], list[float]]:
        """Mean radius of every layer through time and depth."""
        return [r.mean().item() for r in self.time], [r.mean().item() for r in self.depth]

    def standard_errors(self, total: int) -> tuple[list[float], list[float]]:
        """Standard error of each mean, of a run of so many steps; see :func:`standard_error`."""
        return [standard_error(r, total) for r in self.time], [standard_error(r, total) for r in self.depth]


def standard_error(radii: Tensor, total: int) -> float:
    r"""Standard error of a mean radius, from its points.

    .. math:: s^2 = \frac{\mathrm{var}_b\,\bar r_b}{B}
              + \Big(1 - \frac K T\Big) \frac{\sum_k (\bar r_{k+1} - \bar r_k)^2}{2 K (K - 1)}

    The first term says how far the means of samples lie apart. All samples are looked at in the
    same steps, one from each of K stretches of the run; the second term is the error of that draw,
    from successive differences, and vanishes where all T steps are looked at.

    Args:
        radii: at the points (K, B).
        total: the T steps of the run.

    Returns:
        The error; of a single sample that of the steps alone.

    Source: successive differences: Wolter, Introduction to Variance Estimation, 2007, Sec. 8.2.
    """
    radii = radii.detach().double()
    steps, samples = radii.shape
    squared = radii.mean(0).var().item() / samples if samples > 1 else 0.0
    if steps > 1:
        across = radii.mean(1).diff().square().sum().item() / (2 * steps * (steps - 1))
        squared += (1 - steps / total) * across
    return math.sqrt(squared)


@dataclass(frozen=True)
class Criteria:
    """When the radii have converged: all three hold, at the radii measured in a step.

    Means are compared per layer and direction and never pooled: time 0.95 with depth 0.15 would
    pool to 0.55. A network with a layer that never fires has not converged, whatever its radii.

    Args:
        tolerance: (i) every mean lies this close to its target. For the balanced target, whose
            depth radius is below the tolerance, twice this, relative to the target.
        deviation: (ii) the standard deviation of all radii from their targets is below this; None:
            not asked.
        smoothed_deviation: (iii) so is its exponential mean over 10 steps; None: not asked.
        hold: the loop of :func:`neurolsc.pretrain` stops once they have held in so many steps in a
            row. Whether a result has converged is judged by the radii that it ends with.

    Source: arXiv:2308.12075, Sec. II-D.
    """

    tolerance: float = 0.02
    deviation: float | None = 0.2
    smoothed_deviation: float | None = 0.2
    hold: int = 1

    def __post_init__(self) -> None:
        whole("hold", self.hold)

    def misses(self, measured: Measured, goal: Aim, include_input: bool = True) -> list[tuple[int, str, float, float]]:
        """The means that are too far from their target: (layer, direction, mean, target)."""
        return [
            (layer, direction, mean, wanted)
            for layer, direction, mean, wanted in _compared(measured.means(), goal, include_input)
            if not abs(mean - wanted) <= self.allowed(goal, wanted)
        ]

    def distance(self, measured: Measured, goal: Aim, include_input: bool = True) -> float:
        """How far the means are from their targets: root mean square distance, in tolerances."""
        if self.tolerance == 0:
            return math.inf
        compared = _compared(measured.means(), goal, include_input)
        return math.sqrt(fmean(((mean - wanted) / self.allowed(goal, wanted)) ** 2 for *_, mean, wanted in compared))

    def doubt(self, measured: Measured, goal: Aim, total: int, include_input: bool = True) -> float:
        """The largest standard error of a mean that counts, in tolerances, over so many steps."""
        errors = _compared(measured.standard_errors(total), goal, include_input)
        return max(math.inf if self.tolerance == 0 else error / self.allowed(goal, w) for *_, error, w in errors)

    def lost(self, measured: Measured, goal: Aim, total: int, include_input: bool = True) -> bool:
        """Whether a mean misses its target by more than the tolerance and three standard errors."""
        means = _compared(measured.means(), goal, include_input)
        doubts = _compared(measured.standard_errors(total), goal, include_input)
        return any(
            abs(mean - wanted) > self.allowed(goal, wanted) + 3 * error
            for (*_, mean, wanted), (*_, error, _) in zip(means, doubts, strict=True)
        )

    def allowed(self, goal: Aim, wanted: float) -> float:
        """How far a mean may lie from the target radius of its direction."""
        return self.tolerance if None in goal or goal.time == goal.depth else 2 * self.tolerance * wanted

    def met(self, measured: Measured, goal: Aim, smoothed: float, include_input: bool = True) -> bool:
        """Whether the measured radii, and the smoothed deviation so far, have converged."""
        return (
            not self.misses(measured, goal, include_input)
            and (self.deviation is None or deviation(measured, goal, include_input) < self.deviation)
            and (self.smoothed_deviation is None or smoothed < self.smoothed_deviation)
        )


def errors(measured: Measured, goal: Aim, include_input: bool = True) -> Tensor:
    """Distance of every radius from its target, all derivatives in one vector."""
    depth = measured.depth if include_input else measured.depth[1:]
    parts = [r - wanted for radii, wanted in ((measured.time, goal.time), (depth, goal.depth)) for r in radii if wanted]
    return torch.cat([part.flatten() for part in parts])


def deviation(measured: Measured, goal: Aim, include_input: bool = True) -> float:
    """Standard deviation of all radii from their targets."""
    return errors(measured, goal, include_input).std(correction=0).item()


def _compared(
    figures: tuple[list[float], list[float]], goal: Aim, include_input: bool
) -> Iterator[tuple[int, str, float, float]]:
    """The layers and directions that count: (layer, direction, figure, target)."""
    for direction, along, wanted in zip(("time", "depth"), figures, goal, strict=True):
        for layer, figure in enumerate(along):
            if wanted is not None and (include_input or direction == "time" or layer > 0):
                yield layer, direction, figure, wanted
