"""Layers of snnTorch, norse and spikingjelly whose steps the kernels know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from neurolsc.interop.lazy import Group, LazyTensor, Recording, gathered, now
from neurolsc.neurons.fast import scan_kernels
from neurolsc.neurons.fast.scan import Neuron, Slope, can_scan, scan
from neurolsc.surrogate import in_two_methods


class NeuronGroup(Group):
    """The steps of one layer of neurons; a step that starts where the last one ended continues its run."""

    def __init__(self, recording: Recording, layer: FusedLayer, outputs: int) -> None:
        super().__init__(recording, outputs)
        self.layer = layer
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
        current, states, settings = self.calls[index]
        return settings is self.calls[index - 1][2] and all(
            isinstance(state, LazyTensor)
            and state.group is self
            and state.index == index - 1
            and state.output == 1 + which
            for which, state in enumerate(states)
        )

    def _run(self, first: int, stop: int) -> None:
        calls = self.calls[first:stop]
        currents = [call[0] for call in calls]
        _, start, settings = calls[0]
        if all(current is currents[0] for current in currents):
            drive = now(currents[0])[None]
        else:
            drive = gathered(currents)
        z, states, ends = self.layer.run(drive, stop - first, [now(state) for state in start], settings)
        self.append(0, first, z)
        for which, state in enumerate(states, 1):
            self.append(which, first, state)
            self.ends[which, stop - 1] = ends[which - 1]

    def value(self, output: int, index: int) -> Tensor:
        end = self.ends.get((output, index))
        return super().value(output, index) if end is None else end

    def shape(self, index: int) -> torch.Size:
        return self.calls[index][0].shape


class FusedLayer(ABC):
    """A layer of another library, while a network runs."""

    states: ClassVar[tuple[str, ...]]

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.recording: Recording
        self.settings: Any = None

    def start(self, recording: Recording) -> None:
        """Let the layer write its calls down."""
        self.recording = recording
        self.before = dict(self.layer._buffers)
        vars(self.layer)["forward"] = self.forward

    def stop(self) -> None:
        """Let the layer run by itself again."""
        vars(self.layer).pop("forward", None)

    def finish(self) -> None:
        """Replace lazy states by tensors."""
        buffers = self.layer._buffers
        for name, value in buffers.items():
            buffers[name] = now(value)

    def give_back(self) -> None:
        """Put the states back that the layer had."""
        self.layer._buffers.update(self.before)

    def record(self, current: Any, states: Sequence[Any], settings: tuple[Any, ...]) -> list[LazyTensor]:
        """Write a step down: its spikes and its states."""
        last = self.settings
        if last is None or any(a is not b for a, b in zip(last, settings, strict=True)):
            self.settings = settings
        key = ("neurons", id(self.layer), torch.is_grad_enabled())
        group = self.recording.groups.get(key)
        if group is None:
            group = NeuronGroup(self.recording, self, 1 + len(states))
            self.recording.groups[key] = group
        if isinstance(current, LazyTensor) and current.group is None:
            current = current.tensor
        reads = [value for value in (current, *states) if isinstance(value, LazyTensor)]
        own = [value for value in reads if value.group is not group and value.group is not None]
        index = group.add((current, tuple(states), self.settings), own)
        return [LazyTensor(self.recording, group, index, output) for output in range(1 + len(states))]

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer's forward takes and returns."""

    @abstractmethod
    def run(self, drive: Tensor, steps: int, start: Sequence[Tensor], settings: Any) -> Any:
        """Run steps at once: spikes, states and the last states."""


class FusedLeaky(FusedLayer):
    """snnTorch's Leaky."""

    states = ("mem",)

    def forward(self, input_: Any, mem: Any = None) -> Any:
        layer = self.layer
        buffers = layer._buffers
        if mem is not None:
            if layer.init_hidden:
                raise TypeError("`mem` should not be passed as an argument while `init_hidden=True`")
            buffers["mem"] = mem
        settings = (
            layer.beta, layer.threshold, layer.graded_spikes_factor, layer.state_function.__name__, layer.reset_delay,
            layer.spike_grad,
        )  # fmt: skip
        spk, mem = self.record(input_, (buffers["mem"],), settings)
        buffers["mem"] = mem
        return spk if layer.init_hidden and not layer.output else (spk, mem)

    def run(self, drive: Tensor, steps: int, start: Sequence[Tensor], settings: Any) -> Any:
        beta, threshold, factor, function, delayed, spike = settings
        shape = drive.shape[1:]
        states = [state if state.shape == shape else drive.new_zeros(shape) for state in start]
        reset = RESETS[function]
        neuron = Neuron("leaky", 1, 0, 1, (reset, delayed), not delayed)
        z, after, ends = scan(neuron, drive, steps, states, [beta.clamp(0, 1), threshold, factor], slope_of(spike))
        return z, after, ends


RESETS = {"_base_sub": scan_kernels.SUBTRACT, "_base_zero": scan_kernels.ZERO, "_base_int": scan_kernels.NONE}

SNNTORCH = {
    "atan": (scan_kernels.ATAN, "alpha"),
    "fast_sigmoid": (scan_kernels.FAST_SIGMOID, "slope"),
    "sigmoid": (scan_kernels.SIGMOID, "slope"),
    "triangular": (scan_kernels.SIGN, "threshold"),
}


def slope_of(spike: Any) -> Slope | None:
    """The derivative of a surrogate; None if it is not known."""
    if getattr(spike, "__module__", None) == "snntorch.surrogate":
        name = spike.__qualname__.removesuffix(".<locals>.inner")
        if name in SNNTORCH:
            kind, number = SNNTORCH[name]
            values = dict(zip(spike.__code__.co_freevars, (cell.cell_contents for cell in spike.__closure__), strict=True))
            return Slope(kind, float(values[number]))
    if in_two_methods(spike):
        return Slope(scan_kernels.GIVEN, 1.0, spike.derivative)
    return None


def fused_layer(module: Any) -> FusedLayer | str:
    """A layer as the kernels run it; or why they do not."""
    kind = type(module)
    if kind.__module__ == "snntorch._neurons.leaky" and kind.__name__ == "Leaky":
        if slope_of(module.spike_grad) is None:
            return "its surrogate is not known"
        return FusedLeaky(module)
    return "no kernel"
