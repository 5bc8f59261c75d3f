"""What is measured of a network on a batch, layer by layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.diagnosis.batch import Given
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import weight_matrices
from neurolsc.stability import (
    Activity,
    RadiusProfile,
    TimeConstant,
    activity,
    lyapunov_exponents,
    parameter_gradients,
    radius_profile,
    signal_to_noise,
    singular_values,
    state_gradients,
    surviving_share,
    time_constants,
    usable_share,
)
from neurolsc.stability.indicators import together
from neurolsc.tasks import Classification, Task

PIECES = 8
"""pieces of a batch whose gradients are compared"""


@dataclass(frozen=True)
class LayerFigures:
    """What is known of one layer; what needs a loss is None without targets."""

    activity: Activity
    """rate, dead and saturated neurons, synchrony"""
    exponent: float
    """largest finite-time Lyapunov exponent, in nats per step, mean over samples"""
    singular_time: float
    """largest singular value through time, mean over steps and samples"""
    singular_depth: float
    """likewise through depth"""
    usable: float
    """share of neurons, steps and samples whose spike has a usable derivative"""
    survives: float
    """share of what tells the samples of the input apart that is left"""
    constants: tuple[TimeConstant, ...]
    """its time constants"""
    gradient: float | None
    """norm of the loss's gradient by the layer's parameters"""
    below_epsilon: float | None
    """share of the entries of that gradient that are smaller than the optimizer's epsilon"""
    noise: float | None
    """signal to noise of that gradient between pieces of the batch"""


@dataclass(frozen=True)
class Figures:
    """What is known of a network on a batch."""

    layers: tuple[LayerFigures, ...]
    profile: RadiusProfile
    """its radii, with sources"""
    steps: int
    """of the run along which exponents were measured"""
    loss: float | None
    """of the task on the batch, in nats; None without targets, as what follows"""
    back: Tensor | None
    """(L, T) norm of the gradient of the loss of a sample's last step by the state k steps back,
    mean over samples that are so long; NaN where none is"""
    classes: int | None = None
    """among which each sample's target is one; None where the targets are no classes"""
    relays: bool = True
    """whether ``Relay()`` takes these layers: they name input weights, voltage and thresholds"""

    def __repr__(self) -> str:
        return f"Figures({len(self.layers)} layers, {'no ' if self.loss is None else ''}loss and gradients)"


def measure(
    network: Network,
    given: Given,
    task: Task,
    *,
    samples: int,
    steps: int,
    epsilon: float,
    seed: int,
    progress: bool | None = None,
) -> Figures:
    """Measure all figures; what they mean stands at each measure."""
    few = given.few(samples)
    some = min(steps, few.shape[0])
    profile = radius_profile(network, few, steps=some, seed=seed, progress=progress)
    exponents = lyapunov_exponents(network, few, seed=seed)[:, :, 0].mean(1)
    through_time, through_depth = (sigma.mean((1, 2)) for sigma in singular_values(network, few, steps=some, seed=seed))
    usable = usable_share(network, few, steps=some, seed=seed)
    with eval_mode(network), torch.no_grad():
        run = network.run(given.x, mask=given.mask)
    whole, gradients = _gradients(network, given, task, epsilon)
    layers = tuple(
        LayerFigures(
            activity(run.spikes[i], given.mask),
            exponents[i].item(),
            through_time[i].item(),
            through_depth[i].item(),
            usable[i].item(),
            surviving_share(given.x, run.spikes[i]),
            time_constants(cell, whole[i]),
            *gradients[i],
        )
        for i, cell in enumerate(network.cells)
    )
    if given.targets is None:
        return Figures(layers, profile, len(few), None, None, relays=_relays(network))
    classes = network.n_out if isinstance(task, Classification) else None
    loss = task.loss(run.logits, given.targets, given.mask).item()
    return Figures(layers, profile, len(few), loss, _back(network, given, task), classes, _relays(network))


def _relays(network: Network) -> bool:
    cells = [network.cells[i] for i in network.spiking]
    known = all(cell.membrane() is not None and cell.thresholds() is not None for cell in cells)
    below = [weight_matrices(cell, "depth", inputs=True) for cell in cells]
    own = [weight_matrices(cell, "time") for cell in cells]
    matrices = [m for layer in (*below[2:], *own[2:]) for m in layer]
    return known and all(below) and all(m.weights.ndim == 2 for m in matrices)


def _gradients(
    network: Network, given: Given, task: Task, epsilon: float
) -> tuple[list[dict[str, Tensor]], list[tuple[float | None, float | None, float | None]]]:
    """Of every layer the gradients by name; their norm, the share below epsilon, and their SNR."""
    layers = range(len(network.cells))
    if given.targets is None:
        return [{} for _ in layers], [(None, None, None) for _ in layers]

    def of(part: Given) -> tuple[dict[str, Tensor], ...]:
        targets = part.targets
        assert targets is not None
        return parameter_gradients(
            network, part.x, lambda logits: task.loss(logits, targets, part.mask), mask=part.mask
        )

    whole, count = of(given), min(PIECES, given.samples)
    pieces = [of(part) for part in given.pieces(count)] if count > 1 else []
    told: list[tuple[float | None, float | None, float | None]] = []
    for i in layers:
        g = together(whole[i])
        noise = signal_to_noise(torch.stack([together(p[i]) for p in pieces])) if pieces else None
        below = (g.abs() < epsilon).double().mean().item()
        told.append((g.norm().item(), below, noise) if len(g) else (None, None, None))
    return list(whole[:-1]), told


def _back(network: Network, given: Given, task: Task) -> Tensor:
    """The gradient of the last steps' loss, by steps back (L, T), mean over samples."""
    targets, last = given.targets, given.last_steps()
    assert targets is not None
    norms = state_gradients(network, given.x, lambda logits: task.loss(logits, targets, last))
    norms = norms * given.samples  # the loss is a mean over samples
    steps = torch.arange(given.x.shape[0], device=norms.device)
    at = given.lengths() - 1 - steps.unsqueeze(1)  # the step that lies k back, of each sample
    there = at >= 0
    rows = norms.gather(1, at.clamp(min=0).expand_as(norms))
    return (rows * there).sum(2).cpu() / there.sum(1).cpu()
