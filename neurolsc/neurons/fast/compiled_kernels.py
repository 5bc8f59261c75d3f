"""The kernels of the loop on a CPU, compiled by Numba: what a step does besides dense products.

Each loop touches few arrays, so that it becomes vector instructions; sums go in the order of plain
steps. A fixed threshold is an array of one row, read by all samples. Non-zero entries come row
after row, as in :class:`neurolsc.neurons.fast.entries.Entries`.
"""

from typing import Any

import numpy as np
from numba import njit

from neurolsc.compiling import compiled

Array = np.ndarray[Any, Any]
_compiled, _part = compiled(), njit(inline="always")


SUMS = ("decay_v", "b_v", "threshold", "decay_theta", "b_theta", "adaptation")
"""The constants of a neuron, as the rows of an array; and the sums of a step back, likewise."""


@_compiled
def nonzeros(x: Array, column: Array, start: Array) -> tuple[int, bool]:
    """Write the columns of the non-zero entries of x (R, n), and where each row's start (R + 1,).

    There is room for all entries and one more. Returned are how many there are, and whether all of
    them are 1.
    """
    count, others = 0, 0
    start[0] = 0
    for r in range(len(x)):
        row = x[r]
        count = _places(row, column, count)
        for i in range(start[r], count):
            others += row[column[i]] != 1
        start[r + 1] = count
    return count, others == 0


@_part
def _places(row: Array, column: Array, count: int) -> int:
    """Write where a row is not zero, behind ``count`` columns already there; without a branch."""
    for i in range(len(row)):
        column[count] = i
        count += row[i] != 0
    return count


@_compiled
def times(
    column: Array, start: Array, values: Array, weights: Array, tile: int, out: Array, first: int, last: int
) -> None:
    """Rows of entries times weights (n, m), of which ``tile`` columns fit a cache: out (R, m).

    Only rows first to last are made. Without values all entries are 1.
    """
    width = out.shape[1]
    for a in range(0, width, tile):
        b = min(a + tile, width)
        for r in range(first, last):
            total = out[r, a:b]
            total[:] = 0
            _add_rows(total, weights, a, b, column, values, start[r], start[r + 1])


@_part
def _add_rows(total: Array, matrix: Array, a: int, b: int, place: Array, values: Array, k: int, end: int) -> None:
    """Add columns a to b of the rows of a matrix at some places to a total, eight at a time."""
    if len(values):
        for i in range(k, end):
            row, value = matrix[place[i], a:b], values[i]
            for j in range(len(total)):
                total[j] += value * row[j]
        return
    while k + 8 <= end:
        one, two = matrix[place[k], a:b], matrix[place[k + 1], a:b]
        three, four = matrix[place[k + 2], a:b], matrix[place[k + 3], a:b]
        five, six = matrix[place[k + 4], a:b], matrix[place[k + 5], a:b]
        seven, eight = matrix[place[k + 6], a:b], matrix[place[k + 7], a:b]
        for j in range(len(total)):
            half = total[j] + one[j] + two[j] + three[j] + four[j]
            total[j] = half + five[j] + six[j] + seven[j] + eight[j]
        k += 8
    for i in range(k, end):
        row = matrix[place[i], a:b]
        for j in range(len(total)):
            total[j] += row[j]


@_compiled
def add_transposed_times(
    column: Array, start: Array, values: Array, g: Array, tile: int, total: Array, left: int, right: int
) -> None:
    """Add entries (R, n), transposed, times g (R, m) to a total (n, m).

    Only columns left to right of the total are made; the rest as :func:`times`.
    """
    rows, places = len(g), len(total)
    first, count = start[0], start[rows] - start[0]
    # sorted by column, rows in order: where each column's start, then each entry in its place
    ends = np.zeros(places + 1, np.int64)
    for k in range(first, first + count):
        ends[column[k] + 1] += 1
    for i in range(places):
        ends[i + 1] += ends[i]
    row, value = np.empty(count, np.int32), np.empty(count if len(values) else 0, values.dtype)
    for r in range(rows):
        for k in range(start[r], start[r + 1]):
            place = ends[column[k]]
            row[place] = r
            if len(values):
                value[place] = values[k]
            ends[column[k]] = place + 1
    for a in range(left, right, tile):
        b, begin = min(a + tile, right), 0
        for i in range(places):
            _add_rows(total[i, a:b], g, a, b, row, value, begin, ends[i])
            begin = ends[i]


@_compiled
def steps(
    v: Array,
    theta: Array,
    subtracted: Array,
    column: Array,
    start: Array,
    drive: Array,
    recurrent: Array,
    w_rec: Array,
    tile: int,
    constants: Array,
    zero: bool,
    moving: bool,
    z: Array,
    first: int,
    most: int,
) -> int:
    """Steps, up to the first before which too many neurons fire.

    Args:
        v: the voltages before and after each step (steps + 1, B, n), or one that is moved on
            (1, B, n).
        theta: the thresholds likewise; a fixed one is (1, 1, n).
        subtracted: what the reset subtracts, likewise, or a constant (1, 1, n).
        column: where the columns of all spikes go, those before the first step being there.
        start: where those of each row start and end ((steps + 1) * B + 1,).
        drive: the projected input (steps, B, n).
        recurrent: that from the layer itself in the first step (B, n), and room for the others.
        w_rec: recurrent weights, transposed (n, n).
        tile: as of :func:`times`.
        constants: those of :data:`SUMS` (6, n).
        zero: whether the reset starts again from zero.
        moving: whether the threshold moves.
        z: where the spikes go (steps, B, n).
        first: the step to begin with.
        most: spikes up to which the following steps find what comes from the layer itself.

    Returns:
        The number of steps that are done.
    """
    length, batch, _ = z.shape
    ones = np.empty(0, v.dtype)
    for t in range(first, length):
        rows = start[t * batch : (t + 1) * batch + 1]
        if t > first:
            if rows[batch] - rows[0] > most:
                return t
            times(column, rows, ones, w_rec, tile, recurrent, 0, batch)
        now, then, limit, limit_then = _at(v, t), _at(v, t + 1), _at(theta, t), _at(theta, t + 1)
        less, count = _at(subtracted, t), int(rows[batch])
        for s in range(batch):
            high, low = then[s], limit_then[s if len(limit_then) > 1 else 0]
            spiked = column[rows[s] : rows[s + 1]]
            _voltage(now[s], high, less[s if len(less) > 1 else 0], spiked, drive[t, s], recurrent[s], constants, zero)
            if moving:
                _threshold(limit[s], low, spiked, constants)
            spikes = z[t, s]
            for j in range(len(spikes)):
                spikes[j] = high[j] > low[j]
            count = _places(spikes, column, count)
            start[(t + 1) * batch + s + 1] = count
    return length


@_part
def _at(states: Array, t: int) -> Array:
    """The state after t steps, or the only one there is."""
    return states[t if len(states) > 1 else 0]


@_part
def _voltage(
    now: Array,
    then: Array,
    subtracted: Array,
    spiked: Array,
    drive: Array,
    recurrent: Array,
    constants: Array,
    zero: bool,
) -> None:
    """A sample's next voltages (n,), given which neurons have spiked."""
    decay, constant = constants[0], constants[1]
    for j in range(len(now)):
        then[j] = decay[j] * now[j]
    for j in spiked:
        then[j] = then[j] - (then[j] if zero else subtracted[j])
    for j in range(len(then)):
        then[j] = then[j] + drive[j] + recurrent[j] + constant[j]


@_part
def _threshold(now: Array, then: Array, spiked: Array, constants: Array) -> None:
    """A sample's next thresholds (n,), likewise."""
    decay, constant, adaptation = constants[3], constants[4], constants[5]
    for j in range(len(now)):
        then[j] = decay[j] * now[j] + constant[j]
    for j in spiked:
        then[j] += adaptation[j]


@_compiled
def thresholds(theta: Array, before: Array, z: Array, constants: Array) -> None:
    """The thresholds after steps (steps + 1, B, n) from the first of them.

    They follow from the spikes before the first step (B, n) and after the others (steps - 1, B, n).
    """
    decay, constant, adaptation = constants[3], constants[4], constants[5]
    for t in range(len(theta) - 1):
        spikes = z[t - 1] if t else before
        for s in range(len(before)):
            one, two, fired = theta[t, s], theta[t + 1, s], spikes[s]
            for j in range(len(one)):
                two[j] = decay[j] * one[j] + constant[j]
            for j in range(len(one)):
                two[j] += adaptation[j] * fired[j]


@_compiled
def to_spikes(
    back: Array,
    given: Array,
    g_v: Array,
    minus_g_theta: Array,
    v: Array,
    theta: Array,
    subtracted: Array,
    z: Array,
    constants: Array,
    zero: bool,
    passes: bool,
    moving: bool,
    needed: Array,
    sums: Array,
) -> None:
    """The bracket of :mod:`neurolsc.neurons.fast.reverse`, in place of its product with g_v.

    Args:
        back: that product (B, n), and what is found.
        given: the gradient given by the spikes.
        g_v: that by the next voltage.
        minus_g_theta: that by the next threshold, times -1.
        v: the voltage.
        theta: the threshold.
        subtracted: what the reset subtracts.
        z: the spikes.
        constants: those of :data:`SUMS` (6, n).
        zero: whether the reset starts again from zero.
        passes: whether a gradient passes the reset.
        moving: whether the threshold moves.
        needed: which of the sums are (6,).
        sums: where they go (6, n).
    """
    batch, n = back.shape
    decay_v, adaptation = constants[0], constants[5]
    part = np.zeros(sums.shape, sums.dtype)
    for s in range(batch):
        b, g, by_z, now, fired = back[s], g_v[s], given[s], v[s], z[s]
        for j in range(n):
            b[j] += by_z[j]
        if passes:
            if zero:
                for j in range(n):
                    b[j] -= g[j] * now[j] * decay_v[j]
            else:
                less = subtracted[s if len(subtracted) > 1 else 0]
                for j in range(n):
                    b[j] -= g[j] * less[j]
        if needed[0]:
            total = part[0]
            if zero:
                for j in range(n):
                    total[j] += g[j] * now[j] * (1 - fired[j])
            else:
                for j in range(n):
                    total[j] += g[j] * now[j]
        if needed[1]:
            _add(part[1], g)
        if needed[2] and passes and not zero:
            _subtract_product(part[2], g, fired)
        if moving:
            minus = minus_g_theta[s]
            for j in range(n):
                b[j] -= minus[j] * adaptation[j]
            if needed[3]:
                _subtract_product(part[3], minus, theta[s])
            if needed[4]:
                _subtract(part[4], minus)
            if needed[5]:
                _subtract_product(part[5], minus, fired)
    for i in range(len(part)):
        if needed[i]:
            _add(sums[i], part[i])


@_compiled
def to_state(
    q: Array,
    g_v: Array,
    minus_g_theta: Array,
    z: Array,
    constants: Array,
    zero: bool,
    through: bool,
    moving: bool,
    of_distance: bool,
    sums: Array,
    out: Array,
) -> None:
    """The last two equations of :mod:`neurolsc.neurons.fast.reverse`.

    Args:
        q: the gradient by the distance from the threshold (B, n).
        g_v: that by the next voltage.
        minus_g_theta: that by the next threshold, times -1, and by this one.
        z: the spikes.
        constants: those of :data:`SUMS` (6, n).
        zero: whether the reset starts again from zero.
        through: whether a gradient passes the reset to the moving threshold.
        moving: whether the threshold moves.
        of_distance: whether q belongs to the sum of the fixed threshold.
        sums: where that goes (6, n).
        out: that by the voltage.
    """
    batch, n = q.shape
    decay_v, decay_theta = constants[0], constants[3]
    part = np.zeros(n, q.dtype)
    for s in range(batch):
        by_distance, g, by_v, fired = q[s], g_v[s], out[s], z[s]
        if moving:
            minus = minus_g_theta[s]
            for j in range(n):
                minus[j] = by_distance[j] + minus[j] * decay_theta[j]
            if through:
                for j in range(n):
                    minus[j] += g[j] * fired[j]
        if zero:
            for j in range(n):
                by_v[j] = by_distance[j] + g[j] * decay_v[j] * (1 - fired[j])
        else:
            for j in range(n):
                by_v[j] = by_distance[j] + g[j] * decay_v[j]
        if of_distance:
            _subtract(part, by_distance)
    if of_distance:
        _add(sums[2], part)


@_part
def _add(total: Array, row: Array) -> None:
    for j in range(len(total)):
        total[j] += row[j]


@_part
def _subtract(total: Array, row: Array) -> None:
    for j in range(len(total)):
        total[j] -= row[j]


@_part
def _subtract_product(total: Array, one: Array, two: Array) -> None:
    for j in range(len(total)):
        total[j] -= one[j] * two[j]
