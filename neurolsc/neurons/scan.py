"""Many steps of a spiking layer at once, as one function with a hand-written derivative.

The equations are those of :func:`neurolsc.neurons.equations.advance`, operation by operation. The loop multiplies the input
of several steps at once, adds rows instead of multiplying where few neurons fire (:mod:`neurolsc.neurons.events`), writes in
place, and keeps of a step only v, theta and z, from which :mod:`neurolsc.neurons.reverse` goes back. On a GPU one kernel takes
all steps (:mod:`neurolsc.neurons.fused`). A second derivative is that of the plain step.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from neurolsc.neurons import fused
from neurolsc.neurons.equations import Constants, advance
from neurolsc.neurons.events import Events, by_events, events_of
from neurolsc.neurons.reading import Reading, block_length
from neurolsc.neurons.reset import Reset, ZeroReset
from neurolsc.neurons.reverse import Trace, reverse
from neurolsc.surrogate import Surrogate


@dataclass(frozen=True)
class Layer:
    """What a layer is besides its numbers, and which of its states are wanted.

    Attributes:
        spike: its surrogate.
        reset: its reset.
        lengths: steps after which the state of each sample is wanted (B,); None: all.
        keep: keep what the reverse pass needs.
    """

    spike: Surrogate
    reset: Reset
    lengths: Tensor | None
    keep: bool


def scan(
    layer: Layer, c: Constants, x: Tensor, first: Tensor | None, z: Tensor, v: Tensor, theta: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run a layer over time.

    Args:
        layer: the layer.
        c: its numbers.
        x: input (T, B, n_in).
        first: what the first step reads (B, n_in), x then being read one step late; or None.
        z: spikes before the first step (B, n_hidden).
        v: voltage before the first step (B, n_hidden).
        theta: threshold before the first step; None where it is fixed.

    Returns:
        The spikes (T, B, n_hidden), and v and theta at the end.
    """
    return _Scan.apply(layer, x, first, z, v, theta, *c, *layer.spike.parameters())  # type: ignore[return-value]


class _Scan(torch.autograd.Function):
    """Inputs: the layer; x, first, z, v and theta; the constants; the surrogate's parameters."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, *tensors: Tensor | None) -> Any:
        (x, first, z0, v0, theta0), c = tensors[:5], Constants(*tensors[5:13])  # type: ignore[arg-type]
        assert x is not None
        assert z0 is not None
        assert v0 is not None
        reading, ctx.fused = Reading(x, first, c.w_in), fused.suits(c, z0, v0, theta0)
        if ctx.fused:
            trace = fused.forward(layer.reset, layer.lengths, layer.keep, c, reading, z0, v0, theta0)
        else:
            trace = forward(layer, c, reading, z0, v0, theta0)
        if layer.keep:
            ctx.layer, ctx.reading, ctx.events, ctx.ends = layer, trace.reading, trace.events, trace.ends
            ctx.save_for_backward(*tensors, trace.z, trace.v, trace.theta)
            ctx.set_materialize_grads(False)
        return trace.z, *trace.end

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        *tensors, z, v, theta = ctx.saved_tensors
        needed = ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return None, *_differentiable(ctx.layer, tensors, needed, gradients)
        trace = Trace(ctx.reading, ctx.events, tensors[2], z, v, theta, ctx.ends, ())
        layer, c = ctx.layer, Constants(*tensors[5:13])
        if ctx.fused:
            return None, *fused.reverse(layer.spike, layer.reset, layer.lengths, c, trace, needed, gradients)
        return None, *reverse(layer.spike, layer.reset, c, trace, needed, gradients)


def forward(layer: Layer, c: Constants, reading: Reading, z0: Tensor, v0: Tensor, theta0: Tensor | None) -> Trace:
    """The loop over time."""
    steps, (batch, hidden) = reading.steps, v0.shape
    z = v0.new_empty(steps, batch, hidden)
    v = _room(v0, steps, layer.keep)
    theta = None if theta0 is None else _room(theta0.to(v0), steps, layer.keep)
    spikes = z.unbind(0)
    voltages = v.unbind(0) if layer.keep else [v[0]] * (steps + 1)
    fixed = theta is None
    thresholds = [c.threshold] * (steps + 1) if fixed else theta.unbind(0) if layer.keep else [theta[0]] * (steps + 1)
    b_v = c.b_v if v.device.type != "cpu" or bool(c.b_v.any()) else None
    sparse = by_events(c.w_rec, batch, hidden, hidden)
    w_rec_t = c.w_rec.T.contiguous() if sparse else c.w_rec.T
    w_in_t = c.w_in.T if reading.events is None else c.w_in.T.contiguous()
    events: list[Events | None] = []
    ends, end = _ends(layer.lengths, steps), [v0.clone(), None if theta0 is None else theta[0].clone()]  # type: ignore[index]
    block = block_length(batch)
    recurrent, last = torch.empty_like(v0), z0
    drive: tuple[Tensor, ...] = ()
    for t in range(steps):
        if t % block == 0:
            drive = reading.drive(t, min(t + block, steps), c.w_in, w_in_t).unbind(0)
        now, then, subtracted = voltages[t], voltages[t + 1], thresholds[t] if c.threshold is None else c.threshold
        here = None
        if sparse:
            fired = last.numpy() != 0 if t == 0 else np.greater(now.numpy(), thresholds[t].numpy())  # type: ignore[union-attr]
            here = events_of(fired)
        recurrent = here.times(w_rec_t, 0, batch) if here else torch.mm(last, w_rec_t, out=recurrent)
        events.append(here)
        torch.mul(now, c.decay_v, out=then)
        if isinstance(layer.reset, ZeroReset):
            then.addcmul_(then, last, value=-1)
        else:
            then.addcmul_(subtracted, last, value=-1)  # exact, as a spike is 0 or 1, fused or not
        then.add_(drive[t % block]).add_(recurrent)
        if b_v is not None:
            then.add_(b_v)
        if not fixed:
            torch.mul(thresholds[t], c.decay_theta, out=thresholds[t + 1]).add_(c.b_theta).addcmul_(c.adaptation, last)
        last = torch.gt(then, thresholds[t + 1], out=spikes[t])
        if t + 1 in ends:
            which = ends[t + 1]
            end[0][which] = then[which]  # type: ignore[index]
            if not fixed:
                end[1][which] = thresholds[t + 1][which]  # type: ignore[index]
    return Trace(reading, events, z0, z, v, theta, ends, tuple(end))


def _room(start: Tensor, steps: int, keep: bool) -> Tensor:
    """Room for the values after every step, or for those of one step, and the start in its first place."""
    room = start.new_empty(steps + 1 if keep else 1, *start.shape)
    room[0] = start
    return room


def _ends(lengths: Tensor | None, steps: int) -> dict[int, Any]:
    """The samples whose state is wanted after a number of steps."""
    if lengths is None:
        return {steps: slice(None)}
    return {int(n): (lengths == n).nonzero().squeeze(1) for n in lengths.unique()}


def _differentiable(layer: Layer, tensors: list[Any], needed: Any, gradients: Any) -> list[Tensor | None]:
    """The gradients as functions that can be differentiated again, by way of the plain step."""
    with torch.enable_grad():
        # aliases: one input may depend on another, and a gradient must not flow between them here
        inputs = [None if i is None else i.view_as(i) if need else i for i, need in zip(tensors, needed, strict=True)]
        outputs = _plain(layer, inputs)
        known = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
        wanted = [i for i, need in zip(inputs, needed, strict=True) if need]
        found = iter(
            torch.autograd.grad(
                [o for o, _ in known], wanted, [g for _, g in known], create_graph=True, allow_unused=True
            )
        )
    return [next(found) if need else None for need in needed]


def _plain(layer: Layer, inputs: list[Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same run by plain steps."""
    (x, first, z, v, theta), c = inputs[:5], Constants(*inputs[5:13])
    parameters = dict(zip(dict(layer.spike.named_parameters()), inputs[13:], strict=True))
    frames = x.to_dense().to(v.dtype).unbind(0) if x.is_sparse else x.to(v.dtype).unbind(0)
    frames = frames if first is None else (first.to(v.dtype), *frames[:-1])
    spikes, ends = [], _ends(layer.lengths, len(frames))
    v_end, theta_end = v, theta
    for t, frame in enumerate(frames, start=1):
        v, theta = advance(layer.reset, c, frame, z, v, theta)
        distance = v - (c.threshold if theta is None else theta)
        z = functional_call(layer.spike, parameters, (distance,))
        spikes.append(z)
        if t in ends:
            now = torch.zeros(len(v), 1, dtype=torch.bool, device=v.device)
            now[ends[t]] = True
            v_end = torch.where(now, v, v_end)
            theta_end = None if theta is None else torch.where(now, theta, theta_end)
    return torch.stack(spikes), v_end, theta_end
