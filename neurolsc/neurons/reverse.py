r"""The reverse pass of :mod:`neurolsc.neurons.scan`.

With :math:`g_x = \partial L / \partial x`, s the surrogate's derivative, and D, E and R of :mod:`neurolsc.neurons.reset`,

.. math::
    q[t] &= s[t] \Big(g_z[t] + W_{rec}^T g_v[t+1] + \beta g_\vartheta[t+1] - R[t]\, g_v[t+1]\Big) \\
    g_v[t] &= D[t]\, g_v[t+1] + q[t] \\
    g_\vartheta[t] &= e^{-1/\tau_\vartheta} g_\vartheta[t+1] + E[t]\, g_v[t+1] - q[t]

and the gradients of the constants are sums over time of products with these; those of the weights are made for many steps at
once. The loop holds :math:`-g_\vartheta`, to which q is added.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.neurons.equations import Constants
from neurolsc.neurons.events import Events, stacked
from neurolsc.neurons.reading import Reading, block_length
from neurolsc.neurons.reset import Reset, ZeroReset
from neurolsc.surrogate import Surrogate


class Trace(NamedTuple):
    """What a forward pass leaves behind."""

    reading: Reading
    events: list[Events | None]
    """the spikes that each step read, where they are few"""
    z0: Tensor
    """spikes before the first step (B, n)"""
    z: Tensor
    """spikes after each (T, B, n)"""
    v: Tensor
    """voltage before the first step and after each (T + 1, B, n)"""
    theta: Tensor | None
    """threshold likewise; None where it is fixed"""
    ends: dict[int, Any]
    """samples that end, by the number of steps after which they do"""
    end: tuple[Tensor | None, ...]
    """v and theta where they end (B, n)"""


def reverse(
    spike: Surrogate,
    reset: Reset,
    c: Constants,
    trace: Trace,
    needed: Sequence[bool],
    gradients: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """The gradients of x, first, z0, v0 and theta0, of the constants, and of the surrogate's parameters, where needed.

    Args:
        spike: the surrogate.
        reset: the reset.
        c: the constants.
        trace: the forward pass.
        needed: which of the gradients are.
        gradients: those of the spikes (T, B, n), of v and of theta at the end (B, n); None where zero.
    """
    reading, _, z0, z, v, theta, ends, _ = trace
    (steps, batch, hidden), (gz, gv_end, gtheta_end) = z.shape, gradients
    need = Constants(*needed[5:13])  # type: ignore[arg-type]
    zero, passes = isinstance(reset, ZeroReset), reset.gradient
    feeds = passes and not zero and c.threshold is None  # the reset subtracts the moving threshold
    sums = {name: torch.zeros_like(z0) for name in Constants._fields[2:] if getattr(need, name)}
    w_rec = torch.zeros_like(c.w_rec).T.contiguous() if need.w_rec else None
    w_in = c.w_in.new_zeros(c.w_in.shape[1], hidden) if need.w_in else None
    gx = z.new_zeros(steps, batch, reading.width) if needed[0] or needed[1] else None
    gfirst = z.new_zeros(batch, reading.width) if needed[1] else None
    parameters = [p for p, wanted in zip(spike.parameters(), needed[13:], strict=True) if wanted]
    learnt = [torch.zeros_like(p) for p in parameters]
    block = block_length(batch)
    room = z.new_empty(min(block, steps), batch, hidden)
    back = torch.zeros_like(z0)  # what the next step sends back to the spikes of this one
    gv, gtheta, carried = torch.zeros_like(z0), torch.zeros_like(z0), torch.empty_like(z0)

    def previous(k: int) -> None:
        """From the gradients of state k + 1 those of state k, but for what comes through its spikes: `back`."""
        nonlocal carried
        spikes = z[k - 1] if k else z0
        if "decay_v" in sums:
            torch.mul(gv, v[k], out=carried)
            sums["decay_v"].add_(carried.addcmul_(carried, spikes, value=-1) if zero else carried)
        if "b_v" in sums:
            sums["b_v"].add_(gv)
        if "threshold" in sums and passes and not zero:
            sums["threshold"].addcmul_(gv, spikes, value=-1)
        torch.mm(gv, c.w_rec, out=back)
        torch.mul(gv, c.decay_v, out=carried)
        if passes and zero:
            back.addcmul_(carried, v[k], value=-1)
        elif passes:
            back.addcmul_(gv, theta[k] if feeds else c.threshold, value=-1)  # type: ignore[index,arg-type]
        if zero:
            carried.addcmul_(carried, spikes, value=-1)
        if theta is not None:
            if "decay_theta" in sums:
                sums["decay_theta"].addcmul_(gtheta, theta[k], value=-1)
            if "b_theta" in sums:
                sums["b_theta"].sub_(gtheta)
            if "adaptation" in sums:
                sums["adaptation"].addcmul_(gtheta, spikes, value=-1)
            back.addcmul_(gtheta, c.adaptation, value=-1)  # type: ignore[arg-type]
            gtheta.mul_(c.decay_theta)  # type: ignore[arg-type]
            if feeds:
                gtheta.addcmul_(gv, spikes)

    for a in reversed(range(0, steps, block)):
        b = min(a + block, steps)
        distance = v[a + 1 : b + 1] - (c.threshold if theta is None else theta[a + 1 : b + 1])
        q = spike.derivative(distance).to(z.dtype)
        through = torch.empty_like(q) if parameters else None
        for k in range(b, a, -1):
            if k < steps:
                previous(k)
            else:
                carried.zero_()
            if gz is not None:
                back.add_(gz[k - 1])
            if through is not None:
                through[k - a - 1] = back
            here = q[k - a - 1].mul_(back)
            gv = torch.add(carried, here, out=room[k - a - 1])
            gtheta.add_(here)
            if "threshold" in sums and theta is None:
                sums["threshold"].sub_(here)
            if k in ends:
                which = ends[k]
                if gv_end is not None:
                    gv[which] += gv_end[which]
                if gtheta_end is not None:
                    gtheta[which] -= gtheta_end[which]
        made = room[: b - a]
        if through is not None:
            with torch.enable_grad():
                step = spike.primitive(distance.detach())
            for total, g in zip(learnt, torch.autograd.grad(step, parameters, through), strict=True):
                total.add_(g)
        if w_rec is not None:
            add_recurrent(w_rec, trace, a, b, made)
        if w_in is not None:
            reading.add_gradient(w_in, a, b, made)
        if gx is not None:
            reading.send_back(gx, gfirst, a, b, made, c.w_in)
        gv = made[0].clone()
    previous(0)
    if 0 in ends:
        if gv_end is not None:
            carried[ends[0]] += gv_end[ends[0]]
        if gtheta_end is not None:
            gtheta[ends[0]] -= gtheta_end[ends[0]]
    state = [gx, gfirst, back, carried, None if theta is None else -gtheta]
    weights = [None if total is None else total.T for total in (w_in, w_rec)]
    rest = [sums[name].sum(0) if name in sums else None for name in Constants._fields[2:]]
    spikes = iter(learnt)
    surrogate = [next(spikes) if wanted else None for wanted in needed[13:]]
    return [g if wanted else None for g, wanted in zip([*state, *weights, *rest, *surrogate], needed, strict=True)]


def add_recurrent(total: Tensor, trace: Trace, a: int, b: int, g: Tensor) -> None:
    """Add the gradient by the transposed recurrent weights to a total, given that by the voltages after steps a to b."""
    few = [events for events in trace.events[a:b] if events is not None]
    if len(few) == b - a:
        events = stacked(few)
        total.add_(events.transposed_times(g.flatten(0, 1), 0, len(events.start) - 1))
        return
    if not a:
        total.addmm_(trace.z0.T, g[0])
        a, g = 1, g[1:]
    if b > a:
        total.addmm_(trace.z[a - 1 : b - 1].flatten(0, 1).T, g.flatten(0, 1))
