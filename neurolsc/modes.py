"""A module in evaluation mode for a while."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from torch import nn

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module and all in it into evaluation mode, and each back into the mode that it was in.

    Radii are those of the network as it is evaluated: without dropout, and with batch norms that do not mix samples.
    """
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in training.items():
            part.training = mode


def evaluated(function: F) -> F:
    """Let a function of a network, its first argument, run while that network is in evaluation mode."""

    @functools.wraps(function)
    def inner(network: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with evaluating(network):
            return function(network, *args, **kwargs)

    return cast(F, inner)
