"""Cells over the parameters of another library's layer, and of PyTorch's; and our own cells behind modules."""

import dataclasses
import inspect
import math
import sys
import warnings
from abc import abstractmethod
from collections import namedtuple
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.parameter import is_lazy

from neurolsc.neurons.cell import Cell, Membrane, ResetSwitch, ScaledParameter, State, Thresholds
from neurolsc.neurons.parameters import parametrized_by
from neurolsc.neurons.weights import owner_of
from neurolsc.surroundings import eval_mode, original

OWN_NEURON = 'A neuron of your own becomes a cell by its step: see "Your own neuron" in the documentation.'


class UnsupportedLayerError(TypeError):
    """The error of a layer that cannot be wrapped, however it is called."""


class WrappedNeuronWarning(UserWarning):
    """A wrapped layer whose derivatives are not what its user may expect."""


def warn_of(text: str, category: type[Warning] = WrappedNeuronWarning) -> None:
    """Give a warning, which names the line of the user that called this package, directly or by a call of a module."""
    level = 2  # the caller of this function
    frame = sys._getframe(1)
    between = ("neurolsc", "torch", "contextlib")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in between:
        frame = frame.f_back
        level += 1
    warnings.warn(text, category, stacklevel=level)


class Accelerated:
    """The mark of a class that :func:`neurolsc.accelerate` made of a class of the user's."""

    _plain_class: ClassVar[type[nn.Module]]


def plain_class(module: Any) -> type[nn.Module]:
    """Return the class of a module; of an accelerated one the class that it had before."""
    if isinstance(module, Accelerated):
        return type(module)._plain_class
    return type(module)


def plain_module(module: Any) -> Any:
    """Return a module as it was before it was accelerated or compiled; it shares everything with the one given.

    Anything else is returned as it is.
    """
    module = original(module)
    if not isinstance(module, Accelerated):
        return module
    plain = object.__new__(plain_class(module))
    object.__setattr__(plain, "__dict__", vars(module))
    return plain


def library_of(module: nn.Module) -> str | None:
    """Return the name of the library that a layer with a state comes from, by its class or a class it inherits from.

    None for an ``nn.Sequential`` and for modules without state.
    """
    if isinstance(module, Cell):
        return "neurolsc"
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "torch"
    if isinstance(module, nn.Sequential):  # norse's SequentialState is one
        return None
    kinds = type(module).__mro__
    roots = {kind.__name__: kind.__module__.partition(".")[0] for kind in kinds}
    is_neuron = any(kind.__module__.startswith("spikingjelly.activation_based.neuron.") for kind in kinds)
    has_memory = roots.get("MemoryModule") == "spikingjelly"
    # either will do: a neuron such as PSN is no MemoryModule
    if (is_neuron or has_memory) and not is_dropout(module):
        return "spikingjelly"
    if "norse" in roots.values():
        if "state" in inspect.signature(module.forward).parameters:
            return "norse"
        return None  # an encoder or a receptive field
    if "snntorch" in roots.values() and any(name.endswith(("SpikingNeuron", "LeakyParallel")) for name in roots):
        return "snntorch"
    return None


def is_dropout(module: nn.Module) -> bool:
    """True for a dropout of spikingjelly, whose mask is its state."""
    return type(module).__name__ in ("Dropout", "Dropout2d") and type(module).__module__.startswith("spikingjelly.")


@cache
def state_class(*names: str) -> type[Any]:
    """Make the NamedTuple of a layer's state variables; the same class for the same names."""
    return namedtuple("State", names)


@contextmanager
def borrowed(layer: nn.Module, **values: object) -> Iterator[None]:
    """Give a layer other attributes and buffers inside the block; afterwards all are as they were.

    Also what the layer itself changes inside the block, such as its hidden state, is put back; parameters are not. A
    lazy module that is not built yet is left alone: it gets no values, and stays built if the block calls it.
    """
    if any(map(is_lazy, layer.parameters(recurse=False))) or any(map(is_lazy, layer.buffers(recurse=False))):
        yield
        return
    attributes = dict(vars(layer))
    inner = [attributes[name] for name in ("_buffers", "_memories") if name in attributes]  # the second: spikingjelly's
    before = [dict(entries) for entries in inner]
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


class WrappedCell(Cell):
    """A recurrent layer of another library, with the modules without state before it, as a cell.

    Parameters are shared with the layer, and nothing else of it is touched: not its hidden state, not its flags.
    Between cells everything is flat, x (B, n_in) and the output (B, n_hidden); inside, tensors have the shapes that the
    modules want, such as (B, channels, height, width).

    Args:
        layer: the recurrent layer.
        before: modules without state that the input goes through first: Linear, Conv2d, pooling, ...
        input_shape: shape of one sample of the input.
        scaled: the parameters that a rule may scale. Of a layer with unknown decays these are its weights only.

    Attributes:
        current_shape: shape of one sample of what the layer itself reads.
        output_shape: shape of one sample of the output.
        reset_gradient: True if the layer's reset carries gradient; None without a reset.
    """

    layer: Any
    reset_gradient: bool | None = None

    def __init__(
        self, layer: nn.Module, before: list[nn.Module], input_shape: tuple[int, ...], scaled: Iterable[ScaledParameter]
    ) -> None:
        super().__init__(math.prod(input_shape), 1)  # 1: the first state below gives the number of neurons
        self.layer = layer
        self.before = nn.Sequential(*before)
        self.input_shape = input_shape
        self.scaled_parameters = tuple(scaled)
        self.paper_scaled_parameters = self.scaled_parameters  # the paper says nothing of these neurons
        with torch.no_grad(), eval_mode(self):
            samples, *shape = self.current(torch.zeros(1, self.n_in, **self.dtype_and_device)).shape
            if samples != 1:
                names = ", ".join(type(module).__name__ for module in before)
                raise ValueError(
                    f"{names} turn one sample into {samples} before a {type(layer).__name__}: call an encoder outside of the "
                    "model, and give the network what it sends."
                )
            self.current_shape = tuple(shape)
            self.output_shape = tuple(self.emitted(self.initial_state(1)).shape[1:])
        self.n_hidden = math.prod(self.output_shape)
        if not self.n_hidden:
            raise ValueError(f"a {type(layer).__name__} of output shape {self.output_shape} has no neurons.")

    @abstractmethod
    def start(self, current: Tensor) -> State:
        """Return the state at rest for a current (B, ...), each variable in the layer's own shape."""

    @abstractmethod
    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        """Return the state after one step, all in the layer's own shapes.

        Args:
            current: what the layer reads (B, ...).
            z: what it sent in the step before (B, ...).
            state: the state after the step before.
        """

    @abstractmethod
    def emitted(self, state: State) -> Tensor:
        """Return what the layer sends in a state, in its own shape (B, ...)."""

    def current(self, x: Tensor) -> Tensor:
        """Return what the layer itself reads (B, ...), for an input (B, n_in) of the cell."""
        return self.before(x.view(-1, *self.input_shape))

    @property
    def affine(self) -> bool:
        """True if the current is an affine function of a flat input: then one matrix is its derivative everywhere."""
        return len(self.input_shape) == 1 and all(is_affine(module) for module in self.before)

    def initial_state(self, batch: int) -> State:
        return self.start(torch.zeros(batch, *self.current_shape, **self.dtype_and_device))

    def output(self, state: State) -> Tensor:
        return self.emitted(state).flatten(1)

    def update(self, x: Tensor, z: Tensor, state: State) -> State:
        return self.advance(self.current(x), z.view(-1, *self.output_shape), state)

    def pretrained(self) -> Iterable[nn.Parameter]:
        """Yield the parameters that pre-training changes: those that scale a radius, and no biases or norms."""
        for scaled in self.scaled_parameters:
            owner, name = owner_of(self, scaled.parameter)
            parameter = owner._parameters.get(name)
            if parameter is None:  # a number, or computed from other parameters, as by torch's weight_norm
                yield from parametrized_by(owner, name)
            else:
                yield parameter

    def extra_repr(self) -> str:
        text = super().extra_repr()
        for radius in ("time", "depth"):
            names = [scaled.parameter for scaled in self.scaled_parameters if scaled.radius == radius]
            text += f", {radius}: {', '.join(names) or 'nothing'}"
        return text


AFFINE = ("Linear", "BatchNorm1d", "Dropout", "Identity", "Flatten")  # the second and third in evaluation


def has_hooks(module: nn.Module) -> bool:
    """True if a module has a forward or a backward hook."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def is_plain_sequential(module: nn.Sequential) -> bool:
    """True if a Sequential does nothing but call its parts: it has no hooks and no forward of its own."""
    has_own_forward = "forward" in vars(module) or type(module).forward is not nn.Sequential.forward
    return not has_own_forward and not has_hooks(module)


def is_affine(module: nn.Module) -> bool:
    """True if a module of PyTorch or spikingjelly is known to be an affine function in its present mode."""
    if isinstance(module, nn.Sequential):
        return is_plain_sequential(module) and all(is_affine(part) for part in module)
    kind = type(module)
    known = kind.__name__ in AFFINE and kind.__module__.startswith(("torch.nn.modules.", "spikingjelly."))
    if not known or module._forward_hooks or module._forward_pre_hooks:
        return False
    if isinstance(module, nn.Dropout):
        return not module.training
    if isinstance(module, nn.BatchNorm1d):
        return not module.training and module.running_mean is not None  # else it takes the batch's own statistics
    return True


def weight_before(before: list[nn.Module]) -> list[ScaledParameter]:
    """Return, in a list, the last weight of a Linear or convolution before a layer; it scales the radius through depth.

    The list is empty if there is none.
    """
    kinds = nn.Linear | nn.modules.conv._ConvNd
    names = [name for name, module in nn.Sequential(*before).named_modules() if isinstance(module, kinds)]
    if names:
        return [ScaledParameter(f"before.{names[-1]}.weight", "depth")]
    return []


class CellWithModules(WrappedCell):
    """A cell of ours, with the modules without state that its input goes through first.

    Rules scale the cell's own input weights to set the radius through depth; a Linear before it stays.
    """

    layer: Cell

    def __init__(self, layer: Cell, before: list[nn.Module], input_shape: tuple[int, ...]) -> None:
        scaled = []
        for each in layer.scaled_parameters:
            limit = each.limit and f"layer.{each.limit}"
            scaled.append(dataclasses.replace(each, parameter=f"layer.{each.parameter}", limit=limit))
        super().__init__(layer, before, input_shape, scaled)
        self.integrator = layer.integrator
        self.recurrent_synapses = layer.recurrent_synapses
        self.input_matrices = tuple(f"layer.{name}" for name in layer.input_matrices)
        self.recurrent_vectors = tuple(f"layer.{name}" for name in layer.recurrent_vectors)

    def thresholds(self) -> Thresholds | None:
        return self.layer.thresholds()

    def membrane(self) -> Membrane | None:
        return self.layer.membrane()

    def reset_switch(self) -> ResetSwitch | None:
        return self.layer.reset_switch()

    def gains(self) -> dict[str, float]:
        return {f"layer.{name}": gain for name, gain in self.layer.gains().items()}

    def start(self, current: Tensor) -> State:
        return self.layer.initial_state(len(current))

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        return self.layer.update(current, z, state)

    def emitted(self, state: State) -> Tensor:
        return self.layer.output(state)


class TorchCell(WrappedCell):
    """One layer of an ``nn.RNN``, ``nn.GRU`` or ``nn.LSTM``, or one of their cells.

    Args:
        layer: the module of PyTorch, which may have more layers.
        before: as in :class:`WrappedCell`.
        input_shape: as in :class:`WrappedCell`.
        suffix: the end of the names of this layer's parameters, ``"_l0"``, ``"_l1"``, ...; empty for a cell of
            PyTorch.

    Attributes:
        kind: ``"rnn"``, ``"gru"`` or ``"lstm"``.
    """

    def __init__(self, layer: Any, before: list[nn.Module], input_shape: tuple[int, ...], suffix: str = "") -> None:
        self.suffix = suffix
        self.kind = type(layer).__name__.removesuffix("Cell").lower()
        scaled = [
            ScaledParameter(f"layer.weight_ih{suffix}", "depth"),
            ScaledParameter(f"layer.weight_hh{suffix}", "time"),
        ]
        if self.kind != "rnn" and layer.bias:  # a bias of the gate that retains the old state sets its retention
            scaled.append(ScaledParameter("retention", "time", through="decay_factor"))
            self.stored_in = (("retention", f"layer.bias_hh{suffix}"),)
        super().__init__(layer, before, input_shape, scaled)

    def _gate_biases(self) -> list[Tensor]:
        """Return both biases of the gate that retains the old state, each (n_hidden,), as views of the parameters.

        It is the second block of PyTorch's biases: the forget gate of an LSTM, the update gate of a GRU.
        """
        blocks = 4 if self.kind == "lstm" else 3
        return [getattr(self.layer, f"{name}{self.suffix}").chunk(blocks)[1] for name in ("bias_ih", "bias_hh")]

    @property
    def retention(self) -> Tensor:
        """Retention of a gated layer at input and output 0, sigmoid(bias) (n_hidden,); set by ``bias_hh``."""
        first, second = self._gate_biases()
        return torch.sigmoid(first + second)

    @retention.setter
    def retention(self, value: Tensor) -> None:
        first, second = self._gate_biases()
        with torch.no_grad():
            second.copy_(torch.logit(value) - first)

    def start(self, current: Tensor) -> State:
        """Return the state of zeros: h, and in an LSTM c, each (B, n_hidden)."""
        if self.kind == "lstm":
            names = ("h", "c")
        else:
            names = ("h",)
        zeros = [current.new_zeros(len(current), self.layer.hidden_size) for _ in names]
        return state_class(*names)(*zeros)

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        """Return the state after one step of PyTorch's own cell; z is not read, as it is the state's h."""
        names = (f"{name}{self.suffix}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        weights: list[Any] = [getattr(self.layer, name, None) for name in names]  # None: without bias
        if self.suffix not in ("", "_l0"):  # PyTorch's dropout is between its layers, here before all but the lowest
            current = dropout(current, float(self.layer.dropout), self.training)
        if self.kind == "lstm":
            return type(state)(*torch.lstm_cell(current, state, *weights))
        name = "gru_cell"
        if self.kind == "rnn":
            name = f"rnn_{self.layer.nonlinearity}_cell"
        step: Any = getattr(torch, name)
        return type(state)(step(current, state.h, *weights))

    def emitted(self, state: State) -> Tensor:
        return state.h


def torch_cells(layer: Any, before: list[nn.Module], input_shape: tuple[int, ...]) -> list[Cell]:
    """Make the cells of a recurrent module of PyTorch, one for each of its layers, the lowest first.

    Args:
        layer: the module.
        before: modules without state that the input of the lowest layer goes through first.
        input_shape: shape of one sample of the input of those modules, or of that layer if there are none.

    Raises:
        TypeError: if the module cannot be wrapped.
    """
    if type(layer) in (nn.RNNCell, nn.GRUCell, nn.LSTMCell):
        return [TorchCell(layer, before, input_shape)]
    if type(layer) not in (nn.RNN, nn.GRU, nn.LSTM) or layer.bidirectional or layer.proj_size:
        raise UnsupportedLayerError(
            f"{layer} cannot be wrapped: only torch.nn's own RNN, GRU, LSTM without proj_size and bidirectional=True (of "
            "which half runs back in time), and their cells."
        )
    upper = [TorchCell(layer, [], (layer.hidden_size,), f"_l{k}") for k in range(1, layer.num_layers)]
    return [TorchCell(layer, before, input_shape, "_l0"), *upper]
