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
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from neurolsc.interop.lazy_functions import concatenated

if TYPE_CHECKING:
    from neurolsc.interop.groups import Group
    from neurolsc.interop.recording import Recording


class CannotDeferError(RuntimeError):
    """A lazy tensor was used in a way that only a tensor allows."""


without_memory: Callable[..., Any] = Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
# C code that asks a tensor for its address, such as DLPack's, then gets an error and reads nothing
refuse_address: Callable[[Tensor], None] = torch._C._set_throw_on_mutable_data_ptr  # type: ignore[attr-defined]


class LazyTensor(Tensor):
    """One result of a call that may not have been computed, or an input.

    It is a tensor without memory, of the shape, dtype and device of its value. PyTorch passes every function that is
    called with it to ``__torch_function__``, and what C code calls without that to ``__torch_dispatch__``.

    Attributes:
        recording: the recording to which it belongs.
        group: the group of the call; None for an input.
        number: the number of the call in its group.
        output: which result of the call it is.
        form: a tensor with its shape and dtype.
        value: the value; None if it is not known yet.
        shared: True for an input whose value other lazy tensors have, too.
        changed: the lazy tensor that replaces it since a change in place; None without a change. Calls that were
            written down before keep reading this one.
    """

    # thousands of objects are made
    __slots__ = ("changed", "form", "group", "number", "output", "recording", "shared", "value")

    recording: Recording
    group: Any
    number: int
    output: int
    form: Tensor
    value: Tensor | None
    shared: bool
    changed: LazyTensor | None

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
        lazy.shared = False
        lazy.changed = None
        refuse_address(lazy)
        return lazy

    @staticmethod
    def of_input(recording: Recording, x: Tensor, shared: bool = False) -> LazyTensor:
        """Return a lazy tensor whose value is x: no call computes it.

        Args:
            recording: the recording to which it belongs.
            x: the value.
            shared: True if other lazy tensors have this value, too: before a change in place it is copied.
        """
        lazy = without_memory(LazyTensor, x.shape, dtype=x.dtype, device=x.device)
        lazy.recording = recording
        lazy.group = None
        lazy.number = 0
        lazy.output = 0
        lazy.form = x
        lazy.value = x
        lazy.shared = shared
        lazy.changed = None
        refuse_address(lazy)
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
        """Hand a call of any function of PyTorch with a lazy tensor among its arguments to a recording."""
        kwargs = kwargs or {}
        if args and type(args[0]) is LazyTensor:
            return recording_of(args).call(func, args, kwargs)
        joins = func in (torch.stack, torch.cat) and "out" not in kwargs
        if joins and args and isinstance(args[0], list | tuple) and args[0]:
            if len(args) > 1:
                dim = args[1]
            else:
                dim = kwargs.get("dim", kwargs.get("axis", 0))
            parts = [latest(part) for part in args[0]]
            first = parts[0]
            if func is torch.stack and type(first) is LazyTensor and first.group is not None:
                return first.recording.stack(parts, dim)
            # Along another axis than the first, parts of a step are joined: a call to write down, whose lazy tensors
            # must be arguments of their own.
            if func is torch.cat and dim:
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
        """Call an operation of C code, such as the copy that ``torch.tensor`` makes, with the values of lazy tensors.

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
        """Return a tensor of the same shape, dtype and device with any values."""
        # empty_like of a tensor on the meta device imports sympy, half a second and 37 MiB
        return torch.empty(self.form.shape, dtype=self.form.dtype, device=self.device)


def recording_of(args: tuple[Any, ...]) -> Recording:
    """Return the recording for a call: the first argument's, or, if that has been computed, one that has not been."""
    recording = args[0].recording
    if recording.flushed:
        for arg in args[1:]:
            if type(arg) is LazyTensor and not arg.recording.flushed:
                return arg.recording
    return recording


def now(value: Any) -> Any:
    """Return the value of a lazy tensor, computed if it has not been; another value as it is."""
    if isinstance(value, LazyTensor):
        return value.now()
    return value


def latest(value: Any) -> Any:
    """Return the lazy tensor that replaces one since its last change in place; another value as it is."""
    if type(value) is not LazyTensor or value.changed is None:
        return value
    last = value
    while last.changed is not None:
        last = last.changed
    value.changed = last  # the next search is short
    return last


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
    """Return nested tuples, lists and dicts with values for lazy tensors; an object that holds none as it is."""
    if isinstance(tree, LazyTensor):
        return latest(tree).now()
    if not lazies_in(tree):
        return tree
    if isinstance(tree, dict):
        new = copy.copy(tree)  # of its class, such as a defaultdict
        for name, part in tree.items():
            new[name] = replaced(part)
        return new
    parts = [replaced(part) for part in tree]
    if hasattr(tree, "_fields"):  # a NamedTuple
        return type(tree)(*parts)
    return type(tree)(parts)


_apply = torch.autograd.Function.__dict__["apply"].__func__


@wraps(_apply)
def apply_to_tensors(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    """Apply an autograd function to the values of lazy tensors: its C code sees no history in a lazy tensor itself."""
    for arg in args:
        if type(arg) is LazyTensor:
            return arg.recording.run(partial(_apply, cls), args, kwargs)
    return _apply(cls, *args, **kwargs)


# PyTorch's own `apply` does not ask __torch_function__.
torch.autograd.Function.apply = classmethod(apply_to_tensors)  # type: ignore[assignment]
