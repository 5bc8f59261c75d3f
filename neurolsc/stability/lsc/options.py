"""The settings of a pre-training, all in one place."""

from dataclasses import dataclass, field, fields
from typing import Any

from neurolsc.stability.lsc.criteria import Criteria
from neurolsc.stability.lsc.rules import Rule, checked_rule
from neurolsc.stability.lsc.targets import Aim, Target, as_target
from neurolsc.stability.transitions import NON_SQUARE, NonSquare
from neurolsc.validation import number, one_of, whole

_FREE = ("max_steps", "criteria")  # a run may go on with others


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a pre-training goes about it; the loop, its checkpoint and its result share one.

    Attributes: as the arguments of :func:`neurolsc.pretrain`, which explains them.

    Raises:
        TypeError: if something is of another kind.
        ValueError: if a value cannot be used.
    """

    target: Target
    rule: Rule
    seed: int = 0
    max_steps: int = 200
    samples: int = 4
    steps: int | None = 8
    gradient: bool = True
    multiplier: tuple[float, float] | None = (0.85, 1.15)
    shuffle: bool | float = True
    slow_copy: bool = True
    polish: bool = True
    include_input: bool = True
    lower_bound: float = 0.0
    non_square: NonSquare = "submatrix"
    criteria: Criteria = field(default_factory=Criteria)
    lr: float = 3.14e-3
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        as_target(self.target)
        checked_rule(self.rule)
        whole("samples", self.samples)
        whole("max_steps", self.max_steps, at_least=0)
        if self.steps is not None:
            whole("steps", self.steps)
        one_of("non_square", self.non_square, NON_SQUARE)
        number("lr", self.lr)
        if not isinstance(self.shuffle, bool | int | float) or not 0 <= self.shuffle <= 1:
            raise ValueError(f"shuffle must be True, False or a share of the steps from 0 to 1, got {self.shuffle!r}.")
        number("lower_bound", self.lower_bound, zero_allowed=True)
        if self.lower_bound and not self.gradient:
            raise ValueError("lower_bound is a part of the loss: with gradient=False it would move nothing.")
        number("weight_decay", self.weight_decay, zero_allowed=True)
        if self.multiplier is not None:
            object.__setattr__(self, "multiplier", _bounds(self.multiplier))

    def settings(self, goal: Aim) -> dict[str, Any]:
        """What the steps of a run depend on, as a checkpoint keeps it."""
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _FREE}
        return kept | {"target": tuple(goal), "rule": self.rule.name}

    def ends(self) -> dict[str, Any]:
        """When the run is over, as a checkpoint keeps it."""
        return {name: repr(getattr(self, name)) for name in _FREE}


def _bounds(multiplier: tuple[float, float]) -> tuple[float, float]:
    low, high = multiplier
    if not 0 < low <= 1 <= high < float("inf"):
        raise ValueError(f"multiplier must be bounds (low, high) with 0 < low <= 1 <= high, got {multiplier!r}.")
    return float(low), float(high)
