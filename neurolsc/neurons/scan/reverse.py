r"""The reverse pass of :mod:`neurolsc.neurons.scan.run`.

With :math:`g_x = \partial L / \partial x`, s the surrogate's derivative, and D, E and R of :mod:`neurolsc.neurons.reset`,

.. math::
    q[t] &= s[t] \Big(g_z[t] + W_{rec}^T g_v[t+1] + \beta g_\vartheta[t+1] - R[t]\, g_v[t+1]\Big) \\
    g_v[t] &= D[t]\, g_v[t+1] + q[t] \\
    g_\vartheta[t] &= e^{-1/\tau_\vartheta} g_\vartheta[t+1] + E[t]\, g_v[t+1] - q[t]

and the gradients of the constants are sums over time of products with these; those of the weights are made for many steps at
once. The loop holds :math:`-g_\vartheta`, to which q is added.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from neurolsc.neurons.equations import Constants
from neurolsc.neurons.reset import Reset, ZeroReset
from neurolsc.neurons.scan.steps import Replay, Trace, room
from neurolsc.surrogate import Surrogate

SLOPES = 2**17
"""Entries whose surrogate's derivatives are made at once: few enough for the cache."""


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
    reading, z, ends = trace.reading, trace.z, trace.ends
    (steps, batch, hidden), (gz, gv_end, gtheta_end) = z.shape, gradients
    need = Constants(*needed[5:13])  # type: ignore[arg-type]
    zero, adapts = isinstance(reset, ZeroReset), trace.theta is not None
    through_reset = reset.gradient and not zero
    sums = {name: torch.zeros_like(z[0]) for name in Constants._fields[2:] if getattr(need, name)}
    w_rec = c.w_rec.new_zeros(hidden, hidden) if need.w_rec else None
    w_in = c.w_in.new_zeros(reading.width, hidden) if need.w_in else None
    gx = room(z, steps, batch, reading.width) if needed[0] or needed[1] else None
    if gx is not None and reading.late:
        gx[-1] = 0  # the last frame is not read
    gfirst = z.new_zeros(batch, reading.width) if needed[1] else None
    parameters = [p for p, wanted in zip(spike.parameters(), needed[13:], strict=True) if wanted]
    learnt = [torch.zeros_like(p) for p in parameters]
    made = z.new_empty(min(trace.block, steps), batch, hidden)
    made_at = made.unbind(0)
    # of the state after step k + 1: the gradient by v, by -theta, and that by the spikes which it read
    gv, gtheta, back, nothing = (torch.zeros_like(z[0]) for _ in range(4))
    spikes = (trace.z0, *z.unbind(0))
    slopes, at_once = list[Tensor](), max(1, SLOPES // nothing.numel())
    given = (nothing, *([nothing] * steps if gz is None else gz.unbind(0)))

    def send_back(k: int, v: Tensor, theta: Tensor) -> None:
        """The gradient by the spikes after k steps, from that given and from step k + 1; and its part of the sums over time."""
        if adapts:
            torch.addcmul(given[k], gtheta, c.adaptation, value=-1, out=back)  # type: ignore[call-overload]
        else:
            back.copy_(given[k])
        back.addmm_(gv, c.w_rec)
        if zero and (reset.gradient or "decay_v" in sums):
            leaked = gv * v
            if reset.gradient:
                back.addcmul_(leaked, c.decay_v, value=-1)
            if "decay_v" in sums:
                sums["decay_v"].add_(leaked.addcmul_(leaked, spikes[k], value=-1))
        elif "decay_v" in sums:
            sums["decay_v"].addcmul_(gv, v)
        if "b_v" in sums:
            sums["b_v"].add_(gv)
        if through_reset:
            back.addcmul_(gv, theta if c.threshold is None else c.threshold, value=-1)
            if "threshold" in sums:
                sums["threshold"].addcmul_(gv, spikes[k], value=-1)
        if adapts:
            if "decay_theta" in sums:
                sums["decay_theta"].addcmul_(gtheta, theta, value=-1)
            if "b_theta" in sums:
                sums["b_theta"].sub_(gtheta)
            if "adaptation" in sums:
                sums["adaptation"].addcmul_(gtheta, spikes[k], value=-1)

    def past_spikes(k: int, q: Tensor, out: Tensor) -> Tensor:
        """The gradients of the state after k steps from those of the next one, and q, which comes through its spikes."""
        if adapts:
            torch.addcmul(q, gtheta, c.decay_theta, out=gtheta)  # type: ignore[arg-type]
            if through_reset and c.threshold is None:
                gtheta.addcmul_(gv, spikes[k])
        torch.addcmul(q, gv, c.decay_v, out=out)
        if zero:
            out.sub_(gv * c.decay_v * spikes[k])
        if k in ends:
            which = ends[k]
            if gv_end is not None:
                out[which] += gv_end[which]
            if gtheta_end is not None:
                gtheta[which] -= gtheta_end[which]
        return out

    replay = Replay(reset, c, trace)
    for a in reversed(range(0, steps, trace.block)):
        b = min(a + trace.block, steps)
        v, theta = replay.block(a, b)
        v_at, theta_at = v.unbind(0), theta.unbind(0) if adapts else (theta,) * len(v)
        seen = torch.empty_like(made[: b - a]) if parameters else None
        for k in range(b, a, -1):
            i = k - a
            if k < steps:
                send_back(k, v_at[i], theta_at[i])
            else:
                back.copy_(given[k])
            if seen is not None:
                seen[i - 1] = back
            if (b - k) % at_once == 0:
                last = slice(max(i - at_once, 0) + 1, i + 1)
                slopes = list(spike.derivative(v[last] - (theta[last] if adapts else theta)).to(z.dtype).unbind(0))
            q = slopes.pop().mul_(back)
            if "threshold" in sums and not adapts:
                sums["threshold"].sub_(q)
            gv = past_spikes(k, q, made_at[i - 1])
        g = made[: b - a]
        if seen is not None:
            with torch.enable_grad():
                step = spike.primitive(v[1:] - (theta[1:] if adapts else theta))
            for total, part in zip(learnt, torch.autograd.grad(step, parameters, seen), strict=True):
                total.add_(part)
        if w_rec is not None:
            add_recurrent(w_rec, trace, a, b, g)
        if w_in is not None:
            reading.add_gradient(w_in, a, b, g)
        if gx is not None:
            reading.send_back(gx, gfirst, a, b, g, c.w_in)
        gv = g[0].clone()
        if not a:
            send_back(0, v_at[0], theta_at[0])
            gv = past_spikes(0, torch.zeros_like(gv), torch.empty_like(gv))
    state = [gx, gfirst, back, gv, -gtheta]
    weights = [None if total is None else total.T for total in (w_in, w_rec)]
    rest = [sums[name].sum(0) if name in sums else None for name in Constants._fields[2:]]
    found = iter(learnt)
    surrogate = [next(found) if wanted else None for wanted in needed[13:]]
    return [g if wanted else None for g, wanted in zip([*state, *weights, *rest, *surrogate], needed, strict=True)]


def add_recurrent(total: Tensor, trace: Trace, a: int, b: int, g: Tensor) -> None:
    """Add the gradient by the transposed recurrent weights to a total, given that by the voltages after steps a to b."""
    if not a:
        total.addmm_(trace.z0.T, g[0])
        a, g = 1, g[1:]
    if b > a and trace.events is not None:
        batch = len(trace.z0)
        total.add_(trace.events.transposed_times(g.flatten(0, 1), (a - 1) * batch, (b - 1) * batch))
    elif b > a:
        total.addmm_(trace.z[a - 1 : b - 1].flatten(0, 1).T, g.flatten(0, 1))
