"""Tensors that are computed later, so that a loop over time becomes one call for all of its steps.

While a user's ``forward`` runs, its tensors are lazy: a call of a neuron or of a function of PyTorch is written down,
and computed when a value is needed. The same call in every step forms a *group*. A group whose arguments are known is
computed at once, for all steps that have been written down: neurons by a scan over time, functions over (T B).

What a step needs of its own earlier results, such as an explicit recurrent connection, makes groups depend on each
other in a circle. These run step by step, in the order of the user's loop. Everything that is not known here asks for
its values and runs as ever, so that only the order of computation changes, and never what is computed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial, wraps
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from neurolsc.interop.lazy_functions import IN_PLACE, OF_FORM, RULES, Rule, concatenated, same
from neurolsc.neurons.fast.scan import linear


class CannotDeferError(RuntimeError):
    """A lazy tensor was used in a way that only a tensor allows."""


class Group(ABC):
    """Calls that do the same in different steps.

    Args:
        recording: the recording to which the group belongs.
        outputs: the number of results of one call.

    Attributes:
        calls: the lazy arguments of each call.
        order: the place of each call among all calls of the recording.
        done: the number of calls that have been computed; these are the first ones.
        reads: the groups that its calls read.
        blocks: for each output, the results that have been computed, in blocks that :meth:`append` adds.
        mode: that in which the calls were made, of :func:`mode`.
        unbound: for each output that was read one by one, its results as a list.
        forms: for each output, what :meth:`like` has returned: all calls have results of that shape and dtype.
        fixed: tensors that all calls read, such as weights, and how often each had been changed in place.
    """

    def __init__(self, recording: Recording, outputs: int) -> None:
        self.recording = recording
        self.calls: list[Any] = []
        self.order: list[int] = []
        self.done = 0
        self.reads: set[Group] = set()
        self.blocks: list[list[tuple[int, Tensor]]] = [[] for _ in range(outputs)]
        self.mode = mode()
        self.unbound: dict[int, list[Tensor]] = {}
        self.forms: dict[int, Tensor] = {}
        self.fixed: list[tuple[Tensor, int]] = []

    @abstractmethod
    def compute(self, last: int) -> None:
        """Compute the calls from number ``done`` to number `last`, and add their results to the blocks."""

    def fix(self, values: Iterable[Any]) -> None:
        """Note tensors that the calls read, and that must not change before they are computed."""
        for value in values:
            if isinstance(value, Tensor) and not isinstance(value, LazyTensor):
                self.fixed.append((value, version_of(value)))

    def check_fixed(self) -> None:
        """Raise a RuntimeError if one of the noted tensors has been changed in place."""
        if any(version_of(tensor) != version for tensor, version in self.fixed):
            raise RuntimeError(
                "a tensor that an accelerated network reads, such as a weight or a buffer, has been changed in place "
                "before a value of an earlier step was asked for: ask for the values first, for instance by torch.stack."
            )

    @abstractmethod
    def like(self, output: int) -> Tensor:
        """Return a tensor on the meta device with the shape and dtype of a result of the first call."""

    def add(self, call: Any, reads: Iterable[LazyTensor]) -> int:
        """Write a call down and return its number in the group.

        Args:
            call: its lazy arguments, in the form that ``compute`` of the group takes.
            reads: the lazy tensors whose groups must be computed before.
        """
        self.calls.append(call)
        self.order.append(self.recording.count)
        self.recording.count += 1
        self.recording.pending[self] = None
        for lazy in reads:
            self.reads.add(lazy.group)
        return len(self.order) - 1

    def append(self, output: int, start: int, block: Tensor) -> None:
        """Add a block: the results of one output for the calls from `start` on, stacked along axis 0."""
        self.blocks[output].append((start, block))

    def value(self, output: int, index: int) -> Tensor:
        """Return one result of one call that has been computed."""
        unbound = self.unbound.setdefault(output, [])
        for start, block in self.blocks[output]:
            # Each block is unbound once: T selections from it would each fill a gradient of T steps.
            if start >= len(unbound):
                unbound.extend(block.unbind(0))
        return unbound[index]

    def stacked(self, output: int, first: int, last: int) -> Tensor:
        """Stack the results of the calls from `first` to `last`, `last` included, along axis 0."""
        for start, block in self.blocks[output]:
            if start <= first and last < start + len(block):  # all lie in one block: a view of it
                if len(block) == last - first + 1:
                    return block
                return block[first - start : last - start + 1]
        return torch.stack([self.value(output, index) for index in range(first, last + 1)])


class SliceGroup(Group):
    """The steps ``x[t]`` or ``x[:, t]`` of an input; a call is the number t of its step, and computes nothing."""

    def __init__(self, recording: Recording, source: Tensor) -> None:
        super().__init__(recording, outputs=1)
        self.source = source  # the axis of time first

    def compute(self, last: int) -> None:
        """Collect the steps from number ``done`` to number `last` as one block."""
        times = self.calls[self.done : last + 1]
        first = times[0]
        stop = first + len(times)
        if times == list(range(first, stop)):  # the usual loop: a view
            block = self.source[first:stop]
        else:
            block = self.source[torch.tensor(times, device=self.source.device)]
        self.append(0, self.done, block)

    def like(self, output: int) -> Tensor:
        return self.source[0].to("meta")


class InputGroup(Group):
    """What a network that takes one step a call has read; a call is its input, and computes nothing."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording, outputs=1)
        self.versions: list[int] = []  # of each input, as it was read
        self.last: Tensor | None = None  # the input that was read last

    def kept(self, x: Tensor) -> Tensor:
        """Return what is kept of an input until it is computed: of a view such as ``data[step]`` itself, else a copy.

        A loop may fill one tensor anew for each step. The same input, unchanged, is copied once.
        """
        version = version_of(x)
        if x is self.last and version == self.versions[-1]:
            kept = self.calls[-1]
        elif x._is_view():
            kept = x
        else:
            kept = x.clone()
        self.last = x
        self.versions.append(version)
        return kept

    def compute(self, last: int) -> None:
        """Collect the inputs from number ``done`` to number `last` as one block.

        Raises:
            RuntimeError: if an input has been changed in place since it was read.
        """
        inputs = self.calls[self.done : last + 1]
        versions = self.versions[self.done : last + 1]
        if any(x._is_view() and version_of(x) != version for x, version in zip(inputs, versions, strict=True)):
            raise RuntimeError(
                "an input of an accelerated network has been changed in place before a value of that step was asked for: "
                "give each step a tensor of its own, x[t]."
            )
        first = inputs[0]
        if all(x is first for x in inputs):  # the same input in every step takes no memory
            block = first.expand(len(inputs), *first.shape)
        else:
            block = torch.stack(inputs)
        self.append(0, self.done, block)

    def like(self, output: int) -> Tensor:
        return self.calls[0].to("meta")


class FunctionGroup(Group):
    """A function of PyTorch, with the same settings and weights in all steps; a call is its lazy arguments.

    Args:
        recording: as in :class:`Group`.
        func: the function.
        rule: how it is called for all steps at once.
        args: its arguments, with LAZY in place of each lazy one.
        kwargs: its keyword arguments, none of which is lazy.
    """

    def __init__(self, recording: Recording, func: Callable[..., Any], rule: Rule, args: Any, kwargs: Any) -> None:
        super().__init__(recording, outputs=1)
        self.func = func
        self.rule = rule
        self.args = args
        self.kwargs = kwargs

    def compute(self, last: int) -> None:
        """Compute the calls from `done` to `last`, one for each step: by one call if the rule can, else one by one."""
        calls = self.calls[self.done : last + 1]
        if len(calls) > 1 and self.rule.batched is not None:
            blocks = [gathered(argument) for argument in zip(*calls, strict=True)]  # each lazy argument in all steps
            shapes = [block.shape[1:] for block in blocks]
            all_constant = all(is_constant(block) for block in blocks)
            if all_constant and self.rule.repeats(self.args, self.kwargs):  # the result of one step is that of all
                blocks = [block[:1] for block in blocks]
            result = self.rule.batched(self.func, self.arguments(blocks), self.kwargs, shapes)
            if result is not None:  # None: the rule knows these arguments in single steps alone
                self.append(0, self.done, result.expand(len(calls), *result.shape[1:]))
                return
        results = []
        for call in calls:
            arguments = self.arguments([lazy.now() for lazy in call])
            results.append(self.func(*arguments, **self.kwargs))
        if len(results) == 1:
            block = results[0].unsqueeze(0)  # a view; a stack would copy
        else:
            block = torch.stack(results)
        self.append(0, self.done, block)

    def arguments(self, values: Sequence[Any]) -> list[Any]:
        """Return the arguments of the function, with these values in the places of the lazy ones."""
        rest = iter(values)
        return [next(rest) if arg is LAZY else arg for arg in self.args]

    def like(self, output: int) -> Tensor:
        args = self.arguments([lazy.form for lazy in self.calls[0]])
        kwargs = [(name, description_of(arg)) for name, arg in self.kwargs.items()]
        return form_of_result(self.func, tuple(map(description_of, args)), tuple(kwargs))


class Description(NamedTuple):
    """What of an argument decides the shape and dtype of a result: of a tensor these two, else all."""

    kind: Any  # its type, as True == 1 == 1.0; of a tensor its dtype
    value: Any  # of a tensor its shape

    def example(self) -> Any:
        """Return the argument, of a tensor one of zeros."""
        if isinstance(self.kind, torch.dtype):
            return torch.zeros(self.value, dtype=self.kind)
        return self.value


def description_of(value: Any) -> Description:
    """Describe an argument of a function."""
    if isinstance(value, Tensor):
        return Description(value.dtype, value.shape)
    return Description(type(value), value)


@lru_cache(maxsize=4096)
def form_of_result(func: Callable[..., Any], args: tuple[Description, ...], kwargs: tuple[Any, ...]) -> Tensor:
    """Return a meta tensor with the shape and dtype of what a function returns.

    It is called with zeros, once for each description of its arguments: on the meta device, many functions of PyTorch
    import its compiler.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        result = func(*[arg.example() for arg in args], **{name: arg.example() for name, arg in kwargs})
    return torch.empty(result.shape, dtype=result.dtype, device="meta")


LAZY = object()  # stands for a lazy argument of a function group


def gathered(values: Sequence[Any]) -> Tensor:
    """Stack the values of lazy tensors or tensors along axis 0, without a copy where none is needed."""
    first = values[0]
    if all(value is first for value in values):
        return now(first).expand(len(values), *first.shape)
    if isinstance(first, LazyTensor):
        group = first.group
        output = first.output
        index = first.number
        successive = all(
            isinstance(value, LazyTensor)
            and value.group is group
            and value.output == output
            and value.number == index + place
            for place, value in enumerate(values)
        )
        if successive:
            return group.stacked(output, index, index + len(values) - 1)
    return torch.stack([now(value) for value in values])


def is_constant(block: Tensor) -> bool:
    """True if a block (T, ...) has several steps and all are the same memory, as after ``expand``."""
    return len(block) > 1 and block.stride(0) == 0


def now(value: Any) -> Any:
    """Return the value of a lazy tensor, computed if it has not been; another value as it is."""
    if isinstance(value, LazyTensor):
        return value.now()
    return value


class Recording:
    """The calls of one run of a user's ``forward``, as far as they have been written down.

    Args:
        device: where all tensors of the run lie.

    Attributes:
        count: the number of calls.
        pending: the groups with calls that have not been computed, in the order in which they were first called.
        groups: all groups, by what their calls have in common.
        known: results of functions of inputs alone, and objects that must live on, so that no other gets their id.
        longest: the most steps that a layer of neurons has run at once.
        most_steps: the most steps of a layer of neurons, at once or not.
        flushed: True if calls have been computed.
        running: True inside the user's forward.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.count = 0
        self.pending: dict[Group, None] = {}
        self.groups: dict[Any, Group] = {}
        self.known: dict[Any, Any] = {}
        self.longest = 0
        self.most_steps = 0
        self.flushed = False
        self.running = True

    def count_steps(self, at_once: int, in_all: int) -> None:
        """Note how many steps a layer of neurons has run at once, and how many it has in all."""
        self.longest = max(self.longest, at_once)
        self.most_steps = max(self.most_steps, in_all)

    def own(self, value: Any) -> Any:
        """Return the value of a lazy tensor that is an input or of another recording; all else as it is."""
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
        return LazyTensor.of_call(group, group.add(group.kept(x), reads=()))

    def source(self, x: Tensor) -> LazyTensor:
        """Return a known tensor as a lazy one, an input: its slices along time are steps of the loop."""
        return LazyTensor.of_input(self, x)

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of lazy tensors: write the call down if a rule knows the function, else run it now.

        Returns:
            A lazy tensor; or what the function returns, if it is run and its result is no input.
        """
        rule = RULES.get(func)
        if rule is None:
            return self.run_or_pick(func, args, kwargs)
        # `same` never returns None: it is not called, since this line runs at every call of every step
        if (rule.repeats is not same and rule.repeats(args, kwargs) is None) or "out" in kwargs:
            return self.run(func, args, kwargs)
        if torch.is_autocast_enabled(self.device.type):  # calls are computed later, without it
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
                arg = arg.now()
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
            places = [LAZY if any(arg is lazy for lazy in deferred) else now(arg) for arg in args]
            group = FunctionGroup(self, func, rule, places, kwargs)
            group.fix([*places, *kwargs.values()])
            if func is functional.batch_norm and rule.repeats(args, kwargs) is False:
                self.in_order(group)
            self.groups[tuple(key)] = group
        return LazyTensor.of_call(group, group.add(deferred, reads=deferred))

    def run_or_pick(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Write down that a step of an input is picked; run any other function, without a value where it reads none."""
        lazy = args[0]
        if func in OF_FORM:
            return func(lazy.without_values(), *args[1:], **kwargs)
        if isinstance(lazy, LazyTensor) and lazy.group is None and not kwargs:
            if func is Tensor.__getitem__:
                index = args[1]
                axis = time_axis(index)
                if axis is not None:
                    return lazy.step(axis, index[axis] if isinstance(index, tuple) else index)
            elif func is Tensor.__iter__:
                return (lazy.step(0, time) for time in range(lazy.shape[0]))
            elif func in (torch.unbind, Tensor.unbind):
                axis = args[1] if len(args) > 1 else 0
                return tuple(lazy.step(axis, time) for time in range(lazy.shape[axis]))
        return self.run(func, args, kwargs)

    def in_order(self, group: FunctionGroup) -> None:
        """Let the calls of a batch norm in training be computed in the order of the user's loop, as each changes it."""
        fixed = {id(tensor) for tensor, _ in group.fixed}
        for other in self.groups.values():
            is_norm = isinstance(other, FunctionGroup) and other.func is group.func
            if is_norm and any(id(tensor) in fixed for tensor, _ in other.fixed):
                other.reads.add(group)  # a circle, whose calls are computed one by one
                group.reads.add(other)

    def of_inputs(
        self, func: Callable[..., Any], rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any
    ) -> Any:
        """Run a function of inputs alone, once however often it is called with the same ones; return an input.

        Args:
            func: the function.
            rule: its rule.
            args: its arguments.
            kwargs: its keyword arguments.
            key: what calls with equal results have in common.

        Raises:
            TypeError: if the key has no hash.
        """
        if not any(type(arg) is LazyTensor for arg in args):  # the lazy ones lie in a list or tuple
            return self.run(func, args, kwargs)
        known = self.known.get(key)
        if known is None or not rule.repeats(args, kwargs):
            function = func
            if func is functional.linear and not kwargs:
                function = linear  # which leaves out the zeros of spikes
            result = function(*map(now, args), **kwargs)
            known = (self.source(result), args)  # args: an id is unique while its object lives
            self.known[key] = known
        return known[0]

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function now, with the values of its lazy arguments.

        Returns:
            What the function returns; a tensor of two or more axes that is made of inputs alone is an input again.

        Raises:
            CannotDeferError: if it would change, in place, a tensor of the loop while the user's forward runs.
        """
        name = getattr(func, "__name__", "")
        if name in IN_PLACE or (name.endswith("_") and not name.endswith("__")):
            self.known.clear()  # what was computed of a tensor that now changes
            target = args[0]
            if isinstance(target, LazyTensor) and target.group is not None:
                if self.running:
                    raise CannotDeferError(f"a tensor of the loop is changed in place by {name}.")
                # the backward pass may read the value, and one step is a view, which PyTorch does not let change
                target.value = target.now().clone()
        lazies = lazies_in((args, kwargs))
        self.flush([lazy.group for lazy in lazies if lazy.group is not None and lazy.recording is self])
        only_inputs = all(lazy.group is None for lazy in lazies)
        result = func(*replaced(args), **replaced(kwargs))
        if only_inputs and type(result) is Tensor and result.ndim > 1:
            return self.source(result)
        return result

    def flush(self, wanted: Iterable[Group] | None = None) -> None:
        """Compute all calls that have been written down and not computed.

        Args:
            wanted: only those of these groups, and of all groups that they read; None: of all groups.
        """
        self.flushed = True
        waiting = [group for group in self.pending if group.done < len(group.calls)]
        if wanted is not None:
            read = ancestors(wanted)
            waiting = [group for group in waiting if group in read]
        # First groups that read no circle, all of their steps at once.
        ready, left = ordered(waiting)
        for group in ready:
            compute(group, last=len(group.calls) - 1)
        # Then the groups of circles, one call after the other as the user's loop made them.
        behind, circle = ordered(left, downwards=True)
        calls = [(place, group) for group in circle for place in group.order[group.done :]]
        for _, group in sorted(calls, key=itemgetter(0)):
            compute(group, last=group.done)
        # Then those that read a circle and are in none, again all steps at once; they come with readers first.
        for group in reversed(behind):
            compute(group, last=len(group.calls) - 1)
        for group in waiting:
            del self.pending[group]


def ancestors(groups: Iterable[Group]) -> set[Group]:
    """Return groups, and all that they read, directly or through others."""
    seen: set[Group] = set()
    unvisited = list(groups)
    while unvisited:
        group = unvisited.pop()
        if group not in seen:
            seen.add(group)
            unvisited.extend(group.reads)
    return seen


def compute(group: Group, last: int) -> None:
    """Compute the calls of a group up to number `last`, in the mode in which they were made.

    Raises:
        RuntimeError: if a tensor that all of them read, such as a weight, has been changed in place since.
    """
    group.check_fixed()
    with_gradients, inference = group.mode
    with (
        torch.inference_mode(inference),
        torch.set_grad_enabled(with_gradients),
        torch.autocast(group.recording.device.type, enabled=False),  # a loss may be under it, which asks for the value
    ):
        group.compute(last)
    group.done = last + 1
    group.fixed = [(tensor, version_of(tensor)) for tensor, _ in group.fixed]  # a batch norm changes its statistics


def ordered(groups: list[Group], *, downwards: bool = False) -> tuple[list[Group], list[Group]]:
    """Sort groups topologically.

    Args:
        groups: groups that have not been computed.
        downwards: put a group after those that read it, not after those that it reads.

    Returns:
        Those that can be put into such an order, and the rest: circles, and all that would come after one.
    """
    before: dict[Group, set[Group]] = {group: set() for group in groups}  # what must come first and has not been placed
    for group in groups:
        for read in group.reads:
            if read in before and downwards:
                before[read].add(group)
            elif read in before:
                before[group].add(read)
    order: list[Group] = []
    free = [group for group in groups if not before[group]]
    after: dict[Group, list[Group]] = {group: [] for group in groups}
    for group, others in before.items():
        for other in others:
            after[other].append(group)
    while free:
        group = free.pop()
        order.append(group)
        for other in after[group]:
            before[other].discard(group)
            if not before[other]:
                free.append(other)
    placed = set(order)
    return order, [group for group in groups if group not in placed]


def mode() -> tuple[bool, bool]:
    """Return whether gradients are enabled, and whether inference mode is."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def key_of(value: Any) -> Any:
    """Return a key that is equal for equal arguments: of a tensor its identity and version, else type and value."""
    if isinstance(value, Tensor):
        return (id(value), version_of(value))
    return (type(value), value)


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor has been changed in place; 0 for inference tensors, which do not count it."""
    if tensor.is_inference():
        return 0
    return tensor._version


def lazies_in(tree: Any) -> list[LazyTensor]:
    """List all lazy tensors in nested tuples, lists and dicts."""
    if isinstance(tree, LazyTensor):
        return [tree]
    if isinstance(tree, dict):
        return [lazy for part in tree.values() for lazy in lazies_in(part)]
    if isinstance(tree, tuple | list):
        return [lazy for part in tree for lazy in lazies_in(part)]
    return []


def replaced(tree: Any) -> Any:
    """Return nested tuples, lists and dicts with values for lazy tensors; the same object where it holds none."""
    if isinstance(tree, LazyTensor):
        return tree.now()
    if not lazies_in(tree):
        return tree
    if isinstance(tree, dict):
        return type(tree)((name, replaced(part)) for name, part in tree.items())
    parts = [replaced(part) for part in tree]
    if hasattr(tree, "_fields"):  # a NamedTuple
        return type(tree)(*parts)
    return type(tree)(parts)


def stack(tensors: Sequence[Any], dim: int = 0) -> LazyTensor | Tensor | None:
    """Stack lazy tensors as ``torch.stack`` does, without a copy where they are the results of successive steps.

    Returns:
        Inside the user's forward a lazy tensor, an input; outside of it a tensor. None if the first of the tensors is
        no result of a step.
    """
    first = tensors[0]
    if not isinstance(first, LazyTensor) or first.group is None:
        return None
    first.recording.flush([first.group])
    stacked = gathered(tensors)
    if dim != 0:
        stacked = stacked.movedim(0, dim)
    stacked = stacked.contiguous()
    if first.recording.running:
        return first.recording.source(stacked)
    return stacked


without_memory: Callable[..., Any] = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]


class LazyTensor(Tensor):
    """One result of a call that may not have been computed, or an input.

    It is a tensor without memory, of the shape, dtype and device of its value. PyTorch hands every function of it to
    ``__torch_function__``, and C code that goes by that to ``__torch_dispatch__``.

    Attributes:
        recording: the recording to which it belongs.
        group: the group of the call; None for an input.
        number: that of the call in its group.
        output: which result of the call it is.
        form: a tensor with its shape and dtype.
        value: the value, where it is known.
    """

    __slots__ = ("form", "group", "number", "output", "recording", "value")  # thousands are made

    recording: Recording
    group: Any
    number: int
    output: int
    form: Tensor
    value: Tensor | None

    @staticmethod
    def of_call(group: Group, number: int, output: int = 0) -> LazyTensor:
        """Return one result of a call, which may not have been computed."""
        form = group.forms.get(output)
        if form is None:
            form = group.like(output)
            group.forms[output] = form
        lazy = without_memory(LazyTensor, form.shape, dtype=form.dtype, device=group.recording.device)
        lazy.recording = group.recording
        lazy.group = group
        lazy.number = number
        lazy.output = output
        lazy.form = form
        lazy.value = None
        return lazy

    @staticmethod
    def of_input(recording: Recording, x: Tensor) -> LazyTensor:
        """Return a lazy tensor whose value is x: no call computes it."""
        lazy = without_memory(LazyTensor, x.shape, dtype=x.dtype, device=x.device)
        lazy.recording = recording
        lazy.group = None
        lazy.number = 0
        lazy.output = 0
        lazy.form = x
        lazy.value = x
        return lazy

    def now(self) -> Tensor:
        """Return the value, computed if it has not been."""
        value = self.value
        if value is None:
            if self.group.done <= self.number:
                self.recording.flush([self.group])
            value = self.group.value(self.output, self.number)
            self.value = value
        return value

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Take a call of any function of PyTorch with a lazy tensor among its arguments."""
        kwargs = kwargs or {}
        if args and type(args[0]) is LazyTensor:
            return args[0].recording.call(func, args, kwargs)
        if func in (torch.stack, torch.cat) and args and isinstance(args[0], list | tuple) and args[0]:
            if len(args) > 1:
                dim = args[1]
            else:
                dim = kwargs.get("dim", 0)
            if func is torch.stack:
                stacked = stack(args[0], dim)
                if stacked is not None:
                    return stacked
            elif dim:  # within a step: deferred, with its lazy tensors as arguments of their own
                func = concatenated
                args = (dim, *args[0])
                kwargs = {}
        for arg in args:
            if type(arg) is LazyTensor:
                return arg.recording.call(func, args, kwargs)
        # The lazy tensors are in lists or keyword arguments.
        return lazies_in((args, kwargs))[0].recording.run(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of C code, such as the copy that ``torch.tensor`` makes, with values.

        Raises:
            CannotDeferError: if a gradient would be lost, as C code sees no history in a lazy tensor.
        """
        with torch.overrides.enable_reentrant_dispatch():  # else values would be computed without gradients
            values = replaced((args, kwargs or {}))
        passes_gradients = torch.is_grad_enabled() and func is not torch.ops.aten.detach.default
        if passes_gradients and any(v.requires_grad for v in tree_leaves(values) if isinstance(v, Tensor)):
            raise CannotDeferError(
                f"C code, such as a scripted function, called {func} with a lazy tensor: give it what torch.stack returns."
            )
        return func(*values[0], **values[1])

    # These are asked for often, and known without the value.

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        return self.form.shape

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.form.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.recording.device

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return self.form.ndim

    @property
    def is_sparse(self) -> bool:  # type: ignore[override]
        return self.form.is_sparse

    def without_values(self) -> Tensor:
        """Return a tensor of its shape, dtype and device with any values."""
        return torch.empty_like(self.form, device=self.device)

    def step(self, axis: int, time: int) -> LazyTensor:
        """Write down the use of one step of an input along its axis of time; IndexError if it has no such step."""
        source = self.now()
        length = source.shape[axis]
        if not -length <= time < length:
            raise IndexError(f"index {time} is out of bounds for dimension {axis} with size {length}")
        key = ("steps", id(source), axis, mode())
        group = self.recording.groups.get(key)
        if group is None:
            group = SliceGroup(self.recording, source.movedim(axis, 0))
            self.recording.groups[key] = group
            self.recording.known[key] = source  # an id is unique while its object lives
        return LazyTensor.of_call(group, group.add(time % length, reads=()))


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
    """True for a whole number; True and False are none: in an index they add an axis."""
    return isinstance(part, int) and not isinstance(part, bool)


_apply = torch.autograd.Function.__dict__["apply"].__func__


@wraps(_apply)
def apply_to_tensors(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    """Apply an autograd function to the values of lazy tensors.

    Its C code takes what says that it is a tensor for one, and would read memory that a lazy tensor does not have.
    """
    for arg in args:
        if type(arg) is LazyTensor:
            return arg.recording.run(partial(_apply, cls), args, kwargs)
    return _apply(cls, *args, **kwargs)


torch.autograd.Function.apply = classmethod(apply_to_tensors)  # type: ignore[assignment]
