"""What is wrong, by name, and what to change; and what keeps radii from their targets."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neurolsc.neurons.cell import Cell
from neurolsc.neurons.derivatives import Term

if TYPE_CHECKING:
    from neurolsc.stability.profile import RadiusProfile

_UNKNOWN = Term("unknown")
DEAD, NOT_FINITE = "dead layer", "surrogate not finite"
REACH = 20.0
"""thresholds from the threshold up to which the derivative of a surrogate has to be finite"""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, where, why, and the one thing to try."""

    layer: int | None
    """counted from 1; None: not of one layer"""
    problem: str
    cure: str
    cause: str = ""
    """why, where that is known"""
    name: str = ""
    """what kind of fault it is, for those who look for one"""

    def __str__(self) -> str:
        where = "network" if self.layer is None else f"layer {self.layer}"
        why = f" ({self.cause})" if self.cause else ""
        return f"{where}: {self.problem}{why}; {self.cure}."

    def __repr__(self) -> str:
        return f"Finding({self})"


def surrogate_fault(cell: Cell, layer: int) -> Finding | None:
    """The finding of a layer whose surrogate has a derivative that is NaN or infinite somewhere.

    A single neuron whose voltage gets there makes the gradient of every weight NaN, at any learning
    rate: snnTorch's ``sigmoid(slope=25)`` does so from 3.5 below the threshold on, in float32.

    Args:
        cell: the layer; it stays as it is.
        layer: its number, counted from 0.

    Returns:
        The finding, or None: all is finite up to 20 thresholds from the threshold, the surrogate
        has no derivative at all, or the cell does not say what its voltage is.
    """
    low, high = finite_distances(cell)
    where = {"below": -low, "above": high}
    side = min(where, key=lambda name: where[name])
    if where[side] == math.inf:
        return None
    problem = f"the derivative of its surrogate is not finite {where[side]:.3g} or more {side} the threshold"
    cure = "use fast_sigmoid or atan"
    cause = "a voltage there makes all gradients NaN, at any learning rate"
    return Finding(layer + 1, problem, cure, cause, NOT_FINITE)


def finite_distances(cell: Cell) -> tuple[float, float]:
    """The range of v - theta in which the derivative of a cell's surrogate is finite.

    An end is infinite where the derivative is finite up to :data:`REACH`.
    """
    membrane = cell.membrane()
    if membrane is None:
        return -math.inf, math.inf
    rest = cell.initial_state(1)
    voltage = getattr(rest, membrane.name).detach()
    threshold = membrane.thresholds(rest).detach().abs().max().item() or 1.0
    if not math.isfinite(threshold):
        return -math.inf, math.inf

    def finite(distance: float) -> bool:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            v = torch.full_like(voltage, distance).requires_grad_()
            z: Tensor = membrane.spike(v)
            return not z.requires_grad or bool(torch.autograd.grad(z.sum(), v)[0].isfinite().all())

    ends = []
    for side in (-1.0, 1.0):
        good, bad = 0.0, side * REACH * threshold
        if finite(bad):
            ends.append(side * math.inf)
            continue
        for _ in range(24):
            middle = (good + bad) / 2
            good, bad = (middle, bad) if finite(middle) else (good, middle)
        ends.append(good)
    return ends[0], ends[1]


def dead_layers(profile: "RadiusProfile") -> Iterable[Finding]:
    """The layers that did not fire at all."""
    for i, rate in enumerate(profile.firing_rate.tolist()):
        if rate == 0:
            cure = "lower the thresholds or raise the input weights; a target met by a dead layer says nothing"
            yield Finding(i + 1, "never fires", cure, name=DEAD)


def missed_targets(
    profile: "RadiusProfile",
    misses: Iterable[tuple[int, str, float, float]],
    standard_errors: tuple[list[float], list[float]],
) -> Iterable[Finding]:
    """Radii off target (layer, direction, mean, target), and which term holds those through time.

    Each is shown with the standard error of its mean, of which there is one per layer through time
    and through depth.
    """
    for layer, direction, mean, target in misses:
        error = standard_errors[direction == "depth"][layer]
        problem = f"radius {mean:.3f} ± {error:.3f} through {direction} against a target of {target:.3g}"
        if direction == "depth":
            what = "scale w_in " + ("down" if mean > target else "up") + ", or move the thresholds of the layer below"
            if mean == 0:
                what = "at exactly 0 no scale moves it: what the layer reads does not reach what it sends within a step"
            yield Finding(layer + 1, problem, what)
        else:
            held = held_by(profile, layer)
            share = profile.sources[layer].get(held.name)
            if share is not None:
                problem += f", held by the {held.name} at {share:.0%} of the points"
            yield Finding(layer + 1, problem, held.too_large if mean > target else held.too_small)


def wide_spread(profile: "RadiusProfile", include_input: bool = True) -> Finding:
    """Where radii spread most, for a profile with means on target and a deviation that is not."""
    spread = {
        (layer, direction): radii[layer].std(correction=0).item()
        for direction, radii, wanted in zip(
            ("time", "depth"), (profile.time, profile.depth), profile.target or (1.0, 1.0), strict=True
        )
        for layer in range(len(radii))
        if wanted is not None and (include_input or direction == "time" or layer > 0)
    }
    (layer, direction), widest = max(spread.items(), key=lambda item: item[1])
    problem = f"mean radii are on target, but those through {direction} spread by {widest:.2f}"
    return Finding(layer + 1, problem, "take more steps, soften the surrogate (sharpness), or allow a wider deviation")


def held_by(profile: "RadiusProfile", layer: int) -> Term:
    """The term that contributes most to a layer's radius through time at most points.

    Unknown without a closed form.
    """
    sources = profile.sources[layer]
    if not sources:
        return _UNKNOWN
    most = max(sources, key=sources.__getitem__)
    return next((term for term in profile.terms[layer] if term.name == most), Term(most))
