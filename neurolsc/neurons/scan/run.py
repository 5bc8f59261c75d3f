"""Many steps of a spiking layer at once, as one function with a hand-written derivative.

The loop multiplies the input of several steps at once, adds rows instead of multiplying where few
neurons fire (:mod:`neurolsc.neurons.scan.events`; the layer above is told which do), and writes in
place (:mod:`neurolsc.neurons.scan.steps`). Of a step it keeps the voltage and the spikes, or with
recomputation the spikes alone, and every few steps the whole state;
:mod:`neurolsc.neurons.scan.reverse` goes back from there. On a GPU one kernel takes all steps
(:mod:`neurolsc.neurons.scan.fused`). A second derivative is that of the plain step.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import functional_call

from neurolsc.neurons.equations import Constants, advance
from neurolsc.neurons.reset import Reset
from neurolsc.neurons.scan import fused
from neurolsc.neurons.scan.events import Events, events_over
from neurolsc.neurons.scan.reading import Reading, block_length
from neurolsc.neurons.scan.reverse import reverse
from neurolsc.neurons.scan.steps import Steps, Trace, room
from neurolsc.surrogate import Surrogate


@dataclass(frozen=True)
class Layer:
    """What a layer is besides its numbers, and how it is run.

    Attributes:
        spike: its surrogate.
        reset: its reset.
        lengths: steps after which the state of each sample is wanted (B,); None: all.
        keep: what the reverse pass can build on: nothing, if there will be none; the state every few steps; or every voltage.
        half: the dtype of weights in products under autocast, which the kernels alone can do; None without it.
    """

    spike: Surrogate
    reset: Reset
    lengths: Tensor | None
    keep: Literal["nothing", "some", "all"]
    half: torch.dtype | None = None


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
    def forward(ctx: Any, layer: Layer, *tensors: Any) -> Any:
        (x, first, z, v, theta), c = tensors[:5], Constants(*tensors[5:13])
        reading, ctx.fused = Reading(x, first, c.w_in, _sent(x)), fused.suits(c, z, v, theta)
        if ctx.fused:
            trace, end = fused.forward(layer.reset, layer.lengths, layer.keep, layer.half, c, reading, z, v, theta)
        else:
            trace, end = forward(layer, c, reading, z, v, theta)
        if layer.keep != "nothing":
            ctx.layer, ctx.reading, ctx.events, ctx.ends = layer, trace.reading, trace.events, trace.ends
            ctx.version = trace.z._version
            ctx.save_for_backward(*tensors, trace.z, trace.v, trace.theta)
            ctx.set_materialize_grads(False)
        return trace.z, *end

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        *tensors, z, v, theta = ctx.saved_tensors
        layer, needed = ctx.layer, ctx.needs_input_grad[1:]
        if torch.is_grad_enabled():
            return None, *_differentiable(layer, tensors, needed, gradients)
        c, block = Constants(*tensors[5:13]), 1 if ctx.fused else block_length(z.shape[1])
        trace = Trace(ctx.reading, tensors[2], z, ctx.events, v, theta, ctx.ends, block)
        if not ctx.fused:
            return None, *reverse(layer.spike, layer.reset, c, trace, needed, gradients)
        if layer.keep == "some":
            trace, _ = fused.forward(layer.reset, layer.lengths, "all", layer.half, c, ctx.reading, *tensors[2:5])
        return None, *fused.reverse(layer.spike, layer.reset, layer.lengths, layer.half, c, trace, needed, gradients)


def forward(
    layer: Layer, c: Constants, reading: Reading, z0: Tensor, v0: Tensor, theta0: Tensor | None
) -> tuple[Trace, tuple[Tensor, Tensor | None]]:
    """The loop over time: what it leaves behind, and v and theta at the end."""
    steps, block = reading.steps, block_length(reading.batch)
    step, starts = Steps(layer.reset, c, reading), range(0, steps, block)
    z = room(v0, steps, *v0.shape)
    spikes, events, drive = z.unbind(0), [step.events(z0, torch.zeros(()))], ()
    rows = {"nothing": 0, "some": len(starts), "all": steps + 1}[layer.keep]
    kept_v = room(v0, rows, *v0.shape)
    kept_theta = None if theta0 is None else v0.new_empty(0 if layer.keep == "nothing" else len(starts), *v0.shape)
    v, last = v0.clone(), z0
    theta = None if theta0 is None else theta0.clone(memory_format=torch.contiguous_format)
    if layer.keep == "all":
        kept_v[0] = v0
    ends, end = _ends(layer.lengths, steps), (v0.clone(), None if theta0 is None else theta0.clone())
    for t in range(steps):
        if t % block == 0:
            drive = step.drive(t, min(t + block, steps))
            if layer.keep == "some":
                kept_v[t // block] = v
            if layer.keep != "nothing" and kept_theta is not None:
                kept_theta[t // block] = theta  # type: ignore[assignment]
        limit: Tensor = c.threshold if theta is None else theta  # type: ignore[assignment]
        then = kept_v[t + 1] if layer.keep == "all" else v
        step.voltage(v, then, limit, last, events[t], drive[t % block])
        if theta is not None:
            step.threshold(theta, theta, last)
        v, last = then, torch.gt(then, limit, out=spikes[t])
        events.append(step.events(v, limit))
        if t + 1 in ends:
            which = ends[t + 1]
            end[0][which] = v[which]
            if theta is not None:
                end[1][which] = theta[which]  # type: ignore[index]
    known = events_over(events[1:], z) if step.sparse and layer.keep != "nothing" else None
    return Trace(reading, z0, z, known, kept_v, kept_theta, ends, block), end


def _sent(x: Tensor) -> Events | None:
    """The events of an input that is what a layer sent, known from its run."""
    run: Any = x.grad_fn
    return run.events if getattr(run, "_forward_cls", None) is _Scan and run.version == x._version else None


def _ends(lengths: Tensor | None, steps: int) -> dict[int, Any]:
    """The samples whose state is wanted after a number of steps."""
    if lengths is None:
        return {steps: slice(None)}
    return {int(n): (lengths == n).nonzero().squeeze(1) for n in lengths.unique()}


def _differentiable(layer: Layer, tensors: list[Any], needed: Any, gradients: Any) -> list[Tensor | None]:
    """The gradients as functions that can be differentiated again, by way of the plain step."""
    with torch.enable_grad():
        # aliases: one input may depend on another, and a gradient must not flow between them here
        inputs = [i.view_as(i) if need else i for i, need in zip(tensors, needed, strict=True)]
        pairs = zip(_plain(layer, inputs), gradients, strict=True)
        outputs, known = zip(*((o, g) for o, g in pairs if g is not None), strict=True)
        wanted = [i for i, need in zip(inputs, needed, strict=True) if need]
        found = iter(torch.autograd.grad(outputs, wanted, known, create_graph=True, allow_unused=True))
    return [next(found) if need else None for need in needed]


def _plain(layer: Layer, inputs: list[Any]) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same run by plain steps."""
    (x, first, z, v, theta), c = inputs[:5], Constants(*inputs[5:13])
    parameters = dict(zip(dict(layer.spike.named_parameters()), inputs[13:], strict=True))
    read = (x.to_dense() if x.is_sparse else x).to(v.dtype).unbind(0)
    read = read if first is None else (first.to(v.dtype), *read[:-1])
    spikes, ends, v_end, theta_end = [], _ends(layer.lengths, len(read)), v, theta
    for t, frame in enumerate(read, start=1):
        v, theta = advance(layer.reset, c, frame, z, v, theta)
        limit: Tensor = c.threshold if theta is None else theta  # type: ignore[assignment]
        z = functional_call(layer.spike, parameters, (v - limit,))
        spikes.append(z)
        if t in ends:
            now = torch.zeros(len(v), 1, dtype=torch.bool, device=v.device)
            now[ends[t]] = True
            v_end = torch.where(now, v, v_end)
            theta_end = None if theta is None else torch.where(now, theta, theta_end)  # type: ignore[arg-type]
    return torch.stack(spikes), v_end, theta_end
