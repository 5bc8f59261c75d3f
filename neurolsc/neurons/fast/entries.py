"""Products with matrices that are mostly zero: the input of a layer, and its own spikes.

A product with a few non-zero entries per row is a sum of a few rows of the other matrix. Where at
most a quarter of the entries differ from zero, and the product is not tiny, that beats the dense
product on a CPU (``benchmarks/layers.py``). It is the dense one as long as the other matrix is
finite: 0 times infinity is not left out there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neurolsc.neurons.fast import chunks
from neurolsc.neurons.fast.compiled import in_parts, kernels

DENSITY = 0.25
"""Share of non-zero entries up to which a product goes by events."""
SMALLEST = 2**19
"""Multiplications of the dense product below which it is not worth looking for events."""
CACHED = 2**18
"""Entries of a matrix whose rows are added that are kept close at hand."""
_IN_NUMPY = frozenset(
    {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64}
)
"""dtypes that are searched as they are"""


@dataclass(frozen=True)
class Entries:
    """The non-zero entries of a matrix (R, n), row after row.

    Attributes:
        column: the column of each entry (E,), int32.
        start: where the entries of each row start, and where the last one's end (R + 1,), int64.
        values: the entries themselves (E,); None where all are 1.
        width: n.
    """

    column: np.ndarray
    start: np.ndarray
    values: np.ndarray | None
    width: int

    @property
    def few(self) -> bool:
        """Whether a product by events is the faster one."""
        return len(self.column) <= most(len(self) * self.width)

    def __len__(self) -> int:
        return len(self.start) - 1

    def rows(self, a: int) -> "Entries":
        """The rows from a on."""
        entries, values = slice(self.start[a], None), self.values
        return Entries(
            self.column[entries],
            self.start[a:] - self.start[a],
            None if values is None else values[entries],
            self.width,
        )

    def times(self, weights: Tensor, a: int = 0, b: int | None = None, *, out: Tensor | None = None) -> Tensor:
        """Rows a to b of the matrix, or all, times weights (n, m), contiguous: (b - a, m)."""
        start = self.start[a : None if b is None else b + 1]
        out = weights.new_empty(len(start) - 1, weights.shape[1]) if out is None else out
        given = self.column, start, self._values(weights), weights.numpy(), tile(weights), out.numpy()
        in_parts(len(out), _additions(start, out), lambda i, j: kernels().times(*given, i, j))
        return out

    def add_transposed_times(self, g: Tensor, a: int, b: int, total: Tensor) -> None:
        """Add rows a to b of the matrix, transposed, times g (b - a, m), to a total (n, m)."""
        start = self.start[a : b + 1]
        given = self.column, start, self._values(g), g.numpy(), tile(g), total.numpy()
        in_parts(g.shape[1], _additions(start, g), lambda i, j: kernels().add_transposed_times(*given, i, j))

    def _values(self, like: Tensor) -> np.ndarray:
        """The values as the kernels take them, none if all are 1."""
        return like.new_empty(0).numpy() if self.values is None else self.values


def _additions(start: np.ndarray, wide: Tensor) -> int:
    """What a product takes with the entries of some rows."""
    return int(start[-1] - start[0]) * wide.shape[1]


def tile(matrix: Tensor) -> int:
    """The columns of a matrix that are taken at once."""
    return max(64, CACHED // max(len(matrix), 1))


def by_events(like: Tensor, rows: int, width: int, outputs: int) -> bool:
    """Whether products of the kind of a tensor may go by events.

    They are (rows, width) x (width, outputs).
    """
    known = like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64)
    return known and rows * width * outputs >= SMALLEST


def most(size: int) -> int:
    """The most entries that may differ from zero, of so many, for a product by events."""
    return int(DENSITY * size)


def spikes_in(z: Tensor) -> Entries:
    """The events of spikes (..., n), each 0 or 1."""
    return _searched(z.detach().reshape(-1, z.shape[-1]).contiguous().numpy())[0]


def events_in(x: Tensor, dtype: torch.dtype) -> Entries | None:
    """The events of an input (..., n), sparse (COO) or dense.

    None is returned where it is dense and they are many.
    """
    return _of_sparse(x, dtype) if x.is_sparse else _of_dense(x.detach(), dtype)


def _of_sparse(x: Tensor, dtype: torch.dtype) -> Entries:
    x = x.detach().coalesce()
    *outer, column = x.indices()
    row = torch.zeros_like(column)
    for index, size in zip(outer, x.shape[:-1], strict=True):
        row = row * size + index
    start = torch.searchsorted(row, torch.arange(x.shape[:-1].numel() + 1, device=row.device))
    return Entries(column.int().numpy(), start.numpy(), _not_all_ones(x.values().to(dtype)), x.shape[-1])


def _of_dense(x: Tensor, dtype: torch.dtype) -> Entries | None:
    flat = x.reshape(-1, x.shape[-1]).resolve_neg().contiguous()
    width, parts, values, found = flat.shape[1], [], [], 0
    for chunk in flat.split(max(1, chunks.ENTRIES // max(width, 1))):
        array = (chunk if chunk.dtype in _IN_NUMPY else chunk.to(dtype)).numpy()
        part, ones = _searched(array)
        found += len(part.column)
        if found > most(flat.numel()):
            return None
        parts.append(part)
        values.append(None if ones else array[np.repeat(np.arange(len(array)), np.diff(part.start)), part.column])
    events = stacked(parts)
    if all(each is None for each in values):
        return events
    filled = [np.ones(len(p.column)) if each is None else each for p, each in zip(parts, values, strict=True)]
    return Entries(events.column, events.start, torch.from_numpy(np.concatenate(filled)).to(dtype).numpy(), width)


def _searched(matrix: np.ndarray) -> tuple[Entries, bool]:
    """The events of a matrix without their values, and whether all of these are 1."""
    column, start = np.empty(matrix.size + 1, np.int32), np.empty(len(matrix) + 1, np.int64)
    count, ones = kernels().nonzeros(matrix, column, start)
    return Entries(column[:count].copy(), start, None, matrix.shape[1]), ones


def still(events: Entries, z: Tensor) -> bool:
    """Whether a tensor (..., n) still is these events.

    Sums of its rows tell, the entries numbered.
    """
    flat = z.detach().reshape(-1, z.shape[-1])
    if flat.shape != (len(events.start) - 1, events.width):
        return False
    numbers = torch.arange(1, events.width + 1, dtype=z.dtype, device=z.device)
    return torch.equal(flat @ numbers, events.times(numbers.unsqueeze(1)).squeeze(1))


def stacked(parts: Sequence[Entries]) -> Entries:
    """Matrices of ones under each other."""
    *before, total = np.cumsum([0, *(len(part.column) for part in parts)]).tolist()
    starts = [part.start[:-1] + first for part, first in zip(parts, before, strict=True)]
    column = np.concatenate([part.column for part in parts])
    return Entries(column, np.concatenate([*starts, [total]]), None, parts[0].width)


def _not_all_ones(values: Tensor) -> np.ndarray | None:
    return None if bool((values == 1).all()) else values.numpy()
