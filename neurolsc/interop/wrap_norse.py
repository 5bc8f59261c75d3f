"""norse's neurons as our cells.

Their voltage is reset in the step that fires, so the spike is no function of what is left of it: it
stays in the state. Time constants are rates in 1/s, and one step of ``dt`` seconds keeps the share
1 - dt tau_inv. They lie in NamedTuples that norse neither registers nor saves; a cell adds those
that it moves to its own state_dict.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from neurolsc.interop.foreign import ForeignCell, ForeignNeuronWarning, borrowed, state_type
from neurolsc.neurons.cell import Membrane, ScaledParameter, State, Thresholds

WRAPPED = frozenset(
    f"{kind}{recurrent}{cell}"
    for kind in ("LIF", "LIFBox", "LSNN", "IAF", "LI", "LIBox")
    for recurrent in ("", "Recurrent")
    for cell in ("", "Cell")
)

RATES = {
    "tau_mem_inv": "decay_mem",
    "tau_syn_inv": "decay_syn",
    "tau_adapt_inv": "decay_adapt",
}
"""norse's rates, and the name of the decay that belongs to each."""

DETACHED_RESET = frozenset(f"{kind}Recurrent{cell}" for kind in ("LIF", "LSNN") for cell in ("", "Cell"))


class Decay:
    """A rate tau_inv of a layer as the share 1 - dt tau_inv that a step keeps."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.rate = next(rate for rate, decay in RATES.items() if decay == name)

    def __get__(self, cell: Any, owner: type) -> Any:
        if cell is None:
            return self
        return 1 - cell.layer.dt * torch.as_tensor(getattr(cell.layer.p, self.rate, None))

    def __set__(self, cell: Any, value: Tensor) -> None:
        _set(cell.layer, self.rate, (1 - value) / cell.layer.dt)


class InTuple:
    """A neuron parameter of a layer under its own name, to read and to set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, cell: Any, owner: type) -> Any:
        return self if cell is None else torch.as_tensor(getattr(cell.layer.p, self.name, None))

    def __set__(self, cell: Any, value: Tensor) -> None:
        _set(cell.layer, self.name, value)


class NorseCell(ForeignCell):
    """A layer of norse: a cell, or a layer with time, which is given one step at a time."""

    decay_mem = Decay()
    decay_syn = Decay()
    decay_adapt = Decay()
    v_th = InTuple()
    beta = InTuple()

    def __init__(self, layer: nn.Module, before: Iterable[nn.Module], input_shape: tuple[int, ...]) -> None:
        name = type(layer).__name__
        self.has_time = not name.endswith("Cell")
        self.integrator = name.startswith("LI") and not name.startswith("LIF")
        self.reset_gradient = None if self.integrator else name not in DETACHED_RESET
        super().__init__(layer, before, input_shape)
        if name.startswith("LSNN"):  # an input reaches only the current within a step: no radius follows its weights
            own = hasattr(layer, "input_weights")
            self.input_matrices = ("layer.input_weights",) if own else tuple(a.parameter for a in self.weight_before())

    def find_answers(self) -> Iterable[ScaledParameter]:
        """The decays and recurrent weights for the time, the input weights for the depth."""
        # in an LSNN an input reaches only the current within a step: no weight sets a radius
        # through depth
        lsnn = type(self.layer).__name__.startswith("LSNN")
        if hasattr(self.layer, "input_weights"):
            yield from () if lsnn else (ScaledParameter("layer.input_weights", "depth"),)
        else:
            yield from () if lsnn else self.weight_before()
        if hasattr(self.layer, "recurrent_weights"):
            yield ScaledParameter("layer.recurrent_weights", "time")
        for name in self._rates():
            yield ScaledParameter(RATES[name], "time", through="share")

    def _rates(self) -> list[str]:
        """The rates that this layer has and that are not frozen."""
        found = {name: getattr(self.layer.p, name, None) for name in RATES}
        frozen = {name for name, rate in found.items() if isinstance(rate, nn.Parameter) and not rate.requires_grad}
        return [name for name, rate in found.items() if rate is not None and name not in frozen]

    @property
    def recurrent_synapses(self) -> int | None:  # type: ignore[override]
        """All neurons, or all others where the layer has no autapses; 0 without recurrence."""
        if not self.dense_input(weights=int(hasattr(self.layer, "input_weights"))):
            return None
        if not hasattr(self.layer, "recurrent_weights"):
            return 0
        return self.n_hidden - (not getattr(self.layer, "autapses", True))

    def thresholds(self) -> Thresholds | None:
        """v_th, and beta of an LSNN; None where it is not positive, or only cuts spikes off."""
        names = self._threshold_names()
        return Thresholds(self, names) if names else None

    def _threshold_names(self) -> tuple[str, ...]:
        v_th = getattr(self.layer.p, "v_th", None)
        if v_th is None or not bool((torch.as_tensor(v_th) > 0).all()):
            return ()
        return ("v_th",) if getattr(self.layer.p, "beta", None) is None else ("v_th", "beta")

    def membrane(self) -> Membrane | None:
        """Its v, which a spike has reset already; the threshold is v_th, or b of an LSNN."""
        return Membrane("v", self._threshold_in, self._spike) if self._threshold_names() else None

    def _threshold_in(self, state: State) -> Tensor:
        return state.b if "b" in self.variables else torch.as_tensor(getattr(self.layer.p, "v_th", None))

    def _spike(self, distance: Tensor) -> Tensor:
        from norse.torch.functional.threshold import threshold

        method, alpha = (getattr(self.layer.p, name, None) for name in ("method", "alpha"))
        return threshold(distance, method, torch.as_tensor(alpha))  # type: ignore[arg-type]

    def first_step(self, current: Tensor) -> State:
        with _unmarked(self.layer), borrowed(self.layer, **self._settings()):
            z, after = self.layer.forward(current[None] if self.has_time else current, None)
        z = z[0] if self.has_time else z
        self.state_of_layer = type(after)  # a NamedTuple, with z in recurrent layers
        self.sent = "v" if self.integrator else "z" if "z" in after._fields else "sent"
        own = self.sent in after._fields
        self.variables = after._fields if own else (*after._fields, self.sent)
        return state_type(*self.variables)(*(leaf.detach().expand_as(z) for leaf in after), *([] if own else [z]))

    def initial_state(self, batch: int) -> State:
        """The layer's own start, every variable (B, ...) in the dtype of the parameters."""
        like = self.dtype_and_device
        with torch.no_grad(), _unmarked(self.layer):
            current = torch.zeros(batch, *self.current_shape, **like)
            start = [*self.layer.state_fallback(current[None] if self.has_time else current)]  # type: ignore[operator]
        if len(start) < len(self.variables):
            start.append(torch.zeros(()))
        leaves = (leaf.detach().to(**like).expand(batch, *s) for leaf, s in zip(start, self.leaf_shapes, strict=True))
        return state_type(*self.variables)(*(leaf.clone() for leaf in leaves))

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        state = state if self.integrator else state._replace(**{self.sent: z})  # so that recurrence is seen apart
        before = self.state_of_layer(*state[: len(self.state_of_layer._fields)])
        with borrowed(self.layer, **self._settings()):
            sent, after = self.layer.forward(current[None] if self.has_time else current, before)
        sent = sent[0] if self.has_time else sent
        return state_type(*self.variables)(*after, *([sent] if len(after) < len(self.variables) else []))

    def _settings(self) -> dict[str, object]:
        return {"record_states": False} if hasattr(self.layer, "record_states") else {}

    def emitted(self, state: State) -> Tensor:
        return getattr(state, self.sent)

    # what may be moved in a state_dict, as one tensor
    def _moved(self) -> list[str]:
        return [*self._rates(), *self._threshold_names()]

    def get_extra_state(self) -> Tensor:
        """The rates and thresholds that may be moved, stacked (number of them, ...)."""
        values = [torch.as_tensor(getattr(self.layer.p, name, None)).detach() for name in self._moved()]
        return torch.stack(torch.broadcast_tensors(*values)) if values else torch.empty(0)

    def set_extra_state(self, state: Tensor) -> None:
        """Set them to those of a state_dict."""
        for name, value in zip(self._moved(), state, strict=True):
            _set(self.layer, name, value.clone())


def norse_cell(layer: nn.Module, before: Iterable[nn.Module], input_shape: tuple[int, ...]) -> NorseCell:
    """The cell of a layer of norse.

    Raises:
        TypeError: if it cannot be wrapped; the message says why.
    """
    kind = type(layer)
    if kind.__module__.partition(".")[0] != "norse" or kind.__name__ not in WRAPPED:
        why = "it takes its weights with every call" if kind.__name__ == "LIFCorrelation" else "its step is not known"
        raise TypeError(f"norse's {kind.__name__} cannot be wrapped: {why}.")
    if "adjoint" in getattr(getattr(layer, "activation", None), "__name__", ""):
        raise TypeError(
            f"norse's {kind.__name__} with adjoint cannot be wrapped: its backward is not the step's derivative."
        )
    rate = getattr(layer.p, "tau_adapt_inv", None)
    if rate is not None and float(torch.as_tensor(rate).max()) * layer.dt < 1e-5:  # type: ignore[operator]
        warnings.warn(
            f"{kind.__name__}: at tau_adapt_inv = {float(torch.as_tensor(rate).max()):g} and dt = {layer.dt:g} the adaptation "
            "never decays (norse's default is 800 s), which holds the radius through time at 1.",
            ForeignNeuronWarning,
            stacklevel=4,
        )
    return NorseCell(layer, before, input_shape)


@contextmanager
def _unmarked(layer: nn.Module) -> Iterator[None]:
    """Keep requires_grad of neuron parameters, which some initial states set on shared ones."""
    parameters: Any = layer.p
    flags = {t: t.requires_grad for t in parameters if isinstance(t, Tensor)}
    try:
        yield
    finally:
        for tensor, flag in flags.items():
            tensor.requires_grad_(flag)


def _set(layer: nn.Module, name: str, rate: Tensor) -> None:
    before = getattr(layer.p, name, None)
    if isinstance(before, nn.Parameter):
        with torch.no_grad():
            before.copy_(rate)
    elif not torch.equal(torch.as_tensor(before).expand_as(rate), rate):
        # a new tensor: norse's own defaults are shared by all layers of the process
        layer.p = layer.p._replace(**{name: rate})  # type: ignore[assignment,operator,union-attr]
