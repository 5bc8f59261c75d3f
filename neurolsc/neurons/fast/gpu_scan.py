"""Neurons of other libraries over all steps on a GPU, by two Triton kernels: one forward, one backward.

An entry is one neuron of one sample, M the number of entries, T that of steps. A program runs a tile of entries over
all steps, and keeps their states, or the gradients by these, in registers. A step of each kind of neuron is a function
of :mod:`neurolsc.neurons.fast.gpu_steps`; y0 to y2 are its states, p0 to p6 its parameters, g0 to g2 gradients by
states.

Without a matrix of recurrent weights, a tile is R entries. With one, it is R samples and all n neurons, as C columns, a
power of two; weights are read K rows at a time. The spikes, or the gradients, that are multiplied with the weights then
go through global memory, as in :mod:`neurolsc.neurons.fast.gpu_kernels`. All tensors are contiguous and of one dtype,
float32 or float64.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from neurolsc.neurons.fast import gpu_kernels
from neurolsc.neurons.fast.gpu_kernels import times
from neurolsc.neurons.fast.gpu_steps import (
    GIVEN,
    adaptive_lif,
    adaptive_lif_back,
    alpha_function,
    alpha_function_back,
    current_lif,
    current_lif_back,
    leaky,
    leaky_back,
    synaptic,
    synaptic_back,
    voltage_lif,
    voltage_lif_back,
)
from neurolsc.neurons.fast.kinds import Neuron, Slope

ENTRIES = 128  # of a program without a matrix of weights, one for each of its threads

# Which spikes of its layer, of the step before, a neuron reads.
NO_SPIKES = tl.constexpr(0)
OWN_SPIKE = tl.constexpr(1)
ALL_SPIKES = tl.constexpr(2)

# The kernels' switches for a neuron's flags, in the order of the flags.
SWITCHES = {
    "leaky": ("RESET", "DELAYED"),
    "synaptic": ("RESET", "DELAYED"),
    "alpha_function": ("RESET",),
    "current_lif": ("RESET", "SPIKING", "PASSES"),
    "voltage_lif": ("FORM", "DIVIDES", "RESET", "PASSES", "AT_THRESHOLD"),
    "adaptive_lif": ("PASSES",),
}

# Arguments that the kernels do not specialise for: for other values of them nothing is compiled anew.
NUMBERS = ("steps", "size", "n", "x_step")
REVERSE_NUMBERS = ("steps", "size", "n", "given_step", "z_step", "step_0", "step_1", "step_2")


class Connection(NamedTuple):
    """What recurrent neurons read: their spikes before the first step (..., n), and weights.

    The weights are (n, n), entry [i, j] from neuron j to neuron i; or factors of each neuron's own spike: one for all
    neurons, or (n,).
    """

    z0: Tensor
    weight: Tensor


def forward(
    neuron: Neuron,
    x: Tensor,
    start: Tensor,
    params: Tensor,
    z: Tensor,
    states: Sequence[Tensor],
    u: Tensor,
    connection: Connection | None = None,
) -> None:
    """Run all steps of a layer; fill z, `states` and u.

    Args:
        neuron: the kind of neuron.
        x: currents (T, M), or (1, M) if they are the same in all steps.
        start: the states before the first step (states, M).
        params: the parameters (K, M).
        z: to be filled with the spikes (T, ...).
        states: to be filled with each state after each step, each (T, ...).
        u: to be filled with the voltages before the reset in their own step (T, M), if the neuron saves them.
        connection: what recurrent neurons read; None for others.
    """
    size = x.shape[1]
    launch = _launch(neuron, z, connection)
    del launch["PASSES"]  # a switch of the reverse kernel alone
    # in place of tensors that are not there, the kernel gets another one, which it does not touch
    z0 = x
    weight = x
    if connection is not None:
        z0 = connection.z0
        weight = _weight(connection, transposed=True)
    with torch.cuda.device_of(x):
        forward_kernel[_programs(size, z, launch)](
            *(x, start, _with_gain(neuron, params), z0, weight, z, *_three(states), u),
            # steps, size, x_step (0 where all steps share one row) and n
            *(len(z), size, size * (len(x) > 1), z.shape[-1]),
            PARAMS=len(params),
            SAVES=neuron.saves_voltage,
            **launch,
            enable_fp_fusion=False,  # type: ignore[call-arg]  # rounds as plain steps do
        )


def reverse(
    neuron: Neuron,
    slope: Slope,
    start: Tensor,
    params: Tensor,
    states: Sequence[Tensor],
    u: Tensor,
    given: Tensor,
    outer: Sequence[Tensor],
    by_start: Tensor,
    learnt: bool,
    connection: Connection | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of :func:`forward`, from the last step to the first.

    Args:
        neuron: as in :func:`forward`.
        slope: the derivative of a spike by its voltage.
        start: as in :func:`forward`.
        params: as in :func:`forward`.
        states: the states after each step (T, ..., n), as :func:`forward` filled them.
        u: the voltages before the reset (T, M), as :func:`forward` filled them.
        given: the derivative of each spike (T, M), if the kernel has no formula for it; else (1, M), not used.
        outer: gradients by the spikes and by each state after each step, from outside, each (T, M), or (1, M) if zero.
        by_start: gradients by the states after the last step (number of states, M); to be overwritten with those by
            the states before the first step.
        learnt: True if the gradient by params is wanted.
        connection: as in :func:`forward`.

    Returns:
        The gradients by the currents of each step (T, M); by params (K, M), zeros if not `learnt`; and by the spikes
        before the first step (M,), empty without a connection.
    """
    steps = len(states[0])
    size = u.shape[1]
    by_x = u.new_empty(steps, size)
    by_params = torch.zeros_like(params)
    by_z0 = u.new_empty(0 if connection is None else size)
    launch = _launch(neuron, states[0], connection)
    voltages = u if neuron.saves_voltage else states[neuron.voltage]
    before = [state[max(steps - 2, 0)] for state in _three(states)]  # the states that the last step starts from
    over_time = [given, outer[0], *_three(outer[1:])]
    weight = u  # not read
    if connection is not None:
        weight = _weight(connection, transposed=False)
    # The kernel starts at the last row of each tensor, and goes back in memory by M for each step; by 0 where all steps
    # share one row.
    with torch.cuda.device_of(u):
        reverse_kernel[_programs(size, states[0], launch)](
            *(start, _with_gain(neuron, params), weight, *before, voltages[-1], *(rows[-1] for rows in over_time)),
            *(by_x[-1], by_start, by_params, by_z0),
            *(steps, size, *(size * (len(rows) > 1) for rows in over_time), states[0].shape[-1]),
            PARAMS=len(params),
            LEARNT=learnt,
            FORMULA=slope.kind,
            A=float(slope.a),
            **launch,
            enable_fp_fusion=True,  # type: ignore[call-arg]
        )
    return by_x, by_params, by_z0


def _launch(neuron: Neuron, z: Tensor, connection: Connection | None) -> dict[str, Any]:
    """Return the kernels' switches and launch options for spikes (T, ..., n)."""
    # READS is 0, 1 or 2: NO_SPIKES, OWN_SPIKE or ALL_SPIKES
    launch: dict[str, Any] = {"KIND": neuron.name, "STATES": neuron.states, "READS": 0}
    launch |= dict.fromkeys(("RESET", "DELAYED", "SPIKING", "PASSES", "FORM", "AT_THRESHOLD"), 0)
    launch |= {name: int(flag) for name, flag in zip(SWITCHES[neuron.name], neuron.flags, strict=True)}
    launch.pop("DIVIDES", None)  # no switch of the kernels: `_with_gain` does what it asks
    if connection is not None and connection.weight.ndim == 2:
        n = z.shape[-1]
        return launch | {"READS": 2} | gpu_kernels._tile(z[0].view(-1, n))
    if connection is not None:
        launch["READS"] = 1
    return launch | {"R": ENTRIES, "C": 1, "K": 1, "num_warps": ENTRIES // 32, "num_stages": 1}


def _programs(size: int, z: Tensor, launch: dict[str, Any]) -> tuple[int]:
    """Return how many programs run `size` entries, R samples each with a matrix of weights, else R entries each."""
    parts = size
    if launch["READS"] == 2:
        parts = size // z.shape[-1]
    return (-(-parts // launch["R"]),)


def _with_gain(neuron: Neuron, params: Tensor) -> Tensor:
    """Return the parameters (K, M) with 1 / tau in place of a tau by which the neuron divides.

    On a GPU, PyTorch, too, multiplies by the reciprocal to divide a tensor by a number, such as tau.
    """
    if not neuron.divides:
        return params
    return torch.cat([params[:1].reciprocal(), params[1:]])


def _weight(connection: Connection, *, transposed: bool) -> Tensor:
    """Return recurrent weights (n, n), transposed or not; or factors of own spikes, in the shape of z0."""
    weight = connection.weight
    if weight.ndim < 2:
        weight = weight.expand_as(connection.z0)
    elif transposed:
        weight = weight.T
    return weight.contiguous()


def _three(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return three tensors: these, and the first again for each missing one, which the kernels do not touch."""
    return [*tensors, *[tensors[0]] * (3 - len(tensors))]


# ---- all steps


@triton.jit
def tile(first, size, n, READS: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """Return the indices of a program's entries, masks of the entries that exist, and of the samples that exist.

    With ALL_SPIKES the tile is (R, C), samples from `first` on and all neurons; else (R,), entries from `first` on, and
    both masks are the same.
    """
    part = first + tl.arange(0, R)
    if READS == ALL_SPIKES:
        column = tl.arange(0, C)
        within = part * n < size
        at = part[:, None] * n + column[None, :]
        mask = within[:, None] & (column < n)[None, :]
    else:
        at = part
        mask = part < size
        within = mask
    return at, mask, within


@triton.jit
def row(rows, i, size, at, mask, ROWS: tl.constexpr):
    """Return a tile of row i of `rows` (ROWS, M); zeros where there is no such row."""
    values = tl.zeros(at.shape, rows.dtype.element_ty)
    if i < ROWS:
        values = tl.load(rows + i * size + at, mask, 1.0)  # 1 behind the last entry: some steps divide by it
    return values


@triton.jit
def store_row(rows, i, size, at, mask, values, ROWS: tl.constexpr):
    """Write a tile into row i of `rows` (ROWS, M), if there is such a row."""
    if i < ROWS:
        tl.store(rows + i * size + at, values, mask)


@triton.jit(do_not_specialize=NUMBERS)
def forward_kernel(
    x,  # (T, M), currents; (1, M) if x_step is 0
    start,  # (STATES, M), the states before the first step
    params,  # (PARAMS, M)
    z0,  # (M,), the spikes before the first step, if a neuron reads spikes
    weight,  # with ALL_SPIKES (n, n), from row to column; with OWN_SPIKE (M,), factors of the neurons' own spikes
    z,  # (T, M), to be filled with the spikes
    state_0,  # (T, M), to be filled with each state after each step
    state_1,
    state_2,
    u,  # (T, M), to be filled if SAVES
    steps,  # T
    size,  # M
    x_step,  # distance in memory between the currents of two steps: M, or 0
    n,  # neurons of a sample
    KIND: tl.constexpr,
    STATES: tl.constexpr,
    PARAMS: tl.constexpr,
    SAVES: tl.constexpr,
    READS: tl.constexpr,  # NO_SPIKES, OWN_SPIKE or ALL_SPIKES
    RESET: tl.constexpr,
    DELAYED: tl.constexpr,
    SPIKING: tl.constexpr,
    FORM: tl.constexpr,
    AT_THRESHOLD: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
):
    """Run all steps of a tile of entries."""
    size = size.to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * R
    at, mask, within = tile(first, size, n, READS, R, C)
    y0 = row(start, 0, size, at, mask, STATES)
    y1 = row(start, 1, size, at, mask, STATES)
    y2 = row(start, 2, size, at, mask, STATES)
    p0 = row(params, 0, size, at, mask, PARAMS)
    p1 = row(params, 1, size, at, mask, PARAMS)
    p2 = row(params, 2, size, at, mask, PARAMS)
    p3 = row(params, 3, size, at, mask, PARAMS)
    p4 = row(params, 4, size, at, mask, PARAMS)
    p5 = row(params, 5, size, at, mask, PARAMS)
    p6 = row(params, 6, size, at, mask, PARAMS)
    last = z0  # where the spikes of the step before are stored
    sent = tl.zeros_like(y0)
    factor = sent
    if READS == OWN_SPIKE:
        sent = tl.load(z0 + at, mask, 0.0)
        factor = tl.load(weight + at, mask, 0.0)
    for _ in range(steps):
        x_t = tl.load(x + at, mask, 0.0)
        if READS == OWN_SPIKE:
            x_t += sent * factor
        if READS == ALL_SPIKES:
            tl.debug_barrier()  # all threads have written their spikes, which `times` reads
            x_t += times(last + first * n, weight, n, within, R, C, K)
        if KIND == "leaky":
            sent, unreset, y0 = leaky(x_t, y0, p0, p1, p2, RESET, DELAYED)
        elif KIND == "synaptic":
            sent, unreset, y0, y1 = synaptic(x_t, y0, y1, p0, p1, p2, p3, RESET, DELAYED)
        elif KIND == "alpha_function":
            sent, y0, y1, y2 = alpha_function(x_t, y0, y1, y2, p0, p1, p2, p3, p4, RESET)
            unreset = y2
        elif KIND == "current_lif":
            sent, unreset, y0, y1 = current_lif(x_t, y0, y1, p0, p1, p2, p3, p4, RESET, SPIKING)
        elif KIND == "voltage_lif":
            sent, unreset, y0 = voltage_lif(x_t, y0, p0, p1, p2, p3, FORM, RESET, AT_THRESHOLD)
        else:
            sent, unreset, y0, y1, y2 = adaptive_lif(x_t, y0, y1, y2, p0, p1, p2, p3, p4, p5, p6)
        tl.store(z + at, sent, mask)
        tl.store(state_0 + at, y0, mask)
        if STATES > 1:
            tl.store(state_1 + at, y1, mask)
        if STATES > 2:
            tl.store(state_2 + at, y2, mask)
        if SAVES:
            tl.store(u + at, unreset, mask)
        last = z
        x += x_step
        z += size
        state_0 += size
        state_1 += size
        state_2 += size
        u += size


@triton.jit(do_not_specialize=REVERSE_NUMBERS)
def reverse_kernel(
    # state_0 to by_x point at the row of the last step, or of the one before it; the kernel goes back in memory
    start,  # (STATES, M), the states before the first step
    params,  # (PARAMS, M)
    weight,  # with ALL_SPIKES (n, n), entry [i, j] from j to i; with OWN_SPIKE (M,), factors of the neurons' own spikes
    state_0,  # each state after the step before the last one; not read if there is no such step
    state_1,
    state_2,
    u,  # voltages of the last step, before they were reset
    given,  # the derivatives of the last step's spikes, if FORMULA is GIVEN
    from_z,  # gradients by the last step's spikes, from outside
    from_0,  # gradients by each state after the last step, from outside
    from_1,
    from_2,
    by_x,  # to be filled with the gradients by the last step's currents
    by_start,  # (STATES, M), gradients by the states after the last step; becomes those by the ones before the first
    by_params,  # (PARAMS, M), to be filled
    by_z0,  # (M,), to be filled with the gradients by the spikes before the first step, if a neuron reads spikes
    steps,  # T
    size,  # M
    given_step,  # distance in memory between two steps: M, or 0 where all steps share one row
    z_step,
    step_0,
    step_1,
    step_2,
    n,  # neurons of a sample
    KIND: tl.constexpr,
    STATES: tl.constexpr,
    PARAMS: tl.constexpr,
    READS: tl.constexpr,  # NO_SPIKES, OWN_SPIKE or ALL_SPIKES
    LEARNT: tl.constexpr,  # by_params is wanted
    RESET: tl.constexpr,
    DELAYED: tl.constexpr,
    SPIKING: tl.constexpr,
    PASSES: tl.constexpr,
    FORM: tl.constexpr,
    AT_THRESHOLD: tl.constexpr,
    FORMULA: tl.constexpr,  # of the derivative of a spike
    A: tl.constexpr,  # the number in the formula
    R: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
):
    """Compute the gradients of a tile of entries, from the last step to the first."""
    size = size.to(tl.int64)
    first = tl.program_id(0).to(tl.int64) * R
    at, mask, within = tile(first, size, n, READS, R, C)
    p0 = row(params, 0, size, at, mask, PARAMS)
    p1 = row(params, 1, size, at, mask, PARAMS)
    p2 = row(params, 2, size, at, mask, PARAMS)
    p3 = row(params, 3, size, at, mask, PARAMS)
    p4 = row(params, 4, size, at, mask, PARAMS)
    p5 = row(params, 5, size, at, mask, PARAMS)
    p6 = row(params, 6, size, at, mask, PARAMS)
    g0 = row(by_start, 0, size, at, mask, STATES)
    g1 = row(by_start, 1, size, at, mask, STATES)
    g2 = row(by_start, 2, size, at, mask, STATES)
    zero = tl.zeros_like(g0)
    sum_0 = zero
    sum_1 = zero
    sum_2 = zero
    sum_3 = zero
    sum_4 = zero
    sum_5 = zero
    sum_6 = zero
    back = zero  # gradient by the spikes of a step, through the currents of the next one
    factor = zero
    if READS == OWN_SPIKE:
        factor = tl.load(weight + at, mask, 0.0)
    for i in range(steps):
        if i == steps - 1:  # the first step starts from the states before it
            state_0 = start
            state_1 = start + size
            state_2 = start + 2 * size
        q = tl.load(from_z + at, mask, 0.0) + back  # gradient by the spikes of the step
        y0 = tl.load(state_0 + at, mask, 0.0)
        g0 += tl.load(from_0 + at, mask, 0.0)
        y1 = zero
        y2 = zero
        if STATES > 1:
            y1 = tl.load(state_1 + at, mask, 0.0)
            g1 += tl.load(from_1 + at, mask, 0.0)
        if STATES > 2:
            y2 = tl.load(state_2 + at, mask, 0.0)
            g2 += tl.load(from_2 + at, mask, 0.0)
        unreset = tl.load(u + at, mask, 0.0)
        slope = zero
        if FORMULA == GIVEN:
            slope = tl.load(given + at, mask, 0.0)
        # d0 to d6: what this step adds to the gradients by the parameters
        d3 = zero
        d4 = zero
        d5 = zero
        d6 = zero
        if KIND == "leaky":
            by_current, g0, d0, d1, d2 = leaky_back(g0, q, y0, unreset, slope, p0, p1, p2, RESET, DELAYED, FORMULA, A)
        elif KIND == "synaptic":
            by_current, g0, g1, d0, d1, d2, d3 = synaptic_back(
                g0, g1, q, y0, y1, unreset, slope, p0, p1, p2, p3, RESET, DELAYED, FORMULA, A
            )
        elif KIND == "alpha_function":
            by_current, g0, g1, g2, d0, d1, d2, d3, d4 = alpha_function_back(
                g0, g1, g2, q, y0, y1, y2, unreset, slope, p0, p1, p2, p3, p4, RESET, FORMULA, A
            )
        elif KIND == "current_lif":
            by_current, g0, g1, d0, d1, d2, d3, d4 = current_lif_back(
                g0, g1, q, y0, unreset, slope, p0, p1, p2, p3, p4, RESET, SPIKING, PASSES, FORMULA, A
            )
        elif KIND == "voltage_lif":
            by_current, g0, d0, d1, d2, d3 = voltage_lif_back(
                g0, q, y0, unreset, slope, p0, p1, p2, p3, FORM, RESET, PASSES, AT_THRESHOLD, FORMULA, A
            )
        else:
            by_current, g0, g1, g2, d0, d1, d2, d3, d4, d5, d6 = adaptive_lif_back(
                g0, g1, g2, q, y0, y1, y2, unreset, slope, p0, p1, p2, p3, p4, p5, p6, PASSES, FORMULA, A
            )
        tl.store(by_x + at, by_current, mask)
        if LEARNT:
            sum_0 += d0
            sum_1 += d1
            sum_2 += d2
            sum_3 += d3
            sum_4 += d4
            sum_5 += d5
            sum_6 += d6
        if READS == OWN_SPIKE:
            back = by_current * factor
        if READS == ALL_SPIKES:
            tl.debug_barrier()  # all threads have written by_x, which `times` reads
            back = times(by_x + first * n, weight, n, within, R, C, K)
        state_0 -= size
        state_1 -= size
        state_2 -= size
        u -= size
        by_x -= size
        given -= given_step
        from_z -= z_step
        from_0 -= step_0
        from_1 -= step_1
        from_2 -= step_2
    if READS != NO_SPIKES:
        tl.store(by_z0 + at, back, mask)
    store_row(by_start, 0, size, at, mask, g0, STATES)
    store_row(by_start, 1, size, at, mask, g1, STATES)
    store_row(by_start, 2, size, at, mask, g2, STATES)
    if LEARNT:
        store_row(by_params, 0, size, at, mask, sum_0, PARAMS)
        store_row(by_params, 1, size, at, mask, sum_1, PARAMS)
        store_row(by_params, 2, size, at, mask, sum_2, PARAMS)
        store_row(by_params, 3, size, at, mask, sum_3, PARAMS)
        store_row(by_params, 4, size, at, mask, sum_4, PARAMS)
        store_row(by_params, 5, size, at, mask, sum_5, PARAMS)
        store_row(by_params, 6, size, at, mask, sum_6, PARAMS)
