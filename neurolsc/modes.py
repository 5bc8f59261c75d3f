"""A module in evaluation mode for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module and all in it into evaluation mode, and each back into the mode that it was in.

    Radii are those of the network as it is evaluated: without dropout, and with batch norms that do
    not mix samples.
    """
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, mode in training.items():
            part.training = mode
