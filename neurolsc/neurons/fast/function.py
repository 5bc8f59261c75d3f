"""Many steps of a layer at once, as one function of autograd with a hand-written derivative.

Whatever may change between the two passes is saved by autograd, so that torch says so. A second
derivative, and one for several gradients at once, is that of plain steps; so is one that is not
finite, since plain steps multiply zeros with it that the loop leaves out.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from neurolsc.neurons.fast import fused
from neurolsc.neurons.fast.chunks import block_length
from neurolsc.neurons.fast.entries import Entries, still
from neurolsc.neurons.fast.forward import forward
from neurolsc.neurons.fast.inputs import Inputs, Plan, pack, unpack
from neurolsc.neurons.fast.plain import plain_gradients
from neurolsc.neurons.fast.reading import Reading
from neurolsc.neurons.fast.reverse import reverse
from neurolsc.neurons.fast.steps import Trace
from neurolsc.neurons.fast.watched import watched

_SENT = WeakTensorKeyDictionary()
"""the events of spikes that a layer sent, as long as these are there"""


def scan(plan: Plan, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Run a layer over time.

    Args:
        plan: what the run is.
        inputs: its tensors.

    Returns:
        The spikes (T, B, n_hidden), v and theta at the end, and whether all is finite that plain
        steps would make NaN of: else the rest means nothing.
    """
    return _Scan.apply(plan, *pack(inputs))  # type: ignore[return-value]


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, *flat: Any) -> Any:
        inputs = unpack(flat)
        reading = Reading(inputs.x, inputs.first, inputs.c.w_in, _sent(inputs.x))
        trace, end, smooth = (fused.forward if plan.kernels else forward)(plan, inputs, reading)
        numbers = [leaf.sum() for leaf in (*end, *inputs.c) if leaf is not None]
        finite = torch.stack([*numbers, smooth.to(trace.z.dtype)]).isfinite().all()
        ctx.mark_non_differentiable(finite)
        if trace.events is not None:
            _SENT[trace.z] = trace.events
        if plan.keep != "nothing":
            ctx.plan, ctx.reading, ctx.events, ctx.ends = plan, trace.reading, trace.events, trace.ends
            ctx.save_for_backward(trace.z, trace.v, trace.theta, *flat)
            ctx.set_materialize_grads(False)
        return trace.z, *end, finite

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        z, v, theta, *flat = ctx.saved_tensors
        _, *wanted = ctx.needs_input_grad
        plan, inputs, needed, given = ctx.plan, unpack(flat), unpack(wanted), gradients[:-1]
        if torch.is_grad_enabled() or watched(plan.spike, *given):
            return None, *pack(plain_gradients(plan, inputs, needed, given))
        trace = Trace(ctx.reading, inputs.z, z, ctx.events, v, theta, ctx.ends, block_length(z.shape[1]))
        found = (fused.reverse if plan.kernels else reverse)(plan, inputs, trace, needed, given)
        if not bool(found.v.sum().isfinite()):
            found = plain_gradients(plan, inputs, needed, given)
        return None, *(g if wants else None for g, wants in zip(pack(found), wanted, strict=True))


def _sent(x: Tensor) -> Entries | None:
    """The events of an input that is what a layer sent, and has not changed since."""
    known = _SENT.get(x)
    return known if known is not None and still(known, x) else None
