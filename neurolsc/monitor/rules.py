"""Rules on the rows of a monitor: what happened to a network, in which layer, and what changed before it.

A rule yields a `Sign` for each layer, with what happened and its cause in words; `BOUNDS` and `Limits` have the numbers
it compares with.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from neurolsc.diagnosis.case import Sign, listed
from neurolsc.diagnosis.faults import BOUNDS
from neurolsc.init.base import Layer
from neurolsc.monitor.measurements import Row, names, not_finite
from neurolsc.network import Network
from neurolsc.neurons.cell import stored_parameter


@dataclass(frozen=True)
class Event:
    """Something that happened to a network while it was trained.

    Attributes:
        update: the update at whose row it was seen, counted from 1.
        layer: the layer, counted from 1; None: the whole network.
        name: the kind, for programs.
        text: a sentence.
    """

    update: int
    layer: int | None
    name: str
    text: str

    def __str__(self) -> str:
        return f"update {self.update}: {self.text}"


@dataclass(frozen=True)
class Limits:
    """What rules of a monitor compare with, besides the bounds of diagnoses."""

    # Rows back to which a row is compared.
    back: int = 5
    # Share of dead neurons above which most are dead, where it was below the other at first.
    most_dead: float = 0.8
    few_dead: float = 0.5
    # Factor between a gradient and all those of the rows before.
    sudden: float = 100.0
    # Share of the largest earlier movement below which weights stand still, and above which others do not.
    still: float = 1e-3
    moving: float = 0.1
    # Share of what a loss has fallen that it may rise again, and of its first value to which it has to fall before.
    risen: float = 0.5
    fallen: float = 0.7
    # Relative distance to the loss of guessing, and rows in a row within it.
    guess: float = 0.02
    guesses: int = 5
    # Factors of change from which on a part of a layer counts as a cause.
    threshold: float = 1.2
    recurrence: float = 1.3
    weights: float = 1.5


LIMITS = Limits()


@dataclass(frozen=True)
class Course:
    """What rules read: the rows so far, and the network as it is now.

    Attributes:
        rows: the rows, the last one of now.
        network: the network.
        classes: number of classes, where the loss of guessing is known; else 0.
        first_bad_loss: the first update, since the last row, whose loss is not finite, and that loss.
        probe_is_finite: False if the input of the probe batch is no longer finite.
        seen: kinds and layers of earlier events.
    """

    rows: Sequence[Row]
    network: Network
    classes: int
    first_bad_loss: tuple[int, float] | None
    probe_is_finite: bool
    seen: set[tuple[str, int | None]]

    @property
    def layers(self) -> range:
        """Numbers of the layers, from 1."""
        return range(1, len(self.network.cells) + 1)

    @property
    def now(self) -> Row:
        return self.rows[-1]

    @property
    def recent(self) -> Sequence[Row]:
        """The rows with which that of now is compared."""
        return self.rows[-1 - LIMITS.back : -1]

    def pair(self, name: str) -> tuple[float, float] | None:
        """A number some rows ago and now, or None where one of them is not known."""
        known = [row[name] for row in self.recent if name in row]
        if not known or name not in self.now:
            return None
        return known[0], self.now[name]

    @property
    def largest_step(self) -> float:
        """Thresholds by which an update may move voltages."""
        last = self.network.cells[-1]
        reads_spikes = not last.integrator and not list(self.network.readout.parameters())
        return BOUNDS.step if reads_spikes else BOUNDS.step_below_linear

    def silent(self, layer: int) -> bool:
        return self.now.get(f"rate_{layer}") == 0


# ---------------------------------------------------------------- what changed before


def causes(course: Course, layer: int) -> list[str]:
    """What has changed in a layer over the last rows, in words with the numbers before and after."""
    found = []
    for name, what, factor in (
        ("threshold", "its mean threshold", LIMITS.threshold),
        ("recurrent", "the norm of its recurrent weights", LIMITS.recurrence),
        ("surrogate_width", "the width of its surrogate", LIMITS.weights),
    ):
        pair = course.pair(f"{name}_{layer}")
        if pair is not None and changed(*pair, factor):
            found.append(f"{what} went from {pair[0]:.3g} to {pair[1]:.3g}")
    steps = [row[f"step_{layer}"] for row in (*course.recent, course.now) if f"step_{layer}" in row]
    if steps and max(steps) > course.largest_step:
        found.append(f"an update moved its voltages by {max(steps):.2g} thresholds, {steps[0]:.2g} before")
    if layer > 1 and course.silent(layer - 1):
        found.append(f"layer {layer - 1} below is silent")
    pair = course.pair(f"weights_{layer}")
    if pair is not None and not found and changed(*pair, LIMITS.weights):
        found.append(f"the norm of its input weights went from {pair[0]:.3g} to {pair[1]:.3g}")
    pair = course.pair(f"voltage_{layer}")
    if pair is not None and not found:
        found.append(f"its mean voltage went from {pair[0]:.2g} to {pair[1]:.2g} thresholds")
    return found


def changed(before: float, after: float, factor: float) -> bool:
    """True if a number has grown or shrunk by more than a factor."""
    low, high = sorted((abs(before), abs(after)))
    return high > factor * low


def because(course: Course, layer: int) -> str:
    """Causes as the end of a sentence."""
    return "; ".join(causes(course, layer)[:2])


# ---------------------------------------------------------------- the rules


def is_not_finite(course: Course) -> Iterator[Sign]:
    """A loss, weights or a probe batch that are not finite."""
    bad = not_finite(course.network)
    layers = [int(name) for name in bad if name != "readout"]
    where = f"the weights of {listed(bad)} are not finite" if bad else "all weights are finite"
    if not course.probe_is_finite:
        yield Sign(None, "the probe batch is not finite any more", "its tensor was changed")
    elif course.first_bad_loss is not None:
        update, loss = course.first_bad_loss
        cause = "the probe batch is finite: look at the batch of that update, or lower the learning rate"
        yield Sign(layers[0] if layers else None, f"the loss of update {update} is {loss}, {where}", cause)
    elif bad:
        yield Sign(layers[0] if layers else None, where, "the probe batch is finite")


def has_died(course: Course) -> Iterator[Sign]:
    """A layer without a spike that fired before, or one of which most neurons have fallen silent."""
    for layer in course.layers:
        rate = course.pair(f"rate_{layer}")
        if rate is not None and rate[0] > 0 and rate[1] == 0:
            problem = f"layer {layer} has fallen silent, from {rate[0]:.3g} spikes per step"
            yield Sign(layer, problem, because(course, layer))
            continue
        first = course.rows[0].get(f"dead_{layer}", math.nan)
        dead = course.now.get(f"dead_{layer}", math.nan)
        if rate is not None and first < LIMITS.few_dead and LIMITS.most_dead < dead:
            problem = f"{dead:.0%} of the neurons of layer {layer} never fire, {first:.0%} at first"
            yield Sign(layer, problem, because(course, layer))


def has_saturated(course: Course) -> Iterator[Sign]:
    """A layer that fires at nearly all steps, or most of whose neurons do, and did not before."""
    for layer in course.layers:
        rate = course.pair(f"rate_{layer}")
        share = course.pair(f"saturated_{layer}")
        if rate is None or share is None:
            continue
        before, now = (r > BOUNDS.busy or s > BOUNDS.most_busy for r, s in zip(rate, share, strict=True))
        if now and not before:
            problem = f"layer {layer} fires at nearly all steps, {rate[1]:.2g} spikes per step, {rate[0]:.2g} before"
            yield Sign(layer, problem, because(course, layer))


def gradient_explodes(course: Course) -> Iterator[Sign]:
    """The topmost layer whose gradient is suddenly far larger than in all rows before, or not finite."""
    for layer in reversed(course.layers):
        name = f"gradient_{layer}"
        earlier = [row[name] for row in course.rows[:-1] if name in row]
        if len(earlier) < 2:
            continue
        size = course.now.get(name, math.inf if "probe_loss" in course.now else math.nan)
        if size > LIMITS.sudden * max(earlier) > 0:
            problem = f"the gradient of layer {layer} explodes, from {earlier[-1]:.2g} to {size:.2g}"
            yield Sign(layer, problem, because(course, layer))
            return


def gradient_vanishes(course: Course) -> Iterator[Sign]:
    """The topmost layer whose gradient is suddenly far smaller than before, at a loss that has not fallen."""
    loss = course.pair("probe_loss")
    if loss is None or loss[1] < LIMITS.fallen * loss[0]:
        return
    for layer in reversed(course.layers):
        name = f"gradient_{layer}"
        earlier = [row[name] for row in course.recent if name in row]
        if course.silent(layer) or len(earlier) < 2 or name not in course.now:
            continue
        if LIMITS.sudden * course.now[name] < min(earlier):
            problem = f"the gradient of layer {layer} vanishes, from {earlier[-1]:.2g} to {course.now[name]:.2g}"
            yield Sign(layer, problem, because(course, layer))
            return


def stands_still(course: Course) -> Iterator[Sign]:
    """Weights that do not move any more, or never did, where those of other layers do."""
    largest: dict[str, float] = {}
    for name in names(course.network):
        largest[name] = max((row.get(f"drift_{name}", 0.0) for row in course.rows), default=0.0)
    moves = {name: course.now.get(f"drift_{name}", 0.0) for name in largest}
    still = [name for name in moves if moves[name] <= LIMITS.still * largest[name]]
    others_move = any(moves[name] > LIMITS.moving * largest[name] for name in moves)
    for layer in course.layers:
        if str(layer) not in still or f"drift_{layer}" not in course.now or course.silent(layer):
            continue
        if layer > 1 and course.silent(layer - 1):
            continue
        why = why_still(course, layer)
        fed_nothing = why.startswith("the batches")
        if why and (others_move or fed_nothing):
            problem = f"the weights of layer {layer} stand still, after {largest[str(layer)]:.2g} of their norm a row"
            if not largest[str(layer)]:
                problem = f"the weights of layer {layer} have not moved"
            yield Sign(layer, problem, why)


def why_still(course: Course, layer: int) -> str:
    """Why weights stand still: what is left in ``grad`` shows it; empty if they were frozen from the beginning."""
    cell = course.network.cells[layer - 1]
    stored = [stored_parameter(cell, matrix.name) for matrix in Layer(course.network, layer - 1).matrices]
    parameters = [parameter for parameter in stored if parameter is not None]
    if not any(parameter.requires_grad for parameter in parameters):
        thawed = any(row.get(f"drift_{layer}") for row in course.rows)
        return "their requires_grad is False now" if thawed else ""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return "no gradient is left in their grad"
    if any(gradient.any() for gradient in gradients):
        return "they have a gradient: the optimizer leaves them out, or its learning rate for them is 0"
    probe = course.now.get(f"gradient_{layer}", math.nan)
    return f"the batches they are trained on give no gradient, the probe batch {probe:.2g}: is their input zero?"


def step_is_large(course: Course) -> Iterator[Sign]:
    """The layer above the first whose voltages an update moves farthest, if that is too far."""
    steps = {layer: course.now.get(f"step_{layer}", 0.0) for layer in course.layers if layer > 1}
    layer = max(steps, key=steps.__getitem__, default=0)
    if not layer or not steps[layer] > course.largest_step:
        return
    pair = course.pair(f"step_{layer}")
    before = "" if pair is None else f", by {pair[0]:.2g} before"
    problem = f"an update moves the voltages of layer {layer} by {steps[layer]:.2g} thresholds{before}"
    change = course.pair(f"change_{layer}")
    cause = f"{course.largest_step:g} is too much for most networks"
    if change is not None:
        cause = f"an update changes its weights by {change[1]:.2g} of their norm, by {change[0]:.2g} before"
    yield Sign(layer, problem, cause)


def loss_rises(course: Course) -> Iterator[Sign]:
    """A training loss that has lost much of what it had gained."""
    losses = [row["loss"] for row in course.rows if "loss" in row]
    if len(losses) < 3 or "loss" not in course.now:
        return
    first, best, now = losses[0], min(losses[:-1]), losses[-1]
    if best > LIMITS.fallen * first or now < best + LIMITS.risen * (first - best):
        return
    problem = f"the training loss has risen from {best:.3g} to {now:.3g}"
    probe = course.pair("probe_loss")
    if probe is not None:
        problem += f", that of the probe batch from {probe[0]:.3g} to {probe[1]:.3g}"
    if probe is not None and probe[1] - probe[0] < LIMITS.risen * (now - best):
        yield Sign(None, problem, "the training batches have changed, not the network: look at inputs and labels")
        return
    for layer in course.layers:
        found = [cause for cause in causes(course, layer) if "mean voltage" not in cause]
        if found:
            yield Sign(layer, problem, f"in layer {layer} {'; '.join(found[:2])}")
            return
    yield Sign(
        None, problem, "thresholds, recurrence and surrogates are as before: look at inputs, labels and the optimizer"
    )


def stays_at_guessing(course: Course) -> Iterator[Sign]:
    """A training loss that is that of guessing for some rows."""
    losses = [row["loss"] for row in course.rows if "loss" in row][-LIMITS.guesses :]
    if len(losses) < LIMITS.guesses or course.classes < 2 or any(name == "loss rises" for name, _ in course.seen):
        return
    guessing = math.log(course.classes)
    if any(abs(loss - guessing) > LIMITS.guess * guessing for loss in losses):
        return
    silent = [layer for layer in course.layers if course.silent(layer)]
    top = course.now.get(f"similarity_{len(course.layers)}", math.nan)
    cause = f"layer {len(course.layers)} keeps {top:.1%} of what tells inputs apart"
    if silent:
        cause = f"{listed(silent)} never fire"
    problem = f"the loss stands still at guessing among {course.classes} classes, {guessing:.3g}"
    yield Sign(silent[0] if silent else None, problem, cause)


Rule = Callable[[Course], Iterator[Sign]]

RULES: dict[str, Rule] = {
    "not finite": is_not_finite,
    "dead layer": has_died,
    "saturated layer": has_saturated,
    "exploding gradient": gradient_explodes,
    "vanishing gradient": gradient_vanishes,
    "weights stand still": stands_still,
    "large step": step_is_large,
    "loss rises": loss_rises,
    "loss of guessing": stays_at_guessing,
}
"""Kinds of events, in the order in which they are told."""


def events(course: Course) -> list[Event]:
    """What has happened since the last row and was not told before."""
    found = []
    for name, rule in RULES.items():
        for sign in rule(course):
            if (name, sign.layer) in course.seen:
                continue
            course.seen.add((name, sign.layer))
            text = f"{sign.problem}; {sign.cause}." if sign.cause else f"{sign.problem}."
            found.append(Event(int(course.now["update"]), sign.layer, name, text))
    return found
