"""spikingjelly's neurons as our cells.

The v that spikingjelly stores is the voltage after the reset. Here the state is the voltage before it, so that the
spike s = H(v - v_threshold) is no state of its own, as in snnTorch; the reset acts at the start of the next step:

- ``v_reset=None``: v - v_threshold s; else (1 - s) v + s v_reset;
- then, with rest at v_reset or 0, v + (x - (v - rest)) / tau, or with ``decay_input=False`` v - (v - rest) / tau + x;
  an IFNode has v + x.

A neuron of spikingjelly fires at its threshold, too, while ours and snnTorch's fire only above it. ``step_mode``
changes nothing: a cell takes one step, and modules in multi-step mode before it read sequences of one step. Nothing
here imports spikingjelly.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from neurolsc.interop.at_once import last_states, prepared
from neurolsc.interop.wrapped import (
    OWN_NEURON,
    UnsupportedLayerError,
    WrappedCell,
    is_dropout,
    state_class,
    warn_of,
    weight_before,
)
from neurolsc.neurons.cell import AtOnce, Membrane, ResetSwitch, ScaledParameter, State, Thresholds
from neurolsc.neurons.derivatives import Derivatives
from neurolsc.neurons.neuronwise import NeuronwiseDerivatives

NODES = ("LIFNode", "ParametricLIFNode", "IFNode")
VoltageState = state_class("v")


class Columns:
    """An attribute of a cell: the columns of its container's weight that read the input, or those that read the output.

    Args:
        of_output: True for the last columns, which read the output (n, n); False for those of the input (n, n_in).
    """

    def __init__(self, *, of_output: bool) -> None:
        self.of_output = of_output

    def __get__(self, cell: Any, owner: type | None = None) -> Any:
        if cell is None:  # read from the class
            return self
        weight = cell.layer.rc.weight
        neurons = cell.layer.sub_module_out_features
        if self.of_output:
            return weight[:, -neurons:]
        return weight[:, :-neurons]

    def __set__(self, cell: Any, value: Tensor) -> None:
        with torch.no_grad():
            self.__get__(cell).copy_(value)  # a view, which writes into the weight


class SpikingJellyCell(WrappedCell):
    """A neuron of spikingjelly, or a LinearRecurrentContainer around one, as a cell.

    Args:
        layer: the neuron or the container.
        before: as in :class:`~neurolsc.interop.wrapped.WrappedCell`.
        input_shape: as there.

    Attributes:
        recurrent: True for a container, whose Linear ``rc`` reads the input and the output of the step before.
        w_in: input weights of a container (n, n_in).
        w_rec: recurrent weights of a container (n, n).

    Raises:
        TypeError: if it cannot be wrapped.
        ValueError: if its threshold is not above the voltage to which it is reset.
    """

    w_in = Columns(of_output=False)
    w_rec = Columns(of_output=True)

    def __init__(self, layer: Any, before: list[nn.Module], input_shape: tuple[int, ...]) -> None:
        self.recurrent = hasattr(layer, "rc")
        node = layer.sub_module if self.recurrent else layer
        kind = type(node).__name__
        of_user = not type(node).__module__.startswith("spikingjelly.activation_based.")
        if kind not in NODES or of_user:
            hint = f" {OWN_NEURON}" if of_user else ""
            if any(base.__name__ == "StatefulEncoder" for base in type(node).__mro__):
                hint = " Call an encoder outside of the model, and give wrap what it sends."
            raise UnsupportedLayerError(
                f"spikingjelly's {kind} cannot be wrapped: only {', '.join(NODES)} are, alone or in a "
                f"LinearRecurrentContainer.{hint}"
            )
        if node.v_threshold is None:
            raise TypeError(f"{kind}: v_threshold must be a number or a tensor, got None.")
        if not (_double(node.v_threshold) > _rest(node)).all():
            raise ValueError(f"{kind}: v_threshold must be above rest, got {node.v_threshold}, v_reset={node.v_reset}.")
        self.reset_gradient = not node.detach_reset
        scaled = weight_before(before)
        if self.recurrent:  # a container has input weights of its own
            scaled = [ScaledParameter("w_in", "depth"), ScaledParameter("w_rec", "time")]
        if kind != "IFNode":
            scaled.append(ScaledParameter("decay", "time", through="decay_factor"))
        prefix = "layer."
        if self.recurrent:
            prefix = "layer.sub_module."
        decay = "w" if hasattr(node, "w") else "tau"  # w: of a ParametricLIFNode
        self.stored_in = (("decay", prefix + decay), ("threshold", f"{prefix}v_threshold"))
        super().__init__(layer, before, input_shape, scaled)

    @property
    def node(self) -> Any:
        """The neuron itself, in a container or alone."""
        if self.recurrent:
            return self.layer.sub_module
        return self.layer

    def pretrained(self) -> Iterable[nn.Parameter]:
        yield from super().pretrained()
        if self.recurrent:  # w_in and w_rec are no parameters, but parts of the container's weight
            yield self.layer.rc.weight

    def closed_form(self) -> Derivatives | None:
        """Return the derivatives neuron by neuron; None in a container, in which neurons read each other."""
        if self.recurrent:
            return None
        return NeuronwiseDerivatives(self)

    def thresholds(self) -> Thresholds:
        return Thresholds(self, ("threshold",))

    def membrane(self) -> Membrane:
        return Membrane("v", self._threshold_in, self.node.surrogate_function)

    def _threshold_in(self, state: State) -> Tensor:
        """Return the threshold in the dtype of a state; it is the same in all states."""
        return torch.as_tensor(self.node.v_threshold, dtype=state.v.dtype, device=state.v.device)

    def reset_switch(self) -> ResetSwitch | None:
        if self.node.detach_reset:
            return None
        return ResetSwitch(self.node, "detach_reset", True, "detach the reset (detach_reset=True)")

    # tau and v_threshold are numbers, which the layer neither registers nor saves, unless its user made them parameters
    @property
    def threshold(self) -> Tensor:
        """The distance from rest to the threshold, in float64; setting it leaves rest as it is."""
        return _double(self.node.v_threshold) - _rest(self.node)

    @threshold.setter
    def threshold(self, value: Tensor) -> None:
        _set_number(self.node, "v_threshold", value + _rest(self.node))

    @property
    def decay(self) -> Tensor:
        """The decay factor 1 - 1/tau of a step; the gain of the input changes with it."""
        if hasattr(self.node, "w"):  # a ParametricLIFNode has 1/tau = sigmoid(w)
            return torch.sigmoid(-self.node.w)
        return 1 - 1 / _double(getattr(self.node, "tau", torch.inf))  # an IFNode does not decay

    @decay.setter
    def decay(self, value: Tensor) -> None:
        if hasattr(self.node, "w"):
            with torch.no_grad():
                self.node.w.copy_(-torch.logit(value))
        elif hasattr(self.node, "tau"):
            _set_number(self.node, "tau", 1 / (1 - value))

    def start(self, current: Tensor) -> State:
        # the neurons of a container are not as many as its inputs
        shape = (*current.shape[:-1], getattr(self.layer, "sub_module_out_features", current.shape[-1]))
        return VoltageState(current.new_zeros(shape) + _rest(self.node).to(current))

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        """Return the state after one step: the reset by the last spikes z, then the charge by the current (B, ...)."""
        if self.recurrent:
            current = self.layer.rc(torch.cat((current, z), -1))
        return VoltageState(self._charged(self._reset(state.v, z), current))

    def _reset(self, v: Tensor, z: Tensor) -> Tensor:
        """Return the voltages after the reset by spikes z."""
        node = self.node
        s = z.detach() if node.detach_reset else z
        if node.v_reset is None:
            return v - s * node.v_threshold
        return (1 - s) * v + s * node.v_reset

    def _charged(self, v: Tensor, current: Tensor) -> Tensor:
        """Return the voltages after the current of a step, before its spikes.

        The operations come in the order of the library, so that results are equal to the bit.
        """
        node = self.node
        if not hasattr(node, "decay_input"):  # an IFNode
            return v + current
        rest = 0.0 if node.v_reset is None else node.v_reset
        change = rest - v
        if node.decay_input:
            change = current - (v - rest)
        if hasattr(node, "w"):
            change = change * node.w.sigmoid()
        else:
            change = change / node.tau
        if node.decay_input:
            return v + change
        return v + change + current

    def emitted(self, state: State) -> Tensor:
        return self.node.surrogate_function(state.v - self.node.v_threshold)

    def run_at_once(self, x: Tensor, state: State, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
        """Run all steps by a kernel, as :meth:`neurolsc.Cell.run` does; None if the layer needs plain steps."""
        if self.recurrent:
            return None
        kernel = prepared(self, x, state, late)
        if kernel is None:
            return None
        # The kernel's voltages are those after the reset; the state of a cell is the voltage before it.
        start = self._reset(state.v, self.emitted(state))
        z, (after_reset,), _ = kernel.layer.run(kernel.currents, kernel.steps, [start], kernel.layer.settings())
        uncharged = torch.cat([start[None], after_reset[:-1]])  # what each step starts from (T, B, ...)
        if lengths is None:  # the last step alone has to be charged
            last = self._charged(uncharged[-1], kernel.currents[-1])
        else:
            charged = self._charged(uncharged, kernel.currents)
            last = last_states(charged, before=state.v, end=uncharged[-1], lengths=lengths)
        return z.flatten(2), VoltageState(last)

    def get_extra_state(self) -> Tensor:
        """Return decay and threshold, stacked along axis 0 in float64; a layer's own state_dict holds no numbers."""
        return torch.stack(torch.broadcast_tensors(self.decay.detach().double().cpu(), self.threshold.cpu()))

    def set_extra_state(self, state: Tensor) -> None:
        self.decay, self.threshold = state


def _rest(node: Any) -> Tensor:
    """Return the voltage at rest in float64: that to which a spike resets a neuron, or 0 if spikes subtract."""
    return _double(0.0 if node.v_reset is None else node.v_reset)


def _double(value: float | Tensor) -> Tensor:
    """Return a number, or a tensor or parameter that its user has put there, in float64 and without its gradient."""
    return torch.as_tensor(value, dtype=torch.float64).detach()


def _set_number(node: Any, name: str, value: Tensor) -> None:
    """Set a value of a neuron in the kind that it has: a parameter in place, a tensor by a new one, else a float."""
    before = getattr(node, name)
    if isinstance(before, nn.Parameter):
        with torch.no_grad():
            before.copy_(value)
    elif isinstance(before, Tensor):
        setattr(node, name, value.to(before).expand_as(before).clone())
    else:
        setattr(node, name, float(value))


class OneStep(nn.Sequential):
    """Makes a module in multi-step mode, which reads (T, B, ...), take single steps (B, ...)."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input[None])[0]


class EachStep(nn.Module):
    """A dropout of spikingjelly that draws a new mask in each step, where theirs keeps one for all steps."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.theirs = theirs
        if theirs.p:  # else it drops nothing
            warn_of(
                f"spikingjelly's {type(theirs).__name__} drops the same inputs in all steps of a sequence; in the wrapped "
                "network it draws them anew in each step. That matters in training alone."
            )

    def forward(self, x: Tensor) -> Tensor:
        if type(self.theirs).__name__ == "Dropout2d":
            drop = nn.functional.dropout2d
        else:
            drop = nn.functional.dropout
        return drop(x, self.theirs.p, self.theirs.training)


def step_of(module: Any) -> nn.Module:
    """Return a module between layers in a form that takes one step (B, ...).

    It is the module itself, unless that reads sequences (spikingjelly's multi-step mode) or is spikingjelly's dropout.
    """
    if is_dropout(module):
        return EachStep(module)
    # spikingjelly's Linear has a step mode, too, but reads any axes before the last
    parts = [m for m in module.modules() if hasattr(m, "supported_step_mode") and not isinstance(m, nn.Linear)]
    # a part without a mode of its own has the first that it supports
    multi = any(getattr(part, "_step_mode", part.supported_step_mode()[0]) == "m" for part in parts)
    if multi:
        return OneStep(module)
    return module
