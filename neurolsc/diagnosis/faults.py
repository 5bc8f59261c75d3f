"""The table of faults: how each is found, what is said of it, and what is to be done.

`FAULTS` has a row for each kind, in the order in which they are to be mended; `Bounds` has every number that a rule
compares with, and its reason. A rule reads a `Case`: a network, a batch, and what was measured.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.diagnosis import cures
from neurolsc.diagnosis.causes import Growth, fresh_batch_norms, growth, mean_slopes, peak, step_sizes
from neurolsc.diagnosis.cures import Calming, Treatment
from neurolsc.diagnosis.losses import Objective
from neurolsc.diagnosis.measurements import EPSILON, Batch, LayerMeasurements, Measurements, batch_first, copied, passes
from neurolsc.diagnosis.updates import Outcome, update
from neurolsc.network import Network
from neurolsc.neurons.cell import recurrent_weights
from neurolsc.stability import Activity, singular_values
from neurolsc.stability.conditions import (
    DEAD,
    NO_SURROGATE,
    NOT_FINITE,
    Finding,
    below_threshold,
    states_stability,
    surrogate_fault,
)
from neurolsc.stability.scale import layer_inputs


@dataclass(frozen=True)
class Bounds:
    """What rules compare with. Each was set by few networks, and is to be fitted on more."""

    # Spikes per neuron and step above which a layer says little but yes, and the share of neurons that fire at nearly
    # all steps.
    busy: float = 0.9
    most_busy: float = 0.5
    # Mean derivative of the surrogate times the threshold: fast_sigmoid(25) has 0.01 or more in layers that fire, a
    # sparse fast sigmoid, which is 0 below a threshold beyond the threshold, 3e-6.
    closed: float = 1e-4
    # Similarity to the input below which nothing is left that tells samples apart, where the first layer has ten times
    # as much; and how many layers in a row. Five Leaky learn with two such layers, eight with three do not.
    lost: float = 0.02
    lost_layers: int = 3
    # Root mean square of a layer's gradient, in epsilons of Adam: at 1 steps are half of the learning rate.
    unmoved: float = 1.0
    # The largest gradient of a layer over the smallest. Networks of the study that learn have up to 1e6.
    faded: float = 1e6
    # Signal-to-noise ratio of the gradient times the number of pieces. Noise alone gives 1 on the average, and small
    # batches of networks that learn have 0.8 as well.
    noise: float = 0.7
    # Growth of gradients over a whole run. A mean radius above 1 alone is no fault: where a few points have large ones,
    # products shrink.
    growth: float = 10.0
    # Product of the singular values through depth. Networks of the study that learn have up to 40.
    across: float = 80.0
    # Largest derivative of a surrogate from which on it is the surrogate that makes gradients grow: those of the
    # libraries have 1, a logistic one of sharpness 25 has 6.
    steep: float = 4.0
    # Share of neurons that grow without a spike or a weight.
    unstable: float = 0.01
    # Share of a layer's time constants that no step of an optimizer moves.
    stuck: float = 0.5
    # Chance that as many labels, drawn evenly, leave out a class.
    chance: float = 0.01
    # Thresholds by which a step of Adam moves the voltages of a layer above the first. Four Leaky of snnTorch train up to
    # 0.3, and end with an output that fires always or never from 0.5 to 1 on.
    step: float = 0.7
    bearable_step: float = 0.3
    # Updates on a batch after which a loss has moved if it moves at all; the share of its first value below which it
    # moves well, and how much higher than at a lower rate it has to end to be a fault.
    updates: int = 10
    lower: float = 0.95
    higher: float = 1.005
    # Share of its first value to which a training loss has to fall, over at least three epochs, to count as learnt.
    learnt: float = 0.9


BOUNDS = Bounds()


class Sign(NamedTuple):
    """What a rule has found."""

    layer: int | None  # counted from 1; None: of the whole network
    problem: str
    cause: str = ""


# ---------------------------------------------------------------- what rules read


@dataclass(frozen=True)
class Case:
    """A network with a batch, and what was measured of them.

    Attributes:
        network: the user's network, as it is.
        measurable: the network that was measured: a copy, where a surrogate is not finite or a batch norm is fresh.
        given: the batch as it came.
        batch: the batch with time first.
        measured: what was measured.
        loss: the user's loss.
        lr: the user's learning rate, if it is known.
        history: rows with ``train_loss``, an epoch each.
        samples: how many samples derivatives are measured on.
        steps: at how many steps.
        seed: of what is drawn.
        bounds: what rules compare with.
    """

    network: Network
    measurable: Network
    given: Batch
    batch: Batch
    measured: Measurements
    loss: Objective
    lr: float | None = None
    history: Sequence[Mapping[str, Any]] = ()
    samples: int = 8
    steps: int = 16
    seed: int = 0
    bounds: Bounds = BOUNDS

    @property
    def layers(self) -> list[tuple[int, LayerMeasurements]]:
        """Layers with their numbers, counted from 1."""
        return list(enumerate(self.measured.layers, start=1))

    @property
    def judged(self) -> bool:
        """True if the history is long enough to say how a loss goes."""
        return len(self.history) >= 3

    @property
    def learnt(self) -> bool:
        """True if the history says that the network has learnt."""
        if not self.judged:
            return False
        return self.history[-1]["train_loss"] < self.bounds.learnt * self.history[0]["train_loss"]

    @property
    def few(self) -> Tensor:
        """The input of the first samples."""
        return self.batch.first(self.samples)

    @property
    def first_dead(self) -> int | None:
        """The lowest layer that never fires, counted from 1."""
        return next((i for i, layer in self.layers if layer.activity.rate == 0), None)

    def is_output(self, layer: int) -> bool:
        """True if a layer, counted from 1, is read by the loss itself: no weights come after it."""
        return layer == len(self.measured.layers) and not list(self.network.readout.parameters())

    @cached_property
    def surrogates(self) -> list[Finding]:
        """Surrogates without a derivative, or with one that is not finite."""
        found = [surrogate_fault(cell, layer) for layer, cell in enumerate(self.network.cells)]
        return [fault for fault in found if fault is not None]

    @cached_property
    def slopes(self) -> list[float]:
        """The mean derivative of each layer's surrogate, in thresholds; measured where it may be small."""
        open_layers = [layer.active_surrogate_fraction for _, layer in self.layers]
        if not any(active < 0.1 for active in open_layers):
            return [math.nan] * len(open_layers)
        return mean_slopes(self.measurable, self.few)

    @cached_property
    def growths(self) -> dict[int, Growth]:
        """The growth of gradients through time, and its cause, of layers (from 1) whose gradients explode."""
        limit = math.log(self.bounds.growth)
        grown = []
        for i, layer in self.layers:
            infinite = layer.gradient is not None and not math.isfinite(layer.gradient)
            if infinite or layer.exponent * self.measured.steps > limit:
                grown.append(i)
        return {i: growth(self.measurable, self.few, i - 1, seed=self.seed) for i in grown}

    @cached_property
    def step_sizes(self) -> list[float]:
        """Thresholds by which voltages move if all weights of a neuron grow by 1."""
        x = self.few.to(self.measurable.dtype_and_device["device"])
        return step_sizes(self.measurable, list(layer_inputs(self.measurable, x)))

    @cached_property
    def treated(self) -> "Case | None":
        """The case after the recommended initialisation, on a copy; None if that refuses the network."""
        copy = copied(self.measurable)
        try:
            cures.initialise(copy, self.batch.x)
        except (TypeError, ValueError):
            return None
        found, _ = passes(copy, self.batch, self.loss)
        layers = [replace(layer, **again) for layer, again in zip(self.measured.layers, found, strict=True)]
        if product_across(self.measured) > self.bounds.across:
            _, across = singular_values(copy, self.few, steps=min(self.steps, len(self.few)), seed=self.seed)
            means = across.mean((1, 2)).tolist()
            layers = [replace(layer, singular_depth=mean) for layer, mean in zip(layers, means, strict=True)]
        measured = replace(self.measured, layers=tuple(layers))
        return replace(self, network=copy, measurable=copy, measured=measured)

    @cached_property
    def outcomes(self) -> dict[float, Outcome]:
        """What a few updates on copies come to, by learning rate; lower ones are tried where the user's does badly."""
        if self.lr is None or self.batch.targets is None or self.judged:
            return {}

        def trained(lr: float) -> Outcome:
            return update(copied(self.measurable), self.batch, self.loss, lr, self.bounds.updates)

        found = {self.lr: trained(self.lr)}
        well = found[self.lr].loss < self.bounds.lower * (self.measured.loss or 0.0)
        if not well or self.broken(found[self.lr]):
            found[self.lr / 10] = trained(self.lr / 10)
        return found

    def broken(self, outcome: Outcome) -> list[str]:
        """Layers that were well and have fallen silent or fire always after updates, in words."""
        found = []
        for (i, before), after in zip(self.layers, outcome.activities, strict=False):
            if math.isnan(before.activity.rate) or before.activity.rate == 0 or self.saturated(before.activity):
                continue
            if after.rate == 0:
                found.append(f"layer {i} never fires")
            elif self.saturated(after):
                found.append(f"layer {i} fires at nearly all steps")
        return found

    def saturated(self, activity: Activity) -> bool:
        """True if a layer, or most of its neurons, fire at nearly all steps."""
        return activity.rate > self.bounds.busy or activity.saturated > self.bounds.most_busy


def product_across(measured: Measurements) -> float:
    """The product of the largest singular values through depth, from the last layer to the first."""
    return math.prod(layer.singular_depth for layer in measured.layers[1:])


def found_by(case: Case, *rules: Callable[[Case], Iterator[Sign]]) -> bool:
    """True if a rule finds something, which then explains what others would say."""
    return any(True for rule in rules for _ in rule(case))


def mended(case: Case, test: Callable[[Case], Iterator[Sign]], sign: Sign) -> bool:
    """True if the recommended initialisation takes a fault away, on a copy."""
    if case.treated is None:
        return False
    return all(again.layer != sign.layer for again in test(case.treated))


def listed(numbers: Sequence[object]) -> str:
    """Numbers of layers, such as "layer 2" or "layers 2, 3"."""
    plural = "s" if len(numbers) > 1 else ""
    return f"layer{plural} {', '.join(map(str, numbers))}"


# ---------------------------------------------------------------- rules: the input and the modules


def is_batch_first(case: Case) -> Iterator[Sign]:
    """As many targets as the input has steps."""
    reason = batch_first(case.given)
    if reason:
        yield Sign(None, "the input looks batch first, (B, T, n_in) in place of (T, B, n_in)", reason)


def turn_the_input(case: Case, sign: Sign) -> str:
    return "give x.transpose(0, 1)"


def has_no_surrogate(case: Case) -> Iterator[Sign]:
    """Spikes without a derivative."""
    for fault in case.surrogates:
        if fault.name == NO_SURROGATE:
            yield Sign(fault.layer, fault.problem, fault.cause)


def is_not_finite(case: Case) -> Iterator[Sign]:
    """A derivative of a surrogate that is NaN or infinite."""
    for fault in case.surrogates:
        if fault.name == NOT_FINITE:
            yield Sign(fault.layer, fault.problem, fault.cause)


def is_closed(case: Case) -> Iterator[Sign]:
    """A layer that fires, and whose surrogate has no derivative at its voltages."""
    for i, layer in case.layers:
        slope = case.slopes[i - 1]
        if layer.activity.rate > 0 and slope < case.bounds.closed:
            problem = f"its surrogate passes no gradient: at its voltages the derivative is {slope:.1g} spikes per threshold"
            yield Sign(i, problem, "it is open elsewhere")


def take_another_surrogate(case: Case, sign: Sign) -> str:
    return "use fast_sigmoid or atan"


def has_fresh_batch_norms(case: Case) -> Iterator[Sign]:
    """Batch norms that have seen no batch."""
    modules = [*case.network.cells, case.network.readout]
    counts = {i: len(fresh_batch_norms(module)) for i, module in enumerate(modules, start=1)}
    layers: list[object] = [i if i < len(modules) else "readout" for i, count in counts.items() if count]
    if layers:
        problem = f"batch norms of {listed(layers)} have seen no batch: in evaluation they change nothing"
        yield Sign(None, problem, "num_batches_tracked is 0; all else here is said of them with statistics of this batch")


def run_in_training_mode(case: Case, sign: Sign) -> str:
    return "run a few batches in training mode before you evaluate, initialise or measure it"


# ---------------------------------------------------------------- rules: activity


def is_dead(case: Case) -> Iterator[Sign]:
    """A layer without a spike."""
    silent: list[int] = []
    for i, layer in case.layers:
        if layer.activity.rate != 0:
            continue
        cause = "its thresholds lie above all that it gets"
        if i - 1 in silent:
            cause = "the layer below is silent"
        if case.is_output(i):
            cause += '; if your loss reads its membrane, give wrap(net, x, output="membrane")'
        silent.append(i)
        yield Sign(i, "never fires", cause)


def wake(case: Case, sign: Sign) -> str:
    first = case.first_dead
    if first is not None and sign.layer != first:
        return f"mend layer {first} first"
    if mended(case, is_dead, sign):
        return cures.ADVICE
    return "lower its thresholds, or raise its input weights"


def is_saturated(case: Case) -> Iterator[Sign]:
    """A layer that fires nearly always."""
    for i, layer in case.layers:
        if not case.saturated(layer.activity):
            continue
        cause = "its thresholds lie below what it gets"
        if layer.activity.rate > case.bounds.busy:
            yield Sign(i, f"fires {layer.activity.rate:.2g} spikes per neuron and step", cause)
        else:
            yield Sign(i, f"{layer.activity.saturated:.0%} of its neurons fire at nearly all steps", cause)


def calm_down(case: Case, sign: Sign) -> str:
    if mended(case, is_saturated, sign):
        return cures.ADVICE
    return "raise its thresholds, or lower its weights"


def has_lost_the_input(case: Case) -> Iterator[Sign]:
    """Several layers in a row that fire, and are the same for all samples."""
    first = case.measured.layers[0].similarity_to_input
    if case.first_dead is not None or not first > 10 * case.bounds.lost:
        return
    lost: list[int] = []
    for i, layer in case.layers[1:]:
        hidden = layer.activity.rate > 0 and not case.is_output(i)
        if hidden and layer.similarity_to_input < case.bounds.lost:
            lost.append(i)
        elif len(lost) < case.bounds.lost_layers:
            lost = []
    if len(lost) < case.bounds.lost_layers:
        return
    most = max(case.measured.layers[i - 1].similarity_to_input for i in lost)
    problem = f"of what tells samples apart {listed(lost)} have {most:.1%} at most, layer 1 has {first:.0%}"
    yield Sign(lost[0], problem, "each layer of random weights drops a part")


def carry_the_input(case: Case, sign: Sign) -> str:
    if mended(case, has_lost_the_input, sign):
        return cures.ADVICE
    return "take fewer layers, or connections that skip some"


# ---------------------------------------------------------------- rules: gradients


def is_vanishing(case: Case) -> Iterator[Sign]:
    """The lowest layer whose gradient is too small for Adam, or next to that of another layer."""
    trained = [(i, layer) for i, layer in case.layers if layer.gradient is not None]
    if not trained or found_by(case, has_no_surrogate, is_closed, is_dead):
        return
    largest = max(layer.gradient or 0.0 for _, layer in trained)
    gone = []
    for i, layer in trained:
        size = layer.gradient or 0.0
        mean = size / math.sqrt(layer.entries)
        if mean < case.bounds.unmoved * EPSILON or size * case.bounds.faded < largest:
            gone.append((i, size))
    if not gone:
        return
    layer, size = gone[0]
    others = [i for i, _ in gone[1:]]
    also = f", and little {listed(others)}" if others else ""
    cause = f"its norm is {size:.0e}, in the layer that gets most {largest:.0e}; Adam's epsilon is {EPSILON:g}"
    yield Sign(layer, f"no gradient reaches it{also}", cause)


def let_through(case: Case, sign: Sign) -> str:
    if mended(case, is_vanishing, sign):
        return cures.ADVICE
    return "take a surrogate with wider tails, such as atan, or normalise the currents of each layer"


def is_noise(case: Case) -> Iterator[Sign]:
    """A gradient of the first layer that is not the same in two parts of the batch."""
    pieces = case.measured.pieces
    trained = [(i, layer) for i, layer in case.layers if layer.noise is not None]
    if not trained or found_by(case, has_no_surrogate, is_closed, is_dead, is_vanishing, explodes_in_time):
        return
    i, layer = trained[0]
    ratio = layer.noise or 0.0
    if math.isfinite(layer.gradient or 0.0) and ratio * pieces < case.bounds.noise:
        problem = f"its gradient is noise: between {pieces} parts of the batch the signal-to-noise ratio is {ratio:.2g}"
        yield Sign(i, problem, f"noise alone gives {1 / pieces:.2g}")


def hear_the_signal(case: Case, sign: Sign) -> str:
    if mended(case, is_noise, sign):
        return cures.ADVICE
    return "take a larger batch"


def explodes_in_time(case: Case) -> Iterator[Sign]:
    """Gradients that grow along a run; the cause is the part without which they grow least."""
    for i, found in case.growths.items():
        fold = math.exp(min(found.rate, 700))
        problem = f"gradients grow {fold:.2f}-fold at every step back in time"
        size = case.measured.layers[i - 1].gradient
        if size is not None and not math.isfinite(size):
            problem += f", that of the loss to {size}"
        if found.part == "leak":
            yield Sign(i, problem, "neither recurrence nor reset makes them grow: its own decays do")
            continue
        left = math.exp(found.without)
        yield Sign(i, problem, f"due to the {found.part}: without it {left:.2f}-fold")


def take_growth_away(case: Case, sign: Sign) -> str:
    assert sign.layer is not None
    cell = case.measurable.cells[sign.layer - 1]
    found = case.growths[sign.layer]
    switch = cell.reset_switch()
    if found.part == "recurrence":
        names = ", ".join(matrix.name for matrix in recurrent_weights(cell))
        return f"scale {names} down, to {bearable(found):.2g} of it"
    if found.part == "reset" and switch is not None and switch.cure:
        return switch.cure
    if found.part == "reset":
        return f"lower the peak of its surrogate, {found.peak:.3g}, by its slope or alpha"
    if found.part != "leak":
        return f"lower {found.part}"
    alone = below_threshold(cell).main_bound() if states_stability(cell) else None
    return alone.cure if alone is not None else "shorten its time constants, or let its gates retain less"


def bearable(found: Growth) -> float:
    """The share of a part at which gradients would neither grow nor shrink, if growth were linear in it."""
    whole, without = math.exp(min(found.rate, 700)), math.exp(found.without)
    return min(max((1 - without) / (whole - without), 0.05), 0.95)


def treat_growth(case: Case, layers: Sequence[int]) -> Treatment | None:
    """Scale recurrences and detach resets; None where neither is the cause."""
    factors: dict[tuple[int, str], float] = {}
    detached = []
    for i in layers:
        found = case.growths.get(i)
        cell = case.measurable.cells[i - 1]
        if found is None or found.part == "leak":
            continue
        if found.part == "reset":
            switch = cell.reset_switch()
            if switch is not None and switch.cure:
                detached.append(i - 1)
            continue
        names = [found.part]
        if found.part == "recurrence":
            names = [matrix.name for matrix in recurrent_weights(cell)]
        factors |= {(i - 1, name): bearable(found) for name in names}
    words = ["the reset detached"] if detached else []
    words += [f"{name} of layer {layer + 1} scaled by {factor:.2f}" for (layer, name), factor in factors.items()]
    return Treatment("; ".join(words), Calming(factors, tuple(detached))) if words else None


def explodes_in_depth(case: Case) -> Iterator[Sign]:
    """Gradients that grow from the last layer to the first."""
    times = product_across(case.measured)
    if times > case.bounds.across:
        problem = f"gradients grow up to {times:.2g}-fold from the last layer to the first"
        steepest = max(peaks(case).items(), key=lambda pair: pair[1], default=(0, 0.0))
        cause = "largest singular values through depth are above 1 in most layers"
        if steepest[1] > case.bounds.steep:
            cause = f"the surrogate of layer {steepest[0]} has a peak of {steepest[1]:.3g}"
        yield Sign(None, problem, cause)


def peaks(case: Case) -> dict[int, float]:
    """Largest derivatives of surrogates, by layer."""
    found = {i: peak(cell) for i, cell in enumerate(case.measurable.cells, start=1)}
    return {i: value for i, value in found.items() if not math.isnan(value)}


def take_depth_away(case: Case, sign: Sign) -> str:
    if any(value > case.bounds.steep for value in peaks(case).values()):
        return "lower that peak, by the slope or alpha of the surrogate"
    if mended(case, explodes_in_depth, sign):
        return cures.ADVICE
    return "lower the input weights of upper layers, and their thresholds with them"


# ---------------------------------------------------------------- rules: constants


def is_unstable(case: Case) -> Iterator[Sign]:
    """Neurons whose own variables grow without a spike or a weight."""
    for i, cell in enumerate(case.measurable.cells, start=1):
        alone = below_threshold(cell) if states_stability(cell) else None
        if alone is None or alone.outside <= case.bounds.unstable:
            continue
        broken = alone.main_bound()
        cause = f"radii up to {alone.radius.max():.2f}"
        if broken is not None:
            cause = f"{broken.violated}; {cause}"
        yield Sign(i, f"{alone.outside:.0%} of its neurons are unstable below threshold", cause)


def stabilise(case: Case, sign: Sign) -> str:
    assert sign.layer is not None
    broken = below_threshold(case.measurable.cells[sign.layer - 1]).main_bound()
    return "bring its parameters back" if broken is None else broken.cure


def is_frozen(case: Case) -> Iterator[Sign]:
    """Time constants that are parameters, and that the optimizer does not get."""
    for i, layer in case.layers:
        for constant in layer.constants:
            if not constant.fixed and not constant.trained:
                yield Sign(i, f"{constant.name} is frozen", "its requires_grad is False")


def unfreeze(case: Case, sign: Sign) -> str:
    return "give it requires_grad=True"


def is_stuck(case: Case) -> Iterator[Sign]:
    """Time constants that the optimizer gets, and that no step moves."""
    for i, layer in case.layers:
        still = {name.replace("log_", "") for name in layer.still}
        fires = layer.activity.rate != 0  # nothing decays in a layer that gets no input
        for constant in layer.constants:
            problem = f"no step of an optimizer can move {constant.name}"
            if not constant.trained:
                continue
            if constant.stuck > case.bounds.stuck:
                yield Sign(i, problem, f"a decay of {constant.decay:.6g} has no derivative left")
            elif fires and constant.name in still:
                yield Sign(i, problem, "its gradient is 0, as behind a clamp")


def bring_into_range(case: Case, sign: Sign) -> str:
    return "set it to between 0.1 and 1e4 steps, a decay to between 0 and 1"


# ---------------------------------------------------------------- rules: targets and the learning rate


def missing_classes(labels: Tensor, classes: int, chance: float = BOUNDS.chance) -> Iterator[Sign]:
    r"""Classes that no label (n,) names, unless n labels drawn evenly leave one out with more than a chance.

    The chance is at most :math:`C (1 - 1/C)^n`.
    """
    counts = torch.bincount(labels.flatten().long().cpu(), minlength=classes)
    absent = (counts == 0).nonzero().flatten().tolist()
    if absent and classes * (1 - 1 / classes) ** labels.numel() < chance:
        which = f"class {absent[0]} is" if len(absent) == 1 else f"classes {', '.join(map(str, absent))} are"
        yield Sign(None, f"{which} missing from {labels.numel()} labels", "the data lack it")


def misses_classes(case: Case) -> Iterator[Sign]:
    """Classes that the targets of the batch do not name."""
    y, classes = case.batch.targets, case.network.n_out
    if y is None or y.ndim != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        return
    if len(y) and 0 <= y.min() and y.max() < classes:
        yield from missing_classes(y, classes, case.bounds.chance)


def complete_the_data(case: Case, sign: Sign) -> str:
    return "give samples of every class, or a readout of as many classes as there are"


def steps_are_large(case: Case) -> Iterator[Sign]:
    """The layer above the first whose voltages a step of the optimizer moves farthest, if that is too far."""
    if case.lr is None or case.learnt:
        return
    sizes = {i: size * case.lr for i, size in enumerate(case.step_sizes, start=1) if i > 1}
    sizes = {i: size for i, size in sizes.items() if size > case.bounds.step}
    if sizes:
        worst = max(sizes, key=sizes.__getitem__)
        problem = f"a step of Adam at {case.lr:g} moves its voltages by up to {sizes[worst]:.2g} thresholds"
        yield Sign(worst, problem, "inputs x their rate x memory / threshold, times the learning rate")


def bear_the_step(case: Case, sign: Sign) -> str:
    assert sign.layer is not None
    lr = case.bounds.bearable_step / case.step_sizes[sign.layer - 1]
    return f"lower the learning rate to {lr:.1g}, or begin at a lower firing rate"


def is_too_fast(case: Case) -> Iterator[Sign]:
    """A history whose loss only grew, or updates on copies that end better at a lower rate."""
    losses = [row["train_loss"] for row in case.history]
    if case.judged and min(losses[1:]) > losses[0]:
        problem = f"the training loss only grew, from {losses[0]:.3g} to {losses[-1]:.3g} in {len(losses)} epochs"
        yield Sign(None, problem, "steps that are small enough lower it")
        return
    if len(case.outcomes) < 2:
        return
    (lr, high), (lower, low) = case.outcomes.items()
    broken = [words for words in case.broken(high) if words not in case.broken(low)]
    if math.isnan(low.loss) or (high.loss <= case.bounds.higher * low.loss and not broken):
        return
    problem = f"{case.bounds.updates} updates on this batch at {lr:g} bring its loss to {high.loss:.4g}"
    if broken:
        problem += f", and {', '.join(broken)}"
    yield Sign(None, problem, f"at {lower:g} they bring it to {low.loss:.4g}")


def slow_down(case: Case, sign: Sign) -> str:
    return "lower the learning rate tenfold" if case.lr is None else f"lower the learning rate to {case.lr / 10:g}"


# ---------------------------------------------------------------- the table


def treat_by_initialising(case: Case, layers: Sequence[int]) -> Treatment | None:
    """The recommended initialisation, if it takes the network."""
    return None if case.treated is None else Treatment(cures.ADVICE, cures.initialise)


def treat_the_rate(case: Case, layers: Sequence[int]) -> Treatment | None:
    """A tenth of the learning rate."""
    return Treatment("a tenth of the learning rate", cures.leave, lr=0.1)


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        name: the kind, for programs.
        condition: when it is one, in words.
        advice: what is to be done, in words.
        test: yields what is found of a case.
        cure: what is to be done about one thing that was found.
        treatment: what `try_cures` does about it in some layers, counted from 1; None: nothing.
        once: True if it says nothing of a network that has learnt.
    """

    name: str
    condition: str
    advice: str
    test: Callable[[Case], Iterator[Sign]]
    cure: Callable[[Case, Sign], str]
    treatment: Callable[[Case, Sequence[int]], Treatment | None] | None = None
    once: bool = False


FAULTS: tuple[Fault, ...] = (
    Fault(
        "input batch first",
        "as many targets as steps",
        "transpose the input",
        is_batch_first,
        turn_the_input,
    ),
    Fault(
        NO_SURROGATE,
        "spikes without a derivative",
        "take a surrogate",
        has_no_surrogate,
        take_another_surrogate,
    ),
    Fault(
        NOT_FINITE,
        "a derivative NaN or infinite near the threshold",
        "take another surrogate",
        is_not_finite,
        take_another_surrogate,
    ),
    Fault(
        "closed surrogate",
        f"the layer fires, and the mean derivative at its voltages is below {BOUNDS.closed:g} spikes per threshold",
        "take another surrogate",
        is_closed,
        take_another_surrogate,
    ),
    Fault(
        "fresh batch norm",
        "a batch norm in training mode that has seen no batch",
        "run a few batches first",
        has_fresh_batch_norms,
        run_in_training_mode,
    ),
    Fault(
        DEAD,
        "no spike in the batch; not of integrators",
        "`initialize`, of the lowest",
        is_dead,
        wake,
        treat_by_initialising,
    ),
    Fault(
        "saturated layer",
        f"above {BOUNDS.busy:g} spikes per step, or {BOUNDS.most_busy:.0%} of neurons fire at nearly all steps",
        "`initialize`",
        is_saturated,
        calm_down,
        treat_by_initialising,
    ),
    Fault(
        "lost signal",
        f"similarity to the input below {BOUNDS.lost:.0%} in {BOUNDS.lost_layers} hidden layers in a row, ten times that in the first",
        "`initialize`",
        has_lost_the_input,
        carry_the_input,
        treat_by_initialising,
        once=True,
    ),
    Fault(
        "vanishing gradient",
        f"root mean square below {BOUNDS.unmoved * EPSILON:g}, or {BOUNDS.faded:.0e} times smaller than another layer's",
        "`initialize`",
        is_vanishing,
        let_through,
        treat_by_initialising,
        once=True,
    ),
    Fault(
        "exploding through time",
        f"{BOUNDS.growth:g}-fold growth over a run",
        "by its cause: scale the recurrence, detach the reset, lower the surrogate's peak",
        explodes_in_time,
        take_growth_away,
        treat_growth,
        once=True,
    ),
    Fault(
        "exploding through depth",
        f"product of singular values above {BOUNDS.across:g}",
        "lower the surrogate's peak; else `initialize`",
        explodes_in_depth,
        take_depth_away,
        once=True,
    ),
    Fault(
        "noisy gradient",
        f"lowest layer: signal-to-noise ratio below {BOUNDS.noise:g} of that of noise alone",
        "`initialize`, or a larger batch",
        is_noise,
        hear_the_signal,
        treat_by_initialising,
        once=True,
    ),
    Fault(
        "unstable below threshold",
        f"own radius above 1, in more than {BOUNDS.unstable:.0%} of neurons",
        "change the parameter that is named",
        is_unstable,
        stabilise,
    ),
    Fault(
        "frozen time constant",
        "a parameter with `requires_grad=False`",
        "unfreeze it",
        is_frozen,
        unfreeze,
    ),
    Fault(
        "stuck time constant",
        f"a parameter that no step can move, in more than {BOUNDS.stuck:.0%} of neurons: too long, or clamped",
        "bring it into its range",
        is_stuck,
        bring_into_range,
    ),
    Fault(
        "missing class",
        f"a class that y lacks, if the chance of that is below {BOUNDS.chance:.0%}",
        "complete the data, or take fewer outputs",
        misses_classes,
        complete_the_data,
    ),
    Fault(
        "learning rate too high for a layer",
        f"with `lr`: a step of Adam moves voltages above the first layer by more than {BOUNDS.step:g} thresholds",
        "lower the learning rate to the one given",
        steps_are_large,
        bear_the_step,
        treat_the_rate,
    ),
    Fault(
        "learning rate too high",
        f"with `lr` and `y`: {BOUNDS.updates} updates end higher than a tenth of it, or with silent or saturated layers; "
        "with `history`: the loss only grew",
        "lower the learning rate tenfold",
        is_too_fast,
        slow_down,
        treat_the_rate,
    ),
)

BY_NAME = {fault.name: fault for fault in FAULTS}


def findings(case: Case) -> tuple[Finding, ...]:
    """What all rules find, in the order of the table."""
    found = []
    for fault in FAULTS:
        if fault.once and case.learnt:
            continue
        for sign in fault.test(case):
            found.append(Finding(sign.layer, sign.problem, fault.cure(case, sign), sign.cause, fault.name))
    return tuple(found)
