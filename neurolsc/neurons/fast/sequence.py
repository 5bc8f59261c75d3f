r"""Eq. 49 over all steps at once: one function of autograd that equals plain steps, or is not used.

The forward pass goes over blocks of steps: the input of a block is projected at once, then the
steps follow in place, by Numba on a CPU (:mod:`~neurolsc.neurons.fast.cpu_kernels`), by one Triton
kernel for all steps on a GPU (:mod:`~neurolsc.neurons.fast.gpu_kernels`), by torch's operations
elsewhere. The reverse pass is written by hand. With :math:`g_x = \partial L / \partial x`, s the
surrogate's derivative, and D, E and R of :class:`neurolsc.neurons.spiking.Reset`,

.. math::
    q[t] &= s[t] \Big(g_z[t] + W_{rec}^T g_v[t+1] + \beta g_\vartheta[t+1] - R[t]\, g_v[t+1]\Big) \\
    g_v[t] &= D[t]\, g_v[t+1] + q[t] \\
    g_\vartheta[t] &= e^{-1/\tau_\vartheta} g_\vartheta[t+1] + E[t]\, g_v[t+1] - q[t]

and the gradients of the constants are sums over time of products with these, those of the weights
made for a block of steps at once. A fixed threshold is one that moves by nothing: decay 1, no
constant input and no adaptation.

Plain steps, followed by autograd, are the reference. They are taken where this function does not
know the spike or a kind of tensor; where somebody follows each operation
(:func:`~neurolsc.neurons.fast.inputs.followed`); for second derivatives, and for several gradients
at once; and where something is not finite, since plain steps multiply zeros with it that are left
out here.
"""

import os
import shutil
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from neurolsc.neurons.cell import State
from neurolsc.neurons.fast.inputs import (
    OURS,
    Constants,
    Inputs,
    Plan,
    advance,
    elementwise,
    followed,
    held,
    holding,
    rows_of,
    spikes_as_ours,
)
from neurolsc.surrogate import Surrogate

ROWS = 1024  # rows (step, sample) of a block: few enough for a cache, many enough that calls cost little
WIDEST = 512  # neurons up to which the GPU's kernels are used: a program reads all recurrent weights at every step


def run(cell: Any, x: Tensor, state: State, lengths: Tensor | None, recompute: bool) -> tuple[Tensor, State] | None:
    """:meth:`Cell.run` of a LIF or ALIF, or None where plain steps are to be taken."""
    planned = plan(cell, x, state, lengths, recompute)
    if planned is None:
        return None
    z, v, theta, finite = _Sequence.apply(planned[0], *planned[1].flat())  # type: ignore[misc]
    if not finite:
        return None
    return z, type(state)(v) if theta is None else type(state)(v, theta)


def plan(cell: Any, x: Tensor, state: State, lengths: Tensor | None, recompute: bool) -> tuple[Plan, Inputs] | None:
    """How to run a cell at once, and the tensors for that; None where plain steps are taken."""
    v, theta, spike, n_in, n = state[0], getattr(state, "theta", None), cell.spike, cell.n_in, cell.n_hidden
    if followed(spike, [x, *state, *cell.parameters(), *cell.buffers()]) or not spikes_as_ours(spike):
        return None

    # shapes and kinds of tensors; plain steps take others, or say what is wrong
    c, z, tensors = cell.constants(), cell.output(state), tuple(held(spike).values())
    own = [t for t in (z, v, theta, *c) if t is not None]
    every = [*own, *tensors, x]
    steps, batch = (*x.shape, 0, 0)[:2]
    shapes = Constants((n, n_in), (n, n), *[(n,)] * 6)  # type: ignore[arg-type]
    if not (
        steps
        and batch
        and x.shape == (steps, batch, n_in)
        and all(t.shape == (batch, n) for t in (z, v, theta) if t is not None)
        and all(t.shape == shape for t, shape in zip(c, shapes, strict=True) if t is not None)
        and (lengths is None or (lengths.shape == (batch,) and not lengths.is_floating_point()))
        and v.dtype in (torch.float32, torch.float64)
        and all(t.dtype == v.dtype and t.layout == torch.strided for t in own)
        and all(t.device == v.device or not t.ndim for t in every)
        and not (torch.is_grad_enabled() and any(t.is_inference() for t in every))
    ):
        return None

    kind = v.device.type
    gpu = type(spike) in OURS and suits_gpu(v, own)
    half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if half is not None and not gpu:
        return None
    if type(spike) not in OURS and not elementwise(spike, v[:1]):
        return None
    x = x.to_dense() if x.is_sparse else x
    inputs = Inputs(x, z, v, theta, c, tensors)
    backward = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs.flat())
    keep = "nothing" if not backward else "starts" if recompute else "all"
    lengths = torch.full((batch,), steps, device=v.device) if lengths is None else lengths.long().clamp(0, steps)
    return Plan(holding(spike, tensors), cell.reset, lengths, keep, gpu, half), inputs


def suits_gpu(like: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether the GPU's kernels can run a layer of such a state (B, n_hidden) and tensors."""
    batch, n = like.shape
    return (
        like.device.type == "cuda"
        and n <= WIDEST
        and batch * n < 2**28  # rows are counted in int32
        and all((t.dtype, t.device) == (torch.float32, like.device) for t in tensors)
        and torch.version.hip is None
        and torch.cuda.get_device_capability(like.device) >= (8, 0)
        and gpu_kernels() is not None
    )


@cache
def gpu_kernels() -> ModuleType | None:
    """The kernels, or None without Triton or what it needs: a C compiler and Python's headers."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        return None
    try:
        from neurolsc.neurons.fast import gpu_kernels
    except ImportError:
        return None
    return gpu_kernels


def cpu_kernels(like: Tensor) -> ModuleType | None:
    """The kernels for a tensor on a CPU, else None; compiled at a first call, or found on disk."""
    if like.device.type != "cpu":
        return None
    from neurolsc.neurons.fast import cpu_kernels  # the import of Numba takes half a second

    return cpu_kernels


# ---- the function of autograd


class _Sequence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, *flat: Any) -> Any:
        inputs = Inputs.of(flat)
        way = gpu_kernels().forward if plan.gpu else forward  # type: ignore[union-attr]
        z, v, theta, ends, smooth, ctx.events = way(plan, inputs)
        numbers = [t.sum() for t in (*ends, smooth, *inputs.c) if t is not None]
        finite = torch.stack(numbers).isfinite().all()
        ctx.mark_non_differentiable(finite)
        if plan.keep != "nothing":
            ctx.plan = plan
            ctx.save_for_backward(z, v, theta, *flat)  # so that torch says what has changed between the passes
            ctx.set_materialize_grads(False)
        return z, *ends, finite

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        z, v, theta, *flat = ctx.saved_tensors
        plan, inputs, needed, given = ctx.plan, Inputs.of(flat), Inputs.of(ctx.needs_input_grad[1:]), gradients[:-1]
        found = None
        if not (torch.is_grad_enabled() or followed(plan.spike, given)):
            way = gpu_kernels().reverse if plan.gpu else reverse  # type: ignore[union-attr]
            found = way(plan, inputs, (z, v, theta, ctx.events), needed, given)
        if found is None or not bool(found.v.sum().isfinite()):
            found = plain_gradients(plan, inputs, needed, given)
        return None, *(g if wants else None for g, wants in zip(found.flat(), needed.flat(), strict=True))


def forward(plan: Plan, inputs: Inputs) -> tuple[Any, ...]:
    """All steps.

    Returns:
        Spikes (T, B, n); v and theta before and after each step (T + 1, B, n), or before each block
        (theta None where it is fixed); both at the ends; a number that is finite where a user's own
        surrogate is; and of each block the non-zero entries that :func:`blocks` returns.
    """
    _, z0, v0, theta0, c, _ = inputs
    steps, block = len(inputs.x), max(1, ROWS // len(v0))
    starts, whole, moving = range(0, steps, block), plan.keep == "all", theta0 is not None
    run_block, ends, smooth, events = blocks(plan, inputs), plan.ends(), v0.new_zeros(()), []
    z = v0.new_empty(steps, *v0.shape)
    rows = (steps if whole else min(block, steps)) + 1
    v, theta = v0.new_empty(rows, *v0.shape), v0.new_empty(rows if moving else 1, *v0.shape)
    v[0], theta[0] = v0, theta0 if moving else c.threshold  # type: ignore[assignment]
    end = v0.clone(), theta0.clone() if moving else None
    kept = [v0.new_empty(len(starts) if plan.keep == "starts" else 0, *v0.shape) for _ in range(2)]
    for m, a in enumerate(starts):
        b = min(a + block, steps)
        if m and not whole:
            v[0], theta[0] = v[-1], theta[-1]
        if plan.keep == "starts":
            kept[0][m], kept[1][m] = v[0], theta[0]
        now = slice(a, b + 1) if whole else slice(0, b - a + 1)
        now_v, now_theta = v[now], theta[now] if moving else theta[:1]
        events.append(run_block(a, z[a - 1] if a else z0, now_v, now_theta, z[a:b]))
        for k in range(a + 1, b + 1):
            if k in ends:
                end[0][ends[k]] = now_v[k - a][ends[k]]
                if moving:
                    end[1][ends[k]] = now_theta[k - a][ends[k]]  # type: ignore[index]
        if type(plan.spike) not in OURS:
            smooth = smooth + plan.spike.primitive((now_v[1:] - now_theta[-(b - a) :]).flatten(0, 1)).sum()
    v, theta = (v, theta) if whole else kept
    return z, v, theta if moving else None, end, smooth, events


def blocks(plan: Plan, inputs: Inputs) -> Callable[..., tuple[Any, Any]]:
    """A function that runs some steps in place.

    Its arguments are the number of steps before; the spikes before (B, n); the voltages before and
    after each step (S + 1, B, n), of which the first is read; the thresholds likewise, or a fixed
    one (1, B, n); where the spikes go (S, B, n); and the non-zero entries of the input, if they are
    known. It returns these and those of the spikes that each step reads, each None where the
    product is dense.
    """
    x, c, kernels = inputs.x, inputs.c, cpu_kernels(inputs.v)
    w_in_t, w_rec_t, constants = c.w_in.T.contiguous(), c.w_rec.T.contiguous(), rows_of(c)
    zero, static = plan.reset.zero, c.threshold is not None

    def on_cpu(a: int, z0: Tensor, v: Tensor, theta: Tensor, z: Tensor, known: Any = None) -> tuple[Any, Any]:
        read = x[a : a + len(z)].flatten(0, 1).to(v.dtype)
        known = kernels.nonzeros(read) if known is None else known  # type: ignore[union-attr]
        drive = read @ w_in_t if known is None else kernels.times(known, w_in_t)  # type: ignore[union-attr]
        return known, kernels.steps(v, theta, z0, z, drive.view(z.shape), w_rec_t, constants, zero=zero, static=static)  # type: ignore[union-attr]

    def elsewhere(a: int, z0: Tensor, v: Tensor, theta: Tensor, z: Tensor, known: Any = None) -> tuple[Any, Any]:
        moving = len(theta) == len(v)
        for t, frame in enumerate(x[a : a + len(z)].to(v.dtype)):
            v[t + 1], limit = advance(plan.reset, c, frame, z[t - 1] if t else z0, v[t], theta[t] if moving else None)
            if limit is not None:
                theta[t + 1] = limit
            torch.gt(v[t + 1], theta[t + 1] if moving else theta[0], out=z[t])
        return None, None

    return elsewhere if kernels is None else on_cpu


def reverse(
    plan: Plan, inputs: Inputs, trace: tuple[Any, ...], needed: Inputs, given: Sequence[Tensor | None]
) -> Inputs:
    """The gradients of all inputs, where needed.

    Args:
        plan: the run.
        inputs: its inputs.
        trace: what :func:`forward` returned of it: z, v, theta and events.
        needed: which gradients are.
        given: those by the spikes (T, B, n), and by v and theta at the end (B, n); None where zero.
    """
    _, z0, v0, _, c, _ = inputs
    (z, v, theta, events), (g_z, end_v, end_theta) = trace, given
    steps, (batch, n), block = len(z), v0.shape, max(1, ROWS // len(v0))
    kernels, ends, fixed, whole = cpu_kernels(v0), plan.ends(), theta is None, plan.keep == "all"
    zero = v0.new_zeros(min(block, steps) + 2, batch, n)
    # by v and by the spikes after each step of a block, the one before it and the one behind it
    g, back = zero.clone(), zero.clone()
    g_theta, sums = zero[0].clone(), v0.new_zeros(6, batch if kernels is None else 1, n)
    by_x = v0.new_empty(*inputs.x.shape) if needed.x else None
    by_w_in, by_w_rec = c.w_in.new_zeros(c.w_in.shape[::-1]), torch.zeros_like(c.w_rec)  # transposed
    leaves = [t.detach().requires_grad_() if wants else t for t, wants in zip(inputs.spike, needed.spike, strict=True)]
    learnt = [leaf for leaf, wants in zip(leaves, needed.spike, strict=True) if wants]
    spike, by_learnt = holding(plan.spike, leaves), [None] * len(learnt)
    run_block = None if whole else blocks(plan, inputs)
    again = v0.new_empty(0 if whole else 3, *zero[1:].shape)  # v, theta and z of a block that is run again

    def array(t: Tensor) -> Any:
        return t if kernels is None else t.detach().contiguous().numpy()

    step = step_back if kernels is None else kernels.step_back
    nothing, at_g, at_back, at_g_theta = array(zero[0]), array(g), array(back), array(g_theta)
    at_z, at_z0, at_g_z = array(z), array(z0), nothing if g_z is None else array(g_z)
    how = array(rows_of(c)), plan.reset.zero, c.threshold is not None and not fixed
    how = *how, plan.reset.gradient, array(sums)
    for m, a in reversed([*enumerate(range(0, steps, block))]):
        b = min(a + block, steps)
        read, sent = events[m]
        if run_block is None:
            now_v, now_theta = v[a : b + 1], c.threshold.expand(1, 1, n) if fixed else theta[a : b + 1]  # type: ignore[union-attr]
        else:
            now_v, now_theta = again[0, : b - a + 1], again[1, : 1 if fixed else b - a + 1]
            now_v[0], now_theta[0] = v[m], c.threshold if fixed else theta[m]  # type: ignore[assignment]
            run_block(a, z[a - 1] if a else z0, now_v, now_theta, again[2, : b - a], read)
        distance = (now_v[1:] - now_theta[-(b - a) :]).flatten(0, 1)
        slope = array(_derivative(spike, distance).view(b - a, batch, n))
        at_v, at_theta = array(now_v), array(now_theta)
        g[b - a + 1] = g[1]
        for k in range(b, a if a else -1, -1):  # the state after k steps, at last that before the first
            j = k - a
            torch.mm(g[j + 1], c.w_rec, out=back[j])
            by_z = nothing if g_z is None or not k else at_g_z[k - 1]
            gradients = at_back[j], by_z, slope[j - 1] if k else nothing, at_g[j + 1], at_g[j], at_g_theta
            step(*gradients, at_v[j], at_theta[0 if fixed else j], at_z[k - 1] if k else at_z0, *how)
            if k in ends:
                if end_v is not None:
                    g[j][ends[k]] += end_v[ends[k]]
                if end_theta is not None:
                    g_theta[ends[k]] += end_theta[ends[k]]
        made = g[1 : b - a + 1].flatten(0, 1)
        if needed.c.w_rec and sent is None:
            by_w_rec.addmm_(torch.cat([z[a - 1 : a] if a else z0[None], z[a : b - 1]]).flatten(0, 1).T, made)
        elif needed.c.w_rec:
            kernels.add_transposed_times(by_w_rec, sent, made)  # type: ignore[union-attr]
        if needed.c.w_in and read is None:
            by_w_in.addmm_(inputs.x[a:b].flatten(0, 1).to(v.dtype).T, made)
        elif needed.c.w_in:
            kernels.add_transposed_times(by_w_in, read, made)  # type: ignore[union-attr]
        if by_x is not None:
            torch.mm(made, c.w_in, out=by_x[a:b].flatten(0, 1))
        if learnt:
            with torch.enable_grad():
                smooth = spike.primitive(distance)
            if smooth.requires_grad:
                through = back[1 : b - a + 1].flatten(0, 1).to(smooth.dtype)
                more = torch.autograd.grad(smooth, learnt, through, allow_unused=True)
                pairs = zip(by_learnt, more, strict=True)
                by_learnt = [new if old is None else old if new is None else old + new for old, new in pairs]
    decay_v, b_v, constant, *moving = sums.sum(1)
    threshold, by_spike = g_theta.sum(0) if fixed else constant, iter(by_learnt)
    constants = Constants(by_w_in.T, by_w_rec.T, decay_v, b_v, threshold, *moving)
    return Inputs(by_x, back[0], g[0], g_theta, constants, tuple(next(by_spike) if w else None for w in needed.spike))


def step_back(
    back: Tensor, by_z: Tensor, slope: Tensor, g_next: Tensor, g: Tensor, g_theta: Tensor,
    v: Tensor, theta: Tensor, z: Tensor, constants: Tensor, zero: bool, static: bool, passes: bool, sums: Tensor,
) -> None:  # fmt: skip
    """One step of the reverse pass in place: the equations above.

    Args:
        back: in, the product of g_v[t+1] with w_rec (B, n); out, the gradient by the spikes.
        by_z: the gradient by the spikes from outside.
        slope: the surrogate's derivative.
        g_next: g_v[t+1].
        g: out, g_v[t].
        g_theta: in, that by the threshold after step t + 1; out, after step t.
        v: the voltage after step t.
        theta: the threshold.
        z: the spikes.
        constants: those of :func:`rows_of` (6, n).
        zero: the reset starts again from zero.
        static: it subtracts the constant, not the moving threshold.
        passes: a gradient passes the reset.
        sums: where the gradients of the constants are summed (6, B, n).
    """
    decay_v, _, constant, decay_theta, _, adaptation = constants
    back.add_(by_z).addcmul_(g_theta, adaptation)
    sums[1].add_(g_next)
    sums[3].addcmul_(g_theta, theta)
    sums[4].add_(g_theta)
    sums[5].addcmul_(g_theta, z)
    g_theta.mul_(decay_theta)
    torch.mul(g_next, decay_v, out=g)
    if zero:
        sums[0].add_(g_next * v * (1 - z))
        if passes:
            back.addcmul_(g, v, value=-1)
        g.mul_(1 - z)
    else:
        sums[0].addcmul_(g_next, v)
        if passes:
            back.addcmul_(g_next, constant if static else theta, value=-1)
            (sums[2] if static else g_theta).addcmul_(g_next, z, value=-1)
    q = slope * back
    g.add_(q)
    g_theta.sub_(q)


def _derivative(spike: Surrogate, distance: Tensor) -> Tensor:
    """The surrogate's derivative; that of a user's own is the one of its primitive, by autograd."""
    if type(spike) in OURS:
        return spike.derivative(distance).to(distance.dtype)
    alone = distance.detach().requires_grad_()
    with torch.enable_grad():
        smooth = spike.primitive(alone).sum()
    (found,) = torch.autograd.grad(smooth, alone, allow_unused=True) if smooth.requires_grad else (None,)
    return torch.zeros_like(distance) if found is None else found


# ---- plain steps


def plain_steps(plan: Plan, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same run as autograd follows it: spikes (T, B, n_hidden), and v and theta at the end."""
    x, z, v, theta, c, tensors = inputs
    spike = holding(plan.spike, tensors)
    spikes, voltages, thresholds = [], [v], [theta]
    for frame in x.to(v.dtype).unbind(0):
        v, theta = advance(plan.reset, c, frame, z, v, theta)
        limit: Tensor = c.threshold if theta is None else theta  # type: ignore[assignment]
        z = spike.forward(v - limit)  # no hook on it has come since the forward pass
        spikes.append(z)
        voltages.append(v)
        thresholds.append(theta)
    end = plan.lengths, torch.arange(len(v), device=v.device)
    return torch.stack(spikes), torch.stack(voltages)[end], None if theta is None else torch.stack(thresholds)[end]


def plain_gradients(plan: Plan, inputs: Inputs, needed: Inputs, given: Sequence[Tensor | None]) -> Inputs:
    """As :func:`reverse`, by way of plain steps, and differentiable again."""
    create, wanted = torch.is_grad_enabled(), needed.flat()
    with torch.enable_grad():
        # aliases: one input may depend on another, and a gradient must not flow between them here
        aliases = [i.view_as(i) if wants else i for i, wants in zip(inputs.flat(), wanted, strict=True)]
        pairs = zip(plain_steps(plan, Inputs.of(aliases)), given, strict=True)
        known = [(o, g) for o, g in pairs if o is not None and g is not None and o.requires_grad]
        if not known:
            return Inputs.of([None] * len(wanted))
        by = [i for i, wants in zip(aliases, wanted, strict=True) if wants]
        outputs, gradients = zip(*known, strict=True)
        found = iter(torch.autograd.grad(outputs, by, gradients, create_graph=create, allow_unused=True))
    return Inputs.of([next(found) if wants else None for wants in wanted])
