r"""Targets, convergence criteria, rules and options of pre-training.

After each pre-training step every layer has two multipliers, :math:`\kappa = \mathrm{clip}(\text{target} / \text{mean
radius})`, one through time and one through depth. A *rule* says which of a cell's parameters each of them multiplies
(:class:`neurolsc.neurons.ScaledParameter`). Frozen parameters (``requires_grad=False``) stay.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from operator import attrgetter
from statistics import fmean, pstdev
from typing import Any, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from neurolsc.neurons.cell import Cell, ScaledParameter
from neurolsc.neurons.parameters import set_value
from neurolsc.neurons.weights import is_frozen, owner_of
from neurolsc.stability.transitions import NON_SQUARE, NonSquare
from neurolsc.validation import flag, number, one_of, setting, shown, whole

# ---- targets

Direction = Literal["both", "time", "depth"]
LoopName = Literal["neurolsc", "paper", "released"]


class RadiusTarget(NamedTuple):
    """Target radii through time and depth; None: that direction is left as it is."""

    time: float | None
    depth: float | None


Target = float | Literal["balanced"] | Callable[[int, int], tuple[float | None, float | None]]


def radius_target(target: Target, steps: int, layers: int, direction: Direction = "both") -> RadiusTarget:
    r"""Return the target radii of a network of L layers on inputs of T steps.

    ``"balanced"`` is :math:`T/(T+L)` through time and :math:`L/(T+L)` through depth. Their sum is 1, like that of 0.5
    and 0.5, so that the linear bound of Theorem 3 holds (arXiv:2308.12075v2, Sec. III-D). A direction that is not set
    has no target.

    Raises:
        ValueError: if the target is neither a positive finite number, ``"balanced"`` nor a function of (steps, layers)
            that returns two radii, of which one may be None.
    """
    time = depth = None
    got: Any = target
    if target == "balanced":
        time = steps / (steps + layers)
        depth = layers / (steps + layers)
    elif callable(target):
        got = target(steps, layers)
        try:
            time, depth = got
        except (TypeError, ValueError):  # no pair
            time = depth = None
    elif isinstance(target, int | float) and not isinstance(target, bool):
        time = depth = float(target)
    if direction == "depth":
        time = None
    if direction == "time":
        depth = None
    goal = RadiusTarget(time, depth)
    if not has_targets(goal):
        raise ValueError(
            "target must be a radius in (0, inf), 'balanced', or a function of (steps, layers) that returns two such "
            f"radii, of which one may be None; got {got!r}."
        )
    return goal


def has_targets(values: object) -> bool:
    """Return whether values are two positive finite numbers (time, depth), of which one may be None."""
    if not isinstance(values, tuple | list) or len(values) != 2:
        return False
    given = [value for value in values if value is not None]
    return bool(given) and all(isinstance(value, Real) and 0 < float(value) < math.inf for value in given)


# ---- criteria


class LayerRadii(NamedTuple):
    """Measured radii of one layer in one direction that has a target."""

    layer: int  # counted from 0
    direction: str  # "time" or "depth"
    radii: Tensor  # (K, B): step, sample
    error: float  # standard error of their mean
    target: float
    allowed: float  # largest distance of the mean from the target at convergence

    @property
    def mean(self) -> float:
        """Mean over steps and samples."""
        return self.radii.mean().item()

    @property
    def miss(self) -> float:
        """Distance of the mean from the target."""
        return abs(self.mean - self.target)


def errors(measured: Sequence[LayerRadii]) -> Tensor:
    """Radius minus target of every measured radius, as one vector; its mean square is the loss."""
    return torch.cat([(m.radii - m.target).flatten() for m in measured])


def standard_error(radii: Tensor, total: int) -> float:
    r"""Return the standard error of a mean radius, from radii (K, B) at K steps of B samples.

    .. math:: s^2 = \frac{\mathrm{var}_b\,\bar r_b}{B}
              + \Big(1 - \frac K T\Big) \frac{\sum_k (\bar r_{k+1} - \bar r_k)^2}{2 K (K - 1)}

    for a run of T steps, `total`, with the mean :math:`\bar r_b` of a sample over the steps and the mean
    :math:`\bar r_k` of a step over the samples. The first term is the variance between samples. All samples share the
    same steps, one drawn from each of K stretches of the run; the second term is the variance of that draw. With one
    sample the first term is 0, with one step the second.

    Source: successive differences: Wolter, Introduction to Variance Estimation, 2007, Sec. 8.2.
    """
    return math.sqrt(sum(error_parts(radii, total)))


def error_parts(radii: Tensor, total: int) -> tuple[float, float]:
    """The two terms of the squared :func:`standard_error` of a mean radius: of the samples, and of the steps."""
    radii = radii.detach().double()
    steps, samples = radii.shape
    of_samples = 0.0
    if samples > 1:
        of_samples = radii.mean(0).var().item() / samples
    of_steps = 0.0
    if steps > 1:
        of_draw = radii.mean(1).diff().square().sum().item() / (2 * steps * (steps - 1))
        of_steps = (1 - steps / total) * of_draw  # 0 if all steps are measured
    return of_samples, of_steps


@dataclass(frozen=True)
class Criteria:
    """The three conditions under which radii have converged.

    Means are compared per layer and direction: pooled, as in the paper, time 0.95 and depth 0.15 would count as their
    mean 0.55.

    Args:
        tolerance: (i) every mean is this close to its target. If the targets of the two directions differ, the distance
            may be 2 * tolerance * target, which at a target of 0.5 is the tolerance: an absolute one could accept a
            depth radius of 0, as that of the balanced target may be below 0.02.
        deviation: (ii) the standard deviation of all radii from their targets is below this; None: not required.
        smoothed_deviation: (iii) the exponential mean of (ii) over 10 steps is below this; None: not required.
        hold: number of pre-training steps in a row that must meet all conditions.
        pooled: (i) compares one mean, over all layers and both directions, with its target; (ii) and (iii) take the
            deviation between the means of layers and directions.

    Raises:
        TypeError: if hold or pooled is of another kind.
        ValueError: if hold is below 1, or one of the bounds is no number from 0.

    Source: arXiv:2308.12075, Sec. II-D.
    """

    tolerance: float = 0.02
    deviation: float | None = 0.2
    smoothed_deviation: float | None = 0.2
    hold: int = 1
    pooled: bool = False

    def __post_init__(self) -> None:
        whole("hold", self.hold)
        flag("pooled", self.pooled)
        for name in ("tolerance", "deviation", "smoothed_deviation"):
            bound = getattr(self, name)
            if bound is None and name != "tolerance":
                continue
            if not isinstance(bound, int | float) or not bound >= 0:  # infinity is allowed: every radius meets it
                raise ValueError(f"{name} must be zero or positive, got {bound!r}.")

    def allowed(self, goal: RadiusTarget, target: float) -> float:
        """Largest distance of a mean from `target`, the radius of `goal` in its direction."""
        if None in goal or goal.time == goal.depth:
            return self.tolerance
        return 2 * self.tolerance * target

    def spread(self, measured: Sequence[LayerRadii]) -> float:
        """The standard deviation (ii) of measured radii from their targets."""
        if self.pooled:
            return pstdev(m.mean - m.target for m in measured)
        return errors(measured).std(correction=0).item()

    def near(self, measured: Sequence[LayerRadii]) -> bool:
        """True if the mean, or every mean, is within the tolerance (i)."""
        if self.pooled:
            return abs(fmean(m.mean - m.target for m in measured)) <= self.tolerance
        return all(m.miss <= m.allowed for m in measured)

    def met(self, measured: Sequence[LayerRadii], smoothed: float) -> bool:
        """True if measured radii meet (i) and (ii), and their `smoothed` deviation (iii)."""
        return (
            self.near(measured)
            and (self.deviation is None or self.spread(measured) < self.deviation)
            and (self.smoothed_deviation is None or smoothed < self.smoothed_deviation)
        )


# ---- rules

LONGEST = 1e4  # the longest time constant, in steps, that a rule makes; longer ones grow no further


class Rule(Protocol):
    """Scales the parameters of a cell by two multipliers."""

    @property
    def name(self) -> str:
        """Its name in tables, logs and checkpoints."""
        ...

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        """Scale the parameters of a cell, in place, by its multipliers through time and depth."""
        ...


@dataclass(frozen=True)
class PaperRule:
    """The paper's rule: depth multiplies w_in, b_theta and adaptation, time multiplies w_rec, tau_v and tau_theta.

    The adaptation is part of the derivative through time only. A depth radius that stays below its target raises the
    adaptation at every step, and with it the radius through time, without bound.

    Source: arXiv:2308.12075, Sec. II-D and App. H.
    """

    name: str = "paper"

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        _multiply(cell, cell.paper_scaled_parameters, time=time, depth=depth)


@dataclass(frozen=True)
class TransitionRule:
    r"""Our rule: time multiplies every entry of the derivative through time, depth multiplies w_in.

    With a detached reset the derivative through time of LIF and ALIF consists of :math:`e^{-1/\tau_v}`,
    :math:`e^{-1/\tau_\vartheta}`, :math:`W_{rec} s` and :math:`\beta s`, with the surrogate's derivative s.
    Multiplying both decays (not the time constants), the recurrent weights and the adaptation by :math:`\kappa`
    multiplies the whole matrix, and so its radius in the same states, by exactly :math:`\kappa`. Multiplying
    :math:`W_{in}` does so through depth.

    Args:
        hold_threshold: keep the resting threshold b_theta / (1 - exp(-1/tau_theta)) constant by moving b_theta with
            tau_theta. Otherwise a shorter tau_theta lowers it, and the layer fires more.
    """

    hold_threshold: bool = False

    @property
    def name(self) -> str:
        return "transition" + (", threshold held" if self.hold_threshold else "")

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        thresholds = None
        if self.hold_threshold:
            thresholds = cell.thresholds()
        rest = None  # no resting threshold to hold
        if thresholds is not None:
            rest = thresholds.rest()
        _multiply(cell, cell.scaled_parameters, time=time, depth=depth)
        if thresholds is not None and rest is not None:
            thresholds.set_rest(rest)


def _multiply(cell: Cell, parameters: tuple[ScaledParameter, ...], *, time: float, depth: float) -> None:
    """Multiply parameters of a cell, or their decays, in place: each by `time` or `depth`, whichever its radius is.

    A parameter of sign -1 is divided by the multiplier instead. Frozen parameters stay.
    """
    # Values are assigned, never multiplied in place: time constants are stored as logarithms.
    with torch.no_grad():
        for scaled in parameters:
            if is_frozen(cell, scaled.parameter):
                continue
            factor = (time if scaled.radius == "time" else depth) ** scaled.sign
            if factor == 1:
                continue
            owner, name = owner_of(cell, scaled.parameter)
            value = getattr(owner, name)
            if scaled.through == "value":
                new = value * factor
                if scaled.limit is not None:  # a value beyond the limit grows no further, but may shrink
                    largest = torch.maximum(attrgetter(scaled.limit)(cell)(), value.abs())
                    new = new.clamp(-largest, largest)
            elif scaled.through == "decay_factor":  # the parameter is the decay, which stays below that of LONGEST
                new = torch.minimum(value * factor, value.clamp(min=math.exp(-1 / LONGEST)))
            else:  # a time constant, whose decay is multiplied: exp(-1/new) = factor exp(-1/value), in logarithms
                rate = 1 / value - math.log(factor)
                new = 1 / torch.maximum(rate, (1 / value).clamp(max=1 / LONGEST))  # no longer than LONGEST, or value
            set_value(owner, name, new)


# The rules that a file or a command line can name.
RULES: dict[str, Rule] = {
    "transition": TransitionRule(),
    "hold-threshold": TransitionRule(hold_threshold=True),
    "paper": PaperRule(),
}


def as_rule(rule: Rule | str, target: object, loop: LoopName = "neurolsc") -> Rule:
    """Return the rule of a name, or the rule itself.

    ``"default"`` is the paper's rule in the paper's loops. In ours it is the rule that reaches the target with firing
    layers (benchmarks/convergence.py). For the balanced target that is the paper's: the target through depth is so
    small that scaling w_in to it silences a layer unless its thresholds fall, too. For all others it is
    :class:`TransitionRule`.

    Raises:
        TypeError: if the rule is neither a name nor an object with ``name`` and ``apply``.
        ValueError: if no rule has that name.
    """
    if isinstance(rule, str):
        one_of("rule", rule, ("default", *RULES))
        if rule == "default":
            rule = "transition"
            if target == "balanced" or loop != "neurolsc":
                rule = "paper"
        return RULES[rule]
    if isinstance(rule, type) or not (hasattr(rule, "name") and callable(getattr(rule, "apply", None))):
        raise TypeError(f"rule must be an object with name and apply(cell, *, time, depth), got {rule!r}.")
    return rule


# ---- loops and options


class LoopSettings(NamedTuple):
    """The settings for which each loop has values of its own."""

    max_steps: int | None  # None: the time steps of two batches
    criteria: Criteria
    shuffle: float  # share of the steps after which tensors are shuffled
    lr: float


LOOP_SETTINGS: dict[LoopName, LoopSettings] = {
    "neurolsc": LoopSettings(max_steps=200, criteria=Criteria(), shuffle=1.0, lr=3.14e-3),
    # The paper's text names no last step. Ours is ten times that of the released code with its longest inputs.
    "paper": LoopSettings(max_steps=10_000, criteria=Criteria(pooled=True), shuffle=1.0, lr=3.14e-3),
    "released": LoopSettings(
        max_steps=None,
        # "for more than 20 steps"; the code also bounds the deviation, which always meets its bound by then
        criteria=Criteria(0.08, deviation=None, smoothed_deviation=None, hold=21),
        shuffle=0.34,
        lr=7.2e-3,
    ),
}


@dataclass(frozen=True)
class PretrainOptions:
    """The settings of pre-training, for :func:`neurolsc.pretrain`, ``LSC()``, command lines and grids.

    Raises:
        TypeError: if a value is of another kind.
        ValueError: if a value cannot be used.
    """

    target: Target = setting(
        0.5,
        "radius to pre-train to, above 0: a number, 'balanced' (T/(T+L) through time, L/(T+L) through depth), or in "
        "Python a function of (steps, layers) that returns both",
    )
    rule: Rule | str = setting(
        "default",
        "what the multipliers move: transition, hold-threshold, paper, in Python also an object with name and apply; "
        "default: paper for balanced, else transition",
    )
    direction: Direction = setting("both", "set the radii through time, depth or both; the other is left as it is")
    loop: LoopName = setting(
        "neurolsc",
        "neurolsc: each layer and direction to its target, at samples and time steps drawn from every batch; paper: as "
        "printed, time step by time step at all samples of a batch, until the mean over layers and directions is on "
        "target; released: as in the paper's code",
    )
    max_steps: int | None = setting(
        None,
        "give up after this many pre-training steps; None: 200, of the paper's loop 10,000, of the released one the "
        "time steps of two batches",
    )
    # Convergence is judged on the batches that come next, at four times as many time steps and 2 to 16 times as many
    # samples, so that the standard error of each mean is below a quarter of the tolerance.
    samples: int = setting(4, "samples, drawn at random, at which each pre-training step measures radii")
    steps: int | None = setting(
        8, "time steps at which it does, one at random from each of so many stretches of the run; None: all"
    )
    gradient: bool = setting(True, "take optimizer steps")
    kappa: tuple[float, float] | Literal[False] = setting(
        (0.85, 1.15), "bounds that the multipliers are clipped to; False: no multipliers"
    )
    shuffle: bool | float | None = setting(
        None,
        "shuffle learnable tensors after each step, or after this share of them; None: after each, released: 0.34",
    )
    # A shuffle moves the radius of 64 x 64 weights by some per cent, so many layers are rarely on target at once.
    polish: bool = setting(
        True,
        "once the means are within three tolerances of their targets, or no nearer for 15 steps, only the multipliers "
        "act, measured at four times as many time steps",
    )
    include_input: bool = setting(True, "count the first layer's derivative by the input")
    non_square: NonSquare = setting("submatrix", "what stands for the radius between unequal widths")
    bounds: Literal["upper", "both"] = setting(
        "upper",
        "both: until the geometric mean of all eigenvalues through time is within a tenth of the target, too, by optimizer "
        "steps alone (the paper's lower bound); without polish, and without shuffle unless that is set",
    )
    criteria: Criteria | None = setting(
        None,
        "when the radii have converged; None: the paper's three, of each layer and direction or pooled, or those of the "
        "released code",
    )
    lr: float | None = setting(None, "learning rate of AdaBelief in pre-training; None: 3.14e-3, released: 7.2e-3")

    def __post_init__(self) -> None:
        one_of("direction", self.direction, ("both", "time", "depth"))
        if not callable(self.target):
            radius_target(self.target, steps=1, layers=1)  # raises if it is no target
        as_rule(self.rule, self.target)  # raises if it is no rule
        one_of("loop", self.loop, get_args(LoopName))
        of_ours = [f for f in fields(self) if f.name in ("samples", "steps", "polish")]  # options of our loop alone
        given = [f.name for f in of_ours if getattr(self, f.name) != f.default]
        if self.loop != "neurolsc" and given:
            here = f"loop={self.loop!r} measures all samples of a batch at every time step and does not polish"
            raise ValueError(f"{', '.join(given)}: {here}; give smaller batches, or loop='neurolsc'.")
        whole("samples", self.samples)
        for name in ("gradient", "polish", "include_input"):
            flag(name, getattr(self, name))
        if not isinstance(self.criteria, Criteria | None):
            raise TypeError(f"criteria must be a Criteria or None, got {shown(self.criteria)}.")
        if self.max_steps is not None:
            whole("max_steps", self.max_steps, at_least=0)
        if self.steps is not None:
            whole("steps", self.steps)
        one_of("non_square", self.non_square, NON_SQUARE)
        one_of("bounds", self.bounds, ("upper", "both"))
        if self.bounds == "both" and not self.gradient:
            raise ValueError(f"bounds='both' needs optimizer steps: give gradient=True, got {self.gradient!r}.")
        if self.bounds == "both" and self.direction == "depth":
            raise ValueError("bounds='both' needs a target through time: give direction='both' or 'time', got 'depth'.")
        if self.lr is not None:
            number("lr", self.lr)
        if self.shuffle is not None and not (isinstance(self.shuffle, Real) and 0 <= self.shuffle <= 1):
            raise ValueError(f"shuffle must be True, False or a share of the steps from 0 to 1, got {self.shuffle!r}.")
        if self.kappa is not False:
            is_pair = isinstance(self.kappa, tuple | list) and len(self.kappa) == 2
            is_pair = is_pair and all(isinstance(bound, Real) for bound in self.kappa)
            if not is_pair or not 0 < self.kappa[0] <= 1 <= self.kappa[1] < math.inf:
                wanted = "bounds (low, high) with 0 < low <= 1 <= high, or False for no multipliers"
                raise ValueError(f"kappa must be {wanted}, got {self.kappa!r}.")

    def of_loop(self) -> LoopSettings:
        """The settings for which each loop has values of its own: given ones, and the loop's for the others."""
        given = {name: getattr(self, name) for name in LoopSettings._fields}  # None: not given
        if self.bounds == "both" and self.shuffle is None:
            given["shuffle"] = 0.0  # entries in another order have another determinant
        return LOOP_SETTINGS[self.loop]._replace(**{name: v for name, v in given.items() if v is not None})
