r"""Loihi's integer arithmetic, step by step: what an exported network computes on the chip, spike for spike.

.. math::
    \mathrm{dec}(x, k) &= \mathrm{sign}(x) \lfloor |x| (4096 - k) / 4096 \rfloor \\
    \text{CUBA:}\quad u &= \mathrm{wrap}(\mathrm{dec}(u, k_u) + 64\,\mathit{in}), \quad
        v = \mathrm{clip}(\mathrm{dec}(v, k_v) + u + 64\,b), \quad z = [v > 64\,\vartheta], \quad v = 0 \text{ where } z \\
    \text{ALIF:}\quad v &= \mathrm{clip}(\mathrm{dec}(v, k_v) + 64\,\mathit{in} + b\,2^{e}), \quad
        \vartheta = \mathrm{dec}(\vartheta - \vartheta_0, k_\vartheta) + \vartheta_0, \quad z = [v \ge \vartheta], \quad
        \vartheta \mathrel{+}= 64\,\beta z

A state has 64 units per unit of a weight; *in* are the weights of last step's spikes. The integers are held in float64, in which
every one that occurs is exact (all stay below 2^53), and each rounding lets gradients pass, so that fine-tuning runs the very same
equations.

Source: Lava 0.10.0, ``proc/lif/models.py`` and ``proc/atrlif/models.py`` (models tagged ``fixed_pt``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = [
    "AlifLayer",
    "AlifState",
    "CubaLayer",
    "CubaState",
    "Layer",
    "Moment",
    "Seen",
    "clip",
    "decay",
    "moments",
    "wrap",
]

UNIT = 64
"""state units per weight unit"""
LIMIT = 2**23
"""a state stays below this in modulus"""

Spike = Callable[[Tensor], Tensor]
"""1 where its argument is positive, else 0; a surrogate has a derivative besides."""


class CubaState(NamedTuple):
    """State of a CUBA layer after a step, each (B, M)."""

    u: Tensor
    """current"""
    v: Tensor
    """voltage, 0 where the neuron has just fired"""


class AlifState(NamedTuple):
    """State of an ALIF layer after a step, each (B, M)."""

    v: Tensor
    """voltage"""
    theta: Tensor
    """threshold, raised already where the neuron has just fired"""


class Seen(NamedTuple):
    """What a step computed before it wrapped, clipped or fired, each (B, M)."""

    drive: Tensor
    """input of the step in weight units"""
    u: Tensor | None
    """current; an ALIF layer keeps none"""
    v: Tensor
    """voltage"""
    theta: Tensor | None
    """threshold that v was compared with; None where it is fixed"""
    distance: Tensor
    """v minus the threshold"""


class Moment(NamedTuple):
    """One step of all layers, first layer first."""

    spikes: tuple[Tensor, ...]
    """(B, M) each"""
    states: tuple[CubaState | AlifState, ...]
    """after the step"""
    seen: tuple[Seen, ...]
    """inside the step"""


@dataclass(frozen=True)
class CubaLayer:
    """LIF neurons whose voltage starts again from zero; with v_decay 4095 the current is the voltage of a LIF instead.

    Every tensor is float64 and holds integers.
    """

    weight: Tensor
    """(M, N)"""
    weight_rec: Tensor | None
    """(M, M); None without recurrence"""
    bias: Tensor
    """(M,), weight units, per step"""
    i_decay: Tensor
    """(M,), 1 to 4096"""
    v_decay: Tensor
    """(M,), 0 to 4095"""
    threshold: Tensor
    """(M,), weight units"""
    unit: Tensor
    """(M,), state units per unit of the float network: what a surrogate's argument is measured in"""

    @property
    def size(self) -> int:
        """Number of neurons M."""
        return self.weight.shape[0]

    def initial_state(self, batch: int) -> CubaState:
        """u = v = 0."""
        zero = self.weight.new_zeros(batch, self.size)
        return CubaState(zero, zero)

    def drive(self, below: Tensor, own: Tensor) -> Tensor:
        """Input of the next step, from the spikes below (B, N) and the layer's own (B, M)."""
        drive = below @ self.weight.T
        return drive if self.weight_rec is None else drive + own @ self.weight_rec.T

    def step(self, drive: Tensor, state: CubaState, spike: Spike) -> tuple[Tensor, CubaState, Seen]:
        """One time step: spikes, the state after it, and what it computed on the way."""
        raw_u = decay(state.u, self.i_decay) + UNIT * drive
        u = wrap(raw_u)
        raw_v = decay(state.v, self.v_decay) + u + UNIT * self.bias
        v = clip(raw_v)
        distance = v - UNIT * self.threshold
        z = spike(distance / self.unit)
        return z, CubaState(u, v * (1 - z.detach())), Seen(drive, raw_u, raw_v, None, distance)


@dataclass(frozen=True)
class AlifLayer:
    """LIF neurons whose threshold rises at their own spikes, and from whose voltage a spike takes a fixed amount.

    Every tensor is float64 and holds integers. Weights, bias and reset have an exponent each: value = mantissa 2^exponent.
    """

    weight: Tensor
    """(M, N), mantissas"""
    weight_rec: Tensor
    """(M, M), mantissas"""
    bias: Tensor
    """(M,), mantissas of state units, per step"""
    v_decay: Tensor
    """(M,), 0 to 4095"""
    theta_decay: Tensor
    """(M,), 1 to 4095"""
    threshold: Tensor
    """(M,), at rest, weight units"""
    theta_step: Tensor
    """(M,), rise at a spike, weight units; the same for all neurons"""
    reset: Tensor
    """(M,), mantissas of what a spike takes from the voltage, weight units"""
    weight_exp: int
    weight_rec_exp: int
    bias_exp: int
    reset_exp: int
    unit: Tensor
    """(M,), state units per unit of the float network"""

    @property
    def size(self) -> int:
        """Number of neurons M."""
        return self.weight.shape[0]

    def initial_state(self, batch: int) -> AlifState:
        """v = 0, the threshold at rest."""
        theta = (UNIT * self.threshold).expand(batch, -1)
        return AlifState(torch.zeros_like(theta), theta)

    def drive(self, below: Tensor, own: Tensor) -> Tensor:
        """Input of the next step, from the spikes below (B, N) and the layer's own (B, M)."""
        return (
            below @ self.weight.T * 2**self.weight_exp
            + own @ self.weight_rec.T * 2**self.weight_rec_exp
            - own.detach() * self.reset * 2**self.reset_exp
        )

    def step(self, drive: Tensor, state: AlifState, spike: Spike) -> tuple[Tensor, AlifState, Seen]:
        """One time step: spikes, the state after it, and what it computed on the way."""
        raw_v = decay(state.v, self.v_decay) + UNIT * drive + self.bias * 2**self.bias_exp
        v = clip(raw_v)
        rest = UNIT * self.threshold
        theta = decay(state.theta - rest, self.theta_decay) + rest
        distance = v - theta
        z = spike((distance + 0.5) / self.unit)  # fires at equality, too: between integers that is a half more
        return z, AlifState(v, theta + UNIT * self.theta_step * z), Seen(drive, None, raw_v, theta, distance)


Layer = CubaLayer | AlifLayer


def decay(x: Tensor, k: Tensor) -> Tensor:
    """What is left of x: x (4096 - k) / 4096, rounded towards zero.

    Example:
        >>> decay(torch.tensor([1000.0, -1000.0, 1.0]), torch.tensor(2048.0)).tolist()
        [500.0, -500.0, 0.0]
    """
    exact = x * (4096 - k) / 4096
    return exact + (exact.trunc() - exact).detach()


def wrap(u: Tensor) -> Tensor:
    """U in 24 bits: above 2^23 it goes on from below, and at -2^23 or less from above.

    Example:
        >>> wrap(torch.tensor([2.0**23, 2.0**23 + 1, -(2.0**23)])).tolist()
        [8388608.0, -8388607.0, 8388608.0]
    """
    return u - 2 * LIMIT * (u.detach() > LIMIT) + 2 * LIMIT * (u.detach() <= -LIMIT)


def clip(v: Tensor) -> Tensor:
    """V kept below 2^23 in modulus."""
    return v.clamp(1 - LIMIT, LIMIT - 1)


def fires(distance: Tensor) -> Tensor:
    """The spike of the reference: 1 where the distance is positive."""
    return (distance > 0).to(distance.dtype)


def moments(layers: Sequence[Layer], x: Tensor, spikes: Sequence[Spike] | None = None) -> Iterator[Moment]:
    """Run layers over time.

    Args:
        layers: first layer first.
        x: input spikes (T, B, N), float64.
        spikes: one per layer; by default :func:`fires`.

    Yields:
        One :class:`Moment` per step. Every layer reads the layer below, and the first one the input, one step late.
    """
    spikes = spikes or [fires] * len(layers)
    batch = x.shape[1]
    states: list[CubaState | AlifState] = [layer.initial_state(batch) for layer in layers]
    drives = [layer.weight.new_zeros(batch, layer.size) for layer in layers]
    for frame in x.unbind(0):
        out: list[Tensor] = []
        seen: list[Seen] = []
        for i, (layer, spike) in enumerate(zip(layers, spikes, strict=True)):
            z, states[i], looked = layer.step(drives[i], states[i], spike)  # type: ignore[arg-type]
            out.append(z)
            seen.append(looked)
        yield Moment(tuple(out), tuple(states), tuple(seen))
        drives = [layer.drive(below, own) for layer, below, own in zip(layers, [frame, *out[:-1]], out, strict=True)]
