r"""Multiplier rules: which parameter answers for which radius.

After each pre-training step every layer has two multipliers, :math:`\kappa =
\mathrm{clip}(\text{target} / \text{mean radius})`, one through time and one through depth. A rule
says what they multiply. The cell knows its parameters
(:class:`neurolsc.neurons.ScaledParameter`); the rule chooses among them.

A rule assigns parameters, it never multiplies them in place: time constants are stored as
logarithms. Frozen parameters (``requires_grad=False``) stay as they are.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import torch

from neurolsc.neurons.cell import Cell, ScaledParameter, is_frozen, owner_of
from neurolsc.positive import set_value
from neurolsc.stability.lsc.targets import Balanced, Target, as_target


class Rule(Protocol):
    """What a multiplier rule is: an object that moves a cell's parameters."""

    @property
    def name(self) -> str:
        """Its name in tables and logs."""
        ...

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        """Move the parameters of a cell, in place, by its multipliers through time and depth."""
        ...


@dataclass(frozen=True)
class PaperRule:
    """The paper's: w_in, b_theta, adaptation follow the depth, w_rec, tau_v, tau_theta the time.

    The adaptation stands in the derivative through time only, so with this rule a depth radius
    below its target raises it until the radius through time runs away.

    Source: arXiv:2308.12075, Sec. II-D and App. H.
    """

    name: str = "paper"

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        """Multiply the values of the parameters."""
        _multiply(cell, cell.paper_scaled_parameters, time=time, depth=depth)


@dataclass(frozen=True)
class TransitionRule:
    r"""Ours: scale every entry of the derivative through time, and w_in by the depth.

    With a detached reset the derivative through time of LIF and ALIF is made of
    :math:`e^{-1/\tau_v}`, :math:`e^{-1/\tau_\vartheta}`, :math:`W_{rec} s` and :math:`\beta s`.
    Multiplying both decays (not the time constants), the recurrent weights and the adaptation by
    :math:`\kappa` multiplies the whole matrix, and so every eigenvalue and the radius, by exactly
    :math:`\kappa` in the states at hand. Likewise :math:`W_{in}` through depth. What moves the
    radius afterwards are only the surrogate's arguments, through other voltages and thresholds.

    Args:
        hold_threshold: keep the resting threshold b_theta / (1 - exp(-1/tau_theta)) while tau_theta
            moves, by moving b_theta. Otherwise a shorter tau_theta lowers it, and the layer fires
            more.
        longest: decays stay at or below exp(-1/longest), in steps.
    """

    hold_threshold: bool = False
    longest: float = 1e4

    @property
    def name(self) -> str:
        """Its name in tables and logs."""
        held = ", threshold held" if self.hold_threshold else ""
        return f"transition{held}" + (f", longest {self.longest:g}" if self.longest != 1e4 else "")

    def apply(self, cell: Cell, *, time: float, depth: float) -> None:
        """Multiply weights and adaptation, and the decays behind the time constants."""
        thresholds = cell.thresholds() if self.hold_threshold else None
        held = None if thresholds is None else thresholds.rest()
        _multiply(cell, cell.scaled_parameters, time=time, depth=depth, longest=self.longest)
        if thresholds is not None and held is not None:
            thresholds.set_rest(held)


RULES: dict[str, Rule] = {
    "transition": TransitionRule(),
    "hold-threshold": TransitionRule(hold_threshold=True),
    "paper": PaperRule(),
}
"""The rules that a file or a command line can name; else the default of the target is taken."""


def default_rule(target: Target) -> Rule:
    """The rule that reaches a target with firing layers; for the balanced one the paper's.

    The balanced depth radius is so small that w_in cannot follow without silencing the layers,
    unless the thresholds fall with it. Measured by benchmarks/convergence.py.
    """
    return PaperRule() if isinstance(as_target(target), Balanced) else TransitionRule()


def checked_rule(rule: Rule) -> Rule:
    """The rule, if it is one.

    Raises:
        TypeError: if it is not an object with ``name`` and ``apply``.
    """
    if isinstance(rule, type) or not (hasattr(rule, "name") and callable(getattr(rule, "apply", None))):
        got = f"the class {rule.__name__}" if isinstance(rule, type) else repr(rule)
        raise TypeError(f"rule must be an object with name and apply(cell, *, time, depth), got {got}.")
    return rule


def _multiply(
    cell: Cell, answers: tuple[ScaledParameter, ...], *, time: float, depth: float, longest: float = float("inf")
) -> None:
    with torch.no_grad():
        for answer in answers:
            if is_frozen(cell, answer.parameter):
                continue
            factor = (time if answer.radius == "time" else depth) ** answer.sign
            owner, name = owner_of(cell, answer.parameter)
            value = getattr(owner, name)
            if answer.through == "value":
                moved = value * factor
            elif answer.through == "share":
                moved = (value * factor).clamp(max=math.exp(-1 / longest))
            else:  # exp(-1/moved) = factor exp(-1/value), in logarithms
                rate = 1 / value - torch.log(torch.as_tensor(factor, dtype=value.dtype))
                moved = 1 / rate.clamp(min=1 / longest)
            assign(cell, answer.parameter, moved)


def assign(cell: Cell, name: str, value: torch.Tensor) -> None:
    """Set a parameter of a cell in place: a tensor, or a quantity behind one, as a logarithm."""
    set_value(*owner_of(cell, name), value)
