"""What may surround a caller's module and must not change what is measured: autocast, a compiler, half precision."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.parameter import is_lazy

P = ParamSpec("P")
R = TypeVar("R")

DEVICES = ("cpu", "cuda", "xpu", "mps")  # on which torch.autocast may be
SHARDED = ("FullyShardedDataParallel", "FSDPModule")  # names of classes, whose import takes long
HALF = (torch.bfloat16, torch.float16)


def in_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function run outside of autocast, on the original modules, and on those of half precision in float32.

    The original of a compiled module is the module before ``torch.compile``. Parameters and buffers of half precision
    are float32 while the function runs. Then they have their own dtype and storage again, with the values that the
    function gave them, rounded.
    """

    @wraps(function)
    def inner(*args: P.args, **keywords: P.kwargs) -> R:
        values: list[Any] = [_originals(value) for value in args]
        named: dict[str, Any] = {name: _originals(value) for name, value in keywords.items()}
        with full_precision(*values, *named.values()):
            return function(*values, **named)  # type: ignore[arg-type]

    return inner


@contextmanager
def full_precision(*values: Any) -> Iterator[None]:
    """Leave autocast, and turn the modules among some values to float32 for a while, as :func:`in_full_precision`.

    Args:
        *values: modules, lists of modules, and anything else, which is left as it is.
    """
    with without_autocast(), ExitStack() as stack:
        for value in values:
            for module in value if isinstance(value, list) else [value]:
                if isinstance(module, nn.Module):
                    stack.enter_context(_as_float32(module))
        yield


@contextmanager
def without_autocast() -> Iterator[None]:
    """Run in the dtypes of the tensors, and without compilers."""
    with ExitStack() as stack:
        for device in DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
                stack.callback(torch.clear_autocast_cache)  # it holds weights as they were before they are set here
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and the import takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def _as_float32(module: nn.Module) -> Iterator[None]:
    """Turn parameters and buffers of half precision to float32 for a while, then back into their own storage.

    What was set meanwhile is rounded. Gradients are put aside, since they have the dtype of half precision.
    """
    # of each tensor the dict that holds it, its name there, its data and its gradient
    halves: list[tuple[dict[str, Any], str, Tensor, Tensor | None]] = []
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.dtype in HALF and not is_lazy(tensor):
                    halves.append((tensors, name, tensor.data, tensor.grad))
                    tensor.grad = None
                    tensor.data = tensor.data.float()
    try:
        yield
    finally:
        for tensors, name, data, grad in halves:
            tensor = tensors.get(name)
            if tensor is None:  # removed meanwhile
                continue
            data.copy_(tensor.data)
            tensor.grad = None
            tensor.data = data
            tensor.grad = grad


def original(net: Any, *, parallel: bool = True) -> Any:
    """The module inside of ``torch.compile`` or DistributedDataParallel, whose parameters are the same.

    Args:
        net: a module; anything else is returned as it is.
        parallel: take it out of DataParallel and DistributedDataParallel as well; else only out of ``torch.compile``.

    Raises:
        TypeError: if its parameters are sharded by FSDP.
    """
    while isinstance(net, nn.Module):
        if hasattr(net, "_orig_mod"):
            net = net._orig_mod
        elif parallel and isinstance(net, DataParallel | DistributedDataParallel):
            net = net.module
        else:
            break
    if isinstance(net, nn.Module) and any(
        kind.__name__ in SHARDED for part in net.modules() for kind in type(part).__mro__
    ):
        raise TypeError(
            "the parameters of net are sharded by FSDP, and a process holds parts of them: measure or initialise the "
            "module before it is sharded."
        )
    return net


def rank_of_processes() -> tuple[int, int]:
    """The rank of this process, and how many there are; 0 and 1 where torch.distributed is not used."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _originals(value: Any) -> Any:
    """The original of a module, those of a list of modules, or anything else as it is."""
    if isinstance(value, list) and value and isinstance(value[0], nn.Module):
        return [original(module) for module in value]
    return original(value)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module and all in it into evaluation mode, and each back into its own mode after."""
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in training.items():
            part.training = mode
