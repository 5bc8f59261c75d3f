"""What the kernels of other libraries' neurons share. They run all steps of a layer, compiled by Numba.

:mod:`neurolsc.neurons.fast.snntorch_kernels` has the kernels of snnTorch's neurons,
:mod:`neurolsc.neurons.fast.reset_kernels` those of norse's and spikingjelly's.

A kernel takes the entries `first` to `last` of a layer, each by itself, in pieces lo to hi that stay in the cache over
all steps. An entry is one neuron of one sample; M is their number, T that of steps. The arguments of all kernels are
explained at :func:`~neurolsc.neurons.fast.snntorch_kernels.leaky`, those of the gradients, which go from the last step
to the first, at :func:`~neurolsc.neurons.fast.snntorch_kernels.leaky_back`, and those of recurrent neurons at
:func:`~neurolsc.neurons.fast.snntorch_kernels.leaky_recurrent`.

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
from neurolsc.neurons.fast.kinds import ATAN, FAST_SIGMOID, GIVEN, NOTHING, QUADRATIC, SIGN

PIECE = 512  # entries of a piece: some rows of it fit the first cache

NOUGHT = np.int64(0)  # as a bare 0, a constant of its own type, it would have a kernel compiled once more

compile_kernel = compiled()
inline: Any = njit(inline="always")
Arrays = tuple[Array, ...]  # one for each state


@inline
def slopes(out: Array, kind: int, a: float, u: Array, threshold: Array, given: Array) -> None:
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


@inline
def at(rows: Array, t: int, lo: int, hi: int) -> Array:
    """Return entries lo to hi of step t, as a view of rows (T, M), or of (1, M), one row for all steps."""
    return rows[min(t, len(rows) - 1), lo:hi]


@inline
def before_step(state: Array, start: Array, t: int, lo: int, hi: int) -> Array:
    """Return entries lo to hi of a state before step t.

    `state` (T, M) holds it after each step, `start` (M,) before the first one.
    """
    if t:
        return state[t - 1, lo:hi]
    return start[lo:hi]


@inline
def copy_into(out: Array, values: Array) -> None:
    """Copy entry by entry: an assignment to a slice takes Numba seconds to compile."""
    for j in range(len(out)):
        out[j] = values[j]


@inline
def push(currents: Array, x: Array, z: Array, weight_t: Array, square: bool, indices: Array) -> None:
    """Write all currents of a step (B n,) into `currents`: x from outside, plus what the spikes z before the step send.

    weight_t holds recurrent weights (n, n), from row to column, if `square`; else (1, n), a factor of each neuron's own
    spike. `indices` (n + 1,) is memory for the places of spikes.
    """
    n = weight_t.shape[1]
    for row in range(0, len(x), n):
        total = currents[row : row + n]
        spikes = z[row : row + n]
        outside = x[row : row + n]
        if square:  # add the rows of the neurons that fired
            count = _places(spikes, indices, 0)
            copy_into(total, outside)
            _add_rows(total, weight_t, indices[:count], spikes[indices[:count]])
        else:
            factor = weight_t[0]
            for j in range(n):
                total[j] = outside[j] + spikes[j] * factor[j]
