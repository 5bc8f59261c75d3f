"""Kernels of snnTorch's neurons, whose spikes reset the voltage one step later, or at once.

What holds for all kernels is said in :mod:`neurolsc.neurons.fast.scan_kernels`.
"""

import numpy as np

from neurolsc.neurons.fast.kinds import ALL, NONE, SUBTRACT, ZERO
from neurolsc.neurons.fast.scan_kernels import (
    NOUGHT,
    PIECE,
    Array,
    Arrays,
    at,
    before_step,
    compile_kernel,
    copy_into,
    inline,
    push,
    slopes,
)


@inline
def _fires(out: Array, u: Array, threshold: Array) -> None:
    """Write 1 into `out` where a voltage is above its threshold, else 0."""
    for j in range(len(out)):
        out[j] = u[j] - threshold[j] > 0


@inline
def _reset_again(after: Array, unreset: Array, s: Array, r: Array, threshold: Array, reset: int) -> None:
    """Write into `after` the voltages that their own spikes s reset at once: snnTorch with ``reset_delay=False``.

    The reset by r, the spikes of the voltage before this step, is already in `unreset`. snnTorch takes it back, so that
    the factor of a reset is s - r. `after` holds `unreset` when called, and keeps it without a reset.
    """
    if reset == SUBTRACT:
        for j in range(len(after)):
            after[j] = unreset[j] - (s[j] - r[j]) * threshold[j]
    elif reset != NONE:  # ZERO and ALL
        for j in range(len(after)):
            after[j] = unreset[j] - (s[j] - r[j]) * unreset[j]


@inline
def _back_through_reset_again(
    g: Array, q: Array, s: Array, r: Array, unreset: Array, threshold: Array, by_threshold: Array, reset: int
) -> None:
    """Go back through :func:`_reset_again`, by SUBTRACT or to zero.

    g is the gradient by the voltages after the reset, and becomes that by `unreset`. The gradient by the spikes s is
    added to q, that by the threshold to by_threshold; none goes to r, which snnTorch detaches. s becomes s - r.
    """
    one = g.dtype.type(1)
    for j in range(len(g)):
        s[j] -= r[j]
    if reset == SUBTRACT:
        for j in range(len(g)):
            q[j] -= g[j] * threshold[j]
        for j in range(len(g)):
            by_threshold[j] -= g[j] * s[j]
    else:
        for j in range(len(g)):
            q[j] -= g[j] * unreset[j]
        for j in range(len(g)):
            g[j] *= one - s[j]


@compile_kernel
def leaky(
    x: Array, start: Array, params: Array, reset: int, delayed: bool,
    z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """Run snnTorch's Leaky, v[t] = beta v[t-1] + x[t] and a reset, over all steps.

    Args:
        x: currents (T, M), or (1, M) if they are the same in all steps.
        start: the voltage before the first step (1, M).
        params: beta, the threshold and the factor of graded spikes (3, M).
        reset: SUBTRACT; ZERO, which sets the old voltage to 0; ALL, which sets the new one to 0, with the input of the
            step; or NONE.
        delayed: True if a spike resets the voltage one step later, False if at once.
        z: to be filled with the spikes, times their factor (T, M).
        states: to be filled with the voltage after each step, one array (T, M).
        u: to be filled with the voltage before an immediate reset (T, M); not used if `delayed`.
        first: the first entry to run, an entry being a neuron of a sample.
        last: the entry behind the last one to run.
    """
    scratch = np.empty((2, PIECE), start.dtype)
    one = start.dtype.type(1)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        beta = params[0, lo:hi]
        threshold = params[1, lo:hi]
        factor = params[2, lo:hi]
        r = scratch[0, :size]  # spikes of the voltage before the step
        s = scratch[1, :size]  # spikes of the step
        before = start[0, lo:hi]
        for t in range(len(z)):
            x_t = at(x, t, lo, hi)
            after = states[0][t, lo:hi]
            z_t = z[t, lo:hi]
            _fires(r, before, threshold)
            # the new voltage, and the reset by the spikes r of the last one
            if reset == SUBTRACT:
                for j in range(size):
                    after[j] = beta[j] * before[j] + x_t[j] - r[j] * threshold[j]
            elif reset == ZERO:
                for j in range(size):
                    after[j] = beta[j] * ((one - r[j]) * before[j]) + x_t[j]
            else:  # NONE, and ALL before its reset
                for j in range(size):
                    after[j] = beta[j] * before[j] + x_t[j]
            if reset == ALL:
                for j in range(size):
                    after[j] -= r[j] * after[j]
            _fires(s, after, threshold)
            for j in range(size):
                z_t[j] = s[j] * factor[j]
            if not delayed:  # the spikes s reset at once, and the reset by r is taken back
                unreset = u[t, lo:hi]
                copy_into(unreset, after)
                _reset_again(after, unreset, s, r, threshold, reset)
            before = after


@compile_kernel
def leaky_back(
    start: Array, params: Array, reset: int, delayed: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
    begin: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`leaky`, from the last step to the first.

    Args:
        start: as in :func:`leaky`, likewise params, reset, delayed, first and last.
        params: as there.
        reset: as there.
        delayed: as there.
        states: what the run filled, likewise u.
        u: as there.
        kind: formula of the derivative of a spike by its voltage, for :func:`slopes`.
        a: the number in it.
        given: that derivative (T, M) where kind is GIVEN; else (1, M), not used.
        by_z: gradient by the spikes from outside (T, M), or (1, M) if it is zero.
        by_states: gradients by the states after each step, from outside, one for each state; shapes likewise.
        by_x: zeros of the shape of x, to which the gradient by x is added.
        by_start: gradient by the states after the last step (1, M); becomes that by the states before the first one.
        by_params: zeros of the shape of params, to which the gradient by them is added; meaningful if `learnt`.
        learnt: True if the gradient by params is wanted.
        first: as there.
        last: as there.
        begin: the first step, through which the kernel goes back last.
        stop: the step behind the last one, with which the kernel starts.
    """
    v = states[0]
    by_v = by_states[0]
    one = start.dtype.type(1)
    scratch = np.empty((4, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        beta = params[0, lo:hi]
        threshold = params[1, lo:hi]
        factor = params[2, lo:hi]
        by_beta = by_params[0, lo:hi]
        by_threshold = by_params[1, lo:hi]
        by_factor = by_params[2, lo:hi]
        slope = scratch[0, :size]  # derivative of a spike by its voltage
        r = scratch[1, :size]  # spikes of the voltage before the step
        s = scratch[2, :size]  # spikes of the step
        q = scratch[3, :size]  # gradient by the spikes of the step
        g = by_start[0, lo:hi]  # gradient by the voltage
        for t in range(stop - 1, begin - 1, -1):
            before = before_step(v, start[0], t, lo, hi)
            unreset = v[t, lo:hi] if delayed else u[t, lo:hi]  # the voltage that spikes follow
            from_z = at(by_z, t, lo, hi)
            from_v = at(by_v, t, lo, hi)
            by_x_t = at(by_x, t, lo, hi)
            slopes(slope, kind, a, unreset, threshold, at(given, t, lo, hi))
            _fires(r, before, threshold)
            # g is still the gradient from step t + 1, or by_start as given
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                q[j] = from_z[j] * factor[j]
            if not delayed and reset != NONE:  # g becomes the gradient by unreset; q gains that through the spikes s
                _fires(s, unreset, threshold)
                _back_through_reset_again(g, q, s, r, unreset, threshold, by_threshold, reset)
            # through the spikes to the voltage that they follow; r, as snnTorch has it, passes no gradient
            for j in range(size):
                q[j] *= slope[j]
            for j in range(size):
                g[j] += q[j]
            if learnt:
                _fires(s, unreset, threshold)
                for j in range(size):
                    by_factor[j] += from_z[j] * s[j]
                for j in range(size):
                    by_threshold[j] -= q[j]
                if reset == SUBTRACT:
                    for j in range(size):
                        by_threshold[j] -= g[j] * r[j]
            if reset == ALL:  # the input is set to zero too
                for j in range(size):
                    g[j] *= one - r[j]
            for j in range(size):
                by_x_t[j] += g[j]
            if reset == ZERO:  # the last voltage alone is set to zero
                for j in range(size):
                    g[j] *= one - r[j]
            if learnt:
                for j in range(size):
                    by_beta[j] += g[j] * before[j]
            for j in range(size):
                g[j] *= beta[j]


@compile_kernel
def synaptic(
    x: Array, start: Array, params: Array, reset: int, delayed: bool,
    z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """Run snnTorch's Synaptic over all steps.

    Its states are the current, syn[t] = alpha syn[t-1] + x[t], and the voltage, v[t] = beta v[t-1] + syn[t] and a
    reset. ZERO sets the whole v[t] to 0, the input of the step included; there is no ALL. The rows of params (4, M) are
    alpha, beta, the threshold and the factor of graded spikes. The other arguments are those of :func:`leaky`.
    """
    scratch = np.empty((2, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        alpha = params[0, lo:hi]
        beta = params[1, lo:hi]
        threshold = params[2, lo:hi]
        factor = params[3, lo:hi]
        r = scratch[0, :size]  # spikes of the voltage before the step
        s = scratch[1, :size]  # spikes of the step
        syn_before = start[0, lo:hi]
        v_before = start[1, lo:hi]
        for t in range(len(z)):
            x_t = at(x, t, lo, hi)
            z_t = z[t, lo:hi]
            syn = states[0][t, lo:hi]
            v = states[1][t, lo:hi]
            _fires(r, v_before, threshold)
            for j in range(size):
                syn[j] = alpha[j] * syn_before[j] + x_t[j]
            for j in range(size):
                v[j] = beta[j] * v_before[j] + syn[j]
            if reset == SUBTRACT:
                for j in range(size):
                    v[j] -= r[j] * threshold[j]
            elif reset == ZERO:
                for j in range(size):
                    v[j] -= v[j] * r[j]
            _fires(s, v, threshold)
            for j in range(size):
                z_t[j] = s[j] * factor[j]
            if not delayed:  # the spikes s reset at once, and the reset by r is taken back
                unreset = u[t, lo:hi]  # kept for the backward pass, as the surrogate is taken of it
                copy_into(unreset, v)
                _reset_again(v, unreset, s, r, threshold, reset)
            syn_before = syn
            v_before = v


@compile_kernel
def synaptic_back(
    start: Array, params: Array, reset: int, delayed: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
    begin: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`synaptic`; the arguments are those of :func:`leaky_back`."""
    one = start.dtype.type(1)
    scratch = np.empty((4, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        alpha = params[0, lo:hi]
        beta = params[1, lo:hi]
        threshold = params[2, lo:hi]
        factor = params[3, lo:hi]
        by_alpha = by_params[0, lo:hi]
        by_beta = by_params[1, lo:hi]
        by_threshold = by_params[2, lo:hi]
        by_factor = by_params[3, lo:hi]
        slope = scratch[0, :size]  # derivative of a spike by its voltage
        r = scratch[1, :size]  # spikes of the voltage before the step
        s = scratch[2, :size]  # spikes of the step
        q = scratch[3, :size]  # gradient by the spikes of the step
        g_syn = by_start[0, lo:hi]  # by syn
        g = by_start[1, lo:hi]  # gradient by the voltage
        for t in range(stop - 1, begin - 1, -1):
            last_syn = before_step(states[0], start[0], t, lo, hi)
            before = before_step(states[1], start[1], t, lo, hi)
            unreset = states[1][t, lo:hi] if delayed else u[t, lo:hi]
            from_z = at(by_z, t, lo, hi)
            from_syn = at(by_states[0], t, lo, hi)
            from_v = at(by_states[1], t, lo, hi)
            by_x_t = at(by_x, t, lo, hi)
            slopes(slope, kind, a, unreset, threshold, at(given, t, lo, hi))
            _fires(r, before, threshold)
            # g is still the gradient from step t + 1, or by_start as given
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                q[j] = from_z[j] * factor[j]
            if not delayed and reset != NONE:  # g becomes the gradient by unreset; q gains that through the spikes s
                _fires(s, unreset, threshold)
                _back_through_reset_again(g, q, s, r, unreset, threshold, by_threshold, reset)
            # through the spikes to the voltage that they follow; r, as snnTorch has it, passes no gradient
            for j in range(size):
                q[j] *= slope[j]
            for j in range(size):
                g[j] += q[j]
            if learnt:
                _fires(s, unreset, threshold)
                for j in range(size):
                    by_factor[j] += from_z[j] * s[j]
                for j in range(size):
                    by_threshold[j] -= q[j]
                if reset == SUBTRACT:
                    for j in range(size):
                        by_threshold[j] -= g[j] * r[j]
            if reset == ZERO:
                for j in range(size):
                    g[j] *= one - r[j]
            for j in range(size):
                g_syn[j] += from_syn[j] + g[j]
            if learnt:
                for j in range(size):
                    by_beta[j] += g[j] * before[j]
                for j in range(size):
                    by_alpha[j] += g_syn[j] * last_syn[j]
            for j in range(size):
                by_x_t[j] += g_syn[j]
            for j in range(size):
                g[j] *= beta[j]
            for j in range(size):
                g_syn[j] *= alpha[j]


@compile_kernel
def alpha_function(
    x: Array, start: Array, params: Array, reset: int, z: Array, states: Arrays, u: Array, first: int, last: int
) -> None:
    """Run snnTorch's Alpha over all steps.

    Its states are an excitatory current, exc[t] = alpha exc[t-1] + x[t], an inhibitory one, inh[t] = beta inh[t-1] -
    x[t], and the voltage, scale (exc[t] + inh[t]); a spike resets all three one step later, each by its own rule.
    params are alpha, beta, the threshold, the factor of graded spikes and scale (5, M); u is not used. The other
    arguments are those of :func:`leaky`.
    """
    scratch = np.empty((2, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        alpha = params[0, lo:hi]
        beta = params[1, lo:hi]
        threshold = params[2, lo:hi]
        factor = params[3, lo:hi]
        scale = params[4, lo:hi]
        r = scratch[0, :size]  # spikes of the voltage before the step
        s = scratch[1, :size]  # spikes of the step
        last_exc = start[0, lo:hi]
        last_inh = start[1, lo:hi]
        before = start[2, lo:hi]
        for t in range(len(z)):
            x_t = at(x, t, lo, hi)
            z_t = z[t, lo:hi]
            exc = states[0][t, lo:hi]
            inh = states[1][t, lo:hi]
            after = states[2][t, lo:hi]
            _fires(r, before, threshold)
            for j in range(size):
                exc[j] = alpha[j] * last_exc[j] + x_t[j]
            for j in range(size):
                inh[j] = beta[j] * last_inh[j] - x_t[j]
            for j in range(size):
                after[j] = scale[j] * (exc[j] + inh[j])
            # the reset, where the spikes r of the last voltage are 1; snnTorch's for SUBTRACT adds the last inh to v
            if reset == SUBTRACT:
                for j in range(size):
                    exc[j] -= threshold[j] * r[j]
                for j in range(size):
                    after[j] += last_inh[j] * r[j]
            elif reset == ZERO:
                for j in range(size):
                    exc[j] -= exc[j] * r[j]
                for j in range(size):
                    after[j] -= after[j] * r[j]
            if reset != NONE:
                for j in range(size):
                    inh[j] -= inh[j] * r[j]
            _fires(s, after, threshold)
            for j in range(size):
                z_t[j] = s[j] * factor[j]
            last_exc = exc
            last_inh = inh
            before = after


@compile_kernel
def alpha_function_back(
    start: Array, params: Array, reset: int, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
    begin: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`alpha_function`; the arguments are those of :func:`leaky_back`."""
    one = start.dtype.type(1)
    zero = start.dtype.type(0)
    scratch = np.empty((6, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        alpha = params[0, lo:hi]
        beta = params[1, lo:hi]
        threshold = params[2, lo:hi]
        factor = params[3, lo:hi]
        scale = params[4, lo:hi]
        by_alpha = by_params[0, lo:hi]
        by_beta = by_params[1, lo:hi]
        by_scale = by_params[4, lo:hi]
        by_threshold = by_params[2, lo:hi]
        by_factor = by_params[3, lo:hi]
        slope = scratch[0, :size]  # derivative of a spike by its voltage
        r = scratch[1, :size]  # spikes of the voltage before the step
        s = scratch[2, :size]  # spikes of the step
        q = scratch[3, :size]  # gradient by the spikes of the step
        kept = scratch[4, :size]
        by_last_inh = scratch[5, :size]
        g_exc = by_start[0, lo:hi]  # by exc
        g_inh = by_start[1, lo:hi]  # by inh
        g = by_start[2, lo:hi]  # gradient by the voltage
        for t in range(stop - 1, begin - 1, -1):
            last_exc = before_step(states[0], start[0], t, lo, hi)
            last_inh = before_step(states[1], start[1], t, lo, hi)
            before = before_step(states[2], start[2], t, lo, hi)
            unreset = states[2][t, lo:hi]
            from_z = at(by_z, t, lo, hi)
            from_exc = at(by_states[0], t, lo, hi)
            from_inh = at(by_states[1], t, lo, hi)
            from_v = at(by_states[2], t, lo, hi)
            by_x_t = at(by_x, t, lo, hi)
            slopes(slope, kind, a, unreset, threshold, at(given, t, lo, hi))
            _fires(r, before, threshold)
            # the share of a state that the reset to zero leaves
            for j in range(size):
                kept[j] = one if reset == NONE else one - r[j]
            for j in range(size):
                q[j] = from_z[j] * factor[j] * slope[j]
            for j in range(size):
                g[j] += from_v[j] + q[j]
            for j in range(size):
                g_exc[j] += from_exc[j]
            for j in range(size):
                g_inh[j] += from_inh[j]
            if learnt:
                _fires(s, unreset, threshold)
                for j in range(size):
                    by_factor[j] += from_z[j] * s[j]
                for j in range(size):
                    by_threshold[j] -= q[j]
                if reset == SUBTRACT:
                    for j in range(size):
                        by_threshold[j] -= g_exc[j] * r[j]
            # back through the reset: g, g_exc and g_inh become gradients by the states before it, and by_last_inh is
            # that by the last inhibition, which SUBTRACT adds to the voltage
            for j in range(size):
                by_last_inh[j] = g[j] * r[j] if reset == SUBTRACT else zero
            if reset == ZERO:
                for j in range(size):
                    g_exc[j] *= kept[j]
                for j in range(size):
                    g[j] *= kept[j]
            for j in range(size):
                g_inh[j] *= kept[j]
            if learnt:
                for j in range(size):
                    reached = alpha[j] * last_exc[j] + beta[j] * last_inh[j]  # exc + inh: the input cancels
                    by_scale[j] += g[j] * reached
            for j in range(size):
                g[j] *= scale[j]
            for j in range(size):
                g_exc[j] += g[j]
            for j in range(size):
                g_inh[j] += g[j]
            if learnt:
                for j in range(size):
                    by_alpha[j] += g_exc[j] * last_exc[j]
                for j in range(size):
                    by_beta[j] += g_inh[j] * last_inh[j]
            for j in range(size):
                by_x_t[j] += g_exc[j] - g_inh[j]
            for j in range(size):
                g_exc[j] *= alpha[j]
            for j in range(size):
                g_inh[j] = g_inh[j] * beta[j] + by_last_inh[j]
            for j in range(size):
                g[j] = zero  # a voltage does not depend on the last one


@compile_kernel
def leaky_recurrent(
    x: Array, start: Array, params: Array, reset: int, delayed: bool,
    z: Array, states: Arrays, u: Array, z0: Array, weight_t: Array, square: bool,
) -> None:  # fmt: skip
    """Run snnTorch's RLeaky: each step is one of :func:`leaky`, with the currents of the last spikes added.

    The spikes z, the states and u are filled, as by :func:`leaky`; all else is read.

    Args:
        x: currents from outside (T, B n), or (1, B n) if they are the same in all steps.
        start: as in :func:`leaky`, likewise params, reset, delayed, z, states and u.
        params: as there.
        reset: as there.
        delayed: as there.
        z: as there.
        states: as there.
        u: as there.
        z0: the spikes before the first step (B n,).
        weight_t: recurrent weights (n, n) from row to column; or (1, n), a factor of each neuron's own spike.
        square: True for a matrix of weights.
    """
    size = len(z0)
    pushed = np.empty((1, size), x.dtype)  # all currents of a step
    indices = np.empty(weight_t.shape[1] + 1, np.int32)  # memory for the search of spikes
    v = states[0]
    for t in range(len(z)):
        push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        row = min(t, len(u) - 1)  # u has one row where it is not kept
        before = v[t - 1 : t] if t else start
        leaky(pushed, before, params, reset, delayed, z[t : t + 1], (v[t : t + 1],), u[row : row + 1], NOUGHT, size)


@compile_kernel
def synaptic_recurrent(
    x: Array, start: Array, params: Array, reset: int, delayed: bool,
    z: Array, states: Arrays, u: Array, z0: Array, weight_t: Array, square: bool,
) -> None:  # fmt: skip
    """Run snnTorch's RSynaptic as :func:`leaky_recurrent` runs RLeaky, by the steps of :func:`synaptic`."""
    size = len(z0)
    pushed = np.empty((1, size), x.dtype)
    indices = np.empty(weight_t.shape[1] + 1, np.int32)
    before = start.copy()  # the states before a step (states, M)
    for t in range(len(z)):
        push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        row = min(t, len(u) - 1)  # u has one row where it is not kept
        after = states[0][t : t + 1], states[1][t : t + 1]
        synaptic(pushed, before, params, reset, delayed, z[t : t + 1], after, u[row : row + 1], NOUGHT, size)
        copy_into(before[0], states[0][t])
        copy_into(before[1], states[1][t])
