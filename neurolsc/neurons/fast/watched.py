"""What only torch knows of the moment: whether somebody follows or changes each operation of a run.

This is the one place that asks what torch keeps private. Where a version of torch does not answer,
the answer is the one that leads to plain steps.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules


def transformed() -> bool:
    """Whether a transform of ``torch.func`` is at work; True also where torch does not say."""
    if torch.compiler.is_compiling():  # which follows transforms itself
        return False
    try:
        return torch._C._functorch.peek_interpreter_stack() is not None  # type: ignore[attr-defined]
    except AttributeError:
        return True


def watched(spike: Any, *tensors: Tensor | None) -> bool:
    """Whether each operation of a run is followed, so that only plain steps give what is wanted.

    True under the compiler and tracers, under the transforms of ``torch.func``, in forward mode, in
    modes that see every operation (a default device is none), for a tensor that stands for several
    (``is_grads_batched``) or is of a class of its own, and with hooks on the surrogate or on all
    modules.

    Args:
        spike: the spike function; what is not a module has nothing to answer with.
        tensors: what the operations are applied to.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or transformed():  # type: ignore[attr-defined]
        return True
    try:
        from torch.utils._device import DeviceContext

        functorch = torch._C._functorch  # type: ignore[attr-defined]
        given = [tensor for tensor in tensors if tensor is not None]
        modes = torch.overrides._get_current_function_mode_stack()
        return bool(
            torch.autograd.forward_ad._current_level >= 0
            or torch._C._len_torch_dispatch_stack()
            or any(not isinstance(mode, DeviceContext) for mode in modes)
            or any(type(tensor) not in (Tensor, nn.Parameter) for tensor in given)
            or any(functorch.is_legacy_batchedtensor(tensor) for tensor in given)
            or hooked(spike)
        )
    except (AttributeError, ImportError):
        return True


def hooked(spike: Any) -> bool:
    """Whether hooks hang on a spike function, or on all modules.

    It is True also where torch does not say.
    """
    try:
        return bool(
            spike._forward_hooks
            or spike._forward_pre_hooks
            or spike._backward_hooks
            or spike._backward_pre_hooks
            or modules._has_any_global_hook()
        )
    except AttributeError:
        return True
