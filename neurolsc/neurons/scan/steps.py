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
from neurolsc.neurons.reset import Reset
from neurolsc.neurons.scan.entries import Entries, Search, by_events, events_of, many
from neurolsc.neurons.scan.reading import Reading
from neurolsc.neurons.scan.resets import in_place

ALIGNMENT = 64
"""Bytes of a cache line, at whose start torch's own memory starts."""


@dataclass(frozen=True)
class Trace:
    """What a forward pass leaves behind for the reverse one.

    Attributes:
        reading: the input.
        z0: spikes before the first step (B, n).
        z: spikes after each step (T, B, n).
        events: the spikes after each step, row after row (T * B, n); None where they are many.
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
    """The step of a layer in place.

    Args:
        reset: its reset.
        c: its numbers.
        reading: its input.
    """

    def __init__(self, reset: Reset, c: Constants, reading: Reading) -> None:
        hidden = len(c.w_rec)
        self.reset, self.c, self.reading = in_place(reset), c, reading
        self.sparse = by_events(c.w_rec, reading.batch, hidden, hidden)
        self.search = Search(reading.batch, hidden) if self.sparse else None
        # rows are added from contiguous ones; a product keeps the plain step's layout and rounding
        self.w_rec_rows = c.w_rec.T.contiguous() if self.sparse else c.w_rec.T
        self.w_in_rows = c.w_in.T if reading.events is None else c.w_in.T.contiguous()
        self.b_v = c.b_v if c.b_v.device.type != "cpu" or bool(c.b_v.any()) else None
        self.recurrent = c.w_rec.new_empty(reading.batch, hidden)

    def drive(self, a: int, b: int) -> tuple[Tensor, ...]:
        """The projected input of steps a to b."""
        return self.reading.drive(a, b, self.c.w_in, self.w_in_rows).unbind(0)

    def events(self, v: Tensor, theta: Tensor) -> Entries | None:
        """The spikes of a state, where it pays to know them and they are few."""
        if self.search is None:
            return None
        np.greater(v.numpy(), theta.numpy(), out=self.search.matrix)
        return events_of(self.search)

    def first_events(self, z: Tensor) -> Entries | None:
        """Those of spikes that are given, likewise."""
        if self.search is None:
            return None
        np.not_equal(z.numpy(), 0, out=self.search.matrix)
        return events_of(self.search)

    def voltage(
        self, now: Tensor, then: Tensor, theta: Tensor, z: Tensor, events: Entries | None, drive: Tensor
    ) -> None:
        """Write the next voltage, which may be where the last one is."""
        few = events is not None
        recurrent = events.times(self.w_rec_rows) if few else torch.mm(z, self.c.w_rec.T, out=self.recurrent)
        torch.mul(now, self.c.decay_v, out=then)
        self.reset.carry_(then, z, theta if self.c.threshold is None else self.c.threshold)
        then.add_(drive).add_(recurrent)
        if self.b_v is not None:
            then.add_(self.b_v)

    def threshold(self, now: Tensor, then: Tensor, z: Tensor) -> None:
        """Write the next threshold, which may be where the last one is."""
        torch.mul(now, self.c.decay_theta, out=then).add_(self.c.b_theta)  # type: ignore[arg-type]
        then.addcmul_(self.c.adaptation, z)  # type: ignore[arg-type]


class Replay:
    """The states along a run, block by block: what was kept, and the steps between run again.

    Args:
        steps: the steps; None where all voltages were kept.
        trace: the run.
    """

    def __init__(self, reset: Reset, c: Constants, trace: Trace) -> None:
        self.trace, self.c = trace, c
        self.whole = len(trace.v) == len(trace.z) + 1
        self.steps = Steps(reset, c, trace.reading)
        room = (min(trace.block, len(trace.z)) + 1, *trace.z0.shape)
        self.v = None if self.whole else trace.v.new_empty(room)
        self.theta = None if trace.theta is None else trace.theta.new_empty(room)

    def block(self, a: int, b: int) -> tuple[Tensor, Tensor]:
        """v and theta after a to b steps, each (b - a + 1, B, n); theta (n,) where it is fixed."""
        trace, step = self.trace, self.steps
        v = trace.v[a : b + 1] if self.v is None else self.v[: b - a + 1]
        theta = None if self.theta is None else self.theta[: b - a + 1]
        if self.v is not None:
            v[0] = trace.v[a // trace.block]
        if theta is not None:
            theta[0] = trace.theta[a // trace.block]  # type: ignore[index]
        drive = () if self.v is None else step.drive(a, b)
        for i, t in enumerate(range(a, b)):
            z = trace.spikes(t)
            if self.v is not None:
                subtracted = self.c.threshold if theta is None else theta[i]
                step.voltage(v[i], v[i + 1], subtracted, z, self._events(t), drive[i])  # type: ignore[arg-type]
            if theta is not None:
                step.threshold(theta[i], theta[i + 1], z)
        return v, self.c.threshold if theta is None else theta  # type: ignore[return-value]

    def first(self) -> tuple[Tensor, Tensor]:
        """v and theta before the first step (B, n); theta (n,) where it is fixed."""
        theta = self.c.threshold if self.trace.theta is None else self.trace.theta[0]
        return self.trace.v[0], theta  # type: ignore[return-value]

    def _events(self, t: int) -> Entries | None:
        """The spikes after t steps as the run knew them."""
        trace, batch = self.trace, self.trace.z0.shape[0]
        if trace.events is None or not t:
            return self.steps.first_events(trace.spikes(t))
        known = trace.events.rows((t - 1) * batch, t * batch)
        return None if many(len(known.column), trace.z0.numel()) else known
