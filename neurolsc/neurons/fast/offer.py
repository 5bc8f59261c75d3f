"""The run that LIF and ALIF offer: by the loop where it equals plain steps, else by these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neurolsc.neurons.cell import State
from neurolsc.neurons.equations import Constants
from neurolsc.neurons.fast import fused, resets, trial
from neurolsc.neurons.fast.function import scan
from neurolsc.neurons.fast.inputs import Inputs, Plan
from neurolsc.neurons.fast.surrogates import OURS, depends_on_more, held, holding, lends_itself, overridden
from neurolsc.neurons.fast.watched import watched
from neurolsc.surrogate import Surrogate

if TYPE_CHECKING:
    from neurolsc.neurons.spiking import SpikingCell


def run(
    self: SpikingCell,
    x: Tensor,
    state: State,
    lengths: Tensor | None,
) -> tuple[Tensor, State] | None:
    """The run of a cell whose step is eq. 49, as plain steps give it: a method to be offered.

    The loop is not taken for what it does not know: a reset or a spike function of another kind, or
    one with hooks or methods of its own; dtypes, shapes and layouts that plain steps may take but
    the loop does not; and whatever follows each operation
    (:func:`~neurolsc.neurons.fast.watched.watched`). Nor are its results, where something is not
    finite.

    Args:
        self: the cell, whose class says by offering this that its step is eq. 49.
        x: as in :meth:`Cell.run`, as all that follow.
        state: the state before.
        lengths: steps that each sample runs.
    """
    if not watched(self.spike, x, *state, *self.parameters(), *self.buffers()) and _as_written(self):
        inputs = _inputs(self, x, None, state)
        plan = _plan(self, inputs, lengths, False)
        if plan is not None:
            z, v, theta, finite = scan(plan, inputs)
            if finite:
                return z, type(state)(v) if theta is None else type(state)(v, theta)
    return None


def _as_written(cell: SpikingCell) -> bool:
    """Whether the cell does what its class says, with a spike and a reset that the loop knows."""
    own = any(overridden(part) for part in (cell, cell.reset))
    return not own and resets.known(cell.reset) and lends_itself(cell.spike)


def _inputs(cell: Any, x: Tensor, first: Tensor | None, state: State) -> Inputs:
    theta = getattr(state, "theta", None)
    spike = tuple(held(cell.spike).values())
    return Inputs(x, first, cell.output(state), state.v, theta, cell.constants(), spike)


def _plan(cell: SpikingCell, inputs: Inputs, lengths: Tensor | None, recompute: bool) -> Plan | None:
    """How to run, or None where that is by plain steps."""
    spike, v, c = cell.spike, inputs.v, inputs.c
    if not (_shapes_fit(inputs, cell.n_in, cell.n_hidden) and _kinds_fit(inputs)):
        return None
    if lengths is not None and (lengths.shape != v.shape[:1] or lengths.is_floating_point()):
        return None
    assert isinstance(spike, Surrogate)  # known to lend itself
    known, kind = type(spike) in OURS, v.device.type
    kernels = known and fused.suits(c, inputs.z, v, inputs.theta) and trial.passed(v.device)
    half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    if half is not None and not kernels:
        return None
    limit = c.threshold if inputs.theta is None else inputs.theta
    if not known and depends_on_more(spike, v - limit):  # type: ignore[operator]
        return None
    keep = "nothing" if not torch.is_grad_enabled() else "some" if recompute else "all"
    return Plan(holding(spike, inputs.spike), known, cell.reset, lengths, keep, kernels, half)


def _shapes_fit(inputs: Inputs, n_in: int, n: int) -> bool:
    """Whether all shapes are the ordinary ones; plain steps take others, or say what is wrong."""
    x, first, z, v, theta, c, _ = inputs
    steps, batch = (*x.shape, 0, 0)[:2]
    wanted = Constants((n, n_in), (n, n), *[(n,)] * 6)  # type: ignore[arg-type]
    return (
        bool(steps and batch)
        and x.shape == (steps, batch, n_in)
        and (first is None or first.shape == (batch, n_in))
        and all(state.shape == (batch, n) for state in (z, v, theta) if state is not None)
        and all(own.shape == shape for own, shape in zip(c, wanted, strict=True) if own is not None)
    )


def _kinds_fit(inputs: Inputs) -> bool:
    """Whether dtypes, devices and layouts are those that the loop takes."""
    x, first, z, v, theta, c, spike = inputs
    own = [tensor for tensor in (z, v, theta, *c) if tensor is not None]
    read = [x] if first is None else [x, first]
    every = (*own, *read, *spike)
    sparse = x.is_sparse and not x.dense_dim() and not x.requires_grad
    return (
        v.dtype in (torch.float32, torch.float64)
        and all(tensor.dtype == v.dtype for tensor in own)
        and not any(tensor.is_complex() or tensor.is_quantized for tensor in every)
        and all(tensor.device == v.device or not tensor.ndim for tensor in every)
        and all(tensor.layout == torch.strided or (tensor is x and sparse) for tensor in every)
        and not (torch.is_grad_enabled() and any(tensor.is_inference() for tensor in every))
    )
