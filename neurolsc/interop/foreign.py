"""A recurrent layer of another library as a cell over the same parameters; PyTorch's own."""

import dataclasses
import math
import warnings
from abc import abstractmethod
from collections import namedtuple
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from neurolsc.network import eval_mode
from neurolsc.neurons.cell import Cell, Membrane, ScaledParameter, State, Thresholds


class ForeignNeuronWarning(UserWarning):
    """A wrapped layer whose derivatives are not what its user may expect."""


_WITHOUT_SYNAPSES = (nn.Linear, nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout)
"""modules after which each input still reaches what it reached; a Linear is counted apart"""


@cache
def state_type(*names: str) -> type:
    """The NamedTuple of a layer's state variables."""
    return namedtuple("State", names)


@contextmanager
def borrowed(layer: nn.Module, **values: object) -> Iterator[None]:
    """Give a layer other attributes and buffers for a while; then all are as they were."""
    attributes = dict(vars(layer))
    inner = [attributes[name] for name in ("_buffers", "_memories") if name in attributes]  # the second: spikingjelly's
    before = [dict(values) for values in inner]
    try:
        for name, value in values.items():
            setattr(layer, name, value)
        yield
    finally:
        vars(layer).clear()
        vars(layer).update(attributes)
        for now, then in zip(inner, before, strict=True):
            now.clear()
            now.update(then)


class ForeignCell(Cell):
    """A recurrent layer of another library, with the modules without state before it, as a cell.

    Parameters are shared with the layer, and nothing else of it is touched: not its hidden state,
    not its flags. Between cells everything is flat, x (B, n_in) and the output (B, n_hidden);
    inside, tensors have the shapes that the modules want, such as (B, channels, height, width).

    Args:
        layer: the recurrent layer.
        before: modules without state that the input goes through first: Linear, Conv2d, pooling,
            ...
        input_shape: shape of one sample of the input.

    Attributes:
        layer: the layer itself, not a copy.
        before: the modules before it, likewise.
        input_shape: shape of one sample of the input.
        output_shape: shape of one sample of the output.
        reset_gradient: whether the layer's reset carries gradient; None where there is no reset.
        scaled_parameters: what a rule may move, by name. Of a layer with unknown decays these
            are its weights only.

    Warns:
        ForeignNeuronWarning: if the next state depends neither on the state nor on the input.
    """

    reset_gradient: bool | None = None
    cause: ClassVar[str] = "nothing is known about the cause"

    def __init__(self, layer: nn.Module, before: Iterable[nn.Module], input_shape: tuple[int, ...]) -> None:
        super().__init__(math.prod(input_shape), 1)  # the width comes out of a first step
        self.layer = layer
        self.before = nn.Sequential(*before)
        self.input_shape = tuple(input_shape)
        self.scaled_parameters = self.paper_scaled_parameters = tuple(self.find_answers())
        with torch.no_grad(), eval_mode(self):
            x = torch.zeros(1, self.n_in, **self.dtype_and_device)
            first = self.current(x)
            self.current_shape = tuple(first.shape[1:])
            state = self.first_step(first)
            self.leaf_shapes = tuple(tuple(leaf.shape[1:]) for leaf in state)
            z = self.emitted(state)
        self.output_shape = tuple(z.shape[1:])
        self.n_hidden = math.prod(self.output_shape)
        self._warn_of_cut_derivatives()

    # for each library:
    @abstractmethod
    def find_answers(self) -> Iterable[ScaledParameter]:
        """The parameters that a rule scales to set a radius."""

    @abstractmethod
    def first_step(self, current: Tensor) -> State:
        """The state after a step from the layer's own start, whatever shapes that start has."""

    @abstractmethod
    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        """The next state from the current, the last output and the last state, in its shapes."""

    @abstractmethod
    def emitted(self, state: State) -> Tensor:
        """What the layer sends in a state, in its shape."""

    def current(self, x: Tensor) -> Tensor:
        """What the layer reads: a flat input in its shape, through the modules before."""
        return self.before(x.view(-1, *self.input_shape))

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """The state from which the layer starts."""

    def output(self, state: State) -> Tensor:
        return self.emitted(state).flatten(1)

    def update(self, x: Tensor, z: Tensor, state: State) -> State:
        return self.advance(self.current(x), z.view(-1, *self.output_shape), state)

    def dense_input(self, weights: int) -> bool:
        """Whether an input reaches every neuron once, as counts of synaptic operations assume.

        Args:
            weights: matrices of input weights that the layer itself has.
        """
        modules = [m for m in self.before.modules() if not isinstance(m, nn.Sequential)]
        linear = sum(isinstance(m, nn.Linear) for m in modules)
        return linear + weights == 1 and all(isinstance(m, _WITHOUT_SYNAPSES) for m in modules)

    def weight_before(self) -> list[ScaledParameter]:
        """The nearest weight before the layer, if any, which scales the radius through depth."""
        weighted = [
            name for name, m in self.before.named_modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)
        ]
        return [ScaledParameter(f"before.{weighted[-1]}.weight", "depth")] if weighted else []

    def pretrained(self) -> Iterable[nn.Parameter]:
        """The parameters that rules scale; biases, norms and the like stay."""
        for scaled in self.scaled_parameters:
            path, _, name = scaled.parameter.rpartition(".")
            parameter = self.get_submodule(path)._parameters.get(name)
            if parameter is not None:
                yield parameter

    def extra_repr(self) -> str:
        moved = {
            d: ", ".join(a.parameter for a in self.scaled_parameters if a.radius == d) or "nothing"
            for d in ("time", "depth")
        }
        return f"{super().extra_repr()}, time: {moved['time']}, depth: {moved['depth']}"

    def _warn_of_cut_derivatives(self) -> None:
        # one product with a random vector shows whether a matrix is zero, at the cost of a single
        # backward pass
        generator = torch.Generator().manual_seed(0)

        def random(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

        with torch.enable_grad(), eval_mode(self):
            start = self.initial_state(1)
            state = type(start)(*((leaf + 0.1 * random(leaf)).detach().requires_grad_() for leaf in start))
            x = random(torch.empty(1, self.n_in, **self.dtype_and_device)).requires_grad_()
            after = self.update(x, self.output(state), state)
            product = torch.stack([(leaf * random(leaf)).sum() for leaf in after]).sum()
            by_x, *by_state = torch.autograd.grad(product, (x, *state), allow_unused=True, materialize_grads=True)
        for what, gradients in (("state", by_state), ("input", [by_x])):
            if not any(g.any() for g in gradients):
                warnings.warn(
                    f"{type(self.layer).__name__}: the derivative of the next state by the {what} is identically zero "
                    f"({self.cause}); no pre-training can move its radius.",
                    ForeignNeuronWarning,
                    stacklevel=4,
                )


class PrecededCell(ForeignCell):
    """A cell of ours, with the modules without state that its input goes through first.

    Its own input weights scale the radius through depth; a Linear before it stays.
    """

    layer: Cell  # type: ignore[assignment]

    def find_answers(self) -> Iterable[ScaledParameter]:
        """Those of the cell."""
        return [
            dataclasses.replace(scaled, parameter=f"layer.{scaled.parameter}")
            for scaled in self.layer.scaled_parameters
        ]

    def thresholds(self) -> Thresholds | None:
        """Those of the cell."""
        return self.layer.thresholds()

    def membrane(self) -> Membrane | None:
        """That of the cell."""
        return self.layer.membrane()

    def gains(self) -> dict[str, float]:
        """Those of the cell."""
        return {f"layer.{name}": gain for name, gain in self.layer.gains().items()}

    @property
    def recurrent_synapses(self) -> int | None:  # type: ignore[override]
        """Those of the cell; None where the modules before it have synapses, too."""
        return self.layer.recurrent_synapses if self.dense_input(weights=1) else None

    def initial_state(self, batch: int) -> State:
        return self.layer.initial_state(batch)

    def first_step(self, current: Tensor) -> State:
        state = self.layer.initial_state(len(current))
        return self.layer.update(current, self.layer.output(state), state)

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        return self.layer.update(current, z, state)

    def emitted(self, state: State) -> Tensor:
        return self.layer.output(state)


def own_cell(layer: Cell, before: list[nn.Module], input_shape: tuple[int, ...]) -> Cell:
    """The cell itself, with its closed form, unless there are modules before it."""
    if before or input_shape != (layer.n_in,):
        return PrecededCell(layer, before, input_shape)
    return layer


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

    def find_answers(self) -> Iterable[ScaledParameter]:
        """The input weights; the recurrent weights and, of gated layers, the retention at rest."""
        yield ScaledParameter(f"layer.weight_ih{self.suffix}", "depth")
        yield ScaledParameter(f"layer.weight_hh{self.suffix}", "time")
        if self._gate_bias() is not None:
            yield ScaledParameter("retention", "time", through="share")

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
    def retention(self) -> Tensor:
        """Retention at input and output 0, sigmoid(bias) (n_hidden,); set by ``bias_hh``."""
        biases = self._gate_bias()
        assert biases is not None
        return torch.sigmoid(biases[0] + biases[1])

    @retention.setter
    def retention(self, value: Tensor) -> None:
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
