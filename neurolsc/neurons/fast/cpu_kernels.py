"""The fast path on a CPU: all that is no dense product, compiled by Numba (slow to import).

Each inner loop reads few arrays, so that it becomes vector instructions. A product with a matrix of few non-zero
entries is a sum of rows of the other matrix: it beats the dense product where at most a quarter of the entries differ
from zero, as in spikes and in most inputs, and is the dense one as long as the other matrix is finite.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

Array = np.ndarray[Any, Any]

# Rows of `constants` (6, n), as :func:`~neurolsc.neurons.fast.inputs.rows_of` stacks them.
DECAY_V, B_V, CONSTANT, DECAY_THETA, B_THETA, ADAPTATION = range(6)


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: Numba compiles the kernel at its first call, and keeps it on disk where a folder can be written."""

    def decorate(kernel: Callable[..., Any]) -> Any:
        settings = {"nogil": True, "error_model": "numpy"} | options
        try:
            return njit(kernel, cache=True, **settings)
        except RuntimeError:  # there is no folder to write to
            return njit(kernel, **settings)

    return decorate


_compiled = compiled()
_inline = njit(inline="always")

DENSITY = 0.25  # share of non-zero entries up to which a product is a sum of rows
PER_THREAD = 2**20  # additions below which a thread of its own costs more than it saves


class CSR(NamedTuple):
    """The non-zero entries of a matrix (R, n), row after row."""

    indices: Array  # column of each entry (E,), int32
    indptr: Array  # where the entries of each row start, and where the last one's end (R + 1,), int64
    data: Array  # the entries (E,)


def nonzeros(matrix: Tensor) -> CSR | None:
    """The entries of a matrix; None if more than a quarter differ from zero."""
    array = matrix.contiguous().numpy()
    indices = np.empty(array.size + 1, np.int32)
    indptr = np.empty(len(array) + 1, np.int64)
    data = np.empty(array.size + 1, array.dtype)
    count = _find(array, indices, indptr, data)
    if count <= DENSITY * array.size:
        return CSR(indices[:count].copy(), indptr, data[:count].copy())
    return None


def times(entries: CSR, weights: Tensor) -> Tensor:
    """Entries (R, n) times contiguous weights (n, m): (R, m)."""
    out = weights.new_empty(len(entries.indptr) - 1, weights.shape[1])
    arrays = (*entries, weights.numpy(), out.numpy())
    _in_parts(len(out), len(entries.indices) * weights.shape[1], lambda a, b: _times(*arrays, a, b))
    return out


def add_transposed_times(total: Tensor, entries: CSR, g: Tensor) -> None:
    """Add entries (R, n), transposed, times contiguous g (R, m) to a total (n, m)."""
    arrays = (*entries, g.numpy(), total.numpy())
    _in_parts(len(total), len(entries.indices) * g.shape[1], lambda a, b: _add_transposed_times(*arrays, a, b))


def _in_parts(length: int, additions: int, do: Callable[[int, int], None]) -> None:
    """Call `do` for ranges (first, last) that make up `length`, in as many threads as the additions are worth."""
    parts = min(torch.get_num_threads(), additions // PER_THREAD, length)
    if parts < 2:
        return do(0, length)
    edges = [length * i // parts for i in range(parts + 1)]
    list(_threads(parts).map(do, edges[:-1], edges[1:]))


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="neurolsc")


if hasattr(os, "register_at_fork"):  # a forked process has none of these threads
    os.register_at_fork(after_in_child=_threads.cache_clear)


@_compiled
def _find(matrix: Array, indices: Array, indptr: Array, data: Array) -> int:
    """Write the non-zero entries of a matrix as those of :class:`CSR`, and return their number."""
    count = 0
    indptr[0] = 0
    for r in range(len(matrix)):
        count = _places(matrix[r], indices, count)
        for k in range(indptr[r], count):
            data[k] = matrix[r, indices[k]]
        indptr[r + 1] = count
    return count


@_inline
def _places(row: Array, indices: Array, count: int) -> int:
    """Append the columns where a row is not zero to the first `count` indices; return how many there are then."""
    for j in range(len(row)):  # without a branch, which would be mispredicted: what is not counted is overwritten
        indices[count] = j
        count += row[j] != 0
    return count


@_compiled
def _times(indices: Array, indptr: Array, data: Array, weights: Array, out: Array, first: int, last: int) -> None:
    for r in range(first, last):
        total = out[r]
        total[:] = 0
        _add_rows(total, weights, indices[indptr[r] : indptr[r + 1]], data[indptr[r] : indptr[r + 1]])


@_inline
def _add_rows(total: Array, matrix: Array, indices: Array, data: Array) -> None:
    """Add multiples of rows of a matrix to a total, eight at a time."""
    k = 0
    end = len(indices)
    while k + 8 <= end:
        r0 = matrix[indices[k]]
        r1 = matrix[indices[k + 1]]
        r2 = matrix[indices[k + 2]]
        r3 = matrix[indices[k + 3]]
        r4 = matrix[indices[k + 4]]
        r5 = matrix[indices[k + 5]]
        r6 = matrix[indices[k + 6]]
        r7 = matrix[indices[k + 7]]
        d0 = data[k]
        d1 = data[k + 1]
        d2 = data[k + 2]
        d3 = data[k + 3]
        d4 = data[k + 4]
        d5 = data[k + 5]
        d6 = data[k + 6]
        d7 = data[k + 7]
        for j in range(len(total)):
            half = total[j] + d0 * r0[j] + d1 * r1[j] + d2 * r2[j] + d3 * r3[j]
            total[j] = half + d4 * r4[j] + d5 * r5[j] + d6 * r6[j] + d7 * r7[j]
        k += 8
    for i in range(k, end):
        row = matrix[indices[i]]
        value = data[i]
        for j in range(len(total)):
            total[j] += value * row[j]


@_compiled
def _add_transposed_times(
    indices: Array, indptr: Array, data: Array, g: Array, total: Array, first: int, last: int
) -> None:
    rows = len(indptr) - 1
    count = indptr[len(indptr) - 1]
    # Sort the entries by column (counting sort): count them, find where each column starts, put each in its place.
    ends = np.zeros(len(total) + 1, np.int64)
    for k in range(count):
        ends[indices[k] + 1] += 1
    for i in range(len(total)):
        ends[i + 1] += ends[i]
    begin = ends[first]
    row = np.empty(count, np.int32)
    value = np.empty(count, data.dtype)
    for r in range(rows):
        for k in range(indptr[r], indptr[r + 1]):
            place = ends[indices[k]]
            row[place] = r
            value[place] = data[k]
            ends[indices[k]] = place + 1
    for i in range(first, last):
        _add_rows(total[i], g, row[begin : ends[i]], value[begin : ends[i]])
        begin = ends[i]


def steps(
    v: Tensor, theta: Tensor, z0: Tensor, z: Tensor, drive: Tensor, w_rec_t: Tensor, constants: Tensor,
    *, zero: bool, static: bool,
) -> CSR:  # fmt: skip
    """Some steps of LIF or ALIF in place; return the spikes that each of them reads (S B, n).

    v holds voltages before and after each step (S + 1, B, n), of which the first is read, theta thresholds likewise, or
    a fixed one (1, B, n); z0 (B, n) are the spikes before, z (S, B, n) those to be filled; drive is the projected input
    (S, B, n), constants those of :func:`~neurolsc.neurons.fast.inputs.rows_of` (6, n). The reset starts again from
    zero, or subtracts the constant (static), or the moving threshold.
    """
    length, batch, n = z.shape
    indices = np.empty((length + 1) * batch * n + 1, np.int32)
    indptr = np.empty((length + 1) * batch + 1, np.int64)
    arrays = (t.numpy() for t in (v, theta, z0.contiguous(), z, drive, w_rec_t, constants))
    _steps(*arrays, zero, static, indices, indptr)
    indptr = indptr[: length * batch + 1]
    return CSR(indices[: indptr[-1]].copy(), indptr, np.ones(indptr[-1], v.numpy().dtype))


@_compiled
def _steps(
    v: Array, theta: Array, z0: Array, z: Array, drive: Array, w_rec_t: Array, constants: Array,
    zero: bool, static: bool, indices: Array, indptr: Array
) -> None:  # fmt: skip
    length, batch, n = z.shape
    decay_v = constants[DECAY_V]
    b_v = constants[B_V]
    constant = constants[CONSTANT]
    decay_theta = constants[DECAY_THETA]
    b_theta = constants[B_THETA]
    adaptation = constants[ADAPTATION]
    moving = len(theta) > 1
    ones = np.ones(n, v.dtype)
    recurrent = np.empty(n, v.dtype)
    count = 0
    indptr[0] = 0
    for s in range(batch):
        count = _places(z0[s], indices, count)
        indptr[s + 1] = count
    for t in range(length):
        for s in range(batch):
            row = t * batch + s
            fired = indices[indptr[row] : indptr[row + 1]]
            recurrent[:] = 0
            _add_rows(recurrent, w_rec_t, fired, ones)
            now = v[t, s]
            then = v[t + 1, s]
            pushed = drive[t, s]
            for j in range(n):
                then[j] = decay_v[j] * now[j]
            if zero:
                for j in fired:
                    then[j] -= then[j]  # NaN where it is infinite, as in plain steps
            else:
                subtracted = constant if static else theta[t, s]
                for j in fired:
                    then[j] -= subtracted[j]
            for j in range(n):
                then[j] = then[j] + pushed[j] + recurrent[j] + b_v[j]
            limit = theta[t + 1, s] if moving else theta[0, 0]
            if moving:
                last = theta[t, s]
                for j in range(n):
                    limit[j] = decay_theta[j] * last[j] + b_theta[j]
                for j in fired:
                    limit[j] += adaptation[j]
            spikes = z[t, s]
            for j in range(n):
                spikes[j] = then[j] > limit[j]
            count = _places(spikes, indices, count)
            indptr[row + batch + 1] = count


@_compiled
def thresholds(theta: Array, z0: Array, z: Array, constants: Array) -> None:
    """Fill the thresholds theta (S + 1, B, n) behind the first ones, from the spikes, as :func:`steps` does."""
    decay_theta = constants[DECAY_THETA]
    b_theta = constants[B_THETA]
    adaptation = constants[ADAPTATION]
    for t in range(len(theta) - 1):
        for s in range(theta.shape[1]):
            limit = theta[t + 1, s]
            last = theta[t, s]
            fired = z[t - 1, s] if t else z0[s]
            for j in range(len(limit)):
                limit[j] = decay_theta[j] * last[j] + b_theta[j] + adaptation[j] * fired[j]


@_compiled
def step_back(
    back: Array, by_z: Array, slope: Array, g_next: Array, g: Array, g_theta: Array,
    v: Array, theta: Array, z: Array, constants: Array, zero: bool, static: bool, passes: bool, sums: Array,
) -> None:  # fmt: skip
    """One step of the reverse pass in place, by the equations of :mod:`neurolsc.neurons.fast.sequence`.

    All but constants and sums (6, n) are (B, n), of step t. In: g_next, g_v[t+1]; back, its product with w_rec; by_z,
    the gradient by the spikes from outside. In and out: g_theta, that by the threshold. Out: back, the gradient by the
    spikes; g, g_v[t].
    """
    batch, n = back.shape
    decay_v = constants[DECAY_V]
    constant = constants[CONSTANT]
    decay_theta = constants[DECAY_THETA]
    adaptation = constants[ADAPTATION]
    part = np.zeros((6, n), back.dtype)
    for s in range(batch):
        b = back[s]
        m = g_theta[s]
        by_v = g_next[s]
        out = g[s]
        now = v[s]
        limit = theta[s if len(theta) > 1 else 0]
        fired = z[s]
        outer = by_z[s]
        steep = slope[s]
        for j in range(n):
            b[j] += outer[j] + m[j] * adaptation[j]
        for j in range(n):
            part[B_V, j] += by_v[j]
            part[B_THETA, j] += m[j]
        _add_product(part[DECAY_THETA], m, limit)
        _add_product(part[ADAPTATION], m, fired)
        for j in range(n):
            m[j] *= decay_theta[j]
        if zero:
            if passes:
                for j in range(n):
                    b[j] -= by_v[j] * decay_v[j] * now[j]
            for j in range(n):
                part[DECAY_V, j] += by_v[j] * now[j] * (1 - fired[j])
            for j in range(n):
                out[j] = by_v[j] * decay_v[j] * (1 - fired[j])
        else:
            if passes:
                _subtract_product(b, by_v, constant if static else limit)
                _subtract_product(part[CONSTANT] if static else m, by_v, fired)
            _add_product(part[DECAY_V], by_v, now)
            for j in range(n):
                out[j] = by_v[j] * decay_v[j]
        for j in range(n):
            q = steep[j] * b[j]
            out[j] += q
            m[j] -= q
    sums += part


@_inline
def _add_product(total: Array, one: Array, two: Array) -> None:
    for j in range(len(total)):
        total[j] += one[j] * two[j]


@_inline
def _subtract_product(total: Array, one: Array, two: Array) -> None:
    for j in range(len(total)):
        total[j] -= one[j] * two[j]
