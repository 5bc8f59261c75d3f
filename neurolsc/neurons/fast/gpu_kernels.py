"""The fast path on a GPU: for each pass one Triton kernel for all steps, and the products before and after it.

The input is projected before the forward kernel. The surrogate is differentiated before the reverse kernel, and the
gradients by the weights are computed after it. For the reverse pass v and the threshold of all steps are saved, each
(T + 1, B, n_hidden).

A program runs R samples and all n neurons (as C columns, a power of two). The states of a neuron stay in registers.
The vectors that are multiplied with the recurrent weights, spikes or gradients, go through global memory, where they
are stored anyway: a program writes them, waits for all its threads, and reads them back K neurons at a time. Programs
share nothing. All tensors are contiguous float32, except `lengths`, int32, and the recurrent weights, which may be of
half precision. `step` = B n is the distance in memory from one step to the next.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from neurolsc.neurons.fast.inputs import Constants, Inputs, Plan, by_primitive, gradients_of, learnable, rows_of

PRODUCTS = 2**13  # products that a program computes at once: 32 registers for each of its 32 * WARPS threads
WARPS = 8  # of a program, with 32 threads each


def forward(plan: Plan, inputs: Inputs) -> tuple[Any, ...]:
    """Run all steps by one kernel; the arguments are those of :func:`neurolsc.neurons.fast.sequence.forward`.

    Returns:
        Spikes (T, B, n); v before the first step and after each (T + 1, B, n), or after the last step alone (1, B, n)
        where no gradient is wanted; theta likewise, None where it is fixed; v and theta of each sample after its
        ``plan.lengths`` steps; and None, where a CPU's forward returns the non-zero entries.
    """
    z0 = inputs.z
    v0 = inputs.v
    theta0 = inputs.theta
    c = inputs.c
    steps = len(inputs.x)
    batch, hidden = v0.shape
    rows = steps + 1 if plan.backward else 1  # a single row is overwritten by every step
    with torch.autocast(v0.device.type, plan.half, enabled=plan.half is not None):
        drive = (inputs.read(0, steps) @ c.w_in.T).float().view(steps, batch, hidden)
    z = v0.new_empty(steps, batch, hidden)
    v = v0.new_empty(rows, batch, hidden)
    v[0] = v0
    if theta0 is None:
        theta = _fixed(c, v0)  # (1, B, n)
    else:
        theta = torch.empty_like(v)
        theta[0] = theta0
    ends = v[0].clone(), theta[0].clone()  # filled by the kernel, except for samples of 0 steps
    size = batch * hidden
    with torch.cuda.device_of(v0):
        forward_kernel[_programs(v0)](
            *(drive, c.w_rec.T.contiguous().to(plan.half), rows_of(c), plan.lengths.int()),
            *(z0.contiguous(), z, v, theta, *ends),
            # distances in memory of two steps: 0 where all steps share one row
            *(steps, batch, hidden, size, size * (rows > 1), size * (len(theta) > 1)),
            **_kind(c, plan.reset),
            **_tile(v0),
            enable_fp_fusion=False,  # type: ignore[call-arg]  # rounds as plain steps do
        )
    if theta0 is None:
        return z, v, None, (ends[0], None), None
    return z, v, theta, ends, None


def reverse(
    plan: Plan, inputs: Inputs, trace: tuple[Any, ...], needed: Inputs, outer: Sequence[Tensor | None]
) -> Inputs:
    """Return the gradients by all inputs, by one kernel; see :func:`neurolsc.neurons.fast.sequence.reverse`.

    `trace` is what :func:`forward` returned, without the ends.
    """
    z0 = inputs.z
    c = inputs.c
    z, v, moving_theta, _ = trace  # moving_theta is None where theta is fixed
    g_z, *g_end = outer
    steps, batch, hidden = z.shape
    theta = _fixed(c, z0) if moving_theta is None else moving_theta
    spike, learnt = learnable(plan.spike, inputs.spike, needed.spike)
    distance = v[1:] - theta[-steps:]  # a fixed theta has one row
    slope = spike.derivative(distance).to(z.dtype).expand_as(z).contiguous()
    g = torch.empty_like(z)
    by_start = z.new_empty(3, batch, hidden)
    sums = z.new_empty(6, batch, hidden)
    # in place of a tensor that is not wanted, or None, the kernel gets another one, which it does not touch
    by_spikes = torch.empty_like(z) if learnt else g
    outside = slope if g_z is None else g_z.contiguous()
    by_ends = [torch.zeros_like(z0) if end is None else end for end in g_end]
    with torch.cuda.device_of(z):
        reverse_kernel[_programs(z0)](
            # the kernel starts at the last step and goes back in memory; a fixed theta has one row, theta[-2:][0]
            *(slope[-1], outside[-1], torch.stack(by_ends)),
            *(c.w_rec.contiguous().to(plan.half), rows_of(c), plan.lengths.int()),
            *(z0.contiguous(), z[max(steps - 2, 0)], v[-2], theta[-2:][0]),
            *(g[-1], by_spikes[-1], by_start, sums),
            *(steps, batch, hidden, batch * hidden, batch * hidden * (len(theta) > 1)),
            **_kind(c, plan.reset),
            PASSES=plan.reset.gradient,
            SPIKES=g_z is not None,
            ENDS=any(end is not None for end in g_end),
            THROUGH=bool(learnt),
            **_tile(z0),
            enable_fp_fusion=True,  # type: ignore[call-arg]
        )
    del slope, outside  # their memory is free for the products below
    rows = g.flatten(0, 1)
    by_read = None
    by_w_in = None
    by_w_rec = None
    with torch.autocast(z.device.type, enabled=False):  # a gradient is of full precision
        if needed.c.w_in:
            by_w_in = rows.T @ inputs.read(0, steps)
        if needed.c.w_rec:
            by_w_rec = rows[batch:].T @ z[:-1].flatten(0, 1) + g[0].T @ z0
        if needed.x or needed.late:
            by_read = z.new_zeros(steps + 1, *inputs.x.shape[1:])
            torch.mm(rows, c.w_in, out=by_read[:-1].flatten(0, 1))
    by_learnt = by_primitive(spike, learnt, distance, by_spikes, [None] * len(learnt))
    vectors = [*sums.sum(1)]
    if moving_theta is None:  # the kernel carries the gradient by a fixed threshold back to before the first step
        vectors[2] = by_start[2].sum(0)
    return gradients_of(inputs, needed, by_read, by_start, Constants(by_w_in, by_w_rec, *vectors), by_learnt)  # type: ignore[arg-type]


def _fixed(c: Constants, like: Tensor) -> Tensor:
    """Return a fixed threshold for each sample of a state `like` (B, n_hidden), as one step (1, B, n_hidden)."""
    assert c.threshold is not None
    return c.threshold.repeat(1, len(like), 1)


def _kind(c: Constants, reset: Any) -> dict[str, bool]:
    """Return the kernels' switches for a reset: CONSTANT if it subtracts a resting threshold, ZERO if it resets to 0.

    A fixed threshold is not CONSTANT: the kernels subtract it as they do a moving one.
    """
    return {"CONSTANT": c.threshold is not None and c.decay_theta is not None, "ZERO": reset.name == "zero"}


def _programs(like: Tensor) -> tuple[int]:
    """Return how many programs run a state (B, n_hidden): the samples by R, rounded up."""
    return (-(-len(like) // _tile(like)["R"]),)


def _tile(like: Tensor) -> dict[str, int]:
    """Return the kernels' sizes R, C and K and launch options, for a state (B, n_hidden)."""
    # R: 1 or 2 samples to a program if all programs then run at once, one on each multiprocessor; else 4
    processors = torch.cuda.get_device_properties(like.device).multi_processor_count if like.is_cuda else 1
    samples = next((r for r in (1, 2) if -(-len(like) // r) <= processors), 4)
    columns = max(16, 1 << (like.shape[1] - 1).bit_length())  # C: n_hidden rounded up to a power of two
    tile = {"R": samples, "C": columns, "K": min(columns, PRODUCTS // (samples * columns))}
    return tile | {"num_warps": WARPS, "num_stages": 1}


@triton.jit
def times(vectors, matrix, n, within, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    """Return the product (R, C) of R vectors of n numbers and a matrix (n, n), read K rows at a time.

    Columns from n on are 0. `within` (R,) is False for vectors behind the last sample, which are not read. A row of the
    matrix that all R vectors multiply by zero is not read either.
    """
    sample = tl.arange(0, R)[:, None, None]
    column = tl.arange(0, C)[None, None, :]
    total = tl.zeros((R, K, C), vectors.dtype.element_ty)
    for k in range(0, n, K):
        row = k + tl.arange(0, K)[None, :, None]
        part = tl.load(vectors + sample * n + row, within[:, None, None] & (row < n), 0.0)
        met = tl.sum((part != 0).to(tl.int32), 0, keep_dims=True) > 0  # type: ignore[operator]
        total += part * tl.load(matrix + row * n + column, met & (column < n), 0.0).to(part.dtype)
    return tl.sum(total, 1)


@triton.jit
def constant_row(constants, i, n, C: tl.constexpr):
    """Return row i of the constants (6, n) as (1, C), with zeros from column n on."""
    column = tl.arange(0, C)
    return tl.load(constants + i * n + column, column < n, 0.0)[None, :]


@triton.jit
def forward_kernel(
    drive,  # (T, B, n), the projected input
    w_rec_t,  # (n, n), from row to column
    constants,  # (6, n): decay_v, b_v, the constant subtracted, decay_theta, b_theta, adaptation
    lengths,  # (B,), steps after which the state of each sample is wanted
    z0,  # (B, n), the spikes before the first step
    z,  # (T, B, n), to be filled with the spikes
    v,  # (T + 1, B, n), filled from the second row on; if v_step is 0, one row, which every step overwrites
    theta,  # likewise, with theta_step
    v_end,  # (B, n), to be filled for samples of at least one step
    theta_end,
    steps,  # T
    batch,  # B
    n,
    step,  # B n
    v_step,
    theta_step,
    CONSTANT: tl.constexpr,  # the reset subtracts the constant, not the threshold of the last step
    ZERO: tl.constexpr,  # the reset sets the voltage to zero
    R: tl.constexpr,  # samples of a program
    C: tl.constexpr,  # columns, at least n
    K: tl.constexpr,  # rows of the weights that are read at a time
):
    """Run all steps of R samples: fill z, v, theta, v_end and theta_end."""
    first = tl.program_id(0) * R
    sample = first + tl.arange(0, R)
    column = tl.arange(0, C)
    within = sample < batch
    real = column < n
    mask = within[:, None] & real[None, :]
    at = sample[:, None] * n + column[None, :]
    decay_v = constant_row(constants, 0, n, C)
    b_v = constant_row(constants, 1, n, C)
    constant = constant_row(constants, 2, n, C)
    decay_theta = constant_row(constants, 3, n, C)
    b_theta = constant_row(constants, 4, n, C)
    adaptation = constant_row(constants, 5, n, C)
    length = tl.load(lengths + sample, within, 0)[:, None]
    spikes = tl.load(z0 + at, mask, 0.0)
    voltage = tl.load(v + at, mask, 0.0)
    threshold = tl.load(theta + at, mask, 0.0)
    last = z0
    for t in range(steps):
        pushed = tl.load(drive + at, mask, 0.0)
        tl.debug_barrier()  # all threads have written their spikes, which `times` reads
        recurrent = times(last + first * n, w_rec_t, n, within, R, C, K)
        voltage *= decay_v
        if ZERO:
            voltage -= voltage * spikes
        elif CONSTANT:
            voltage -= constant * spikes
        else:
            voltage -= threshold * spikes
        voltage = voltage + pushed + recurrent + b_v
        threshold = threshold * decay_theta + b_theta + adaptation * spikes
        spikes = (voltage > threshold).to(tl.float32)
        v += v_step
        theta += theta_step
        tl.store(z + at, spikes, mask)
        tl.store(v + at, voltage, mask)
        tl.store(theta + at, threshold, mask)
        ends = mask & (length == t + 1)
        tl.store(v_end + at, voltage, ends)
        tl.store(theta_end + at, threshold, ends)
        last = z
        z += step
        drive += step


@triton.jit
def reverse_kernel(
    # slope, g_z, z, v, theta, g and through point at the (B, n) of the last step; the kernel goes back in memory
    slope,  # the surrogate's derivative at the spikes of the step
    g_z,  # gradient by the spikes of the step, from outside
    g_end,  # (2, B, n), gradients by v and theta at the end
    w_rec,  # (n, n), entry [i, j] from j to i
    constants,  # (6, n), as for the forward kernel
    lengths,  # (B,), likewise
    z0,  # (B, n), the spikes before the first step
    z,  # the spikes that the step reads; not read by the first step, which takes z0
    v,  # the voltage that the step reads
    theta,  # the threshold that the step reads
    g,  # to be filled with the gradient by the drive
    through,  # to be filled with the gradient by the spikes, from outside and through later steps
    state,  # (3, B, n), gradients by z, v and theta before the first step, to be filled
    sums,  # (6, B, n), gradients by the constants, for each sample, to be filled
    steps,  # T
    batch,  # B
    n,
    step,  # B n
    theta_step,  # likewise, or 0 if theta is fixed
    CONSTANT: tl.constexpr,  # the reset subtracts the constant, not the threshold of the last step
    ZERO: tl.constexpr,  # the reset sets the voltage to zero
    PASSES: tl.constexpr,  # a gradient passes the reset
    SPIKES: tl.constexpr,  # there is g_z
    ENDS: tl.constexpr,  # there is g_end
    THROUGH: tl.constexpr,  # `through` is wanted
    R: tl.constexpr,  # samples of a program
    C: tl.constexpr,  # columns, at least n
    K: tl.constexpr,  # rows of the weights that are read at a time
):
    """Compute the gradients of R samples, by the equations of :mod:`neurolsc.neurons.fast.sequence`."""
    first = tl.program_id(0) * R
    sample = first + tl.arange(0, R)
    column = tl.arange(0, C)
    within = sample < batch
    real = column < n
    mask = within[:, None] & real[None, :]
    at = sample[:, None] * n + column[None, :]
    decay_v = constant_row(constants, 0, n, C)
    constant = constant_row(constants, 2, n, C)
    decay_theta = constant_row(constants, 3, n, C)
    adaptation = constant_row(constants, 5, n, C)
    length = tl.load(lengths + sample, within, 0)[:, None]
    zero = tl.zeros((R, C), tl.float32)
    back = zero  # gradient by the spikes of a step, through later steps
    g_v = zero
    g_theta = zero
    end_v = zero
    end_theta = zero
    by_decay_v = zero
    by_b_v = zero
    by_constant = zero
    by_decay_theta = zero
    by_b_theta = zero
    by_adaptation = zero
    if ENDS:
        end_v = tl.load(g_end + at, mask, 0.0)
        end_theta = tl.load(g_end + step + at, mask, 0.0)
    for i in range(steps):
        if SPIKES:
            back += tl.load(g_z + at, mask, 0.0)
            g_z -= step
        if THROUGH:
            tl.store(through + at, back, mask)
            through -= step
        q = tl.load(slope + at, mask, 0.0) * back
        g_v += q
        g_theta -= q
        if ENDS:  # of samples whose state is wanted after this step
            g_v += tl.where(length == steps - i, end_v, 0.0)
            g_theta += tl.where(length == steps - i, end_theta, 0.0)
        tl.store(g + at, g_v, mask)
        if i == steps - 1:  # the first step reads the spikes before it
            z = z0
        spikes = tl.load(z + at, mask, 0.0)
        voltage = tl.load(v + at, mask, 0.0)
        threshold = tl.load(theta + at, mask, 0.0)
        tl.debug_barrier()  # all threads have written g, which `times` reads
        back = times(g + first * n, w_rec, n, within, R, C, K) + g_theta * adaptation
        by_b_v += g_v
        by_decay_theta += g_theta * threshold
        by_b_theta += g_theta
        by_adaptation += g_theta * spikes
        g_theta *= decay_theta
        if ZERO:
            by_decay_v += g_v * voltage * (1 - spikes)
            g_v *= decay_v
            if PASSES:
                back -= g_v * voltage
            g_v *= 1 - spikes
        else:
            by_decay_v += g_v * voltage
            if PASSES and CONSTANT:
                back -= g_v * constant
                by_constant -= g_v * spikes
            elif PASSES:
                back -= g_v * threshold
                g_theta -= g_v * spikes
            g_v *= decay_v
        slope -= step
        g -= step
        z -= step
        v -= step
        theta -= theta_step
    if ENDS:  # of samples whose state is wanted after no step
        g_v += tl.where(length == 0, end_v, 0.0)
        g_theta += tl.where(length == 0, end_theta, 0.0)
    tl.store(state + at, back, mask)
    tl.store(state + step + at, g_v, mask)
    tl.store(state + 2 * step + at, g_theta, mask)
    tl.store(sums + at, by_decay_v, mask)
    tl.store(sums + step + at, by_b_v, mask)
    tl.store(sums + 2 * step + at, by_constant, mask)
    tl.store(sums + 3 * step + at, by_decay_theta, mask)
    tl.store(sums + 4 * step + at, by_b_theta, mask)
    tl.store(sums + 5 * step + at, by_adaptation, mask)
