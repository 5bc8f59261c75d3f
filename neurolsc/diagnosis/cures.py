"""Cures of faults, tried with a few updates on copies of the network."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from neurolsc.diagnosis.measurements import Batch, Measurements, batch_first, copied, loss_after
from neurolsc.diagnosis.report import (
    DEPTH,
    EXPLODING,
    NEURONS,
    OFTEN,
    RARE,
    RATE,
    SATURATED,
    SCALE,
    TOO_FAST,
    VANISHING,
    Diagnosis,
    Trial,
)
from neurolsc.network import Network, as_network
from neurolsc.neurons.spiking import Reset
from neurolsc.stability import TransitionRule, match_firing_rates
from neurolsc.stability.conditions import DEAD
from neurolsc.tasks import Classification, Task
from neurolsc.validation import positive


class Cure(NamedTuple):
    """What is done about a fault."""

    words: str
    treat: Callable[[Network, Tensor], object] = lambda network, x: None  # in place, on an input (T, B, n_in)
    lr: float = 1.0  # factor on the learning rate


def _cure(name: str, layers: Sequence[int], network: Network, measured: Measurements) -> Cure | None:
    """The cure of a kind of fault in some layers, counted from 0; None where the package can try none."""
    cells, profile, rates = network.cells, measured.profile, None

    def movable(radius: str) -> list[int]:
        return [i for i in layers if any(scaled.radius == radius for scaled in cells[i].scaled_parameters)]

    if all(cells[i].thresholds() is not None for i in network.spiking) and network.spiking:
        # of all layers, as what one fires another reads: good rates for those named and those out of scale
        named = layers if name in (DEAD, SATURATED, SCALE, NEURONS) else ()
        fires = [layer.activity.rate for layer in measured.layers]
        wanted = [rate if i not in named and RARE <= rate <= OFTEN else RATE for i, rate in enumerate(fires)]
        words = f"thresholds scaled to rates of {', '.join(f'{wanted[i]:.2g}' for i in network.spiking)}"
        rates = Cure(words, lambda network, x: match_firing_rates(network, x, wanted, tolerance=math.inf))
    if name in (DEAD, SATURATED, SCALE, NEURONS):
        return rates
    if name == TOO_FAST:
        return Cure("a tenth of the learning rate", lr=0.1)
    if name == EXPLODING:  # the reset detached where the radius is due to it; else all that sets the radius scaled
        resets = {i: reset for i in layers if isinstance(reset := getattr(cells[i], "reset", None), Reset)}
        by_reset = [i for i, r in resets.items() if r.gradient and profile.main_term(i).name == "reset"]
        factors = {i: min(1 / profile.time_mean[i].item(), 0.95) for i in movable("time") if i not in by_reset}
        scaled = ", ".join(f"{factor:.2f}" for factor in factors.values())
        words = ["the reset detached"] * bool(by_reset)
        words += [f"all that the radius through time follows scaled by {scaled}"] * bool(factors)

        def calm(network: Network, x: Tensor) -> None:
            for i in by_reset:
                network.cells[i].reset = replace(resets[i], gradient=False)  # type: ignore[assignment]
            for i, factor in factors.items():
                TransitionRule(hold_threshold=True).apply(network.cells[i], time=factor, depth=1.0)

        return Cure("; ".join(words), calm) if words else None
    if name == VANISHING:  # input weights up, then the thresholds to the rates of before, or to good ones
        radii = {i: profile.depth_mean[i].item() for i in movable("depth")}
        factors = {i: DEPTH / radius for i, radius in radii.items() if radius > 1e-6}  # less is no radius at all
        text = f"input weights scaled by {', '.join(f'{k:.3g}' for k in factors.values())}"

        def open_up(network: Network, x: Tensor) -> None:
            for i, factor in factors.items():
                TransitionRule().apply(network.cells[i], time=1.0, depth=factor)
            if rates is not None:
                rates.treat(network, x)

        return Cure(text if rates is None else f"{text}; {rates.words}", open_up) if factors else None
    return None


def try_cures(
    network: Network,
    batch: Tensor | Sequence[Tensor],
    diagnosis: Diagnosis,
    *,
    task: Task = Classification(),
    lr: float = 1e-3,
    updates: int = 20,
) -> tuple[Trial, ...]:
    """Try the cure of each finding on a copy of the network, and see whether it then learns faster.

    Each copy is trained on the batch itself, without dropout, from the same weights but for its cure; an untreated copy
    as well. So few updates say whether a cure sets something in motion, not what a whole training becomes.

    Args:
        network: the network; it stays as it is.
        batch: (x, targets) or (x, targets, mask), as for :func:`neurolsc.diagnose`.
        diagnosis: what was found with that batch.
        task: the task of the network.
        lr: learning rate.
        updates: of each copy.

    Returns:
        A trial for every kind of fault that the package can do something about, of all layers that have it at once;
        kinds with the same cure are one. Where the axes are swapped the batch is turned before all trials.

    Raises:
        TypeError: if network is not one, or the batch is of another kind.
        ValueError: if there are no targets, or the batch or a number does not fit.

    Cost: ``updates`` training steps on the batch per cure and for the untreated copy.
    """
    data = Batch.of(batch, as_network(network))
    if data.targets is None:
        raise ValueError("trials need targets: give the batch as (x, targets).")
    positive("lr", lr)
    data = data.turned() if batch_first(data) else data

    def layers_of(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(sorted({f.layer for f in diagnosis if f.name in names and f.layer is not None}))

    cures: dict[str, tuple[Cure, list[str]]] = {}
    for name in dict.fromkeys(finding.name for finding in diagnosis):
        if cure := _cure(name, [layer - 1 for layer in layers_of([name])], network, diagnosis.measurements):
            cures.setdefault(cure.words, (cure, []))[1].append(name)
    if not cures:
        return ()
    untreated = loss_after(copied(network), data, task, lr, updates)
    trials = []
    for words, (cure, names) in cures.items():
        patient = copied(network)
        cure.treat(patient, data.x)
        before = loss_after(patient, data, task, lr, 0)
        after = loss_after(patient, data, task, lr * cure.lr, updates)
        helped = math.isfinite(after) and not after >= 0.995 * untreated  # orders of summation move it by 0.001
        trials.append(Trial(", ".join(names), layers_of(names), words, before, after, untreated, helped))
    return tuple(trials)
