r"""Eq. 49 over all steps at once: one function of autograd that equals plain steps, or is not used.

On a CPU the forward pass goes over blocks of steps: the input of a block is projected at once, then the steps follow in
place, by Numba (:mod:`~neurolsc.neurons.fast.cpu_kernels`). On a GPU one Triton kernel takes all steps
(:mod:`~neurolsc.neurons.fast.gpu_kernels`). The reverse pass is written by hand. With :math:`g_x = \partial L /
\partial x`, s the surrogate's derivative, and D, E and R of :class:`neurolsc.neurons.spiking.Reset`,

.. math::
    q[t] &= s[t] \Big(g_z[t] + W_{rec}^T g_v[t+1] + \beta g_\vartheta[t+1] - R[t]\, g_v[t+1]\Big) \\
    g_v[t] &= D[t]\, g_v[t+1] + q[t] \\
    g_\vartheta[t] &= e^{-1/\tau_\vartheta} g_\vartheta[t+1] + E[t]\, g_v[t+1] - q[t]

The gradients by the constants are sums over time of products with these; those by the weights are computed for a block
of steps at once. A fixed threshold is treated as one that moves by nothing: decay 1, no constant input, no adaptation.

Plain steps, differentiated by autograd, are the reference. They are taken

- if the spikes are not those of a surrogate in two methods (:func:`neurolsc.surrogate.in_two_methods`);
- for tensors of other dtypes or on other devices, and on a GPU without the kernels;
- under compilers and transforms (:func:`transformed`), for second derivatives, and for several gradients at once;
- if a value is not finite: plain steps multiply it by zeros, which gives NaN; this function leaves such products out.
"""

import os
import shutil
import sysconfig
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neurolsc.neurons.cell import AtOnce, State
from neurolsc.neurons.fast.inputs import (
    Constants,
    Inputs,
    Plan,
    by_primitive,
    gradients_of,
    learnable,
    rows_of,
    tensors_of,
    with_tensors,
)
from neurolsc.surrogate import in_two_methods

ROWS = 1024  # rows (step, sample) of a block: few enough for a cache, many enough that calls cost little
WIDEST = 512  # neurons up to which the GPU's kernels are used: a program reads all recurrent weights at every step


def run(cell: Any, x: Tensor, state: State, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
    """Run a LIF or ALIF over all steps at once, as its :meth:`neurolsc.neurons.Cell.run_at_once`.

    Args:
        cell: the LIF or ALIF.
        x: input (T, B, n_in).
        state: the state before the first step.
        lengths: steps after which the state of each sample is returned (B,); None: T.
        late: input of the first step (B, n_in), after which x is read one step late; None: x is not late.

    Returns:
        Spikes (T, B, n_hidden) and the last state; None if plain steps are needed.
    """
    spike = cell.spike
    # within exact_values() gradients by dampening and sharpness are not those of by_primitive; and tensors_of does not
    # list the tensors of modules inside a surrogate
    if not in_two_methods(spike) or spike._exact_values or list(spike.children()):
        return None
    if transformed([x, late, *state]):
        return None
    v = state[0]
    theta = getattr(state, "theta", None)
    tensors = tuple(tensors_of(spike).values())
    inputs = Inputs(x, late, cell.output(state), v, theta, cell.constants(), tensors)
    if not _are_of_a_layer(inputs, lengths, cell.n_in, cell.n_hidden):
        return None
    given = [t for t in inputs.flat() if t is not None]
    if any(t.device != v.device and t.ndim for t in given):  # a 0-dimensional one may: torch's operations take it
        return None
    half = None  # no autocast
    if torch.is_autocast_enabled(v.device.type):
        half = torch.get_autocast_dtype(v.device.type)
    gpu = suits_gpu(v, inputs.of_layer())
    if not gpu and v.device.type != "cpu":
        return None
    backward = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    steps, batch = x.shape[:2]
    if lengths is None:
        lengths = torch.full((batch,), steps, device=v.device)
    else:
        lengths = lengths.long().clamp(0, steps)
    plan = Plan(with_tensors(spike, tensors), cell.reset, lengths, backward, gpu, half)
    with torch.autocast(v.device.type, enabled=False):  # on a CPU float32 kernels are faster than half-precision steps
        z, *ends, finite = _Sequence.apply(plan, *inputs.flat())  # type: ignore[misc]
    if not finite:
        return None
    return z, type(state)(*(end for end in ends if end is not None))


def _are_of_a_layer(inputs: Inputs, lengths: Tensor | None, n_in: int, n: int) -> bool:
    """True if shapes and dtypes are those that the kernels need for a layer with n neurons.

    Others are left to plain steps, which run them or raise.
    """
    x, late, z, v, theta, c, _ = inputs
    if x.ndim != 3 or not x.numel() or v.dtype not in (torch.float32, torch.float64):
        return False
    steps, batch, _ = x.shape
    per_sample = [(t, (batch, n)) for t in (z, v, theta)]
    per_neuron = [(t, (n,)) for t in c[2:]]
    others = [(x, (steps, batch, n_in)), (late, (batch, n_in)), (lengths, (batch,))]
    weights = [(c.w_in, (n, n_in)), (c.w_rec, (n, n))]
    wanted = (*others, *weights, *per_sample, *per_neuron)
    if any(t is not None and t.shape != shape for t, shape in wanted):
        return False
    return all(t.dtype == v.dtype for t in inputs.of_layer())


def transformed(tensors: Iterable[Tensor | None]) -> bool:
    """True if more than reverse-mode autograd records, transforms or watches the operations on these tensors.

    That is so under a compiler, a tracer, forward-mode derivatives, a transform of torch.func or a mode that sees every
    operation, such as one that counts them, or if a tensor is a batch of several, as in
    ``torch.autograd.grad(..., is_grads_batched=True)``.
    """
    functorch = torch._C._functorch  # type: ignore[attr-defined]
    return bool(
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]
        or functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch.autograd.forward_ad._current_level >= 0
        or any(functorch.is_legacy_batchedtensor(t) for t in tensors if t is not None)
    )


def suits_gpu(like: Tensor, tensors: Sequence[Tensor]) -> bool:
    """True if the GPU's kernels can run a layer with such a voltage (B, n_hidden), state and parameters."""
    batch, n = like.shape
    return (
        n <= WIDEST
        and batch * n < 2**28  # the kernels count up to 6 B n numbers of a tensor in int32
        and all((t.dtype, t.device) == (torch.float32, like.device) for t in tensors)
        and runs_triton(like.device)
    )


def runs_triton(device: torch.device) -> bool:
    """True for an NVIDIA GPU on which Triton compiles the kernels."""
    return (
        device.type == "cuda"
        and torch.version.hip is None  # no AMD GPU
        and torch.cuda.get_device_capability(device) >= (8, 0)  # Ampere or newer
        and gpu_kernels() is not None
    )


@cache
def gpu_kernels() -> ModuleType | None:
    """Import the GPU's kernels; None without Triton or what it needs: a C compiler and Python's headers."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        return None
    try:
        from neurolsc.neurons.fast import gpu_kernels
    except ImportError:
        return None
    return gpu_kernels


class _Sequence(torch.autograd.Function):
    """The run as a function of autograd, of the tensors of :class:`Inputs` one after the other.

    It returns spikes (T, B, n), v and theta at the ends (B, n), theta being None if fixed, and whether all is finite.
    """

    @staticmethod
    def forward(ctx: Any, plan: Plan, *flat: Any) -> Any:
        inputs = Inputs.of(flat)
        run_steps = gpu_kernels().forward if plan.gpu else forward  # type: ignore[union-attr]
        z, v, theta, ends, ctx.events = run_steps(plan, inputs)
        # a sum over all is finite only if each is; a voltage that once was not finite does not recover
        sums = [t.sum() for t in (*ends, *inputs.c) if t is not None]
        finite = torch.stack(sums).isfinite().all()
        ctx.mark_non_differentiable(finite)
        if plan.backward:
            ctx.plan = plan
            ctx.save_for_backward(z, v, theta, *flat)  # torch raises if one is changed in place before the backward
            ctx.set_materialize_grads(False)
        return z, *ends, finite

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        z, v, theta, *flat = ctx.saved_tensors
        plan = ctx.plan
        inputs = Inputs.of(flat)
        needed = Inputs.of(ctx.needs_input_grad[1:])
        outer = gradients[:-1]  # without that by `finite`
        by_inputs = None
        with torch.autocast(z.device.type, enabled=False):  # a gradient is of full precision
            if not (torch.is_grad_enabled() or transformed(outer)):  # grad mode: a second derivative is wanted
                run_back = gpu_kernels().reverse if plan.gpu else reverse  # type: ignore[union-attr]
                by_inputs = run_back(plan, inputs, (z, v, theta, ctx.events), needed, outer)
            if by_inputs is None or not bool(by_inputs.v.sum().isfinite()):
                by_inputs = plain_gradients(plan, inputs, needed, outer)
        return None, *(g if wants else None for g, wants in zip(by_inputs.flat(), needed.flat(), strict=True))


def _steps_of_a_block(steps: int, batch: int) -> int:
    """Return how many steps have about ROWS rows of B samples: at least 1, at most all."""
    return min(steps, max(1, ROWS // batch))


def forward(plan: Plan, inputs: Inputs) -> tuple[Any, ...]:
    """Run all steps on a CPU, block by block.

    Returns:
        z: spikes (T, B, n).
        v: voltages before the first step and after each (T + 1, B, n); where no gradient is wanted, of one block.
        theta: thresholds before each block, from which the reverse pass computes the others again; None where fixed.
        ends: v and theta after the steps in plan.lengths, each (B, n), theta being None where fixed.
        events: for each block the non-zero entries of its input, None if the product is dense, and those of the
            spikes that its steps read.
    """
    from neurolsc.neurons.fast import cpu_kernels  # the import of Numba takes half a second

    c: Any = inputs.c
    last_v = inputs.v  # before the present block, as last_theta
    last_theta = inputs.theta
    moving = last_theta is not None
    ends = plan.ends()
    end_v = last_v.clone()  # for samples whose state is wanted after 0 steps
    end_theta = last_theta.clone() if moving else None
    steps, batch = inputs.x.shape[:2]
    block = _steps_of_a_block(steps, batch)
    z = last_v.new_empty(steps, *last_v.shape)
    kept_steps = steps if plan.backward else block  # the reverse pass reads the voltages of all steps
    v = last_v.new_empty(kept_steps + 1, *last_v.shape)
    if moving:
        theta = torch.empty_like(v[: block + 1])
    else:
        theta = c.threshold.expand(1, batch, -1).contiguous()
    w_in_t = c.w_in.T.contiguous()
    w_rec_t = c.w_rec.T.contiguous()
    constants = rows_of(c)
    reset = {"zero": plan.reset.name == "zero", "static": c.threshold is not None}
    starts = []
    events = []
    for a in range(0, steps, block):
        b = min(a + block, steps)
        if plan.backward:
            now_v = v[a : b + 1]
        else:
            now_v = v[: b - a + 1]
        now_v[0] = last_v
        now_theta = theta
        if moving:
            now_theta = theta[: b - a + 1]
            now_theta[0] = last_theta
            starts.append(last_theta.clone())
        x = inputs.read(a, b)
        entries = cpu_kernels.nonzeros(x)
        if entries is None:
            drive = x @ w_in_t
        else:
            drive = cpu_kernels.times(entries, w_in_t)
        drive = drive.view(b - a, *last_v.shape)
        last_z = z[a - 1] if a else inputs.z
        sent = cpu_kernels.steps(now_v, now_theta, last_z, z[a:b], drive, w_rec_t, constants, **reset)
        events.append((entries, sent))
        for k, samples in ends.items():
            if a < k <= b:  # they end within this block
                end_v[samples] = now_v[k - a][samples]
                if end_theta is not None:
                    end_theta[samples] = now_theta[k - a][samples]
        last_v = now_v[-1]
        last_theta = now_theta[-1]
    return z, v, torch.stack(starts) if moving else None, (end_v, end_theta), events


def reverse(
    plan: Plan, inputs: Inputs, trace: tuple[Any, ...], needed: Inputs, outer: Sequence[Tensor | None]
) -> Inputs:
    """Compute the gradients of all inputs on a CPU, from the last block of steps to the first.

    Args:
        plan: the settings.
        inputs: what the run read.
        trace: what :func:`forward` returned, without the ends: z, v, theta before each block, and the events.
        needed: True for the inputs whose gradients are wanted.
        outer: gradients by the spikes (T, B, n), and by v and theta at the end (B, n), None where zero.

    Returns:
        A gradient in the place of each input; None, or any tensor, where none is wanted.
    """
    from neurolsc.neurons.fast import cpu_kernels

    def array(t: Tensor) -> Any:
        return t.detach().contiguous().numpy()

    c: Any = inputs.c
    z, v, starts, events = trace
    g_z, end_v, end_theta = outer
    ends = plan.ends()
    fixed = starts is None
    steps, batch, n = z.shape
    block = _steps_of_a_block(steps, batch)
    # g and back: row j is for the state after j steps of a block, from 0 to one step behind the block
    g = v.new_zeros(block + 2, batch, n)  # gradients by v
    back = torch.zeros_like(g)  # gradients by the spikes
    g_theta = v.new_zeros(batch, n)  # gradient by theta, after the present step
    sums = v.new_zeros(6, n)  # gradients by the constants, in the order of rows_of
    by_w_in = c.w_in.new_zeros(c.w_in.shape[::-1])  # transposed, as the next
    by_w_rec = torch.zeros_like(c.w_rec)
    by_read = None  # gradient by the input of each step; its last row stays 0, for gradients_of
    if needed.x or needed.late:
        by_read = v.new_zeros(steps + 1, *inputs.x.shape[1:])
    spike, learnt = learnable(plan.spike, inputs.spike, needed.spike)
    by_learnt: list[Tensor | None] = [None] * len(learnt)
    if fixed:
        theta = c.threshold.expand(1, 1, n)
    else:
        theta = torch.empty_like(back)[:-1]

    # The same memory as NumPy's arrays, for the compiled loops.
    at_g, at_back, at_g_theta, at_z, at_z0 = map(array, (g, back, g_theta, z, inputs.z))
    at_g_z = None if g_z is None else array(g_z)
    zeros = np.zeros_like(at_g_theta)
    constants = array(rows_of(c))
    static = c.threshold is not None and not fixed  # a fixed threshold is subtracted as a moving one is
    arguments = (constants, plan.reset.name == "zero", static, plan.reset.gradient, array(sums))

    for m in reversed(range(len(events))):
        a = m * block  # block m has the steps a to b - 1
        b = min(a + block, steps)
        # Compute the thresholds of the block again, and the surrogate's derivative at all of its steps.
        now_v = v[a : b + 1]
        now_theta = theta
        if not fixed:
            now_theta = theta[: b - a + 1]
            now_theta[0] = starts[m]
            cpu_kernels.thresholds(array(now_theta), at_z[a - 1] if a else at_z0, at_z[a:b], constants)
        distance = (now_v[1:] - now_theta[-(b - a) :]).flatten(0, 1)  # a fixed threshold has one row
        slope = array(spike.derivative(distance).to(v.dtype).expand_as(distance).view(b - a, batch, n))
        at_v = array(now_v)
        at_theta = array(now_theta)
        # Go back step by step. Row 1 of g was written last: it is for the first step of the block behind this one.
        g[b - a + 1] = g[1]
        first_state = a + 1 if a else 0  # the state after a steps belongs to the block before, unless there is none
        for k in range(b, first_state - 1, -1):  # the state after k steps
            j = k - a
            torch.mm(g[j + 1], c.w_rec, out=back[j])
            spikes_k = at_z0  # after 0 steps the spikes are an input: no surrogate, and no gradient from outside
            by_z = slope_k = zeros
            if k:
                spikes_k = at_z[k - 1]
                slope_k = slope[j - 1]
                if at_g_z is not None:
                    by_z = at_g_z[k - 1]
            gradients = (at_back[j], by_z, slope_k, at_g[j + 1], at_g[j], at_g_theta)
            cpu_kernels.step_back(*gradients, at_v[j], at_theta[0 if fixed else j], spikes_k, *arguments)
            if k in ends:  # of samples whose state is wanted after k steps
                if end_v is not None:
                    g[j][ends[k]] += end_v[ends[k]]
                if end_theta is not None:
                    g_theta[ends[k]] += end_theta[ends[k]]
        # Add the gradients by weights, inputs and surrogate, of all steps of the block at once.
        by_v = g[1 : b - a + 1].flatten(0, 1)
        entries, spikes = events[m]
        if needed.c.w_rec:
            cpu_kernels.add_transposed_times(by_w_rec, spikes, by_v)
        if needed.c.w_in and entries is None:
            by_w_in.addmm_(inputs.read(a, b).T, by_v)
        elif needed.c.w_in:
            cpu_kernels.add_transposed_times(by_w_in, entries, by_v)
        if by_read is not None:
            torch.mm(by_v, c.w_in, out=by_read[a:b].flatten(0, 1))
        by_learnt = by_primitive(spike, learnt, distance, back[1 : b - a + 1].flatten(0, 1), by_learnt)
    decay_v, b_v, constant, *moving = sums
    if fixed:  # all gradient by the threshold arrives at the one before the first step
        constant = g_theta.sum(0)
    by_c = Constants(by_w_in.T, by_w_rec.T, decay_v, b_v, constant, *moving)
    return gradients_of(inputs, needed, by_read, (back[0], g[0], g_theta), by_c, by_learnt)


def plain_gradients(plan: Plan, inputs: Inputs, needed: Inputs, outer: Sequence[Tensor | None]) -> Inputs:
    """Compute what :func:`reverse` returns by plain steps and autograd, so that it can be differentiated again.

    Args:
        plan: as there.
        inputs: as there.
        needed: as there: True for each input whose gradient is wanted.
        outer: the gradients that reach the outputs of the run from outside.

    Returns:
        The gradients; None for inputs whose gradients are not wanted, and for those on which nothing depends.
    """
    create_graph = torch.is_grad_enabled()
    wanted = needed.flat()
    with torch.enable_grad():
        # aliases: one input may depend on another, and no gradient may pass from one to the other here
        aliases = [i.view_as(i) if wants else i for i, wants in zip(inputs.flat(), wanted, strict=True)]
        pairs = zip(plain_steps(plan, Inputs.of(aliases)), outer, strict=True)
        reached = [(o, g) for o, g in pairs if o is not None and g is not None and o.requires_grad]
        if not reached:
            return Inputs.of([None] * len(wanted))
        wanted_inputs = [i for i, wants in zip(aliases, wanted, strict=True) if wants]
        outputs, from_outside = zip(*reached, strict=True)
        gradients = torch.autograd.grad(
            outputs, wanted_inputs, from_outside, create_graph=create_graph, allow_unused=True
        )
    rest = iter(gradients)
    return Inputs.of([next(rest) if wants else None for wants in wanted])


def plain_steps(plan: Plan, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run all steps so that autograd differentiates them.

    Returns:
        Spikes (T, B, n_hidden), and v and theta at the ends (B, n_hidden), theta being None where fixed.
    """
    x, late, z, v, theta, c, tensors = inputs
    spike = with_tensors(plan.spike, tensors)
    frames = x.to(v.dtype).unbind(0)
    if late is not None:  # every step reads the frame before its own
        frames = (late.to(v.dtype), *frames[:-1])
    spikes = []
    voltages = [v]
    thresholds = [theta]
    for frame in frames:
        if c.threshold is None:  # the reset subtracts the moving threshold
            subtracted = theta
        else:
            subtracted = c.threshold
        v = plan.reset.carry(c.decay_v * v, z, subtracted) + frame @ c.w_in.T + z @ c.w_rec.T + c.b_v
        if theta is not None:
            theta = c.decay_theta * theta + c.b_theta + c.adaptation * z  # type: ignore[operator]
        limit = c.threshold if theta is None else theta
        z = spike.forward(v - limit)  # not spike(...): a hook added since the run does not belong to it
        spikes.append(z)
        voltages.append(v)
        thresholds.append(theta)
    end = (plan.lengths, torch.arange(len(v), device=v.device))  # row `lengths` of each sample
    end_theta = None
    if theta is not None:
        end_theta = torch.stack(thresholds)[end]
    return torch.stack(spikes), torch.stack(voltages)[end], end_theta
