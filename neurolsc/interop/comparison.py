"""Calls of a network that leave it unchanged, and the differences between two networks that should be the same."""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from neurolsc.interop.groups import version_of
from neurolsc.interop.lazy import replaced
from neurolsc.interop.wrapped import borrowed, is_dropout, library_of
from neurolsc.surroundings import eval_mode


class Before:
    """What a network holds besides its parameters, as it was before a call, and the state of torch's random numbers.

    These are the attributes of its modules; lists, dicts, sets and deques in them, nested ones as well; buffers and
    other tensors. Changes in place of parameters, of large tensors and of objects of other classes are not undone.

    Args:
        modules: all modules of the network.
        steps: True if a call is one step: then only the attributes themselves are noted, as copies of what they hold
            would take too long in every step.
        objects: True if the attributes of objects of the user's own classes, such as a meter, are noted as well.
    """

    def __init__(self, modules: Iterable[nn.Module], *, steps: bool = False, objects: bool = False) -> None:
        self.draws = torch.get_rng_state()
        self.places: list[tuple[Any, Any]] = []
        self.tensors: list[tuple[Tensor, int, Tensor]] = []
        self.noted: set[int] = set()
        for module in modules:
            attributes = vars(module)
            self.places.append((attributes, attributes.copy()))
            for name in ("_buffers", "_memories"):
                if name in attributes:
                    self.places.append((attributes[name], attributes[name].copy()))
            if steps or library_of(module) is not None:  # a layer of neurons holds its states in the dicts above
                continue
            for name, value in attributes.items():
                if name == "_buffers" or name not in OF_MODULES:
                    self.note(value)
                    if objects and is_of_the_user(value):
                        self.places.append((vars(value), vars(value).copy()))
                        for part in vars(value).values():
                            self.note(part)

    def note(self, value: Any) -> None:
        """Note a value of an attribute, and what it holds."""
        if isinstance(value, Tensor):
            # no parameter, no lazy tensor
            if type(value) is Tensor and value.numel() <= LARGEST_TENSOR:
                self.tensors.append((value, version_of(value), value.detach().clone()))
            return
        if isinstance(value, tuple) and len(value) <= MOST_PARTS:  # it stays, but what it holds may change
            for part in value:
                self.note(part)
        if not isinstance(value, MUTABLE) or id(value) in self.noted:
            return
        self.noted.add(id(value))
        self.places.append((value, value.copy()))
        if len(value) <= MOST_PARTS:
            for part in value.values() if isinstance(value, dict) else value:
                self.note(part)

    def restore(self) -> None:
        """Give every noted object its old content again; the objects stay the same."""
        torch.set_rng_state(self.draws)
        for place, before in self.places:
            place.clear()
            if isinstance(place, dict | set):
                place.update(before)
            else:
                place.extend(before)
        with torch.no_grad():
            for tensor, version, before in self.tensors:
                if version_of(tensor) != version:
                    tensor.copy_(before)


def is_of_the_user(value: Any) -> bool:
    """True for an object whose class is the user's own: a library's objects may not bear a change from outside."""
    kind = type(value)
    home = sys.modules.get(kind.__module__)
    file = getattr(home, "__file__", None) or ""
    in_library = kind.__module__ in sys.stdlib_module_names or "site-packages" in file or kind.__module__ == "builtins"
    return hasattr(value, "__dict__") and not in_library and not isinstance(value, nn.Module | type)


LARGEST_TENSOR = 100_000  # entries up to which a tensor is copied before every call: larger copies would slow it
MOST_PARTS = 1000  # up to so many entries of a list are looked at; a longer one is a log of numbers
MUTABLE = (list, dict, set, deque)
OF_MODULES = frozenset((*vars(nn.Module()), "_memories", "_memories_rv"))  # attributes that every module has


@contextmanager
def unchanged(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Give tensors, after the block, the values that they had before it: a user's forward may change them in place."""
    before = [(tensor, tensor.detach().clone()) for tensor in tensors if not is_lazy(tensor)]  # nn.Lazy*: no values yet
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in before:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


# ---- the comparison

# The share of values that may differ: in float32, rounding may flip one spike of a long run, and others after it.
LARGEST_SHARE = 0.05
# Share of the network's largest gradient by which two gradients may differ: rounding in float32, where sums cancel.
ROUNDED = 1e-5


class Outcome(NamedTuple):
    """What a network returned, and the gradient of a random weighted sum of it."""

    tensors: list[Tensor]
    gradients: dict[str, Tensor | None]  # by the name of the parameter; None if the sum does not depend on it


def outcome(
    net: nn.Module, called: nn.Module, x: tuple[Any, ...], *, calls: int, training: bool = False, seed: int = 0
) -> Outcome:
    """Call a network with x, from rest; return its results and the gradients of a random weighted sum of them.

    Afterwards the network is as it was before.

    Args:
        net: the user's network, whose states and parameters `called` shares.
        called: what is called, net or its accelerated form.
        x: the arguments of a call.
        calls: the number of calls in a row.
        training: True to call it in training mode, with dropouts in evaluation mode; False: all in evaluation mode.
        seed: seed of the random numbers that the network draws.
    """
    with ExitStack() as stack:
        stack.callback(Before(net.modules(), objects=True).restore)
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        x = tuple(_clone(arg) for arg in x)
        devices = {arg.device for arg in x if isinstance(arg, Tensor) and arg.is_cuda}  # besides the CPU
        for context in (eval_mode(net), torch.enable_grad(), torch.random.fork_rng(devices=devices)):
            stack.enter_context(context)
        if training:
            net.train()
            for module in net.modules():
                if isinstance(module, nn.modules.dropout._DropoutNd) or is_dropout(module):
                    module.eval()
        modules: Any = net.modules()
        for module in modules:
            stack.enter_context(borrowed(module))  # also gives back its hidden state
            if hasattr(module, "_memories"):  # spikingjelly's, and the values that it resets them to
                module._memories.update(copy.deepcopy(module._memories_rv))
            elif hasattr(module, "reset_mem"):  # snnTorch's
                module.reset_mem()
        stack.enter_context(unchanged((*net.parameters(), *net.buffers())))
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        out = replaced([called(*x) for _ in range(calls)])
        tensors = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        for module in net.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):  # its collected statistics are compared, too
                tensors += [buffer.clone() for buffer in module.buffers()]
        parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
        # The weights of the sum are drawn for all tensors, with or without a gradient, from one seed: net and its
        # accelerated form, called after each other, get the same weights.
        torch.manual_seed(0)
        draws = [torch.randn(t.shape, dtype=torch.float64).to(t) for t in tensors]
        weighted = [(t * draw).sum() for t, draw in zip(tensors, draws, strict=True) if t.requires_grad]
        if not weighted or not parameters:
            return Outcome(tensors, {})
        gradients = torch.autograd.grad(
            sum(weighted),  # type: ignore[arg-type]
            [*parameters.values()],
            allow_unused=True,
        )
        return Outcome([t.detach() for t in tensors], dict(zip(parameters, gradients, strict=True)))


def _clone(arg: Any) -> Any:
    """Return a copy of a tensor, as the user's forward may change it in place; any other value as it is."""
    if isinstance(arg, Tensor):
        return arg.detach().clone().requires_grad_(arg.requires_grad)
    return arg


def difference_in_training(net: nn.Module, fast: nn.Module, x: tuple[Any, ...], *, calls: int) -> str | None:
    """Say how an accelerated network differs from the user's in training mode, with dropouts off; None if it does not.

    The arguments are those of :func:`outcome`. None also for a network that cannot be called with this example in
    training mode, and for one whose results depend on random numbers: its accelerated form may draw in another order.
    """
    try:
        wanted = outcome(net, net, x, calls=calls, training=True)
    except Exception:  # a batch norm, for instance, refuses a batch of one
        return None
    came = outcome(net, fast, x, calls=calls, training=True)
    fault = difference(came, wanted)
    if fault is None:
        return None
    otherwise_drawn = outcome(net, net, x, calls=calls, training=True, seed=1)
    if difference(otherwise_drawn, wanted):
        return None
    return f"{fault} in training mode"


def difference(came: Outcome, wanted: Outcome) -> str | None:
    """Say how an accelerated network differs from the user's; None if it does not."""
    if [(t.shape, t.dtype) for t in came.tensors] != [(t.shape, t.dtype) for t in wanted.tensors]:
        return "returns tensors of other shapes"
    share = max((_share(a, b) for a, b in zip(came.tensors, wanted.tensors, strict=True)), default=0.0)
    if share > LARGEST_SHARE:
        return f"returns other values ({share:.0%} of them)"
    largest = max((float(g.abs().max()) for g in wanted.gradients.values() if g is not None and g.numel()), default=0.0)
    for name, gradient in wanted.gradients.items():
        other = came.gradients.get(name)
        if gradient is None:
            gradient = torch.zeros(())
        if other is None:
            other = torch.zeros_like(gradient)
        apart = (other.cpu().double() - gradient.cpu().double()).abs()
        if not apart.numel() or float(apart.max()) < ROUNDED * largest:
            continue  # such as the gradient by a bias before a batch norm, which is zero but for rounding
        # Gradients are compared only if all values agree: a flipped spike changes them.
        if share == 0 and _share(other, gradient.expand_as(other), SUMMED) > LARGEST_SHARE:
            return f"has another gradient by {name}"
    return None


# Tolerances of single entries, as shares of the largest: far above rounding in float32, and below what a flipped spike
# or a wrong step changes.
NEAR = 1e-4
SUMMED = 1e-2  # of gradients, which are sums over samples and steps, added in another order


def _share(came: Tensor, wanted: Tensor, tolerance: float = NEAR) -> float:
    """Return the share of entries that differ by more than `tolerance` times the largest finite entry of `wanted`.

    Entries that are both NaN, or infinite with the same sign, do not differ.
    """
    if not wanted.numel():
        return 0.0
    came = came.cpu().double()  # not every device has float64
    wanted = wanted.cpu().double()
    largest = wanted.abs().nan_to_num(posinf=0).max()
    near = (came - wanted).abs() <= tolerance * largest
    return (~(near | (came == wanted) | (came.isnan() & wanted.isnan()))).double().mean().item()
