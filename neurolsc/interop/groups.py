"""Groups of calls that do the same in different steps and are computed at once, and the order of their computation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from neurolsc.interop.lazy import LazyTensor, now
from neurolsc.interop.lazy_functions import Rule

if TYPE_CHECKING:
    from neurolsc.interop.recording import Recording


class Group(ABC):
    """Calls that do the same in different steps.

    Args:
        recording: the recording to which the group belongs.
        outputs: the number of results of one call.

    Attributes:
        calls: the lazy arguments of each call.
        order: the place of each call among all calls of the recording.
        done: the number of calls that have been computed, from the first one on.
        reads: the groups whose results its calls read.
        blocks: for each output, the results that have been computed, in blocks that :meth:`append` adds.
        mode: what :func:`mode` returned when the calls were made.
        unbound: for each output that was read step by step, its results as a list.
        forms: for each output, what :meth:`like` has returned: all calls have results of that shape and dtype.
        fixed: tensors that all calls read, such as weights, and what :func:`state_of` returned for them.
        read: likewise tensors that single calls read, until these calls are computed.
        copy: a copy of the last inference tensor that was read: PyTorch does not count its changes in place.
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
        self.fixed: list[tuple[Tensor, Any]] = []
        self.read: list[tuple[Tensor, Any]] = []
        self.copy: Tensor | None = None

    @abstractmethod
    def compute(self, last: int) -> None:
        """Compute the calls from number ``done`` to number `last`, and add their results to the blocks."""

    def fix(self, values: Iterable[Any]) -> None:
        """Note tensors that the calls read, also in tuples, and that must not change before they are computed."""
        for value in tree_leaves(list(values)):
            if isinstance(value, Tensor) and not isinstance(value, LazyTensor):
                self.fixed.append((value, state_of(value)))

    def keep(self, x: Tensor) -> Tensor:
        """Note a tensor that a call reads; return what the call keeps of it: the tensor itself, or a copy."""
        if x.is_inference():  # its changes are not counted: keep a copy, the same one while x does not change
            if self.copy is None or self.copy.shape != x.shape or not torch.equal(self.copy, x):
                self.copy = x.clone()
            return self.copy
        if not self.read or self.read[-1][0] is not x:
            self.read.append((x, state_of(x)))
        return x

    def check_fixed(self) -> None:
        """Raise a RuntimeError if one of the noted tensors has been changed."""
        for tensor, state in (*self.fixed, *self.read):
            if state_of(tensor) != state:
                raise RuntimeError(
                    "a tensor that an accelerated network reads, such as a weight, a buffer or an input, has been changed "
                    "before a value of an earlier step was asked for: ask for the values first, for instance by "
                    "torch.stack. Before the next step, reset the states of the network. Of an input that your loop changes "
                    "give a clone."
                )

    @abstractmethod
    def like(self, output: int) -> Tensor:
        """Return a tensor on the meta device with the shape and dtype of a result of the first call."""

    def add(self, call: Any, reads: Iterable[LazyTensor]) -> int:
        """Write a call down and return its number in the group.

        Args:
            call: its lazy arguments, in the form that ``compute`` of the group takes.
            reads: the lazy tensors whose groups must be computed before this one.
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
        if index >= len(unbound):
            # In the mode of the calls: the reader may want no gradient here and one later. Each block is unbound once:
            # of T single selections, each would fill a gradient of T steps in the backward pass.
            with_gradients, inference = self.mode
            with torch.inference_mode(inference), torch.set_grad_enabled(with_gradients):
                for start, block in self.blocks[output]:
                    if start >= len(unbound):  # a block that was added since the last time
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


class ViewGroup(Group):
    """Calls whose blocks may be views of the user's own tensors: before each reading, these are checked for changes."""

    def value(self, output: int, index: int) -> Tensor:
        self.check_fixed()
        return super().value(output, index)

    def stacked(self, output: int, first: int, last: int) -> Tensor:
        self.check_fixed()
        return super().stacked(output, first, last)


class SliceGroup(ViewGroup):
    """The steps ``x[t]`` or ``x[:, t]`` of an input; a call is the number t, and computes nothing."""

    def __init__(self, recording: Recording, source: Tensor) -> None:
        super().__init__(recording, outputs=1)
        self.source = source  # the input with the axis of time first
        self.fix([source])

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


class InputGroup(ViewGroup):
    """The inputs of a network that takes one step per call; a call of the group is one input, and computes nothing."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording, outputs=1)
        self.last: tuple[Tensor, Any] | None = None  # the input that was read last, and its :func:`state_of`
        self.first: tuple[Any, Tensor] | None = None  # :func:`state_of` the first view, and a copy of it
        self.is_refilled = False  # the memory of the views changes from step to step

    def keep(self, x: Tensor) -> Tensor:
        """Return what is kept of an input: a view, such as ``data[step]``, itself; any other tensor as a copy.

        A loop may fill one tensor anew for each step. If an input is the same object as the last one, unchanged, both
        share a copy. If a view's memory has changed between the first two steps, views are copied, too.
        """
        if x.is_inference():  # the base class copies it
            return super().keep(x)
        if x._is_view():
            if self.first is None:
                self.first = state_of(x), x.clone()
            elif len(self.calls) == 1 and state_of(x) != self.first[0]:
                self.is_refilled = True
                self.calls[0] = self.first[1]
                self.read.clear()  # no view is read any more
            if self.is_refilled:
                return x.clone()
            return super().keep(x)
        state = state_of(x)
        if self.last is None or self.last[0] is not x or self.last[1] != state:
            self.copy = x.clone()
        self.last = x, state
        assert self.copy is not None
        return self.copy

    def compute(self, last: int) -> None:
        """Collect the inputs from number ``done`` to number `last` as one block."""
        inputs = self.calls[self.done : last + 1]
        first = inputs[0]
        block = successive_parts(inputs)
        if all(x is first for x in inputs):  # one copy of the same input, in place of T
            block = first.clone().expand(len(inputs), *first.shape)
        elif block is None:
            block = torch.stack(inputs)
        else:  # a view of the user's tensor
            self.fix([block])
        self.append(0, self.done, block)

    def like(self, output: int) -> Tensor:
        return self.calls[0].to("meta")


def successive_parts(tensors: Sequence[Tensor]) -> Tensor | None:
    """Return tensors of one shape, such as ``data[0], data[1], ...``, stacked along axis 0 as a view of their memory.

    None if they do not lie in one tensor at equal distances, or if one needs a gradient.
    """
    first = tensors[0]
    base = first._base
    if base is None or base.dtype != first.dtype or len(tensors) < 2:
        return None
    strides = first.stride()
    start = first.storage_offset()
    between = tensors[1].storage_offset() - start
    if between < 0:  # PyTorch has no negative strides
        return None
    for place, part in enumerate(tensors):
        if part._base is not base or part.requires_grad or part.is_inference():
            return None
        if part.stride() != strides or part.storage_offset() != start + place * between:
            return None
    return base.detach().as_strided((len(tensors), *first.shape), (between, *strides), start)


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
            if all_constant and self.rule.repeats(self.args, self.kwargs):  # all steps have the same result
                blocks = [block[:1] for block in blocks]
            result = self.rule.batched(self.func, self.arguments(blocks), self.kwargs, shapes)
            if result is not None:  # None: with these arguments, the function must be called in each step
                for block, first in zip(blocks, calls[0], strict=True):
                    if isinstance(first.group, ViewGroup) and share_memory(result, block):
                        result = result.clone()  # else it would be a view of the user's tensor, which may change
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
    """What of an argument decides the shape and dtype of a result: a tensor's shape and dtype; else the argument."""

    kind: Any  # the dtype of a tensor; else the type of the argument, as True == 1 == 1.0
    value: Any  # the shape of a tensor; else the argument

    def example(self) -> Any:
        """Return the argument; in place of a tensor, zeros of its shape and dtype."""
        if isinstance(self.kind, torch.dtype):
            return torch.zeros(self.value, dtype=self.kind)
        return self.value


def description_of(value: Any) -> Description:
    """Describe an argument of a function."""
    if isinstance(value, Tensor):
        return Description(value.dtype, value.shape)
    return Description(type(value), value)


@lru_cache(maxsize=4096)  # far more than the functions of a network; bounded, as shapes may change without end
def form_of_result(func: Callable[..., Any], args: tuple[Description, ...], kwargs: tuple[Any, ...]) -> Tensor:
    """Return a meta tensor with the shape and dtype of what a function returns.

    The function is called with zeros on the CPU, once for each description of its arguments: on the meta device, many
    functions of PyTorch import its compiler.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        result = func(*[arg.example() for arg in args], **{name: arg.example() for name, arg in kwargs})
    return torch.empty(result.shape, dtype=result.dtype, device="meta")


LAZY = object()  # stands for a lazy argument of a function group


def gathered(values: Sequence[Any]) -> Tensor:
    """Stack the values of lazy tensors or tensors along axis 0, without a copy where none is needed."""
    first = values[0]
    if all(value is first for value in values):  # the same in all steps: one row of memory
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


def ancestors(groups: Iterable[Group]) -> set[Group]:
    """Return these groups and all groups that they read, directly or through others."""
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
        RuntimeError: if a tensor that they read, such as a weight, has been changed in place since.
    """
    group.check_fixed()
    with_gradients, inference = group.mode
    with (
        torch.inference_mode(inference),
        torch.set_grad_enabled(with_gradients),
        torch.autocast(group.recording.device.type, enabled=False),  # a loss under autocast may ask for the value
    ):
        group.compute(last)
    group.done = last + 1
    if isinstance(group, FunctionGroup):  # a batch norm has changed its statistics itself
        group.fixed = [(tensor, state_of(tensor)) for tensor, _ in group.fixed]
    if group.done == len(group.calls):
        group.read.clear()


def ordered(groups: list[Group], *, downwards: bool = False) -> tuple[list[Group], list[Group]]:
    """Sort groups topologically.

    Args:
        groups: groups that have not been computed.
        downwards: put a group after those that read it, not after those that it reads.

    Returns:
        Groups in such an order, and the rest, which have none: circles, and all groups that would come after one.
    """
    waits_for: dict[Group, set[Group]] = {group: set() for group in groups}  # groups to place first
    for group in groups:
        for read in group.reads:
            if read in waits_for and downwards:
                waits_for[read].add(group)
            elif read in waits_for:
                waits_for[group].add(read)
    order: list[Group] = []
    ready = [group for group in groups if not waits_for[group]]
    followers: dict[Group, list[Group]] = {group: [] for group in groups}
    for group, others in waits_for.items():
        for other in others:
            followers[other].append(group)
    while ready:
        group = ready.pop()
        order.append(group)
        for other in followers[group]:
            waits_for[other].discard(group)
            if not waits_for[other]:
                ready.append(other)
    placed = set(order)
    return order, [group for group in groups if group not in placed]


def share_memory(a: Tensor, b: Tensor) -> bool:
    """True if two tensors are views of one memory."""
    return a.layout == b.layout == torch.strided and a.untyped_storage()._cdata == b.untyped_storage()._cdata


def mode() -> tuple[bool, bool]:
    """Return whether gradients are enabled, and whether inference mode is."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled()


def state_of(tensor: Tensor) -> Any:
    """Return the properties of a tensor that must not change while calls that read it wait."""
    return version_of(tensor), tensor.requires_grad


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor has been changed in place; 0 for inference tensors, which do not count it."""
    if tensor.is_inference():
        return 0
    return tensor._version
