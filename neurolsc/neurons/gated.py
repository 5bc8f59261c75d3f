"""What recurrent cells that send numbers share: weights of gates, and closed forms."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.display import state_repr
from neurolsc.eigen.maps import Map
from neurolsc.neurons.cell import Answer, Cell, State
from neurolsc.neurons.derivatives import Derivatives
from neurolsc.neurons.gate_maps import MEMORY, RECURRENCE, First, GatedStep
from neurolsc.neurons.linear_maps import Weights

WEIGHTS = (Answer("w_in", "depth"), Answer("w_rec", "time"))
"""what multipliers move, by the paper's rule"""
KEPT = Answer("kept", "time", through="share")
"""what they move as well, by ours, of a cell that keeps a share of its state"""


class HiddenState(NamedTuple):
    """State of an RNN, a GRU or a feed-forward layer."""

    h: Tensor
    """what the layer sends (B, n_hidden)"""

    def __repr__(self) -> str:
        return state_repr(self)


class GatedCell(Cell):
    """A recurrent layer that sends the first variable h of its state, and reads it through gates.

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        gates: matrices through which a step reads, one below the other in the weights.

    Attributes:
        w_in: input weights (gates n_hidden, n_in), each gate's Glorot uniform.
        w_rec: recurrent weights (gates n_hidden, n_hidden), each gate's orthogonal.
        bias: constant inputs (gates n_hidden,), zero.

    Source: arXiv:2308.12075, App. H.
    """

    answers = WEIGHTS
    paper_answers = WEIGHTS

    def __init__(self, n_in: int, n_hidden: int, gates: int = 1) -> None:
        super().__init__(n_in, n_hidden)
        self.w_in = nn.Parameter(torch.cat([self._drawn(nn.init.xavier_uniform_, n_in) for _ in range(gates)]))
        self.w_rec = nn.Parameter(torch.cat([self._drawn(nn.init.orthogonal_, n_hidden) for _ in range(gates)]))
        self.bias = nn.Parameter(torch.zeros(gates * n_hidden))

    def _drawn(self, draw: Callable[[Tensor], Tensor], columns: int) -> Tensor:
        return draw(torch.empty(self.n_hidden, columns))

    def initial_state(self, batch: int) -> State:
        """All zero."""
        return HiddenState(torch.zeros(batch, self.n_hidden, **self.dtype_and_device))

    def output(self, state: State) -> Tensor:
        """The first variable of the state, h."""
        return state.h

    @abstractmethod
    def linearised(self, x: Tensor, state: State) -> GatedStep:
        """The step at P inputs and states, differentiated by the state."""

    def derivatives(self) -> Derivatives | None:
        return GatedDerivatives(self)


class GatedDerivatives(Derivatives):
    """The derivatives of a gated cell."""

    terms = (MEMORY, RECURRENCE)

    def __init__(self, cell: GatedCell) -> None:
        self.cell = cell

    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        return self.state_map(x, state).by_terms()

    def by_input(self, x: Tensor, state: State) -> Tensor:
        return self.state_map(x, state).read.of(self.cell.w_in.unsqueeze(0))

    def of_output(self, state: State) -> Tensor:
        n, variables = self.cell.n_hidden, len(state)
        return torch.eye(n, variables * n, dtype=state.h.dtype, device=state.h.device).unsqueeze(0)

    def state_map(self, x: Tensor, state: State) -> GatedStep:
        return self.cell.linearised(x, state)

    def input_maps(self, x: Tensor, state: State) -> Sequence[Map]:
        return [Weights(self.cell.w_in), self.state_map(x, state).read]

    def output_maps(self, state: State) -> Sequence[Map]:
        return [First(self.cell.n_hidden, len(state) * self.cell.n_hidden)]
