"""norse's neurons as our cells.

Their voltage is reset in the step that fires, so the spike is no function of what is left of it: it stays in the state.
Time constants are rates in 1/s, and one step of ``dt`` seconds retains the share 1 - dt tau_inv. They lie in
NamedTuples that norse neither registers nor saves; a cell adds those that it moves to its own state_dict.
"""

import copy
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from neurolsc.interop.foreign import ForeignCell, ForeignNeuronWarning, borrowed, state_class, weight_before
from neurolsc.neurons.cell import Membrane, ScaledParameter, State, Thresholds

WRAPPED = frozenset(
    f"{kind}{recurrent}{cell}"
    for kind in ("LIF", "LIFBox", "LSNN", "IAF", "LI", "LIBox")
    for recurrent in ("", "Recurrent")
    for cell in ("", "Cell")
)
# norse's rates, and the name of the decay that belongs to each
RATES = {"tau_mem_inv": "decay_mem", "tau_syn_inv": "decay_syn", "tau_adapt_inv": "decay_adapt"}


class NeuronParameter:
    """A value of a layer's neuron parameters p; of a rate tau_inv the share 1 - dt tau_inv that a step retains."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, cell: Any, owner: type | None = None) -> Any:
        if cell is None:
            return self
        value = torch.as_tensor(getattr(cell.layer.p, self.name))
        return 1 - cell.layer.dt * value if self.name in RATES else value

    def __set__(self, cell: Any, value: Tensor) -> None:
        _set(cell.layer, self.name, (1 - value) / cell.layer.dt if self.name in RATES else value)


def _set(layer: Any, name: str, value: Tensor) -> None:
    before = getattr(layer.p, name)
    if isinstance(before, nn.Parameter):
        with torch.no_grad():
            before.copy_(value)
    else:  # a new tensor: norse's own defaults are shared by all layers of the process
        layer.p = layer.p._replace(**{name: value.detach().clone()})


class NorseCell(ForeignCell):
    """A layer of norse: a cell, or a layer with time, which is given one step at a time."""

    decay_mem = NeuronParameter("tau_mem_inv")
    decay_syn = NeuronParameter("tau_syn_inv")
    decay_adapt = NeuronParameter("tau_adapt_inv")
    v_th = NeuronParameter("v_th")
    beta = NeuronParameter("beta")

    def __init__(self, layer: Any, before: Iterable[nn.Module], input_shape: tuple[int, ...]) -> None:
        name, p = type(layer).__name__, layer.p
        self.has_time = not name.endswith("Cell")
        self.integrator = name.startswith("LI") and not name.startswith("LIF")
        detached = name.removesuffix("Cell") in ("LIFRecurrent", "LSNNRecurrent")
        self.reset_gradient = None if self.integrator else not detached
        present = [rate for rate in RATES if getattr(p, rate, None) is not None]
        frozen = [r for r in present if isinstance(v := getattr(p, r), nn.Parameter) and not v.requires_grad]
        self.rates = [rate for rate in present if rate not in frozen]
        self.threshold_names = tuple(n for n in ("v_th", "beta") if getattr(p, n, None) is not None)
        if not self.threshold_names or not bool((torch.as_tensor(p.v_th) > 0).all()):
            self.threshold_names = ()  # none, or a factor does not raise it
        start = _start(layer, torch.zeros(1, 1, 1))
        self.state_of_layer = type(start)  # a NamedTuple, with z in recurrent layers
        self.sent = "v" if self.integrator else "z" if "z" in start._fields else "sent"
        self.state = state_class(*dict.fromkeys((*start._fields, self.sent)))
        before = list(before)
        own = [ScaledParameter("layer.input_weights", "depth")] if hasattr(layer, "input_weights") else []
        below = own or weight_before(before)
        if name.startswith("LSNN"):  # an input reaches only the current within a step: no radius follows its weights
            self.input_matrices, below = tuple(each.parameter for each in below), []
        recurrent = [ScaledParameter("layer.recurrent_weights", "time")] if hasattr(layer, "recurrent_weights") else []
        decays = (ScaledParameter(RATES[rate], "time", through="share") for rate in self.rates)
        super().__init__(layer, before, input_shape, [*below, *recurrent, *decays])

    def thresholds(self) -> Thresholds | None:
        """v_th, and beta of an LSNN; None where it is not positive."""
        return Thresholds(self, self.threshold_names) if self.threshold_names else None

    def membrane(self) -> Membrane | None:
        """Its v, which a spike has reset already; the threshold is v_th, or b of an LSNN."""
        from norse.torch.functional.threshold import threshold

        def theta(state: State) -> Tensor:
            return state.b if "b" in state._fields else torch.as_tensor(self.layer.p.v_th)

        def spike(distance: Tensor) -> Tensor:
            return threshold(distance, self.layer.p.method, torch.as_tensor(self.layer.p.alpha))  # type: ignore[arg-type]

        return Membrane("v", theta, spike) if self.threshold_names else None

    def start(self, current: Tensor) -> State:
        """The layer's own start, every variable (B, ...) in the dtype of the parameters."""
        hidden = getattr(self.layer, "hidden_size", None)
        shape = current.shape if hidden is None else (len(current), int(hidden))
        leaves = [*_start(self.layer, current[None] if self.has_time else current), torch.zeros(())]
        like = self.dtype_and_device
        return self.state(
            *(leaf.detach().to(**like).expand(shape).clone() for leaf in leaves[: len(self.state._fields)])
        )

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        state = state if self.integrator else state._replace(**{self.sent: z})  # so that recurrence is seen apart
        before = self.state_of_layer(*state[: len(self.state_of_layer._fields)])
        with borrowed(self.layer, record_states=False):
            sent, after = self.layer.forward(current[None] if self.has_time else current, before)
        leaves = [*after, sent[0] if self.has_time else sent]
        return self.state(*leaves[: len(state)])

    def emitted(self, state: State) -> Tensor:
        return getattr(state, self.sent)

    def get_extra_state(self) -> Tensor:
        """The rates and thresholds that may be moved, stacked."""
        values = [torch.as_tensor(getattr(self.layer.p, n)).detach() for n in (*self.rates, *self.threshold_names)]
        return torch.stack(torch.broadcast_tensors(*values)) if values else torch.empty(0)

    def set_extra_state(self, state: Tensor) -> None:
        for name, value in zip((*self.rates, *self.threshold_names), state, strict=True):
            _set(self.layer, name, value)


def _start(layer: Any, current: Tensor) -> Any:
    with torch.no_grad(), borrowed(layer, p=copy.deepcopy(layer.p)):  # some starts mark shared parameters as learnable
        return layer.state_fallback(current)


def norse_cell(layer: Any, before: Iterable[nn.Module], input_shape: tuple[int, ...]) -> NorseCell:
    """The cell of a layer of norse.

    Raises:
        TypeError: if it cannot be wrapped; the message says why.
    """
    name = type(layer).__name__
    if type(layer).__module__.partition(".")[0] != "norse" or name not in WRAPPED:
        why = "it takes its weights with every call" if name == "LIFCorrelation" else "its step is not known"
        raise TypeError(f"norse's {name} cannot be wrapped: {why}.")
    if "adjoint" in getattr(getattr(layer, "activation", None), "__name__", ""):
        raise TypeError(f"norse's {name} with adjoint cannot be wrapped: its backward is not the step's derivative.")
    rate = torch.as_tensor(getattr(layer.p, "tau_adapt_inv", 1.0)).max().item()
    if rate * layer.dt < 1e-5:
        warnings.warn(
            f"{name}: at tau_adapt_inv = {rate:g} and dt = {layer.dt:g} the adaptation never decays (norse's default is 800 s), "
            "which holds the radius through time at 1.",
            ForeignNeuronWarning,
            stacklevel=4,
        )
    return NorseCell(layer, before, input_shape)
