"""Neurons of other libraries over all steps at once, as one function with its own gradient.

The input of a neuron without recurrent weights does not depend on its output, so that a whole sequence of currents is
known before its first step. :func:`scan` runs it by the kernels of :mod:`neurolsc.neurons.fast.scan_kernels`, entry by
entry, and saves the voltages alone. :func:`recurrent_scan` calls the same kernels step by step, with a product between
two steps: a sum of rows of the weights forward, a dense one backward.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neurolsc.neurons.fast.sequence import transformed


class Slope(NamedTuple):
    """The derivative of a spike by its distance from the threshold."""

    kind: int  # a formula of the kernels
    a: float = 1.0  # its number
    derivative: Any = None  # a function of distances, for formulas that the kernels do not know


@dataclass(frozen=True)
class Neuron:
    """A kind of neuron that the kernels know.

    Attributes:
        name: name of its kernel.
        states: number of its states.
        voltage: which of them its spikes follow.
        threshold: which of its parameters is the threshold.
        flags: the settings of its kernel.
        saves_voltage: True if it is reset within the step that fires, so that the voltage before it is saved.
    """

    name: str
    states: int
    voltage: int
    threshold: int
    flags: tuple[Any, ...]
    saves_voltage: bool


class Scanned(NamedTuple):
    """Spikes and states of a run."""

    z: Tensor  # (T, ...)
    states: tuple[Tensor, ...]  # after each step (T, ...)
    ends: tuple[Tensor, ...]  # after the last one (...)


def can_scan(tensors: Sequence[Tensor]) -> bool:
    """True if the kernels can run neurons of these currents, states and parameters."""
    first = tensors[0]
    return (
        first.dtype in (torch.float32, torch.float64)
        and all(t.device.type == "cpu" for t in tensors)
        and not transformed(tensors)
    )


def scan(
    neuron: Neuron, x: Tensor, steps: int, start: Sequence[Tensor], params: Sequence[Tensor], slope: Slope
) -> Scanned:
    """Run neurons over all steps.

    Args:
        neuron: their kind.
        x: currents (T, ...), or (1, ...) if they are the same in all steps.
        steps: T.
        start: the states before the first step, each (...).
        params: the parameters, each of a shape that expands to (...).
        slope: the derivative of their spikes.

    Returns:
        Spikes, states after each step and after the last one.
    """
    shape = x.shape[1:]
    size = shape.numel()
    flat = x.reshape(len(x), size).contiguous()
    starts = torch.stack([state.to(x.dtype).expand(shape).reshape(size) for state in start])
    values = torch.stack([p.to(x.dtype).expand(shape).reshape(size) for p in params])
    z, *others = _Scan.apply(neuron, slope, (steps, *shape), flat, starts, values)  # type: ignore[misc]
    return Scanned(z, tuple(others[: neuron.states]), tuple(others[neuron.states :]))


def flat_array(tensor: Tensor) -> Any:
    """A contiguous tensor (T, ...) as an array (T, M) of the same memory."""
    return tensor.detach().view(len(tensor), -1).numpy()


def given_slopes(slope: Slope, neuron: Neuron, u: Tensor, states: Sequence[Tensor], params: Tensor) -> Tensor:
    """The derivatives of spikes (T, M) where the kernels do not know their formula; else zeros (1, M)."""
    if slope.derivative is None:
        return u.new_zeros(1, u.shape[1])
    voltage = states[neuron.voltage].flatten(1)
    if neuron.saves_voltage:
        voltage = u
    return slope.derivative(voltage - params[neuron.threshold]).contiguous()


def outer_gradients(gradients: Sequence[Tensor | None], states: int, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients that reach a run from outside, with zeros for None.

    Returns:
        Those by spikes and states of all steps, each (T, M) or zeros (1, M), and those by the last states (M,).
    """
    zeros = like.new_zeros(1, like.shape[1])
    over_time = [zeros if by is None else by.reshape(len(by), -1).contiguous() for by in gradients[: 1 + states]]
    at_end = [zeros[0] if by is None else by.flatten() for by in gradients[1 + states :]]
    return over_time, at_end


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, neuron: Neuron, slope: Slope, shape: tuple[int, ...], x: Tensor, start: Tensor, params: Tensor
    ) -> Any:
        from neurolsc.neurons.fast import scan_kernels  # the import of Numba takes half a second

        steps = shape[0]
        size = x.shape[1]
        # what is returned is no view: libraries detach it in place
        z = x.new_empty(shape)
        states = [x.new_empty(shape) for _ in range(neuron.states)]
        u = x.new_empty(steps if neuron.saves_voltage else 1, size)
        arrays = flat_array(z), tuple(map(flat_array, states)), u.numpy()
        inputs = [t.detach().numpy() for t in (x, start, params)]
        kernel = getattr(scan_kernels, neuron.name)

        def piece(first: int, last: int) -> None:
            kernel(*inputs, *neuron.flags, *arrays, first, last)

        in_parts(size, size * steps, piece)
        ctx.save_for_backward(start, params, u, *states)
        ctx.neuron = neuron
        ctx.slope = slope
        ctx.currents = len(x)
        ctx.set_materialize_grads(False)
        return z, *states, *(state[-1].clone() for state in states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        from neurolsc.neurons.fast import scan_kernels

        if torch.is_grad_enabled():
            raise RuntimeError("an accelerated network has no second derivative: take it of the user's own module.")
        neuron: Neuron = ctx.neuron
        start, params, u, *states = ctx.saved_tensors
        steps = len(states[0])
        size = u.shape[1]
        given = given_slopes(ctx.slope, neuron, u, states, params)
        outer, ends = outer_gradients(gradients, neuron.states, u)
        by_x = u.new_zeros(ctx.currents, size)
        by_start = torch.stack(ends)
        by_params = torch.zeros_like(params)
        arrays = (
            start.numpy(), params.numpy(), *neuron.flags, tuple(map(flat_array, states)), u.numpy(),
            ctx.slope.kind, float(ctx.slope.a), given.numpy(), flat_array(outer[0]), tuple(map(flat_array, outer[1:])),
            by_x.numpy(), by_start.numpy(), by_params.numpy(), ctx.needs_input_grad[5],
        )  # fmt: skip
        kernel = getattr(scan_kernels, f"{neuron.name}_back")

        def piece(first: int, last: int) -> None:
            kernel(*arrays, first, last)

        in_parts(size, size * steps, piece)
        return None, None, None, by_x, by_start, by_params


def recurrent_scan(
    neuron: Neuron,
    x: Tensor,
    steps: int,
    start: Sequence[Tensor],
    params: Sequence[Tensor],
    slope: Slope,
    z: Tensor,
    weight: Tensor,
    bias: Tensor | None,
) -> Scanned:
    """Run neurons that read their own spikes of the step before, over all steps.

    Args:
        neuron: their kind.
        x: currents from outside (T, ..., n), or (1, ..., n) if they are the same in all steps.
        steps: T.
        start: the states before the first step, each (..., n).
        params: the parameters, each of a shape that expands to (..., n).
        slope: the derivative of their spikes.
        z: the spikes before the first step (..., n).
        weight: recurrent weights (n, n), entry [i, j] from j to i; or one factor, or one per neuron (n,), of the spikes
            of the neuron itself.
        bias: a current of each step (n,), or None.

    Returns:
        Spikes, states after each step and after the last one.
    """
    shape = x.shape[1:]
    size = shape.numel()
    x = x if bias is None else x + bias
    starts = torch.stack([state.to(x.dtype).expand(shape).reshape(size) for state in start])
    values = torch.stack([p.to(x.dtype).expand(shape).reshape(size) for p in params])
    z = z.to(x.dtype).expand(shape).contiguous()
    x = x.reshape(len(x), size).contiguous()
    found = _RecurrentScan.apply(neuron, slope, (steps, *shape), x, starts, values, z, weight)
    z, *others = found  # type: ignore[misc]
    return Scanned(z, tuple(others[: neuron.states]), tuple(others[neuron.states :]))


class _RecurrentScan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        neuron: Neuron,
        slope: Slope,
        shape: tuple[int, ...],
        x: Tensor,
        start: Tensor,
        params: Tensor,
        z0: Tensor,
        weight: Tensor,
    ) -> Any:
        from neurolsc.neurons.fast import scan_kernels

        steps = shape[0]
        size = x.shape[1]
        square = weight.ndim == 2
        z = x.new_empty(shape)
        states = [x.new_empty(shape) for _ in range(neuron.states)]
        u = x.new_empty(steps if neuron.saves_voltage else 1, size)
        if square:
            weight_t = weight.T.contiguous()
        else:
            weight_t = weight.expand(1, shape[-1]).contiguous()
        inputs = [t.detach().numpy() for t in (x, start, params)]
        places = flat_array(z), tuple(map(flat_array, states)), u.numpy()
        kernel = getattr(scan_kernels, f"{neuron.name}_recurrent")
        kernel(*inputs, *neuron.flags, *places, z0.detach().flatten().numpy(), weight_t.detach().numpy(), square)
        ctx.save_for_backward(start, params, u, z0, weight, z, *states)
        ctx.neuron = neuron
        ctx.slope = slope
        ctx.currents = len(x)
        ctx.set_materialize_grads(False)
        return z, *states, *(state[-1].clone() for state in states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        from neurolsc.neurons.fast import scan_kernels

        if torch.is_grad_enabled():
            raise RuntimeError("an accelerated network has no second derivative: take it of the user's own module.")
        neuron: Neuron = ctx.neuron
        start, params, u, z0, weight, z, *states = ctx.saved_tensors
        steps = len(z)
        size = u.shape[1]
        n = z.shape[-1]
        given = given_slopes(ctx.slope, neuron, u, states, params)
        outer, ends = outer_gradients(gradients, neuron.states, u)
        by_x = u.new_zeros(steps, size)
        by_start = torch.stack(ends)
        by_params = torch.zeros_like(params)
        kernel = getattr(scan_kernels, f"{neuron.name}_back")
        after = tuple(map(flat_array, states))
        found = by_start.numpy(), by_params.numpy(), ctx.needs_input_grad[5]
        formula = ctx.slope.kind, float(ctx.slope.a)
        constants = params.numpy()
        first = start.numpy()
        voltage = u.numpy()
        slopes = given.numpy()
        by_currents = by_x.numpy()
        from_states = tuple(by.numpy() for by in outer[1:])
        square = weight.ndim == 2
        back = u.new_zeros(1, size)  # the gradient by the spikes of a step, through the recurrent weights at first
        for t in range(steps - 1, -1, -1):
            if gradients[0] is not None:
                back += outer[0][t]
            before = first
            if t:
                if len(after) == 1:
                    before = after[0][t - 1 : t]
                else:
                    before = np.stack([state[t - 1] for state in after])
            kernel(
                before, constants, *neuron.flags, tuple(state[t : t + 1] for state in after), step_of(voltage, t),
                *formula, step_of(slopes, t), back.numpy(), tuple(step_of(by, t) for by in from_states),
                by_currents[t : t + 1], *found, 0, size,
            )  # fmt: skip
            reached = by_x[t].view(-1, n)
            if square:
                torch.mm(reached, weight, out=back.view(-1, n))
            else:
                torch.mul(reached, weight, out=back.view(-1, n))
        by_weight = None
        if ctx.needs_input_grad[7]:
            read = torch.cat([z0[None], z[:-1]]).view(-1, n)
            if square:
                by_weight = weight_gradient(read, by_x.view(-1, n))
            else:
                by_weight = by_x.view(-1, n) * read
            by_weight = by_weight.sum_to_size(weight.shape)
        if ctx.currents > 1 or steps == 1:
            by_input = by_x
        else:
            by_input = by_x.sum(0, keepdim=True)
        return None, None, None, by_input, by_start, by_params, back.view_as(z0), by_weight


def step_of(rows: Any, t: int) -> Any:
    """One step of an array (T, M), or all of one (1, M)."""
    if len(rows) > 1:
        return rows[t : t + 1]
    return rows


def weight_gradient(read: Tensor, by_sent: Tensor) -> Tensor:
    """The gradient by weights (m, n), from what they read (R, n), mostly spikes, and the gradient by what they sent."""
    from neurolsc.neurons.fast import cpu_kernels

    entries = cpu_kernels.nonzeros(read)
    if entries is None:
        return by_sent.T @ read
    total = by_sent.new_zeros(read.shape[1], by_sent.shape[1])
    cpu_kernels.add_transposed_times(total, entries, by_sent)
    return total.T


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``torch.nn.functional.linear`` over many steps; where few entries of x differ from zero, as sums of rows.

    Like the dense product, but in another order of the sum.
    """
    suits = x.dtype == weight.dtype and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    few = x.numel() < LEAST_ENTRIES or len(weight) < LEAST_ROW
    if not suits or few or transformed([x, weight]):
        return torch.nn.functional.linear(x, weight, bias)
    from neurolsc.neurons.fast import cpu_kernels

    entries = cpu_kernels.nonzeros(x.detach().reshape(-1, x.shape[-1]))
    if entries is None or not weight.sum().isfinite():  # plain products multiply zeros with what is not finite
        return torch.nn.functional.linear(x, weight, bias)
    return _SparseLinear.apply(entries, x, weight, bias)  # type: ignore[return-value]


class _SparseLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, entries: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        from neurolsc.neurons.fast import cpu_kernels

        out = cpu_kernels.times(entries, weight.T.contiguous())
        if bias is not None:
            out += bias
        ctx.entries = entries
        ctx.save_for_backward(weight)
        return out.view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        from neurolsc.neurons.fast import cpu_kernels

        if torch.is_grad_enabled():
            raise RuntimeError("an accelerated network has no second derivative: take it of the user's own module.")
        (weight,) = ctx.saved_tensors
        by_out = gradients[0]
        by_rows = by_out.reshape(-1, len(weight)).contiguous()
        by_x = None
        if ctx.needs_input_grad[1]:
            by_x = by_out @ weight
        by_weight = None
        if ctx.needs_input_grad[2]:
            total = torch.zeros_like(weight.T, memory_format=torch.contiguous_format)
            cpu_kernels.add_transposed_times(total, ctx.entries, by_rows)
            by_weight = total.T
        return None, by_x, by_weight, by_rows.sum(0) if ctx.needs_input_grad[3] else None


LEAST_ENTRIES = 2**13  # of an input, below which its zeros are not looked for
LEAST_ROW = 32  # outputs, below which a row is too short to add
PER_THREAD = 2**16  # steps of single neurons below which a thread of its own costs more than it saves


def in_parts(length: int, work: int, do: Any) -> None:
    """Call a function of a range of entries, in as many threads as are worth it."""
    parts = min(torch.get_num_threads(), work // PER_THREAD, length)
    if parts < 2:
        do(0, length)
        return
    edges = [length * i // parts for i in range(parts + 1)]
    list(_threads(parts).map(do, edges[:-1], edges[1:]))


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="neurolsc")
