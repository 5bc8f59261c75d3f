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
from neurolsc.diagnosis.measurements import Batch, LayerMeasurements, Measurements, passes
from neurolsc.network import Network, copied
from neurolsc.stability import Activity, singular_values
from neurolsc.stability.conditions import Finding, surrogate_fault
from neurolsc.stability.scale import layer_inputs

if TYPE_CHECKING:
    from neurolsc.diagnosis.faults import Bounds

UPDATE_SAMPLES = 64  # of a batch, on which copies are trained: enough to tell whether layers fall silent


class Sign(NamedTuple):
    """A fault that a rule has found."""

    layer: int | None  # counted from 1; None: of the whole network
    problem: str
    cause: str = ""


@dataclass(frozen=True)
class Case:
    """A network with a batch, and what was measured of them.

    Attributes:
        network: the user's network, as it is.
        measurable: the network that was measured: a copy, where a surrogate is not finite or a batch norm is fresh.
        batch: the batch, with time first.
        turned: why time and batch of what the user gave were swapped; empty if they were not.
        measured: what was measured.
        loss: the user's loss.
        bounds: what rules compare with.
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
    lr: float | None = None
    history: Sequence[Mapping[str, Any]] = ()
    samples: int = 8
    steps: int = 16
    seed: int = 0

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

    @cached_property
    def dead(self) -> list[int]:
        """Layers that never fire, counted from 1.

        Not an output above a layer that fires: what the loss asks of it reaches it, and networks learn from there.
        """
        found: list[int] = []
        for i, layer in self.layers:
            reads_spikes = i - 1 not in found
            if layer.activity.rate == 0 and not (self.is_output(i) and reads_spikes):
                found.append(i)
        return found

    @cached_property
    def initialised(self) -> bool:
        """True if an upper layer begins as an identity, as after the recommended initialisation."""
        return any(is_identity(cell, self.bounds.identity) for cell in self.network.cells[1:])

    def is_output(self, layer: int) -> bool:
        """True if a layer, counted from 1, is read by the loss itself: no weights come after it."""
        return layer == len(self.measured.layers) and not list(self.network.readout.parameters())

    @property
    def spikes_are_read(self) -> bool:
        """True if the loss reads spikes of the last layer."""
        last = len(self.measured.layers)
        return self.is_output(last) and not self.network.cells[-1].integrator

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
        """The same case with the initialised copy, measured again where cures need it; None without a copy."""
        copy = self.initialised_copy
        if copy is None:
            return None
        found, _ = passes(copy, self.batch, self.loss)
        layers = [replace(layer, **now) for layer, now in zip(self.measured.layers, found, strict=True)]
        if product_across(self.measured) > self.bounds.across:
            _, across = singular_values(copy, self.few, steps=min(self.steps, len(self.few)), seed=self.seed)
            means = across.mean((1, 2)).tolist()
            layers = [replace(layer, singular_depth=mean) for layer, mean in zip(layers, means, strict=True)]
        measured = replace(self.measured, layers=tuple(layers))
        return replace(self, network=copy, measurable=copy, measured=measured)

    @property
    def start(self) -> float:
        """The loss from which the user's network learns at the user's learning rate."""
        assert self.lr is not None
        return self.start_of(self.outcomes[self.lr])

    def start_of(self, outcome: Outcome) -> float:
        """The loss from which learning is counted: the first loss, or the loss of guessing if that is lower."""
        classes = self.measured.classes or 0
        if classes > 1:
            return min(outcome.first, math.log(classes))
        return outcome.first

    @cached_property
    def outcomes(self) -> dict[float, Outcome]:
        """The result of a few updates on copies, by learning rate; if the user's does badly, a tenth is tried too."""
        if self.lr is None or self.batch.targets is None or self.judged:
            return {}
        found = {self.lr: self.trained(self.measurable, self.lr)}
        if not self.falls(found[self.lr]) or self.broken(found[self.lr]):
            found[self.lr / 10] = self.trained(self.measurable, self.lr / 10)
        return found

    @cached_property
    def initialised_outcome(self) -> Outcome | None:
        """The result of the same updates on an initialised copy; None if the user's network does well."""
        if not self.outcomes or self.initialised or self.lr is None:
            return None
        if self.falls(self.outcomes[self.lr]) or self.initialised_copy is None:
            return None
        return self.trained(self.initialised_copy, self.lr)

    def trained(self, network: Network, lr: float) -> Outcome:
        """The result of a few updates on a copy of a network."""
        return update(copied(network), self.updated_samples, self.loss, lr, self.bounds.updates)

    @property
    def updated_samples(self) -> Batch:
        """The samples on which copies are trained."""
        return self.batch.part(0, UPDATE_SAMPLES)

    def falls(self, outcome: Outcome) -> bool:
        """True if updates lower the loss by more than a twentieth."""
        return outcome.loss < self.bounds.lower * self.start_of(outcome)

    @property
    def updates(self) -> str:
        """The updates on copies, in words."""
        samples = self.batch.x.shape[1]
        if samples <= UPDATE_SAMPLES:
            batch = "this batch"
        else:
            batch = f"{UPDATE_SAMPLES} samples of this batch"
        return f"{self.bounds.updates} updates on {batch}"

    def broken(self, outcome: Outcome) -> list[str]:
        """Layers that were well and have fallen silent or fire always after updates, in words."""
        found = []
        for (i, before), after in zip(self.layers, outcome.activities, strict=False):
            if math.isnan(before.activity.rate) or before.activity.rate == 0 or self.saturated(before.activity):
                continue
            if after.rate == 0 and not self.is_output(i):
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
    """True if one of some rules finds a fault."""
    return any(next(rule(case), None) is not None for rule in rules)


def mended(case: Case, test: Callable[[Case], Iterator[Sign]], sign: Sign) -> bool:
    """True if the recommended initialisation takes a fault away, on a copy; False if the network was initialised so."""
    if case.initialised or case.treated is None:
        return False
    return all(left.layer != sign.layer for left in test(case.treated))


def listed(numbers: Sequence[object]) -> str:
    """Numbers of layers, such as "layer 2" or "layers 2, 3"."""
    plural = "s" if len(numbers) > 1 else ""
    return f"layer{plural} {', '.join(map(str, numbers))}"
