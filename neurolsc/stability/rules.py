r"""What radii are to become, when they have become it, and which parameters follow which radius.

After each pre-training step every layer has two multipliers, :math:`\kappa = \mathrm{clip}(\text{target} / \text{mean
radius})`, one through time and one through depth. A *rule* says what they multiply. The cell names its parameters
(:class:`neurolsc.neurons.ScaledParameter`); the rule chooses among them. It assigns parameters and never multiplies
them in place: time constants are stored as logarithms. Frozen parameters (``requires_grad=False``) stay as they are.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from neurolsc.neurons.cell import Cell, ScaledParameter, is_frozen, owner_of
from neurolsc.positive import set_value
from neurolsc.validation import one_of, whole

# ---------------------------------------------------------------- targets

Direction = Literal["both", "time", "depth"]


class RadiusTarget(NamedTuple):
    """Target radii through time and depth; None: that direction is left as it is."""

    time: float | None
    depth: float | None


Target = float | Literal["balanced"] | Callable[[int, int], tuple[float | None, float | None]]


def radius_target(target: Target, steps: int, layers: int, direction: Direction = "both") -> RadiusTarget:
    r"""Target radii of a network of L layers on inputs of T steps.

    ``"balanced"`` is :math:`T/(T+L)` through time and :math:`L/(T+L)` through depth. Their sum is 1 as for 0.5, so that
    the linear bound of Theorem 3 holds (arXiv:2308.12075v2, Sec. III-D).

    Raises:
        ValueError: if the target is neither a positive finite number, ``"balanced"`` nor a function of (steps, layers)
            that returns two radii, of which one may be None.
    """
    if target == "balanced":
        goal = RadiusTarget(steps / (steps + layers), layers / (steps + layers))
    elif callable(target) and not isinstance(target, type):
        goal = RadiusTarget(*target(steps, layers))
    elif isinstance(target, int | float) and not isinstance(target, bool) and 0 < target < math.inf:
        goal = RadiusTarget(float(target), float(target))
    else:
        raise ValueError(
            "target must be a radius in (0, inf) or 'balanced', or a function of (steps, layers) that returns two radii, "
            f"got {target!r}."
        )
    if direction != "both":
        goal = RadiusTarget(goal.time, None) if direction == "time" else RadiusTarget(None, goal.depth)
    radii = [radius for radius in goal if radius is not None]
    if not radii or not all(0 < radius < math.inf for radius in radii):
        raise ValueError(f"target radii must be in (0, inf), or one of them None, got {tuple(goal)} from {target!r}.")
    return goal


# ---------------------------------------------------------------- criteria


class LayerRadii(NamedTuple):
    """Measured radii of one layer in one direction that has a target."""

    layer: int  # counted from 0
    direction: str
    radii: Tensor  # (K, B): step, sample
    mean: float
    error: float  # standard error of the mean
    target: float
    allowed: float  # largest distance of the mean from the target at convergence

    @property
    def miss(self) -> float:
        """Distance of the mean from the target."""
        return abs(self.mean - self.target)


def standard_error(radii: Tensor, total: int) -> float:
    r"""Standard error of a mean radius, from its points.

    .. math:: s^2 = \frac{\mathrm{var}_b\,\bar r_b}{B}
              + \Big(1 - \frac K T\Big) \frac{\sum_k (\bar r_{k+1} - \bar r_k)^2}{2 K (K - 1)}

    The first term says how far the means of samples lie apart. All samples share the same steps, one from each of K
    stretches of the run; the second term is the error of that draw, from successive differences, and vanishes where all
    T steps are measured.

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


def errors(measured: Iterable[LayerRadii]) -> Tensor:
    """Distance of every radius from its target, in one vector; its mean square is the loss."""
    return torch.cat([(m.radii - m.target).flatten() for m in measured])


@dataclass(frozen=True)
class Criteria:
    """When the radii have converged: all three hold, at the radii measured in a step.

    Means are compared per layer and direction and never pooled: time 0.95 with depth 0.15 would
    pool to 0.55. A network with a layer that never fires has not converged, whatever its radii.

    Args:
        tolerance: (i) every mean lies this close to its target. Where the targets differ, as in the balanced one, whose
                depth radius is below the tolerance: twice this, relative to the target.
        deviation: (ii) the standard deviation of all radii from their targets is below this; None: not required.
        smoothed_deviation: (iii) so is its exponential mean over 10 steps; None: not required.
        hold: the loop of :func:`neurolsc.pretrain` stops once they are met in so many steps in a row. Whether a
            result has converged is judged by the radii at its end.

    Source: arXiv:2308.12075, Sec. II-D.
    """

    tolerance: float = 0.02
    deviation: float | None = 0.2
    smoothed_deviation: float | None = 0.2
    hold: int = 1

    def __post_init__(self) -> None:
        whole("hold", self.hold)

    def allowed(self, goal: RadiusTarget, target: float) -> float:
        """Largest distance of a mean from the target radius of its direction."""
        return self.tolerance if None in goal or goal.time == goal.depth else 2 * self.tolerance * target

    def met(self, measured: Sequence[LayerRadii], smoothed: float) -> bool:
        """Whether measured radii, and the smoothed deviation so far, have converged."""
        spread = errors(measured).std(correction=0).item()
        return (
            all(m.miss <= m.allowed for m in measured)
            and (self.deviation is None or spread < self.deviation)
            and (self.smoothed_deviation is None or smoothed < self.smoothed_deviation)
        )


# ---------------------------------------------------------------- rules


class Rule(Protocol):
    """An object that moves a cell's parameters by two multipliers."""

    @property
    def name(self) -> str:
        """Its name in tables, logs and checkpoints."""
        ...

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        """Move the parameters of a cell, in place, by its multipliers through time and depth."""
        ...


@dataclass(frozen=True)
class PaperRule:
    """The paper's: w_in, b_theta, adaptation follow the depth, w_rec, tau_v, tau_theta the time.

    The adaptation stands in the derivative through time only. With this rule a depth radius below its target raises it,
    until the radius through time runs away.

    Source: arXiv:2308.12075, Sec. II-D and App. H.
    """

    name: str = "paper"

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        """Multiply the values of the parameters."""
        _multiply(cell, cell.paper_scaled_parameters, time=time, depth=depth)


@dataclass(frozen=True)
class TransitionRule:
    r"""Ours: scale every entry of the derivative through time, and w_in by the depth.

    With a detached reset the derivative through time of LIF and ALIF consists of :math:`e^{-1/\tau_v}`,
    :math:`e^{-1/\tau_\vartheta}`, :math:`W_{rec} s` and :math:`\beta s`. Multiplying both decays (not the time
    constants), the recurrent weights and the adaptation by :math:`\kappa` multiplies the whole matrix, and so the
    radius, by exactly :math:`\kappa` in the same states. Likewise :math:`W_{in}` through depth. Only the surrogate's
    arguments, through other voltages and thresholds, move the radius afterwards.

    Args:
        hold_threshold: hold the resting threshold b_theta / (1 - exp(-1/tau_theta)) while tau_theta moves, by moving
            b_theta. Otherwise a shorter tau_theta lowers it, and the layer fires more.
        longest: decays stay at or below exp(-1/longest), in steps.
    """

    hold_threshold: bool = False
    longest: float = 1e4

    @property
    def name(self) -> str:
        """Its name in tables, logs and checkpoints."""
        held = ", threshold held" if self.hold_threshold else ""
        return f"transition{held}" + (f", longest {self.longest:g}" if self.longest != 1e4 else "")

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        """Multiply weights and adaptation, and the decays behind the time constants."""
        thresholds = cell.thresholds() if self.hold_threshold else None
        rest = None if thresholds is None else thresholds.rest()
        _multiply(cell, cell.scaled_parameters, time=time, depth=depth, longest=self.longest)
        if thresholds is not None and rest is not None:
            thresholds.set_rest(rest)


RULES: dict[str, Rule] = {
    "transition": TransitionRule(),
    "hold-threshold": TransitionRule(hold_threshold=True),
    "paper": PaperRule(),
}
"""The rules that a file or a command line can name."""


def as_rule(rule: Rule | str, target: object) -> Rule:
    """The rule of a name, or the rule itself.

    ``"default"`` is the rule that reaches the target with firing layers: the paper's for the balanced target, whose
    depth radius is so small that w_in cannot follow without silencing the layers unless the thresholds fall with it;
    else :class:`TransitionRule`. Measured by benchmarks/convergence.py.

    Raises:
        TypeError: if it is not an object with ``name`` and ``apply``.
        ValueError: if no rule has that name.
    """
    if isinstance(rule, str):
        one_of("rule", rule, ("default", *RULES))
        return RULES["paper" if target == "balanced" else "transition"] if rule == "default" else RULES[rule]
    if isinstance(rule, type) or not (hasattr(rule, "name") and callable(getattr(rule, "apply", None))):
        got = f"the class {rule.__name__}" if isinstance(rule, type) else repr(rule)
        raise TypeError(f"rule must be an object with name and apply(cell, *, time, depth), got {got}.")
    return rule


def assign(cell: Cell, name: str, value: Tensor) -> None:
    """Set a parameter of a cell in place, also one that is stored as its logarithm."""
    set_value(*owner_of(cell, name), value)


def _multiply(
    cell: Cell, parameters: tuple[ScaledParameter, ...], *, time: float, depth: float, longest: float = math.inf
) -> None:
    with torch.no_grad():
        for scaled in parameters:
            if is_frozen(cell, scaled.parameter):
                continue
            factor = (time if scaled.radius == "time" else depth) ** scaled.sign
            owner, name = owner_of(cell, scaled.parameter)
            value = getattr(owner, name)
            if scaled.through == "value":
                moved = value * factor
            elif scaled.through == "share":
                moved = (value * factor).clamp(max=math.exp(-1 / longest))
            else:  # exp(-1/moved) = factor exp(-1/value), in logarithms
                rate = 1 / value - torch.log(torch.as_tensor(factor, dtype=value.dtype))
                moved = 1 / rate.clamp(min=1 / longest)
            assign(cell, scaled.parameter, moved)
