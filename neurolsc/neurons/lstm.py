"""The long short-term memory."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from neurolsc.display import state_repr
from neurolsc.neurons.all_steps import by_kernel, read_by
from neurolsc.neurons.cell import Answer
from neurolsc.neurons.gate_maps import GatedStep, Gates
from neurolsc.neurons.gated import KEPT, WEIGHTS, GatedCell
from neurolsc.neurons.registry import register


class LSTMState(NamedTuple):
    """State of an LSTM, for radii side by side."""

    h: Tensor
    """what the layer sends (B, n_hidden)"""
    c: Tensor
    """its memory (B, n_hidden)"""

    def __repr__(self) -> str:
        return state_repr(self)


@register
class LSTM(GatedCell):
    r"""Long short-term memory.

    .. math::
        i, f, o &= \sigma(W_j x[t] + U_j h[t-1] + b_j), \quad j = i, f, o \\
        g &= \tanh(W_c x[t] + U_c h[t-1] + b_c) \\
        c[t] &= f \circ c[t-1] + i \circ g \\
        h[t] &= o \circ \tanh(c[t])

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.

    Attributes:
        w_in: W of i, f, c and o, PyTorch's order (4 n_hidden, n_in), Glorot uniform.
        w_rec: U, likewise (4 n_hidden, n_hidden), orthogonal.
        bias: b (4 n_hidden,), zero; PyTorch's layer has two, which are added.
        kept: share of the memory that is kept at input and output 0, sigmoid(b_f) (n_hidden,);
            settable, by ``bias``.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> cell = LSTM(3, 2)
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> torch.equal(z, state.h), state.c.shape
        (True, torch.Size([5, 2]))

    Source: arXiv:2308.12075, eq. 47.
    """

    answers: tuple[Answer, ...] = (*WEIGHTS, KEPT)

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__(n_in, n_hidden, gates=4)

    def initial_state(self, batch: int) -> LSTMState:
        """All zero."""
        zero = torch.zeros(batch, self.n_hidden, **self.dtype_and_device)
        return LSTMState(zero, zero.clone())

    def update(self, x: Tensor, z: Tensor, state: LSTMState) -> LSTMState:
        return LSTMState(*torch.lstm_cell(x, (z, state.c), self.w_in, self.w_rec, self.bias, self._no_bias()))

    def _no_bias(self) -> Tensor:
        """The second bias that kernels ask for."""
        return torch.zeros_like(self.bias)

    @property
    def kept(self) -> Tensor:
        """Share of the memory that is kept at input and output 0 (n_hidden,)."""
        return torch.sigmoid(self.bias[self._f])

    @kept.setter
    def kept(self, value: Tensor) -> None:
        with torch.no_grad():
            self.bias[self._f] = torch.logit(value)

    @property
    def _f(self) -> slice:
        return slice(self.n_hidden, 2 * self.n_hidden)

    def linearised(self, x: Tensor, state: LSTMState) -> GatedStep:
        currents = torch.addmm(linear(x, self.w_in, self.bias), state.h, self.w_rec.T)
        a_i, a_f, a_g, a_o = currents.chunk(4, 1)
        i, f, o = (torch.sigmoid(a) for a in (a_i, a_f, a_o))
        g = torch.tanh(a_g)
        told = torch.tanh(f * state.c + i * g)
        to_h = o * (1 - told.square())  # d h / d c[t]
        of_c = torch.stack((g * i * (1 - i), state.c * f * (1 - f), i * (1 - g.square()), torch.zeros_like(o)), 1)
        of_h = to_h.unsqueeze(1) * of_c
        of_h = torch.cat((of_h[:, :3], (told * o * (1 - o)).unsqueeze(1)), 1)
        zero = torch.zeros_like(f)
        kept = torch.stack((zero, to_h * f, zero, f), 1).unflatten(1, (2, 2))
        return GatedStep(kept, Gates(torch.stack((of_h, of_c), 1)), self.w_rec)

    def run(
        self,
        x: Tensor,
        state: LSTMState,
        *,
        first: Tensor | None = None,
        lengths: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, LSTMState]:
        half = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if recompute or (half and not torch.ops.mkldnn._is_mkldnn_bf16_supported()):  # there torch.lstm fails
            return super().run(x, state, first=first, lengths=lengths, recompute=recompute)
        weights = (self.w_in, self.w_rec, self.bias, self._no_bias())
        outputs, last = by_kernel(torch.lstm, read_by(x, first, state.h.dtype), state, weights, lengths)
        return outputs, LSTMState(*last)
