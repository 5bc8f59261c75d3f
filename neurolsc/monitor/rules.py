"""Rules on the rows of a monitor: what happened to a network, in which layer, and what changed before it.

A rule yields a `Sign` for each layer, with what happened and its cause in words; `BOUNDS` and `Limits` have the numbers
it compares with.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from neurolsc.diagnosis.case import Sign, listed
from neurolsc.diagnosis.faults import BOUNDS
from neurolsc.init.base import Layer
from neurolsc.monitor.measurements import Row, names, not_finite
from neurolsc.network import Network
from neurolsc.neurons.weights import stored_parameter


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

    # How many rows before it a row is compared with.
    back: int = 5
    # Share of dead neurons above which most are dead, if it was below `few_dead` in the first row.
    most_dead: float = 0.8
    few_dead: float = 0.5
    # Factor between a gradient and all those of the rows before, above which it explodes or vanishes.
    sudden: float = 100.0
    # Factor by which both a surrogate's width and its active share have to shrink.
    narrower: float = 2.0
    # An update has jumped if it is more than `jump` times as large as those of the rows before, and changes the weights
    # by more than a share `large` of their norm.
    jump: float = 10.0
    large: float = 0.05
    # Share of a layer's median earlier drift below which its weights stand still, and above which others do move.
    still: float = 1e-3
    moving: float = 0.1
    # A loss rises if it loses a share `risen` of what it had fallen, after it fell to a share `fallen` of its first
    # value. Below a share `risen` of its value in the row before it has halved, and its gradient may shrink with it.
    risen: float = 0.5
    fallen: float = 0.7
    # Relative distance to the loss of guessing, and number of successive rows within it.
    guess: float = 0.02
    guess_rows: int = 5
    # Factors of change above which a part of a layer counts as a cause; `weights` is also that of surrogate widths.
    threshold: float = 1.2
    recurrence: float = 1.3
    weights: float = 1.5


LIMITS = Limits()


@dataclass(frozen=True)
class Course:
    """What rules read of a training: the rows so far, and the network as it is now.

    Attributes:
        rows: the rows; the last one is the present row.
        network: the network.
        classes: number of classes, where the loss of guessing is known; else 0.
        first_bad_loss: the first update since the row before whose loss is not finite, and that loss; None if there is
            none.
        late_loss: the mean training loss of the last quarter of the updates since the row before; NaN where it is not
            known.
        probe_is_finite: False if the input of the probe batch is no longer finite.
        seen: kind and layer of each event that has been told, to which :func:`events` adds.
    """

    rows: Sequence[Row]
    network: Network
    classes: int
    first_bad_loss: tuple[int, float] | None
    late_loss: float
    probe_is_finite: bool
    seen: set[tuple[str, int | None]]

    @property
    def layers(self) -> range:
        """Numbers of the layers, from 1."""
        return range(1, len(self.network.cells) + 1)

    @property
    def now(self) -> Row:
        """The present row."""
        return self.rows[-1]

    @property
    def recent(self) -> Sequence[Row]:
        """The rows with which the present row is compared: those before it, at most LIMITS.back."""
        return self.rows[-1 - LIMITS.back : -1]

    def pair(self, name: str, *, latest: bool = False) -> tuple[float, float] | None:
        """Return a number of the rows as it was before, and as it is now; None if one of the two is not known.

        Args:
            name: its name in a row, such as ``rate_1``.
            latest: take the last of the recent rows that has it, not the first.
        """
        known = [row[name] for row in self.recent if name in row]
        if not known or name not in self.now:
            return None
        before = known[-1] if latest else known[0]
        return before, self.now[name]

    def factor(self, name: str, *, latest: bool = False) -> float:
        """Return the factor, at least 1, by which a number has grown or shrunk between the two rows of :meth:`pair`.

        1 where it is not known or both are 0, infinity where one of the two is 0.
        """
        low, high = sorted(map(abs, self.pair(name, latest=latest) or (1.0, 1.0)))
        if low == high:
            return 1.0
        return high / low if low else math.inf

    def change(self, name: str, *, latest: bool = False) -> str:
        """Say what a number was and is in the two rows of :meth:`pair`, such as ``"from 1 to 2"``."""
        before, now = self.pair(name, latest=latest) or (math.nan, math.nan)
        return f"from {before:.3g} to {now:.3g}"

    @property
    def reads_spikes(self) -> bool:
        """True if the loss reads spikes of the last layer, without weights between."""
        return not self.network.cells[-1].integrator and not list(self.network.readout.parameters())

    @property
    def largest_step(self) -> float:
        """The number of thresholds by which an update may move voltages."""
        return BOUNDS.step if self.reads_spikes else BOUNDS.step_below_linear

    def silent(self, layer: int) -> bool:
        """True if a layer, counted from 1, sends no spikes; False if it is an integrator."""
        return self.now.get(f"rate_{layer}") == 0

    def told(self, name: str) -> bool:
        """True if an event of a kind, in any layer, has been told before or by an earlier rule of this row."""
        return any(kind == name for kind, _ in self.seen)

    def has_jumped(self, name: str) -> bool:
        """True if a change of weights is large, and far larger than in the rows before.

        False if this row does not have it, or no recent row does.

        Args:
            name: the change in a row, ``change_1`` or ``drift_1`` of layer 1: a share of the norm of its weights.
        """
        earlier = [row[name] for row in self.recent if name in row]
        size = self.now.get(name, 0.0)
        return bool(earlier) and size > LIMITS.large and size > LIMITS.jump * max(earlier)


# ---------------------------------------------------------------- what changed before


class Cause(NamedTuple):
    """A part of a layer that has changed over the last rows."""

    factor: float  # by which it has changed, at least 1
    text: str  # what changed, with the numbers before and after


def causes(course: Course, layer: int, *, latest: bool = False) -> list[Cause]:
    """List what has changed in a layer enough to be the cause of an event.

    Args:
        course: the rows.
        layer: the layer, counted from 1.
        latest: compare with the last of the recent rows, not with the first.
    """
    found = []
    parts = {
        "threshold": ("its mean threshold", LIMITS.threshold),
        "recurrent": ("the norm of its recurrent weights", LIMITS.recurrence),
        "surrogate_width": ("the width of its surrogate, in thresholds,", LIMITS.weights),
    }
    for name, (what, least) in parts.items():
        factor = course.factor(f"{name}_{layer}", latest=latest)
        # A width in thresholds changes with the threshold: it is told only if nothing else is.
        already_explained = name == "surrogate_width" and found
        if factor > least and not already_explained:
            found.append(Cause(factor, f"{what} went {course.change(f'{name}_{layer}', latest=latest)}"))
    steps = [row[f"step_{layer}"] for row in (*course.recent, course.now) if f"step_{layer}" in row]
    if steps and (max(steps) > course.largest_step or course.has_jumped(f"change_{layer}")):
        factor = max(steps) / steps[0] if steps[0] else math.inf
        before = f", {steps[0]:.2g} before" if len(steps) > 1 else ""
        found.append(Cause(factor, f"an update moved its voltages by {max(steps):.2g} thresholds{before}"))
    elif course.has_jumped(f"drift_{layer}"):
        found.append(Cause(course.factor(f"drift_{layer}", latest=True), f"its weights {has_moved(course, layer)}"))
    if layer > 1 and course.silent(layer - 1):
        found.append(Cause(1.0, f"layer {layer - 1} below is silent"))
    # Norms of weights grow in most trainings: they are told if nothing else is found.
    factor = course.factor(f"weights_{layer}", latest=latest)
    if factor > LIMITS.weights and not found:
        change = course.change(f"weights_{layer}", latest=latest)
        found.append(Cause(factor, f"the norm of its input weights went {change}"))
    return found


def has_moved(course: Course, layer: int) -> str:
    """Say how far the weights of a layer have moved since the row before, and between the two rows before that."""
    before, now = course.pair(f"drift_{layer}", latest=True) or (math.nan, math.nan)
    return f"moved by {now:.2g} of their norm since the last row, {before:.2g} before that"


def because(course: Course, layer: int, *, latest: bool = False) -> str:
    """Say what may be the cause of an event in a layer, as the end of a sentence.

    These are the two largest of its :func:`causes`; if there are none, how the mean voltage changed; empty if that is
    not known.
    """
    changes = sorted(causes(course, layer, latest=latest), key=lambda cause: -cause.factor)
    # the second is left out if its factor is below the root of the first's
    found = [cause.text for cause in changes[:2] if cause.factor**2 >= changes[0].factor]
    if not found and course.pair(f"voltage_{layer}") is not None:
        return f"its mean voltage went {course.change(f'voltage_{layer}')} thresholds"
    return "; ".join(found)


# ---------------------------------------------------------------- the rules


def is_not_finite(course: Course) -> Iterator[Sign]:
    """Yield a sign if a loss, weights or the probe batch are not finite, or a scaler skips all updates."""
    bad = not_finite(course.network)
    bad_layers = [int(name) for name in bad if name != "readout"]
    first_bad_layer = bad_layers[0] if bad_layers else None
    where = f"the weights of {listed(bad)} are not finite" if bad else "all weights are finite"
    skipped = course.now.get("skipped", 0)
    # A scaler skips updates now and then as it raises its scale; below a scale of 1 that is no longer the reason.
    if skipped and course.now["scale"] < 1 and skipped == course.now["update"] - course.rows[-2]["update"]:
        problem = (
            f"the scaler has skipped all {skipped} updates since the last row, at a scale of {course.now['scale']:.1e}"
        )
        yield Sign(None, problem, f"gradients are not finite whatever the scale; {where}")
    elif not course.probe_is_finite:
        yield Sign(None, "the probe batch is not finite any more", "its tensor was changed")
    elif course.first_bad_loss is not None:
        update, loss = course.first_bad_loss
        cause = "the probe batch is finite: look at the batch of that update, or lower the learning rate"
        yield Sign(first_bad_layer, f"the loss of update {update} is {loss}, {where}", cause)
    elif bad:
        cause = "the probe batch is finite: a gradient since the last row was not"
        yield Sign(first_bad_layer, where, cause)


def has_died(course: Course) -> Iterator[Sign]:
    """Yield a sign for each layer that fired before and is silent now, or most of whose neurons have fallen silent."""
    for layer in course.layers:
        rates = [row.get(f"rate_{layer}", math.nan) for row in course.rows]  # NaN is not silent, and not above 0
        # Before an output that the loss reads learns when to fire, it is often silent for some updates: it has to be
        # silent in two rows.
        rows = 2 if course.reads_spikes and layer == course.layers[-1] else 1
        if len(rates) > rows and not any(rates[-rows:]) and rates[-rows - 1] > 0:
            problem = f"layer {layer} has fallen silent, from {rates[-rows - 1]:.3g} spikes per step"
            yield Sign(layer, problem, because(course, layer))
            continue
        first = course.rows[0].get(f"dead_{layer}", math.nan)
        dead = course.now.get(f"dead_{layer}", math.nan)
        if rates[-1] > 0 and first < LIMITS.few_dead and LIMITS.most_dead < dead:
            problem = f"{dead:.0%} of the neurons of layer {layer} never fire, {first:.0%} at first"
            yield Sign(layer, problem, because(course, layer))


def has_saturated(course: Course) -> Iterator[Sign]:
    """Yield a sign for each layer that fires at nearly all steps, or most of whose neurons do, and did not before."""
    for layer in course.layers:
        rates = course.pair(f"rate_{layer}", latest=True)
        shares = course.pair(f"saturated_{layer}", latest=True)
        if rates is None or shares is None:
            continue
        rate_before, rate = rates
        share_before, share = shares
        if rate_before > BOUNDS.busy or share_before > BOUNDS.most_busy:
            continue
        if rate > BOUNDS.busy:
            problem = f"layer {layer} fires at nearly all steps, {rate:.2g} spikes per step, {rate_before:.2g} before"
            yield Sign(layer, problem, because(course, layer))
        elif share > BOUNDS.most_busy:
            problem = f"{share:.0%} of the neurons of layer {layer} fire at nearly all steps, {share_before:.0%} before"
            yield Sign(layer, problem, because(course, layer))


def gradient_explodes(course: Course) -> Iterator[Sign]:
    """Yield a sign for the topmost layer whose gradient is not finite, or suddenly far larger than in all rows before.

    Layers below get their gradient through that layer: theirs explode with it.
    """
    for layer in reversed(course.layers):
        name = f"gradient_{layer}"
        earlier = [row[name] for row in course.rows[:-1] if name in row]
        if len(earlier) < 2:  # too few to call a size sudden
            continue
        size = course.now.get(name, 0.0)
        if not math.isfinite(size) or size > LIMITS.sudden * max(earlier) > 0:
            problem = f"the gradient of layer {layer} explodes, from {earlier[-1]:.2g} to {size:.2g}"
            yield Sign(layer, problem, because(course, layer))
            return


def gradient_vanishes(course: Course) -> Iterator[Sign]:
    """Yield a sign for the topmost layer whose gradient is suddenly far smaller than in the rows before.

    A gradient also shrinks as the loss falls: there is no sign if the loss of the probe batch has halved since the last
    row.
    """
    losses = [row["probe_loss"] for row in course.rows[-2:] if "probe_loss" in row]
    if len(losses) < 2 or losses[1] < LIMITS.risen * losses[0] or course.told("saturated layer"):
        return  # the loss has fallen as well, or a saturated layer explains it
    for layer in reversed(course.layers):
        if course.silent(layer):
            return  # that layer lets nothing through
        name = f"gradient_{layer}"
        earlier = [row[name] for row in course.recent if name in row]
        if len(earlier) < 2 or name not in course.now:  # too few to call a size sudden
            continue
        if LIMITS.sudden * course.now[name] < min(earlier):
            problem = f"the gradient of layer {layer} vanishes, from {earlier[-1]:.2g} to {course.now[name]:.2g}"
            yield Sign(layer, problem, because(course, layer))
            return


def surrogate_narrows(course: Course) -> Iterator[Sign]:
    """Yield a sign for each layer whose surrogate has become narrower, and is active at fewer voltages."""
    for layer in course.layers:
        width = course.pair(f"surrogate_width_{layer}")
        active = course.pair(f"active_{layer}")
        if width is None or active is None:
            continue
        if course.factor(f"threshold_{layer}") > LIMITS.threshold:
            continue  # the width is counted in thresholds, and another threshold would show in it
        width_before, width_now = width
        share_before, share = active
        if LIMITS.narrower * width_now < width_before and LIMITS.narrower * share < share_before:
            problem = (
                f"the surrogate of layer {layer} is active at {share:.0%} of its voltages, {share_before:.0%} before"
            )
            yield Sign(layer, problem, f"its width, in thresholds, went {course.change(f'surrogate_width_{layer}')}")


def stands_still(course: Course) -> Iterator[Sign]:
    """Yield a sign for each layer whose weights no longer move, or never did, while weights of other layers move."""
    usual: dict[str, float] = {}  # how far the weights of each layer and of the readout moved between earlier rows
    for name in names(course.network):
        earlier = [row[f"drift_{name}"] for row in course.rows[:-1] if row.get(f"drift_{name}")]
        usual[name] = median(earlier) if earlier else 0.0
    moves = {name: course.now.get(f"drift_{name}", 0.0) for name in usual}
    some_move = any(moves[name] > LIMITS.moving * usual[name] for name in moves)
    for layer in course.layers:
        if f"drift_{layer}" not in course.now:
            continue  # it is not known how far they moved
        before = usual[str(layer)]
        if moves[str(layer)] > LIMITS.still * before:
            continue
        if course.silent(layer) or (layer > 1 and course.silent(layer - 1)):
            continue  # silence is the cause, which has a rule of its own
        reason = why_still(course, layer)
        if reason is None:
            continue
        if not some_move and not reason.holds_alone:
            continue  # the whole training rests, as at a learning rate of 0
        problem = f"the weights of layer {layer} have not moved"
        if before:
            problem = f"the weights of layer {layer} stand still; they moved by {before:.2g} of their norm between rows"
        yield Sign(layer, problem, reason.text)


class Reason(NamedTuple):
    """Why the weights of a layer stand still."""

    text: str
    holds_alone: bool = False  # True if it is a fault even where no weights of the network move


def why_still(course: Course, layer: int) -> Reason | None:
    """Find why the weights of a layer stand still, by what is left in their ``grad``.

    None if they need no reason: they were frozen from the beginning, or move by small steps.
    """
    cell = course.network.cells[layer - 1]
    stored = [stored_parameter(cell, matrix.name) for matrix in Layer(course.network, layer - 1).matrices]
    parameters = [parameter for parameter in stored if parameter is not None]
    if not any(parameter.requires_grad for parameter in parameters):
        was_trained = any(row.get(f"drift_{layer}") for row in course.rows)
        return Reason("their requires_grad is False now") if was_trained else None
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return Reason("no gradient is left in their grad")
    if any(gradient.any() for gradient in gradients):
        if course.now.get(f"drift_{layer}"):
            return None  # small steps, by a small gradient or learning rate
        return Reason("they have a gradient: the optimizer leaves them out, or its learning rate for them is 0")
    probe = course.now.get(f"gradient_{layer}", math.nan)
    text = f"the batches of the training give no gradient, the probe batch {probe:.2g}: is their input zero?"
    return Reason(text, holds_alone=True)


def step_is_large(course: Course) -> Iterator[Sign]:
    """Yield a sign if an update moves the voltages of a layer too far, or its weights far more than before.

    Of the layers above the first, only the one whose voltages move farthest is tested. If it gives no sign, the layer
    is named whose weights moved farthest since the row before, if they moved far more than in earlier rows.
    """
    steps = {layer: course.now.get(f"step_{layer}", 0.0) for layer in course.layers if layer > 1}
    layer = max(steps, key=steps.__getitem__, default=1)  # 1: the only layer
    size = course.now.get(f"step_{layer}", 0.0)
    too_far = layer > 1 and size > course.largest_step
    if too_far or course.has_jumped(f"change_{layer}"):
        pair = course.pair(f"step_{layer}")
        before = "" if pair is None else f", {pair[0]:.2g} before"
        problem = f"an update moves the voltages of layer {layer} by {size:.2g} thresholds{before}"
        change = course.pair(f"change_{layer}")
        cause = f"{course.largest_step:g} is too much for most networks"
        if change is not None:
            cause = f"it changes its weights by {change[1]:.2g} of their norm, {change[0]:.2g} before"
        yield Sign(layer, problem, cause)
        return
    moved = [layer for layer in course.layers if course.has_jumped(f"drift_{layer}")]
    if moved:
        layer = max(moved, key=lambda layer: course.now[f"drift_{layer}"])
        cause = "has the learning rate been raised?"
        rates = course.pair(f"rate_{layer - 1}")
        if rates is not None and rates[0] == 0 < rates[1]:  # without spikes to read, weights had no gradient
            cause = f"layer {layer - 1} was silent, and fires now"
        yield Sign(layer, f"the weights of layer {layer} {has_moved(course, layer)}", cause)


def loss_rises(course: Course) -> Iterator[Sign]:
    """Yield a sign if the training loss has risen by much of what it had fallen; name the layer that changed most."""
    losses = [row["loss"] for row in course.rows if "loss" in row]
    if len(losses) < 3 or "loss" not in course.now or course.told("loss rises"):
        return
    first = losses[0]
    best = min(losses[:-1])
    now = losses[-1]
    if best > LIMITS.fallen * first or now < best + LIMITS.risen * (first - best):
        return  # the loss had fallen little, or has risen by little of that
    problem = f"the training loss has risen from {best:.3g} to {now:.3g}"
    probe = course.now.get("probe_loss", math.nan)
    earlier = [row["probe_loss"] for row in course.rows[:-1] if "probe_loss" in row]
    if earlier and math.isfinite(probe):
        problem += f", that of the probe batch from {min(earlier):.3g} to {probe:.3g}"
    # The last training loss is far above that of the probe batch, by much of what it is above the best: the same
    # network does well there, and badly on its present training batches. The comparison is False if a loss is NaN. If
    # the last training loss is as low as the best again, it tells nothing.
    if course.late_loss > best and course.late_loss - probe > LIMITS.risen * (course.late_loss - best):
        yield Sign(None, problem, "the training batches have changed, not the network: look at inputs and labels")
        return
    changes = {layer: causes(course, layer, latest=True) for layer in course.layers}
    changed = [layer for layer in changes if changes[layer]]
    if changed:
        most_changed = max(changed, key=lambda layer: max(cause.factor for cause in changes[layer]))
        yield Sign(most_changed, problem, f"in layer {most_changed} {because(course, most_changed, latest=True)}")
        return
    yield Sign(None, problem, "no layer shows why: look at inputs, labels and the optimizer")


def stays_at_guessing(course: Course) -> Iterator[Sign]:
    """Yield a sign if the training loss has been that of guessing, log(classes), in each of the last rows."""
    losses = [row["loss"] for row in course.rows if "loss" in row][-LIMITS.guess_rows :]
    if len(losses) < LIMITS.guess_rows or course.classes < 2 or course.told("loss rises"):
        return  # a loss that has come back to guessing has been told already
    guessing = math.log(course.classes)
    if any(abs(loss - guessing) > LIMITS.guess * guessing for loss in losses):
        return  # some loss is not that of guessing
    silent = [layer for layer in course.layers if course.silent(layer)]
    top = course.now.get(f"similarity_{len(course.layers)}", math.nan)
    cause = f"layer {len(course.layers)} keeps {top:.1%} of what tells inputs apart"
    if silent:
        cause = f"{listed(silent)} never fire{'s' if len(silent) == 1 else ''}"
    problem = f"the loss stands still at guessing among {course.classes} classes, {guessing:.3g}"
    yield Sign(silent[0] if silent else None, problem, cause)


Rule = Callable[[Course], Iterator[Sign]]
NOT_FINITE = "not finite"

RULES: dict[str, Rule] = {
    NOT_FINITE: is_not_finite,
    "large step": step_is_large,
    "dead layer": has_died,
    "saturated layer": has_saturated,
    "exploding gradient": gradient_explodes,
    "vanishing gradient": gradient_vanishes,
    "narrow surrogate": surrogate_narrows,
    "weights stand still": stands_still,
    "loss rises": loss_rises,
    "loss of guessing": stays_at_guessing,
}
"""Kinds of events, in the order in which they are told."""


def events(course: Course) -> list[Event]:
    """Apply all rules to the present row.

    Returns:
        The events of each kind and layer that have not been told before, in the order of RULES; they are added to
        ``course.seen``.
    """
    found = []
    for name, rule in RULES.items():
        if course.told(NOT_FINITE):
            break  # nothing else can be said of such a network
        for sign in rule(course):
            if (name, sign.layer) in course.seen:
                continue
            course.seen.add((name, sign.layer))
            text = f"{sign.problem}; {sign.cause}" if sign.cause else sign.problem
            found.append(Event(int(course.now["update"]), sign.layer, name, text))
    return found
