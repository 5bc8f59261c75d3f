"""Wrapped layers over all steps at once, by the kernels of :func:`neurolsc.accelerate`."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.interop.fused import fused_layer
from neurolsc.interop.fused_base import FusedLayer
from neurolsc.interop.wrapped import WrappedCell, has_hooks, is_plain_sequential
from neurolsc.neurons.fast.scan import can_scan, linear

# Modules that map each sample of each step by itself: BY_SAMPLE always, IN_EVALUATION if they are in evaluation mode.
BY_SAMPLE = frozenset(
    (
        *("Linear", "Identity", "Flatten", "Unflatten", "Conv1d", "Conv2d", "Conv3d"),
        *(f"{kind}{n}d" for kind in ("MaxPool", "AvgPool", "AdaptiveMaxPool", "AdaptiveAvgPool") for n in (1, 2, 3)),
        *("ReLU", "LeakyReLU", "GELU", "SiLU", "Sigmoid", "Tanh", "LayerNorm", "GroupNorm"),
    )
)
IN_EVALUATION = frozenset(("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Dropout", "Dropout2d"))


class Prepared(NamedTuple):
    """The kernel of a layer, and what the layer reads in all steps."""

    layer: FusedLayer
    currents: Tensor  # (T, B, ...), or (1, B, ...) where all steps are the same
    steps: int  # T


def prepared(cell: WrappedCell, x: Tensor, state: Sequence[Tensor], late: Tensor | None) -> Prepared | None:
    """Find the kernel of a cell, and compute what the layer reads in all steps.

    Args:
        cell: the cell.
        x: its input (T, B, n_in).
        state: its state before the first step.
        late: the input of the first step, if x is read one step late, as in :meth:`neurolsc.Cell.run`; None otherwise.

    Returns:
        The kernel and the currents; None if the cell needs plain steps, as with `late`.
    """
    if late is not None or not by_sample(cell.before):
        return None
    layer = fused_layer(cell.layer)
    if not isinstance(layer, FusedLayer) or not can_scan([*state, *cell.parameters()]):
        return None
    if torch.is_autocast_enabled(state[0].device.type):  # no kernel reads currents in half precision
        return None
    steps = len(x)
    if steps > 1 and x.stride(0) == 0:  # the same input in all steps
        x = x[:1]
    x = x.to(state[0].dtype)
    currents = x.reshape(-1, *cell.input_shape)
    for module in cell.before:
        if type(module) is nn.Linear:
            currents = linear(currents, module.weight, module.bias)  # leaves out the zeros of spikes
        else:
            currents = module(currents)
    return Prepared(layer, currents.view(len(x), x.shape[1], *cell.current_shape), steps)


def by_sample(modules: Iterable[nn.Module]) -> bool:
    """True if modules are known to map each sample of each step by itself, so that they can read (T B, ...)."""
    for module in modules:
        if isinstance(module, nn.Sequential):
            if not is_plain_sequential(module) or not by_sample(module):
                return False
            continue
        name = type(module).__name__
        known = name in BY_SAMPLE or (name in IN_EVALUATION and is_fixed(module))
        if not known or has_hooks(module) or "forward" in vars(module):
            return False
        if not type(module).__module__.startswith(("torch.nn.modules.", "spikingjelly.")):
            return False
    return True


def is_fixed(module: Any) -> bool:
    """True if a batch norm uses stored statistics, or a dropout drops nothing."""
    if module.training:
        return getattr(module, "p", 1) == 0  # a dropout of nothing; a batch norm, which has no p, is never fixed
    return getattr(module, "track_running_stats", True)  # False for a batch norm without stored statistics


def last_states(after: Tensor, before: Tensor, end: Tensor, lengths: Tensor | None) -> Tensor:
    """Return a state variable at the end of each sample (B, ...).

    Args:
        after: the variable after each step (T, B, ...).
        before: the variable before the first step (B, ...).
        end: the variable after the last step (B, ...).
        lengths: the number of steps of each sample (B,); None: all T.
    """
    if lengths is None:
        return end
    at_all_times = torch.cat([before[None], after])  # entry t is the state after t steps
    return at_all_times[lengths, torch.arange(len(lengths), device=lengths.device)]
