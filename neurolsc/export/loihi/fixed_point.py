r"""Loihi's integer arithmetic, step by step: what an exported network computes, spike for spike.

.. math::
    \mathrm{dec}(x, k) = \mathrm{sign}(x) \lfloor |x| (4096 - k) / 4096 \rfloor

is what a decay of k leaves of a state. The equations of the two kinds of layers are in
:mod:`neurolsc.export.loihi.cuba` and :mod:`neurolsc.export.loihi.atrlif`. A state has 64 units per
unit of a weight; the input of a step are the weights of last step's spikes. The integers are held
in float64, in which every one that occurs is exact (all stay below 2^53), and each rounding lets
gradients pass, so that fine-tuning runs the very same equations.

Source: Lava 0.10.0, ``proc/lif/models.py`` and ``proc/atrlif/models.py`` (models tagged
``fixed_pt``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

__all__ = ["IntegerLayer", "IntegerMoment", "Seen", "clip", "decay", "moments", "spikes_of", "wrap"]

UNIT = 64
"""state units per weight unit"""
LIMIT = 2**23
"""a state stays below this in modulus"""

Spike = Callable[[Tensor], Tensor]
"""1 where its argument is positive, else 0; a surrogate has a derivative besides."""


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


class IntegerMoment(NamedTuple):
    """One step of all layers, first layer first."""

    spikes: tuple[Tensor, ...]
    """(B, M) each; of an integrator the voltages"""
    states: tuple[Any, ...]
    """after the step: a named tuple of tensors (B, M) each"""
    seen: tuple[Seen, ...]
    """inside the step"""


@dataclass(frozen=True, kw_only=True)
class IntegerLayer(ABC):
    """A layer of one kind of neurons. Every tensor is float64 and holds integers."""

    kind: ClassVar[str]
    """what files call its neurons"""

    weight: Tensor
    """(M, N), mantissas: a value is its mantissa times 2 to the exponent"""
    weight_rec: Tensor | None
    """(M, M), mantissas; None without recurrence"""
    bias: Tensor
    """(M,), per step"""
    v_decay: Tensor
    """(M,), 0 to 4095"""
    threshold: Tensor
    """(M,), at rest, weight units"""
    unit: Tensor
    """(M,), state units per unit of the float network, in which a surrogate is asked"""
    weight_exp: int = 0
    weight_rec_exp: int = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.weight.shape[1]}, {self.size})"

    @property
    def size(self) -> int:
        """Number of neurons M."""
        return self.weight.shape[0]

    @property
    @abstractmethod
    def decays(self) -> Tensor:
        """What a neuron's core holds of its decays, (2, M)."""

    @property
    def rise(self) -> int | None:
        """What a spike adds to the threshold, weight units; None where it is fixed."""
        return None

    @property
    def taken(self) -> Tensor | None:
        """What a spike takes from the voltage (M,), weight units; None if not rounded."""
        return None

    @abstractmethod
    def initial_state(self, batch: int) -> Any:
        """The state at rest."""

    def drive(self, below: Tensor, own: Tensor) -> Tensor:
        """Input of the next step, from the spikes below (B, N) and the layer's own (B, M)."""
        drive = below @ self.weight.T * 2**self.weight_exp
        return drive if self.weight_rec is None else drive + own @ self.weight_rec.T * 2**self.weight_rec_exp

    @abstractmethod
    def step(self, drive: Tensor, state: Any, spike: Spike) -> tuple[Tensor, Any, Seen]:
        """One time step: spikes, the state after it, and what it computed on the way."""

    @abstractmethod
    def entries(self) -> dict[str, Tensor | int]:
        """What a NetX file holds of it besides what all layers have: name -> value."""

    @classmethod
    @abstractmethod
    def from_entries(
        cls, vector: Callable[[str, int, int], Tensor], number: Callable[[str], int], shared: dict[str, Any]
    ) -> "IntegerLayer":
        """Made of a file, the other way round.

        Args:
            vector: name, lowest and highest -> integers (M,).
            number: name -> an exponent.
            shared: the fields that all layers have, without exponents.
        """


def decay(x: Tensor, k: Tensor) -> Tensor:
    """What is left of x: x (4096 - k) / 4096, rounded towards zero.

    Example:
        >>> import torch
        >>> decay(torch.tensor([1000.0, -1000.0, 1.0]), torch.tensor(2048.0)).tolist()
        [500.0, -500.0, 0.0]
    """
    exact = x * (4096 - k) / 4096
    return exact + (exact.trunc() - exact).detach()


def wrap(u: Tensor) -> Tensor:
    """U in 24 bits: above 2^23 it goes on from below, and at -2^23 or less from above.

    Example:
        >>> import torch
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


def moments(
    layers: Sequence[IntegerLayer], x: Tensor, spikes: Sequence[Spike] | None = None
) -> Iterator[IntegerMoment]:
    """Run layers over time.

    Args:
        layers: first layer first.
        x: input spikes (T, B, N), float64.
        spikes: one per layer; by default :func:`fires`.

    Yields:
        One :class:`IntegerMoment` per step. Every layer reads the layer below, and the first one
        the input, one step late.
    """
    spikes = spikes or [fires] * len(layers)
    batch = x.shape[1]
    states = [layer.initial_state(batch) for layer in layers]
    drives = [layer.weight.new_zeros(batch, layer.size) for layer in layers]
    for frame in x.unbind(0):
        made = [layer.step(d, state, f) for layer, d, state, f in zip(layers, drives, states, spikes, strict=True)]
        out, states, seen = ([*each] for each in zip(*made, strict=True))
        yield IntegerMoment(tuple(out), tuple(states), tuple(seen))
        drives = [layer.drive(below, own) for layer, below, own in zip(layers, [frame, *out[:-1]], out, strict=True)]


def spikes_of(layers: Sequence[IntegerLayer], x: Tensor, spikes: Sequence[Spike] | None = None) -> list[Tensor]:
    """The spikes of every layer over time, (T, B, M) each; arguments as in :func:`moments`."""
    return [torch.stack(layer) for layer in zip(*(moment.spikes for moment in moments(layers, x, spikes)), strict=True)]
