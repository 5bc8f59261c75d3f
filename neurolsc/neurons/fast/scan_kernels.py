"""Neurons without recurrent weights over all steps, compiled by Numba: each entry of a layer by itself.

A kernel takes the entries `first` to `last`, in pieces lo to hi that stay in the cache over all steps. With M entries
in a step, currents x, spikes z, states and voltages u before a reset are (T, M), x and u also (1, M) where they are the
same, or not needed, in all steps; `start` and `params` have a row (M,) for each state and parameter. Names inside: r
are the spikes before a step, s those after it, q gradients by spikes and g by states; `room` is memory for a piece.
The operations of a step and their order are those of the library, so that in exact arithmetic of the same precision
voltages are the same bit for bit.
"""

from typing import Any

import numpy as np
from numba import njit

from neurolsc.neurons.fast.cpu_kernels import Array, _add_rows, _places, compiled

PIECE = 512  # entries of a piece: some rows of it fit the first cache

# Formulas of the derivative of a spike by its voltage, with one number a; GIVEN: as an array, NOTHING: 0.
GIVEN, NOTHING, ATAN, FAST_SIGMOID, SIGMOID, SIGN, QUADRATIC = range(7)

SUBTRACT, ZERO, NONE, ALL = range(4)  # resets, as snnTorch numbers them; ALL: to zero, the input of the step with it

NOUGHT = np.int64(0)  # as a bare 0, a constant of its own type, it would have a kernel compiled once more

_compiled = compiled()
_inline: Any = njit(inline="always")
Arrays = tuple[Array, ...]  # one for each state


@_inline
def _slopes(out: Array, kind: int, a: float, u: Array, threshold: Array, given: Array) -> None:
    """Write the derivatives of spikes by their voltages u."""
    one = u.dtype.type(1)
    if kind == GIVEN:
        for j in range(len(out)):
            out[j] = given[j]
    elif kind == NOTHING:
        for j in range(len(out)):
            out[j] = 0
    elif kind == ATAN:
        width = u.dtype.type(np.pi / 2 * a)
        height = u.dtype.type(a / 2)
        for j in range(len(out)):
            scaled = width * (u[j] - threshold[j])
            out[j] = height / (one + scaled * scaled)
    elif kind == FAST_SIGMOID:
        width = u.dtype.type(a)
        for j in range(len(out)):
            scaled = width * abs(u[j] - threshold[j]) + one
            out[j] = one / (scaled * scaled)
    elif kind == SIGMOID:
        width = u.dtype.type(a)
        for j in range(len(out)):
            small = np.exp(-width * abs(u[j] - threshold[j]))
            out[j] = width * small / ((one + small) * (one + small))
    elif kind == SIGN:
        height = u.dtype.type(a)
        for j in range(len(out)):
            out[j] = -height if u[j] - threshold[j] >= 0 else height
    elif kind == QUADRATIC:
        height = u.dtype.type(a)
        width = u.dtype.type(a * a)
        nil = u.dtype.type(0)
        for j in range(len(out)):
            out[j] = max(height - width * abs(u[j] - threshold[j]), nil)


@_inline
def _at(rows: Array, t: int, lo: int, hi: int) -> Array:
    """Entries lo to hi of step t; rows are (T, M), or (1, M) for all steps."""
    return rows[min(t, len(rows) - 1), lo:hi]


@_inline
def _before(state: Array, start: Array, t: int, lo: int, hi: int) -> Array:
    """Entries lo to hi of a state (T, M) before step t, from its start (M,)."""
    if t:
        return state[t - 1, lo:hi]
    return start[lo:hi]


@_inline
def _copy(out: Array, values: Array) -> None:
    """Copy entry by entry: an assignment to a slice takes Numba seconds to compile."""
    for j in range(len(out)):
        out[j] = values[j]


@_inline
def _fires(out: Array, u: Array, threshold: Array) -> None:
    """1 where a voltage is above its threshold, else 0."""
    for j in range(len(out)):
        out[j] = u[j] - threshold[j] > 0


@_inline
def _reset_again(after: Array, then: Array, s: Array, r: Array, threshold: Array, reset: int) -> None:
    """Reset voltages by their own spikes s, but for those that the spikes r of the step before have reset."""
    if reset == SUBTRACT:
        for j in range(len(after)):
            after[j] = then[j] - (s[j] - r[j]) * threshold[j]
    elif reset != NONE:
        for j in range(len(after)):
            after[j] = then[j] - (s[j] - r[j]) * then[j]


@_inline
def _back_through_reset_again(
    g: Array, q: Array, s: Array, r: Array, now: Array, threshold: Array, by_threshold: Array, reset: int
) -> None:
    """The gradients of :func:`_reset_again`: g by the voltages, before and after; q by the spikes, added to."""
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
            q[j] -= g[j] * now[j]
        for j in range(len(g)):
            g[j] *= one - s[j]


@_compiled
def leaky(
    x: Array, start: Array, params: Array, reset: int, delayed: bool,
    z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """snnTorch's Leaky; params are beta, threshold and the factor of graded spikes."""
    room = np.empty((2, PIECE), start.dtype)
    one = start.dtype.type(1)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        beta = params[0, lo:hi]
        threshold = params[1, lo:hi]
        factor = params[2, lo:hi]
        r = room[0, :size]
        s = room[1, :size]
        before = start[0, lo:hi]
        for t in range(len(z)):
            pushed = _at(x, t, lo, hi)
            after = states[0][t, lo:hi]
            sent = z[t, lo:hi]
            _fires(r, before, threshold)
            if reset == SUBTRACT:
                for j in range(size):
                    after[j] = beta[j] * before[j] + pushed[j] - r[j] * threshold[j]
            elif reset == ZERO:
                for j in range(size):
                    after[j] = beta[j] * ((one - r[j]) * before[j]) + pushed[j]
            else:
                for j in range(size):
                    after[j] = beta[j] * before[j] + pushed[j]
            if reset == ALL:
                for j in range(size):
                    after[j] -= r[j] * after[j]
            _fires(s, after, threshold)
            for j in range(size):
                sent[j] = s[j] * factor[j]
            if not delayed:
                then = u[t, lo:hi]
                _copy(then, after)
                _reset_again(after, then, s, r, threshold, reset)
            before = after


@_compiled
def leaky_back(
    start: Array, params: Array, reset: int, delayed: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
) -> None:  # fmt: skip
    """The gradients of :func:`leaky`.

    Those by spikes and states are (T, M), or (1, M) if they are zero. by_start holds those by the states at the end,
    then those by the states before the first step; by_x and by_params are added to.
    """
    v = states[0]
    by_v = by_states[0]
    one = start.dtype.type(1)
    room = np.empty((4, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        beta = params[0, lo:hi]
        threshold = params[1, lo:hi]
        factor = params[2, lo:hi]
        by_beta = by_params[0, lo:hi]
        by_threshold = by_params[1, lo:hi]
        by_factor = by_params[2, lo:hi]
        slope = room[0, :size]
        r = room[1, :size]
        s = room[2, :size]
        q = room[3, :size]
        g = by_start[0, lo:hi]
        for t in range(len(v) - 1, -1, -1):
            before = _before(v, start[0], t, lo, hi)
            now = v[t, lo:hi] if delayed else u[t, lo:hi]
            from_z = _at(by_z, t, lo, hi)
            from_v = _at(by_v, t, lo, hi)
            out = _at(by_x, t, lo, hi)
            _slopes(slope, kind, a, now, threshold, _at(given, t, lo, hi))
            _fires(r, before, threshold)
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                q[j] = from_z[j] * factor[j]
            if not delayed and reset != NONE:
                _fires(s, now, threshold)
                _back_through_reset_again(g, q, s, r, now, threshold, by_threshold, reset)
            for j in range(size):
                q[j] *= slope[j]
            for j in range(size):
                g[j] += q[j]
            if learnt:
                _fires(s, now, threshold)
                for j in range(size):
                    by_factor[j] += from_z[j] * s[j]
                for j in range(size):
                    by_threshold[j] -= q[j]
                if reset == SUBTRACT:
                    for j in range(size):
                        by_threshold[j] -= g[j] * r[j]
            if reset == ALL:
                for j in range(size):
                    g[j] *= one - r[j]
            for j in range(size):
                out[j] += g[j]
            if reset == ZERO:
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
    """snnTorch's Synaptic; params are alpha, beta, threshold and the factor of graded spikes."""
    room = np.empty((2, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        alpha = params[0, lo:hi]
        beta = params[1, lo:hi]
        threshold = params[2, lo:hi]
        factor = params[3, lo:hi]
        r = room[0, :size]
        s = room[1, :size]
        current = start[0, lo:hi]
        before = start[1, lo:hi]
        for t in range(len(z)):
            pushed = _at(x, t, lo, hi)
            sent = z[t, lo:hi]
            syn = states[0][t, lo:hi]
            after = states[1][t, lo:hi]
            _fires(r, before, threshold)
            for j in range(size):
                syn[j] = alpha[j] * current[j] + pushed[j]
            for j in range(size):
                after[j] = beta[j] * before[j] + syn[j]
            if reset == SUBTRACT:
                for j in range(size):
                    after[j] -= r[j] * threshold[j]
            elif reset == ZERO:
                for j in range(size):
                    after[j] -= after[j] * r[j]
            _fires(s, after, threshold)
            for j in range(size):
                sent[j] = s[j] * factor[j]
            if not delayed:
                then = u[t, lo:hi]
                _copy(then, after)
                _reset_again(after, then, s, r, threshold, reset)
            current = syn
            before = after


@_compiled
def synaptic_back(
    start: Array, params: Array, reset: int, delayed: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
) -> None:  # fmt: skip
    """The gradients of :func:`synaptic`, as those of :func:`leaky_back`."""
    one = start.dtype.type(1)
    room = np.empty((4, PIECE), start.dtype)
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
        slope = room[0, :size]
        r = room[1, :size]
        s = room[2, :size]
        q = room[3, :size]
        g_syn = by_start[0, lo:hi]
        g = by_start[1, lo:hi]
        for t in range(len(states[0]) - 1, -1, -1):
            current = _before(states[0], start[0], t, lo, hi)
            before = _before(states[1], start[1], t, lo, hi)
            now = states[1][t, lo:hi] if delayed else u[t, lo:hi]
            from_z = _at(by_z, t, lo, hi)
            from_syn = _at(by_states[0], t, lo, hi)
            from_v = _at(by_states[1], t, lo, hi)
            out = _at(by_x, t, lo, hi)
            _slopes(slope, kind, a, now, threshold, _at(given, t, lo, hi))
            _fires(r, before, threshold)
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                q[j] = from_z[j] * factor[j]
            if not delayed and reset != NONE:
                _fires(s, now, threshold)
                _back_through_reset_again(g, q, s, r, now, threshold, by_threshold, reset)
            for j in range(size):
                q[j] *= slope[j]
            for j in range(size):
                g[j] += q[j]
            if learnt:
                _fires(s, now, threshold)
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
                    by_alpha[j] += g_syn[j] * current[j]
            for j in range(size):
                out[j] += g_syn[j]
            for j in range(size):
                g[j] *= beta[j]
            for j in range(size):
                g_syn[j] *= alpha[j]


@_compiled
def alpha_function(
    x: Array, start: Array, params: Array, reset: int, z: Array, states: Arrays, u: Array, first: int, last: int
) -> None:
    """snnTorch's Alpha; params are alpha, beta, threshold, the factor of graded spikes and that of the membrane."""
    room = np.empty((2, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        alpha = params[0, lo:hi]
        beta = params[1, lo:hi]
        threshold = params[2, lo:hi]
        factor = params[3, lo:hi]
        scale = params[4, lo:hi]
        r = room[0, :size]
        s = room[1, :size]
        last_exc = start[0, lo:hi]
        last_inh = start[1, lo:hi]
        before = start[2, lo:hi]
        for t in range(len(z)):
            pushed = _at(x, t, lo, hi)
            sent = z[t, lo:hi]
            exc = states[0][t, lo:hi]
            inh = states[1][t, lo:hi]
            after = states[2][t, lo:hi]
            _fires(r, before, threshold)
            for j in range(size):
                exc[j] = alpha[j] * last_exc[j] + pushed[j]
            for j in range(size):
                inh[j] = beta[j] * last_inh[j] - pushed[j]
            for j in range(size):
                after[j] = scale[j] * (exc[j] + inh[j])
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
                sent[j] = s[j] * factor[j]
            last_exc = exc
            last_inh = inh
            before = after


@_compiled
def alpha_function_back(
    start: Array, params: Array, reset: int, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
) -> None:  # fmt: skip
    """The gradients of :func:`alpha_function`, as those of :func:`leaky_back`."""
    one = start.dtype.type(1)
    nil = start.dtype.type(0)
    room = np.empty((6, PIECE), start.dtype)
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
        slope = room[0, :size]
        r = room[1, :size]
        s = room[2, :size]
        q = room[3, :size]
        kept = room[4, :size]
        later = room[5, :size]
        g_exc = by_start[0, lo:hi]
        g_inh = by_start[1, lo:hi]
        g = by_start[2, lo:hi]
        for t in range(len(states[0]) - 1, -1, -1):
            last_exc = _before(states[0], start[0], t, lo, hi)
            last_inh = _before(states[1], start[1], t, lo, hi)
            before = _before(states[2], start[2], t, lo, hi)
            now = states[2][t, lo:hi]
            from_z = _at(by_z, t, lo, hi)
            from_exc = _at(by_states[0], t, lo, hi)
            from_inh = _at(by_states[1], t, lo, hi)
            from_v = _at(by_states[2], t, lo, hi)
            out = _at(by_x, t, lo, hi)
            _slopes(slope, kind, a, now, threshold, _at(given, t, lo, hi))
            _fires(r, before, threshold)
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
                _fires(s, now, threshold)
                for j in range(size):
                    by_factor[j] += from_z[j] * s[j]
                for j in range(size):
                    by_threshold[j] -= q[j]
                if reset == SUBTRACT:
                    for j in range(size):
                        by_threshold[j] -= g_exc[j] * r[j]
            # by the three results before the reset of this step, and by the last inhibition that a reset adds
            for j in range(size):
                later[j] = g[j] * r[j] if reset == SUBTRACT else nil
            if reset == ZERO:
                for j in range(size):
                    g_exc[j] *= kept[j]
                for j in range(size):
                    g[j] *= kept[j]
            for j in range(size):
                g_inh[j] *= kept[j]
            if learnt:
                for j in range(size):
                    reached = alpha[j] * last_exc[j] + beta[j] * last_inh[j]  # the input cancels
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
                out[j] += g_exc[j] - g_inh[j]
            for j in range(size):
                g_exc[j] *= alpha[j]
            for j in range(size):
                g_inh[j] = g_inh[j] * beta[j] + later[j]
            for j in range(size):
                g[j] = nil  # a membrane is made anew in each step


# ---- neurons that are reset within the step that fires


@_inline
def _reaches(out: Array, u: Array, threshold: Array, at: bool) -> None:
    """1 where a voltage is above its threshold, or at it if `at`, else 0."""
    if at:
        for j in range(len(out)):
            out[j] = u[j] - threshold[j] >= 0
    else:
        for j in range(len(out)):
            out[j] = u[j] - threshold[j] > 0


@_inline
def _reset(after: Array, u: Array, s: Array, threshold: Array, rest: Array, reset: int) -> None:
    """The voltages after a reset by subtraction, or to a value; without one they are u."""
    one = u.dtype.type(1)
    if reset == SUBTRACT:
        for j in range(len(u)):
            after[j] = u[j] - s[j] * threshold[j]
    elif reset == ZERO:
        for j in range(len(u)):
            after[j] = (one - s[j]) * u[j] + s[j] * rest[j]
    else:
        for j in range(len(u)):
            after[j] = u[j]


@_inline
def _back_through_reset(
    g: Array, q: Array, s: Array, u: Array, threshold: Array, rest: Array, slope: Array,
    by_threshold: Array, by_rest: Array, reset: int, passes: bool,
) -> None:  # fmt: skip
    """The gradients of spikes and reset.

    g is that by the voltages after the reset, then by those before it; q that by the spikes from outside.
    """
    one = g.dtype.type(1)
    if reset == SUBTRACT:
        if passes:
            for j in range(len(g)):
                q[j] -= g[j] * threshold[j]
        for j in range(len(g)):
            by_threshold[j] -= g[j] * s[j]
    elif reset == ZERO:
        if passes:
            for j in range(len(g)):
                q[j] += g[j] * (rest[j] - u[j])
        for j in range(len(g)):
            by_rest[j] += g[j] * s[j]
        for j in range(len(g)):
            g[j] *= one - s[j]
    for j in range(len(g)):
        q[j] *= slope[j]
    for j in range(len(g)):
        by_threshold[j] -= q[j]
    for j in range(len(g)):
        g[j] += q[j]


@_compiled
def current_lif(
    x: Array, start: Array, params: Array, reset: int, sends: bool, passes: bool,
    z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """norse's LIF (sends spikes) and LI (sends voltages).

    params are dt / tau_mem, -dt / tau_syn, v_leak, v_th and v_reset.
    """
    room = np.empty((2, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        gain = params[0, lo:hi]
        loss = params[1, lo:hi]
        leak = params[2, lo:hi]
        threshold = params[3, lo:hi]
        rest = params[4, lo:hi]
        s = room[0, :size]
        pushed = room[1, :size]
        v = start[0, lo:hi]
        i = start[1, lo:hi]
        for t in range(len(z)):
            current = _at(x, t, lo, hi)
            sent = z[t, lo:hi]
            then = _at(u, t, lo, hi)
            after_v = states[0][t, lo:hi]
            after_i = states[1][t, lo:hi]
            for j in range(size):
                pushed[j] = i[j] + current[j]
            for j in range(size):
                then[j] = v[j] + gain[j] * ((leak[j] - v[j]) + pushed[j])
            for j in range(size):
                after_i[j] = pushed[j] + loss[j] * pushed[j]
            if sends:
                _reaches(s, then, threshold, False)
                _copy(sent, s)
                _reset(after_v, then, s, threshold, rest, reset)
            else:
                _copy(sent, then)
                _copy(after_v, then)
            v = after_v
            i = after_i


@_compiled
def current_lif_back(
    start: Array, params: Array, reset: int, sends: bool, passes: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
) -> None:  # fmt: skip
    """The gradients of :func:`current_lif`, as those of :func:`leaky_back`."""
    room = np.empty((4, PIECE), start.dtype)
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
        slope = room[0, :size]
        s = room[1, :size]
        q = room[2, :size]
        g_pushed = room[3, :size]
        g = by_start[0, lo:hi]
        g_i = by_start[1, lo:hi]
        for t in range(len(states[0]) - 1, -1, -1):
            then = _at(u, t, lo, hi)
            from_z = _at(by_z, t, lo, hi)
            from_v = _at(by_states[0], t, lo, hi)
            from_i = _at(by_states[1], t, lo, hi)
            out = _at(by_x, t, lo, hi)
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                g_i[j] += from_i[j]
            if sends:
                _slopes(slope, kind, a, then, threshold, _at(given, t, lo, hi))
                _reaches(s, then, threshold, False)
                _copy(q, from_z)
                _back_through_reset(g, q, s, then, threshold, rest, slope, by_threshold, by_rest, reset, passes)
            else:
                for j in range(size):
                    g[j] += from_z[j]
            if learnt:
                v = _before(states[0], start[0], t, lo, hi)
                moved = then if sends else states[0][t, lo:hi]
                for j in range(size):
                    # the pushed current, from what it moved
                    s[j] = (moved[j] - v[j]) / gain[j] - (leak[j] - v[j])
                for j in range(size):
                    by_gain[j] += g[j] * ((leak[j] - v[j]) + s[j])
                for j in range(size):
                    by_loss[j] += g_i[j] * s[j]
                for j in range(size):
                    by_leak[j] += g[j] * gain[j]
            for j in range(size):
                g_pushed[j] = g[j] * gain[j] + g_i[j] + g_i[j] * loss[j]
            for j in range(size):
                out[j] += g_pushed[j]
            for j in range(size):
                g[j] -= g[j] * gain[j]
            _copy(g_i, g_pushed)


@_compiled
def adaptive_lif(
    x: Array, start: Array, params: Array, passes: bool,
    z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """norse's LSNN, whose threshold b is a state; u are the distances of voltages from it.

    params are dt / tau_mem, -dt / tau_syn, v_leak, v_th, v_reset, dt / tau_adapt, beta and 0.
    """
    room = np.empty((2, PIECE), start.dtype)
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
        nil = params[7, lo:hi]
        s = room[0, :size]
        then = room[1, :size]
        v = start[0, lo:hi]
        i = start[1, lo:hi]
        b = start[2, lo:hi]
        for t in range(len(z)):
            current = _at(x, t, lo, hi)
            sent = z[t, lo:hi]
            distance = u[t, lo:hi]
            after_v = states[0][t, lo:hi]
            after_i = states[1][t, lo:hi]
            after_b = states[2][t, lo:hi]
            for j in range(size):
                then[j] = v[j] + gain[j] * ((leak[j] - v[j]) + i[j])
            for j in range(size):
                after_i[j] = i[j] + loss[j] * i[j] + current[j]
            for j in range(size):
                after_b[j] = b[j] + pull[j] * (threshold[j] - b[j])
            for j in range(size):
                distance[j] = then[j] - after_b[j]
            _reaches(s, distance, nil, False)
            _copy(sent, s)
            _reset(after_v, then, s, threshold, rest, ZERO)
            for j in range(size):
                after_b[j] += s[j] * beta[j]
            v = after_v
            i = after_i
            b = after_b


@_compiled
def adaptive_lif_back(
    start: Array, params: Array, passes: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
) -> None:  # fmt: skip
    """The gradients of :func:`adaptive_lif`, as those of :func:`leaky_back`."""
    one = start.dtype.type(1)
    room = np.empty((4, PIECE), start.dtype)
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
        nil = params[7, lo:hi]
        by_gain = by_params[0, lo:hi]
        by_loss = by_params[1, lo:hi]
        by_leak = by_params[2, lo:hi]
        by_threshold = by_params[3, lo:hi]
        by_rest = by_params[4, lo:hi]
        by_pull = by_params[5, lo:hi]
        by_beta = by_params[6, lo:hi]
        slope = room[0, :size]
        s = room[1, :size]
        q = room[2, :size]
        then = room[3, :size]
        g = by_start[0, lo:hi]
        g_i = by_start[1, lo:hi]
        g_b = by_start[2, lo:hi]
        for t in range(len(u) - 1, -1, -1):
            v = _before(states[0], start[0], t, lo, hi)
            i = _before(states[1], start[1], t, lo, hi)
            b = _before(states[2], start[2], t, lo, hi)
            from_z = _at(by_z, t, lo, hi)
            from_v = _at(by_states[0], t, lo, hi)
            from_i = _at(by_states[1], t, lo, hi)
            from_b = _at(by_states[2], t, lo, hi)
            out = _at(by_x, t, lo, hi)
            distance = u[t, lo:hi]
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                g_i[j] += from_i[j]
            for j in range(size):
                g_b[j] += from_b[j]
            for j in range(size):
                then[j] = v[j] + gain[j] * ((leak[j] - v[j]) + i[j])
            _slopes(slope, kind, a, distance, nil, _at(given, t, lo, hi))
            _reaches(s, distance, nil, False)
            _copy(q, from_z)
            if passes:
                for j in range(size):
                    q[j] += g[j] * (rest[j] - then[j]) + g_b[j] * beta[j]
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
                out[j] += g_i[j]
            for j in range(size):
                g_i[j] += g_i[j] * loss[j] + g[j] * gain[j]
            for j in range(size):
                g[j] -= g[j] * gain[j]
            for j in range(size):
                g_b[j] -= g_b[j] * pull[j]


BOX, LEAK_OF_ALL, LEAK_OF_STATE, NO_LEAK = range(4)  # norse's LIFBox; spikingjelly's decay_input, without it; IFNode


@_compiled
def voltage_lif(
    x: Array, start: Array, params: Array, form: int, divides: bool, reset: int, passes: bool, at: bool,
    z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """norse's LIFBox and spikingjelly's neurons, whose one state is the voltage.

    params are the gain dt / tau_mem or 1 / tau (tau itself if it divides), the leak, the threshold and the reset.
    """
    room = np.empty((2, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        gain = params[0, lo:hi]
        leak = params[1, lo:hi]
        threshold = params[2, lo:hi]
        rest = params[3, lo:hi]
        s = room[0, :size]
        moved = room[1, :size]
        v = start[0, lo:hi]
        for t in range(len(z)):
            pushed = _at(x, t, lo, hi)
            sent = z[t, lo:hi]
            then = u[t, lo:hi]
            after = states[0][t, lo:hi]
            if form == BOX:
                for j in range(size):
                    moved[j] = pushed[j] + leak[j] - v[j]
            elif form == LEAK_OF_ALL:
                for j in range(size):
                    moved[j] = pushed[j] - (v[j] - leak[j])
            elif form == LEAK_OF_STATE:
                for j in range(size):
                    moved[j] = v[j] - leak[j]
            if form == NO_LEAK:
                for j in range(size):
                    then[j] = v[j] + pushed[j]
            else:
                if divides:
                    for j in range(size):
                        moved[j] = moved[j] / gain[j]
                else:
                    for j in range(size):
                        moved[j] = moved[j] * gain[j]
                if form == LEAK_OF_STATE:
                    for j in range(size):
                        then[j] = v[j] - moved[j] + pushed[j]
                else:
                    for j in range(size):
                        then[j] = v[j] + moved[j]
            _reaches(s, then, threshold, at)
            _copy(sent, s)
            _reset(after, then, s, threshold, rest, reset)
            v = after


@_compiled
def voltage_lif_back(
    start: Array, params: Array, form: int, divides: bool, reset: int, passes: bool, at: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
) -> None:  # fmt: skip
    """The gradients of :func:`voltage_lif`, as those of :func:`leaky_back`; by the gain even where tau divides."""
    one = start.dtype.type(1)
    room = np.empty((4, PIECE), start.dtype)
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
        slope = room[0, :size]
        s = room[1, :size]
        q = room[2, :size]
        gain = room[3, :size]
        for j in range(size):
            gain[j] = one / params[0, lo + j] if divides else params[0, lo + j]
        g = by_start[0, lo:hi]
        for t in range(len(u) - 1, -1, -1):
            then = u[t, lo:hi]
            from_z = _at(by_z, t, lo, hi)
            from_v = _at(by_states[0], t, lo, hi)
            out = _at(by_x, t, lo, hi)
            for j in range(size):
                g[j] += from_v[j]
            _slopes(slope, kind, a, then, threshold, _at(given, t, lo, hi))
            _reaches(s, then, threshold, at)
            _copy(q, from_z)
            _back_through_reset(g, q, s, then, threshold, rest, slope, by_threshold, by_rest, reset, passes)
            if form in (NO_LEAK, LEAK_OF_STATE):
                for j in range(size):
                    out[j] += g[j]
            else:
                for j in range(size):
                    out[j] += g[j] * gain[j]
            if form != NO_LEAK:
                if learnt:
                    v = _before(states[0], start[0], t, lo, hi)
                    if form == LEAK_OF_STATE:
                        for j in range(size):
                            by_gain[j] -= g[j] * (v[j] - leak[j])
                    else:
                        for j in range(size):
                            by_gain[j] += g[j] * (then[j] - v[j]) / gain[j]
                    for j in range(size):
                        by_leak[j] += g[j] * gain[j]
                for j in range(size):
                    g[j] -= g[j] * gain[j]


# ---- neurons that read their own spikes of the step before


@_inline
def _push(pushed: Array, x: Array, z: Array, weight_t: Array, square: bool, indices: Array) -> None:
    """The currents of a step (B n,): those from outside, and what spikes (B n,) send by recurrent weights.

    weight_t is (n, n), transposed, or a factor of each neuron's own spikes (1, n).
    """
    n = weight_t.shape[1]
    for row in range(0, len(x), n):
        out = pushed[row : row + n]
        sent = z[row : row + n]
        outside = x[row : row + n]
        if square:
            count = _places(sent, indices, 0)
            _copy(out, outside)
            _add_rows(out, weight_t, indices[:count], sent[indices[:count]])
        else:
            factor = weight_t[0]
            for j in range(n):
                out[j] = outside[j] + sent[j] * factor[j]


@_compiled
def leaky_recurrent(
    x: Array, start: Array, params: Array, reset: int, delayed: bool,
    z: Array, states: Arrays, u: Array, z0: Array, weight_t: Array, square: bool,
) -> None:  # fmt: skip
    """snnTorch's RLeaky, by the steps of :func:`leaky`."""
    size = len(z0)
    pushed = np.empty((1, size), x.dtype)
    indices = np.empty(weight_t.shape[1] + 1, np.int32)
    v = states[0]
    for t in range(len(z)):
        _push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        now = min(t, len(u) - 1)
        before = v[t - 1 : t] if t else start
        leaky(pushed, before, params, reset, delayed, z[t : t + 1], (v[t : t + 1],), u[now : now + 1], NOUGHT, size)


@_compiled
def synaptic_recurrent(
    x: Array, start: Array, params: Array, reset: int, delayed: bool,
    z: Array, states: Arrays, u: Array, z0: Array, weight_t: Array, square: bool,
) -> None:  # fmt: skip
    """snnTorch's RSynaptic, by the steps of :func:`synaptic`."""
    size = len(z0)
    pushed = np.empty((1, size), x.dtype)
    indices = np.empty(weight_t.shape[1] + 1, np.int32)
    before = start.copy()
    for t in range(len(z)):
        _push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        now = min(t, len(u) - 1)
        after = states[0][t : t + 1], states[1][t : t + 1]
        synaptic(pushed, before, params, reset, delayed, z[t : t + 1], after, u[now : now + 1], NOUGHT, size)
        _copy(before[0], states[0][t])
        _copy(before[1], states[1][t])


@_compiled
def current_lif_recurrent(
    x: Array, start: Array, params: Array, reset: int, sends: bool, passes: bool,
    z: Array, states: Arrays, u: Array, z0: Array, weight_t: Array, square: bool,
) -> None:  # fmt: skip
    """norse's LIFRecurrent, by the steps of :func:`current_lif`."""
    size = len(z0)
    pushed = np.empty((1, size), x.dtype)
    indices = np.empty(weight_t.shape[1] + 1, np.int32)
    before = start.copy()
    for t in range(len(z)):
        _push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        now = min(t, len(u) - 1)
        after = states[0][t : t + 1], states[1][t : t + 1]
        current_lif(pushed, before, params, reset, sends, passes, z[t : t + 1], after, u[now : now + 1], NOUGHT, size)
        _copy(before[0], states[0][t])
        _copy(before[1], states[1][t])


@_compiled
def adaptive_lif_recurrent(
    x: Array, start: Array, params: Array, passes: bool,
    z: Array, states: Arrays, u: Array, z0: Array, weight_t: Array, square: bool,
) -> None:  # fmt: skip
    """norse's LSNNRecurrent, by the steps of :func:`adaptive_lif`."""
    size = len(z0)
    pushed = np.empty((1, size), x.dtype)
    indices = np.empty(weight_t.shape[1] + 1, np.int32)
    before = start.copy()
    for t in range(len(z)):
        _push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        after = states[0][t : t + 1], states[1][t : t + 1], states[2][t : t + 1]
        adaptive_lif(pushed, before, params, passes, z[t : t + 1], after, u[t : t + 1], NOUGHT, size)
        _copy(before[0], states[0][t])
        _copy(before[1], states[1][t])
        _copy(before[2], states[2][t])
