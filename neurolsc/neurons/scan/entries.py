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
FEW = 0.03
"""Share of True up to which NumPy's search, that jumps from one to the next, is the faster one."""
_IN_NUMPY = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16}
    | {torch.float32, torch.float64}
)
"""dtypes that NumPy knows"""


class Search:
    """A search for the True in bool matrices of one shape.

    NumPy looks for them in one of two ways: up to a share of a tenth it jumps from one to the next,
    which at random places costs a mispredicted branch each; beyond that it takes all entries in turn,
    without branches. Where they are not few, as many more are looked at behind the matrix as make it
    do that.

    Args:
        rows: rows of the matrix.
        width: its columns.

    Attributes:
        matrix: the matrix (rows, width), to be written to.
    """

    def __init__(self, rows: int, width: int) -> None:
        self.size = rows * width
        self.padded = np.ones(self.size + self.size // 9 + 1, bool)
        self.matrix = self.padded[: self.size].reshape(rows, width)

    def count(self) -> int:
        """How many are True."""
        return int(np.count_nonzero(self.matrix))

    def places(self, count: int) -> np.ndarray:
        """Where they are, counted row after row, given how many there are."""
        more = 0 if count <= FEW * self.size else max(self.size // 9 + 1 - count, 0)
        return self.padded[: self.size + more].nonzero()[0][:count]


@dataclass(frozen=True)
class Entries:
    """The non-zero entries of a matrix (R, n), row after row.

    Attributes:
        column: the column of each entry (E,), int32 or, where they came so, int64.
        start: where the entries of each row start, and where the last one's end (R + 1,), likewise.
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
        kind = part.column.dtype if len(part.column) < 2**31 else torch.int64
        bags = part.column.to(kind), part.start.to(kind)
        return torch.embedding_bag(weights, *bags, False, 0, False, part.values, True)[0]

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
        # sorted by a number whose low bits are the row, the high ones the column
        bits = (b - a - 1).bit_length()
        dtype = np.int32 if self.width << bits < 2**31 else np.int64
        place = self.column[entries].numpy().astype(dtype)
        place <<= bits
        place |= np.repeat(np.arange(b - a, dtype=dtype), np.diff(start))
        if self.values is None:
            values = None
            place.sort()
        else:
            order = place.argsort()
            place, values = place[order], self.values[entries][torch.from_numpy(order)]
        first = place.searchsorted(np.arange(self.width + 1, dtype=dtype) << bits).astype(dtype)
        place &= (1 << bits) - 1
        bags = torch.from_numpy(place), torch.from_numpy(first)
        return torch.embedding_bag(g, *bags, False, 0, False, values, True)[0]


def by_events(like: Tensor, rows: int, width: int, outputs: int) -> bool:
    """Whether products (rows, width) x (width, outputs) of the kind of a tensor may go by events."""
    known = like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64)
    return known and rows * width * outputs >= SMALLEST


def events_of(search: Search) -> Entries | None:
    """The events of a bool matrix (R, n) with values 1, or None where they are many."""
    count = search.count()
    return None if many(count, search.size) else _ones(search.places(count), *search.matrix.shape)


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
    rows, width = flat.shape
    parts, values, found, at_once = [], [], 0, max(1, chunks.ENTRIES // max(width, 1))
    search = Search(min(at_once, rows), width)
    for chunk in flat.split(at_once):
        array = (chunk if chunk.dtype in _IN_NUMPY else chunk.to(dtype)).numpy()
        if len(array) < len(search.matrix):
            search = Search(*array.shape)
        np.not_equal(array, 0, out=search.matrix)
        count = search.count()
        found += count
        if many(found, flat.numel()):
            return None
        where = search.places(count)
        parts.append(_ones(where, *array.shape))
        values.append(array.reshape(-1).take(where))
    events, known = stacked(parts), torch.from_numpy(np.concatenate(values)).to(dtype)
    return Entries(events.column, events.start, _not_all_ones(known), width)


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
    starts = [part.start.numpy()[:-1] + np.int64(first) for part, first in zip(parts, before, strict=True)]
    column = np.concatenate([part.column.numpy() for part in parts])
    start = np.concatenate([*starts, [total]])
    return Entries(torch.from_numpy(column), torch.from_numpy(start), None, parts[0].width)


def _ones(where: np.ndarray, rows: int, width: int) -> Entries:
    """The events of a matrix (rows, width) with ones at these places, counted row after row."""
    start = where.searchsorted(_edges(rows, width)).astype(np.int32)
    return Entries(torch.from_numpy(_columns(rows, width).take(where)), torch.from_numpy(start), None, width)


def _not_all_ones(values: Tensor) -> Tensor | None:
    return None if bool((values == 1).all()) else values


@lru_cache(64)
def _edges(rows: int, width: int) -> np.ndarray:
    return np.arange(0, rows * width + 1, width)


@lru_cache(16)
def _columns(rows: int, width: int) -> np.ndarray:
    """The column of every entry: to look it up takes a quarter of the time of a division."""
    return np.tile(np.arange(width, dtype=np.int32), rows)
