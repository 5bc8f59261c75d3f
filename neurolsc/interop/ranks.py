"""Several processes: a function that sets a module runs on rank 0, and the other ranks take the module's values."""

from collections.abc import Callable
from functools import wraps
from itertools import chain
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from neurolsc.interop.saved import set_values_outside, values_outside
from neurolsc.surroundings import original, rank_of_processes

P = ParamSpec("P")
R = TypeVar("R")


def on_rank_0(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that sets a module, so that it runs once for all processes of a data-parallel module.

    If an argument is a module in DistributedDataParallel, rank 0 calls the function, with its own batch. All ranks then
    have the module's values, and return what the function returned, or raise its error. A module outside of
    DistributedDataParallel is set by each process that calls.
    """

    @wraps(function)
    def inner(*args: P.args, **words: P.kwargs) -> R:
        for value in (*args, *words.values()):
            wrapped = original(value, parallel=False)  # out of torch.compile, not out of DistributedDataParallel
            if isinstance(wrapped, DistributedDataParallel):
                return call_on_rank_0(wrapped, lambda: function(*args, **words))
        return function(*args, **words)

    return inner


def call_on_rank_0(wrapped: DistributedDataParallel, call: Callable[[], R]) -> R:
    """Call a function that sets a module on rank 0, and give all ranks the module's values.

    Args:
        wrapped: the module, in DistributedDataParallel.
        call: the function, which the other ranks do not call.

    Returns:
        What the function returned; on every rank.

    Raises:
        Exception: what the function raised, on every rank.
    """
    net: nn.Module = wrapped.module
    group: Any = wrapped.process_group
    try:
        return from_rank_0(call, group)
    finally:
        share_values(net, group)


def from_rank_0(call: Callable[[], R], group: Any = None) -> R:
    """Call a function on rank 0 alone; on all ranks return what it returned, or raise its error.

    If there is only one process, it is a plain call.

    Args:
        call: the function.
        group: the processes; None: all.
    """
    _, processes = rank_of_processes()
    if processes == 1:
        return call()
    sent: list[Any] = [None, None]  # what the function returned, and its error
    if distributed.get_rank(group) == 0:
        try:
            sent[0] = call()
        except Exception as error:  # of any kind: the other ranks would wait for ever
            sent[1] = error
    _broadcast(sent, group)
    returned, error = sent
    if error is not None:
        raise error
    return returned


def share_values(net: nn.Module, group: Any = None) -> None:
    """Give the module of each rank the parameters and buffers of rank 0, and the values outside of its state_dict."""
    sent: list[Any] = [None, None]  # parameters and buffers, and the values outside of the state_dict
    first = distributed.get_rank(group) == 0
    if first:
        sent[0] = {name: value.detach().cpu() for name, value in _tensors(net).items()}
        sent[1] = values_outside(net)
    _broadcast(sent, group)
    if first:
        return
    tensors, outside = sent
    with torch.no_grad():
        for name, value in _tensors(net).items():
            value.copy_(tensors[name])
    set_values_outside(net, outside)


def _broadcast(sent: list[Any], group: Any) -> None:
    """Replace the entries of a list by those of the list on rank 0."""
    source = 0 if group is None else distributed.get_global_rank(group, 0)
    distributed.broadcast_object_list(sent, source, group)


def _tensors(net: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by their names, also buffers that no state_dict holds."""
    return dict(chain(net.named_parameters(), net.named_buffers()))
