"""snnTorch's neurons as our cells.

Their spike is a function of the membrane, spk = H(mem - threshold), and so is no state of its own: inside a step it is
computed anew, with its surrogate. Only with ``reset_delay=False`` the membrane has been reset since, and the spike
stays in the state. A layer whose membrane is read sends its mem, resets as ever, and is an integrator
(:attr:`neurolsc.Cell.integrator`).
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from neurolsc.interop import snntorch as views
from neurolsc.interop.foreign import ForeignCell, ForeignNeuronWarning, borrowed, state_class, weight_before
from neurolsc.neurons.cell import Membrane, ScaledParameter, State, Thresholds
from neurolsc.validation import set_value

# the layers that are wrapped, and their state variables without the spikes
VARIABLES = {
    "Leaky": ("mem",),
    "RLeaky": ("mem",),
    "Synaptic": ("syn", "mem"),
    "RSynaptic": ("syn", "mem"),
    "Alpha": ("syn_exc", "syn_inh", "mem"),
    "SLSTM": ("syn", "mem"),
}


class SnnTorchCell(ForeignCell):
    """A layer of snnTorch, or one of ours for snnTorch, whose resting threshold no time constant moves."""

    def __init__(self, layer: Any, before: Iterable[nn.Module], input_shape: tuple[int, ...]) -> None:
        self.ours = isinstance(layer, views.LIF)
        self.spike_is_state = not getattr(layer, "reset_delay", True)
        names = layer.states[1:] if self.ours else VARIABLES[type(layer).__name__]
        self.state = state_class(*names, *(["spk"] if self.spike_is_state else []))
        gradient = layer.reset_gradient if self.ours else self.spike_is_state
        self.reset_gradient = None if layer.reset_mechanism == "none" else gradient
        before, recurrent = list(before), getattr(layer, "recurrent", None)
        if hasattr(layer, "lstm_cell"):
            weights, scaled = ["lstm_cell.weight_hh"], [ScaledParameter("layer.lstm_cell.weight_ih", "depth")]
        else:
            own = getattr(recurrent, "_parameters", {})
            weights, scaled = [f"recurrent.{name}" for name in ("weight", "V") if name in own], weight_before(before)
        decays = [f"layer.{name}" for name in ("alpha", "beta") if hasattr(layer, name)]
        decays = ["layer.alpha", "beta"] if type(layer).__name__ == "Alpha" else decays
        scaled += [ScaledParameter(name, "time", through="share") for name in decays]
        scaled += [ScaledParameter(f"layer.{name}", "time") for name in weights]
        if "thr" in names:
            scaled.append(ScaledParameter("layer.adaptation", "time"))
            scaled.append(ScaledParameter("layer.tau_theta", "time", through="decay"))
        super().__init__(layer, before, input_shape, scaled)

    @property
    def beta(self) -> Tensor:
        """The beta of an Alpha; set to its alpha or more it stays just below."""
        return self.layer.beta

    @beta.setter
    def beta(self, value: Tensor) -> None:
        set_value(self.layer, "beta", torch.minimum(value, 0.999 * self.layer.alpha).detach())

    def thresholds(self) -> Thresholds | None:
        """The (resting) threshold, and the adaptation; None where the threshold is not positive."""
        names = ("threshold", "adaptation") if "thr" in self.state._fields else ("threshold",)
        usable = not self.integrator and bool((self.layer.threshold > 0).all())
        return Thresholds(self.layer, names) if usable else None

    def membrane(self) -> Membrane | None:
        """Its mem, as it was before the reset of the next step."""
        spike = self._settings().get("spike_grad", self.layer.spike_grad)
        factor = self.layer.graded_spikes_factor
        return None if self.integrator else Membrane("mem", self._threshold_in, lambda v: spike(v) * factor)

    def _threshold_in(self, state: State) -> Tensor:
        return state.thr if "thr" in state._fields else self.layer.threshold

    def _settings(self) -> dict[str, Any]:
        # the layer's surrogate, with spikes in the dtype of the membrane
        spike: Callable[[Tensor], Tensor] = self.layer.spike_grad
        return {} if isinstance(spike, nn.Module) else {"spike_grad": lambda v: spike(v).to(v.dtype)}

    def start(self, current: Tensor) -> State:
        """All zero, but the threshold of our ALIF at its resting value."""
        if self.ours:
            return self.state(*self.layer.rest(current)[1:])
        shape = (len(current), self.layer.hidden_size) if hasattr(self.layer, "hidden_size") else current.shape
        return self.state(*(current.new_zeros(shape) for _ in self.state._fields))

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        values = state._asdict() | {"_at_rest": False}  # the second is of our own layers
        if "spk" in self.layer._buffers:  # the recurrent ones read it
            values["spk"] = self.spikes(state) if self.integrator else z
        with borrowed(self.layer, **self._settings(), **values, init_hidden=True, output=False):
            spk = self.layer.forward(current)  # not a call of the layer: hooks of its user must not see this step
            return self.state(*(spk if name == "spk" else getattr(self.layer, name) for name in self.state._fields))

    def emitted(self, state: State) -> Tensor:
        return state.mem if self.integrator else self.spikes(state)

    def spikes(self, state: State) -> Tensor:
        """The spikes of a state, by the layer's own function."""
        layer = self.layer
        if self.spike_is_state:
            return state.spk
        if self.ours:
            return layer.emit(state.mem - self._threshold_in(state))
        with borrowed(layer, **self._settings()):
            return layer.fire_inhibition(len(state.mem), state.mem) if layer.inhibition else layer.fire(state.mem)


def snntorch_cell(
    layer: Any, before: Iterable[nn.Module], input_shape: tuple[int, ...], *, last: bool = False
) -> SnnTorchCell:
    """The cell of a layer of snnTorch; of a last one without reset its membrane is what it sends.

    Raises:
        TypeError: if it cannot be wrapped; the message says why.
    """
    kind = type(layer)
    name = kind.__name__
    if kind in (views.LIF, views.ALIFPlus, views.ALIFPlusMinus):
        return SnnTorchCell(layer, before, input_shape)
    if kind.__module__.partition(".")[0] != "snntorch" or name not in VARIABLES:
        raise TypeError(
            f"snnTorch's {name} cannot be wrapped: only {', '.join(VARIABLES)} themselves are. A subclass may step otherwise, and "
            "a layer that computes a whole sequence at once has no state per step."
        )
    if getattr(layer.spike_grad, "__qualname__", "").startswith("triangular."):
        warnings.warn(
            f"{name}: the derivative of snnTorch's triangular surrogate is +1 below the threshold and -1 above it.",
            ForeignNeuronWarning,
            stacklevel=4,
        )
    cell = SnnTorchCell(layer, before, input_shape)
    spikes_alone = layer.init_hidden and not layer.output
    if last and name in ("Leaky", "Synaptic") and layer.reset_mechanism == "none" and not spikes_alone:
        cell.integrator = True
    return cell
