"""What rules read: a network, a batch, what was measured of them, and what is measured where a rule asks for it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from neurolsc.diagnosis import cures
from neurolsc.diagnosis.causes import Growth, growth, is_identity, mean_slopes, step_sizes
from neurolsc.diagnosis.cures import Outcome, update
from neurolsc.diagnosis.losses import Objective
from neurolsc.diagnosis.measurements import Batch, LayerMeasurements, Measurements, measure_run
from neurolsc.network import Network, copied
from neurolsc.stability import Activity, singular_values
from neurolsc.stability.conditions import Finding, surrogate_fault
from neurolsc.stability.scale import layer_inputs
from neurolsc.surroundings import eval_mode

if TYPE_CHECKING:
    from neurolsc.diagnosis.faults import Bounds

UPDATE_SAMPLES = 64  # samples of the batch on which copies are trained: enough to tell whether layers fall silent


class Sign(NamedTuple):
    """A fault that a rule has found."""

    layer: int | None  # counted from 1; None: of the whole network
    problem: str  # what is wrong, in words
    cause: str = ""  # why, in words; empty if that is not known
    others: tuple[int, ...] = ()  # further layers that have the fault, where one sign is of several

    @property
    def layers(self) -> set[int | None]:
        """All layers that have the fault; None among them: the whole network has it."""
        return {self.layer, *self.others}


@dataclass(frozen=True)
class Case:
    """A network with a batch, and what was measured of them.

    Attributes:
        network: the user's network, as it is.
        measurable: the network that was measured: a copy, if a surrogate's derivative is not finite or a batch norm has
            seen no batch.
        batch: the batch, with time first.
        turned: why time and batch of the user's x were swapped; empty if they were not.
        taken_batch_first: why x was read batch first, of a module that takes one step a call; empty if it was not.
        measured: what was measured.
        loss: the user's loss.
        bounds: the numbers with which rules compare.
        lr: the user's learning rate, if it is known.
        history: rows with ``train_loss``, an epoch each.
        samples: number of samples at which derivatives are measured.
        steps: number of time steps at which they are measured.
        seed: seed of all draws.
    """

    network: Network
    measurable: Network
    batch: Batch
    turned: str
    measured: Measurements
    loss: Objective
    bounds: "Bounds"
    taken_batch_first: str = ""
    lr: float | None = None
    history: Sequence[Mapping[str, Any]] = ()
    samples: int = 8
    steps: int = 16
    seed: int = 0

    @property
    def layers(self) -> list[tuple[int, LayerMeasurements]]:
        """Pairs of a layer's number, counted from 1, and its measurements."""
        return list(enumerate(self.measured.layers, start=1))

    @property
    def judged(self) -> bool:
        """True if the history has at least the three epochs that it takes to say how the loss goes."""
        return len(self.history) >= 3

    @property
    def learnt(self) -> bool:
        """True if the history is long enough and its last training loss is well below the first."""
        if not self.judged:
            return False
        return self.history[-1]["train_loss"] < self.bounds.learnt * self.history[0]["train_loss"]

    @property
    def first_samples(self) -> Tensor:
        """The input (T, B, n_in) of the samples at which derivatives are measured."""
        return self.batch.first(self.samples)

    @cached_property
    def dead(self) -> list[int]:
        """Layers that never fire, counted from 1.

        A silent output is not among them unless the layer below is: the gradient of the loss reaches it directly, and
        networks learn from there.
        """
        dead: list[int] = []
        for i, layer in self.layers:
            below_fires = i - 1 not in dead
            if layer.activity.rate == 0 and not (self.is_output(i) and below_fires):
                dead.append(i)
        return dead

    @cached_property
    def initialised(self) -> bool:
        """True if a layer above the first is an identity, as after the recommended initialisation."""
        return any(is_identity(cell, self.bounds.identity) for cell in self.network.cells[1:])

    def is_output(self, layer: int) -> bool:
        """True if the loss reads a layer, counted from 1, directly: it is the last, and the readout has no weights."""
        return layer == len(self.measured.layers) and not list(self.network.readout.parameters())

    @property
    def spikes_are_read(self) -> bool:
        """True if the loss reads spikes of the last layer."""
        last = len(self.measured.layers)
        return self.is_output(last) and not self.network.cells[-1].integrator

    @cached_property
    def surrogates(self) -> list[Finding]:
        """A finding for each surrogate without a derivative, or with one that is not finite."""
        faults = [surrogate_fault(cell, layer) for layer, cell in enumerate(self.network.cells)]
        return [fault for fault in faults if fault is not None]

    @cached_property
    def slopes(self) -> list[float]:
        """The mean of each layer's surrogate derivative times the threshold, as :func:`mean_slopes` returns it.

        All are NaN, to save a run, if in every layer at least a tenth of the derivatives are not nearly 0.
        """
        active_shares = [layer.active_surrogate_fraction for _, layer in self.layers]
        # a derivative is active from a tenth of the peak on: if a tenth are active, the mean is 0.01 peaks or more
        if not any(active < 0.1 for active in active_shares):  # NaN, where it is not known, is not below
            return [math.nan] * len(active_shares)
        return mean_slopes(self.measurable, self.first_samples)

    @cached_property
    def growths(self) -> dict[int, Growth]:
        """The growth of gradients through time and its cause, for each layer, counted from 1, where it is too large."""
        limit = math.log(self.bounds.growth)
        grown = []
        # from a loss that is not finite comes no gradient that is
        loss_is_finite = self.measured.loss is None or math.isfinite(self.measured.loss)
        for i, layer in self.layers:
            infinite = loss_is_finite and layer.gradient is not None and not math.isfinite(layer.gradient)
            if infinite or layer.exponent * self.measured.steps > limit:
                grown.append(i)
        return {i: growth(self.measurable, self.first_samples, i - 1, seed=self.seed) for i in grown}

    @cached_property
    def step_sizes(self) -> list[float]:
        """Thresholds by which a layer's voltages move if all input weights of a neuron grow by 1; NaN: not known."""
        x = self.first_samples.to(self.measurable.dtype_and_device["device"])
        with eval_mode(self.measurable):  # also while the layers' inputs are computed
            inputs = list(layer_inputs(self.measurable, x))
        return step_sizes(self.measurable, inputs)

    @cached_property
    def initialised_copy(self) -> Network | None:
        """A copy after the recommended initialisation; None if that refuses the network."""
        copy = copied(self.measurable)
        try:
            cures.initialise(copy, self.batch.x)
        except (TypeError, ValueError):
            return None
        return copy

    @cached_property
    def treated(self) -> "Case | None":
        """The same case with the initialised copy, measured again where cures need it; None without a copy.

        Radii, exponents and time constants are still those of the network before it was initialised.
        """
        copy = self.initialised_copy
        if copy is None:
            return None
        of_run, _ = measure_run(copy, self.batch, self.loss)
        layers = [replace(layer, **now) for layer, now in zip(self.measured.layers, of_run, strict=True)]
        if product_across(self.measured) > self.bounds.across:  # only then a cure asks for it
            x = self.first_samples
            _, across = singular_values(copy, x, steps=min(self.steps, len(x)), seed=self.seed)
            means = across.mean((1, 2)).tolist()
            layers = [replace(layer, singular_depth=mean) for layer, mean in zip(layers, means, strict=True)]
        measured = replace(self.measured, layers=tuple(layers))
        return replace(self, network=copy, measurable=copy, measured=measured)

    @property
    def start(self) -> float:
        """The loss from which learning is counted, at the user's learning rate."""
        assert self.lr is not None
        return self.start_of(self.outcomes[self.lr])

    def start_of(self, outcome: Outcome) -> float:
        """Return the loss from which learning is counted: the first loss, or the loss of guessing if that is lower.

        From a loss above that of guessing, a network comes down to it without having learnt anything.
        """
        classes = self.measured.classes or 0
        if classes > 1:
            return min(outcome.first, math.log(classes))
        return outcome.first

    @cached_property
    def outcomes(self) -> dict[float, Outcome]:
        """The result of a few updates on copies, by learning rate; the user's comes first.

        Where the user's learning rate does badly, a tenth of it is tried as well. Empty without a learning rate or
        targets, or where a history says how the loss goes.
        """
        if self.lr is None or self.batch.targets is None or self.judged:
            return {}
        outcomes = {self.lr: self.trained(self.measurable, self.lr)}
        if not self.falls(outcomes[self.lr]) or self.broken(outcomes[self.lr]):
            outcomes[self.lr / 10] = self.trained(self.measurable, self.lr / 10)
        return outcomes

    @cached_property
    def initialised_outcome(self) -> Outcome | None:
        """The result of the same updates on an initialised copy.

        None if the user's network does well or is initialised in this way already, if nothing was trained, or if the
        initialisation refuses the network.
        """
        if not self.outcomes or self.initialised or self.lr is None:
            return None
        if self.falls(self.outcomes[self.lr]) or self.initialised_copy is None:
            return None
        return self.trained(self.initialised_copy, self.lr)

    def trained(self, network: Network, lr: float) -> Outcome:
        """Return the result of a few updates on a copy of a network."""
        return update(copied(network), self.updated_samples, self.loss, lr, self.bounds.updates)

    @property
    def updated_samples(self) -> Batch:
        """The samples on which copies are trained."""
        return self.batch.part(0, UPDATE_SAMPLES)

    def falls(self, outcome: Outcome) -> bool:
        """True if updates lower the loss by more than a twentieth; False if it became NaN."""
        return outcome.loss < self.bounds.lower * self.start_of(outcome)

    @property
    def undecided(self) -> str:
        """Say that updates hardly lower the loss of a copy, so that they do not tell whether it learns; else empty."""
        if not self.outcomes or self.lr is None or self.learnt:
            return ""
        outcome = self.outcomes[self.lr]
        if self.falls(outcome) or math.isnan(outcome.loss):
            return ""
        words = f"{self.updates} at {self.lr:g} bring its loss from {outcome.first:.4g} to {outcome.loss:.4g}"
        if self.initialised_outcome is not None:
            words += f", that of an initialised copy to {self.initialised_outcome.loss:.4g}"
        return f"{words}: too few to tell whether it learns"

    @property
    def updates(self) -> str:
        """The number of updates that copies of the network were trained for, and on what, in words."""
        samples = self.batch.x.shape[1]
        if samples <= UPDATE_SAMPLES:
            batch = "this batch"
        else:
            batch = f"{UPDATE_SAMPLES} samples of this batch"
        return f"{self.bounds.updates} updates on {batch}"

    def broken(self, outcome: Outcome) -> list[str]:
        """List in words the layers that fell silent, or came to fire at nearly all steps, by updates.

        An output may do either for a while: whether that is bad, the loss says.
        """
        words = []
        # there are no activities if the loss became NaN
        for (i, before), after in zip(self.layers, outcome.activities, strict=False):
            if math.isnan(before.activity.rate) or before.activity.rate == 0 or self.saturated(before.activity):
                continue  # an integrator, or a layer that was silent or saturated before the updates
            if self.is_output(i):
                continue
            if after.rate == 0:
                words.append(f"layer {i} never fires")
            elif self.saturated(after):
                words.append(f"layer {i} fires at nearly all steps")
        return words

    def saturated(self, activity: Activity) -> bool:
        """True if a layer, or most of its neurons, fire at nearly all steps."""
        return activity.rate > self.bounds.busy or activity.saturated > self.bounds.most_busy


def product_across(measured: Measurements) -> float:
    """Return the product of the largest singular values through depth, of all layers but the first.

    The first layer's is left out: it is a derivative by the input, which no gradient of a parameter needs.
    """
    return math.prod(layer.singular_depth for layer in measured.layers[1:])


def found_by(case: Case, *rules: Callable[[Case], Iterator[Sign]]) -> bool:
    """True if any of these rules finds a fault."""
    return any(next(rule(case), None) is not None for rule in rules)


def mended(case: Case, test: Callable[[Case], Iterator[Sign]], sign: Sign) -> bool:
    """True if the recommended initialisation takes a fault away, on a copy, and no other layer falls silent there.

    Args:
        case: the case.
        test: the rule that found the fault, or the same rule without its exceptions for other faults.
        sign: what the rule has found; the fault is gone if the test finds none in these layers of the copy.
    """
    if case.initialised or case.treated is None:  # advice to initialise once more would not help
        return False
    if not set(case.treated.dead) <= set(case.dead):
        return False
    return all(still.layers.isdisjoint(sign.layers) for still in test(case.treated))


def listed(numbers: Sequence[object]) -> str:
    """Return numbers of layers as text, such as "layer 2" or "layers 2, 3"."""
    plural = "s" if len(numbers) > 1 else ""
    return f"layer{plural} {', '.join(map(str, numbers))}"
