"""Neurons of other libraries over all steps at once, as one function with its own gradient.

The input of a neuron without recurrent weights does not depend on its output, so that a whole sequence of currents is
known before its first step. :func:`scan` runs it by kernels (:mod:`neurolsc.neurons.fast.scan_kernels`), entry by
entry, and saves the states and voltages alone. :func:`recurrent_scan` calls the same kernels step by step, with a
product between two steps: a sum of rows of the weights forward, a dense one backward. On a GPU both call the kernels of
:mod:`neurolsc.neurons.fast.gpu_scan`.

Shapes: M entries of a layer, one for each neuron of each sample, flattened; T steps.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.neurons.fast.kinds import GIVEN, SIGMOID, Neuron, Slope
from neurolsc.neurons.fast.sequence import runs_triton, transformed


class Scanned(NamedTuple):
    """Spikes and states of a run."""

    z: Tensor  # (T, ...)
    states: tuple[Tensor, ...]  # after each step (T, ...)
    ends: tuple[Tensor, ...]  # after the last one (...)


def can_scan(tensors: Sequence[Tensor]) -> bool:
    """True if the kernels can run neurons with these tensors: their currents first, then states and parameters.

    The currents must be float32 or float64, all tensors on a CPU or on one GPU, and none under a transform.
    """
    first = tensors[0]
    return (
        first.dtype in (torch.float32, torch.float64)
        and all(t.device == first.device for t in tensors)
        and has_kernels(first.device)
        and not transformed(tensors)
    )


def has_kernels(device: torch.device) -> bool:
    """True if there are kernels for a device: a CPU, or a GPU on which Triton runs."""
    return device.type == "cpu" or runs_triton(device)


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
    shape = x.shape[1:]  # of one step
    size = shape.numel()
    flat = x.reshape(len(x), size).contiguous()
    starts = torch.stack([state.to(x.dtype).expand(shape).reshape(size) for state in start])
    values = torch.stack([p.to(x.dtype).expand(shape).reshape(size) for p in params])
    z, *others = _Scan.apply(neuron, slope, (steps, *shape), flat, starts, values)  # type: ignore[misc]
    return Scanned(z, tuple(others[: neuron.states]), tuple(others[neuron.states :]))


def kernel_named(name: str) -> Any:
    """Return the CPU's kernel of a name, such as "leaky_back"."""
    from neurolsc.neurons.fast import reset_kernels, snntorch_kernels

    if hasattr(snntorch_kernels, name):
        return getattr(snntorch_kernels, name)
    return getattr(reset_kernels, name)


def flat_array(tensor: Tensor) -> Any:
    """Return a contiguous tensor (T, ...) as an array (T, M) of the same memory, which a kernel may fill."""
    return tensor.detach().view(len(tensor), -1).numpy()


def slope_on_cpu(slope: Slope) -> Slope:
    """Return a slope as the CPU's kernels know it.

    A sigmoid's is given by PyTorch, since Numba makes no vector instructions of an exponential.
    """
    if slope.kind != SIGMOID:
        return slope

    def derivative(distance: Tensor) -> Tensor:
        # a (s - s^2) with s = sigmoid(-a |d|), where the difference does not cancel; it is the same for d and -d.
        # In place, as nothing else reads the distances.
        sigmoid = distance.abs_().mul_(-slope.a).sigmoid_()
        return sigmoid.addcmul_(sigmoid, sigmoid, value=-1).mul_(slope.a)

    return Slope(GIVEN, 1.0, derivative)  # 1.0: not read


def given_slopes(slope: Slope, neuron: Neuron, u: Tensor, states: Sequence[Tensor], params: Tensor) -> Tensor:
    """Return the derivatives of spikes by their voltage (T, M), where the kernels do not know their formula.

    u (T, M) are the voltages before the reset, or (1, M) if not saved, states those after each step, params (K, M).
    Where the kernels know the formula, or the derivative is zero, it returns zeros (1, M).
    """
    if slope.derivative is None:
        return u.new_zeros(1, u.shape[1])
    voltage = states[neuron.voltage].flatten(1)
    if neuron.saves_voltage:
        voltage = u
    return slope.derivative(voltage - params[neuron.threshold]).contiguous()


def outer_gradients(gradients: Sequence[Tensor | None], states: int, like: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Flatten the gradients that reach a run from outside, and put zeros in the place of None.

    Args:
        gradients: those by what the run returned: spikes, states after each step (T, ...), states at the end (...).
        states: number of states.
        like: a tensor (any, M) of the dtype wanted.

    Returns:
        A list of the gradients by spikes and by each state, (T, M), or zeros (1, M) for None; and a list of those by
        each last state (M,).
    """
    zeros = like.new_zeros(1, like.shape[1])
    over_time = [zeros if by is None else by.reshape(len(by), -1).contiguous() for by in gradients[: 1 + states]]
    at_end = [zeros[0] if by is None else by.flatten() for by in gradients[1 + states :]]
    return over_time, at_end


def refuse_derivatives_of(gradients: Sequence[Tensor | None]) -> None:
    """Raise a RuntimeError in a backward pass that is differentiated, batched over gradients, or watched by a mode."""
    if torch.is_grad_enabled():
        raise RuntimeError("an accelerated network has no second derivative: take it of the user's own module.")
    if transformed(gradients):
        raise RuntimeError(
            "an accelerated network has no backward pass for several gradients at once (vectorize=True, vmap), or under a "
            "mode, such as FlopCounterMode, that its forward pass was not under: take gradients one by one, run both "
            "passes under the mode, or take the user's own module."
        )


def by_time_constant(neuron: Neuron, by_params: Tensor, params: Tensor) -> Tensor:
    """Return the gradient by parameters (K, M) whose first is tau, by which the neuron divides, given that by 1 / tau.

    Of any other neuron it is returned as it is.
    """
    if neuron.divides:
        by_params[0] /= -params[0].square()
    return by_params


class _Scan(torch.autograd.Function):
    """:func:`scan` on flat tensors: x (T or 1, M), start (states, M), params (K, M); spikes have `shape` (T, ...)."""

    @staticmethod
    def forward(
        ctx: Any, neuron: Neuron, slope: Slope, shape: tuple[int, ...], x: Tensor, start: Tensor, params: Tensor
    ) -> Any:
        steps = shape[0]
        size = x.shape[1]
        # tensors of the final shape, not views of flat ones: libraries detach what is returned in place
        z = x.new_empty(shape)
        states = [x.new_empty(shape) for _ in range(neuron.states)]
        u = x.new_empty(steps if neuron.saves_voltage else 1, size)  # one row is not used
        ctx.gpu = runs_triton(x.device)
        if ctx.gpu:
            from neurolsc.neurons.fast import gpu_scan

            gpu_scan.forward(neuron, x, start, params, z, states, u)
        else:
            from neurolsc.neurons.fast import cpu_kernels  # the import of Numba takes half a second

            outputs = flat_array(z), tuple(map(flat_array, states)), u.numpy()
            inputs = [t.detach().numpy() for t in (x, start, params)]
            kernel = kernel_named(neuron.name)

            def piece(first: int, last: int) -> None:
                kernel(*inputs, *neuron.flags, *outputs, first, last)

            cpu_kernels.in_parts(size, size * steps // PER_THREAD, piece)
        ctx.save_for_backward(start, params, u, *states)
        ctx.neuron = neuron
        ctx.slope = slope
        ctx.rows_of_x = len(x)  # T, or 1
        ctx.set_materialize_grads(False)  # None, not zeros, for an output without a gradient
        return z, *states, *(state[-1].clone() for state in states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Return the gradients by x (T or 1, M), start (states, M) and params (K, M); None for the others."""
        refuse_derivatives_of(gradients)
        neuron: Neuron = ctx.neuron
        start, params, u, *states = ctx.saved_tensors
        steps = len(states[0])
        size = u.shape[1]
        slope = ctx.slope if ctx.gpu else slope_on_cpu(ctx.slope)
        # u: voltages before the reset. given: derivatives of the spikes that the kernels cannot compute.
        # outer: gradients of each step by spikes and states, from outside. by_ends: those by the states at the end.
        given = given_slopes(slope, neuron, u, states, params)
        outer, by_ends = outer_gradients(gradients, neuron.states, u)
        # begins as the gradient by the last states, which the kernel carries back to the first, in place
        by_start = torch.stack(by_ends)
        learnt = ctx.needs_input_grad[5]  # params
        if ctx.gpu:
            from neurolsc.neurons.fast import gpu_scan

            by_x, by_params, _ = gpu_scan.reverse(
                neuron, slope, start, params, states, u, given, outer, by_start, learnt
            )
            by_params = by_time_constant(neuron, by_params, params)
            return None, None, None, of_rows(by_x, ctx.rows_of_x), by_start, by_params
        from neurolsc.neurons.fast import cpu_kernels

        by_x = u.new_zeros(ctx.rows_of_x, size)
        by_params = torch.zeros_like(params)
        by_spikes, *by_states = outer
        arrays = (  # in the order of the kernel's arguments
            start.numpy(), params.numpy(), *neuron.flags, tuple(map(flat_array, states)), u.numpy(),
            slope.kind, float(slope.a), given.numpy(), flat_array(by_spikes), tuple(map(flat_array, by_states)),
            by_x.numpy(), by_start.numpy(), by_params.numpy(), learnt,
        )  # fmt: skip
        kernel = kernel_named(f"{neuron.name}_back")

        def piece(first: int, last: int) -> None:
            kernel(*arrays, first, last, 0, steps)

        cpu_kernels.in_parts(size, size * steps // PER_THREAD, piece)
        return None, None, None, by_x, by_start, by_time_constant(neuron, by_params, params)


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
        z: the last output, spikes, before the first step (..., n).
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
    z, *others = _RecurrentScan.apply(neuron, slope, (steps, *shape), x, starts, values, z, weight)  # type: ignore[misc]
    return Scanned(z, tuple(others[: neuron.states]), tuple(others[neuron.states :]))


class _RecurrentScan(torch.autograd.Function):
    """:func:`recurrent_scan` on the flat tensors of :class:`_Scan`; z0 has the shape of one step (..., n)."""

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
        steps = shape[0]
        size = x.shape[1]
        square = weight.ndim == 2
        z = x.new_empty(shape)
        states = [x.new_empty(shape) for _ in range(neuron.states)]
        u = x.new_empty(steps if neuron.saves_voltage else 1, size)
        ctx.gpu = runs_triton(x.device)
        if ctx.gpu:
            from neurolsc.neurons.fast import gpu_scan

            gpu_scan.forward(neuron, x, start, params, z, states, u, gpu_scan.Connection(z0, weight))
        else:
            if square:
                weight_t = weight.T.contiguous()
            else:  # one factor, or one for each neuron
                weight_t = weight.expand(1, shape[-1]).contiguous()
            inputs = [t.detach().numpy() for t in (x, start, params)]
            outputs = flat_array(z), tuple(map(flat_array, states)), u.numpy()
            kernel = kernel_named(f"{neuron.name}_recurrent")
            kernel(*inputs, *neuron.flags, *outputs, z0.detach().flatten().numpy(), weight_t.detach().numpy(), square)
        ctx.save_for_backward(start, params, u, z0, weight, z, *states)
        ctx.neuron = neuron
        ctx.slope = slope
        ctx.rows_of_x = len(x)  # T, or 1
        ctx.set_materialize_grads(False)  # None, not zeros, for an output without a gradient
        return z, *states, *(state[-1].clone() for state in states)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        refuse_derivatives_of(gradients)
        neuron: Neuron = ctx.neuron
        start, params, u, z0, weight, z, *states = ctx.saved_tensors
        n = z.shape[-1]
        slope = ctx.slope if ctx.gpu else slope_on_cpu(ctx.slope)
        given = given_slopes(slope, neuron, u, states, params)
        outer, ends = outer_gradients(gradients, neuron.states, u)
        by_start = torch.stack(ends)  # by the states behind the present step
        learnt = ctx.needs_input_grad[5]  # params
        run = slope, start, params, states, u, given, outer, by_start, learnt
        if ctx.gpu:
            from neurolsc.neurons.fast import gpu_scan

            by_x, by_params, by_z0 = gpu_scan.reverse(neuron, *run, gpu_scan.Connection(z0, weight))
        else:
            by_x, by_params, by_z0 = back_through_steps(neuron, *run, weight)
        by_weight = None
        if ctx.needs_input_grad[7]:  # weight
            # step 0 read z0, all others the spikes of the step before: two views in place of a copy of all spikes
            first = by_x[0].view(-1, n)
            others = by_x[1:].view(-1, n)
            if weight.ndim == 2:
                by_weight = weight_gradient(z0.view(-1, n), first) + weight_gradient(z[:-1].view(-1, n), others)
            else:
                by_factor = (z0.view(-1, n) * first).sum(0) + (z[:-1].view(-1, n) * others).sum(0)
                by_weight = by_factor.sum_to_size(weight.shape)  # neurons may share a factor
        return None, None, None, of_rows(by_x, ctx.rows_of_x), by_start, by_params, by_z0.view_as(z0), by_weight


def back_through_steps(
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
    weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the gradients of recurrent neurons on a CPU: a kernel runs each step, and a product follows it.

    The arguments and the result are those of :func:`neurolsc.neurons.fast.gpu_scan.reverse`; weight is as in
    :func:`recurrent_scan`.
    """
    steps = len(states[0])
    size = u.shape[1]
    n = states[0].shape[-1]
    by_x = u.new_zeros(steps, size)
    by_params = torch.zeros_like(params)
    square = weight.ndim == 2
    by_spikes = u.new_zeros(1, size)  # of the present step: first the share through the recurrent weights
    kernel = kernel_named(f"{neuron.name}_back")
    arrays = (  # in the order of the kernel's arguments
        start.numpy(), params.numpy(), *neuron.flags, tuple(map(flat_array, states)), u.numpy(),
        slope.kind, float(slope.a), given.numpy(), by_spikes.numpy(), tuple(map(flat_array, outer[1:])),
        by_x.numpy(), by_start.numpy(), by_params.numpy(), learnt, 0, size,
    )  # fmt: skip
    for t in range(steps - 1, -1, -1):
        by_spikes += step_of(outer[0], t)
        kernel(*arrays, t, t + 1)
        # through the recurrent weights to the spikes before this step, in the memory of by_spikes
        by_current = by_x[t].view(-1, n)
        if square:
            torch.mm(by_current, weight, out=by_spikes.view(-1, n))
        else:
            torch.mul(by_current, weight, out=by_spikes.view(-1, n))
    return by_x, by_params, by_spikes


def of_rows(by_x: Tensor, rows: int) -> Tensor:
    """Return the gradient by currents that have T rows, or 1 which all steps read, from that by each step (T, M)."""
    if rows == len(by_x):
        return by_x
    return by_x.sum(0, keepdim=True)


def step_of(rows: Tensor, t: int) -> Tensor:
    """Return step t (1, M) of a tensor (T, M); a tensor (1, M), the same in all steps, as it is."""
    if len(rows) > 1:
        return rows[t : t + 1]
    return rows


def weight_gradient(read: Tensor, by_sent: Tensor) -> Tensor:
    """Return the gradient by weights (m, n) of a product with R rows.

    `read` (R, n) is what the weights multiply, mostly spikes, `by_sent` (R, m) the gradient by the product.
    """
    if read.device.type != "cpu":
        return by_sent.T @ read
    from neurolsc.neurons.fast import cpu_kernels

    entries = cpu_kernels.nonzeros(read)
    if entries is None:
        return by_sent.T @ read
    total = by_sent.new_zeros(read.shape[1], by_sent.shape[1])
    cpu_kernels.add_transposed_times(total, entries, by_sent)
    return total.T


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return what ``torch.nn.functional.linear`` does; on a CPU, skip the zeros of an x that is mostly zero.

    Where at most a quarter of the entries of x differ from zero, each row of the result is a sum of columns of weight,
    each times its entry of x. It differs from the dense product by rounding. The dense product is computed for other x,
    small layers, a GPU, other dtypes, weights that are not finite, and under a compiler or a transform of torch.func.
    It does not follow the dtype of autocast, under which no caller uses it.
    x is (..., n_in), weight (n_out, n_in), bias (n_out,), the result (..., n_out).
    """
    suits = x.dtype == weight.dtype and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)
    too_small = x.numel() < LEAST_ENTRIES or len(weight) < LEAST_ROW
    if not suits or too_small or transformed([x, weight]):
        return torch.nn.functional.linear(x, weight, bias)
    from neurolsc.neurons.fast import cpu_kernels

    entries = cpu_kernels.nonzeros(x.detach().reshape(-1, x.shape[-1]))
    # None: too many differ from zero. With infinite weights a dense product gives NaN where x is 0, a sum of rows not.
    if entries is None or not weight.sum().isfinite():
        return torch.nn.functional.linear(x, weight, bias)
    return _SparseLinear.apply(entries, x, weight, bias)  # type: ignore[return-value]


class _SparseLinear(torch.autograd.Function):
    """:func:`linear` with the non-zero `entries` of x, as a :class:`~neurolsc.neurons.fast.cpu_kernels.CSR`."""

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

        refuse_derivatives_of(gradients)
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
        by_bias = None
        if ctx.needs_input_grad[3]:
            by_bias = by_rows.sum(0)
        return None, by_x, by_weight, by_bias


LEAST_ENTRIES = 2**13  # numbers in an input, below which a search for its zeros costs more than it saves
LEAST_ROW = 32  # outputs of a layer, below which a row of weights is too short to add
PER_THREAD = 2**16  # steps of single neurons below which a thread of its own costs more than it saves
