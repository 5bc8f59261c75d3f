"""Leave what may surround a caller's module, so that it does not change what is measured.

That is autocast, inference mode, a compiler, and half precision.
"""

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

DEVICES = ("cpu", "cuda", "xpu", "mps")  # on which torch.autocast may be enabled
SHARDED = ("FullyShardedDataParallel", "FSDPModule")  # classes of FSDP by name, as importing them takes long
HALF = (torch.bfloat16, torch.float16)


def in_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function run outside of autocast and inference mode, on the original modules, and in float32 or float64.

    The original of a compiled module is the module before ``torch.compile``. Parameters and buffers of half precision
    are float32 while the function runs. Afterwards they have their own dtype and storage again, with the values that
    the function gave them, rounded. Inference tensors among the arguments are cloned.
    """

    @wraps(function)
    def inner(*args: P.args, **keywords: P.kwargs) -> R:
        with without_inference_mode():
            values: list[Any] = [_originals(without_inference(value)) for value in args]
            named: dict[str, Any] = {name: _originals(without_inference(value)) for name, value in keywords.items()}
            with full_precision(*values, *named.values()):
                return function(*values, **named)  # type: ignore[arg-type]

    return inner


@contextmanager
def full_precision(*values: Any) -> Iterator[None]:
    """Within this context, leave autocast and inference mode, and turn half-precision modules to float32.

    Args:
        *values: the modules, lists of modules, and anything else, which is left as it is.

    Raises:
        ValueError: if a parameter is an inference tensor.
    """
    with without_inference_mode(), without_autocast(), ExitStack() as stack:
        for value in values:
            for module in value if isinstance(value, list) else [value]:
                if isinstance(module, nn.Module):
                    _refuse_inference(module)
                    stack.enter_context(_as_float32(module))
        yield


@contextmanager
def without_inference_mode() -> Iterator[None]:
    """Leave inference mode, whose tensors autograd always refuses; gradients stay off, as in ``torch.no_grad()``."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def without_inference(value: Any) -> Any:
    """Clone an inference tensor, or the inference tensors of a tuple or list; return anything else as it is."""
    if isinstance(value, Tensor) and value.is_inference():
        return value.clone()
    if type(value) in (tuple, list):  # a named tuple is left as it is
        parts = [without_inference(part) for part in value]
        if any(new is not old for new, old in zip(parts, value, strict=True)):
            return type(value)(parts)
    return value


def _refuse_inference(module: nn.Module) -> None:
    """Refuse a module whose parameters autograd refuses."""
    for name, value in module.named_parameters():
        if not is_lazy(value) and value.is_inference():
            raise ValueError(
                f"parameters of net, such as {name}, were made inside of torch.inference_mode(), and cannot be trained "
                "or measured: make net outside of it, or take torch.no_grad()."
            )


@contextmanager
def without_autocast() -> Iterator[None]:
    """Within this context, leave autocast, so that tensors keep their dtypes, and run without compilers."""
    with ExitStack() as stack:
        for device in DEVICES:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
                # on leaving, since the cache may hold casts of weights that the block has set to other values
                stack.callback(torch.clear_autocast_cache)
        if "torch._dynamo" in sys.modules:  # else nothing is compiled, and the import takes seconds
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


@contextmanager
def _as_float32(module: nn.Module) -> Iterator[None]:
    """Within this context, turn parameters and buffers of half precision to float32; then back in their own storage.

    Values that were set meanwhile are rounded. Gradients are put aside, since they have the dtype of half precision.
    A buffer that autograd computed, as a state that a layer keeps, belongs to the caller's graph: it is not touched,
    and a copy takes its place meanwhile.
    """
    # for each tensor the dict that holds it, its name there, its data and its gradient
    halves: list[tuple[dict[str, Any], str, Tensor, Tensor | None]] = []
    computed: list[tuple[dict[str, Any], str, Tensor]] = []
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None or tensor.dtype not in HALF or is_lazy(tensor):
                    continue
                if not tensor.is_leaf:
                    computed.append((tensors, name, tensor))
                    tensors[name] = tensor.detach().float()  # type: ignore[assignment]
                    continue
                halves.append((tensors, name, tensor.data, tensor.grad))
                tensor.grad = None
                tensor.data = tensor.data.float()
    try:
        yield
    finally:
        for tensors, name, tensor in computed:
            if name in tensors:
                tensors[name] = tensor
        for tensors, name, data, grad in halves:
            tensor = tensors.get(name)
            if tensor is None:  # removed meanwhile
                continue
            data.copy_(tensor.data)
            tensor.grad = None
            tensor.data = data
            tensor.grad = grad


def original(net: Any, *, parallel: bool = True) -> Any:
    """Return the module inside of ``torch.compile`` or DistributedDataParallel, which has the same parameters.

    Args:
        net: a module; anything else is returned as it is.
        parallel: take it out of DataParallel and DistributedDataParallel as well; else only out of ``torch.compile``.

    Raises:
        TypeError: if the module's parameters are sharded by FSDP.
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
    """Return the rank of this process and the number of processes; 0 and 1 if torch.distributed is not used."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _originals(value: Any) -> Any:
    """Return the original of a module, the originals of a list of modules, or anything else as it is."""
    if isinstance(value, list) and value and isinstance(value[0], nn.Module):
        return [original(module) for module in value]
    return original(value)


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Within this context, put a module and all modules in it into evaluation mode; then each back into its own."""
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in training.items():
            part.training = mode
