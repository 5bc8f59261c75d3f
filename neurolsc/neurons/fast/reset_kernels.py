"""Kernels of norse's and spikingjelly's neurons, which are reset within the step that fires.

What holds for all kernels is said in :mod:`neurolsc.neurons.fast.scan_kernels`.
"""

import numpy as np

from neurolsc.neurons.fast.kinds import BOX, LEAK_OF_ALL, LEAK_OF_STATE, NO_LEAK, SUBTRACT, ZERO
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
def _reaches(out: Array, u: Array, threshold: Array, at_threshold: bool) -> None:
    """Write 1 into `out` where a voltage is above its threshold, or at it if `at_threshold`, else 0."""
    if at_threshold:
        for j in range(len(out)):
            out[j] = u[j] - threshold[j] >= 0
    else:
        for j in range(len(out)):
            out[j] = u[j] - threshold[j] > 0


@inline
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


@inline
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


@compile_kernel
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
            x_t = at(x, t, lo, hi)
            z_t = z[t, lo:hi]
            unreset = at(u, t, lo, hi)
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
                copy_into(z_t, s)
                _reset(after_v, unreset, s, threshold, rest, reset)
            else:
                copy_into(z_t, unreset)
                copy_into(after_v, unreset)
            v = after_v
            i = after_i


@compile_kernel
def current_lif_back(
    start: Array, params: Array, reset: int, spiking: bool, reset_gradient: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
    begin: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`current_lif`; the arguments are those of `snntorch_kernels.leaky_back`."""
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
        g_i_plus_x = scratch[3, :size]  # gradient by the sum i + x of the step
        g = by_start[0, lo:hi]  # gradient by the voltage
        g_i = by_start[1, lo:hi]  # by i
        for t in range(stop - 1, begin - 1, -1):
            unreset = at(u, t, lo, hi)
            from_z = at(by_z, t, lo, hi)
            from_v = at(by_states[0], t, lo, hi)
            from_i = at(by_states[1], t, lo, hi)
            by_x_t = at(by_x, t, lo, hi)
            for j in range(size):
                g[j] += from_v[j]
            for j in range(size):
                g_i[j] += from_i[j]
            if spiking:
                slopes(slope, kind, a, unreset, threshold, at(given, t, lo, hi))
                _reaches(s, unreset, threshold, False)
                copy_into(q, from_z)
                _back_through_reset(
                    g, q, s, unreset, threshold, rest, slope, by_threshold, by_rest, reset, reset_gradient
                )
            else:
                for j in range(size):
                    g[j] += from_z[j]
            if learnt:
                v = before_step(states[0], start[0], t, lo, hi)
                v_new = unreset if spiking else states[0][t, lo:hi]  # before any reset; LI has none, and keeps no u
                for j in range(size):
                    # from here on s holds i + x of this step; the run kept no x, but the change of v gives i + x
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
            copy_into(g_i, g_i_plus_x)


@compile_kernel
def adaptive_lif(
    x: Array, start: Array, params: Array, reset_gradient: bool,
    z: Array, states: Arrays, u: Array, first: int, last: int,
) -> None:  # fmt: skip
    """Run norse's LSNN over all steps: a LIF whose threshold b is a state.

    The states are the voltage v, the current i and the threshold b. A step adds gain (leak - v + i) to v and
    pull (threshold - b) to b; i becomes (1 + loss) i + x. A spike, where v > b, sets v to `rest` and adds beta to b.

    params are gain = dt / tau_mem, loss = -dt / tau_syn, leak = v_leak, threshold = v_th, rest = v_reset, pull = dt /
    tau_adapt, beta and zeros (8, M). u is filled with the distances v - b before the reset (T, M). reset_gradient is
    for :func:`adaptive_lif_back`. The other arguments are those of `snntorch_kernels.leaky`.
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
            x_t = at(x, t, lo, hi)
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
            copy_into(z_t, s)
            _reset(after_v, unreset, s, threshold, rest, ZERO)  # which reads no threshold
            for j in range(size):
                after_b[j] += s[j] * beta[j]
            v = after_v
            i = after_i
            b = after_b


@compile_kernel
def adaptive_lif_back(
    start: Array, params: Array, reset_gradient: bool, states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
    begin: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`adaptive_lif`; the arguments are those of `snntorch_kernels.leaky_back`."""
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
            v = before_step(states[0], start[0], t, lo, hi)
            i = before_step(states[1], start[1], t, lo, hi)
            b = before_step(states[2], start[2], t, lo, hi)
            from_z = at(by_z, t, lo, hi)
            from_v = at(by_states[0], t, lo, hi)
            from_i = at(by_states[1], t, lo, hi)
            from_b = at(by_states[2], t, lo, hi)
            by_x_t = at(by_x, t, lo, hi)
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
            slopes(slope, kind, a, distance, zeros, at(given, t, lo, hi))
            _reaches(s, distance, zeros, False)
            copy_into(q, from_z)
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


@compile_kernel
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
            x_t = at(x, t, lo, hi)
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
            copy_into(z_t, s)
            _reset(after, unreset, s, threshold, rest, reset)
            v = after


@compile_kernel
def voltage_lif_back(
    start: Array, params: Array, form: int, divides: bool, reset: int, reset_gradient: bool, at_threshold: bool,
    states: Arrays, u: Array,
    kind: int, a: float, given: Array, by_z: Array, by_states: Arrays,
    by_x: Array, by_start: Array, by_params: Array, learnt: bool, first: int, last: int,
    begin: int, stop: int,
) -> None:  # fmt: skip
    """Compute the gradients of :func:`voltage_lif`; the arguments are those of `snntorch_kernels.leaky_back`.

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
            from_z = at(by_z, t, lo, hi)
            from_v = at(by_states[0], t, lo, hi)
            by_x_t = at(by_x, t, lo, hi)
            for j in range(size):
                g[j] += from_v[j]
            slopes(slope, kind, a, unreset, threshold, at(given, t, lo, hi))
            _reaches(s, unreset, threshold, at_threshold)
            copy_into(q, from_z)
            _back_through_reset(g, q, s, unreset, threshold, rest, slope, by_threshold, by_rest, reset, reset_gradient)
            if form in (NO_LEAK, LEAK_OF_STATE):
                for j in range(size):
                    by_x_t[j] += g[j]
            else:
                for j in range(size):
                    by_x_t[j] += g[j] * gain[j]
            if form != NO_LEAK:
                if learnt:
                    v = before_step(states[0], start[0], t, lo, hi)
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


@compile_kernel
def current_lif_recurrent(
    x: Array, start: Array, params: Array, reset: int, spiking: bool, reset_gradient: bool,
    z: Array, states: Arrays, u: Array, z0: Array, weight_t: Array, square: bool,
) -> None:  # fmt: skip
    """Run norse's LIFRecurrent by the steps of :func:`current_lif`; see `snntorch_kernels.leaky_recurrent`."""
    size = len(z0)
    pushed = np.empty((1, size), x.dtype)
    indices = np.empty(weight_t.shape[1] + 1, np.int32)
    before = start.copy()  # the states before a step (states, M)
    for t in range(len(z)):
        push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        row = min(t, len(u) - 1)  # u has one row where it is not kept
        after = states[0][t : t + 1], states[1][t : t + 1]
        current_lif(
            pushed, before, params, reset, spiking, reset_gradient,
            z[t : t + 1], after, u[row : row + 1], NOUGHT, size,
        )  # fmt: skip
        copy_into(before[0], states[0][t])
        copy_into(before[1], states[1][t])


@compile_kernel
def adaptive_lif_recurrent(
    x: Array, start: Array, params: Array, reset_gradient: bool,
    z: Array, states: Arrays, u: Array, z0: Array, weight_t: Array, square: bool,
) -> None:  # fmt: skip
    """Run norse's LSNNRecurrent by the steps of :func:`adaptive_lif`; see `snntorch_kernels.leaky_recurrent`."""
    size = len(z0)
    pushed = np.empty((1, size), x.dtype)
    indices = np.empty(weight_t.shape[1] + 1, np.int32)
    before = start.copy()  # the states before a step (states, M)
    for t in range(len(z)):
        push(pushed[0], x[min(t, len(x) - 1)], z[t - 1] if t else z0, weight_t, square, indices)
        after = states[0][t : t + 1], states[1][t : t + 1], states[2][t : t + 1]
        adaptive_lif(pushed, before, params, reset_gradient, z[t : t + 1], after, u[t : t + 1], NOUGHT, size)
        copy_into(before[0], states[0][t])
        copy_into(before[1], states[1][t])
        copy_into(before[2], states[2][t])
