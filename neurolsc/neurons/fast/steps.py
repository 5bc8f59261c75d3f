"""The step of LIF and ALIF in place, and what a run by such steps leaves behind.

Operation by operation these are :func:`neurolsc.neurons.equations.advance`, so that they round
alike. Products with a spike are exact, since it is 0 or 1, whether or not a processor fuses them
with a sum.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neurolsc.neurons.equations import Constants
from neurolsc.neurons.fast.entries import Entries
from neurolsc.neurons.fast.reading import Reading
from neurolsc.neurons.fast.resets import in_place
from neurolsc.neurons.reset import Reset

ALIGNMENT = 64
"""Bytes of a cache line, at whose start torch's own memory starts."""


@dataclass(frozen=True)
class Trace:
    """What a forward pass leaves behind for the reverse one.

    Attributes:
        reading: the input.
        z0: spikes before the first step (B, n).
        z: spikes after each step (T, B, n).
        events: the spikes after each step, row after row (T * B, n); None where they are many, or
            nobody has looked for them.
        v: voltage before the first step and after each (T + 1, B, n), or with recomputation before
            each block of steps.
        theta: threshold before each block of steps; None where it is fixed.
        ends: the samples that end, by the number of steps after which they do.
        block: steps in a block.
    """

    reading: Reading
    z0: Tensor
    z: Tensor
    events: Entries | None
    v: Tensor
    theta: Tensor | None
    ends: dict[int, Any]
    block: int

    def spikes(self, t: int) -> Tensor:
        """The spikes after t steps (B, n)."""
        return self.z[t - 1] if t else self.z0


def room(like: Tensor, *shape: int) -> Tensor:
    """Memory for a whole run, not set, in the dtype and on the device of a tensor."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    # NumPy asks Linux for huge pages, torch does not: fresh memory then takes a third of the time
    size = math.prod(shape) * like.element_size()
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT // like.element_size()
    # no view, which could not be changed in place where a function returns it
    return like.new_empty(0).set_(torch.from_numpy(memory).untyped_storage(), start, shape)  # type: ignore[call-overload]


class Steps:
    """The steps of a layer in place.

    Args:
        reset: its reset.
        c: its numbers.
        reading: its input.
    """

    def __init__(self, reset: Reset, c: Constants, reading: Reading) -> None:
        self.reset, self.c, self.reading = in_place(reset), c, reading
        self.w_in_rows = c.w_in.T if reading.events is None else c.w_in.T.contiguous()
        self.recurrent = c.w_rec.new_empty(reading.batch, len(c.w_rec))

    def drive(self, a: int, b: int) -> Tensor:
        """The projected input of steps a to b (b - a, B, n)."""
        return self.reading.drive(a, b, self.c.w_in, self.w_in_rows)

    def events(self, z: Tensor) -> Entries | None:
        """The events of spikes (B, n), if the steps go by them."""
        return None

    def run(
        self, v: Tensor, theta: Tensor | None, before: Tensor, events: Entries | None, drive: Tensor, z: Tensor
    ) -> Entries | None:
        """Some steps.

        Args:
            v: the voltages before and after each step (steps + 1, B, n), of which the first is
                there; or one that is moved on (1, B, n).
            theta: the thresholds likewise; None where they are fixed.
            before: the spikes before the first step (B, n).
            events: their events, if the steps go by them.
            drive: the projected input (steps, B, n).
            z: where the spikes go (steps, B, n).

        Returns:
            The events of z, if the steps go by them.
        """
        c, last = self.c, before
        for t, fired in enumerate(z):
            now, then, limit = _at(v, t), _at(v, t + 1), c.threshold if theta is None else _at(theta, t)
            torch.mm(last, c.w_rec.T, out=self.recurrent)
            torch.mul(now, c.decay_v, out=then)
            self.reset.carry_(then, last, limit if c.threshold is None else c.threshold)  # type: ignore[arg-type]
            then.add_(drive[t]).add_(self.recurrent).add_(c.b_v)
            if theta is not None:
                low = _at(theta, t + 1)
                self._threshold(limit, low, last)  # type: ignore[arg-type]
                limit = low
            last = torch.gt(then, limit, out=fired)  # type: ignore[arg-type]
        return None

    def thresholds(self, theta: Tensor, before: Tensor, z: Tensor) -> None:
        """The thresholds after steps (steps + 1, B, n) from the first of them.

        Args:
            theta: these.
            before: the spikes before the first step (B, n).
            z: the spikes after the others (steps - 1, B, n).
        """
        for now, then, fired in zip(theta, theta[1:], (before, *z), strict=False):
            self._threshold(now, then, fired)

    def _threshold(self, now: Tensor, then: Tensor, z: Tensor) -> None:
        torch.mul(now, self.c.decay_theta, out=then).add_(self.c.b_theta)  # type: ignore[arg-type]
        then.addcmul_(self.c.adaptation, z)  # type: ignore[arg-type]


def _at(states: Tensor, t: int) -> Tensor:
    """The state after t steps, or the only one there is."""
    return states[t if len(states) > 1 else 0]


class Replay:
    """The states along a run, block by block: what was kept, and the steps between run again.

    Args:
        steps: the steps.
        trace: the run.
    """

    def __init__(self, steps: Steps, trace: Trace) -> None:
        self.trace, self.steps = trace, steps
        self.whole = len(trace.v) == len(trace.z) + 1
        room = (min(trace.block, len(trace.z)) + 1, *trace.z0.shape)
        self.v = None if self.whole else trace.v.new_empty(room)
        self.theta = None if trace.theta is None else trace.theta.new_empty(room)

    def block(self, a: int, b: int) -> tuple[Tensor, Tensor]:
        """v and theta after a to b steps, each (b - a + 1, B, n); theta (n,) where it is fixed."""
        trace, steps, before = self.trace, self.steps, self.trace.spikes(a)
        v = trace.v[a : b + 1] if self.v is None else self.v[: b - a + 1]
        theta = None if self.theta is None else self.theta[: b - a + 1]
        if theta is not None:
            theta[0] = trace.theta[a // trace.block]  # type: ignore[index]
        if self.v is not None:
            v[0] = trace.v[a // trace.block]
            steps.run(v, theta, before, steps.events(before), steps.drive(a, b), torch.empty_like(v[1:]))
        elif theta is not None:
            steps.thresholds(theta, before, trace.z[a : b - 1])
        return v, steps.c.threshold if theta is None else theta  # type: ignore[return-value]

    def first(self) -> tuple[Tensor, Tensor]:
        """v and theta before the first step (B, n); theta (n,) where it is fixed."""
        theta = self.steps.c.threshold if self.trace.theta is None else self.trace.theta[0]
        return self.trace.v[0], theta  # type: ignore[return-value]
