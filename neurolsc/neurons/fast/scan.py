"""Neurons without recurrent weights over all steps at once, as one function with its own gradient.

What a neuron reads does not depend on what it sends, so that a whole sequence of currents is known before its first
step. :func:`scan` runs it by the kernels of :mod:`neurolsc.neurons.fast.scan_kernels`, entry by entry, and saves the
voltages alone.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.neurons.fast.sequence import transformed


class Slope(NamedTuple):
    """The derivative of a spike by its distance from the threshold: a formula of the kernels, and its number."""

    kind: int
    a: float = 1.0
    derivative: Any = None  # the derivative as a function of distances, where the formula is none of the kernels


@dataclass(frozen=True)
class Neuron:
    """A kind of neuron that the kernels know.

    Attributes:
        name: of its kernel.
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
    """What a run sent and went through."""

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
        by_z, *by_others = gradients
        neuron: Neuron = ctx.neuron
        start, params, u, *states = ctx.saved_tensors
        steps = len(states[0])
        size = u.shape[1]
        nothing = u.new_zeros(1, size)
        given = nothing
        if ctx.slope.derivative is not None:
            voltage = u if neuron.saves_voltage else states[neuron.voltage].flatten(1)
            given = ctx.slope.derivative(voltage - params[neuron.threshold]).contiguous()
        outer = [nothing if by is None else by.contiguous() for by in (by_z, *by_others[: neuron.states])]
        ends = [nothing[0] if by is None else by.flatten() for by in by_others[neuron.states :]]
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
