"""The fast path on a CPU: all that is no dense product, compiled by Numba (slow to import).

Each inner loop reads few arrays, so that it becomes vector instructions. A product with a matrix of few non-zero
entries is computed as a sum of rows of the other matrix. That beats the dense product where at most a quarter of the
entries differ from zero, as in spikes and in most inputs. The result is that of the dense product, up to rounding, if
the other matrix is finite: a dense product turns zero times infinity into NaN, which a sum of rows leaves out.
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
    """Return a decorator by which Numba compiles a kernel at its first call.

    A kernel releases the GIL, so that threads run it at the same time. The compiled code is kept on disk if a folder
    can be written. `options` are those of ``numba.njit``, and replace the ones below.
    """

    def decorate(kernel: Callable[..., Any]) -> Any:
        # Without numpy's error model each division would be checked for a zero, which no vector instruction does.
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
    """Return the non-zero entries of a matrix (R, n) on the CPU; None if more than a quarter differ from zero."""
    array = matrix.contiguous().numpy()
    indices = np.empty(array.size + 1, np.int32)  # one entry more: the search writes each column before it tests it
    indptr = np.empty(len(array) + 1, np.int64)
    data = np.empty(array.size + 1, array.dtype)
    count = _fill_csr(array, indices, indptr, data)
    if count <= DENSITY * array.size:
        return CSR(indices[:count].copy(), indptr, data[:count].copy())  # copies, so that the large arrays are freed
    return None


def times(entries: CSR, weights: Tensor) -> Tensor:
    """Return the product (R, m) of a matrix (R, n), by its entries, and contiguous weights (n, m)."""
    out = weights.new_empty(len(entries.indptr) - 1, weights.shape[1])
    arrays = (*entries, weights.numpy(), out.numpy())
    additions = len(entries.indices) * weights.shape[1]
    in_parts(len(out), additions // PER_THREAD, lambda a, b: _times(*arrays, a, b))
    return out


def add_transposed_times(total: Tensor, entries: CSR, g: Tensor) -> None:
    """Add to `total` (n, m) the product M^T g of a matrix M (R, n), by its entries, and contiguous g (R, m)."""
    arrays = (*entries, g.numpy(), total.numpy())
    additions = len(entries.indices) * g.shape[1]
    in_parts(len(total), additions // PER_THREAD, lambda a, b: _add_transposed_times(*arrays, a, b))


def in_parts(length: int, threads: int, do: Callable[[int, int], None]) -> None:
    """Call do(first, last) for ranges that make up 0 to `length`, each in a thread of its own.

    There are as many threads as torch may use, at most `threads`, the number that the work is worth.
    """
    parts = min(torch.get_num_threads(), threads, length)
    if parts < 2:
        return do(0, length)
    edges = [length * i // parts for i in range(parts + 1)]
    list(_threads(parts).map(do, edges[:-1], edges[1:]))  # a list, to wait for all


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    """Return the pool of so many threads; the same one at every call."""
    return ThreadPoolExecutor(count, thread_name_prefix="neurolsc")


if hasattr(os, "register_at_fork"):  # a forked process has none of these threads
    os.register_at_fork(after_in_child=_threads.cache_clear)


@_compiled
def _fill_csr(matrix: Array, indices: Array, indptr: Array, data: Array) -> int:
    """Write the non-zero entries of a matrix (R, n) into the three arrays of a :class:`CSR`; return their number.

    indices and data have room for R n + 1 numbers.
    """
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
    """Write the columns where a row is not zero into `indices`, from place `count` on; return the next free place.

    `indices` needs one place more than there are such columns: every column is written, and the next one overwrites it
    unless it is counted. A branch instead would be mispredicted too often.
    """
    for j in range(len(row)):
        indices[count] = j
        count += row[j] != 0
    return count


@_compiled
def _times(indices: Array, indptr: Array, data: Array, weights: Array, out: Array, first: int, last: int) -> None:
    """Write rows `first` to `last` of the product in :func:`times` into `out` (R, m)."""
    for r in range(first, last):
        total = out[r]
        total[:] = 0
        _add_rows(total, weights, indices[indptr[r] : indptr[r + 1]], data[indptr[r] : indptr[r + 1]])


@_inline
def _add_rows(total: Array, matrix: Array, indices: Array, data: Array) -> None:
    """Add data[k] times row indices[k] of a matrix (n, m) to a total (m,), for all k.

    Eight rows are added in one pass, so that the total is read and written an eighth as often.
    """
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
    """Add rows `first` to `last` of the product in :func:`add_transposed_times` to `total` (n, m).

    Row i of the product is a sum of rows of g, one for each entry in column i.
    """
    rows = len(indptr) - 1
    count = indptr[rows]
    # Sort the entries by column (counting sort): count them, find where each column starts, put each in its place.
    # ends[i] is where column i starts, and where it ends once its entries are placed.
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
    """Run S steps of LIF or ALIF in place.

    Args:
        v: voltages (S + 1, B, n); the first is read, those after each step are filled.
        theta: thresholds likewise, or a fixed one (1, B, n), which is read.
        z0: the spikes before the first step (B, n).
        z: to be filled with the spikes of each step (S, B, n).
        drive: the projected input of each step (S, B, n).
        w_rec_t: recurrent weights (n, n), from row to column.
        constants: those of :func:`~neurolsc.neurons.fast.inputs.rows_of` (6, n).
        zero: True if a reset sets the voltage to 0; else it subtracts a threshold.
        static: True if that threshold is the row CONSTANT, False if it is the moving one.

    Returns:
        The spikes that the steps read, those of the step before each of them, as entries of a matrix (S B, n).
    """
    length, batch, n = z.shape
    indices = np.empty((length + 1) * batch * n + 1, np.int32)
    indptr = np.empty((length + 1) * batch + 1, np.int64)
    arrays = (t.numpy() for t in (v, theta, z0.contiguous(), z, drive, w_rec_t, constants))
    _steps(*arrays, zero, static, indices, indptr)
    indptr = indptr[: length * batch + 1]  # without the spikes of the last step, which no step here reads
    return CSR(indices[: indptr[-1]].copy(), indptr, np.ones(indptr[-1], v.numpy().dtype))


@_compiled
def _steps(
    v: Array, theta: Array, z0: Array, z: Array, drive: Array, w_rec_t: Array, constants: Array,
    zero: bool, static: bool, indices: Array, indptr: Array
) -> None:  # fmt: skip
    """As :func:`steps`; indices and indptr are filled with the places of z0 and z, as a matrix ((S + 1) B, n)."""
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
    for s in range(batch):  # the first B rows are z0
        count = _places(z0[s], indices, count)
        indptr[s + 1] = count
    for t in range(length):
        for s in range(batch):
            row = t * batch + s
            fired = indices[indptr[row] : indptr[row + 1]]  # neurons of this sample that fired one step before
            recurrent[:] = 0
            _add_rows(recurrent, w_rec_t, fired, ones)
            before = v[t, s]
            after = v[t + 1, s]
            driven = drive[t, s]
            for j in range(n):
                after[j] = decay_v[j] * before[j]
            if zero:
                for j in fired:
                    after[j] -= after[j]  # NaN where it is infinite, as in plain steps
            else:
                subtracted = constant if static else theta[t, s]
                for j in fired:
                    after[j] -= subtracted[j]
            for j in range(n):
                after[j] = after[j] + driven[j] + recurrent[j] + b_v[j]
            limit = theta[t + 1, s] if moving else theta[0, 0]  # a fixed one is the same for all samples
            if moving:  # else the threshold is given
                last = theta[t, s]
                for j in range(n):
                    limit[j] = decay_theta[j] * last[j] + b_theta[j]
                for j in fired:
                    limit[j] += adaptation[j]
            spikes = z[t, s]
            for j in range(n):
                spikes[j] = after[j] > limit[j]
            count = _places(spikes, indices, count)
            indptr[row + batch + 1] = count  # the end of the row that the next step reads


@_compiled
def thresholds(theta: Array, z0: Array, z: Array, constants: Array) -> None:
    """Fill the moving thresholds theta (S + 1, B, n) after each of S steps, as :func:`steps` does.

    theta[0] is read. z0 (B, n) are the spikes before the first step, z (S, B, n) those of each; constants are as there.
    """
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
    v: Array, theta: Array, z: Array, constants: Array, zero: bool, static: bool, reset_gradient: bool, sums: Array,
) -> None:  # fmt: skip
    """Go one step back in place, by the equations of :mod:`neurolsc.neurons.fast.sequence`.

    Args:
        back: the product of g_next and w_rec (B, n); becomes the gradient by the spikes z[t].
        by_z: gradient by z[t] from outside (B, n).
        slope: the surrogate's derivative at step t (B, n).
        g_next: gradient by the voltage v[t+1] (B, n).
        g: to be filled with the gradient by v[t] (B, n).
        g_theta: gradient by the threshold theta[t+1] (B, n); becomes that by theta[t].
        v: the voltage v[t] (B, n).
        theta: the threshold theta[t] (B, n), or a fixed one (1, n).
        z: the spikes z[t] (B, n).
        constants: those of :func:`~neurolsc.neurons.fast.inputs.rows_of` (6, n).
        zero: True if a reset sets the voltage to 0; else it subtracts a threshold.
        static: True if that threshold is the row CONSTANT, False if it is theta.
        reset_gradient: True if a gradient passes the reset.
        sums: gradient by the constants (6, n), added to.
    """
    batch, n = back.shape
    decay_v = constants[DECAY_V]
    constant = constants[CONSTANT]
    decay_theta = constants[DECAY_THETA]
    adaptation = constants[ADAPTATION]
    part = np.zeros((6, n), back.dtype)  # the share of this step in the gradient by the constants
    for s in range(batch):
        by_spikes = back[s]
        by_theta = g_theta[s]
        by_next = g_next[s]
        by_now = g[s]
        voltage = v[s]
        limit = theta[s if len(theta) > 1 else 0]
        fired = z[s]
        outer = by_z[s]
        slope_s = slope[s]
        # gradient by the spikes: from outside, through the recurrent weights (already in it), through the adaptation
        for j in range(n):
            by_spikes[j] += outer[j] + by_theta[j] * adaptation[j]
        for j in range(n):
            part[B_V, j] += by_next[j]
            part[B_THETA, j] += by_theta[j]
        _add_product(part[DECAY_THETA], by_theta, limit)
        _add_product(part[ADAPTATION], by_theta, fired)
        for j in range(n):
            by_theta[j] *= decay_theta[j]
        # the reset: D, E and R of the equations
        if zero:
            if reset_gradient:
                for j in range(n):
                    by_spikes[j] -= by_next[j] * decay_v[j] * voltage[j]
            for j in range(n):
                part[DECAY_V, j] += by_next[j] * voltage[j] * (1 - fired[j])
            for j in range(n):
                by_now[j] = by_next[j] * decay_v[j] * (1 - fired[j])
        else:
            if reset_gradient:
                _subtract_product(by_spikes, by_next, constant if static else limit)
                _subtract_product(part[CONSTANT] if static else by_theta, by_next, fired)
            _add_product(part[DECAY_V], by_next, voltage)
            for j in range(n):
                by_now[j] = by_next[j] * decay_v[j]
        # the spikes follow v - theta
        for j in range(n):
            q = slope_s[j] * by_spikes[j]
            by_now[j] += q
            by_theta[j] -= q
    sums += part


@_inline
def _add_product(total: Array, a: Array, b: Array) -> None:
    for j in range(len(total)):
        total[j] += a[j] * b[j]


@_inline
def _subtract_product(total: Array, a: Array, b: Array) -> None:
    for j in range(len(total)):
        total[j] -= a[j] * b[j]
