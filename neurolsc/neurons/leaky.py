r"""What others may ask about the step of LIF and ALIF: its derivatives, dense and as products.

.. math:: \begin{pmatrix} D + K & E - K \\ \beta s & e^{-1/\tau_\vartheta} - \beta s \end{pmatrix},
          \quad K = (W_{rec} - R)\,\mathrm{diag}(s), \quad s = \gamma f(\omega(v - \vartheta))

with D, E and R of :mod:`neurolsc.neurons.reset`; a LIF has the upper left corner alone. The spikes
in D and E are numbers, 0 or 1, whatever the surrogate's dampening and sharpness.

Source: arXiv:2308.12075, eq. 49.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from neurolsc.eigen.maps import Map
from neurolsc.neurons.cell import Answer, Cell, State
from neurolsc.neurons.derivatives import Derivatives, Term
from neurolsc.neurons.fast import known_reset
from neurolsc.neurons.linear_maps import Spikes, SpikingStep, Voltage, Weights
from neurolsc.neurons.linearised import Linearised
from neurolsc.neurons.reset import Reset
from neurolsc.neurons.spiking import Spike, known_derivative

LEAK = Term(
    "leak",
    "shorten tau_theta and tau_v: a silent surrogate leaves exactly exp(-1/tau)",
    "lengthen tau_theta or tau_v",
    "#0072b2",
)
RESET = Term(
    "reset",
    "detach the reset (reset_gradient=False), or lower the thresholds",
    "raise w_rec or the decays",
    "#cc79a7",
)
FEEDBACK = Term(
    "feedback",
    "lower the adaptation, or use a rule under which it follows the radius through time",
    "raise w_rec or the decays",
    "#d55e00",
)
RECURRENCE = Term(
    "recurrence",
    "scale w_rec down, or dampen the surrogate",
    "scale w_rec up: while a layer hardly fires its surrogate is small",
    "#009e73",
)


ANSWERS = (
    Answer("w_in", "depth"),
    Answer("w_rec", "time"),
    Answer("tau_v", "time", through="decay"),
)
PAPER_ANSWERS = (
    Answer("w_in", "depth"),
    Answer("w_rec", "time"),
    Answer("tau_v", "time"),
)


class _Neurons:
    """As ``recurrent_synapses`` of a cell: how many neurons of the layer hear a neuron."""

    def __init__(self, without: int = 0) -> None:
        self.without = without

    def __get__(self, cell: Cell | None, owner: type | None = None) -> int | None:
        return None if cell is None else cell.n_hidden - self.without


ALL_NEURONS: Any = _Neurons()
OTHER_NEURONS: Any = _Neurons(without=1)
"""all but itself"""


class Leaky(Protocol):
    """What is asked of a cell here."""

    spike: Spike
    reset: Reset

    @property
    def w_in(self) -> Tensor:
        """Input weights (n_hidden, n_in)."""
        ...

    def linearised(self, state: State) -> Linearised:
        """The step at B states, differentiated."""
        ...


class LeakyDerivatives(Derivatives):
    """The derivatives of a LIF or an ALIF.

    Args:
        cell: the cell.
        adapts: whether its threshold moves.
    """

    reads_input = False

    @classmethod
    def of(cls, cell: Leaky, adapts: bool) -> "LeakyDerivatives | None":
        """Those of a cell, if its spikes and its reset are of a known kind."""
        return cls(cell, adapts) if known_derivative(cell.spike) and known_reset(cell.reset) else None

    def __init__(self, cell: Leaky, adapts: bool) -> None:
        self.cell, self.adapts = cell, adapts
        self.terms = (LEAK, RESET, FEEDBACK, RECURRENCE) if adapts else (LEAK, RESET, RECURRENCE)

    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        w_rec, s, d, e, r, adaptation, decay_theta = self.cell.linearised(state)
        kick, recurrence = r * s, w_rec * s.unsqueeze(-2)
        if adaptation is None or decay_theta is None:
            return {"leak": torch.diag_embed(d), "reset": torch.diag_embed(-kick), "recurrence": recurrence}
        zero, feedback, hidden = torch.zeros_like(s), adaptation * s, s.shape[1]
        return {
            "leak": _diagonal_blocks(d, zero, zero, decay_theta.expand_as(s)),
            "reset": _diagonal_blocks(-kick, e + kick, zero, zero),
            "feedback": _diagonal_blocks(zero, zero, feedback, -feedback),
            "recurrence": pad(torch.cat((recurrence, -recurrence), -1), (0, 0, 0, hidden)),
        }

    def by_input(self, x: Tensor, state: State) -> Tensor:
        """w_in, or (w_in; 0), the same for all samples."""
        w_in = self.cell.w_in
        return (pad(w_in, (0, 0, 0, len(w_in))) if self.adapts else w_in).unsqueeze(0)

    def of_output(self, state: State) -> Tensor:
        """diag(s), or (diag(s), -diag(s))."""
        s = torch.diag_embed(self.cell.linearised(state).s)
        return torch.cat((s, -s), -1) if self.adapts else s

    def state_map(self, x: Tensor, state: State) -> SpikingStep:
        return SpikingStep(self.cell.linearised(state))

    def input_maps(self, x: Tensor, state: State) -> Sequence[Map]:
        w_in = self.cell.w_in
        return [Weights(w_in), Voltage(len(w_in))] if self.adapts else [Weights(w_in)]

    def output_maps(self, state: State) -> Sequence[Map]:
        return [Spikes(self.cell.linearised(state).s, self.adapts)]


def _diagonal_blocks(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """[[diag a, diag b], [diag c, diag d]] of vectors (B, n)."""
    upper = torch.cat((torch.diag_embed(a), torch.diag_embed(b)), -1)
    lower = torch.cat((torch.diag_embed(c), torch.diag_embed(d)), -1)
    return torch.cat((upper, lower), -2)
