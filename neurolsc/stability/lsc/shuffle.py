"""The shuffle of pre-training: the entries of every learnable tensor in another order.

It keeps what the multipliers set, the distribution of the entries, and forgets which of them the
gradient has made large.

Source: arXiv:2308.12075, Sec. II-G.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def draw_orders(parameters: Iterable[Tensor], generator: torch.Generator) -> list[Tensor]:
    """An order of the entries of each parameter, drawn at random."""
    return [torch.randperm(p.numel(), generator=generator).to(p.device) for p in parameters]


def shuffled(p: Tensor, order: Tensor) -> Tensor:
    """The entries of p in another order; zeros, which are connections that do not exist, stay."""
    entries = p.flatten()
    there = entries != 0
    return entries.masked_scatter(there, entries[order[there[order]]]).view_as(p)
