"""Faults by name, and what to change: of a surrogate, and of radii that miss their targets."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neurolsc.neurons.cell import Cell
from neurolsc.neurons.derivatives import Term

if TYPE_CHECKING:
    from neurolsc.stability.profile import RadiusProfile

DEAD, NOT_FINITE = "dead layer", "surrogate not finite"
REACH = 20.0  # thresholds from the threshold up to which the derivative of a surrogate has to be finite


@dataclass(frozen=True)
class Finding:
    """One fault: where, why, and the one thing to try."""

    layer: int | None  # counted from 1; None: not of one layer
    problem: str
    cure: str
    cause: str = ""
    name: str = ""  # the kind of fault, for programs

    def __str__(self) -> str:
        where = "network" if self.layer is None else f"layer {self.layer}"
        why = f" ({self.cause})" if self.cause else ""
        return f"{where}: {self.problem}{why}; {self.cure}."

    def __repr__(self) -> str:
        return f"Finding({self})"


def surrogate_fault(cell: Cell, layer: int) -> Finding | None:
    """The finding of a layer (from 0) whose surrogate has a NaN or infinite derivative near the threshold, else None.

    A single neuron whose voltage gets there makes the gradient of every weight NaN, at any learning rate: snnTorch's
    ``sigmoid(slope=25)`` does so from 3.5 below the threshold on, in float32.
    """
    low, high = finite_distances(cell)
    distance, side = min((-low, "below"), (high, "above"))
    if distance == math.inf:
        return None
    problem = f"the derivative of its surrogate is not finite {distance:.3g} or more {side} the threshold"
    cause = "a voltage there makes all gradients NaN, at any learning rate"
    return Finding(layer + 1, problem, "use fast_sigmoid or atan", cause, NOT_FINITE)


def finite_distances(cell: Cell) -> tuple[float, float]:
    """The range of v - theta in which the derivative of a cell's surrogate is finite, by bisection.

    An end is infinite where the derivative is finite up to :data:`REACH` thresholds, or the cell does not say what its
    voltage is.
    """
    membrane = cell.membrane()
    if membrane is None:
        return -math.inf, math.inf
    rest = cell.initial_state(1)
    voltage = getattr(rest, membrane.name).detach()
    threshold = membrane.thresholds(rest).detach().abs().max().item() or 1.0

    def finite(distance: float) -> bool:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            v = torch.full_like(voltage, distance).requires_grad_()
            z: Tensor = membrane.spike(v)
            return not z.requires_grad or bool(torch.autograd.grad(z.sum(), v)[0].isfinite().all())

    ends = []
    for side in (-1.0, 1.0):
        good, bad = 0.0, side * REACH * threshold
        if not math.isfinite(threshold) or finite(bad):
            ends.append(side * math.inf)
            continue
        for _ in range(24):
            middle = (good + bad) / 2
            good, bad = (middle, bad) if finite(middle) else (good, middle)
        ends.append(good)
    return ends[0], ends[1]


def main_term(profile: "RadiusProfile", layer: int) -> Term:
    """The term that contributes most to a layer's radius through time at most points; `unknown` if none is known."""
    sources = profile.sources[layer]
    most = max(sources, key=sources.__getitem__, default="unknown")
    return next((term for term in profile.terms[layer] if term.name == most), Term(most))
