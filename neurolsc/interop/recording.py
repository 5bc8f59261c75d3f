"""The run of a user's ``forward``: what it calls is written down, and computed when a value is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from threading import RLock
from typing import Any
from weakref import WeakValueDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from neurolsc.interop.groups import (
    LAZY,
    FunctionGroup,
    Group,
    InputGroup,
    SliceGroup,
    ancestors,
    compute,
    gathered,
    mode,
    ordered,
    share_memory,
    state_of,
)
from neurolsc.interop.lazy import CannotDeferError, LazyTensor, latest, lazies_in, replaced
from neurolsc.interop.lazy_functions import (
    IN_PLACE,
    OF_FORM,
    OF_GRADIENTS,
    OUT_OF_PLACE,
    RULES,
    VIEWS,
    Rule,
    always_repeats,
    as_slices,
    dropout_repeats,
    sliced,
)
from neurolsc.neurons.fast.scan import linear


class Recording:
    """The calls in one run of a user's ``forward``; with the loop over time outside, in its runs of several steps.

    Args:
        device: where all tensors of the run lie.
        when_flushed: called with the recording once calls have been computed: whoever keeps it has to make a new one.

    Attributes:
        count: the number of calls that have been written down.
        pending: the groups with calls that have not been computed, in the order in which they were first called.
        groups: all groups, by what their calls have in common.
        known: results of functions of inputs alone, and objects that must live on, so that no other gets their id.
        steps_of: for each layer of neurons, the most steps that it has run at once, and the number of all of its steps.
        flushed: True if calls have been computed.
        running: True inside the user's forward.
        has_changed: True if a lazy tensor was changed in place.
        families: for each result, by its :func:`place_of`, references to the tensors that may share its memory: itself
            and views of it.
        lock: lets one thread compute at a time.
        has_norms: True if a batch norm in training was called, which collects its statistics when it is computed.
    """

    def __init__(self, device: torch.device, when_flushed: Callable[[Recording], None] | None = None) -> None:
        self.device = device
        self.device_type = device.type  # kept, as every call of a function asks for it
        self.when_flushed = when_flushed
        self.count = 0
        self.pending: dict[Group, None] = {}  # an ordered set
        self.groups: dict[Any, Group] = {}
        self.known: dict[Any, Any] = {}
        self.steps_of: dict[nn.Module, tuple[int, int]] = {}
        self.flushed = False
        self.running = True
        self.has_changed = False
        self.has_norms = False
        self.families: dict[tuple[int, int, int], list[ref[Tensor]]] = {}
        self.lock = RLock()

    def count_steps(self, layer: nn.Module, at_once: int, in_all: int) -> None:
        """Note how many steps a layer of neurons has run at once, and how many it has in all."""
        most_at_once, most_in_all = self.steps_of.get(layer, (0, 0))
        self.steps_of[layer] = max(most_at_once, at_once), max(most_in_all, in_all)

    def own(self, value: Any) -> Any:
        """Return the value of a lazy tensor that is an input or belongs to another recording; all else as it is."""
        value = latest(value)
        if isinstance(value, LazyTensor) and (value.recording is not self or value.group is None):
            return value.now()
        return value

    def step(self, x: Tensor) -> LazyTensor:
        """Write down the input of one step of a network that takes one step a call; return it as a lazy tensor."""
        key = ("input", x.shape, x.dtype, mode())
        group: Any = self.groups.get(key)
        if group is None:
            group = InputGroup(self)
            self.groups[key] = group
        return LazyTensor.of_call(group, group.add(group.keep(x), reads=()))

    def source(self, x: Tensor) -> LazyTensor:
        """Return a known tensor as a lazy tensor, an input, whose slices along time are steps of the loop."""
        return LazyTensor.of_input(self, x)

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of lazy tensors: write the call down if a rule knows the function, else run it now.

        Returns:
            A lazy tensor if the call is written down or reads inputs alone; else what :meth:`run_or_pick` or
            :meth:`run` returns.
        """
        if self.has_changed:
            args = tuple(latest(arg) for arg in args)
        rule = RULES.get(func)
        if rule is None:
            return self.run_or_pick(func, args, kwargs)
        # None: the call must run now. `same` never says so, and is not asked: each call of each step comes here.
        if (rule.repeats is not always_repeats and rule.repeats(args, kwargs) is None) or "out" in kwargs:
            return self.run(func, args, kwargs)
        if torch.is_autocast_enabled(self.device_type):  # calls are computed later, without it
            if self.running:
                raise CannotDeferError("a part of it is under autocast.")
            return self.run(func, args, kwargs)
        # Calls of one group have equal keys: the function, the groups that it reads, and all other arguments.
        key: list[Any] = [func, mode()]
        deferred: list[LazyTensor] = []  # the arguments that are results of this recording's steps
        for arg in args:
            if type(arg) is LazyTensor:
                if arg.group is not None and arg.recording is self:
                    deferred.append(arg)
                    key += (id(arg.group), arg.output)
                    continue
                arg = latest(arg).now()
            key += key_of(arg)
        for name, arg in kwargs.items():
            if type(arg) is LazyTensor:
                return self.run(func, args, kwargs)
            key.append((name, key_of(arg)))
        try:
            if not deferred:
                return self.of_inputs(func, rule, args, kwargs, tuple(key))
            group = self.groups.get(tuple(key))
        except TypeError:  # a list or another value that has no hash
            return self.run(func, args, kwargs)
        if group is None:
            # compared by `is`, as == of lazy tensors is a call itself
            places = [LAZY if any(arg is lazy for lazy in deferred) else replaced(arg) for arg in args]
            group = FunctionGroup(self, func, rule, places, kwargs)
            group.fix([*places, *kwargs.values()])
            # a batch norm changes its statistics in training, and may later read them in evaluation
            if func is functional.batch_norm and (self.has_norms or not rule.repeats(args, kwargs)):
                self.in_order(group)
            self.groups[tuple(key)] = group
        result = LazyTensor.of_call(group, group.add(deferred, reads=deferred))
        if func in VIEWS or (rule.repeats is dropout_repeats and rule.repeats(args, kwargs)):
            self.alias(deferred[0], result)  # a dropout that does nothing returns its argument
        return result

    def alias(self, lazy: LazyTensor, view: Tensor) -> None:
        """Note that a tensor is, or may be, a view of a result."""
        family = self.families.setdefault(place_of(lazy), [])
        if not family:
            family.append(ref(lazy))
        family.append(ref(view))
        if type(view) is LazyTensor:
            self.families[place_of(view)] = family

    def has_views(self, lazy: LazyTensor) -> bool:
        """True if other tensors that may share the memory of a result are in use."""
        family = self.families.get(place_of(lazy), [])
        return any((member := each()) is not None and member is not lazy for each in family)

    def run_or_pick(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that has no rule.

        A selection is written down: of a step of an input, or of a part of a step. A function that reads no values is
        called with a tensor of any values; every other one is run now.
        """
        lazy = args[0]
        if not isinstance(lazy, LazyTensor):
            return self.run(func, args, kwargs)
        if func in OF_FORM:
            return func(lazy.without_values(), *args[1:], **kwargs)
        if lazy.group is not None:  # a result of a call, such as one step
            if func in OF_GRADIENTS:
                raise CannotDeferError(
                    f"{func.__name__} is called of a single step, which has no gradient of its own: call it of what "
                    "torch.stack returns."
                )
            if func is Tensor.__getitem__:
                index = as_slices(args[1])
                if index is not None:
                    return self.call(sliced, (lazy, *index), {})
            elif func in (torch.chunk, Tensor.chunk, torch.split, Tensor.split):
                return self.parts(func, lazy, args[1:], kwargs)
        elif not kwargs:  # an input
            if func is Tensor.__getitem__:
                index = args[1]
                axis = time_axis(index)
                if axis is not None:
                    return self.pick(lazy, axis, index[axis] if isinstance(index, tuple) else index)
            elif func is Tensor.__iter__:
                return (self.pick(lazy, 0, time) for time in range(lazy.shape[0]))
            elif func in (torch.unbind, Tensor.unbind):
                axis = args[1] if len(args) > 1 else 0
                return tuple(self.pick(lazy, axis, time) for time in range(lazy.shape[axis]))
        return self.run(func, args, kwargs)

    def parts(
        self, func: Callable[..., Any], lazy: LazyTensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Write down a ``chunk`` or ``split`` of a step as a slice for each part."""
        settings = dict(enumerate(args, start=1)) | kwargs  # argument 2, or "dim", is the axis
        axis = settings.get(2, settings.get("dim", 0)) % lazy.ndim
        before = ((None, None, None),) * axis  # all of the axes before it
        found = []
        start = 0
        for part in func(lazy.form, *args, **kwargs):
            stop = start + part.shape[axis]
            found.append(self.call(sliced, (lazy, *before, (start, stop, None)), {}))
            start = stop
        return tuple(found)

    def pick(self, lazy: LazyTensor, axis: int, time: int) -> LazyTensor:
        """Return one step of an input along its axis of time as a lazy tensor; IndexError if there is no such step."""
        source = lazy.now()
        length = source.shape[axis]
        if not -length <= time < length:
            raise IndexError(f"index {time} is out of bounds for dimension {axis} with size {length}")
        key = ("steps", id(source), state_of(source), axis, mode())
        group = self.groups.get(key)
        if group is None:
            group = SliceGroup(self, source.movedim(axis, 0))
            self.groups[key] = group
            self.known[key] = source  # an id is unique while its object lives
        return LazyTensor.of_call(group, group.add(time % length, reads=()))

    def in_order(self, group: FunctionGroup) -> None:
        """Let a batch norm's calls be computed in the order of the user's loop, as they change its statistics.

        Calls of one batch norm may be in several groups, or in another recording: these have the same fixed tensors.
        """
        self.has_norms = True
        fixed = {id(tensor) for tensor, _ in group.fixed}
        for identity in fixed:  # another sequence, or network, that waits may have called the same batch norm before
            before = WITH_NORMS.get(identity)
            if before is not None and before is not self and before.pending:
                before.flush()
            WITH_NORMS[identity] = self
        for other in self.groups.values():
            is_norm = isinstance(other, FunctionGroup) and other.func is group.func
            if is_norm and any(id(tensor) in fixed for tensor, _ in other.fixed):
                other.reads.add(group)  # groups that read each other are a circle: their calls are computed one by one
                group.reads.add(other)

    def of_inputs(
        self, func: Callable[..., Any], rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any
    ) -> Any:
        """Run a function of inputs alone, once for all calls with the same inputs; return its result as an input.

        Args:
            func: the function.
            rule: its rule.
            args: its arguments.
            kwargs: its keyword arguments.
            key: what calls with equal results have in common.

        Raises:
            TypeError: if the key has no hash.
        """
        if not any(type(arg) is LazyTensor for arg in args):  # the lazy tensors are in a list or tuple
            return self.run(func, args, kwargs)
        known = self.known.get(key)  # the result, and the arguments, whose ids in the key are unique while they live
        if known is None or not rule.repeats(args, kwargs):
            function = func
            if func is functional.linear and not kwargs:
                function = linear  # which leaves out the zeros of spikes
            result = function(*map(replaced, args), **kwargs)
            known = (result, args, kwargs)
            self.known[key] = known
        return LazyTensor.of_input(self, known[0], shared=True)

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function now, with the values of its lazy arguments.

        Returns:
            What the function returns; a tensor of two or more axes that is made of inputs alone is an input again.

        Raises:
            CannotDeferError: if it would change, in place, a tensor of the loop while the user's forward runs.
        """
        name = getattr(func, "__name__", "")
        if name in IN_PLACE or (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace"):
            self.known.clear()  # it may hold results of the tensor that changes now
            target = latest(args[0])
            if isinstance(target, LazyTensor) and target.group is not None:
                changed = self.change(func, name, args, kwargs)
                if changed is not None:
                    return changed
                if self.running:
                    raise CannotDeferError(f"a tensor of the loop is changed in place by {name}.")
                if target.recording.has_views(target):
                    raise CannotDeferError(
                        f"a step is changed in place by {name} while views of it, such as its detach(), are in use: they "
                        "would not follow. Change a clone."
                    )
            if isinstance(target, LazyTensor) and (target.group is not None or target.shared):
                # Others read the value: calls that wait, the backward pass, other lazy tensors. So a clone of it is
                # changed in its place, which keeps its history.
                value = target.now()
                with torch.inference_mode(value.is_inference()), torch.set_grad_enabled(value.requires_grad):
                    own = LazyTensor.of_input(self, value.clone())
                self.replace(target, own)
                args = (own, *args[1:])
        lazies = lazies_in((args, kwargs))
        self.flush([lazy.group for lazy in lazies if lazy.group is not None and lazy.recording is self])
        only_inputs = all(lazy.group is None for lazy in lazies)
        result = func(*replaced(args), **replaced(kwargs))
        for view in tree_leaves(result):
            for lazy in lazies:
                if type(view) is Tensor and lazy.group is not None and share_memory(view, lazy.now()):
                    self.alias(lazy, view)
        if self.running and only_inputs and type(result) is Tensor and result.ndim > 1:
            return self.source(result)
        return result

    def change(
        self, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> LazyTensor | None:
        """Write down a change in place as a new tensor, which replaces the old one for all that hold it.

        Args:
            func: a function that changes its first argument in place, by its name or by ``inplace=True``.
            name: its name, such as "add_".
            args: its arguments, the first of them a result of a call.
            kwargs: its keyword arguments.

        Returns:
            The first argument, now with the new value; None if the change cannot be written down.
        """
        target = latest(args[0])
        of_step = isinstance(target.group, SliceGroup | InputGroup)  # a part of the user's own tensor
        out_of_place = func if kwargs.get("inplace") else OUT_OF_PLACE.get(name)
        if out_of_place is None or of_step or place_of(target) in target.recording.families:
            return None
        # A change under no_grad keeps the history of its target, which a new tensor would lose.
        if mode() != target.group.mode:
            return None
        new = self.call(out_of_place, args, {name: value for name, value in kwargs.items() if name != "inplace"})
        if type(new) is not LazyTensor or new.group is None:
            return None
        if (new.shape, new.dtype) != (target.shape, target.dtype):
            return None
        self.replace(target, new)
        return target

    def replace(self, old: LazyTensor, new: LazyTensor) -> None:
        """Let all that hold a lazy tensor see another one, except the calls that were written down before."""
        old.changed = new
        old.recording.has_changed = True
        self.has_changed = True

    def stack(self, tensors: Sequence[Any], dim: int = 0) -> LazyTensor | Tensor:
        """Stack tensors, the first of them a step of this recording.

        Returns:
            Inside the user's forward a lazy tensor, an input; outside of it a tensor.
        """
        self.flush([tensors[0].group])
        stacked = gathered(tensors)
        if dim != 0:
            stacked = stacked.movedim(0, dim)
        stacked = stacked.clone(memory_format=torch.contiguous_format)  # the caller may change it in place
        if self.running:
            return self.source(stacked)
        return stacked

    def flush(self, wanted: Iterable[Group] | None = None) -> None:
        """Compute all calls that have been written down and not computed.

        Args:
            wanted: groups whose calls are computed, with those of all groups that they read; None: all groups.
        """
        self.flushed = True
        with self.lock:
            self._compute_waiting(wanted)
        if self.when_flushed is not None:
            self.when_flushed(self)

    def _compute_waiting(self, wanted: Iterable[Group] | None) -> None:
        """Do what :meth:`flush` says; one thread does at a time."""
        waiting = [group for group in self.pending if group.done < len(group.calls)]
        if wanted is not None:
            read = ancestors(wanted)
            waiting = [group for group in waiting if group in read]
        # First the groups that read no circle of groups, each for all steps at once.
        ready, left = ordered(waiting)
        for group in ready:
            compute(group, last=len(group.calls) - 1)
        # Then the groups of circles, one call after the other, in the order in which the user's loop made them.
        behind, circle = ordered(left, downwards=True)
        calls = [(place, group) for group in circle for place in group.order[group.done :]]
        for _, group in sorted(calls, key=itemgetter(0)):
            compute(group, last=group.done)
        # Last the groups that read a circle and are in none, again all steps at once; `behind` has readers first.
        for group in reversed(behind):
            compute(group, last=len(group.calls) - 1)
        for group in waiting:
            del self.pending[group]


# the last recording that called a batch norm, by the id of each tensor that the batch norm reads
WITH_NORMS: WeakValueDictionary[int, Recording] = WeakValueDictionary()


def place_of(lazy: LazyTensor) -> tuple[int, int, int]:
    """Return what identifies a result: the id of its group, the number of its call, and the number of its output."""
    return id(lazy.group), lazy.number, lazy.output


def key_of(value: Any) -> Any:
    """Return a key that is equal for equal arguments: a tensor's identity and state; else type and value."""
    if isinstance(value, Tensor):
        return (id(value), state_of(value))
    return (type(value), value)


def time_axis(index: Any) -> int | None:
    """Return the axis along which an index picks one position: 0 for ``x[t]``, 1 for ``x[:, t]``, -1 for ``x[..., t]``.

    None for every other index.
    """
    if picks_one(index):
        return 0
    if not isinstance(index, tuple):
        return None
    if len(index) == 2 and index[0] is Ellipsis and picks_one(index[1]):
        return -1
    picked = [axis for axis, part in enumerate(index) if picks_one(part)]
    others = [part for part in index if not picks_one(part)]
    if len(picked) == 1 and all(isinstance(part, slice) and part == slice(None) for part in others):
        return picked[0]
    return None


def picks_one(part: Any) -> bool:
    """True for an int, except True and False, which add an axis to what they index."""
    return isinstance(part, int) and not isinstance(part, bool)
