"""The forward pass of the loop.

It multiplies the input of several steps at once, adds rows instead of multiplying where few neurons
fire, and writes in place. Of a step it keeps the voltage and the spikes, or with recomputation the
spikes alone, and every few steps the whole state.
"""

import torch
from torch import Tensor

from neurolsc.neurons.scan.chunks import block_length
from neurolsc.neurons.scan.entries import events_over
from neurolsc.neurons.scan.inputs import Inputs, Plan, end_samples
from neurolsc.neurons.scan.reading import Reading
from neurolsc.neurons.scan.steps import Steps, Trace, room

Ends = tuple[Tensor, Tensor | None]
"""v and theta at the end; None where the threshold is fixed."""


def forward(plan: Plan, inputs: Inputs, reading: Reading) -> tuple[Trace, Ends, Tensor]:
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
    step, starts = Steps(plan.reset, c, reading), range(0, steps, block)
    z = room(v0, steps, *v0.shape)
    spikes, events, drive = z.unbind(0), [step.first_events(z0)], ()
    rows = {"nothing": 0, "some": len(starts), "all": steps + 1}[plan.keep]
    kept_v = room(v0, rows, *v0.shape)
    kept_theta = None if theta0 is None else v0.new_empty(0 if plan.keep == "nothing" else len(starts), *v0.shape)
    v, last = v0.clone(), z0
    theta = None if theta0 is None else theta0.clone(memory_format=torch.contiguous_format)
    if plan.keep == "all":
        kept_v[0] = v0
    ends, end = end_samples(plan.lengths, steps), (v0.clone(), None if theta0 is None else theta0.clone())
    smooth = v0.new_zeros(())
    for t in range(steps):
        if t % block == 0:
            drive = step.drive(t, min(t + block, steps))
            if plan.keep == "some":
                kept_v[t // block] = v
            if plan.keep != "nothing" and kept_theta is not None:
                kept_theta[t // block] = theta  # type: ignore[assignment]
        limit: Tensor = c.threshold if theta is None else theta  # type: ignore[assignment]
        then = kept_v[t + 1] if plan.keep == "all" else v
        step.voltage(v, then, limit, last, events[t], drive[t % block])
        if theta is not None:
            step.threshold(theta, theta, last)
        v, last = then, torch.gt(then, limit, out=spikes[t])
        events.append(step.events(v, limit))
        if not plan.known:
            smooth = smooth + plan.spike.primitive(v - limit).sum()
        if t + 1 in ends:
            _write(end, ends[t + 1], v, theta)
    known = events_over(events[1:], z) if step.sparse else None
    return Trace(reading, z0, z, known, kept_v, kept_theta, ends, block), end, smooth


def _write(end: Ends, which: slice | Tensor, v: Tensor, theta: Tensor | None) -> None:
    """Put the state of some samples among those at the end."""
    for kept, now in zip(end, (v, theta), strict=True):
        if kept is not None and now is not None:
            kept[which] = now[which]
