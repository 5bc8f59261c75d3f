"""The forward pass of the loop.

It multiplies the input of several steps at once, adds rows instead of multiplying where few neurons
fire, and writes in place. Of a step it keeps the voltage and the spikes, or with recomputation the
spikes alone, and every few steps the whole state.
"""

from collections.abc import Container, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from neurolsc.neurons.fast import on_cpu
from neurolsc.neurons.fast.chunks import block_length
from neurolsc.neurons.fast.entries import Entries, stacked
from neurolsc.neurons.fast.inputs import Inputs, Plan, end_samples
from neurolsc.neurons.fast.reading import Reading
from neurolsc.neurons.fast.steps import Trace, room

State = tuple[Tensor, Tensor | None]
"""v and theta, each (B, n); None where the threshold is fixed."""


def forward(plan: Plan, inputs: Inputs, reading: Reading) -> tuple[Trace, State, Tensor]:
    """All steps.

    Args:
        plan: what the run is.
        inputs: its tensors.
        reading: the input, looked through for events.

    Returns:
        What the pass leaves behind, v and theta at the end, and a number that is finite as long as
        a surrogate that is not ours is where it is asked.
    """
    z0, v0, theta0, c = inputs.z, inputs.v, inputs.theta, inputs.c
    steps, block = reading.steps, block_length(reading.batch)
    step, starts = on_cpu.steps_of(plan.reset, c, reading), range(0, steps, block)
    z = room(v0, steps, *v0.shape)
    rows = {"nothing": 0, "some": len(starts), "all": steps + 1}[plan.keep]
    kept_v, whole = room(v0, rows, *v0.shape), plan.keep == "all"
    kept_theta = None if theta0 is None else v0.new_empty(0 if plan.keep == "nothing" else len(starts), *v0.shape)
    v, theta = _one(v0), None if theta0 is None else _one(theta0)
    ends, end = end_samples(plan.lengths, steps), (v[0].clone(), None if theta is None else theta[0].clone())
    last, smooth, known = z0, v0.new_zeros(()), [step.events(z0)]
    for a in starts:
        stop = min(a + block, steps)
        if plan.keep != "nothing":
            kept_v[a if whole else a // block] = v[0]
            if kept_theta is not None:
                kept_theta[a // block] = theta[0]  # type: ignore[index]
        drive = step.drive(a, stop)
        for i, j in pairwise(_stops(a, stop, ends if plan.known else range(steps))):
            v = kept_v[i : j + 1] if whole else v
            known.append(step.run(v, theta, last, known[-1], drive[i - a : j - a], z[i:j]))
            v, last = v[-1:], z[j - 1]
            if not plan.known:
                limit: Tensor = c.threshold if theta is None else theta[0]  # type: ignore[assignment]
                smooth = smooth + plan.spike.primitive(v[0] - limit).sum()
            if j in ends:
                _write(end, ends[j], v, theta)
    return Trace(reading, z0, z, _few(known[1:]), kept_v, kept_theta, ends, block), end, smooth


def _one(state: Tensor) -> Tensor:
    """A copy of a state, to be moved on (1, B, n)."""
    return state.clone(memory_format=torch.contiguous_format).unsqueeze(0)


def _stops(a: int, b: int, where: Container[int]) -> list[int]:
    """The numbers of steps from a to b at which to stop, among them a and b."""
    return [a, *(t for t in range(a + 1, b) if t in where), b]


def _few(parts: Sequence[Entries | None]) -> Entries | None:
    """The events of all steps, where it pays to know them."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    events = stacked(known)
    return events if events.few else None


def _write(end: State, which: slice | Tensor, v: Tensor, theta: Tensor | None) -> None:
    """Put the state of some samples among those at the end."""
    for kept, now in zip(end, (v, theta), strict=True):
        if kept is not None and now is not None:
            kept[which] = now[0][which]
