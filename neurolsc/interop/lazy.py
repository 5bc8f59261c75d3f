"""Tensors that are computed later, so that a loop over time becomes one call for all of its steps.

While a user's ``forward`` runs, its tensors are lazy: a call of a neuron or of a function of PyTorch is written down,
and computed when a value is needed. The same call in every step forms a *group*. A group whose arguments are known is
computed at once, for all steps that have been written down: neurons by a scan over time, functions over (T B).

What a step needs of its own earlier results, such as an explicit recurrent connection, makes groups depend on each
other in a circle. These run step by step, in the order of the user's loop. Everything that is not known here asks for
its values and runs as ever, so that only the order of computation changes, and never what is computed.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from neurolsc.interop.lazy_functions import IN_PLACE, RULES, Rule, concatenated, same
from neurolsc.neurons.fast.scan import linear


class CannotDeferError(RuntimeError):
    """A lazy tensor was used in a way that only a tensor allows."""


class Group(ABC):
    """Calls that do the same in different steps.

    Attributes:
        calls: the lazy arguments of each call.
        order: the place of each call among all calls of the recording.
        done: the number of calls that have been computed.
        reads: the groups that its calls read.
    """

    def __init__(self, recording: Recording, outputs: int) -> None:
        self.recording = recording
        self.calls: list[Any] = []
        self.order: list[int] = []
        self.done = 0
        self.reads: set[Group] = set()
        self.blocks: list[list[tuple[int, Tensor]]] = [[] for _ in range(outputs)]  # see `append`
        self.grad = torch.is_grad_enabled()
        self.unbound: dict[int, list[Tensor]] = {}  # results one by one, of each output

    @abstractmethod
    def compute(self, last: int) -> None:
        """Compute the calls up to one, and add their results to the blocks."""

    @abstractmethod
    def like(self, output: int, index: int) -> Tensor:
        """A tensor on the meta device with the shape and dtype of a result that has not been computed."""

    def add(self, call: Any, reads: Iterable[LazyTensor]) -> int:
        """Write a call down and return its index."""
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
        """The result of one call."""
        unbound = self.unbound.setdefault(output, [])
        for start, block in self.blocks[output]:
            if start >= len(unbound):  # unbound once: T selections would each fill a gradient of T steps
                unbound.extend(block.unbind(0))
        return unbound[index]

    def stacked(self, output: int, first: int, last: int) -> Tensor:
        """The results of the calls from `first` to `last`, `last` included, along axis 0."""
        for start, block in self.blocks[output]:
            if start <= first and last < start + len(block):
                if len(block) == last - first + 1:
                    return block
                return block[first - start : last - start + 1]
        return torch.stack([self.value(output, index) for index in range(first, last + 1)])


class SliceGroup(Group):
    """The steps of an input, ``x[t]`` or ``x[:, t]``; nothing is computed."""

    def __init__(self, recording: Recording, source: Tensor) -> None:
        super().__init__(recording, 1)
        self.source = source  # the axis of time first

    def compute(self, last: int) -> None:
        times = self.calls[self.done : last + 1]
        if times == list(range(times[0], times[0] + len(times))):
            block = self.source[times[0] : times[0] + len(times)]
        else:
            block = self.source[torch.tensor(times, device=self.source.device)]
        self.append(0, self.done, block)

    def like(self, output: int, index: int) -> Tensor:
        return self.source[0].to("meta")


class InputGroup(Group):
    """What a network that takes one step a call has read, call by call; nothing is computed."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording, 1)
        self.versions: list[int] = []

    def compute(self, last: int) -> None:
        inputs = self.calls[self.done : last + 1]
        versions = self.versions[self.done : last + 1]
        if any(version_of(x) != version for x, version in zip(inputs, versions, strict=True)):
            raise RuntimeError(
                "an input of an accelerated network has been changed in place before a value of that step was asked for: "
                "give each step a tensor of its own, x[t]."
            )
        if all(x is inputs[0] for x in inputs):
            self.append(0, self.done, inputs[0].expand(len(inputs), *inputs[0].shape))
        else:
            self.append(0, self.done, torch.stack(inputs))

    def like(self, output: int, index: int) -> Tensor:
        return self.calls[index].to("meta")


class FunctionGroup(Group):
    """A function of PyTorch, with the same settings and weights in all steps."""

    def __init__(self, recording: Recording, func: Callable[..., Any], rule: Rule, args: Any, kwargs: Any) -> None:
        super().__init__(recording, 1)
        self.func = func
        self.rule = rule
        self.args = args  # with a place for each lazy argument
        self.kwargs = kwargs
        self.known: Tensor | None = None  # the result of one step, on the meta device

    def compute(self, last: int) -> None:
        calls = self.calls[self.done : last + 1]
        if len(calls) > 1 and self.rule.batched is not None:
            columns = [gathered(column) for column in zip(*calls, strict=True)]
            shapes = [column.shape[1:] for column in columns]
            constant = all(is_constant(column) for column in columns) and self.rule.repeats(self.args, self.kwargs)
            if constant:  # one step is enough
                columns = [column[:1] for column in columns]
            result = self.rule.batched(self.func, self.filled(columns), self.kwargs, shapes)
            if result is not None:
                self.append(0, self.done, result.expand(len(calls), *result.shape[1:]))
                return
        results = [self.func(*self.filled([lazy.now() for lazy in call]), **self.kwargs) for call in calls]
        block = results[0].unsqueeze(0)
        if len(results) > 1:
            block = torch.stack(results)
        self.append(0, self.done, block)

    def filled(self, values: Sequence[Any]) -> list[Any]:
        """The arguments with values for the lazy ones."""
        rest = iter(values)
        return [next(rest) if arg is LAZY else arg for arg in self.args]

    def like(self, output: int, index: int) -> Tensor:
        known = self.known
        if known is None:
            args = self.filled([lazy.like() for lazy in self.calls[index]])
            kwargs = {name: on_meta(arg) for name, arg in self.kwargs.items()}
            with torch.no_grad():
                known = self.func(*map(on_meta, args), **kwargs)
            self.known = known
        return known


def on_meta(value: Any) -> Any:
    """A tensor on the meta device; others as they are."""
    if isinstance(value, Tensor):
        return value.to("meta")
    return value


LAZY = object()  # stands for a lazy argument


def gathered(values: Sequence[Any]) -> Tensor:
    """The values of lazy tensors or tensors, stacked along axis 0; expanded if all are the same one."""
    first = values[0]
    if all(value is first for value in values):
        return now(first).expand(len(values), *first.shape)
    if isinstance(first, LazyTensor):
        group = first.group
        output = first.output
        index = first.index
        regular = all(
            isinstance(value, LazyTensor)
            and value.group is group
            and value.output == output
            and value.index == index + place
            for place, value in enumerate(values)
        )
        if regular:
            return group.stacked(output, index, index + len(values) - 1)
    return torch.stack([now(value) for value in values])


def is_constant(block: Tensor) -> bool:
    """True if all steps of a block are the same memory."""
    return len(block) > 1 and block.stride(0) == 0


def now(value: Any) -> Any:
    """The tensor of a lazy tensor; other values as they are."""
    if isinstance(value, LazyTensor):
        return value.now()
    return value


class Recording:
    """The calls of one run of a user's ``forward``, as far as they have been written down.

    Attributes:
        count: the number of calls.
        pending: the groups with calls that have not been computed, in the order in which they were first called.
    """

    def __init__(self) -> None:
        self.count = 0
        self.pending: dict[Group, None] = {}
        self.groups: dict[Any, Group] = {}
        self.known: dict[Any, Any] = {}  # results of functions of inputs alone
        self.longest = 0  # the most steps that a layer of neurons has run at once
        self.most = 0  # the most steps of a layer of neurons
        self.flushed = False
        self.running = True  # inside the user's forward

    def own(self, value: Any) -> Any:
        """The value of a lazy tensor that is an input or of another recording; all else as it is."""
        if isinstance(value, LazyTensor) and (value.recording is not self or value.group is None):
            return value.now()
        return value

    def step(self, x: Tensor) -> LazyTensor:
        """The input of one step."""
        key = ("input", x.shape, x.dtype, torch.is_grad_enabled())
        group: Any = self.groups.get(key)
        if group is None:
            group = InputGroup(self)
            self.groups[key] = group
        group.versions.append(version_of(x))
        return LazyTensor(self, group, group.add(x, ()), 0)

    def source(self, x: Tensor) -> LazyTensor:
        """A tensor that is known, whose slices are steps."""
        return LazyTensor(self, None, 0, 0, x)

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of lazy tensors: written down if it is a known one, else run with their values."""
        rule = RULES.get(func)
        if rule is None or (rule.repeats is not same and rule.repeats(args, kwargs) is None):
            return self.run(func, args, kwargs)
        key: list[Any] = [func, torch.is_grad_enabled()]
        steps: list[LazyTensor] = []
        for arg in args:
            if type(arg) is LazyTensor:
                if arg.group is not None and arg.recording is self:
                    steps.append(arg)
                    key += (id(arg.group), arg.output)
                    continue
                arg = arg.now()
            key += key_of(arg)
        for name, arg in kwargs.items():
            if type(arg) is LazyTensor:
                return self.run(func, args, kwargs)
            key.append((name, key_of(arg)))
        try:
            if not steps:
                return self.of_inputs(func, rule, args, kwargs, tuple(key))
            group = self.groups.get(tuple(key))
        except TypeError:  # a list or another value that has no hash
            return self.run(func, args, kwargs)
        if group is None:
            places = [LAZY if any(arg is step for step in steps) else now(arg) for arg in args]
            group = FunctionGroup(self, func, rule, places, kwargs)
            self.groups[tuple(key)] = group
        return LazyTensor(self, group, group.add(steps, steps), 0)

    def of_inputs(
        self, func: Callable[..., Any], rule: Rule, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any
    ) -> Any:
        """A function of inputs alone, run once however often it is called: the same input in every step."""
        if not any(type(arg) is LazyTensor for arg in args):
            return self.run(func, args, kwargs)
        known = self.known.get(key)
        if known is None or not rule.repeats(args, kwargs):
            at_once = func
            if func is functional.linear and not kwargs:
                at_once = linear
            result = at_once(*map(now, args), **kwargs)
            known = (self.source(result), args)  # args: an id is unique while its object lives
            self.known[key] = known
        return known[0]

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function with the values of its lazy arguments; a tensor made of inputs alone is an input again."""
        name = getattr(func, "__name__", "")
        if name in IN_PLACE or (name.endswith("_") and not name.endswith("__")):
            self.known.clear()
            target = args[0]
            if isinstance(target, LazyTensor) and target.group is not None and self.running:
                raise CannotDeferError(f"a tensor of the loop is changed in place by {name}.")
        lazies = lazies_in((args, kwargs))
        self.flush([lazy.group for lazy in lazies if lazy.group is not None and lazy.recording is self])
        only_inputs = all(lazy.group is None for lazy in lazies)
        result = func(*replaced(args), **replaced(kwargs))
        if only_inputs and type(result) is Tensor and result.ndim > 1:
            return self.source(result)
        return result

    def flush(self, wanted: Iterable[Group] | None = None) -> None:
        """Compute the calls written down of some groups, and of the groups that these read; by default of all."""
        self.flushed = True
        waiting = [group for group in self.pending if group.done < len(group.calls)]
        if wanted is not None:
            read = ancestors(wanted)
            waiting = [group for group in waiting if group in read]
        # All steps at once of groups that read no circle, then the circles step by step, then what reads these.
        ready, left = ordered(waiting)
        for group in ready:
            compute(group, len(group.calls) - 1)
        behind, circle = ordered(left, downwards=True)
        calls = [(place, group) for group in circle for place in group.order[group.done :]]
        for _, group in sorted(calls, key=itemgetter(0)):
            compute(group, group.done)
        for group in reversed(behind):
            compute(group, len(group.calls) - 1)
        for group in waiting:
            del self.pending[group]


def ancestors(groups: Iterable[Group]) -> set[Group]:
    """Groups, and all that they read, directly or through others."""
    found: set[Group] = set()
    left = list(groups)
    while left:
        group = left.pop()
        if group not in found:
            found.add(group)
            left.extend(group.reads)
    return found


def compute(group: Group, last: int) -> None:
    """Compute the calls of a group up to one, with a gradient if they were called so."""
    with torch.set_grad_enabled(group.grad):
        group.compute(last)
    group.done = last + 1


def ordered(groups: list[Group], *, downwards: bool = False) -> tuple[list[Group], list[Group]]:
    """Sort groups topologically.

    Args:
        groups: groups that have not been computed.
        downwards: put a group after those that read it, not after those that it reads.

    Returns:
        Those that can be put into such an order, and the rest: circles, and all that would come after one.
    """
    before: dict[Group, set[Group]] = {group: set() for group in groups}
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


def key_of(value: Any) -> Any:
    """A key under which equal settings are the same: of a tensor its identity and version, of others their value."""
    if isinstance(value, Tensor):
        return (id(value), version_of(value))
    return (type(value), value)


def version_of(tensor: Tensor) -> int:
    """How often a tensor has been changed in place; 0 of inference tensors, which do not count it."""
    if tensor.is_inference():
        return 0
    return tensor._version


def lazies_in(tree: Any) -> list[LazyTensor]:
    """All lazy tensors in nested tuples, lists and dicts."""
    if isinstance(tree, LazyTensor):
        return [tree]
    if isinstance(tree, dict):
        return [lazy for part in tree.values() for lazy in lazies_in(part)]
    if isinstance(tree, tuple | list):
        return [lazy for part in tree for lazy in lazies_in(part)]
    return []


def replaced(tree: Any) -> Any:
    """Nested tuples, lists and dicts with the values of their lazy tensors; the same objects where there are none."""
    if isinstance(tree, LazyTensor):
        return tree.now()
    if not lazies_in(tree):
        return tree
    if isinstance(tree, dict):
        return type(tree)((name, replaced(part)) for name, part in tree.items())
    parts = [replaced(part) for part in tree]
    if hasattr(tree, "_fields"):
        return type(tree)(*parts)
    return type(tree)(parts)


def stack(tensors: Sequence[Any], dim: int = 0) -> LazyTensor | Tensor | None:
    """``torch.stack`` of the results of successive steps, without copying them; None of other tensors."""
    first = tensors[0]
    if not isinstance(first, LazyTensor) or first.group is None:
        return None
    first.recording.flush([first.group])
    block = gathered(tensors)
    stacked = (block if dim == 0 else block.movedim(0, dim)).contiguous()
    if first.recording.running:
        return first.recording.source(stacked)
    return stacked


class LazyTensor:
    """One result of a call that may not have been computed, or an input."""

    __slots__ = ("group", "index", "output", "recording", "tensor")

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return Tensor  # for isinstance in the user's code

    def __init__(
        self, recording: Recording, group: Group | None, index: int, output: int, tensor: Tensor | None = None
    ) -> None:
        self.recording = recording
        self.group: Any = group  # None for an input
        self.index = index
        self.output = output
        self.tensor = tensor

    def now(self) -> Tensor:
        """Its value, computed if it has not been."""
        if self.tensor is None:
            if self.group.done <= self.index:
                self.recording.flush([self.group])
            self.tensor = self.group.value(self.output, self.index)
        return self.tensor

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if args and type(args[0]) is LazyTensor:
            return args[0].recording.call(func, args, kwargs)
        if func is torch.stack and args and isinstance(args[0], list | tuple) and args[0]:
            if len(args) > 1:
                dim = args[1]
            else:
                dim = kwargs.get("dim", 0)
            stacked = stack(args[0], dim)
            if stacked is not None:
                return stacked
        if func is torch.cat and args and isinstance(args[0], list | tuple):
            if len(args) > 1:
                dim = args[1]
            else:
                dim = kwargs.get("dim", 0)
            if dim:
                func = concatenated
                args = (dim, *args[0])
                kwargs = {}
        for arg in args:
            if type(arg) is LazyTensor:
                return arg.recording.call(func, args, kwargs)
        return lazies_in((args, kwargs))[0].recording.run(func, args, kwargs)

    def like(self) -> Tensor:
        """A tensor on the meta device with its shape and dtype."""
        if self.tensor is not None:
            return self.tensor.to("meta")
        if self.index < self.group.done:
            return self.now().to("meta")
        return self.group.like(self.output, self.index)

    @property
    def shape(self) -> torch.Size:
        if self.tensor is None:
            return self.like().shape
        return self.tensor.shape

    @property
    def is_sparse(self) -> bool:
        return self.tensor is not None and self.tensor.is_sparse

    @property
    def device(self) -> torch.device:
        if self.tensor is None:
            return torch.device("cpu")
        return self.tensor.device

    @property
    def dtype(self) -> torch.dtype:
        return self.like().dtype

    def size(self, dim: int | None = None) -> Any:
        if dim is None:
            return self.shape
        return self.shape[dim]

    def dim(self) -> int:
        return len(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        if self.group is None:
            axis = time_axis(index)
            if axis is not None and self.tensor is not None:
                return self._step(axis, index[axis] if isinstance(index, tuple) else index)
        return self.recording.run(torch.Tensor.__getitem__, (self, index), {})

    def _step(self, axis: int, time: int) -> LazyTensor:
        """One step of an input along its axis of time."""
        source: Any = self.tensor
        length = source.shape[axis]
        if not -length <= time < length:
            raise IndexError(f"index {time} is out of bounds for dimension {axis} with size {length}")
        key = ("steps", id(source), axis, torch.is_grad_enabled())
        group = self.recording.groups.get(key)
        if group is None:
            group = SliceGroup(self.recording, source.movedim(axis, 0))
            self.recording.groups[key] = group
            self.recording.known[key] = source  # an id is unique while its object lives
        return LazyTensor(self.recording, group, group.add(time % length, ()), 0)

    def unbind(self, dim: int = 0) -> Any:
        if self.tensor is None or self.group is not None:
            return self.recording.run(torch.Tensor.unbind, (self, dim), {})
        return tuple(self._step(dim, time) for time in range(self.tensor.shape[dim]))

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        found = getattr(torch.Tensor, name)
        if name in IN_PLACE or not callable(found):
            return getattr(self.now(), name)

        def method(*args: Any, **kwargs: Any) -> Any:
            return self.recording.call(found, (self, *args), kwargs)

        return method

    def __bool__(self) -> bool:
        return bool(self.now())

    def __float__(self) -> float:
        return float(self.now())

    def __int__(self) -> int:
        return int(self.now())

    def __format__(self, form: str) -> str:
        return format(self.now(), form)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self.now().__array__(*args, **kwargs)

    def __deepcopy__(self, memo: Any) -> Tensor:
        return copy.deepcopy(self.now(), memo)

    def __reduce__(self) -> Any:
        return self.now().__reduce__()

    def __repr__(self) -> str:
        return repr(self.now())


def time_axis(index: Any) -> int | None:
    """The axis that an index with one whole number takes one step of; None for another index."""
    if isinstance(index, int) and not isinstance(index, bool):
        return 0
    if not isinstance(index, tuple):
        return None
    if len(index) == 2 and index[0] is Ellipsis and isinstance(index[1], int):
        return -1
    whole = [axis for axis, part in enumerate(index) if isinstance(part, int) and not isinstance(part, bool)]
    others = [part for part in index if not isinstance(part, int)]
    if len(whole) == 1 and all(part == slice(None) for part in others):
        return whole[0]
    return None


def _operator(name: str) -> Callable[..., Any]:
    """A special method of LazyTensor, which Python looks up in the class and not by ``__getattr__``."""
    function = getattr(torch.Tensor, name)

    def method(self: LazyTensor, *args: Any) -> Any:
        return self.recording.call(function, (self, *args), {})

    return method


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "matmul", "rmatmul", "neg", "abs",
    "gt", "ge", "lt", "le", "eq", "ne", "iadd", "isub", "imul", "itruediv", "invert", "and", "or", "floordiv", "mod",
):  # fmt: skip
    setattr(LazyTensor, f"__{_name}__", _operator(f"__{_name}__"))
