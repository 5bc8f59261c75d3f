"""What a layer reads in a run, and the products of that with its input weights."""

import torch
from torch import Tensor

from neurolsc.neurons.fast import chunks
from neurolsc.neurons.fast.entries import Entries, by_events, events_in


class Reading:
    """The inputs of T steps: the frames of x or, after a first frame, those one step late.

    Args:
        x: frames (T, B, n), dense or sparse.
        first: what the first step reads (B, n), x then being read one step late; or None.
        w_in: input weights (n_hidden, n).
        events: those of x, if they are known.
    """

    def __init__(self, x: Tensor, first: Tensor | None, w_in: Tensor, events: Entries | None = None) -> None:
        self.steps, self.batch, self.width = x.shape
        self.dtype, self.late = w_in.dtype, int(first is not None)
        self.first = None if first is None else first.to(w_in.dtype)
        pays = by_events(w_in, chunks.ROWS, self.width, len(w_in))
        self.events = (events or events_in(x, w_in.dtype)) if pays else None
        if self.events is None:
            self.x = x.to_dense() if x.is_sparse else x

    def drive(self, a: int, b: int, w_in: Tensor, w_in_t: Tensor) -> Tensor:
        """The projected input of steps a to b, (b - a, B, n_hidden); w_in_t is contiguous."""
        begin, end = self._frames(a, b)
        parts = [] if self.first is None or a else [self.first @ w_in.T]
        if end > begin and self.events is not None:
            parts.append(self.events.times(w_in_t, begin * self.batch, end * self.batch))
        elif end > begin:
            parts.append(self._product(self._rows(begin, end), w_in.T))
        rows = torch.cat(parts) if len(parts) > 1 else parts[0]
        return rows.view(b - a, self.batch, -1)

    def add_gradient(self, total: Tensor, a: int, b: int, g: Tensor) -> None:
        """Add the gradient by the transposed weights to a total.

        It is made from that by the drive of steps a to b.
        """
        begin, end = self._frames(a, b)
        if self.first is not None and not a:
            total.addmm_(self.first.T, g[0])
            g = g[1:]
        if end > begin and self.events is not None:
            self.events.add_transposed_times(g.flatten(0, 1), begin * self.batch, end * self.batch, total)
        elif end > begin:
            total.addmm_(self._rows(begin, end).T, g.flatten(0, 1))

    def send_back(self, gx: Tensor, gfirst: Tensor | None, a: int, b: int, g: Tensor, w_in: Tensor) -> None:
        """Write the gradient by x (T, B, n) and the first frame.

        It is made from that by the drive of steps a to b.
        """
        begin, end = self._frames(a, b)
        if self.first is not None and not a:
            if gfirst is not None:
                torch.mm(g[0], w_in, out=gfirst)
            g = g[1:]
        torch.mm(g.flatten(0, 1), w_in, out=gx[begin:end].flatten(0, 1))

    def _product(self, rows: Tensor, w_in_t: Tensor) -> Tensor:
        """Rows times weights."""
        # step by step it rounds as the plain step does; all at once is faster on a GPU, and where a
        # batch is too small to fill a product
        if rows.is_cuda or (self.batch < 64 and by_events(rows, len(rows), *w_in_t.shape)):
            return rows @ w_in_t
        return torch.cat([frame @ w_in_t for frame in rows.split(self.batch)])

    def _frames(self, a: int, b: int) -> tuple[int, int]:
        """The frames of x that steps a to b read."""
        return max(a - self.late, 0), b - self.late

    def _rows(self, begin: int, end: int) -> Tensor:
        return self.x[begin:end].flatten(0, 1).to(self.dtype)
