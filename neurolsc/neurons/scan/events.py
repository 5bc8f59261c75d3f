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
CHUNK = 2**19
"""Entries of an input in which events are looked for at once: few enough for the cache."""


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

    def times(self, weights: Tensor, a: int = 0, b: int | None = None) -> Tensor:
        """Rows a to b of the matrix, or all, times weights (n, m): (b - a, m)."""
        part = self if b is None else self.rows(a, b)
        return torch.embedding_bag(weights, part.column, part.start, False, 0, False, part.values, True)[0]

    def rows(self, a: int, b: int) -> "Events":
        """Rows a to b of the matrix."""
        entries = slice(int(self.start[a]), int(self.start[b]))
        values = None if self.values is None else self.values[entries]
        start = self.start[a : b + 1] - entries.start if entries.start else self.start[a : b + 1]
        return Events(self.column[entries], start, values, self.width)

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
    where = np.flatnonzero(fired)
    return None if many(len(where), fired.size) else _ones(where, *fired.shape)


def many(events: int, entries: int) -> bool:
    """Whether so many entries differ from zero that the dense product is faster."""
    return events > DENSITY * entries


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
    flat, parts, values, found = x.detach().reshape(rows, width).contiguous(), [], [], 0
    for chunk in np.array_split(flat.numpy(), 1 + flat.numel() // CHUNK):
        where = np.flatnonzero(chunk != 0)
        found += len(where)
        if many(found, flat.numel()):
            return None
        parts.append(_ones(where, *chunk.shape))
        values.append(chunk.reshape(-1)[where])
    events, known = stacked(parts), torch.from_numpy(np.concatenate(values)).to(dtype)
    return Events(events.column, events.start, _not_all_ones(known), width)


def events_over(steps: Sequence[Events | None], spikes: Tensor) -> Events | None:
    """The events of spikes (T, B, n) from those of each step, None where they are many; None where they are in many steps."""
    if many(sum(step is None for step in steps), len(steps)):
        return None
    pairs = zip(steps, spikes, strict=True)
    return stacked([step or _ones(np.flatnonzero(z.numpy()), *z.shape) for step, z in pairs])


def stacked(parts: Sequence[Events]) -> Events:
    """Matrices of ones under each other."""
    *before, total = np.cumsum([0, *(len(part.column) for part in parts)]).tolist()
    starts = [part.start.numpy()[:-1] + first for part, first in zip(parts, before, strict=True)]
    column = np.concatenate([part.column.numpy() for part in parts])
    start = np.concatenate([*starts, [total]])
    return Events(torch.from_numpy(column), torch.from_numpy(start), None, parts[0].width)


def _ones(where: np.ndarray, rows: int, width: int) -> Events:
    """The events of a matrix (rows, width) with ones at these places, counted row after row."""
    start = where.searchsorted(_edges(rows, width))
    return Events(torch.from_numpy(where % width), torch.from_numpy(start), None, width)


def _not_all_ones(values: Tensor) -> Tensor | None:
    return None if bool((values == 1).all()) else values


@cache
def _edges(rows: int, width: int) -> np.ndarray:
    return np.arange(0, rows * width + 1, width)
