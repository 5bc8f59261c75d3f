"""Layers of snnTorch, norse and spikingjelly whose steps the kernels know.

Each class has the ``forward`` that replaces its layer's own while a network runs: it takes and returns what the layer
does, writes the steps down, and runs them all at once when a value is needed. Importing this file imports no library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from neurolsc.interop.fused_base import (
    FusedLayer,
    on_device_of_currents,
    place_of,
    shown,
    too_wide,
)
from neurolsc.interop.lazy import CannotDeferError, LazyTensor, latest, now
from neurolsc.interop.wrapped import Accelerated, has_hooks, library_of, plain_class
from neurolsc.neurons.fast.kinds import (
    ALL,
    ATAN,
    BOX,
    FAST_SIGMOID,
    GIVEN,
    LEAK_OF_ALL,
    LEAK_OF_STATE,
    NO_LEAK,
    NONE,
    NOTHING,
    QUADRATIC,
    SIGMOID,
    SIGN,
    SUBTRACT,
    ZERO,
    Neuron,
    Slope,
)
from neurolsc.neurons.fast.scan import linear
from neurolsc.surrogate import in_two_methods

# ---- snnTorch


class FusedSnnTorch(FusedLayer):
    """snnTorch's Leaky, Synaptic and Alpha, and the recurrent RLeaky and RSynaptic.

    Attributes:
        resets: the kernel's number of a reset, by the name of the ``state_function`` that does it.
        names: names of the stored states of each class, in the order in which its forward takes and returns them.
        states: the names of this layer's states.
        recurrent: True if the layer reads its own spikes.
        kind: name of the class, without the R of a recurrent one.
        places: for each setting of the layer, the dict that holds it and its name there.
    """

    resets: ClassVar = {"_base_sub": SUBTRACT, "_base_zero": ZERO, "_base_int": NONE}
    names: ClassVar = {
        "Leaky": ("mem",), "Synaptic": ("syn", "mem"), "Alpha": ("syn_exc", "syn_inh", "mem"), "RLeaky": ("spk", "mem"),
        "RSynaptic": ("spk", "syn", "mem"),
    }  # fmt: skip

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        name = plain_class(layer).__name__
        self.states = self.names[name]
        self.recurrent = "spk" in self.states
        self.kind = name
        if self.recurrent:
            self.kind = name.removeprefix("R")
        first = 0 if self.recurrent else 1  # only recurrent layers store their spikes
        self.outputs = tuple(range(first, first + len(self.states)))
        # in the order in which `run` takes them apart
        names = ("beta", "threshold", "graded_spikes_factor", "state_function", "spike_grad", "alpha", "reset_delay")
        self.places = [place_of(layer, name) for name in names]
        if self.recurrent:
            recurrent = layer.recurrent
            weights = "V"  # of RecurrentOneToOne, one for each neuron
            if isinstance(recurrent, nn.Linear):
                weights = "weight"
            self.places += [place_of(recurrent, weights), place_of(recurrent, "bias")]

    @classmethod
    def refusal(cls, layer: Any) -> str | None:
        """Return why no kernel runs a layer of snnTorch; None if one does."""
        if layer.inhibition:
            return "inhibition lets its neurons depend on each other"
        if layer.state_quant:
            return "its states are quantized"
        function = getattr(layer.state_function, "__func__", None)
        kind = plain_class(layer)
        if function not in [getattr(kind, name) for name in cls.resets]:
            return "its state_function is another one"
        if layer._buffers.keys() & set(cls.names[kind.__name__]) != set(cls.names[kind.__name__]):
            return "its states are no buffers"
        if slope_of(layer.spike_grad) is None:
            return f"its surrogate {shown(layer.spike_grad)} has no known derivative"
        if kind.__name__ == "RSynaptic" and not layer.reset_delay:
            return "snnTorch's own step has no reset_delay=False"
        recurrent = getattr(layer, "recurrent", None)
        if recurrent is None:
            return None
        if type(recurrent).__name__ not in ("Linear", "RecurrentOneToOne") or has_hooks(recurrent):
            return (
                f"its recurrent {type(recurrent).__name__} is none of all neurons or of each with itself, or has a hook"
            )
        if "forward" in vars(recurrent):
            return "its recurrent connection has a method of its own"
        if isinstance(recurrent, nn.Linear):
            return too_wide(recurrent.weight)
        return None

    def forward(self, input_: Any, *passed: Any, **named: Any) -> Any:
        """Write down a step from the states that the layer stores or that are passed; return lazy tensors.

        Like snnTorch's own forward, it stores the new states, and returns the spikes, alone or followed by the states.
        """
        layer = self.layer
        buffers = layer._buffers
        if passed or named:
            self._store(passed, named)
        sent = self.record(input_, [buffers[name] for name in self.states], self.settings())
        for name, output in zip(self.states, self.outputs, strict=True):
            buffers[name] = sent[output]
        if layer.init_hidden and not layer.output:  # snnTorch then returns the spikes alone
            return sent[0]
        return tuple(sent)

    def settings(self) -> tuple[Any, ...]:
        # None for a setting that the layer does not have, such as alpha of a Leaky
        return tuple([place.get(name) for place, name in self.places])

    def _store(self, passed: Sequence[Any], named: dict[str, Any]) -> None:
        """Store states that were passed to forward by position or name; TypeError if snnTorch would refuse them."""
        layer = self.layer
        given = dict(zip(self.states, passed, strict=False)) | named
        if len(passed) > len(self.states) or not given.keys() <= set(self.states):
            raise TypeError(f"the states are passed as layer(input_, {', '.join(self.states)}).")
        for name, state in given.items():
            if state is None:
                continue
            if layer.init_hidden:
                raise TypeError(f"`{name}` should not be passed as an argument while `init_hidden=True`")
            layer._buffers[name] = state

    def run(self, drive: Tensor, steps: int, start: Sequence[Any], settings: Any) -> Any:
        """Run steps of snnTorch's neurons at once, as :meth:`FusedLayer.run` says; settings are ordered as `places`."""
        beta, threshold, factor, function, spike, alpha, delayed, *connection = settings
        delayed = delayed is not False  # Alpha has no such setting
        shape = drive.shape[1:]
        # A state of another shape is at rest: before the first input, snnTorch does not know the shape.
        states = [state if state.shape == shape else drive.new_zeros(shape) for state in start]
        reset = self.resets[function.__name__]
        recurrent: list[Any] = []
        if self.recurrent:
            recurrent = [states.pop(0), *connection]  # the spikes are no state of the kernel
            if reset == ZERO and self.kind == "Leaky":
                reset = ALL  # a reset of RLeaky also sets the input of the step to zero, one of Leaky does not
        beta = beta.clamp(0, 1)
        slope = slope_of(spike)
        assert slope is not None  # else the layer was refused
        # Without a delay a spike resets the voltage in its own step, and the voltage before the reset must be saved.
        if self.kind == "Leaky":
            neuron = Neuron(
                "leaky", states=1, voltage=0, threshold=1, flags=(reset, delayed), saves_voltage=not delayed
            )
            params = [beta, threshold, factor]
        elif self.kind == "Synaptic":
            neuron = Neuron(
                "synaptic", states=2, voltage=1, threshold=2, flags=(reset, delayed), saves_voltage=not delayed
            )
            params = [alpha.clamp(0, 1), beta, threshold, factor]
        else:
            alpha = alpha.clamp(0, 1)
            # snnTorch's tau_alpha
            scale = torch.log(alpha) / (torch.log(beta) - torch.log(alpha)) + 1
            neuron = Neuron("alpha_function", states=3, voltage=2, threshold=2, flags=(reset,), saves_voltage=False)
            params = [alpha, beta, threshold, factor, scale]
        return self.scanned(neuron, drive, steps, states, params, slope, *recurrent)

    def sent_dtype(self, dtype: torch.dtype, settings: Any) -> torch.dtype:
        """Return the dtype of the spikes: that of the currents with a surrogate of ours, else snnTorch's own."""
        factor = settings[2]
        spike = settings[4]
        if isinstance(spike, nn.Module):  # ours, which keeps the dtype
            return dtype
        # snnTorch's surrogates return float32, which its layer multiplies by the factor
        return torch.result_type(torch.empty(1, dtype=torch.float32), factor)


# ---- norse


class FusedNorse(FusedLayer):
    """norse's LIF, LSNN (both also recurrent), LIFBox and LI, as cells and as layers with time, and LILinearCell.

    Attributes:
        kind: name of the class, without Recurrent, Linear and Cell.
        has_time: True if the layer reads a sequence (T, B, ...), not one step.
        recurrent: True if the layer reads its own spikes.
        state_class: the NamedTuple of its state; None before the first step.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        name = plain_class(layer).__name__
        without_cell = name.removesuffix("Cell").removesuffix("Linear")
        self.has_time = without_cell == name
        self.recurrent = without_cell.endswith("Recurrent")
        self.kind = without_cell.removesuffix("Recurrent")
        states = {"LIFBox": 1, "LSNN": 3}.get(self.kind, 2)
        # output 0 is the spikes, 1 and above are states; only recurrent layers have spikes in their state
        first = 0 if self.recurrent else 1
        self.outputs = tuple(range(first, 1 + states))
        self.state_class: Any = None

    @classmethod
    def refusal(cls, layer: Any) -> str | None:
        """Return why no kernel runs a layer of norse; None if one does."""
        steps = {
            "LIF": "lif_feed_forward_step", "LIFRecurrent": "lif_step", "LIFBox": "lif_box_feed_forward_step",
            "LI": "li_feed_forward_step", "LSNN": "lsnn_feed_forward_step", "LSNNRecurrent": "lsnn_step",
        }  # fmt: skip
        kind = plain_class(layer).__name__.removesuffix("Cell").removesuffix("Linear")
        step = getattr(layer, "activation", None)
        if step is not None and (step.__name__ != steps[kind] or not step.__module__.startswith("norse.")):
            return f"its step is {step.__name__}"
        if kind == "LI":  # an integrator has no spikes
            return None
        if slope_of_norse(layer.p) is None:
            return f"its threshold method {layer.p.method!r} has no known derivative"
        if kind == "LIFBox" and reset_of_box(layer.p) is None:
            return f"its reset method is {shown(layer.p.reset_method)}"
        if hasattr(layer, "recurrent_weights"):
            return too_wide(layer.recurrent_weights)
        return None

    def forward(self, input_tensor: Any, state: Any = None) -> Any:
        """Write a step down from a state, or from rest if it is None; run a layer with time at once.

        Like norse's own forward, it returns what the layer sends, and the state as a NamedTuple. Both are lazy, except
        the state of a layer with time, which holds tensors.
        """
        layer = self.layer
        if input_tensor.is_sparse:
            raise CannotDeferError("no kernel reads a sparse tensor.")
        if hasattr(layer, "input_weights"):  # of recurrent layers and LILinearCell
            weights = layer.input_weights
            if type(input_tensor) is LazyTensor:
                input_tensor = self.recording.call(functional.linear, (input_tensor, weights), {})
            else:  # a tensor that is known: our own linear skips its zeros
                input_tensor = linear(input_tensor, weights)
        settings = self.settings()
        start = state
        if state is None:
            start = [None] * len(self.outputs)  # `run` replaces it by the state at rest
        if self.has_time:  # the whole sequence is known: run now, which sets state_class
            x = now(latest(input_tensor))
            z, states, ends = self.run(x, len(x), [now(latest(value)) for value in start], settings)
            self.recording.count_steps(self.layer, at_once=len(x), in_all=len(x))
            results = (z[-1], *ends)
            if getattr(layer, "record_states", False):
                results = (z, *states)
            return self.recording.source(z), self.state_class(*(results[output] for output in self.outputs))
        sent = self.record(input_tensor, start, settings)
        if self.state_class is None:  # the state of any input shows it
            self.state_class = type(self.at_rest(torch.zeros(1, 1)))
        return sent[0], self.state_class(*(sent[output] for output in self.outputs))

    def settings(self) -> tuple[Any, ...]:
        layer = self.layer
        return layer.p, layer.dt, getattr(layer, "recurrent_weights", None)

    def at_rest(self, x: Tensor) -> Any:
        """Return the state in which norse's own layer starts, for its first input x."""
        layer = self.layer
        if not hasattr(layer, "state_fallback"):  # LILinearCell, which makes its first state within its step
            from norse.torch.functional.leaky_integrator import LIState

            return LIState(layer.p.v_leak.detach(), x.new_zeros(x.shape))
        return layer.state_fallback(x)

    def run(self, drive: Tensor, steps: int, start: Sequence[Any], settings: Any) -> Any:
        """Run steps of norse's neurons at once, as :meth:`FusedLayer.run` says; if `start` holds None, from rest."""
        p, dt, weights = settings
        state = self.at_rest(drive if self.has_time else drive[0])
        self.state_class = type(state)
        if any(value is None for value in start):
            start = [on_device_of_currents(value, drive).detach().expand(drive.shape[1:]) for value in state]
        recurrent = []
        if self.recurrent:
            recurrent = [start[0], weights, None]  # spikes, weights, and no bias
            start = start[1:]
        gain = dt * p.tau_mem_inv
        if self.kind == "LI":
            neuron = current_lif(sends=False, passes=True)
            params = [gain, -dt * p.tau_syn_inv, p.v_leak, 0.0, 0.0]  # threshold and reset have no effect
            return self.scanned(neuron, drive, steps, start, params, Slope(GIVEN))
        slope = slope_of_norse(p)
        assert slope is not None  # else the layer was refused
        reset = ZERO
        if self.kind == "LIFBox":
            reset = reset_of_box(p)
        threshold = p.v_th
        if self.kind == "LSNN":  # like a LIF, its recurrent form detaches the spikes that reset it
            # threshold=7: the kernel saves distances from the moving threshold, and compares them with the last 0.0
            neuron = Neuron(
                "adaptive_lif", states=3, voltage=0, threshold=7, flags=(not self.recurrent,), saves_voltage=True
            )
            params = [gain, -dt * p.tau_syn_inv, p.v_leak, threshold, p.v_reset, dt * p.tau_adapt_inv, p.beta, 0.0]
            return self.scanned(neuron, drive, steps, start, params, slope, *recurrent)
        if slope.kind == NOTHING and reset == ZERO:
            threshold = threshold.detach()  # neither spikes nor a reset to a value pass a gradient to it
        if self.kind == "LIFBox":
            neuron = voltage_lif(BOX, reset=reset, at=False)
            return self.scanned(neuron, drive, steps, start, [gain, p.v_leak, threshold, p.v_reset], slope)
        # a LIF: its recurrent form detaches the spikes that reset it
        neuron = current_lif(sends=True, passes=not self.recurrent)
        params = [gain, -dt * p.tau_syn_inv, p.v_leak, threshold, p.v_reset]
        return self.scanned(neuron, drive, steps, start, params, slope, *recurrent)


def reset_of_box(p: Any) -> int | None:
    """Return the number of a LIFBox's reset in the kernels; None if the kernels do not know it."""
    function = p.reset_method
    if function.__module__ != "norse.torch.functional.reset":
        return None
    return {"reset_value": ZERO, "reset_subtract": SUBTRACT}.get(function.__name__)


# ---- spikingjelly


class FusedSpikingJelly(FusedLayer):
    """spikingjelly's LIFNode, ParametricLIFNode and IFNode, for one step or all."""

    kept_in = "_memories"

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        self.outputs = (1,)

    @classmethod
    def refusal(cls, layer: Any) -> str | None:
        """Return why no kernel runs a layer of spikingjelly; None if one does."""
        if layer._memories.keys() != {"v"}:
            return "it has further states"
        if layer._neuron_precision is not None:
            return "its precision is set"
        if layer.store_v_seq and layer.step_mode == "s":
            return "it stores the voltages of single steps"
        if slope_of(layer.surrogate_function) is None:
            return f"its surrogate {shown(layer.surrogate_function)} has no known derivative"
        return None

    def forward(self, x: Any) -> Any:
        """Write a step down from the stored voltage, and store the new one; in multi-step mode run all steps at once.

        Returns:
            The spikes of the step (B, ...) or of all steps (T, B, ...), as a lazy tensor.
        """
        node = self.layer
        memories = node._memories
        settings = self.settings()
        if node.step_mode == "s":
            z, memories["v"] = self.record(x, [memories["v"]], settings)
            return z
        x = now(latest(x))  # multi-step mode: the whole sequence is known, and run now
        z, (voltages,), (memories["v"],) = self.run(x, len(x), [now(latest(memories["v"]))], settings)
        self.recording.count_steps(self.layer, at_once=len(x), in_all=len(x))
        if node.store_v_seq:
            node.v_seq = voltages
        return self.recording.source(z)

    def settings(self) -> tuple[Any, ...]:
        node = self.layer
        return (
            node.v_threshold, node.v_reset, getattr(node, "tau", None), getattr(node, "w", None),
            getattr(node, "decay_input", None), node.detach_reset, node.surrogate_function,
        )  # fmt: skip

    def run(self, drive: Tensor, steps: int, start: Sequence[Any], settings: Any) -> Any:
        """Run steps of spikingjelly's neurons at once, as :meth:`FusedLayer.run` says; `start` may hold a number."""
        threshold, reset, tau, w, decay_input, detached, spike = settings
        v = start[0]
        shape = drive.shape[1:]
        rest = 0.0 if reset is None else reset  # where the leak pulls to, and where a reset puts the voltage
        if not isinstance(v, Tensor):  # a number, before the first step
            v = drive.new_full(shape, v)
        elif v.shape != shape:  # left by an input of another shape: spikingjelly starts from rest
            v = drive.new_full(shape, rest)
        form = NO_LEAK
        gain: Any = 1.0
        if decay_input is not None:  # None in an IFNode alone, which does not leak
            form = LEAK_OF_ALL if decay_input else LEAK_OF_STATE
            gain = tau if w is None else w.sigmoid()  # w of a ParametricLIFNode
        neuron = voltage_lif(
            form,
            divides=w is None and form != NO_LEAK,
            reset=SUBTRACT if reset is None else ZERO,
            passes=not detached,
        )
        slope = slope_of(spike)
        assert slope is not None  # else the layer was refused
        return self.scanned(neuron, drive, steps, [v], [gain, rest, threshold, rest], slope)


def current_lif(*, sends: bool, passes: bool) -> Neuron:
    """Describe norse's LIF or LI, with a current and a voltage, to the kernels.

    Args:
        sends: True if the neuron sends spikes and is reset (LIF); False if it sends its voltage (LI).
        passes: True if a gradient passes the spikes in the reset.
    """
    return Neuron("current_lif", states=2, voltage=0, threshold=3, flags=(ZERO, sends, passes), saves_voltage=sends)


def voltage_lif(form: int, *, divides: bool = False, reset: int | None, passes: bool = True, at: bool = True) -> Neuron:
    """Describe norse's LIFBox or a neuron of spikingjelly, with a voltage as its only state, to the kernels.

    Args:
        form: how the voltage moves: BOX, LEAK_OF_ALL, LEAK_OF_STATE or NO_LEAK.
        divides: True if the change of the voltage is divided by tau, False if it is multiplied by a gain.
        reset: SUBTRACT or ZERO.
        passes: True if a gradient passes the spikes in the reset.
        at: True if a voltage at the threshold fires, too; False if only one above it does.
    """
    flags = (form, divides, reset, passes, at)
    # the voltage is state 0; the parameters are gain or tau, rest, threshold, value after a reset to ZERO
    return Neuron("voltage_lif", states=1, voltage=0, threshold=2, flags=flags, saves_voltage=True)


# ---- derivatives of spikes

# Surrogates whose formula the kernels have. For snnTorch the name of its number follows; spikingjelly's is `alpha`.
SNNTORCH = {
    "atan": (ATAN, "alpha"),
    "fast_sigmoid": (FAST_SIGMOID, "slope"),
    "sigmoid": (SIGMOID, "slope"),
    "triangular": (SIGN, "threshold"),
}
SPIKINGJELLY = {"ATan": ATAN, "Sigmoid": SIGMOID, "PiecewiseQuadratic": QUADRATIC}
# Surrogates that act entry by entry and draw no random numbers: their own gradients are taken, of all steps at once.
ENTRYWISE = {
    "snntorch": ("straight_through_estimator", "heaviside", "spike_rate_escape"),
    "spikingjelly": ("PiecewiseExp", "SoftSign", "SuperSpike", "Erf", "NonzeroSignLogAbs", "S2NN", "QPseudoSpike"),
    "norse": ("tanh", "circ", "heavi_erfc", "triangle"),
}


def slope_of(spike: Any) -> Slope | None:
    """Return the derivative of a surrogate of ours, snnTorch's or spikingjelly's; None if it is not known."""
    if in_two_methods(spike):  # ours
        return Slope(GIVEN, 1.0, spike.derivative)
    root = (getattr(spike, "__module__", None) or "").partition(".")[0]
    if root == "snntorch" and hasattr(spike, "__qualname__"):
        name = spike.__qualname__.removesuffix(".<locals>.inner")  # of the function that made it
        if name == "SpikingNeuron._surrogate_bypass":  # spikes without a surrogate
            return Slope(NOTHING)
        if name in SNNTORCH:
            kind, number = SNNTORCH[name]
            # the number stands in the closure alone
            cells = [cell.cell_contents for cell in spike.__closure__]
            variables = dict(zip(spike.__code__.co_freevars, cells, strict=True))
            return Slope(kind, float(variables[number]))
        if name in ENTRYWISE["snntorch"]:
            return Slope(GIVEN, 1.0, derivative_of(spike))
        return None
    if root == "spikingjelly" and isinstance(spike, nn.Module):
        name = type(spike).__name__
        # spiking=False sends the smooth primitive in place of spikes
        if not getattr(spike, "spiking", True) or has_hooks(spike) or "forward" in vars(spike):
            return None
        if name in SPIKINGJELLY:
            return Slope(SPIKINGJELLY[name], float(spike.alpha))  # type: ignore[arg-type]
        if name in ENTRYWISE["spikingjelly"]:
            return Slope(GIVEN, 1.0, derivative_of(spike))
        return None
    return None


def slope_of_norse(p: Any) -> Slope | None:
    """Return the derivative of the spikes of a layer of norse with parameters p; None if it is not known."""
    if p.method == "super":  # norse 1.1 does not read alpha for it
        return Slope(FAST_SIGMOID, 1.0)
    if p.method == "heaviside":
        return Slope(NOTHING)
    if p.method in ENTRYWISE["norse"]:
        from norse.torch.functional.threshold import threshold

        def spike(distance: Tensor) -> Tensor:
            return threshold(distance, p.method, p.alpha)

        return Slope(GIVEN, 1.0, derivative_of(spike))
    return None


def derivative_of(spike: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the derivative of a spike function by its argument, as a function that calls autograd."""

    def derivative(distance: Tensor) -> Tensor:
        with torch.enable_grad():
            distance = distance.detach().requires_grad_()
            z = spike(distance)
            return torch.autograd.grad(z, distance, torch.ones_like(z))[0]

    return derivative


# ---- which layers are fused

FUSED: dict[tuple[str, str], type[FusedLayer]] = {
    **{("snntorch", name): FusedSnnTorch for name in FusedSnnTorch.names},
    **{("norse", name): FusedNorse for name in ("LIF", "LIFCell", "LIFBoxCell", "LI", "LICell", "LILinearCell")},
    **{("norse", name): FusedNorse for name in ("LIFRecurrent", "LIFRecurrentCell", "LSNN", "LSNNCell")},
    **{("norse", name): FusedNorse for name in ("LSNNRecurrent", "LSNNRecurrentCell")},
    **{("spikingjelly", name): FusedSpikingJelly for name in ("LIFNode", "ParametricLIFNode", "IFNode")},
}


def fused_layer(module: nn.Module) -> FusedLayer | str:
    """Return a layer of neurons in the form that the kernels run; or, as a string, why they cannot run it."""
    kind = plain_class(module)
    root = kind.__module__.partition(".")[0]
    fused_class = FUSED.get((root, kind.__name__))
    if fused_class is None:
        if root in ("snntorch", "norse", "spikingjelly"):
            return f"there is no kernel for {kind.__name__} of {root}"
        return f"{kind.__name__} is a class of its own, which may step otherwise"
    if has_hooks(module) and not isinstance(module, Accelerated):  # an accelerated net's hooks see its own calls
        return "it has a hook, which reads every step"
    changed = changed_method(module, kind, root)
    if changed is not None:
        return f"its method {changed} has been changed"
    refusal = fused_class.refusal(module)
    if refusal is not None:
        return refusal
    return fused_class(module)


UNCHANGED: dict[type, dict[str, Any]] = {}  # classes of the libraries, with their attributes when none was changed


def changed_method(module: nn.Module, kind: type[nn.Module], root: str) -> str | None:
    """Return the name of a method of a layer that replaces one of the library's; None if all are the library's own.

    Args:
        module: the layer.
        kind: its class.
        root: name of the library's package.
    """
    for name, value in vars(module).items():
        if callable(getattr(kind, name, None)) and not isinstance(value, nn.Module):  # set on the object
            return name
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] != root or UNCHANGED.get(base) == vars(base):
            continue
        for name, value in vars(base).items():
            home = getattr(value, "__module__", None) or root
            if callable(value) and home.partition(".")[0] not in (root, "torch"):  # set on the class by others
                return name
        UNCHANGED[base] = dict(vars(base))
    return None


class SortedModules:
    """The modules of a network, sorted by how they run.

    Attributes:
        fused: the layers that are run at once.
        reasons: why other modules are not run at once, by their names.
        plain: these other modules, without the network itself: they must read and send tensors, not lazy ones.
        modules: all modules.
        parameters: all parameters.
    """

    def __init__(self, net: nn.Module) -> None:
        self.fused: list[FusedLayer] = []
        self.reasons: dict[str, str] = {}
        self.plain: list[nn.Module] = []
        self.modules: list[nn.Module] = []
        inside: tuple[str, ...] = ()  # prefixes of the names of the layers' parts, which belong to the layers
        for name, module in net.named_modules():
            self.modules.append(module)
            if name.startswith(inside):
                continue
            # norse's Lift, which has a lifted_module, is no layer: it calls a module in each step
            if library_of(module) in ("snntorch", "norse", "spikingjelly") and not hasattr(module, "lifted_module"):
                inside = (*inside, f"{name}." if name else "")
                found = fused_layer(module)
                if isinstance(found, FusedLayer):
                    self.fused.append(found)
                    continue
                self.reasons[name] = found  # in words, why it cannot be fused
            # Lazy tensors may pass through any other module without hooks; hooks of net itself see its own calls.
            if module is net or (name not in self.reasons and not has_hooks(module)):
                continue
            self.reasons.setdefault(name, "it has a hook, which reads every step")
            self.plain.append(module)
        self.parameters = [*net.parameters()]
        self._held = [_Held(module) for module in self.modules]

    def still_hold(self) -> bool:
        """True if all modules have the attributes, parts, parameters and hooks that they had when they were sorted.

        Buffers may have other values. The check takes a small part of the time of sorting anew. It does not see methods
        that were changed on a class.
        """
        return all(held.still_holds() for held in self._held)


class _Held:
    """The objects that a module held when it was made; a change inside one of them is not seen."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.kind = type(module)
        self.attributes = vars(module)  # the module's own dict, which changes with it; `values` are those of now
        self.places = (self.attributes, module._modules, module._parameters)
        self.values = [tuple(place.values()) for place in self.places]
        self.buffer_names = tuple(module._buffers)
        self.hooks = [
            value for name, value in self.attributes.items() if name.endswith("_hooks") and isinstance(value, dict)
        ]
        self.hook_counts = [len(hooks) for hooks in self.hooks]

    def still_holds(self) -> bool:
        """True if the module still holds the same objects."""
        if type(self.module) is not self.kind or vars(self.module) is not self.attributes:
            return False
        for place, values in zip(self.places, self.values, strict=True):
            if len(place) != len(values) or not all(map(is_, place.values(), values)):
                return False
        if tuple(self.module._buffers) != self.buffer_names:
            return False
        return [*map(len, self.hooks)] == self.hook_counts
