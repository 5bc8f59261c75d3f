"""Faults by name, and what a cell alone shows: a surrogate that is not finite, time constants that cannot move."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.neurons.cell import Cell, Membrane, owner_of
from neurolsc.validation import stored_parameter

DEAD, NOT_FINITE, NO_SURROGATE = "dead layer", "surrogate not finite", "no surrogate"
REACH = 20.0  # thresholds, of at least 1, from the threshold up to which the derivative of a surrogate has to be finite
# Change of a decay per change of log tau below which float32 does not see the steps of an optimizer: a hundred of 1e-3
# move a decay near 1 by less than its resolution, 1.2e-7.
STUCK = 1e-6


@dataclass(frozen=True)
class Finding:
    """One fault: where, why, and the one thing to try."""

    layer: int | None  # counted from 1; None: not of one layer
    problem: str
    cure: str
    cause: str = ""
    name: str = ""  # the kind of fault, for programs

    def __str__(self) -> str:
        where = "network" if self.layer is None else f"layer {self.layer}"
        why = f" ({self.cause})" if self.cause else ""
        return f"{where}: {self.problem}{why}; {self.cure}."

    def __repr__(self) -> str:
        return f"Finding({self})"


def surrogate_fault(cell: Cell, layer: int) -> Finding | None:
    """The finding of a layer (from 0) whose spikes have no derivative, or a NaN or infinite one near the threshold.

    A single voltage there makes the gradient of every weight NaN, at any learning rate: snnTorch's
    ``sigmoid(slope=25)`` does so from 3.5 below the threshold on, in float32.
    """
    membrane = cell.membrane()
    if membrane is not None:
        v = getattr(cell.initial_state(1), membrane.name).detach().requires_grad_()
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            derivative = membrane.spike(v).requires_grad
        if not derivative:
            problem, cause = "its spikes have no derivative", "its spike function is no surrogate"
            return Finding(layer + 1, problem, "use fast_sigmoid or atan", cause, NO_SURROGATE)
    low, high = finite_distances(cell)
    distance, side = min((-low, "below"), (high, "above"))
    if distance == math.inf:
        return None
    problem = f"the derivative of its surrogate is not finite {distance:.3g} or more {side} the threshold"
    cause = "a voltage there makes all gradients NaN, at any learning rate"
    return Finding(layer + 1, problem, "use fast_sigmoid or atan", cause, NOT_FINITE)


def finite_distances(cell: Cell) -> tuple[float, float]:
    """The range of v - theta in which the derivative of a cell's surrogate is finite, in steps of 0.002 thresholds.

    An end is infinite where the derivative is finite up to 20 thresholds (of at least 1), or the cell does not name its
    voltage.
    """
    membrane = cell.membrane()
    if membrane is None:
        return -math.inf, math.inf
    threshold = membrane.thresholds(cell.initial_state(1)).detach().abs().max().clamp(min=1.0)
    distance = threshold * torch.linspace(-REACH, REACH, 20_001, **cell.dtype_and_device)
    bad = distance[surrogate_slope(membrane, distance).isfinite().logical_not() & distance.isfinite()]
    below, above = bad[bad < 0], bad[bad > 0]
    return below.max().item() if len(below) else -math.inf, above.min().item() if len(above) else math.inf


def surrogate_slope(membrane: Membrane, distance: Tensor) -> Tensor:
    """The derivative of a surrogate at distances from the threshold (P,), mean over neurons."""
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        v = distance.unsqueeze(1).requires_grad_()
        z = membrane.spike(v)
        if not z.requires_grad:
            return torch.zeros_like(distance)
        ones = torch.ones_like(z)
        (slope,) = torch.autograd.grad(z, v, ones, materialize_grads=True, allow_unused=True)
    return slope.squeeze(1) / z.shape[1]


@dataclass(frozen=True)
class TimeConstant:
    """A quantity of a cell that sets how fast something decays."""

    name: str  # its name on the cell
    decay: float  # factor from step to step, mean over neurons
    fixed: bool  # True if it is a constant, not a parameter
    trained: bool  # True if it is a parameter that takes a gradient
    stuck: float  # share of the neurons whose decay no step of an optimizer moves


def time_constants(cell: Cell) -> tuple[TimeConstant, ...]:
    r"""The time constants of a cell: their decays, and if a gradient and a step can move them.

    Of a time constant tau in steps the decay is :math:`d = e^{-1/\tau}`, and a step of the logarithm that is trained
    moves it by

    .. math:: \frac{\partial d}{\partial \log \tau} = \frac{e^{-1/\tau}}{\tau},

    which vanishes for very long ones (d is 1) and very short ones (d is 0). A decay stored as such moves freely. Those
    that the cell names among its :attr:`neurolsc.Cell.scaled_parameters`.
    """
    found = []
    for scaled in cell.scaled_parameters:
        if scaled.through == "value":
            continue
        owner, name = owner_of(cell, scaled.parameter)
        value = torch.as_tensor(getattr(owner, name)).detach().double()
        decay = torch.exp(-1 / value) if scaled.through == "decay" else value
        moves = decay / value if scaled.through == "decay" else torch.ones_like(value)
        parameter = stored_parameter(owner, name)
        found.append(
            TimeConstant(
                scaled.parameter,
                decay.mean().item(),
                fixed=parameter is None,
                trained=parameter is not None and parameter.requires_grad,
                stuck=(moves < STUCK).double().mean().item(),
            )
        )
    return tuple(found)
