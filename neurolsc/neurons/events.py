"""Products with matrices that are mostly zero: the input of a layer, and its own spikes.

A product with a few non-zero entries per row is a sum of a few rows of the other matrix. Where at most a quarter of the
entries differ from zero, and the product is not tiny, that beats the dense product on a CPU (``benchmarks/layers.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

DENSITY = 0.25
"""Share of non-zero entries up to which a product goes by events."""
SMALLEST = 2**19
"""Multiplications of the dense product below which it is not worth looking for events."""


@dataclass(frozen=True)
class Events:
    """The non-zero entries of a matrix (R, n), row after row.

    Attributes:
        column: the column of each entry (E,), int64.
        start: where the entries of each row start, and where the last one's end (R + 1,), int64.
        values: the entries themselves (E,); None where all are 1.
        width: n.
    """

    column: Tensor
    start: Tensor
    values: Tensor | None
    width: int

    def times(self, weights: Tensor, a: int, b: int) -> Tensor:
        """Rows a to b of the matrix, times weights (n, m): (b - a, m)."""
        entries = slice(int(self.start[a]), int(self.start[b]))
        values = None if self.values is None else self.values[entries]
        start = self.start[a : b + 1] - entries.start if entries.start else self.start[a : b + 1]
        return torch.embedding_bag(weights, self.column[entries], start, False, 0, False, values, True)[0]

    def transposed_times(self, g: Tensor, a: int, b: int) -> Tensor:
        """Rows a to b of the matrix, transposed, times g (b - a, m): (n, m)."""
        start = self.start[a : b + 1].numpy()
        entries = slice(int(start[0]), int(start[-1]))
        # narrow integers are sorted by radix
        column = self.column[entries].numpy().astype(np.min_scalar_type(self.width))
        order = np.argsort(column, kind="stable")
        row = np.repeat(np.arange(b - a), np.diff(start))[order]
        first = np.zeros(self.width + 1, np.int64)
        np.cumsum(np.bincount(column, minlength=self.width), out=first[1:])
        values = None if self.values is None else self.values[entries][torch.from_numpy(order)]
        bags = torch.from_numpy(row), torch.from_numpy(first)
        return torch.embedding_bag(g, *bags, False, 0, False, values, True)[0]


def by_events(like: Tensor, rows: int, width: int, outputs: int) -> bool:
    """Whether products (rows, width) x (width, outputs) in the dtype and on the device of a tensor may go by events."""
    known = like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64)
    return known and rows * width * outputs >= SMALLEST


def events_of(fired: np.ndarray) -> Events | None:
    """The events of a bool matrix (R, n) with values 1, or None where more than a share of it is True."""
    rows, width = fired.shape
    where = np.flatnonzero(fired)
    if len(where) > DENSITY * fired.size:
        return None
    start = np.searchsorted(where, _edges(rows, width))
    return Events(torch.from_numpy(where % width), torch.from_numpy(start), None, width)


def events_in(x: Tensor, dtype: torch.dtype) -> Events | None:
    """The events of an input (..., n), dense or sparse (COO), or None where it is dense and many entries are not zero."""
    rows, width = x.shape[:-1].numel(), x.shape[-1]
    if x.is_sparse:
        x = x.coalesce()
        *outer, column = x.indices()
        row = torch.zeros_like(column)
        for index, size in zip(outer, x.shape[:-1], strict=True):
            row = row * size + index
        start = torch.searchsorted(row, torch.arange(rows + 1))
        return Events(column, start, _not_all_ones(x.values().to(dtype)), width)
    flat = x.detach().reshape(rows, width).contiguous()
    events = events_of(flat.numpy() if x.dtype == torch.bool else flat.numpy() != 0)
    if events is None or x.dtype == torch.bool:
        return events
    row = torch.repeat_interleave(torch.arange(rows), events.start.diff())
    values = flat.view(-1)[row.mul_(width).add_(events.column)].to(dtype)
    return Events(events.column, events.start, _not_all_ones(values), width)


def stacked(parts: Sequence[Events]) -> Events:
    """Matrices of ones under each other."""
    sizes = np.cumsum([0, *(len(part.column) for part in parts)]).tolist()
    starts = [part.start[:-1] + before for part, before in zip(parts, sizes, strict=False)]
    start = torch.cat([*starts, torch.tensor(sizes[-1:])])
    return Events(torch.cat([part.column for part in parts]), start, None, parts[0].width)


def _not_all_ones(values: Tensor) -> Tensor | None:
    return None if bool((values == 1).all()) else values


@cache
def _edges(rows: int, width: int) -> np.ndarray:
    return np.arange(0, rows * width + 1, width)
