"""The batch that a network is diagnosed with, what is measured on it layer by layer, and copies trained on it."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from neurolsc.network import Network, eval_mode
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
from neurolsc.stability.pretrain import adabelief_lookahead
from neurolsc.stability.profile import profile_at
from neurolsc.stability.sampling import WORK, Grid
from neurolsc.stability.transitions import depth_operators, follow, time_operator
from neurolsc.tasks import Classification, Task
from neurolsc.validation import tensor

# ---- the batch


@dataclass(frozen=True)
class Batch:
    """A batch as the network reads it."""

    x: Tensor  # input (T, B, n_in), dense
    targets: Tensor | None = None  # without them nothing that needs a loss is measured
    mask: Tensor | None = None  # (T, B) bool; None: all samples last for T steps

    @classmethod
    def of(cls, batch: Tensor | Sequence[Tensor], network: Network) -> "Batch":
        parts = tuple(batch) if isinstance(batch, tuple | list) else (tensor("x", batch),)
        if not 1 <= len(parts) <= 3 or not all(isinstance(part, Tensor) for part in parts):
            got = ", ".join(type(part).__name__ for part in parts)
            raise TypeError(f"batch must be x, (x, targets) or (x, targets, mask) of tensors, got ({got}).")
        device = network.dtype_and_device["device"]
        x, *more = (part.to(device) for part in parts)
        if x.ndim != 3 or x.shape[2] != network.n_in or 0 in x.shape:
            raise ValueError(f"x must have shape (T, B, {network.n_in}) with T, B >= 1, got {tuple(x.shape)}.")
        return cls(x, *more)

    def turned(self) -> "Batch":
        return replace(self, x=self.x.transpose(0, 1))

    def part(self, start: int, stop: int) -> "Batch":
        targets = self.targets
        if targets is not None:
            targets = targets[start:stop] if targets.ndim == 1 else targets[:, start:stop]
        return Batch(self.x[:, start:stop], targets, None if self.mask is None else self.mask[:, start:stop])

    def first(self, samples: int) -> Tensor:
        """The input of the first samples, as long as the shortest of them lasts."""
        few = self.part(0, samples)
        return few.x[: int(few.lengths().min())]

    def lengths(self) -> Tensor:
        """Steps of each sample (B,)."""
        steps, samples = self.x.shape[:2]
        return torch.full((samples,), steps, device=self.x.device) if self.mask is None else self.mask.sum(0)


def batch_first(batch: Batch) -> str:
    """Why the first two axes of an input seem to be swapped: the number of targets; empty if they do not."""
    (steps, samples), targets = batch.x.shape[:2], batch.targets
    if targets is None or steps == samples:
        return ""
    swapped = targets.shape == (steps,) if targets.ndim == 1 else targets.shape[:2] == (samples, steps)
    return f"there are {steps} targets, as many as x {tuple(batch.x.shape)} has steps" if swapped else ""


# ---- the measurements

EPSILON = 1e-8  # of Adam, with which entries of the gradient are compared


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
    constants: tuple[TimeConstant, ...]  # its time constants
    gradient: float | None = None  # norm of the loss's gradient by the layer's parameters
    below_epsilon: float | None = None  # share of its entries below the optimizer's epsilon
    noise: float | None = None  # its signal-to-noise ratio between pieces of the batch


@dataclass(frozen=True)
class Measurements:
    """What is measured of a network on a batch."""

    layers: tuple[LayerMeasurements, ...]
    profile: RadiusProfile
    steps: int  # of the run along which exponents were measured
    loss: float | None = None  # of the task on the batch, in nats; None without targets, as what follows
    # (L, T) norm of the gradient of the loss of a sample's last step by the state k steps back, mean over samples that
    # are so long; NaN where none is
    back: Tensor | None = None
    classes: int | None = None  # of the targets; None where they are no classes

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


RADII_WORK = WORK / 3  # a diagnosis asks whether a radius is far off
SINGULAR_POINTS = 16  # at which singular values are measured: they differ less than radii do


def measure_steps(
    network: Network, x: Tensor, *, steps: int, seed: int, progress: bool | None = None
) -> StepMeasurements:
    """Radii, exponents, singular values and surrogates, all along one run of an input (T, B, n_in)."""
    total, samples = x.shape[:2]
    generator = torch.Generator().manual_seed(seed)
    grid = Grid.drawn(total, samples, generator, steps=steps, samples=samples)
    with eval_mode(network), torch.no_grad():
        run, outputs = follow(network, x, torch.arange(total))
        drawn = grid.steps.unsqueeze(1) * samples + grid.samples
        at_grid = [t.at(drawn.flatten().to(x.device)) for t in run]
        profile = profile_at(
            network,
            at_grid,
            outputs,
            grid,
            shape=(total, samples),
            every=False,
            generator=generator,
            progress=progress,
            work=RADII_WORK,
        )
        measured = profile.steps.unsqueeze(1) * samples + profile.samples
        count = min(SINGULAR_POINTS, measured.numel())
        spaced = torch.arange(count) * measured.numel() // count
        few = [t.at(measured.flatten()[spaced].to(x.device)) for t in run]
        return StepMeasurements(
            profile,
            exponents=[layer_exponents(t, samples, 1, seed).mean().item() for t in run],
            singular_time=[largest_singular(t, [time_operator(t)]).mean().item() for t in few],
            singular_depth=[largest_singular(t, depth_operators(t)).mean().item() for t in few],
            active=[active_fraction(t) for t in at_grid],
        )


def measure(
    network: Network,
    batch: Batch,
    task: Task,
    *,
    samples: int,
    steps: int,
    seed: int,
    progress: bool | None = None,
) -> Measurements:
    """Measure everything: derivatives on the first samples, and at some steps."""
    x = batch.first(samples)
    of_steps = measure_steps(network, x, steps=min(steps, x.shape[0]), seed=seed, progress=progress)
    with eval_mode(network), torch.no_grad():
        run = network.run(batch.x, mask=batch.mask)
    by_name: Sequence[dict[str, Tensor]] = [{} for _ in network.cells]
    pieces: list[Sequence[dict[str, Tensor]]] = []
    of_loss: dict[str, Any] = {}
    if batch.targets is not None:
        by_name = _gradients(network, batch, task)
        pieces = _gradients_of_pieces(network, batch, task)
        of_loss = {
            "loss": task.loss(run.logits, batch.targets, batch.mask).item(),
            "back": _gradients_back(network, batch, task),
            "classes": network.n_out if isinstance(task, Classification) else None,
        }
    measured = []
    for i, cell in enumerate(network.cells):
        of_gradient: dict[str, float | None] = {}
        whole = together(by_name[i])
        if len(whole):
            of_gradient = {
                "gradient": whole.norm().item(),
                "below_epsilon": (whole.abs() < EPSILON).double().mean().item(),
                "noise": signal_to_noise(torch.stack([together(p[i]) for p in pieces])) if pieces else None,
            }
        measured.append(
            LayerMeasurements(
                activity=activity(run.spikes[i], batch.mask),
                exponent=of_steps.exponents[i],
                singular_time=of_steps.singular_time[i],
                singular_depth=of_steps.singular_depth[i],
                active_surrogate_fraction=of_steps.active[i],
                similarity_to_input=similarity_to_input(batch.x, run.spikes[i]),
                constants=time_constants(cell),
                **of_gradient,
            )
        )
    return Measurements(tuple(measured), of_steps.profile, len(x), **of_loss)


PIECES = 8  # of the batch, whose gradients are compared


def _gradients_of_pieces(network: Network, batch: Batch, task: Task) -> list[Sequence[dict[str, Tensor]]]:
    """The gradients of equal pieces of the batch; none of a single sample."""
    count = min(PIECES, batch.x.shape[1])
    if count == 1:
        return []
    size = batch.x.shape[1] // count
    return [_gradients(network, batch.part(k * size, (k + 1) * size), task) for k in range(count)]


def _gradients_back(network: Network, batch: Batch, task: Task) -> Tensor:
    """Norms (L, T) of the gradient of the last steps' loss by the state so many steps back, mean over samples."""
    samples = batch.x.shape[1]
    at_step = torch.arange(len(batch.x), device=batch.x.device).unsqueeze(1)
    end = batch.lengths() - 1
    norms = state_gradients(network, batch.x, lambda logits: task.loss(logits, batch.targets, at_step == end))
    at = end - at_step  # the step that lies k back, of each sample
    there = at >= 0
    rows = samples * norms.gather(1, at.clamp(min=0).expand_as(norms))  # the loss is a mean over samples
    return (rows * there).sum(2).cpu() / there.sum(1).cpu()


def _gradients(network: Network, batch: Batch, task: Task) -> tuple[dict[str, Tensor], ...]:
    def loss(logits: Tensor) -> Tensor:
        return task.loss(logits, batch.targets, batch.mask)  # type: ignore[arg-type]

    return parameter_gradients(network, batch.x, loss, mask=batch.mask)[:-1]


# ---- copies and updates


def copied(network: Network) -> Network:
    """An independent copy, also of layers of others that hold states with a history."""
    tensors = [tensor for module in network.modules() for tensor in (*module._buffers.values(), *vars(module).values())]
    memo = {id(t): t.detach().clone() for t in tensors if isinstance(t, Tensor) and not t.is_leaf}
    return copy.deepcopy(network, memo)


def loss_after(network: Network, data: Batch, task: Task, lr: float, updates: int) -> float:
    """The loss of a batch after updates on it; they stop where it is no number."""

    def loss() -> Tensor:
        return task.loss(network.run(data.x, mask=data.mask).logits, data.targets, data.mask)  # type: ignore[arg-type]

    trained = [p for p in network.parameters() if p.requires_grad]
    with eval_mode(network):  # without dropout, so that copies can be compared
        if trained and updates:
            steps = adabelief_lookahead(trained, lr)
            for _ in range(updates):
                with torch.enable_grad():
                    now = loss()
                if not now.isfinite() or not now.requires_grad:
                    break
                steps.zero_grad()
                now.backward()
                steps.step()
        with torch.no_grad():
            return loss().item()
