"""Parameters of any module: positive ones stored as logarithms, and setting what a parametrisation computes."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from neurolsc.surrogate import from_log
from neurolsc.surroundings import eval_mode
from neurolsc.validation import positive


class LogParameter:
    """A descriptor that stores a positive tensor as the trainable parameter ``log_<name>``.

    Reading returns ``exp(log_<name>)``, within 4e-18 to 2e17, with a gradient; assigning a positive tensor or number
    sets the parameter in place. No optimizer step can therefore make it zero, negative or infinite.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.log_name = f"log_{name}"

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> Tensor:
        if module is None:
            return self  # type: ignore[return-value]
        return from_log(getattr(module, self.log_name))

    def __set__(self, module: nn.Module, value: Tensor | float) -> None:
        log = positive(self.name, value).log()
        stored = getattr(module, self.log_name, None)
        if stored is None:  # the first assignment, in the constructor
            module.register_parameter(self.log_name, nn.Parameter(log))
            return
        if log.ndim and log.shape != stored.shape:
            raise ValueError(f"{self.name} has shape {tuple(stored.shape)}, got {tuple(log.shape)}.")
        set_value(module, self.log_name, log.to(stored).expand_as(stored))


def value_of(module: nn.Module, name: str) -> Tensor:
    """Return a quantity of a module, detached: a parameter, a number, or what a parametrisation computes."""
    if not is_parametrized(module, name):
        return torch.as_tensor(getattr(module, name)).detach()
    with eval_mode(module):  # in training mode a spectral norm takes a step of its iteration at each reading
        value: Tensor = getattr(module, name)  # type: ignore[assignment]
        return value.detach()


def set_value(module: nn.Module, name: str, value: Tensor) -> None:
    """Set a quantity of a module in place: a parameter, or one that other parameters store.

    Raises:
        TypeError: if the parameters that store it, as in ``torch.nn.utils.parametrizations``, do not take the value.
    """
    parameter = module._parameters.get(name)
    if parameter is not None:
        with torch.no_grad():
            parameter.copy_(value)
        return
    if originals := parametrized_by(module, name):
        _set_parametrized(module, name, value, originals)
        return
    # torch.nn.utils.weight_norm and prune compute it by a hook before each call, which would undo the change
    computed_from = [stored for stored in (f"{name}_g", f"{name}_orig") if stored in module._parameters]
    if computed_from:
        raise TypeError(
            f"{name} of a {type(module).__name__} is computed from {computed_from[0]} by a hook: use "
            "torch.nn.utils.parametrizations in place of torch.nn.utils, or make pruning permanent "
            "(torch.nn.utils.prune.remove)."
        )
    setattr(module, name, value)  # a LogParameter, a property or a buffer


def parametrized_by(module: nn.Module, name: str) -> list[nn.Parameter]:
    """Return the parameters from which ``torch.nn.utils.parametrize`` computes a quantity; empty if it does not."""
    if is_parametrized(module, name):
        return list(module.parametrizations[name].parameters())  # type: ignore[index]
    return []


def _set_parametrized(module: nn.Module, name: str, value: Tensor, originals: list[nn.Parameter]) -> None:
    """Set a quantity through its parametrisation; if that cannot give the value, restore the originals and raise."""
    # rounding leaves about 1e-7 of the largest entry (in half precision 1e-2), a spectral norm that cannot give the
    # value about 1
    tolerance = max(1e-3, 4 * torch.finfo(value.dtype).eps)
    before = [original.detach().clone() for original in originals]
    failed: Exception | None = None
    largest = value.abs().max().item()
    if largest == 0:  # all zeros: measure errors by the present values
        largest = getattr(module, name).detach().abs().max().item()
    # a second try, nearly the same: a weight norm divides by the norm of a row, which is 0 for a row of zeros
    almost = torch.where(value == 0, 1e-6 * largest, value)
    with torch.no_grad():
        for wanted in (value, almost):
            try:
                setattr(module, name, wanted)
                error_left = (getattr(module, name) - value).abs().max().item()
            except (NotImplementedError, RuntimeError, ValueError) as error:  # the parametrisation has no inverse
                failed = error
                error_left = math.inf
            if error_left <= tolerance * largest:  # False for NaN
                return
        for original, values in zip(originals, before, strict=True):
            original.copy_(values)
    kinds = ", ".join(type(part).__name__.strip("_") for part in module.parametrizations[name])  # type: ignore[index]
    kind = type(module).__name__.removeprefix("Parametrized")
    raise TypeError(
        f"{name} of a {kind} is parametrised by {kinds}, through which it cannot get the values wanted: freeze it, or "
        f"torch.nn.utils.parametrize.remove_parametrizations(module, {name!r}) before, and parametrise it afterwards."
    ) from failed


class Constant(nn.Module):
    """A stand-in for a parametrisation, which gives a quantity one fixed value."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self) -> Tensor:
        return self.value


@contextmanager
def replaced(places: Iterable[tuple[nn.Module, str, Tensor]]) -> Iterator[None]:
    """Give quantities other values inside the block: (module, name, value) each. Afterwards all is as it was.

    Inside, a parametrised quantity is read from a stand-in. Its parametrisation could not give every value (no
    orthogonal matrix is 0), and might not give back the old one bit for bit.
    """
    with ExitStack() as undo:
        for module, name, value in places:
            if is_parametrized(module, name):
                computed: nn.ModuleDict = module.parametrizations  # type: ignore[assignment]
                undo.callback(computed.__setitem__, name, computed[name])
                computed[name] = Constant(value)
            elif name in module._parameters:
                undo.callback(set_value, module, name, getattr(module, name).detach().clone())
                set_value(module, name, value)
            else:  # a buffer or an attribute, which is exchanged; or a quantity that a hook computes before each call
                hooks = module._forward_pre_hooks
                undo.callback(setattr, module, "_forward_pre_hooks", hooks)
                now = getattr(module, name)
                if hasattr(
                    type(module), name
                ):  # a descriptor, which may give a view of a larger weight and write into it
                    now = now.clone()
                undo.callback(setattr, module, name, now)
                module._forward_pre_hooks = OrderedDict((key, h) for key, h in hooks.items() if not computes(h, name))
                setattr(module, name, value)
        yield


def computes(hook: object, name: str) -> bool:
    """True if a hook sets a quantity of that name, as those of ``torch.nn.utils.weight_norm`` and ``prune`` do."""
    return name in (getattr(hook, "name", None), getattr(hook, "_tensor_name", None))
