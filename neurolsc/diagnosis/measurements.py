"""The batch that a network is diagnosed with, and what is measured on it layer by layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from neurolsc.diagnosis.losses import Objective
from neurolsc.interop.prepared import Prepared
from neurolsc.network import Network
from neurolsc.stability import (
    Activity,
    RadiusProfile,
    TimeConstant,
    activity,
    parameter_gradients,
    signal_to_noise,
    similarity_to_input,
    state_gradients,
    time_constants,
)
from neurolsc.stability.indicators import active_fraction, largest_singular, layer_exponents, together
from neurolsc.stability.profile import profile_at
from neurolsc.stability.sampling import WORK, Grid
from neurolsc.stability.transitions import depth_operators, follow, time_operator
from neurolsc.surroundings import eval_mode

PIECES = 8  # parts of a batch between which gradients are compared

# ---- the batch


@dataclass(frozen=True)
class Batch:
    """A batch as the network reads it."""

    x: Tensor  # input (T, B, n_in), dense
    targets: Tensor | None = None  # without them nothing that needs a loss is measured
    mask: Tensor | None = None  # (T, B) bool; None: all samples last for T steps

    @classmethod
    def of(cls, prepared: Prepared) -> "Batch":
        """Return the batch that a network was prepared with."""
        return cls(prepared.x, prepared.targets, prepared.mask)

    @property
    def per_step(self) -> bool:
        """True if targets are those of steps, (T, B, ...)."""
        targets = self.targets
        return targets is not None and targets.ndim > 1 and targets.shape[:2] == self.x.shape[:2]

    def part(self, start: int, stop: int) -> "Batch":
        """Return the batch of the samples from `start` to before `stop`."""
        targets = self.targets
        mask = self.mask
        if targets is not None and self.per_step:  # (T, B, ...): samples are the second axis
            targets = targets[:, start:stop]
        elif targets is not None:
            targets = targets[start:stop]
        if mask is not None:
            mask = mask[:, start:stop]
        return Batch(self.x[:, start:stop], targets, mask)

    def pieces(self, most: int = PIECES) -> list["Batch"]:
        """Split the batch into at most `most` parts with equal numbers of samples; the last few samples may be in none.

        The list is empty for a batch of one sample: there is nothing to compare.
        """
        samples = self.x.shape[1]
        count = min(most, samples)
        if count == 1:
            return []
        size = samples // count
        return [self.part(k * size, (k + 1) * size) for k in range(count)]

    def first(self, samples: int) -> Tensor:
        """Return the input of the first samples (T, samples, n_in), as long as the shortest of them lasts."""
        part = self.part(0, samples)
        shortest = int(part.lengths().min())
        if not shortest:
            raise ValueError("a sample of the batch has no time step: its mask is False throughout.")
        return part.x[:shortest]

    def lengths(self) -> Tensor:
        """Return the number of steps of each sample (B,)."""
        steps, samples = self.x.shape[:2]
        if self.mask is None:
            return torch.full((samples,), steps, device=self.x.device)
        return self.mask.sum(0)


# ---- the measurements

EPSILON = 1e-8  # Adam's default, with which entries of the gradient are compared
NO_SPIKES = Activity(math.nan, math.nan, math.nan, math.nan)  # of an integrator, which sends its voltage


@dataclass(frozen=True)
class LayerMeasurements:
    """What is measured of one layer; what needs a loss is None without targets."""

    activity: Activity  # rate, dead and saturated neurons, synchrony
    exponent: float  # largest finite-time Lyapunov exponent, in nats per step, mean over samples
    singular_time: float  # largest singular value through time, mean over steps and samples
    singular_depth: float  # likewise through depth
    # share of neurons, steps and samples at which the surrogate's derivative is not nearly 0
    active_surrogate_fraction: float
    similarity_to_input: float  # squared debiased CKA between the layer and the input, 0 to 1
    constants: tuple[TimeConstant, ...]  # the layer's time constants
    gradient: float | None = None  # norm of the loss's gradient by the layer's parameters; None if all are frozen
    below_epsilon: float | None = None  # share of the gradient's entries below the optimizer's epsilon
    noise: float | None = None  # signal-to-noise ratio of the gradient between parts of the batch; None: one sample
    entries: int = 0  # number of the gradient's entries
    still: tuple[str, ...] = ()  # parameters whose gradient is 0, where others of the layer have one


@dataclass(frozen=True)
class Measurements:
    """What is measured of a network on a batch."""

    layers: tuple[LayerMeasurements, ...]
    profile: RadiusProfile
    steps: int  # of the run along which exponents were measured
    loss: float | None = None  # on the batch; None without targets, as what follows
    # (L, T): for each layer and k the norm of the gradient by the state k steps before the end of a sample, as far as
    # it comes from the sample's last output, mean over the samples of more than k steps; NaN if there are none
    back: Tensor | None = None
    classes: int | None = None  # number of classes, where the loss of guessing is ln(classes); else None
    pieces: int = 0  # number of parts of the batch whose gradients are compared

    def __repr__(self) -> str:
        return f"Measurements({len(self.layers)} layers, {'no ' if self.loss is None else ''}loss and gradients)"


@dataclass(frozen=True)
class StepMeasurements:
    """What is measured of the derivatives of single steps, of all layers along one run."""

    profile: RadiusProfile
    exponents: list[float]  # largest finite-time Lyapunov exponent of each layer, mean over samples
    singular_time: list[float]  # largest singular value through time, mean over points
    singular_depth: list[float]
    active: list[float]  # share of neurons with an active surrogate


RADII_WORK = WORK / 3  # less work than for a profile: a diagnosis only asks whether a radius is far off
SINGULAR_POINTS = 16  # points at which singular values are measured: they differ less than radii do


def measure_steps(
    network: Network, x: Tensor, *, steps: int, seed: int, progress: bool | None = None
) -> StepMeasurements:
    """Measure the derivatives of single steps, of all layers along one run.

    These are their spectral radii, largest singular values and Lyapunov exponents, and the share of neurons with an
    active surrogate.

    Args:
        network: the network.
        x: input (T, B, n_in).
        steps: number of steps, drawn at random, at which radii and surrogates are measured. Exponents are measured
            along all steps.
        seed: seed of the draws.
        progress: as for :func:`neurolsc.stability.profile.profile_at`.
    """
    total, samples = x.shape[:2]  # T, B
    generator = torch.Generator().manual_seed(seed)
    grid = Grid.drawn(total, samples, generator, steps=steps, samples=samples)
    with eval_mode(network), torch.no_grad():
        run, outputs = follow(network, x, torch.arange(total))
        drawn_points = grid.steps.unsqueeze(1) * samples + grid.samples  # points are ordered (step, sample)
        at_drawn = [layer.at(drawn_points.flatten().to(x.device)) for layer in run]
        profile = profile_at(
            network,
            at_drawn,
            outputs,
            grid,
            shape=(total, samples),
            every=False,
            generator=generator,
            progress=progress,
            work=RADII_WORK,
        )
        # singular values at some of the points at which the profile has measured radii, evenly spaced
        measured_points = (profile.steps.unsqueeze(1) * samples + profile.samples).flatten()
        count = min(SINGULAR_POINTS, len(measured_points))
        spaced_points = measured_points[torch.arange(count) * len(measured_points) // count]
        at_spaced = [layer.at(spaced_points.to(x.device)) for layer in run]
        return StepMeasurements(
            profile,
            exponents=[layer_exponents(layer, samples, count=1, seed=seed).mean().item() for layer in run],
            singular_time=[largest_singular(layer, [time_operator(layer)]).mean().item() for layer in at_spaced],
            singular_depth=[largest_singular(layer, depth_operators(layer)).mean().item() for layer in at_spaced],
            active=[active_fraction(layer) for layer in at_drawn],
        )


def measure(
    network: Network,
    batch: Batch,
    loss: Objective,
    *,
    samples: int,
    steps: int,
    seed: int,
    progress: bool | None = None,
) -> Measurements:
    """Measure a network on a batch.

    Derivatives of single steps cost most, and are measured on a part of the batch; activity, loss and gradients on
    all of it.

    Args:
        network: the network.
        batch: the batch; without targets loss and gradients are left out.
        loss: the loss.
        samples: number of samples, the first of the batch, for derivatives; all are cut to the shortest of them.
        steps: number of steps, drawn at random, for derivatives; exponents take all steps.
        seed: seed of all draws.
        progress: as for :func:`measure_steps`.
    """
    x = batch.first(samples)
    of_steps = measure_steps(network, x, steps=min(steps, x.shape[0]), seed=seed, progress=progress)
    of_run, loss_value = measure_run(network, batch, loss)
    layers = []
    for i, cell in enumerate(network.cells):
        layers.append(
            LayerMeasurements(
                exponent=of_steps.exponents[i],
                singular_time=of_steps.singular_time[i],
                singular_depth=of_steps.singular_depth[i],
                active_surrogate_fraction=of_steps.active[i],
                constants=time_constants(cell),
                **of_run[i],
            )
        )
    measurements = Measurements(tuple(layers), of_steps.profile, steps=len(x))
    if batch.targets is None:
        return measurements
    zeros = torch.zeros(*batch.x.shape[:2], network.n_out, **network.dtype_and_device)
    return replace(
        measurements,
        loss=loss_value,
        back=_back(network, batch, loss),
        classes=loss.guesses_among(zeros, batch.targets, batch.mask),
        pieces=len(batch.pieces()),
    )


def measure_run(network: Network, batch: Batch, loss: Objective) -> tuple[list[dict[str, Any]], float | None]:
    """Measure activity and similarity to the input in one run, and with targets the loss and its gradients.

    Returns:
        Those fields of :class:`LayerMeasurements`, by name, for each layer; and the loss, None without targets.
    """
    with eval_mode(network), torch.no_grad():
        run = network.run(batch.x, mask=batch.mask)
    loss_value = None
    # gradients of each layer by name of the parameter: of the whole batch, and of each of its parts
    by_name: Sequence[dict[str, Tensor]] = [{} for _ in network.cells]
    of_parts: list[Sequence[dict[str, Tensor]]] = []
    if batch.targets is not None:
        loss_value = loss(run.logits, batch.targets, batch.mask).item()
        by_name = layer_gradients(network, batch, loss)
        of_parts = [layer_gradients(network, part, loss) for part in batch.pieces()]
    layers = []
    for i, cell in enumerate(network.cells):
        measured: dict[str, Any] = {
            "activity": NO_SPIKES if cell.integrator else activity(run.spikes[i], batch.mask),
            "similarity_to_input": similarity_to_input(batch.x, run.spikes[i]),
        }
        whole = together(by_name[i])
        if len(whole):  # it is empty without targets, and of a layer whose parameters are frozen
            measured["gradient"] = whole.norm().item()
            measured["entries"] = len(whole)
            measured["below_epsilon"] = (whole.abs() < EPSILON).double().mean().item()
            # where the whole gradient is 0 no single parameter is to blame
            measured["still"] = tuple(
                name for name, gradient in by_name[i].items() if whole.any() and not gradient.any()
            )
        if len(whole) and of_parts:
            measured["noise"] = signal_to_noise(torch.stack([together(part[i]) for part in of_parts]))
        layers.append(measured)
    return layers, loss_value


def layer_gradients(network: Network, batch: Batch, loss: Objective) -> tuple[dict[str, Tensor], ...]:
    """Return, for each layer, the gradient of a batch's loss by each parameter, by name; the readout is left out."""

    def of_logits(logits: Tensor) -> Tensor:
        return loss(logits, batch.targets, batch.mask)  # type: ignore[arg-type]

    return parameter_gradients(network, batch.x, of_logits, mask=batch.mask)[:-1]


def _back(network: Network, batch: Batch, loss: Objective) -> Tensor:
    """Return norms (L, T) of the gradient that comes from a sample's last output alone.

    Column k has the gradient by the state k steps before the end of a sample, and is a mean over the samples of more
    than k steps; NaN if there are none.
    """
    steps, samples = batch.x.shape[:2]
    at_step = torch.arange(steps, device=batch.x.device).unsqueeze(1)
    end = batch.lengths() - 1

    def of_last(logits: Tensor) -> Tensor:
        """Return the loss, with a gradient by the last output of each sample alone."""
        if batch.mask is not None:  # the run that makes these logits takes no mask: losses read 0 after the end
            logits = logits * batch.mask.unsqueeze(-1)
        last = (at_step == end).unsqueeze(-1)
        return loss(torch.where(last, logits, logits.detach()), batch.targets, batch.mask)  # type: ignore[arg-type]

    norms = state_gradients(network, batch.x, of_last)  # (L, T, B)
    step_back = end - at_step  # (T, B): in row k the step that is k before the last one of each sample
    there = step_back >= 0  # True where the sample is that long
    norms_back = samples * norms.gather(1, step_back.clamp(min=0).expand_as(norms))  # the loss is a mean over samples
    return (norms_back * there).sum(2).cpu() / there.sum(1).cpu()
