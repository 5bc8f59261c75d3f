"""What the radii are to become, and when they have become it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neurolsc.stability.profile import RadiusProfile

Target = float | Literal["balanced"]


class Aim(NamedTuple):
    """Target radii through time and depth."""

    time: float
    depth: float


def aim(target: Target, steps: int, layers: int) -> Aim:
    r"""Target radii of a network of L layers on inputs of T steps.

    A number is the target of both; ``"balanced"`` is :math:`T/(T+L)` through time and :math:`L/(T+L)` through depth, whose
    sum is 1 as for 0.5, so that the linear bound of Theorem 3 holds.

    Raises:
        ValueError: if the target is neither a positive finite number nor ``"balanced"``.

    Source: arXiv:2308.12075v2, Sec. III-D (written with a bar over rho).
    """
    if target == "balanced":
        return Aim(steps / (steps + layers), layers / (steps + layers))
    if isinstance(target, bool) or not isinstance(target, int | float) or not 0 < target < float("inf"):
        raise ValueError(f"target must be a radius in (0, inf) or 'balanced', got {target!r}.")
    return Aim(float(target), float(target))


class Measured(NamedTuple):
    """Radii of one pre-training step, per layer at the sampled points (step, sample)."""

    time: tuple[Tensor, ...]
    depth: tuple[Tensor, ...]

    @classmethod
    def of(cls, profile: RadiusProfile) -> "Measured":
        """The radii of a profile."""
        return cls(tuple(profile.time.flatten(1)), tuple(profile.depth.flatten(1)))

    def means(self) -> tuple[list[float], list[float]]:
        """Mean radius of every layer through time and depth."""
        return [r.mean().item() for r in self.time], [r.mean().item() for r in self.depth]

    def errors(self, goal: Aim, include_input: bool = True) -> Tensor:
        """Distance of every radius from its target, all derivatives in one vector."""
        depth = self.depth if include_input else self.depth[1:]
        return torch.cat([*(r - goal.time for r in self.time), *(r - goal.depth for r in depth)])


@dataclass(frozen=True)
class Criteria:
    """When the radii have converged: all three hold, at the radii measured in one step.

    Means are compared per layer and direction and never pooled: time 0.95 with depth 0.15 would pool to 0.55.

    Args:
        tolerance: (i) every mean lies this close to its target. For the balanced target, whose depth radius is below the
            tolerance, twice this, relative to the target.
        deviation: (ii) the standard deviation of all radii from their targets is below this; None: not asked.
        smoothed_deviation: (iii) so is its exponential mean over 10 steps; None: not asked.

    Source: arXiv:2308.12075, Sec. II-D.
    """

    tolerance: float = 0.02
    deviation: float | None = 0.2
    smoothed_deviation: float | None = 0.2

    def misses(self, measured: Measured, goal: Aim, include_input: bool = True) -> list[tuple[int, str, float, float]]:
        """The means that are too far from their target: (layer, direction, mean, target)."""
        return [
            (layer, direction, mean, wanted)
            for layer, direction, mean, wanted, allowed in self._compared(measured, goal, include_input)
            if not abs(mean - wanted) <= allowed
        ]

    def distance(self, measured: Measured, goal: Aim, include_input: bool = True) -> float:
        """How far the means are from their targets: the root mean square of their distances, in tolerances."""
        if self.tolerance == 0:
            return math.inf
        compared = self._compared(measured, goal, include_input)
        return math.sqrt(fmean(((mean - wanted) / allowed) ** 2 for *_, mean, wanted, allowed in compared))

    def _compared(
        self, measured: Measured, goal: Aim, include_input: bool
    ) -> Iterator[tuple[int, str, float, float, float]]:
        """The means that count: (layer, direction, mean, target, distance allowed)."""
        for direction, means, wanted in zip(("time", "depth"), measured.means(), goal, strict=True):
            allowed = self.tolerance if goal.time == goal.depth else 2 * self.tolerance * wanted
            for layer, mean in enumerate(means):
                if include_input or direction == "time" or layer > 0:
                    yield layer, direction, mean, wanted, allowed

    def met(self, measured: Measured, goal: Aim, smoothed: float, include_input: bool = True) -> bool:
        """Whether the measured radii, and the smoothed deviation up to this step, have converged."""
        spread = measured.errors(goal, include_input).std(correction=0).item()
        return (
            not self.misses(measured, goal, include_input)
            and (self.deviation is None or spread < self.deviation)
            and (self.smoothed_deviation is None or smoothed < self.smoothed_deviation)
        )
