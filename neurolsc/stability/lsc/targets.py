"""What the radii are to become: a number, the balanced target, or an object that says so."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

from neurolsc.validation import one_of

Direction = Literal["time", "depth"]


class Aim(NamedTuple):
    """Target radii through time and depth; None: that direction is left as it is."""

    time: float | None
    depth: float | None


class Aiming(Protocol):
    """What a target is: an object that gives radii to a network.

    A frozen dataclass names itself.
    """

    def aim(self, steps: int, layers: int) -> Aim:
        """Target radii of a network of so many layers on inputs of so many steps."""
        ...


Target = float | Literal["balanced"] | Aiming


@dataclass(frozen=True)
class Equal:
    """The same radius through time and depth; a number stands for it."""

    radius: float

    def aim(self, steps: int, layers: int) -> Aim:
        """That radius, twice."""
        return Aim(float(self.radius), float(self.radius))


@dataclass(frozen=True)
class Balanced:
    r""":math:`T/(T+L)` through time, :math:`L/(T+L)` through depth; ``"balanced"`` is it.

    Their sum is 1 as for 0.5, so that the linear bound of Theorem 3 holds.

    Source: arXiv:2308.12075v2, Sec. III-D (written with a bar over rho).
    """

    def aim(self, steps: int, layers: int) -> Aim:
        """Target radii of L layers on T steps."""
        return Aim(steps / (steps + layers), layers / (steps + layers))


@dataclass(frozen=True)
class Along:
    """One direction of a target; the other is left as it is.

    Attributes:
        target: the target, for example 0.5.
        direction: the one that counts, ``"time"`` or ``"depth"``.

    Raises:
        ValueError: if the target is none, or the direction another.
    """

    target: Target
    direction: Direction

    def __post_init__(self) -> None:
        as_target(self.target)
        one_of("direction", self.direction, get_args(Direction))

    def aim(self, steps: int, layers: int) -> Aim:
        """The target's radius in that direction."""
        goal = aim(self.target, steps, layers)
        return goal._replace(**{other: None for other in get_args(Direction) if other != self.direction})


def as_target(target: Target) -> Aiming:
    """The object that a target stands for.

    Raises:
        ValueError: if it is neither a positive finite number, ``"balanced"`` nor an object with
            ``aim``.
    """
    if target == "balanced":
        return Balanced()
    if isinstance(target, int | float) and not isinstance(target, bool) and 0 < target < math.inf:
        return Equal(target)
    if callable(getattr(target, "aim", None)) and not isinstance(target, type):
        return target  # type: ignore[return-value]
    raise ValueError(
        f"target must be a radius in (0, inf) or 'balanced', or an object with aim(steps, layers), got {target!r}."
    )


def aim(target: Target, steps: int, layers: int) -> Aim:
    """Target radii of a network of L layers on inputs of T steps.

    Raises:
        ValueError: if the target is none (:func:`as_target`), or its radii are not positive finite
            numbers, or both None.
    """
    goal = Aim(*as_target(target).aim(steps, layers))
    radii = [radius for radius in goal if radius is not None]
    if not radii or not all(0 < radius < math.inf for radius in radii):
        raise ValueError(f"target radii must be in (0, inf), or one of them None, got {tuple(goal)} from {target!r}.")
    return goal
