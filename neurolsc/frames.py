"""Inputs over time, dense or sparse, and samples that stand still while others run."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def frame(x: Tensor, t: int) -> Tensor:
    """One frame (B, N) of an input (T, B, N), dense or sparse."""
    return x[t].to_dense() if x.is_sparse else x[t]


def frames(x: Tensor) -> Iterable[Tensor]:
    """The frames (B, N) of an input (T, B, N), dense or sparse."""
    # unbind, not x[t]: the backward of indexing writes a whole (T, B, N) gradient at every step
    return (frame(x, t) for t in range(len(x))) if x.is_sparse else x.unbind(0)


def parts(x: Tensor, length: int) -> Iterable[Tensor]:
    """An input (T, B, N), dense or sparse, in parts of so many frames."""
    if not x.is_sparse:
        return x.split(length)
    return (stretch(x, start, min(length, len(x) - start)) for start in range(0, len(x), length))


def stretch(x: Tensor, start: int, length: int) -> Tensor:
    """Some frames (length, B, N) of an input (T, B, N), dense or sparse, from one on."""
    return x.narrow_copy(0, start, length) if x.is_sparse else x.narrow(0, start, length)


def lasting(x: Tensor, lengths: Tensor, steps: int) -> Tensor:
    """The samples of an input (T, B, N) that last at least so many steps (B,), cut to them."""
    there = (lengths >= steps).nonzero().flatten()
    return stretch(x, 0, min(steps, x.shape[0])).index_select(1, there.to(x.device))


def frozen(after: Any, before: Any, alive: Tensor) -> Any:
    """The state after a step where a sample is alive (B,), the one before elsewhere."""
    return type(after)(*(keep(new, old, alive) for new, old in zip(after, before, strict=True)))


def keep(new: Tensor, old: Tensor, alive: Tensor) -> Tensor:
    """The new values (B, ...) where a sample is alive (B,), the old ones elsewhere."""
    return torch.where(alive.view(-1, *[1] * (new.ndim - 1)), new, old)
