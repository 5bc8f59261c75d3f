"""The gradients of what all steps have in common, summed as the reverse pass goes back."""

from torch import Tensor

from neurolsc.neurons.equations import Constants
from neurolsc.neurons.fast.inputs import Inputs
from neurolsc.neurons.fast.steps import Trace, room

VECTORS = Constants._fields[2:]
"""the constants that are one number per neuron"""


class Totals:
    """Sums over the steps that have been passed.

    Args:
        c: the constants.
        trace: the forward pass.
        needed: which gradients are.
        rows: rows of sums that are kept of each constant of a neuron; None: one per sample.

    Attributes:
        vectors: by the constants of each neuron (rows, n_hidden); only those needed.
    """

    def __init__(self, c: Constants, trace: Trace, needed: Inputs, rows: int | None = None) -> None:
        reading, (steps, batch, hidden) = trace.reading, trace.z.shape
        self.c, self.trace, self.needed = c, trace, needed
        self.vectors = {name: trace.z.new_zeros(rows or batch, hidden) for name in VECTORS if getattr(needed.c, name)}
        # of the transposed weights, as products make them
        self.w_rec = c.w_rec.new_zeros(hidden, hidden) if needed.c.w_rec else None
        self.w_in = c.w_in.new_zeros(reading.width, hidden) if needed.c.w_in else None
        self.first = trace.z.new_zeros(batch, reading.width) if needed.first else None
        self.x = room(trace.z, steps, batch, reading.width) if needed.x or needed.first else None
        if self.x is not None and reading.late:
            self.x[-1] = 0  # the last frame is not read

    def add_block(self, a: int, b: int, g: Tensor) -> None:
        """Add what follows from the gradients by the voltages after steps a to b, at once."""
        if self.w_rec is not None:
            add_recurrent(self.w_rec, self.trace, a, b, g)
        if self.w_in is not None:
            self.trace.reading.add_gradient(self.w_in, a, b, g)
        if self.x is not None:
            self.trace.reading.send_back(self.x, self.first, a, b, g, self.c.w_in)

    def constants(self) -> Constants:
        """The gradients of the constants; None where they are not needed."""
        weights = [None if total is None else total.T for total in (self.w_in, self.w_rec)]
        return Constants(*weights, *(self.vectors[n].sum(0) if n in self.vectors else None for n in VECTORS))  # type: ignore[arg-type]


def add_recurrent(total: Tensor, trace: Trace, a: int, b: int, g: Tensor) -> None:
    """Add the gradient by w_rec transposed to a total.

    It is made from that by the voltages after steps a to b.
    """
    if not a:
        total.addmm_(trace.z0.T, g[0])
        a, g = 1, g[1:]
    if b > a and trace.events is not None:
        batch = len(trace.z0)
        trace.events.add_transposed_times(g.flatten(0, 1), (a - 1) * batch, (b - 1) * batch, total)
    elif b > a:
        total.addmm_(trace.z[a - 1 : b - 1].flatten(0, 1).T, g.flatten(0, 1))
