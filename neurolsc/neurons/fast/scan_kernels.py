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
def _slopes(out: Array, kind: int, a: float, u: Array, threshold: Array, given: Array, lo: int, hi: int) -> None:
    """The derivatives of a piece's spikes by their voltages."""
    if kind == GIVEN:
        for j in range(lo, hi):
            out[j - lo] = given[j]
    elif kind == NOTHING:
        for j in range(lo, hi):
            out[j - lo] = 0
    elif kind == ATAN:
        for j in range(lo, hi):
            scaled = np.pi / 2 * a * (u[j] - threshold[j])
            out[j - lo] = a / 2 / (1 + scaled * scaled)
    elif kind == FAST_SIGMOID:
        for j in range(lo, hi):
            scaled = a * abs(u[j] - threshold[j]) + 1
            out[j - lo] = 1 / (scaled * scaled)
    elif kind == SIGMOID:
        for j in range(lo, hi):
            small = np.exp(-a * abs(u[j] - threshold[j]))
            out[j - lo] = a * small / ((1 + small) * (1 + small))
    elif kind == SIGN:
        for j in range(lo, hi):
            out[j - lo] = -a if u[j] - threshold[j] > 0 else a
    elif kind == QUADRATIC:
        for j in range(lo, hi):
            out[j - lo] = max(a - a * a * abs(u[j] - threshold[j]), 0.0)


@_compiled
def leaky(
    x: Array, start: Array, params: Array, reset: int, delayed: bool,
    z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """snnTorch's Leaky; params are beta, threshold and the factor of graded spikes."""
    beta, threshold, factor = params[0], params[1], params[2]
    v = states[0]
    nil, one = start.dtype.type(0), start.dtype.type(1)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        for t in range(len(z)):
            before = v[t - 1] if t else start[0]
            pushed, after, sent = x[t if len(x) > 1 else 0], v[t], z[t]
            if reset == SUBTRACT:
                for j in range(lo, hi):
                    r = one if before[j] - threshold[j] > nil else nil
                    after[j] = beta[j] * before[j] + pushed[j] - r * threshold[j]
            elif reset == ZERO:
                for j in range(lo, hi):
                    r = one if before[j] - threshold[j] > nil else nil
                    after[j] = beta[j] * ((one - r) * before[j]) + pushed[j]
            else:
                for j in range(lo, hi):
                    after[j] = beta[j] * before[j] + pushed[j]
            for j in range(lo, hi):
                sent[j] = factor[j] if after[j] - threshold[j] > nil else nil
            if not delayed:
                _reset_at_once(before, after, u[t], threshold, reset, nil, one, lo, hi)


@_inline
def _reset_at_once(
    before: Array, after: Array, u: Array, threshold: Array, reset: int, nil: Any, one: Any, lo: int, hi: int
) -> None:
    """Reset the voltages of a step by its own spikes; those of the step before have reset them already."""
    for j in range(lo, hi):
        u[j] = after[j]
    if reset != NONE:
        for j in range(lo, hi):
            r = one if before[j] - threshold[j] > nil else nil
            s = one if u[j] - threshold[j] > nil else nil
            after[j] = u[j] - (s - r) * (threshold[j] if reset == SUBTRACT else u[j])


@_compiled
def leaky_back(
    start: Array, params: Array, reset: int, delayed: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, first: int, last: int,
) -> None:  # fmt: skip
    """The gradients of :func:`leaky`.

    Those by spikes and states are (T, M), or (1, M) if they are zero. by_start holds those by the states at the end, and
    then those by the states before the first step; by_x and by_params are added to.
    """
    beta, threshold, factor = params[0], params[1], params[2]
    v, by_v = states[0], by_states[0]
    by_beta, by_threshold, by_factor = by_params[0], by_params[1], by_params[2]
    nil, one = start.dtype.type(0), start.dtype.type(1)
    slope = np.empty(PIECE, start.dtype)
    carry = by_start[0]
    steps = len(u) if not delayed else len(v)
    for lo in range(first, last, PIECE):
        hi = min(lo + PIECE, last)
        for t in range(steps - 1, -1, -1):
            before, now = v[t - 1] if t else start[0], v[t] if delayed else u[t]
            from_z, from_v = by_z[t if len(by_z) > 1 else 0], by_v[t if len(by_v) > 1 else 0]
            _slopes(slope, kind, a, now, threshold, given[t if len(given) > 1 else 0], lo, hi)
            out = by_x[t if len(by_x) > 1 else 0]
            if delayed or reset == NONE:
                for j in range(lo, hi):
                    q = from_z[j] * factor[j] * slope[j - lo]
                    carry[j] += from_v[j] + q
                    by_threshold[j] -= q
            else:
                for j in range(lo, hi):
                    g = carry[j] + from_v[j]
                    r = one if before[j] - threshold[j] > nil else nil
                    s = one if now[j] - threshold[j] > nil else nil
                    amount = threshold[j] if reset == SUBTRACT else now[j]
                    q = (from_z[j] * factor[j] - g * amount) * slope[j - lo]
                    passed = g if reset == SUBTRACT else g * (one - (s - r))
                    carry[j] = passed + q
                    by_threshold[j] -= q + (g * (s - r) if reset == SUBTRACT else nil)
            for j in range(lo, hi):
                by_factor[j] += from_z[j] if now[j] - threshold[j] > nil else nil
                r = one if before[j] - threshold[j] > nil else nil
                g = carry[j]
                kept = one - r if reset == ZERO else one
                by_threshold[j] -= g * r if reset == SUBTRACT else nil
                by_beta[j] += g * kept * before[j]
                out[j] += g
                carry[j] = g * beta[j] * kept
