"""The functions of PyTorch that act on each step alone, and so may be called for all steps at once.

A *lazy* argument is one that differs from step to step; it comes with the steps along axis 0, (T, ...). Other arguments
are the same in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from neurolsc.neurons.fast.scan import linear

Batched = Callable[[Callable[..., Any], Sequence[Any], dict[str, Any], Sequence[torch.Size]], Tensor | None]

IN_PLACE = {"__setitem__", "__set__"}  # besides names that end with an underscore

# methods that change a tensor in place, and what computes the same as a new one
OUT_OF_PLACE = {
    "add_": Tensor.add, "sub_": Tensor.sub, "mul_": Tensor.mul, "div_": Tensor.div, "relu_": Tensor.relu,
}  # fmt: skip

# functions whose result may be a view of their argument, or the argument; `sliced` is added below
VIEWS = {
    Tensor.detach, Tensor.view, Tensor.reshape, Tensor.flatten, Tensor.float, Tensor.double, Tensor.to, torch.detach,
    torch.reshape, torch.flatten, Tensor.contiguous, Tensor.type_as, Tensor.squeeze, Tensor.unsqueeze, torch.squeeze,
    torch.unsqueeze, Tensor.transpose, torch.transpose,
}  # fmt: skip

# functions by which the tensor of a single step asks for a gradient of its own
OF_GRADIENTS = {Tensor.register_hook, Tensor.retain_grad, Tensor.register_post_accumulate_grad_hook}

# functions that read the shape, dtype and device of a tensor, and not its values
OF_FORM = {
    Tensor.size, Tensor.dim, Tensor.__len__, Tensor.numel, Tensor.is_floating_point, Tensor.is_complex, Tensor.get_device,
    Tensor.element_size, Tensor.new_zeros, Tensor.new_ones, Tensor.new_full, Tensor.new_empty, torch.numel,
    torch.is_floating_point, torch.is_complex, torch.zeros_like, torch.ones_like, torch.full_like, torch.empty_like,
    torch.rand_like, torch.randn_like,
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """How a function is called for all steps at once.

    Attributes:
        batched: calls the function for all steps. It takes the function, its arguments (lazy ones (T, ...)), its
            keyword arguments, and the shapes of the lazy ones in one step; it returns the results (T, ...), or None if
            the function must be called in each step. None in place of a function: it always must.
        repeats: takes the arguments and keyword arguments. It returns True if equal arguments give equal results, False
            if they may not (random numbers are drawn), and None if the call must run now.
    """

    batched: Batched | None
    repeats: Callable[[Sequence[Any], dict[str, Any]], bool | None]


def always_repeats(args: Sequence[Any], kwargs: dict[str, Any]) -> bool | None:
    """Say of any call that equal arguments give equal results; the ``repeats`` of most rules."""
    return True


def entrywise(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call an entrywise function for all steps; None if PyTorch would not broadcast its arguments as in one step."""
    if any(isinstance(arg, torch.memory_format) for arg in (*args, *kwargs.values())):  # of the axes of one step
        return None
    axes = len(shapes[0])
    if any(len(shape) != axes for shape in shapes):  # the axes of steps would not meet
        return None
    ndims = [arg.ndim for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    if max(ndims) > axes + 1:  # a constant has more axes, and would add some in front of that of steps
        return None
    # Lazy arguments have axes + 1 axes; a constant with as many would be broadcast along that of steps.
    if ndims.count(axes + 1) != len(shapes):
        return None
    return func(*args, **kwargs)


def on_last_axes(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call, for all steps, a function such as ``layer_norm``, which takes any number of axes before its own."""
    if only_first_is_lazy(args, shapes):
        return func(*args, **kwargs)
    return None


def only_first_is_lazy(args: Sequence[Any], shapes: Sequence[torch.Size]) -> bool:
    """True if the first argument, and no other one, has the axis of steps."""
    return len(shapes) == 1 and args[0].ndim == len(shapes[0]) + 1


def on_spikes(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call ``linear`` for all steps, by our own function, which skips zeros; None if each step needs a call."""
    if not only_first_is_lazy(args, shapes):  # weights or biases that differ from step to step
        return None
    if kwargs:  # PyTorch's function takes them, ours does not
        return func(*args, **kwargs)
    return linear(*args)


def on_samples(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call a function of a batch of samples once, with all samples of all steps (T B, ...) as its batch."""
    x, *rest = args
    # Another argument may hold samples of steps, too, but only x is flattened.
    if any(isinstance(arg, Tensor) and arg.shape[:2] == x.shape[:2] and arg.ndim == x.ndim for arg in rest):
        return None
    return func(x.flatten(0, 1), *rest, **kwargs).unflatten(0, x.shape[:2])


def on_convolved(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call a convolution or pooling for all steps, with (T B) as its batch; with T, if a step has no batch."""
    batched_axes = SPATIAL[func] + 2  # batch, channels and the spatial ones
    if args[0].ndim == batched_axes:
        return func(*args, **kwargs)
    if args[0].ndim == batched_axes + 1:
        return on_samples(func, args, kwargs, shapes)
    return None


def on_views(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call ``view`` or ``reshape`` for all steps, if it leaves the first axis of a step, the samples, as it is."""
    x, *sizes = args
    if len(sizes) == 1 and isinstance(sizes[0], tuple | list):  # x.view((B, -1))
        sizes = list(sizes[0])
    if (
        kwargs
        or not sizes
        or not shapes[0]
        or sizes[0] != shapes[0][0]
        or not all(isinstance(size, int) for size in sizes)
    ):
        return None
    return func(x, len(x), *sizes)


def on_flatten(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call ``flatten`` for all steps, on the axes that it names in one step."""
    x, *rest = args
    settings = dict(zip(("start_dim", "end_dim"), rest, strict=False)) | kwargs
    if not shapes[0]:  # a step is one number
        return x.unsqueeze(1)
    ends = (settings.get("start_dim", 0), settings.get("end_dim", -1))
    if not of_step(ends, len(shapes[0])):
        return None
    return func(x, *map(after_steps, ends))


def on_axes(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call a function of one axis or two, such as ``softmax`` or ``transpose``, for all steps; None without an axis."""
    x, *axes = args
    count = len(shapes[0])
    if func in (torch.unsqueeze, Tensor.unsqueeze):  # its axis is one of the result
        count += 1
    if not axes and of_step([kwargs.get("dim")], count):
        return func(x, **(kwargs | {"dim": after_steps(kwargs["dim"])}))
    if axes and of_step(axes, count):
        return func(x, *map(after_steps, axes), **kwargs)
    return None


def on_matrices(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call ``matmul`` for all steps; None unless all arguments are matrices in each step."""
    ndims = [arg.ndim for arg in args if isinstance(arg, Tensor)]
    for shape in shapes:
        if len(shape) != 2:
            return None
        ndims.remove(3)  # of this lazy argument; those of constants remain
    if all(axes == 2 for axes in ndims):
        return func(*args, **kwargs)
    return None


def sliced(x: Tensor, *index: Any) -> Tensor:
    """Index a tensor by numbers, None, ``...`` and slices; a slice, which has no hash, comes as (start, stop, step)."""
    return x[tuple(slice(*part) if isinstance(part, tuple) else part for part in index)]


def as_slices(index: Any) -> tuple[Any, ...] | None:
    """Return an index in the form that :func:`sliced` takes; None if it holds tensors, lists or truth values."""
    parts = []
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, slice):
            parts.append((part.start, part.stop, part.step))
        elif type(part) is int or part is None or part is Ellipsis:
            parts.append(part)
        else:
            return None
    return tuple(parts)


def on_slices(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call :func:`sliced` for all steps."""
    x, *index = args
    return func(x, (None, None, None), *index)


VIEWS.add(sliced)


def of_step(axes: Sequence[Any], count: int) -> bool:
    """True if all are numbers of axes of a step, which has so many; a step that is one number has none."""
    return all(isinstance(axis, Integral) and -count <= int(axis) < count for axis in axes)


def after_steps(axis: int) -> int:
    """Return the number that an axis of one step has in (T, ...); a negative number stays the same."""
    if axis >= 0:
        return axis + 1
    return axis


def dropout_repeats(args: Sequence[Any], kwargs: dict[str, Any]) -> bool | None:
    """Say True of a dropout that does nothing, False of one that draws, and None of one in place."""
    # torch.nn.functional passes on all arguments after the tensor by name, also those of dropout(x, 0.5, True)
    if kwargs.get("inplace"):
        return None
    return not kwargs.get("training", True)


def batch_norm(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call a batch norm in evaluation for all steps; None in training, where each step has its own statistics."""
    settings = dict(zip(BATCH_NORM, args, strict=False)) | kwargs
    if settings.get("training") or settings.get("running_mean") is None:
        return None
    return on_samples(func, args, kwargs, shapes)


def stays_on_device(args: Sequence[Any], kwargs: dict[str, Any]) -> bool | None:
    """Say True of a ``to`` that changes the dtype, or names the device that the tensor has; else None."""
    if len(args) != 2 or not kwargs.keys() <= {"non_blocking"}:
        return None
    wanted = args[1]
    if isinstance(wanted, torch.dtype):
        return True
    if not isinstance(wanted, str | torch.device):
        return None
    wanted = torch.device(wanted)
    device = args[0].device
    if wanted.type == device.type and wanted.index in (None, device.index):
        return True
    return None


def reduced(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call ``sum`` or ``mean`` for all steps, over all axes of a step or some; None with other settings."""
    x, *rest = args
    settings = dict(zip(("dim", "keepdim"), rest, strict=False)) | kwargs
    dim = settings.pop("dim", None)
    if not settings.keys() <= {"keepdim"} or len(rest) > 2:
        return None
    if isinstance(dim, Integral):
        dim = [dim]
    elif dim is None or (isinstance(dim, tuple | list) and not dim):  # all axes: all but that of steps
        if not shapes[0]:  # one number in each step
            return func(x.unsqueeze(1), dim=1)
        dim = range(len(shapes[0]))
    if not isinstance(dim, Sequence) or not of_step(dim, len(shapes[0])):
        return None
    return func(x, dim=tuple(map(after_steps, dim)), **settings)


def concatenated(dim: int, *parts: Tensor) -> Tensor:
    """Join tensors along an axis, as ``torch.cat`` does, with each tensor as an argument of its own."""
    return torch.cat(parts, dim)


def on_parts(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[torch.Size]
) -> Tensor | None:
    """Call :func:`concatenated` for all steps, if all parts are lazy: a constant has no axis of steps."""
    dim, *parts = args
    if len(parts) == len(shapes) and of_step([dim], len(shapes[0])):
        return func(after_steps(dim), *parts)
    return None


def unchanging(args: Sequence[Any], kwargs: dict[str, Any]) -> bool | None:
    """Say True of a batch norm in evaluation, False of one in training, which changes its statistics."""
    settings = dict(zip(BATCH_NORM, args, strict=False)) | kwargs
    return not settings.get("training")


def with_three(args: Sequence[Any], kwargs: dict[str, Any]) -> bool | None:
    """Say True of a ``where`` that chooses between two values, and None of one that returns indices."""
    if len(args) + len(kwargs) == 3:
        return True
    return None


def not_in_place(args: Sequence[Any], kwargs: dict[str, Any]) -> bool | None:
    """Say True of an activation, and None of one that changes its argument in place."""
    if kwargs.get("inplace"):  # torch.nn.functional passes it on by name, also for relu(x, True)
        return None
    return True


def without_indices(args: Sequence[Any], kwargs: dict[str, Any]) -> bool | None:
    """Say True of a convolution or pooling, and None of a pooling that returns indices as well."""
    if kwargs.get("return_indices"):
        return None
    return True


BATCH_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training")  # arguments in PyTorch's order
SPATIAL: dict[Callable[..., Any], int] = {}  # the number of spatial axes of convolutions and poolings
RULES: dict[Callable[..., Any], Rule] = {}


def _register() -> None:
    """Fill RULES with the functions that are known, under all their names.

    A rule says how a function is called for all steps, and whether equal arguments give equal results. SPATIAL gets
    the convolutions and poolings.
    """
    binary = ("add", "sub", "mul", "div", "true_divide", "maximum", "minimum", "pow", "gt", "ge", "lt", "le")
    unary = (
        *("neg", "abs", "exp", "log", "sin", "cos", "sigmoid", "tanh", "square", "sqrt", "sign", "round", "floor"),
        *("detach", "clone", "clamp", "float", "double", "contiguous"),
    )
    dunder = (
        *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"),
        *("gt", "ge", "lt", "le", "eq", "ne", "and", "or", "invert"),
    )
    for owner in (torch, torch.Tensor):
        for name in (*binary, *unary):
            if hasattr(owner, name):
                RULES[getattr(owner, name)] = Rule(entrywise, always_repeats)
        RULES[owner.flatten] = Rule(on_flatten, always_repeats)
        RULES[owner.reshape] = Rule(on_views, always_repeats)
        RULES[owner.where] = Rule(entrywise, with_three)
        RULES[owner.matmul] = Rule(on_matrices, always_repeats)
        for name in ("softmax", "log_softmax", "unsqueeze", "squeeze", "transpose"):
            RULES[getattr(owner, name)] = Rule(on_axes, always_repeats)
    for name in dunder:
        RULES[getattr(torch.Tensor, f"__{name}__")] = Rule(entrywise, always_repeats)
    for name in ("sum", "mean"):
        RULES[getattr(torch, name)] = Rule(reduced, always_repeats)
        RULES[getattr(torch.Tensor, name)] = Rule(reduced, always_repeats)
    RULES[torch.Tensor.__matmul__] = Rule(on_matrices, always_repeats)
    RULES[torch.Tensor.type_as] = Rule(entrywise, always_repeats)
    RULES[functional.softmax] = Rule(on_axes, always_repeats)
    RULES[functional.log_softmax] = Rule(on_axes, always_repeats)
    RULES[functional.group_norm] = Rule(on_samples, always_repeats)
    RULES[functional.prelu] = Rule(on_samples, always_repeats)
    RULES[sliced] = Rule(on_slices, always_repeats)
    RULES[torch.Tensor.to] = Rule(entrywise, stays_on_device)
    RULES[torch.Tensor.view] = Rule(on_views, always_repeats)
    for name in ("relu", "leaky_relu", "elu", "gelu", "silu", "relu6", "hardtanh", "hardsigmoid", "softplus"):
        RULES[getattr(functional, name)] = Rule(entrywise, not_in_place)
    RULES[torch.relu] = Rule(entrywise, always_repeats)
    RULES[torch.Tensor.relu] = Rule(entrywise, always_repeats)
    RULES[concatenated] = Rule(on_parts, always_repeats)
    RULES[functional.linear] = Rule(on_spikes, always_repeats)
    RULES[functional.layer_norm] = Rule(on_last_axes, always_repeats)
    RULES[functional.dropout] = Rule(entrywise, dropout_repeats)
    for name in ("dropout1d", "dropout2d", "dropout3d"):
        RULES[getattr(functional, name)] = Rule(on_samples, dropout_repeats)
    RULES[functional.batch_norm] = Rule(batch_norm, unchanging)
    for axes in (1, 2, 3):
        for kind in ("conv", "conv_transpose", "avg_pool", "max_pool", "adaptive_avg_pool", "adaptive_max_pool"):
            for owner in (torch, functional):
                function = getattr(owner, f"{kind}{axes}d", None)
                if function is not None:
                    SPATIAL[function] = axes
                    RULES[function] = Rule(on_convolved, without_indices)


_register()
