"""Layers of snnTorch, norse and spikingjelly whose steps the kernels know.

Each class has the ``forward`` that its layer has while a network runs: it takes and returns what the layer does, writes
its steps down, and runs them all at once when a value is needed. Nothing here imports a library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from neurolsc.interop.lazy import CannotDeferError, Group, LazyTensor, Recording, gathered, is_constant, now
from neurolsc.interop.wrapped import Accelerated, library_of
from neurolsc.neurons.fast.scan import Neuron, Slope, can_scan, linear, recurrent_scan, scan
from neurolsc.surrogate import in_two_methods

SUBTRACT, ZERO, NONE, ALL = range(4)  # as in scan_kernels, whose import takes half a second
GIVEN, NOTHING, ATAN, FAST_SIGMOID, SIGMOID, SIGN, QUADRATIC = range(7)
BOX, LEAK_OF_ALL, LEAK_OF_STATE, NO_LEAK = range(4)


class NeuronGroup(Group):
    """The steps of one layer of neurons; a step that starts where the last one ended continues its run."""

    def __init__(self, recording: Recording, layer: FusedLayer, outputs: int) -> None:
        super().__init__(recording, outputs)
        self.layer = layer
        self.settings: tuple[Any, ...] | None = None  # of the last step
        self.ends: dict[tuple[int, int], Tensor] = {}

    def compute(self, last: int) -> None:
        while self.done <= last:
            first = self.done
            stop = first + 1
            while stop <= last and self._continues(stop):
                stop += 1
            self._run(first, stop)
            self.done = stop

    def _continues(self, index: int) -> bool:
        """True if a step has the settings of the one before it and starts from its states."""
        _, states, settings = self.calls[index]
        if settings is not self.calls[index - 1][2]:
            return False
        for output, state in zip(self.layer.outputs, states, strict=True):
            if type(state) is not LazyTensor or state.group is not self:
                return False
            if state.index != index - 1 or state.output != output:
                return False
        return True

    def _run(self, first: int, stop: int) -> None:
        """Run the steps from `first` to before `stop`."""
        calls = self.calls[first:stop]
        block = gathered([current for current, _, _ in calls])
        _, start, settings = calls[0]
        drive = block[:1] if is_constant(block) else block
        z, states, ends = self.layer.run(drive, stop - first, [now(state) for state in start], settings)
        z = z.to(self.layer.sent_dtype(z.dtype, settings))
        self.append(0, first, z)
        for output, state in enumerate(states, 1):
            self.append(output, first, state)
            self.ends[output, stop - 1] = ends[output - 1]
        if 0 in self.layer.outputs:
            self.ends[0, stop - 1] = z[-1].clone()
        self.recording.longest = max(self.recording.longest, stop - first)
        self.recording.most = max(self.recording.most, len(self.calls))

    def value(self, output: int, index: int) -> Tensor:
        # the state at the end is a tensor of its own: libraries detach it in place, which a view does not allow
        end = self.ends.get((output, index))
        if end is None:
            return super().value(output, index)
        return end

    def like(self, output: int, index: int) -> Tensor:
        current, _, settings = self.calls[index]
        if isinstance(current, LazyTensor):
            like = current.like()
        else:
            like = current.to("meta")
        if output:
            return like
        return like.to(self.layer.sent_dtype(like.dtype, settings))


class FusedLayer(ABC):
    """A layer of another library, while a network runs.

    Attributes:
        kept_in: the dict of the layer that holds its states.
    """

    kept_in = "_buffers"

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.outputs: tuple[int, ...] = ()  # the results of a step that the next one starts from; 0: the spikes
        self.group: NeuronGroup | None = None

    @classmethod
    @abstractmethod
    def refusal(cls, layer: Any) -> str | None:
        """Why a layer of this class cannot be run at once; None if it can."""

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer's own forward takes and returns."""

    @abstractmethod
    def settings(self) -> tuple[Any, ...]:
        """What the layer's step depends on, as it is now."""

    @abstractmethod
    def run(self, drive: Tensor, steps: int, start: Sequence[Any], settings: Any) -> Any:
        """Run steps at once: spikes and states of all, and the last states."""

    def start(self, recording: Recording) -> None:
        """Let the layer write its calls down."""
        self.recording = recording
        self.before = dict(vars(self.layer)[self.kept_in])
        vars(self.layer)["forward"] = self.forward

    def stop(self) -> None:
        """Let the layer run by itself again."""
        vars(self.layer).pop("forward", None)

    def finish(self) -> None:
        """Replace the layer's states by tensors."""
        kept = vars(self.layer)[self.kept_in]
        for name, value in kept.items():
            kept[name] = now(value)

    def give_back(self) -> None:
        """Put the states back that the layer had before."""
        vars(self.layer)[self.kept_in].update({name: now(value) for name, value in self.before.items()})

    def record(self, current: Any, states: Sequence[Any], settings: tuple[Any, ...]) -> list[LazyTensor]:
        """Write a step down; return its spikes and its states.

        What belongs to another recording, or is known already, is written down by its value.
        """
        recording = self.recording
        group = self.group
        if group is None or group.recording is not recording or group.grad is not torch.is_grad_enabled():
            group = self._group()
        if type(current) is not LazyTensor or current.recording is not recording or current.group is None:
            current = now(current)
        else:
            group.reads.add(current.group)
        for state in states:
            if type(state) is not LazyTensor or state.group is group:
                continue
            if state.recording is recording and state.group is not None:
                group.reads.add(state.group)
            else:
                states = [recording.own(value) for value in states]
        # Equal settings are one object, by which steps that continue each other are recognised.
        if group.settings is None or not all(map(is_, group.settings, settings)):
            group.settings = settings
        index = group.add((current, states, group.settings), ())
        return [LazyTensor(recording, group, index, output) for output in self.sent]

    def _group(self) -> NeuronGroup:
        """The group of steps with or without a gradient."""
        recording = self.recording
        key = ("neurons", id(self.layer), torch.is_grad_enabled())
        group: Any = recording.groups.get(key)
        if group is None:
            group = NeuronGroup(recording, self, 1 + max(self.outputs))
            recording.groups[key] = group
        self.group = group
        self.sent = range(1 + max(self.outputs))
        return group

    def sent_dtype(self, dtype: torch.dtype, settings: Any) -> torch.dtype:
        """The dtype of spikes for currents of a dtype."""
        return dtype

    def scanned(
        self,
        neuron: Neuron,
        drive: Tensor,
        steps: int,
        start: Sequence[Tensor],
        params: Sequence[Any],
        slope: Slope,
        *recurrent: Any,
    ) -> Any:
        """Run the kernel of a neuron, or refuse what it cannot run; recurrent are its spikes, weights and bias."""
        values = [torch.as_tensor(p, dtype=None if isinstance(p, Tensor) else drive.dtype) for p in params]
        if not can_scan([drive, *start, *values]):
            raise CannotDeferError(
                f"no kernel runs {type(self.layer).__name__} on {drive.device.type} in {drive.dtype}."
            )
        if recurrent:
            found = recurrent_scan(neuron, drive, steps, start, values, slope, *recurrent)
        else:
            found = scan(neuron, drive, steps, start, values, slope)
        if slope.kind == NOTHING:
            return found._replace(z=found.z.detach())
        return found


# ---- snnTorch


class FusedSnnTorch(FusedLayer):
    """snnTorch's Leaky, Synaptic and Alpha, and the recurrent RLeaky and RSynaptic."""

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
        first = 0 if self.recurrent else 1
        self.outputs = tuple(range(first, first + len(self.states)))
        names = ("beta", "threshold", "graded_spikes_factor", "state_function", "spike_grad", "alpha", "reset_delay")
        self.places = [place_of(layer, name) for name in names]
        if self.recurrent:
            recurrent = layer.recurrent
            weights = "V"
            if isinstance(recurrent, nn.Linear):
                weights = "weight"
            self.places += [place_of(recurrent, weights), place_of(recurrent, "bias")]

    @classmethod
    def refusal(cls, layer: Any) -> str | None:
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
        return None

    def forward(self, input_: Any, *passed: Any, **named: Any) -> Any:
        layer = self.layer
        buffers = layer._buffers
        if passed or named:
            self._take(passed, named)
        sent = self.record(input_, [buffers[name] for name in self.states], self.settings())
        for name, output in zip(self.states, self.outputs, strict=True):
            buffers[name] = sent[output]
        if layer.init_hidden and not layer.output:
            return sent[0]
        return tuple(sent)

    def settings(self) -> tuple[Any, ...]:
        return tuple([place.get(name) for place, name in self.places])

    def _take(self, passed: Sequence[Any], named: dict[str, Any]) -> None:
        """Put states that are passed into the layer, as its own forward does."""
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
        beta, threshold, factor, function, spike, alpha, delayed, *connection = settings
        delayed = delayed is not False  # Alpha has no such setting
        shape = drive.shape[1:]
        states = [state if state.shape == shape else drive.new_zeros(shape) for state in start]
        reset = self.resets[function.__name__]
        recurrent: list[Any] = []
        if self.recurrent:
            recurrent = [states.pop(0), *connection]
            if reset == ZERO and self.kind == "Leaky":
                reset = ALL
        beta = beta.clamp(0, 1)
        slope = slope_of(spike)
        assert slope is not None
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
            scale = torch.log(alpha) / (torch.log(beta) - torch.log(alpha)) + 1
            neuron = Neuron("alpha_function", states=3, voltage=2, threshold=2, flags=(reset,), saves_voltage=False)
            params = [alpha, beta, threshold, factor, scale]
        return self.scanned(neuron, drive, steps, states, params, slope, *recurrent)

    def sent_dtype(self, dtype: torch.dtype, settings: Any) -> torch.dtype:
        factor = settings[2]
        spike = settings[4]
        if isinstance(spike, nn.Module):
            return dtype
        return torch.result_type(torch.empty(1, dtype=torch.float32), factor)  # snnTorch's own are float32


# ---- norse


class FusedNorse(FusedLayer):
    """norse's LIF, LSNN (both also recurrent), LIFBox and LI, as cells and as layers with time, and LILinearCell."""

    def __init__(self, layer: Any) -> None:
        super().__init__(layer)
        name = plain_class(layer).__name__
        self.kind = name.removesuffix("Cell").removesuffix("Linear")
        self.has_time = self.kind == name
        self.recurrent = self.kind.endswith("Recurrent")
        self.kind = self.kind.removesuffix("Recurrent")
        states = {"LIFBox": 1, "LSNN": 3}.get(self.kind, 2)
        self.outputs = tuple(range(0 if self.recurrent else 1, 1 + states))
        self.state_class: Any = None

    @classmethod
    def refusal(cls, layer: Any) -> str | None:
        steps = {
            "LIF": "lif_feed_forward_step", "LIFRecurrent": "lif_step", "LIFBox": "lif_box_feed_forward_step",
            "LI": "li_feed_forward_step", "LSNN": "lsnn_feed_forward_step", "LSNNRecurrent": "lsnn_step",
        }  # fmt: skip
        kind = plain_class(layer).__name__.removesuffix("Cell").removesuffix("Linear")
        step = getattr(layer, "activation", None)
        if step is not None and (step.__name__ != steps[kind] or not step.__module__.startswith("norse.")):
            return f"its step is {step.__name__}"
        if kind == "LI":
            return None
        if slope_of_norse(layer.p) is None:
            return f"its threshold method {layer.p.method!r} has no known derivative"
        if kind == "LIFBox" and reset_of_box(layer.p) is None:
            return f"its reset method is {shown(layer.p.reset_method)}"
        return None

    def forward(self, input_tensor: Any, state: Any = None) -> Any:
        layer = self.layer
        if input_tensor.is_sparse:
            raise CannotDeferError("no kernel reads a sparse tensor.")
        if hasattr(layer, "input_weights"):
            weights = layer.input_weights
            if type(input_tensor) is LazyTensor:
                input_tensor = self.recording.call(functional.linear, (input_tensor, weights), {})
            else:
                input_tensor = linear(input_tensor, weights)
        settings = self.settings()
        start = state
        if state is None:
            start = [None] * len(self.outputs)
        if self.has_time:
            x = now(input_tensor)
            z, states, ends = self.run(x, len(x), [*map(now, start)], settings)
            self.recording.longest = max(self.recording.longest, len(x))
            self.recording.most = max(self.recording.most, len(x))
            kept = (z[-1], *ends)
            if getattr(layer, "record_states", False):
                kept = (z, *states)
            return self.recording.source(z), self.state_class(*(kept[output] for output in self.outputs))
        sent = self.record(input_tensor, start, settings)
        if self.state_class is None:
            self.state_class = type(self.at_rest(torch.zeros(1, 1)))
        return sent[0], self.state_class(*(sent[output] for output in self.outputs))

    def settings(self) -> tuple[Any, ...]:
        layer = self.layer
        return layer.p, layer.dt, getattr(layer, "recurrent_weights", None)

    def at_rest(self, x: Tensor) -> Any:
        """The layer's own initial state for an input; LILinearCell has no method that makes it."""
        layer = self.layer
        if not hasattr(layer, "state_fallback"):
            from norse.torch.functional.leaky_integrator import LIState

            return LIState(layer.p.v_leak.detach(), x.new_zeros(x.shape))
        return layer.state_fallback(x)

    def run(self, drive: Tensor, steps: int, start: Sequence[Any], settings: Any) -> Any:
        p, dt, weights = settings
        state = self.at_rest(drive if self.has_time else drive[0])
        self.state_class = type(state)
        if any(value is None for value in start):
            start = [torch.as_tensor(value).detach().expand(drive.shape[1:]) for value in state]
        recurrent = []
        if self.recurrent:
            recurrent = [start[0], weights, None]
            start = start[1:]
        gain = dt * p.tau_mem_inv
        if self.kind == "LI":
            neuron = current_lif(sends=False, passes=True)
            params = [gain, -dt * p.tau_syn_inv, p.v_leak, 0.0, 0.0]
            return self.scanned(neuron, drive, steps, start, params, Slope(GIVEN))
        slope = slope_of_norse(p)
        assert slope is not None
        reset = ZERO
        if self.kind == "LIFBox":
            reset = reset_of_box(p)
        threshold = p.v_th
        if self.kind == "LSNN":
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
        neuron = current_lif(sends=True, passes=not self.recurrent)
        params = [gain, -dt * p.tau_syn_inv, p.v_leak, threshold, p.v_reset]
        return self.scanned(neuron, drive, steps, start, params, slope, *recurrent)


def reset_of_box(p: Any) -> int | None:
    """The reset of a LIFBox as the kernels number it; None if it is a function of the user's."""
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
        node = self.layer
        memories = node._memories
        settings = self.settings()
        if node.step_mode == "s":
            z, memories["v"] = self.record(x, [memories["v"]], settings)
            return z
        x = now(x)
        z, (voltages,), (memories["v"],) = self.run(x, len(x), [now(memories["v"])], settings)
        self.recording.longest = max(self.recording.longest, len(x))
        self.recording.most = max(self.recording.most, len(x))
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
        threshold, reset, tau, w, decay_input, detached, spike = settings
        v = start[0]
        shape = drive.shape[1:]
        rest = 0.0 if reset is None else reset
        if not isinstance(v, Tensor):
            v = drive.new_full(shape, v)
        elif v.shape != shape:
            v = drive.new_full(shape, rest)
        form = NO_LEAK
        gain: Any = 1.0
        if decay_input is not None:
            form = LEAK_OF_ALL if decay_input else LEAK_OF_STATE
            gain = tau if w is None else w.sigmoid()
        neuron = voltage_lif(
            form,
            divides=w is None and form != NO_LEAK,
            reset=SUBTRACT if reset is None else ZERO,
            passes=not detached,
        )
        slope = slope_of(spike)
        assert slope is not None
        return self.scanned(neuron, drive, steps, [v], [gain, rest, threshold, rest], slope)


def current_lif(*, sends: bool, passes: bool) -> Neuron:
    """The kernel of norse's LIF, which sends spikes, and LI, which does not; `passes`: the reset passes a gradient."""
    return Neuron("current_lif", states=2, voltage=0, threshold=3, flags=(ZERO, sends, passes), saves_voltage=sends)


def voltage_lif(form: int, *, divides: bool = False, reset: int | None, passes: bool = True, at: bool = True) -> Neuron:
    """The kernel of neurons with a voltage alone.

    Args:
        form: number of the step's form in the kernel.
        divides: the voltage is divided by tau, not multiplied by a gain.
        reset: number of the reset in the kernel.
        passes: the reset passes a gradient.
        at: a neuron spikes at its threshold, too.
    """
    flags = (form, divides, reset, passes, at)
    return Neuron("voltage_lif", states=1, voltage=0, threshold=2, flags=flags, saves_voltage=True)


# ---- derivatives of spikes

SNNTORCH = {
    "atan": (ATAN, "alpha"),
    "fast_sigmoid": (FAST_SIGMOID, "slope"),
    "sigmoid": (SIGMOID, "slope"),
    "triangular": (SIGN, "threshold"),
}
SPIKINGJELLY = {"ATan": ATAN, "Sigmoid": SIGMOID, "PiecewiseQuadratic": QUADRATIC}
# entry by entry and without random numbers; their own gradients are taken, of all steps at once
ENTRYWISE = {
    "snntorch": ("straight_through_estimator", "heaviside", "spike_rate_escape"),
    "spikingjelly": ("PiecewiseExp", "SoftSign", "SuperSpike", "Erf", "NonzeroSignLogAbs", "S2NN", "QPseudoSpike"),
    "norse": ("tanh", "circ", "heavi_erfc", "triangle"),
}


def slope_of(spike: Any) -> Slope | None:
    """The derivative of a surrogate; None if it is not known."""
    if in_two_methods(spike):
        return Slope(GIVEN, 1.0, spike.derivative)
    root = (getattr(spike, "__module__", None) or "").partition(".")[0]
    if root == "snntorch" and hasattr(spike, "__qualname__"):
        name = spike.__qualname__.removesuffix(".<locals>.inner")
        if name == "SpikingNeuron._surrogate_bypass":
            return Slope(NOTHING)
        if name in SNNTORCH:
            kind, number = SNNTORCH[name]
            cells = [cell.cell_contents for cell in spike.__closure__]
            variables = dict(zip(spike.__code__.co_freevars, cells, strict=True))  # of the closure
            return Slope(kind, float(variables[number]))
        if name in ENTRYWISE["snntorch"]:
            return Slope(GIVEN, 1.0, derivative_of(spike))
        return None
    if root == "spikingjelly" and isinstance(spike, nn.Module):
        name = type(spike).__name__
        if not getattr(spike, "spiking", True) or has_hooks(spike) or "forward" in vars(spike):
            return None
        if name in SPIKINGJELLY:
            return Slope(SPIKINGJELLY[name], float(spike.alpha))  # type: ignore[arg-type]
        if name in ENTRYWISE["spikingjelly"]:
            return Slope(GIVEN, 1.0, derivative_of(spike))
        return None
    return None


def slope_of_norse(p: Any) -> Slope | None:
    """The derivative of norse's spikes, whose "super" has no width in version 1.1."""
    if p.method == "super":
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
    """The derivative of a spike function, from its own gradient."""

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


def plain_class(module: Any) -> type[nn.Module]:
    """A module's class, as it was before it was accelerated."""
    if isinstance(module, Accelerated):
        return module.plain_class
    return type(module)


def fused_layer(module: nn.Module) -> FusedLayer | str:
    """A layer of neurons as the kernels run it; or why they do not."""
    kind = plain_class(module)
    root = kind.__module__.partition(".")[0]
    found = FUSED.get((root, kind.__name__))
    if found is None:
        if root in ("snntorch", "norse", "spikingjelly"):
            return f"there is no kernel for {kind.__name__} of {root}"
        return f"{kind.__name__} is a class of its own, which may step otherwise"
    if has_hooks(module) and not isinstance(module, Accelerated):
        return "it has a hook, which reads every step"
    own = changed_method(module, kind, root)
    if own is not None:
        return f"its method {own} has been changed"
    refused = found.refusal(module)
    if refused is None:
        return found(module)
    return refused


def place_of(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """The dict of a module that holds an attribute, and its name: reading it there is fast."""
    for place in (module._parameters, module._buffers, module._modules):
        if name in place:
            return place, name
    return vars(module), name


UNCHANGED: dict[type, dict[str, Any]] = {}  # the libraries' classes as they have been looked at


def changed_method(module: nn.Module, kind: type[nn.Module], root: str) -> str | None:
    """The name of a method that the object or its class has changed from the library's; None if there is none."""
    for name, value in vars(module).items():
        if callable(getattr(kind, name, None)) and not isinstance(value, nn.Module):
            return name
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] != root or UNCHANGED.get(base) == vars(base):
            continue
        for name, value in vars(base).items():
            home = getattr(value, "__module__", None) or root
            if callable(value) and home.partition(".")[0] not in (root, "torch"):
                return name
        UNCHANGED[base] = dict(vars(base))
    return None


def has_hooks(module: nn.Module) -> bool:
    """True if a module has a forward or a backward hook."""
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


def shown(function: Any) -> str:
    """The name of a function or the class of an object."""
    return getattr(function, "__qualname__", type(function).__name__)


def layers_of(net: nn.Module) -> tuple[list[FusedLayer], dict[str, str], list[nn.Module]]:
    """The layers that are run at once, why others are not, by name, and modules that must see tensors."""
    fused: list[FusedLayer] = []
    reasons: dict[str, str] = {}
    plain: list[nn.Module] = []
    inside: tuple[str, ...] = ()  # the parts of a layer belong to it
    for name, module in net.named_modules():
        if name.startswith(inside):
            continue
        if library_of(module) in ("snntorch", "norse", "spikingjelly") and not hasattr(module, "lifted_module"):
            inside = (*inside, f"{name}." if name else "")
            layer = fused_layer(module)
            if isinstance(layer, FusedLayer):
                fused.append(layer)
                continue
            reasons[name] = layer
        if module is net or (name not in reasons and not has_hooks(module)):  # lazy tensors pass through it
            continue
        reasons.setdefault(name, "it has a hook, which reads every step")
        plain.append(module)
    return fused, reasons, plain
