"""snnTorch's neurons as our cells.

Their spike is a function of the membrane, spk = H(mem - threshold), and so is no state of its own:
inside a step it is computed anew, with its surrogate. Only with ``reset_delay=False`` the membrane
has been reset since, and the spike stays in the state. A layer whose membrane is read sends its
mem, resets as ever, and is an integrator (:attr:`neurolsc.Cell.integrator`).
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from neurolsc.interop import snntorch as views
from neurolsc.interop.foreign import ForeignCell, ForeignNeuronWarning, borrowed, state_type
from neurolsc.neurons.cell import Membrane, ScaledParameter, State, Thresholds

VARIABLES = {
    "Leaky": ("mem",),
    "RLeaky": ("mem",),
    "Synaptic": ("syn", "mem"),
    "RSynaptic": ("syn", "mem"),
    "Alpha": ("syn_exc", "syn_inh", "mem"),
    "SLSTM": ("syn", "mem"),
    "SConv2dLSTM": ("syn", "mem"),
}
"""The layers that are wrapped, and their state variables."""

WHOLE_SEQUENCE = ("StateLeaky", "LinearLeaky", "AssociativeLeaky", "LeakyParallel")


class SnnTorchCell(ForeignCell):
    """A layer of snnTorch; its decays are alpha and beta."""

    def __init__(self, layer: nn.Module, before: Iterable[nn.Module], input_shape: tuple[int, ...]) -> None:
        names = self.names_of(layer)
        self.spike_is_state = not getattr(layer, "reset_delay", True)
        self.variables = (*names, "spk") if self.spike_is_state else names
        self.integrator = False
        self.reset_gradient = None if int(layer.reset_mechanism_val) == 2 else self.spike_is_state  # type: ignore[arg-type]
        super().__init__(layer, before, input_shape)

    @staticmethod
    def names_of(layer: nn.Module) -> tuple[str, ...]:
        """The state variables of a layer, without its spikes."""
        return VARIABLES[type(layer).__name__]

    def find_answers(self) -> Iterable[ScaledParameter]:
        yield from self.weight_before()
        for name in ("alpha", "beta"):
            if hasattr(self.layer, name):
                yield ScaledParameter(f"layer.{name}", "time", through="share")
        recurrent = getattr(self.layer, "recurrent", None)
        if recurrent is not None:
            yield from (
                ScaledParameter(f"layer.recurrent.{name}", "time")
                for name in ("weight", "V")
                if name in recurrent._parameters
            )

    @property
    def recurrent_synapses(self) -> int | None:  # type: ignore[override]
        """0 without recurrence, 1 if one to one; None for a convolution: it differs by place."""
        if not self.dense_input(weights=0):
            return None
        recurrent = getattr(self.layer, "recurrent", None)
        if recurrent is None:
            return 0
        if self.integrator:
            return None  # its spikes are not what it sends
        if isinstance(recurrent, nn.Linear):
            return self.n_hidden
        return None if isinstance(recurrent, nn.Conv2d) else 1

    @property
    def threshold(self) -> Tensor:
        """The layer's threshold, to read and to set."""
        return self.layer.threshold  # type: ignore[return-value]

    @threshold.setter
    def threshold(self, value: Tensor) -> None:
        put(self.layer, "threshold", value)

    def thresholds(self) -> Thresholds | None:
        """The threshold; None where it is not positive, and a factor does not raise it."""
        usable = not self.integrator and bool((self.threshold > 0).all())
        return Thresholds(self, ("threshold",)) if usable else None

    def membrane(self) -> Membrane | None:
        """Its mem, as it was before the reset of the next step."""
        if self.integrator or self.leaf_shapes[self.variables.index("mem")] != self.output_shape:
            return None  # pooled before it fires
        return Membrane("mem", self.threshold_in, self._settings().get("spike_grad", self.layer.spike_grad))

    def threshold_in(self, state: State) -> Tensor:
        """The threshold in a state."""
        return self.threshold

    def initial_state(self, batch: int) -> State:
        """All zero."""
        like = self.dtype_and_device
        return state_type(*self.variables)(*(torch.zeros(batch, *shape, **like) for shape in self.leaf_shapes))

    def first_step(self, current: Tensor) -> State:
        # most layers start with the shape of their current, whatever it is
        start = {name: current.new_zeros(self.start_shape(current)) for name in self.variables}
        return self._step(current, start | ({"spk": start["mem"]} if "spk" in self.layer._buffers else {}))

    def start_shape(self, current: Tensor) -> tuple[int, ...]:
        """The shape (B, ...) of a state variable, by that of the current."""
        return tuple(current.shape)

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        values = state._asdict()
        if "spk" in self.layer._buffers:  # the recurrent ones read it
            values["spk"] = self.spikes(state) if self.integrator else z
        return self._step(current, values)

    def _step(self, current: Tensor, values: dict[str, Tensor]) -> State:
        values = {name: value for name, value in values.items() if hasattr(self.layer, name)}
        with borrowed(self.layer, **self._settings(), **values, init_hidden=True, output=False):
            spk = self.layer.forward(current)  # not a call of the layer: hooks of its user must not see this step
            after = {"spk": spk} | {name: getattr(self.layer, name) for name in self.variables if name != "spk"}
        return state_type(*self.variables)(*(after[name] for name in self.variables))

    def _settings(self) -> dict[str, Any]:
        """The layer's surrogate, with spikes in the dtype of the membrane."""
        spike: Callable[[Tensor], Tensor] = self.layer.spike_grad  # type: ignore[assignment]
        return {} if isinstance(spike, nn.Module) else {"spike_grad": lambda v: spike(v).to(v.dtype)}

    def emitted(self, state: State) -> Tensor:
        return state.mem if self.integrator else self.spikes(state)

    def spikes(self, state: State) -> Tensor:
        """The spikes of a state, in their shape."""
        if self.spike_is_state:
            return state.spk
        with borrowed(self.layer, **self._settings()):
            return self.fire(state)

    def fire(self, state: State) -> Tensor:
        """The spikes of a state, by the layer's own function."""
        layer: Any = self.layer
        return layer.fire_inhibition(len(state.mem), state.mem) if layer.inhibition else layer.fire(state.mem)


class AlphaCell(SnnTorchCell):
    """An Alpha layer, whose beta must stay below its alpha."""

    def find_answers(self) -> Iterable[ScaledParameter]:
        yield from self.weight_before()
        yield ScaledParameter("layer.alpha", "time", through="share")
        yield ScaledParameter("beta", "time", through="share")

    @property
    def beta(self) -> Tensor:
        """The layer's beta; set to alpha or more it stays just below."""
        return self.layer.beta  # type: ignore[return-value]

    @beta.setter
    def beta(self, value: Tensor) -> None:
        with torch.no_grad():
            put(self.layer, "beta", torch.minimum(value, 0.999 * self.layer.alpha))  # type: ignore[operator]


class SLSTMCell(SnnTorchCell):
    """An SLSTM layer: an LSTM cell whose output fires."""

    cause = "a layer whose hidden_size is not its input_size starts from zero in every step"

    def start_shape(self, current: Tensor) -> tuple[int, ...]:
        return (len(current), self.layer.hidden_size)  # type: ignore[return-value]

    def find_answers(self) -> Iterable[ScaledParameter]:
        yield ScaledParameter("layer.lstm_cell.weight_ih", "depth")
        yield ScaledParameter("layer.lstm_cell.weight_hh", "time")


class SConv2dLSTMCell(SnnTorchCell):
    """An SConv2dLSTM layer: one convolution of input and membrane side by side.

    The membrane may be pooled before it fires.
    """

    def start_shape(self, current: Tensor) -> tuple[int, ...]:
        return (len(current), self.layer.out_channels, *current.shape[2:])  # type: ignore[return-value]

    def find_answers(self) -> Iterable[ScaledParameter]:
        yield ScaledParameter("w_in", "depth")
        yield ScaledParameter("w_rec", "time")

    def pretrained(self) -> Iterable[nn.Parameter]:
        return [self.layer.conv.weight]  # type: ignore[union-attr,list-item]

    @property
    def w_in(self) -> Tensor:
        """The part of the convolution that reads the input."""
        return self.layer.conv.weight[:, : self.layer.in_channels]  # type: ignore[index,union-attr]

    @w_in.setter
    def w_in(self, value: Tensor) -> None:
        with torch.no_grad():
            self.w_in.copy_(value)

    @property
    def w_rec(self) -> Tensor:
        """The part of the convolution that reads the membrane."""
        return self.layer.conv.weight[:, self.layer.in_channels :]  # type: ignore[index,union-attr]

    @w_rec.setter
    def w_rec(self, value: Tensor) -> None:
        with torch.no_grad():
            self.w_rec.copy_(value)

    def fire(self, state: State) -> Tensor:
        layer: Any = self.layer
        if layer.max_pool:
            return layer.fire(max_pool2d(state.mem, layer.max_pool))
        return layer.fire(avg_pool2d(state.mem, layer.avg_pool) if layer.avg_pool else state.mem)


class ViewCell(SnnTorchCell):
    """One of our layers for snnTorch, whose resting threshold no time constant moves."""

    def __init__(self, layer: nn.Module, before: Iterable[nn.Module], input_shape: tuple[int, ...]) -> None:
        super().__init__(layer, before, input_shape)
        if self.reset_gradient is not None:
            self.reset_gradient = layer.reset_gradient  # type: ignore[assignment]

    @staticmethod
    def names_of(layer: nn.Module) -> tuple[str, ...]:
        """Without the spikes, as for the others."""
        return layer.states[1:]  # type: ignore[index,return-value]

    def find_answers(self) -> Iterable[ScaledParameter]:
        yield from super().find_answers()
        if "thr" in self.variables:
            yield ScaledParameter("layer.adaptation", "time")
            yield ScaledParameter("layer.tau_theta", "time", through="decay")

    def initial_state(self, batch: int) -> State:
        """At rest: the threshold at its resting value, the voltage at 0."""
        layer: Any = self.layer
        _, *states = layer.rest(torch.zeros(batch, layer.linear_features, **self.dtype_and_device))
        return state_type(*self.variables)(*states)

    @property
    def adaptation(self) -> Tensor:
        """The layer's adaptation, to read and to set."""
        return self.layer.adaptation  # type: ignore[return-value]

    @adaptation.setter
    def adaptation(self, value: Tensor) -> None:
        put(self.layer, "adaptation", value)

    def thresholds(self) -> Thresholds:
        """The resting threshold and the adaptation, of which the whole is a sum of multiples."""
        return Thresholds(self, ("threshold", "adaptation") if "thr" in self.variables else ("threshold",))

    def membrane(self) -> Membrane:
        """Its mem and, of an ALIF, the moving threshold."""
        return Membrane("mem", self.threshold_in, self.layer.emit)  # type: ignore[arg-type]

    def threshold_in(self, state: State) -> Tensor:
        return state.thr if "thr" in self.variables else self.threshold

    def _settings(self) -> dict[str, Any]:
        return super()._settings() | {"_at_rest": False}

    def fire(self, state: State) -> Tensor:
        layer: Any = self.layer
        return layer.emit(state.mem - (state.thr if "thr" in self.variables else layer.threshold))


def put(layer: nn.Module, name: str, value: Tensor) -> None:
    """Set a parameter in place, or replace a buffer, which other layers may hold as well."""
    parameter = layer._parameters.get(name)
    with torch.no_grad():
        if parameter is None:
            setattr(layer, name, value.clone())
        else:
            parameter.copy_(value)


KINDS = {
    "Alpha": AlphaCell,
    "SLSTM": SLSTMCell,
    "SConv2dLSTM": SConv2dLSTMCell,
}


def snntorch_cell(
    layer: nn.Module, before: Iterable[nn.Module], input_shape: tuple[int, ...], *, last: bool = False
) -> SnnTorchCell:
    """The cell of a layer of snnTorch; of a last one without reset its membrane is what it sends.

    Raises:
        TypeError: if it cannot be wrapped; the message says why.
    """
    kind = type(layer)
    if kind in (views.LIF, views.ALIFPlus, views.ALIFPlusMinus):
        return ViewCell(layer, before, input_shape)
    known = kind.__module__.partition(".")[0] == "snntorch" and kind.__name__ in VARIABLES
    if not known:
        why = f"only {', '.join(VARIABLES)} themselves are, since a subclass may step otherwise"
        if kind.__name__ in WHOLE_SEQUENCE:
            why = "it computes a whole sequence at once and has no state per step"
        raise TypeError(f"snnTorch's {kind.__name__} cannot be wrapped: {why}.")
    if kind.__name__ == "RSynaptic" and not layer.reset_delay:
        raise TypeError("snnTorch's RSynaptic cannot be wrapped with reset_delay=False: its own forward fails.")
    _warn_of_falling_surrogate(layer)
    cell = KINDS.get(kind.__name__, SnnTorchCell)(layer, before, input_shape)
    spikes_alone = layer.init_hidden and not layer.output
    if last and kind.__name__ in ("Leaky", "Synaptic") and layer.reset_mechanism == "none" and not spikes_alone:
        cell.integrator = True
    return cell


def _warn_of_falling_surrogate(layer: nn.Module) -> None:
    """Warn of a surrogate with the derivative of a peak, not of a step: snnTorch's triangular."""
    v = torch.tensor([-0.5, 0.5], requires_grad=True)
    with torch.enable_grad():
        z: Tensor = layer.spike_grad(v)  # type: ignore[operator]
    if not z.requires_grad:
        return
    below, above = torch.autograd.grad(z.sum(), v)[0].tolist()
    if below > 0 and above == -below:
        warnings.warn(
            f"{type(layer).__name__}: the derivative of its surrogate is {below:+g} below the threshold and {above:+g} above "
            "it (snnTorch's triangular): more voltage counts as fewer spikes once a neuron fires.",
            ForeignNeuronWarning,
            stacklevel=4,
        )
