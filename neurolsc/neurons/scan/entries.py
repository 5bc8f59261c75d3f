"""Products with matrices that are mostly zero: the input of a layer, and its own spikes.

A product with a few non-zero entries per row is a sum of a few rows of the other matrix. Where at
most a quarter of the entries differ from zero, and the product is not tiny, that beats the dense
product on a CPU (``benchmarks/layers.py``). It is the dense one as long as the other matrix is
finite: 0 times infinity is not left out there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from neurolsc.neurons.scan import chunks

DENSITY = 0.25
"""Share of non-zero entries up to which a product goes by events."""
SMALLEST = 2**19
"""Multiplications of the dense product below which it is not worth looking for events."""
_IN_NUMPY = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16}
    | {torch.float32, torch.float64}
)
"""dtypes that NumPy knows"""


@dataclass(frozen=True)
class Entries:
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

    def rows(self, a: int, b: int) -> "Entries":
        """Rows a to b of the matrix."""
        entries = slice(int(self.start[a]), int(self.start[b]))
        values = None if self.values is None else self.values[entries]
        start = self.start[a : b + 1] - entries.start if entries.start else self.start[a : b + 1]
        return Entries(self.column[entries], start, values, self.width)

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
    """Whether products (rows, width) x (width, outputs) of the kind of a tensor may go by events."""
    known = like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64)
    return known and rows * width * outputs >= SMALLEST


def events_of(fired: np.ndarray) -> Entries | None:
    """The events of a bool matrix (R, n) with values 1, or None where they are many."""
    where = np.flatnonzero(fired)
    return None if many(len(where), fired.size) else _ones(where, *fired.shape)


def many(events: int, entries: int) -> bool:
    """Whether so many entries differ from zero that the dense product is faster."""
    return events > DENSITY * entries


def events_in(x: Tensor, dtype: torch.dtype) -> Entries | None:
    """The events of an input (..., n), sparse (COO) or dense; None where it is dense and they are many."""
    return _of_sparse(x, dtype) if x.is_sparse else _of_dense(x.detach(), dtype)


def _of_sparse(x: Tensor, dtype: torch.dtype) -> Entries:
    x = x.detach().coalesce()
    *outer, column = x.indices()
    row = torch.zeros_like(column)
    for index, size in zip(outer, x.shape[:-1], strict=True):
        row = row * size + index
    start = torch.searchsorted(row, torch.arange(x.shape[:-1].numel() + 1, device=row.device))
    return Entries(column, start, _not_all_ones(x.values().to(dtype)), x.shape[-1])


def _of_dense(x: Tensor, dtype: torch.dtype) -> Entries | None:
    flat = x.reshape(-1, x.shape[-1]).resolve_neg().contiguous()
    parts, values, found = [], [], 0
    for chunk in flat.tensor_split(1 + flat.numel() // chunks.ENTRIES):
        array = (chunk if chunk.dtype in _IN_NUMPY else chunk.to(dtype)).numpy()
        where = np.flatnonzero(array != 0)
        found += len(where)
        if many(found, flat.numel()):
            return None
        parts.append(_ones(where, *array.shape))
        values.append(array.reshape(-1)[where])
    events, known = stacked(parts), torch.from_numpy(np.concatenate(values)).to(dtype)
    return Entries(events.column, events.start, _not_all_ones(known), flat.shape[1])


def still(events: Entries, z: Tensor) -> bool:
    """Whether a tensor (..., n) still is these events: by sums of its rows, the entries numbered."""
    flat = z.detach().reshape(-1, z.shape[-1])
    if flat.shape != (len(events.start) - 1, events.width):
        return False
    numbers = torch.arange(1, events.width + 1, dtype=z.dtype, device=z.device)
    return torch.equal(flat @ numbers, events.times(numbers.unsqueeze(1)).squeeze(1))


def events_over(steps: Sequence[Entries | None], spikes: Tensor) -> Entries | None:
    """The events of spikes (T, B, n) from those of each step, None where they are many."""
    if many(sum(step is None for step in steps), len(steps)):
        return None
    pairs = zip(steps, spikes, strict=True)
    return stacked([step or _ones(np.flatnonzero(z.numpy()), *z.shape) for step, z in pairs])


def stacked(parts: Sequence[Entries]) -> Entries:
    """Matrices of ones under each other."""
    *before, total = np.cumsum([0, *(len(part.column) for part in parts)]).tolist()
    starts = [part.start.numpy()[:-1] + first for part, first in zip(parts, before, strict=True)]
    column = np.concatenate([part.column.numpy() for part in parts])
    start = np.concatenate([*starts, [total]])
    return Entries(torch.from_numpy(column), torch.from_numpy(start), None, parts[0].width)


def _ones(where: np.ndarray, rows: int, width: int) -> Entries:
    """The events of a matrix (rows, width) with ones at these places, counted row after row."""
    start = where.searchsorted(_edges(rows, width))
    return Entries(torch.from_numpy(where % width), torch.from_numpy(start), None, width)


def _not_all_ones(values: Tensor) -> Tensor | None:
    return None if bool((values == 1).all()) else values


@lru_cache(64)
def _edges(rows: int, width: int) -> np.ndarray:
    return np.arange(0, rows * width + 1, width)
