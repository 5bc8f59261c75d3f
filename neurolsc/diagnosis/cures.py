"""The one thing to try for each kind of fault, done to a network in place."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from neurolsc.diagnosis.faults import EXPLODING, FROZEN, NEURONS, OFTEN, RARE, SATURATED, SCALE, SYNCHRONOUS, VANISHING
from neurolsc.diagnosis.figures import Figures
from neurolsc.diagnosis.training_faults import TOO_FAST
from neurolsc.network import Network
from neurolsc.neurons.cell import Cell, ScaledParameter, owner_of
from neurolsc.neurons.spiking import Reset
from neurolsc.positive import stored_parameter
from neurolsc.stability import TransitionRule, match_firing_rates
from neurolsc.stability.findings import DEAD, held_by
from neurolsc.stability.lsc.rules import assign

RATE = 0.15
"""spikes per neuron and step to which thresholds are scaled, in the middle of rates that learn"""
DEPTH = 0.5
"""radius through depth to which input weights are scaled, in the middle of those that learn"""
SHORTEST, LONGEST = 0.1, 1e4
"""time constants, in steps, that an optimizer can move"""
NO_RADIUS = 1e-6
"""radius through depth that counts as none: what is read does not reach what is sent in a step"""


@dataclass(frozen=True)
class Cure:
    """What is done about a fault."""

    words: str
    """what it is, for those who read of it"""
    treat: Callable[[Network, Tensor], object] | None = None
    """changes a network in place, given an input (T, B, n_in); None: it stays as it is"""
    lr: float = 1.0
    """factor on the learning rate"""


def cure_for(name: str, layers: Sequence[int], network: Network, figures: Figures) -> Cure | None:
    """The cure of a kind of fault.

    Args:
        name: of the findings.
        layers: those that they name, counted from 0.
        network: the network in which they were found.
        figures: what was measured of it.

    Returns:
        The cure; None where there is none that the package can try.
    """
    if name == TOO_FAST:
        return Cure("a tenth of the learning rate", lr=0.1)
    make = _OF_LAYERS.get(name)
    return None if make is None else make(layers, network, figures)


def _rates(layers: Sequence[int], network: Network, figures: Figures) -> Cure | None:
    """Thresholds of all layers, as what one fires another hears."""
    if not network.spiking or any(network.cells[i].thresholds() is None for i in network.spiking):
        return None
    measured = [layer.activity.rate for layer in figures.layers]
    wanted = [RATE if i in layers or rate < RARE or rate > OFTEN else rate for i, rate in enumerate(measured)]
    words = f"thresholds scaled to rates of {', '.join(f'{wanted[i]:.2g}' for i in network.spiking)}"
    return Cure(words, partial(match_firing_rates, rates=wanted, tolerance=math.inf))


def _apart(layers: Sequence[int], network: Network, figures: Figures) -> Cure | None:
    """Half of the recurrence."""
    values = {i: [a.parameter for a in network.cells[i].scaled_parameters if _scales(a, "time")] for i in layers}
    if not any(values.values()):
        return None
    return Cure("what neurons of a layer send each other halved", partial(_halve, values=values))


def _calm(layers: Sequence[int], network: Network, figures: Figures) -> Cure | None:
    """The reset detached where it holds the radius; else all that answers for it scaled."""
    by_reset = [i for i in layers if _carries(network.cells[i]) and held_by(figures.profile, i).name == "reset"]
    factors = {i: min(1 / figures.profile.time_mean[i].item(), 0.95) for i in layers if i not in by_reset}
    factors = {i: k for i, k in factors.items() if any(a.radius == "time" for a in network.cells[i].scaled_parameters)}
    told = [*(["the reset detached"] if by_reset else [])]
    if factors:
        told.append(
            f"all that the radius through time follows scaled by {', '.join(f'{k:.2f}' for k in factors.values())}"
        )
    if not told:
        return None

    def treat(network: Network, x: Tensor) -> None:
        for i in by_reset:
            cell = network.cells[i]
            cell.reset = replace(cell.reset, gradient=False)  # type: ignore[assignment,arg-type]
        for i, factor in factors.items():
            TransitionRule(hold_threshold=True).apply(network.cells[i], time=factor, depth=1.0)

    return Cure("; ".join(told), treat)


def _open(layers: Sequence[int], network: Network, figures: Figures) -> Cure | None:
    """Input weights up, then the thresholds to the rates of before, or to good ones."""
    radii = {i: figures.profile.depth_mean[i].item() for i in layers}
    factors = {
        i: DEPTH / radius
        for i, radius in radii.items()
        if radius > NO_RADIUS and any(_scales(a, "depth") for a in network.cells[i].scaled_parameters)
    }
    if not factors:
        return None
    rates = _rates((), network, figures)

    def treat(network: Network, x: Tensor) -> None:
        for i, factor in factors.items():
            TransitionRule().apply(network.cells[i], time=1.0, depth=factor)
        if rates is not None and rates.treat is not None:
            rates.treat(network, x)

    words = f"input weights scaled by {', '.join(f'{k:.3g}' for k in factors.values())}"
    return Cure(words if rates is None else f"{words}; {rates.words}", treat)


def _move(layers: Sequence[int], network: Network, figures: Figures) -> Cure | None:
    """Time constants unfrozen, and those that cannot move brought to where they can."""
    words = f"time constants unfrozen, and kept within {SHORTEST:g} to {LONGEST:g} steps"
    return Cure(words, partial(_free, layers=layers))


_OF_LAYERS: dict[str, Callable[[Sequence[int], Network, Figures], Cure | None]] = {
    DEAD: _rates,
    SATURATED: _rates,
    SCALE: _rates,
    NEURONS: _rates,
    SYNCHRONOUS: _apart,
    EXPLODING: _calm,
    VANISHING: _open,
    FROZEN: _move,
}


def _scales(answer: ScaledParameter, radius: str) -> bool:
    """Whether a parameter's value scales a radius."""
    return answer.radius == radius and answer.through == "value"


def _carries(cell: Cell) -> bool:
    """Whether a cell has a reset of ours that lets gradients through."""
    reset = getattr(cell, "reset", None)
    return isinstance(reset, Reset) and reset.gradient


def _halve(network: Network, x: Tensor, *, values: dict[int, list[str]]) -> None:
    for i, names in values.items():
        for name in names:
            cell = network.cells[i]
            owner, last = owner_of(cell, name)
            assign(cell, name, getattr(owner, last) * 0.5)


def _free(network: Network, x: Tensor, *, layers: Sequence[int]) -> None:
    for i in layers:
        cell = network.cells[i]
        thresholds = cell.thresholds()
        rest = None if thresholds is None else thresholds.rest()
        for answer in cell.scaled_parameters:
            owner, name = owner_of(cell, answer.parameter)
            parameter = stored_parameter(owner, name)
            if answer.through == "value" or parameter is None:
                continue
            parameter.requires_grad_()
            if answer.through == "decay":
                assign(cell, answer.parameter, getattr(owner, name).detach().clamp(SHORTEST, LONGEST))
        if thresholds is not None and rest is not None:
            thresholds.set_rest(rest)
