"""A user's network at the speed of kernels that run a whole sequence, without a change of the network."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from neurolsc.interop.fused import FusedLayer, NeuronGroup, fused_layer
from neurolsc.interop.lazy import LazyTensor, Recording, replaced
from neurolsc.interop.wrap import _library
from neurolsc.neurons.fast.sequence import transformed


class NotAcceleratedWarning(UserWarning):
    """A layer, or a whole network, that runs in the plain steps of its library."""


def accelerate(net: nn.Module, x: Tensor) -> Any:
    """Run a network of snnTorch, norse or spikingjelly several times as fast, over the same parameters.

    The result *is* the network for everything but speed: it shares all parameters, buffers, states, hooks and
    attributes with ``net``, is of a subclass of its class, and returns what ``net`` returns, with the same gradients.

    Its ``forward`` is the user's own. While that runs, the calls of neurons are written down, and computed when a value
    is needed: each layer once for all steps, by a kernel that saves its voltages alone. Functions of PyTorch between
    neurons (Linear, convolutions, pooling, batch norm in evaluation, dropout, arithmetic) are called once over (T B).
    What is not known is run in plain steps, as ever.

    Args:
        net: a module whose ``forward`` goes through time.
        x: an example of its input. ``net`` and the result are both called with it, in evaluation mode, and compared.

    Returns:
        A module that shares everything with ``net``.

    Raises:
        TypeError: if net is no module or x no tensor.
        ValueError: if the network has no layer that can be accelerated.

    Example:
        >>> from torch import nn
        >>> accelerate(nn.Linear(3, 2), torch.zeros(4, 3))
        Traceback (most recent call last):
        ValueError: there is no layer of neurons of snnTorch, norse or spikingjelly to accelerate.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"accelerate takes a module, got {type(net).__name__}.")
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, an example of what net takes, got {type(x).__name__}.")
    kind = type(net)
    made = type(f"Accelerated{kind.__name__}", (_Accelerated, kind), {"__module__": kind.__module__})
    fast = object.__new__(made)
    vars(fast)  # a module has a __dict__
    object.__setattr__(fast, "__dict__", vars(net))
    return fast


class _Accelerated(nn.Module):
    """The user's class with another way through its forward."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        plain: Callable[..., Any] = super().forward
        if must_run_plainly(args, kwargs):
            return plain(*args, **kwargs)
        recording = Recording()
        with recorded(self, recording):
            sources = [as_source(recording, arg) for arg in args]
            named = {name: as_source(recording, arg) for name, arg in kwargs.items()}
            out = plain(*sources, **named)
            recording.flush()
            return replaced(out)


def must_run_plainly(args: Any, kwargs: Any) -> bool:
    """True where a call cannot be put off: under compilers, transforms and autocast."""
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    return transformed(tensors) or any(torch.is_autocast_enabled(t.device.type) for t in tensors)


def as_source(recording: Recording, arg: Any) -> Any:
    """An input as one whose steps are known; others, such as states, as they are."""
    return recording.source(arg) if type(arg) is Tensor and arg.ndim > 1 else arg


@contextmanager
def recorded(net: nn.Module, recording: Recording) -> Iterator[None]:
    """Inside, neurons write their calls down; afterwards their states are tensors again."""
    fused: list[FusedLayer] = []
    for module in net.modules():
        if _library(module) in ("snntorch", "norse", "spikingjelly") and module is not net:
            layer = fused_layer(module)
            if isinstance(layer, FusedLayer):
                fused.append(layer)
    try:
        for layer in fused:
            layer.start(recording)
        yield
        for layer in fused:
            layer.finish()
    except BaseException:
        for layer in fused:
            layer.give_back()
        raise
    finally:
        for layer in fused:
            layer.stop()
