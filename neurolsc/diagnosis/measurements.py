"""The batch that a network is diagnosed with, what is measured on it layer by layer, and copies of the network."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from neurolsc.diagnosis.losses import Objective
from neurolsc.network import Network, eval_mode
from neurolsc.stability import (
    Activity,
    RadiusProfile,
    TimeConstant,
    active_surrogate_fraction,
    activity,
    lyapunov_exponents,
    parameter_gradients,
    radius_profile,
    signal_to_noise,
    similarity_to_input,
    singular_values,
    state_gradients,
    time_constants,
)
from neurolsc.stability.indicators import together
from neurolsc.validation import numpy_hint

PIECES = 8  # of a batch, whose gradients are compared

# ---- the batch


@dataclass(frozen=True)
class Batch:
    """A batch as the network reads it."""

    x: Tensor  # input (T, B, n_in), dense
    targets: Tensor | None = None  # without them nothing that needs a loss is measured
    mask: Tensor | None = None  # (T, B) bool; None: all samples last for T steps

    @classmethod
    def of(cls, x: Any, network: Network, y: Any = None) -> "Batch":
        """The batch of x and y; without y, x may be (x, y) or (x, y, mask).

        Raises:
            TypeError: if a part is no tensor.
            ValueError: if they do not fit the network or each other.
        """
        parts = (x, y)
        if y is None and isinstance(x, tuple | list):
            parts = tuple(x)
        elif y is None:
            parts = (x,)
        if not 1 <= len(parts) <= 3:
            raise TypeError(f"x must be a tensor, (x, y) or (x, y, mask), got {len(parts)} parts.")
        for name, part in zip(("x", "y", "mask"), parts, strict=False):
            if not isinstance(part, Tensor):
                raise TypeError(f"{name} must be a torch.Tensor, got {type(part).__name__}{numpy_hint(part)}.")
        device = network.dtype_and_device["device"]
        x, *more = (part.to(device) for part in parts)
        if x.ndim != 3 or x.shape[2] != network.n_in or 0 in x.shape:
            raise ValueError(f"x must have shape (T, B, {network.n_in}) with T, B >= 1, got {tuple(x.shape)}.")
        return cls(x, *more)

    @property
    def per_step(self) -> bool:
        """True if targets are those of steps, (T, B, ...)."""
        targets = self.targets
        return targets is not None and targets.ndim > 1 and targets.shape[:2] == self.x.shape[:2]

    def refuse_targets(self) -> None:
        """Refuse targets that are neither those of samples nor of steps; ValueError."""
        steps, samples = self.x.shape[:2]
        if self.targets is None or self.per_step:
            return
        if self.targets.ndim == 0 or len(self.targets) != samples:
            raise ValueError(
                f"y must be ({samples}, ...), a target for each sample of x {tuple(self.x.shape)}, or "
                f"({steps}, {samples}, ...), one for each step, got {tuple(self.targets.shape)}."
            )

    def turned(self) -> "Batch":
        return replace(self, x=self.x.transpose(0, 1))

    def part(self, start: int, stop: int) -> "Batch":
        targets = self.targets
        if targets is not None and self.per_step:
            targets = targets[:, start:stop]
        elif targets is not None:
            targets = targets[start:stop]
        return Batch(self.x[:, start:stop], targets, None if self.mask is None else self.mask[:, start:stop])

    def pieces(self) -> list["Batch"]:
        """Up to eight parts of as many samples; none of a single sample."""
        samples = self.x.shape[1]
        count = min(PIECES, samples)
        if count == 1:
            return []
        size = samples // count
        return [self.part(k * size, (k + 1) * size) for k in range(count)]

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
    constants: tuple[TimeConstant, ...]  # its time constants
    gradient: float | None = None  # norm of the loss's gradient by the layer's parameters
    below_epsilon: float | None = None  # share of its entries below the optimizer's epsilon
    noise: float | None = None  # its signal-to-noise ratio between pieces of the batch
    entries: int = 0  # how many it has
    still: tuple[str, ...] = ()  # parameters whose gradient is 0, where others of the layer have one


@dataclass(frozen=True)
class Measurements:
    """What is measured of a network on a batch."""

    layers: tuple[LayerMeasurements, ...]
    profile: RadiusProfile
    steps: int  # of the run along which exponents were measured
    loss: float | None = None  # on the batch; None without targets, as what follows
    # (L, T) norm of the gradient that comes from a sample's last output alone, by the state k steps back, mean over
    # samples that are so long; NaN where none is
    back: Tensor | None = None
    classes: int | None = None  # of the targets, where the loss of guessing is ln(classes)
    pieces: int = 0  # of the batch, between which signal and noise are told apart

    def __repr__(self) -> str:
        return f"Measurements({len(self.layers)} layers, {'no ' if self.loss is None else ''}loss and gradients)"


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
    """Measure everything: derivatives on the first samples, and at some steps."""
    x = batch.first(samples)
    some = min(steps, x.shape[0])
    profile = radius_profile(network, x, steps=some, seed=seed, progress=progress)
    exponents = lyapunov_exponents(network, x, seed=seed)[:, :, 0].mean(1)
    along, across = (sigma.mean((1, 2)) for sigma in singular_values(network, x, steps=some, seed=seed))
    active = active_surrogate_fraction(network, x, steps=some, seed=seed)
    found, value = passes(network, batch, loss)
    layers = []
    for i, cell in enumerate(network.cells):
        layers.append(
            LayerMeasurements(
                exponent=exponents[i].item(),
                singular_time=along[i].item(),
                singular_depth=across[i].item(),
                active_surrogate_fraction=active[i].item(),
                constants=time_constants(cell),
                **found[i],
            )
        )
    measurements = Measurements(tuple(layers), profile, len(x))
    if batch.targets is None:
        return measurements
    return replace(
        measurements,
        loss=value,
        back=_back(network, batch, loss),
        classes=network.n_out if loss.of_classes else None,
        pieces=len(batch.pieces()),
    )


def passes(network: Network, batch: Batch, loss: Objective) -> tuple[list[dict[str, Any]], float | None]:
    """What runs forwards and backwards measure of each layer, by name; and the loss, None without targets."""
    with eval_mode(network), torch.no_grad():
        run = network.run(batch.x, mask=batch.mask)
    value = None
    by_name: Sequence[dict[str, Tensor]] = [{} for _ in network.cells]
    pieces: list[Sequence[dict[str, Tensor]]] = []
    if batch.targets is not None:
        value = loss(run.logits, batch.targets, batch.mask).item()
        by_name = _gradients(network, batch, loss)
        pieces = [_gradients(network, piece, loss) for piece in batch.pieces()]
    layers = []
    for i, cell in enumerate(network.cells):
        found: dict[str, Any] = {
            "activity": NO_SPIKES if cell.integrator else activity(run.spikes[i], batch.mask),
            "similarity_to_input": similarity_to_input(batch.x, run.spikes[i]),
        }
        whole = together(by_name[i])
        if len(whole):
            found["gradient"] = whole.norm().item()
            found["entries"] = len(whole)
            found["below_epsilon"] = (whole.abs() < EPSILON).double().mean().item()
            found["still"] = tuple(name for name, gradient in by_name[i].items() if whole.any() and not gradient.any())
        if len(whole) and pieces:
            found["noise"] = signal_to_noise(torch.stack([together(piece[i]) for piece in pieces]))
        layers.append(found)
    return layers, value


def _gradients(network: Network, batch: Batch, loss: Objective) -> tuple[dict[str, Tensor], ...]:
    def of_logits(logits: Tensor) -> Tensor:
        return loss(logits, batch.targets, batch.mask)  # type: ignore[arg-type]

    return parameter_gradients(network, batch.x, of_logits, mask=batch.mask)[:-1]


def _back(network: Network, batch: Batch, loss: Objective) -> Tensor:
    """Norms (L, T) of the gradient that comes from a sample's last output alone, by the state k steps back."""
    steps, samples = batch.x.shape[:2]
    at_step = torch.arange(steps, device=batch.x.device).unsqueeze(1)
    end = batch.lengths() - 1

    def of_last(logits: Tensor) -> Tensor:
        if batch.mask is not None:
            logits = logits * batch.mask.unsqueeze(-1)
        last = (at_step == end).unsqueeze(-1)
        return loss(torch.where(last, logits, logits.detach()), batch.targets, batch.mask)  # type: ignore[arg-type]

    norms = state_gradients(network, batch.x, of_last)
    at = end - at_step  # the step that lies k back, of each sample
    there = at >= 0
    rows = samples * norms.gather(1, at.clamp(min=0).expand_as(norms))  # the loss is a mean over samples
    return (rows * there).sum(2).cpu() / there.sum(1).cpu()


# ---- copies


def copied(network: Network) -> Network:
    """An independent copy, also of layers of others that hold states with a history."""
    tensors = [tensor for module in network.modules() for tensor in (*module._buffers.values(), *vars(module).values())]
    memo = {id(t): t.detach().clone() for t in tensors if isinstance(t, Tensor) and not t.is_leaf}
    return copy.deepcopy(network, memo)
