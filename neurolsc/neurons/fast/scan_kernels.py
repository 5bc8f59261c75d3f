"""Neurons without recurrent weights over all steps, compiled by Numba: each entry of a layer by itself.

A kernel takes a range of entries, in pieces that stay in the cache over all steps. Arrays are (T, M), M the entries of
one step, and parameters (M,). The operations of a step and their order are those of the library, so that in exact
arithmetic of the same precision voltages are the same bit for bit.
"""

from typing import Any

import numpy as np
from numba import njit

from neurolsc.neurons.fast.cpu_kernels import Array, compiled

PIECE = 512  # entries of a piece: some rows of it fit the first cache

# derivatives of spikes by the distance d from the threshold, with one number a
GIVEN, NOTHING, ATAN, FAST_SIGMOID, SIGMOID, SIGN, QUADRATIC = range(7)

SUBTRACT, ZERO, NONE = range(3)  # resets, as snnTorch numbers them

_compiled = compiled()
_inline: Any = njit(inline="always")
Arrays = tuple[Array, ...]  # one for each state


@_inline
def _slopes(out: Array, kind: int, a: float, u: Array, threshold: Array, given: Array) -> None:
    """The derivatives of spikes by their voltages."""
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
            out[j] = -height if u[j] - threshold[j] > 0 else height
    elif kind == QUADRATIC:
        height = u.dtype.type(a)
        width = u.dtype.type(a * a)
        nil = u.dtype.type(0)
        for j in range(len(out)):
            out[j] = max(height - width * abs(u[j] - threshold[j]), nil)


@_inline
def _fires(out: Array, u: Array, threshold: Array) -> None:
    """1 where a voltage is above its threshold, else 0."""
    for j in range(len(out)):
        out[j] = u[j] - threshold[j] > 0


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
        beta, threshold, factor = params[0, lo:hi], params[1, lo:hi], params[2, lo:hi]
        r, s = room[0, :size], room[1, :size]
        before = start[0, lo:hi]
        for t in range(len(z)):
            pushed, after, sent = x[t if len(x) > 1 else 0, lo:hi], states[0][t, lo:hi], z[t, lo:hi]
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
            _fires(s, after, threshold)
            for j in range(size):
                sent[j] = s[j] * factor[j]
            if not delayed:
                then = u[t, lo:hi]
                then[:] = after
                if reset == SUBTRACT:
                    for j in range(size):
                        after[j] = then[j] - (s[j] - r[j]) * threshold[j]
                elif reset == ZERO:
                    for j in range(size):
                        after[j] = then[j] - (s[j] - r[j]) * then[j]
            before = after


@_compiled
def leaky_back(
    start: Array, params: Array, reset: int, delayed: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
) -> None:  # fmt: skip
    """The gradients of :func:`leaky`.

    Those by spikes and states are (T, M), or (1, M) if they are zero. by_start holds those by the states at the end, and
    then those by the states before the first step; by_x and by_params are added to.
    """
    v, by_v = states[0], by_states[0]
    one = start.dtype.type(1)
    room = np.empty((4, PIECE), start.dtype)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        size = hi - lo
        beta, threshold, factor = params[0, lo:hi], params[1, lo:hi], params[2, lo:hi]
        by_beta, by_threshold, by_factor = by_params[0, lo:hi], by_params[1, lo:hi], by_params[2, lo:hi]
        slope, r, s, q = room[0, :size], room[1, :size], room[2, :size], room[3, :size]
        g = by_start[0, lo:hi]
        for t in range(len(v) - 1, -1, -1):
            before = v[t - 1, lo:hi] if t else start[0, lo:hi]
            now = v[t, lo:hi] if delayed else u[t, lo:hi]
            from_z, from_v = by_z[t if len(by_z) > 1 else 0, lo:hi], by_v[t if len(by_v) > 1 else 0, lo:hi]
            out = by_x[t if len(by_x) > 1 else 0, lo:hi]
            _slopes(slope, kind, a, now, threshold, given[t if len(given) > 1 else 0, lo:hi])
            _fires(r, before, threshold)
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                q[j] = from_z[j] * factor[j]
            if not delayed and reset != NONE:
                _fires(s, now, threshold)
                for j in range(size):
                    s[j] -= r[j]
                if reset == SUBTRACT:
                    for j in range(size):
                        q[j] -= g[j] * threshold[j]
                    for j in range(size):
                        by_threshold[j] -= g[j] * s[j]
                else:
                    for j in range(size):
                        q[j] -= g[j] * now[j]
                    for j in range(size):
                        g[j] *= one - s[j]
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
                        by_beta[j] += g[j] * before[j] * (one - r[j])
                else:
                    for j in range(size):
                        by_beta[j] += g[j] * before[j]
            for j in range(size):
                out[j] += g[j]
            if reset == ZERO:
                for j in range(size):
                    g[j] *= beta[j] * (one - r[j])
            else:
                for j in range(size):
                    g[j] *= beta[j]
