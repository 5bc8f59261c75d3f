"""Neurons without recurrent weights over all steps, compiled by Numba: each entry of a layer by itself.

A kernel takes the entries `first` to `last`, in pieces lo to hi that stay in the cache over all steps. An entry is one
neuron of one sample; M is their number, T that of steps. The arguments of all kernels are explained at :func:`leaky`,
those of the gradients, which go from the last step to the first, at :func:`leaky_back`.

Names inside: r are the spikes of the voltage before a step, which reset it in that step; s are the spikes of the step
itself; `unreset` is the voltage that s follow, before s reset it; q is a gradient by spikes, g one by a state;
`scratch` is memory for a piece.

The operations of a step and their order are those of the library, so that voltages agree bit for bit where both round
every operation. Loops over j are short, so that each becomes vector instructions.
"""

from typing import Any

import numpy as np
from numba import njit

from neurolsc.neurons.fast.cpu_kernels import Array, _add_rows, _places, compiled
from neurolsc.neurons.fast.kinds import (
    ALL,
    ATAN,
    BOX,
    FAST_SIGMOID,
    GIVEN,
    LEAK_OF_ALL,
    LEAK_OF_STATE,
    NO_LEAK,
    NONE,
    NOTHING,
    QUADRATIC,
    SIGN,
    SUBTRACT,
    ZERO,
)

PIECE = 512  # entries of a piece: some rows of it fit the first cache

NOUGHT = np.int64(0)  # as a bare 0, a constant of its own type, it would have a kernel compiled once more

_compiled = compiled()
_inline: Any = njit(inline="always")
Arrays = tuple[Array, ...]  # one for each state


@_inline
def _slopes(out: Array, kind: int, a: float, u: Array, threshold: Array, given: Array) -> None:
    """Write the derivative of each spike by its voltage u into `out` (size,).

    `kind` names a formula in the distance u - threshold, with the number a. GIVEN copies the array `given`.
    """
    one = u.dtype.type(1)
    if kind == GIVEN:
        for j in range(len(out)):
            out[j] = given[j]
    elif kind == NOTHING:  # no surrogate: no gradient passes a spike
        for j in range(len(out)):
            out[j] = 0
    elif kind == ATAN:  # a/2 / (1 + (pi/2 a d)^2), with d the distance
        width = u.dtype.type(np.pi / 2 * a)
        height = u.dtype.type(a / 2)
        for j in range(len(out)):
            scaled = width * (u[j] - threshold[j])
            out[j] = height / (one + scaled * scaled)
    elif kind == FAST_SIGMOID:  # 1 / (a |d| + 1)^2
        width = u.dtype.type(a)
        for j in range(len(out)):
            scaled = width * abs(u[j] - threshold[j]) + one
            out[j] = one / (scaled * scaled)
    elif kind == SIGN:  # -a from the threshold on, a below: snnTorch's `triangular`
        height = u.dtype.type(a)
        for j in range(len(out)):
            out[j] = -height if u[j] - threshold[j] >= 0 else height
    elif kind == QUADRATIC:  # max(a - a^2 |d|, 0)
        height = u.dtype.type(a)
        width = u.dtype.type(a * a)
        zero = u.dtype.type(0)
        for j in range(len(out)):
            out[j] = max(height - width * abs(u[j] - threshold[j]), zero)


@_inline
def _at(rows: Array, t: int, lo: int, hi: int) -> Array:
    """Return entries lo to hi of step t, as a view of rows (T, M), or of (1, M), one row for all steps."""
    return rows[min(t, len(rows) - 1), lo:hi]


@_inline
def _before(state: Array, start: Array, t: int, lo: int, hi: int) -> Array:
    """Return entries lo to hi of a state before step t.

    `state` (T, M) holds it after each step, `start` (M,) before the first one.
    """
    if t:
        return state[t - 1, lo:hi]
    return start[lo:hi]


@_inline
def _copy_into(out: Array, values: Array) -> None:
    """Copy entry by entry: an assignment to a slice takes Numba seconds to compile."""
    for j in range(len(out)):
        out[j] = values[j]


@_inline
def _fires(out: Array, u: Array, threshold: Array) -> None:
    """Write 1 into `out` where a voltage is above its threshold, else 0."""
    for j in range(len(out)):
        out[j] = u[j] - threshold[j] > 0


@_inline
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


@_inline
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


@_compiled
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
            x_t = _at(x, t, lo, hi)
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
                _copy_into(unreset, after)
                _reset_again(after, unreset, s, r, threshold, reset)
            before = after


@_compiled
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
        kind: formula of the derivative of a spike by its voltage, for :func:`_slopes`.
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
            before = _before(v, start[0], t, lo, hi)
            unreset = v[t, lo:hi] if delayed else u[t, lo:hi]
            from_z = _at(by_z, t, lo, hi)
            from_v = _at(by_v, t, lo, hi)
            by_x_t = _at(by_x, t, lo, hi)
            _slopes(slope, kind, a, unreset, threshold, _at(given, t, lo, hi))
            _fires(r, before, threshold)
            # g comes from the step behind this one
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                q[j] = from_z[j] * factor[j]
            if not delayed and reset != NONE:
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


@_compiled
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
            x_t = _at(x, t, lo, hi)
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
                _copy_into(unreset, v)
                _reset_again(v, unreset, s, r, threshold, reset)
            syn_before = syn
            v_before = v


@_compiled
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
            last_syn = _before(states[0], start[0], t, lo, hi)
            before = _before(states[1], start[1], t, lo, hi)
            unreset = states[1][t, lo:hi] if delayed else u[t, lo:hi]
            from_z = _at(by_z, t, lo, hi)
            from_syn = _at(by_states[0], t, lo, hi)
            from_v = _at(by_states[1], t, lo, hi)
            by_x_t = _at(by_x, t, lo, hi)
            _slopes(slope, kind, a, unreset, threshold, _at(given, t, lo, hi))
            _fires(r, before, threshold)
            # g comes from the step behind this one
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                q[j] = from_z[j] * factor[j]
            if not delayed and reset != NONE:
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


@_compiled
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
            x_t = _at(x, t, lo, hi)
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


@_compiled
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
            last_exc = _before(states[0], start[0], t, lo, hi)
            last_inh = _before(states[1], start[1], t, lo, hi)
            before = _before(states[2], start[2], t, lo, hi)
            unreset = states[2][t, lo:hi]
            from_z = _at(by_z, t, lo, hi)
            from_exc = _at(by_states[0], t, lo, hi)
            from_inh = _at(by_states[1], t, lo, hi)
            from_v = _at(by_states[2], t, lo, hi)
            by_x_t = _at(by_x, t, lo, hi)
            _slopes(slope, kind, a, unreset, threshold, _at(given, t, lo, hi))
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


# ---- neurons that are reset within the step that fires


@_inline
def _reaches(out: Array, u: Array, threshold: Array, at_threshold: bool) -> None:
    """Write 1 into `out` where a voltage is above its threshold, or at it if `at_threshold`, else 0."""
    if at_threshold:
        for j in range(len(out)):
            out[j] = u[j] - threshold[j] >= 0
    else:
        for j in range(len(out)):
            out[j] = u[j] - threshold[j] > 0


@_inline
def _reset(after: Array, unreset: Array, s: Array, threshold: Array, rest: Array, reset: int) -> None:
    """Write the voltages after the reset by their own spikes s into `after`.

    SUBTRACT takes off the threshold, ZERO sets the voltage to `rest`, NONE leaves it.
    """
    one = unreset.dtype.type(1)
    if reset == SUBTRACT:
        for j in range(len(unreset)):
            after[j] = unreset[j] - s[j] * threshold[j]
    elif reset == ZERO:
        for j in range(len(unreset)):
            after[j] = (one - s[j]) * unreset[j] + s[j] * rest[j]
    else:
        for j in range(len(unreset)):
            after[j] = unreset[j]


@_inline
def _back_through_reset(
    g: Array, q: Array, s: Array, unreset: Array, threshold: Array, rest: Array, slope: Array,
    by_threshold: Array, by_rest: Array, reset: int, reset_gradient: bool,
) -> None:  # fmt: skip
    """Go back through the spikes and :func:`_reset`.

    g is the gradient by the voltages after the reset, and becomes that by `unreset`. q is the gradient by the spikes s
    from outside, and becomes that by `unreset` through the spikes. The gradients by the threshold and by `rest` are
    added to by_threshold and by_rest. Without `reset_gradient` the spikes in the reset are detached.
    """
    one = g.dtype.type(1)
    if reset == SUBTRACT:
        if reset_gradient:
            for j in range(len(g)):
                q[j] -= g[j] * threshold[j]
        for j in range(len(g)):
            by_threshold[j] -= g[j] * s[j]  # of the threshold that the reset subtracts
    elif reset == ZERO:
        if reset_gradient:
            for j in range(len(g)):
                q[j] += g[j] * (rest[j] - unreset[j])
        for j in range(len(g)):
            by_rest[j] += g[j] * s[j]
        for j in range(len(g)):
            g[j] *= one - s[j]
    # the spikes themselves, which follow unreset - threshold
    for j in range(len(g)):
        q[j] *= slope[j]
    for j in range(len(g)):
        by_threshold[j] -= q[j]
    for j in range(len(g)):
        g[j] += q[j]


@_compiled
def current_lif(
    x: Array, start: Array, params: Array, reset: int, spiking: bool, reset_gradient: bool,
    z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """Run norse's LIF, or its integrator LI, over all steps.

    The states are the voltage v, to which a step adds gain (leak - v + i + x), and the current i, which becomes
    (1 + loss) (i + x).

    Args:
        x: currents (T, M), or (1, M) if they are the same in all steps.
        start: v and i before the first step (2, M).
        params: gain = dt / tau_mem, loss = -dt / tau_syn, leak = v_leak, v_th and v_reset (5, M).
        reset: SUBTRACT, ZERO (to v_reset) or NONE, at once.
        spiking: True for LIF, whose output are spikes; False for LI, whose output is v.
        reset_gradient: for :func:`current_lif_back`; the run does not depend on it.
        z: to be filled with the output (T, M).
        states: to be filled with v and i after each step, two arrays (T, M).
        u: to be filled with v before its reset (T, M); (1, M), not kept, for LI.
        first: the first entry to run.
        last: the entry behind the last one to run.
    """
    scratch = np.empty((2, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        gain = params[0, lo:hi]
        loss = params[1, lo:hi]
        leak = params[2, lo:hi]
        threshold = params[3, lo:hi]
        rest = params[4, lo:hi]
        s = scratch[0, :size]  # spikes of the step
        i_plus_x = scratch[1, :size]
        v = start[0, lo:hi]
        i = start[1, lo:hi]
        for t in range(len(z)):
            x_t = _at(x, t, lo, hi)
            z_t = z[t, lo:hi]
            unreset = _at(u, t, lo, hi)
            after_v = states[0][t, lo:hi]
            after_i = states[1][t, lo:hi]
            for j in range(size):
                i_plus_x[j] = i[j] + x_t[j]
            for j in range(size):
                unreset[j] = v[j] + gain[j] * ((leak[j] - v[j]) + i_plus_x[j])
            for j in range(size):
                after_i[j] = i_plus_x[j] + loss[j] * i_plus_x[j]
            if spiking:
                _reaches(s, unreset, threshold, False)
                _copy_into(z_t, s)
                _reset(after_v, unreset, s, threshold, rest, reset)
            else:
                _copy_into(z_t, unreset)
                _copy_into(after_v, unreset)
            v = after_v
            i = after_i


@_compiled
def current_lif_back(
    start: Array, params: Array, reset: int, spiking: bool, reset_gradient: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
    begin: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`current_lif`; the arguments are those of :func:`leaky_back`."""
    scratch = np.empty((4, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        gain = params[0, lo:hi]
        loss = params[1, lo:hi]
        leak = params[2, lo:hi]
        threshold = params[3, lo:hi]
        rest = params[4, lo:hi]
        by_gain = by_params[0, lo:hi]
        by_loss = by_params[1, lo:hi]
        by_leak = by_params[2, lo:hi]
        by_threshold = by_params[3, lo:hi]
        by_rest = by_params[4, lo:hi]
        slope = scratch[0, :size]  # derivative of a spike by its voltage
        s = scratch[1, :size]  # spikes of the step
        q = scratch[2, :size]  # gradient by the spikes of the step
        g_i_plus_x = scratch[3, :size]
        g = by_start[0, lo:hi]  # gradient by the voltage
        g_i = by_start[1, lo:hi]  # by i
        for t in range(stop - 1, begin - 1, -1):
            unreset = _at(u, t, lo, hi)
            from_z = _at(by_z, t, lo, hi)
            from_v = _at(by_states[0], t, lo, hi)
            from_i = _at(by_states[1], t, lo, hi)
            by_x_t = _at(by_x, t, lo, hi)
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                g_i[j] += from_i[j]
            if spiking:
                _slopes(slope, kind, a, unreset, threshold, _at(given, t, lo, hi))
                _reaches(s, unreset, threshold, False)
                _copy_into(q, from_z)
                _back_through_reset(
                    g, q, s, unreset, threshold, rest, slope, by_threshold, by_rest, reset, reset_gradient
                )
            else:
                for j in range(size):
                    g[j] += from_z[j]
            if learnt:
                v = _before(states[0], start[0], t, lo, hi)
                v_new = unreset if spiking else states[0][t, lo:hi]  # without a reset; u is not kept for LI
                for j in range(size):
                    # s from here on is i + x of this step, which the run did not keep: what it added to v gives it
                    s[j] = (v_new[j] - v[j]) / gain[j] - (leak[j] - v[j])
                for j in range(size):
                    by_gain[j] += g[j] * ((leak[j] - v[j]) + s[j])
                for j in range(size):
                    by_loss[j] += g_i[j] * s[j]
                for j in range(size):
                    by_leak[j] += g[j] * gain[j]
            for j in range(size):
                g_i_plus_x[j] = g[j] * gain[j] + g_i[j] + g_i[j] * loss[j]
            for j in range(size):
                by_x_t[j] += g_i_plus_x[j]
            for j in range(size):
                g[j] -= g[j] * gain[j]
            _copy_into(g_i, g_i_plus_x)


@_compiled
def adaptive_lif(
    x: Array, start: Array, params: Array, reset_gradient: bool,
    z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """Run norse's LSNN over all steps: a LIF whose threshold b is a state.

    The states are the voltage v, the current i and the threshold b. A step adds gain (leak - v + i) to v and
    pull (threshold - b) to b; i becomes (1 + loss) i + x. A spike, where v > b, sets v to `rest` and adds beta to b.

    params are gain = dt / tau_mem, loss = -dt / tau_syn, leak = v_leak, threshold = v_th, rest = v_reset, pull = dt /
    tau_adapt, beta and zeros (8, M). u is filled with the distances v - b before the reset (T, M). reset_gradient is
    for :func:`adaptive_lif_back`. The other arguments are those of :func:`leaky`.
    """
    scratch = np.empty((2, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        gain = params[0, lo:hi]
        loss = params[1, lo:hi]
        leak = params[2, lo:hi]
        threshold = params[3, lo:hi]
        rest = params[4, lo:hi]
        pull = params[5, lo:hi]
        beta = params[6, lo:hi]
        zeros = params[7, lo:hi]  # the threshold of the distances v - b
        s = scratch[0, :size]  # spikes of the step
        unreset = scratch[1, :size]
        v = start[0, lo:hi]
        i = start[1, lo:hi]
        b = start[2, lo:hi]
        for t in range(len(z)):
            x_t = _at(x, t, lo, hi)
            z_t = z[t, lo:hi]
            distance = u[t, lo:hi]
            after_v = states[0][t, lo:hi]
            after_i = states[1][t, lo:hi]
            after_b = states[2][t, lo:hi]
            for j in range(size):
                unreset[j] = v[j] + gain[j] * ((leak[j] - v[j]) + i[j])
            for j in range(size):
                after_i[j] = i[j] + loss[j] * i[j] + x_t[j]
            for j in range(size):
                after_b[j] = b[j] + pull[j] * (threshold[j] - b[j])
            for j in range(size):
                distance[j] = unreset[j] - after_b[j]
            _reaches(s, distance, zeros, False)
            _copy_into(z_t, s)
            _reset(after_v, unreset, s, threshold, rest, ZERO)  # which reads no threshold
            for j in range(size):
                after_b[j] += s[j] * beta[j]
            v = after_v
            i = after_i
            b = after_b


@_compiled
def adaptive_lif_back(
    start: Array, params: Array, reset_gradient: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
    begin: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`adaptive_lif`; the arguments are those of :func:`leaky_back`."""
    one = start.dtype.type(1)
    scratch = np.empty((4, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        gain = params[0, lo:hi]
        loss = params[1, lo:hi]
        leak = params[2, lo:hi]
        threshold = params[3, lo:hi]
        rest = params[4, lo:hi]
        pull = params[5, lo:hi]
        beta = params[6, lo:hi]
        zeros = params[7, lo:hi]  # the threshold of the distances v - b
        by_gain = by_params[0, lo:hi]
        by_loss = by_params[1, lo:hi]
        by_leak = by_params[2, lo:hi]
        by_threshold = by_params[3, lo:hi]
        by_rest = by_params[4, lo:hi]
        by_pull = by_params[5, lo:hi]
        by_beta = by_params[6, lo:hi]
        slope = scratch[0, :size]  # derivative of a spike by its voltage
        s = scratch[1, :size]  # spikes of the step
        q = scratch[2, :size]  # gradient by the spikes of the step
        unreset = scratch[3, :size]
        g = by_start[0, lo:hi]  # gradient by the voltage
        g_i = by_start[1, lo:hi]  # by i
        g_b = by_start[2, lo:hi]  # by b
        for t in range(stop - 1, begin - 1, -1):
            v = _before(states[0], start[0], t, lo, hi)
            i = _before(states[1], start[1], t, lo, hi)
            b = _before(states[2], start[2], t, lo, hi)
            from_z = _at(by_z, t, lo, hi)
            from_v = _at(by_states[0], t, lo, hi)
            from_i = _at(by_states[1], t, lo, hi)
            from_b = _at(by_states[2], t, lo, hi)
            by_x_t = _at(by_x, t, lo, hi)
            distance = u[t, lo:hi]
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                g_i[j] += from_i[j]
            for j in range(size):
                g_b[j] += from_b[j]
            # v before its reset, again: the run kept its distance from the threshold alone
            for j in range(size):
                unreset[j] = v[j] + gain[j] * ((leak[j] - v[j]) + i[j])
            _slopes(slope, kind, a, distance, zeros, _at(given, t, lo, hi))
            _reaches(s, distance, zeros, False)
            _copy_into(q, from_z)
            if reset_gradient:  # through what a spike does to v and b
                for j in range(size):
                    q[j] += g[j] * (rest[j] - unreset[j]) + g_b[j] * beta[j]
            for j in range(size):
                q[j] *= slope[j]
            if learnt:
                for j in range(size):
                    by_rest[j] += g[j] * s[j]
                for j in range(size):
                    by_beta[j] += g_b[j] * s[j]
            for j in range(size):
                g[j] = g[j] * (one - s[j]) + q[j]
            for j in range(size):
                g_b[j] -= q[j]
            if learnt:
                for j in range(size):
                    by_pull[j] += g_b[j] * (threshold[j] - b[j])
                for j in range(size):
                    by_threshold[j] += g_b[j] * pull[j]
                for j in range(size):
                    by_gain[j] += g[j] * ((leak[j] - v[j]) + i[j])
                for j in range(size):
                    by_loss[j] += g_i[j] * i[j]
                for j in range(size):
                    by_leak[j] += g[j] * gain[j]
            for j in range(size):
                by_x_t[j] += g_i[j]
            for j in range(size):
                g_i[j] += g_i[j] * loss[j] + g[j] * gain[j]
            for j in range(size):
                g[j] -= g[j] * gain[j]
            for j in range(size):
                g_b[j] -= g_b[j] * pull[j]


@_compiled
def voltage_lif(
    x: Array, start: Array, params: Array, form: int, divides: bool, reset: int, reset_gradient: bool,
    at_threshold: bool, z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """Run norse's LIFBox or spikingjelly's neurons, whose one state is the voltage, over all steps.

    Args:
        x: currents (T, M), or (1, M) if they are the same in all steps.
        start: the voltage before the first step (1, M).
        params: the gain, the voltage to which the leak pulls, the threshold, and the voltage after a reset (4, M). The
            gain is dt / tau_mem or 1 / tau; if `divides` it is tau, by which the library divides.
        form: what a step adds to the voltage v. BOX and LEAK_OF_ALL: gain (x - (v - leak)), each in the order of its
            library; LEAK_OF_STATE: x - gain (v - leak); NO_LEAK: x.
        divides: as said at params.
        reset: SUBTRACT, ZERO (to the voltage after a reset) or NONE, at once.
        reset_gradient: for :func:`voltage_lif_back`; the run does not depend on it.
        at_threshold: True if a voltage at the threshold fires too.
        z: to be filled with the spikes (T, M).
        states: to be filled with the voltage after each step, one array (T, M).
        u: to be filled with the voltage before its reset (T, M).
        first: the first entry to run.
        last: the entry behind the last one to run.
    """
    scratch = np.empty((2, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        gain = params[0, lo:hi]
        leak = params[1, lo:hi]
        threshold = params[2, lo:hi]
        rest = params[3, lo:hi]
        s = scratch[0, :size]  # spikes of the step
        change = scratch[1, :size]  # what the gain multiplies, then the product
        v = start[0, lo:hi]
        for t in range(len(z)):
            x_t = _at(x, t, lo, hi)
            z_t = z[t, lo:hi]
            unreset = u[t, lo:hi]
            after = states[0][t, lo:hi]
            if form == BOX:
                for j in range(size):
                    change[j] = x_t[j] + leak[j] - v[j]
            elif form == LEAK_OF_ALL:
                for j in range(size):
                    change[j] = x_t[j] - (v[j] - leak[j])
            elif form == LEAK_OF_STATE:
                for j in range(size):
                    change[j] = v[j] - leak[j]
            if form == NO_LEAK:
                for j in range(size):
                    unreset[j] = v[j] + x_t[j]
            else:
                if divides:
                    for j in range(size):
                        change[j] = change[j] / gain[j]
                else:
                    for j in range(size):
                        change[j] = change[j] * gain[j]
                if form == LEAK_OF_STATE:
                    for j in range(size):
                        unreset[j] = v[j] - change[j] + x_t[j]
                else:
                    for j in range(size):
                        unreset[j] = v[j] + change[j]
            _reaches(s, unreset, threshold, at_threshold)
            _copy_into(z_t, s)
            _reset(after, unreset, s, threshold, rest, reset)
            v = after


@_compiled
def voltage_lif_back(
    start: Array, params: Array, form: int, divides: bool, reset: int, reset_gradient: bool, at_threshold: bool,
    states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
    begin: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`voltage_lif`; the arguments are those of :func:`leaky_back`.

    The first row of by_params is the gradient by the gain, even if `divides` and params hold tau.
    """
    one = start.dtype.type(1)
    scratch = np.empty((4, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        leak = params[1, lo:hi]
        threshold = params[2, lo:hi]
        rest = params[3, lo:hi]
        by_gain = by_params[0, lo:hi]
        by_leak = by_params[1, lo:hi]
        by_threshold = by_params[2, lo:hi]
        by_rest = by_params[3, lo:hi]
        slope = scratch[0, :size]  # derivative of a spike by its voltage
        s = scratch[1, :size]  # spikes of the step
        q = scratch[2, :size]  # gradient by the spikes of the step
        gain = scratch[3, :size]
        for j in range(size):
            gain[j] = one / params[0, lo + j] if divides else params[0, lo + j]
        g = by_start[0, lo:hi]  # gradient by the voltage
        for t in range(stop - 1, begin - 1, -1):
            unreset = u[t, lo:hi]
            from_z = _at(by_z, t, lo, hi)
            from_v = _at(by_states[0], t, lo, hi)
            by_x_t = _at(by_x, t, lo, hi)
            for j in range(size):
                g[j] += from_v[j]
            _slopes(slope, kind, a, unreset, threshold, _at(given, t, lo, hi))
            _reaches(s, unreset, threshold, at_threshold)
            _copy_into(q, from_z)
            _back_through_reset(g, q, s, unreset, threshold, rest, slope, by_threshold, by_rest, reset, reset_gradient)
            if form in (NO_LEAK, LEAK_OF_STATE):
                for j in range(size):
                    by_x_t[j] += g[j]
            else:
                for j in range(size):
                    by_x_t[j] += g[j] * gain[j]
            if form != NO_LEAK:
                if learnt:
                    v = _before(states[0], start[0], t, lo, hi)
                    if form == LEAK_OF_STATE:
                        for j in range(size):
                            by_gain[j] -= g[j] * (v[j] - leak[j])
                    else:
                        for j in range(size):
                            by_gain[j] += g[j] * (unreset[j] - v[j]) / gain[j]
                    for j in range(size):
                        by_leak[j] += g[j] * gain[j]
                for j in range(size):
                    g[j] -= g[j] * gain[j]


# ---- neurons that read their own spikes of the step before


@_inline
def _push(currents: Array, x: Array, z: Array, weight_t: Array, square: bool, indices: Array) -> None:
    """Write all currents of a step (B n,) into `currents`: x from outside, plus what the spikes z before the step send.

    weight_t and square are those of :func:`leaky_recurrent`. `indices` (n + 1,) is memory for the places of spikes.
    """
    n = weight_t.shape[1]
    for row in range(0, len(x), n):
        total = currents[row : row + n]
        spikes = z[row : row + n]
        outside = x[row : row + n]
        if square:  # add the rows of the neurons that fired
            count = _places(spikes, indices, 0)
            _copy_into(total, outside)
            _add_rows(total, weight_t, indices[:count], spikes[indices[:count]])
        else:
            factor = weight_t[0]
            for j in range(n):
                total[j] = outside[j] + spikes[j] * factor[j]


@_compiled
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
        _push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        row = min(t, len(u) - 1)  # u has one row where it is not kept
        before = v[t - 1 : t] if t else start
        leaky(pushed, before, params, reset, delayed, z[t : t + 1], (v[t : t + 1],), u[row : row + 1], NOUGHT, size)


@_compiled
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
        _push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        row = min(t, len(u) - 1)  # u has one row where it is not kept
        after = states[0][t : t + 1], states[1][t : t + 1]
        synaptic(pushed, before, params, reset, delayed, z[t : t + 1], after, u[row : row + 1], NOUGHT, size)
        _copy_into(before[0], states[0][t])
        _copy_into(before[1], states[1][t])


@_compiled
def current_lif_recurrent(
    x: Array, start: Array, params: Array, reset: int, spiking: bool, reset_gradient: bool,
    z: Array, states: Arrays, u: Array, z0: Array, weight_t: Array, square: bool,
) -> None:  # fmt: skip
    """Run norse's LIFRecurrent as :func:`leaky_recurrent` runs RLeaky, by the steps of :func:`current_lif`."""
    size = len(z0)
    pushed = np.empty((1, size), x.dtype)
    indices = np.empty(weight_t.shape[1] + 1, np.int32)
    before = start.copy()  # the states before a step (states, M)
    for t in range(len(z)):
        _push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        row = min(t, len(u) - 1)  # u has one row where it is not kept
        after = states[0][t : t + 1], states[1][t : t + 1]
        current_lif(
            pushed, before, params, reset, spiking, reset_gradient,
            z[t : t + 1], after, u[row : row + 1], NOUGHT, size,
        )  # fmt: skip
        _copy_into(before[0], states[0][t])
        _copy_into(before[1], states[1][t])


@_compiled
def adaptive_lif_recurrent(
    x: Array, start: Array, params: Array, reset_gradient: bool,
    z: Array, states: Arrays, u: Array, z0: Array, weight_t: Array, square: bool,
) -> None:  # fmt: skip
    """Run norse's LSNNRecurrent as :func:`leaky_recurrent` runs RLeaky, by the steps of :func:`adaptive_lif`."""
    size = len(z0)
    pushed = np.empty((1, size), x.dtype)
    indices = np.empty(weight_t.shape[1] + 1, np.int32)
    before = start.copy()  # the states before a step (states, M)
    for t in range(len(z)):
        _push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        after = states[0][t : t + 1], states[1][t : t + 1], states[2][t : t + 1]
        adaptive_lif(pushed, before, params, reset_gradient, z[t : t + 1], after, u[t : t + 1], NOUGHT, size)
        _copy_into(before[0], states[0][t])
        _copy_into(before[1], states[1][t])
        _copy_into(before[2], states[2][t])
