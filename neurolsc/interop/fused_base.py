"""A layer of neurons of another library whose steps are written down, and run at once by a kernel.

:class:`FusedLayer` is what the layers of all libraries share; `fused.py` has a class for each library. Nothing here
imports a library.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from neurolsc.interop.groups import Group, gathered, is_constant, mode
from neurolsc.interop.lazy import CannotDeferError, LazyTensor, latest, now
from neurolsc.interop.recording import Recording
from neurolsc.neurons.fast.kinds import NOTHING, Neuron, Slope
from neurolsc.neurons.fast.scan import can_scan, recurrent_scan, scan
from neurolsc.neurons.fast.sequence import WIDEST, transformed


class NeuronGroup(Group):
    """The steps of one layer of neurons.

    A call is (current, states, settings) of one step. Steps are run at once as long as each starts where the one
    before has ended, with the same settings. Output 0 is the spikes, 1 and above are the states of the kernel.

    Attributes:
        layer: the layer.
        current: a tensor with the shape and dtype of the current of each step.
        settings: the settings of the last step.
        ends: the outputs of the last step of each run of steps, by (output, number of the step).
    """

    def __init__(self, recording: Recording, layer: FusedLayer, outputs: int, current: Tensor) -> None:
        super().__init__(recording, outputs)
        self.layer = layer
        self.current = current
        self.settings: tuple[Any, ...] | None = None
        self.ends: dict[tuple[int, int], Tensor] = {}

    def compute(self, last: int) -> None:
        """Split the steps into runs, and compute these one after the other: a run may start from an earlier one."""
        while self.done <= last:
            first = self.done
            stop = first + 1
            while stop <= last and self._continues(stop):
                stop += 1
            self._run(first, stop)
            self.done = stop

    def _continues(self, index: int) -> bool:
        """True if step number `index` has the settings of the one before it and starts from its states."""
        _, states, settings = self.calls[index]
        _, _, settings_before = self.calls[index - 1]
        if settings is not settings_before:
            return False
        # `outputs` says which output of a step each state is
        for output, state in zip(self.layer.outputs, states, strict=True):
            if type(state) is not LazyTensor or state.group is not self:
                return False
            if state.number != index - 1 or state.output != output:
                return False
        return True

    def _run(self, first: int, stop: int) -> None:
        """Run the steps from `first` to `stop` - 1, which have equal settings; add their results to the blocks."""
        calls = self.calls[first:stop]
        drive = gathered([current for current, _, _ in calls])
        if is_constant(drive):  # the kernels then read one row in all steps
            drive = drive[:1]
        _, start, settings = calls[0]
        z, states, ends = self.layer.run(drive, stop - first, [now(state) for state in start], settings)
        z = z.to(self.layer.sent_dtype(z.dtype, settings))
        self.append(0, first, z)
        for output, state in enumerate(states, 1):
            self.append(output, first, state)
            # apart from the block, as a tensor of its own, which a library may change in place
            self.ends[output, stop - 1] = ends[output - 1]
        if 0 in self.layer.outputs:  # the layer stores its last spikes, too
            self.ends[0, stop - 1] = z[-1].clone()
        self.recording.count_steps(self.layer.layer, at_once=stop - first, in_all=len(self.calls))

    def value(self, output: int, index: int) -> Tensor:
        """Return one output of one step that has been computed."""
        # The output at the end of a run is no view: libraries detach it in place, which a view does not allow.
        end = self.ends.get((output, index))
        if end is None:
            return super().value(output, index)
        return end

    def like(self, output: int) -> Tensor:
        dtype = self.current.dtype  # states have the shape and dtype of currents
        if output == 0:
            _, _, settings = self.calls[0]
            dtype = self.layer.sent_dtype(dtype, settings)
        return torch.empty(self.current.shape, dtype=dtype, device="meta")


class FusedLayer(ABC):
    """A layer of another library, as it runs in an accelerated network.

    Args:
        layer: the layer.

    Attributes:
        kept_in: name of the layer's dict that holds its states.
        outputs: which results of a step are the states from which the next step starts; result 0 is the spikes.
        group: the group to which the last step was added.
        steps: the number of steps that were written down since :meth:`start`.
    """

    kept_in = "_buffers"

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.outputs: tuple[int, ...] = ()
        self.group: NeuronGroup | None = None
        self.steps = 0

    @classmethod
    @abstractmethod
    def refusal(cls, layer: Any) -> str | None:
        """Return why a layer of this class cannot be run at once; None if it can."""

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Take and return what the layer's own forward does, but write the step down."""

    @abstractmethod
    def settings(self) -> tuple[Any, ...]:
        """Return all that the layer's step depends on besides current and states, as it is now."""

    @abstractmethod
    def run(self, drive: Tensor, steps: int, start: Sequence[Any], settings: Any) -> Any:
        """Run steps at once by a kernel.

        Args:
            drive: currents (T, B, ...), or (1, B, ...) if they are the same in all steps.
            steps: T.
            start: the states before the first step, in the order of ``outputs``.
            settings: what :meth:`settings` returned.

        Returns:
            Spikes (T, B, ...), a tuple of states after each step, each (T, B, ...), and a tuple of states after the
            last step, each (B, ...).
        """

    def start(self, recording: Recording) -> None:
        """Let the layer write its steps down in a recording, from now on to :meth:`stop`."""
        self.recording = recording
        self.steps = 0
        self.before = dict(vars(self.layer)[self.kept_in])  # for give_back
        vars(self.layer)["forward"] = self.forward

    def stop(self) -> None:
        """Let the layer step by its own forward again."""
        vars(self.layer).pop("forward", None)

    def holds_steps(self) -> bool:
        """True if a state that the layer stores is a step that was written down."""
        return any(type(value) is LazyTensor for value in vars(self.layer)[self.kept_in].values())

    def give_back(self) -> None:
        """Put back the states that the layer held at :meth:`start`, as tensors."""
        vars(self.layer)[self.kept_in].update({name: now(value) for name, value in self.before.items()})

    def record(self, current: Any, states: Sequence[Any], settings: tuple[Any, ...]) -> list[LazyTensor]:
        """Write a step down; return its spikes and its states as lazy tensors.

        A current or state that belongs to another recording, or is known already, is written down by its value.

        Args:
            current: the input of the step, a lazy tensor or a tensor.
            states: the states from which the step starts, in the order of ``outputs``.
            settings: what :meth:`settings` returned.
        """
        recording = self.recording
        self.steps += 1
        if recording.has_changed:
            current = latest(current)
            states = [latest(state) for state in states]
        group = self.group
        form = current  # a tensor with its shape and dtype
        if type(current) is LazyTensor:
            form = current.form  # one object for all steps of a group
        if group is None or group.recording is not recording or group.current is not form or group.mode != mode():
            group = self._group(form)
        if type(current) is not LazyTensor or current.recording is not recording or current.group is None:
            current = group.keep(now(latest(current)))
        else:
            group.reads.add(current.group)
        has_known = False  # a state that the recording does not compute
        for state in states:
            if type(state) is not LazyTensor or state.recording is not recording or state.group is None:
                has_known = True
            elif state.group is not group:
                group.reads.add(state.group)
        if has_known:
            states = [recording.own(state) for state in states]
            states = [group.keep(state) if type(state) is Tensor else state for state in states]
        # Equal settings become one object, by which steps that continue each other are recognised.
        if group.settings is None or not all(map(is_, group.settings, settings)):
            group.settings = settings
            group.fix(settings)
        index = group.add((current, states, group.settings), reads=())  # they were added above
        return [LazyTensor.of_call(group, index, output) for output in self.sent]

    def _group(self, current: Tensor) -> NeuronGroup:
        """Find or make the group for steps of this recording in the present mode, with currents like this one."""
        recording = self.recording
        key = ("neurons", id(self.layer), current.shape, current.dtype, mode())
        group: Any = recording.groups.get(key)
        if group is None:
            group = NeuronGroup(recording, self, 1 + max(self.outputs), current)
            recording.groups[key] = group
        self.group = group
        self.sent = range(1 + max(self.outputs))  # numbers of all results of a step
        return group

    def sent_dtype(self, dtype: torch.dtype, settings: Any) -> torch.dtype:
        """Return the dtype of the spikes that the layer sends for currents of a dtype."""
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
        """Run the kernel of a neuron.

        Args:
            neuron: the kind of neuron.
            drive: as in :meth:`run`.
            steps: as in :meth:`run`.
            start: the states before the first step, without spikes.
            params: the neuron's parameters, tensors or numbers.
            slope: the derivative of its spikes.
            *recurrent: for a recurrent layer, the spikes before the first step, the weights and the bias.

        Returns:
            As :meth:`run`.

        Raises:
            CannotDeferError: if no kernel runs tensors of this dtype or device, or within a transform.
        """
        values = [on_device_of_currents(p, drive) for p in params]
        if not can_scan([drive, *start, *values]):
            if transformed(values):
                raise CannotDeferError(
                    "its values are asked for within torch.compile, vmap or another transform: ask for them before, for "
                    "instance by torch.stack."
                )
            raise CannotDeferError(
                f"no kernel runs {type(self.layer).__name__} on {drive.device.type} in {drive.dtype}."
            )
        if recurrent:
            scanned = recurrent_scan(neuron, drive, steps, start, values, slope, *recurrent)
        else:
            scanned = scan(neuron, drive, steps, start, values, slope)
        if slope.kind == NOTHING:  # no gradient goes through the spikes, as in the library
            return scanned._replace(z=scanned.z.detach())
        return scanned


def on_device_of_currents(value: Any, drive: Tensor) -> Tensor:
    """Return a parameter as a tensor on the device of the currents; a tensor with axes stays on its own device."""
    if not isinstance(value, Tensor):
        return torch.as_tensor(value, dtype=drive.dtype, device=drive.device)
    if value.ndim == 0 and value.device.type == "cpu":  # PyTorch, too, lets it meet a tensor on a GPU
        return value.to(drive.device)
    return value


def too_wide(weight: Tensor) -> str | None:
    """Return why no kernel runs neurons with such recurrent weights (n, n); None if one does."""
    if weight.device.type != "cpu" and len(weight) > WIDEST:
        return f"a GPU's kernel runs up to {WIDEST} recurrent neurons, and it has {len(weight)}"
    return None


# ---- a module of another library


def place_of(module: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    """Return the dict of a module that holds an attribute, and its name: nn.Module's own search would be slow."""
    for place in (module._parameters, module._buffers, module._modules):
        if name in place:
            return place, name
    return vars(module), name


def shown(function: Any) -> str:
    """Return the name of a function; of another object the name of its class."""
    return getattr(function, "__qualname__", type(function).__name__)
