"""PyTorch's own recurrent layers and cells as our cells."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from neurolsc.interop.foreign import ForeignCell
from neurolsc.neurons.cell import Answer


class HiddenState(NamedTuple):
    """State of an RNN or GRU."""

    h: Tensor
    """(B, n_hidden)"""


class LSTMState(NamedTuple):
    """State of an LSTM."""

    h: Tensor
    """output (B, n_hidden)"""
    c: Tensor
    """memory (B, n_hidden)"""


class TorchCell(ForeignCell):
    """One layer of ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM``, or one of their cells.

    Args:
        layer: the module.
        before: modules without state before it.
        input_shape: shape of one sample of the input.
        suffix: of the names of the layer's parameters: ``"_l0"``, ``"_l1"``, ... or empty for a
            cell.

    Source: the equations are PyTorch's own functions, those that its cells call.
    """

    def __init__(
        self, layer: nn.Module, before: Iterable[nn.Module], input_shape: tuple[int, ...], suffix: str = ""
    ) -> None:
        self.suffix = suffix
        super().__init__(layer, before, input_shape)

    def find_answers(self) -> Iterable[Answer]:
        """The input weights; the recurrent weights and, of gated layers, the share kept at rest."""
        yield Answer(f"layer.weight_ih{self.suffix}", "depth")
        yield Answer(f"layer.weight_hh{self.suffix}", "time")
        if self._gate_bias() is not None:
            yield Answer("kept", "time", through="share")

    def _gate_bias(self) -> tuple[Tensor, Tensor] | None:
        """The two biases of the gate that keeps the old state, PyTorch's second block; or None."""
        if isinstance(self.layer, nn.RNN | nn.RNNCell) or not self.layer.bias:
            return None
        biases = (getattr(self.layer, f"{name}{self.suffix}") for name in ("bias_ih", "bias_hh"))
        first, second = (bias.chunk(4 if self._is_lstm else 3)[1] for bias in biases)
        return first, second

    @property
    def _is_lstm(self) -> bool:
        return isinstance(self.layer, nn.LSTM | nn.LSTMCell)

    @property
    def kept(self) -> Tensor:
        """The share kept at input and output 0, sigmoid(bias) (n_hidden,); set by ``bias_hh``."""
        biases = self._gate_bias()
        assert biases is not None
        return torch.sigmoid(biases[0] + biases[1])

    @kept.setter
    def kept(self, value: Tensor) -> None:
        biases = self._gate_bias()
        assert biases is not None
        with torch.no_grad():
            biases[1].copy_(torch.logit(value) - biases[0])

    def initial_state(self, batch: int) -> HiddenState | LSTMState:
        """All zero."""
        zero = torch.zeros(batch, int(self.layer.hidden_size), **self.dtype_and_device)  # type: ignore[arg-type]
        return LSTMState(zero, zero.clone()) if self._is_lstm else HiddenState(zero)

    def first_step(self, current: Tensor) -> HiddenState | LSTMState:
        state = self.initial_state(len(current))
        return self.advance(current, state.h, state)

    def advance(self, current: Tensor, z: Tensor, state: HiddenState | LSTMState) -> HiddenState | LSTMState:
        names = (f"{name}{self.suffix}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        weights: list[Any] = [getattr(self.layer, name, None) for name in names]
        if self.suffix not in ("", "_l0"):
            current = dropout(current, float(self.layer.dropout), self.training)  # type: ignore[arg-type]
        if isinstance(state, LSTMState):
            return LSTMState(*torch.lstm_cell(current, state, *weights))
        if isinstance(self.layer, nn.GRU | nn.GRUCell):
            return HiddenState(torch.gru_cell(current, state.h, *weights))
        step = torch.rnn_relu_cell if self.layer.nonlinearity == "relu" else torch.rnn_tanh_cell
        return HiddenState(step(current, state.h, *weights))

    def emitted(self, state: HiddenState | LSTMState) -> Tensor:
        return state.h


def torch_cells(layer: nn.Module, before: list[nn.Module], input_shape: tuple[int, ...]) -> list[TorchCell]:
    """The cells of a recurrent module of PyTorch: one per layer.

    Raises:
        TypeError: if the module is bidirectional, has a projection, or is of a kind that is not
            known.
    """
    if type(layer) in (nn.RNNCell, nn.GRUCell, nn.LSTMCell):
        return [TorchCell(layer, before, input_shape)]
    if type(layer) not in (nn.RNN, nn.GRU, nn.LSTM):
        raise TypeError(
            f"a {type(layer).__name__} cannot be wrapped: only torch.nn's own RNN, GRU, LSTM and their cells."
        )
    assert isinstance(layer, nn.RNNBase)
    if layer.bidirectional:
        raise TypeError(f"a bidirectional {type(layer).__name__} cannot be wrapped: half of it runs back in time.")
    if layer.proj_size:
        raise TypeError(f"an {type(layer).__name__} with proj_size={layer.proj_size} cannot be wrapped, only without.")
    cells = [TorchCell(layer, before, input_shape, "_l0")]
    for k in range(1, layer.num_layers):
        cells.append(TorchCell(layer, [], cells[-1].output_shape, f"_l{k}"))
    return cells
