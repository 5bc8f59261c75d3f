"""The passes of the loop as Triton kernels, each of which takes all steps.

They are those of :mod:`neurolsc.neurons.fast.forward` and :mod:`neurolsc.neurons.fast.reverse`. A
program has R samples and all n neurons (as C columns, a power of two) and takes all steps. What a
neuron remembers stays in registers. The vectors that are multiplied with the recurrent weights go
through global memory, where they are wanted anyway: a program writes them, waits for all its
threads, and reads them back K neurons at a time. Programs share nothing.

All tensors are contiguous float32, except `lengths`, int32, and the recurrent weights, which may be
of half precision. (B, n) is one value per sample and neuron, and `step` = B n. A fixed threshold is
one that moves by nothing: decay 1, no constant input and no adaptation.
"""

import triton
import triton.language as tl


@triton.jit
def times(vectors, matrix, n, within, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    """R vectors of n numbers times a matrix (n, n): (R, C).

    Rows that only meet zeros are not read.
    """
    sample, column = tl.arange(0, R)[:, None, None], tl.arange(0, C)[None, None, :]
    total = tl.zeros((R, K, C), tl.float32)
    for k in range(0, n, K):
        row = k + tl.arange(0, K)[None, :, None]
        part = tl.load(vectors + sample * n + row, within[:, None, None] & (row < n), 0.0)
        met = tl.sum((part != 0).to(tl.int32), 0, keep_dims=True) > 0  # type: ignore[operator]
        total += part * tl.load(matrix + row * n + column, met & (column < n), 0.0).to(tl.float32)
    return tl.sum(total, 1)


@triton.jit
def forward(
    drive,  # (T, B, n), the projected input
    w_rec_t,  # (n, n), from row to column
    constants,  # (6, n): decay_v, b_v, the constant subtracted, decay_theta, b_theta, adaptation
    lengths,  # (B,), steps after which the state of each sample is wanted
    z0,  # (B, n)
    z,  # (T, B, n), to be filled
    v,  # (T + 1, B, n), to be filled behind the first row; where v_step = 0 only the last remains
    theta,  # likewise
    v_end,  # (B, n), to be filled for samples with any step
    theta_end,
    steps,
    batch,
    n,
    step,
    v_step,
    theta_step,
    CONSTANT: tl.constexpr,  # the reset subtracts the constant, not the moving threshold
    ZERO: tl.constexpr,  # it resets to zero
    R: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
):
    """z, v and theta of all steps."""
    first = tl.program_id(0) * R
    sample, column = first + tl.arange(0, R), tl.arange(0, C)
    within, real = sample < batch, column < n
    mask = within[:, None] & real[None, :]
    at = sample[:, None] * n + column[None, :]
    decay_v = tl.load(constants + column, real, 0.0)[None, :]
    b_v = tl.load(constants + n + column, real, 0.0)[None, :]
    constant = tl.load(constants + 2 * n + column, real, 0.0)[None, :]
    decay_theta = tl.load(constants + 3 * n + column, real, 0.0)[None, :]
    b_theta = tl.load(constants + 4 * n + column, real, 0.0)[None, :]
    adaptation = tl.load(constants + 5 * n + column, real, 0.0)[None, :]
    length = tl.load(lengths + sample, within, 0)[:, None]
    spikes = tl.load(z0 + at, mask, 0.0)
    voltage = tl.load(v + at, mask, 0.0)
    threshold = tl.load(theta + at, mask, 0.0)
    last = z0
    for t in range(steps):
        pushed = tl.load(drive + at, mask, 0.0)
        tl.debug_barrier()
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
def reverse(
    slope,  # (B, n), the surrogate's derivative after the last step; those before lie before it
    g_z,  # likewise, the gradient by the spikes, as it is given
    g_end,  # (2, B, n), those by v and theta at the end
    w_rec,
    constants,
    lengths,
    z0,
    z,  # (B, n), the spikes that the last step reads; where that is the first, anything
    v,  # the voltage and the threshold that it reads
    theta,
    g,  # the gradient by the drive, to be filled
    through,  # that by the spikes, all of it, to be filled
    state,  # (3, B, n), those by the first z, v and theta, to be filled
    sums,  # (6, B, n), those by the constants, sample by sample, to be filled
    steps,
    batch,
    n,
    step,
    theta_step,
    CONSTANT: tl.constexpr,
    ZERO: tl.constexpr,
    PASSES: tl.constexpr,  # a gradient passes the reset
    SPIKES: tl.constexpr,  # g_z is given
    ENDS: tl.constexpr,  # g_end is given
    THROUGH: tl.constexpr,  # through is wanted
    R: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
):
    """The gradients, by the equations of :mod:`neurolsc.neurons.fast.reverse`."""
    first = tl.program_id(0) * R
    sample, column = first + tl.arange(0, R), tl.arange(0, C)
    within, real = sample < batch, column < n
    mask = within[:, None] & real[None, :]
    at = sample[:, None] * n + column[None, :]
    decay_v = tl.load(constants + column, real, 0.0)[None, :]
    constant = tl.load(constants + 2 * n + column, real, 0.0)[None, :]
    decay_theta = tl.load(constants + 3 * n + column, real, 0.0)[None, :]
    adaptation = tl.load(constants + 5 * n + column, real, 0.0)[None, :]
    length = tl.load(lengths + sample, within, 0)[:, None]
    zero = tl.zeros((R, C), tl.float32)
    back, g_v, g_theta, end_v, end_theta = zero, zero, zero, zero, zero
    by_decay_v, by_b_v, by_constant, by_decay_theta, by_b_theta, by_adaptation = zero, zero, zero, zero, zero, zero
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
        if ENDS:
            g_v += tl.where(length == steps - i, end_v, 0.0)
            g_theta += tl.where(length == steps - i, end_theta, 0.0)
        tl.store(g + at, g_v, mask)
        if i == steps - 1:
            z = z0
        spikes = tl.load(z + at, mask, 0.0)
        voltage = tl.load(v + at, mask, 0.0)
        threshold = tl.load(theta + at, mask, 0.0)
        tl.debug_barrier()
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
    if ENDS:
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
