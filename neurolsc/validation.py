"""Checks of arguments, and parameters that stay positive.

Checks raise TypeError for a value of the wrong kind, ValueError for one out of range, and say what was wanted.
"""

import difflib
import math
from collections.abc import Iterable
from dataclasses import field
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor, nn

# Positive parameters are stored as logarithms and read within exp(±40), 4e-18 to 2e17: whatever an
# optimizer does, they, their squares and the reciprocals of both stay finite and positive in float32.
LOG_LIMIT = 40.0


def tensor(name: str, value: object) -> Tensor:
    """Return the value if it is a tensor."""
    if isinstance(value, Tensor):
        return value
    cure = f": give torch.from_numpy({name})" if type(value).__module__ == "numpy" else ""
    cure = f": give {name} alone" if isinstance(value, tuple | list) else cure
    raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}{cure}.")


def positive(name: str, value: float | Tensor, *, zero_allowed: bool = False) -> Tensor:
    """Return the value as a detached float tensor if every entry is positive and finite."""
    tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
    if not tensor.is_floating_point():
        tensor = tensor.to(torch.get_default_dtype())
    good = tensor.isfinite() & ((tensor >= 0) if zero_allowed else (tensor > 0))
    if not good.all():
        wanted = "zero or positive" if zero_allowed else "positive"
        raise ValueError(f"{name} must be {wanted} and finite, got {tensor[~good].flatten()[0].item():g}.")
    return tensor.clone()


def number(name: str, value: float, *, zero_allowed: bool = False) -> float:
    """Return the value as a float if it is one positive, finite number."""
    if type(value) is float and 0 < value < math.inf:
        return value  # without the detour of a tensor, which takes a hundred times as long
    if isinstance(value, Tensor) and value.ndim:
        raise TypeError(f"{name} must be one number, got a tensor of shape {tuple(value.shape)}; set it afterwards.")
    return float(positive(name, value, zero_allowed=zero_allowed))


def probability(name: str, value: float) -> float:
    """The value as a float, in [0, 1)."""
    chance = number(name, value, zero_allowed=True)
    if chance >= 1:
        raise ValueError(f"{name} must be a probability in [0, 1), got {value}.")
    return chance


def whole(name: str, value: int, *, at_least: int = 1) -> int:
    """Return the value if it is an int not below a bound."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__} ({value!r}).")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}.")
    return value


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """Return the value if it is one of the known words."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}{meant(known, value)}")
    return value


def meant(known: Iterable[str], *unknown: object) -> str:
    """The end of a message about unknown names: the nearest known ones, if any.

    Example:
        >>> meant(["cell", "width"], "widht"), meant(["cell", "width"], "depth_of_it")
        ('; did you mean width?', '.')
    """
    lower = {name.lower(): name for name in known}
    near = [lower[n] for name in unknown for n in difflib.get_close_matches(str(name)[:80].lower(), lower, n=1)]
    return f"; did you mean {', '.join(dict.fromkeys(near))}?" if near else "."


def words_of(kind: Any) -> tuple[str, ...]:
    """The words of a ``Literal``, also inside a union; none of another type."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return next(filter(None, map(words_of, get_args(kind))), ())


def setting(default: Any, help: str, *data: str) -> Any:
    """A field with its default, its line of --help, and the data sets it is for (none: all)."""
    return field(default=default, metadata={"help": help, "data": data})


def usable_device(name: str) -> torch.device:
    """The device of a name, such as cpu, cuda or cuda:1, if torch can use it here."""
    try:
        one = torch.ones(1, device=name)
        one.item()  # which a device without values, meta, does not have
    except (RuntimeError, AssertionError) as error:  # the latter of a torch that is built without CUDA
        why = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")
        raise ValueError(
            f"torch cannot use the device {name!r} here: {why}. Write cuda for a GPU (cuda:1 for the second), cpu for none."
        ) from error
    return one.device


# ---- positive parameters, such as time constants, which are stored as their logarithms


def log_name(name: str) -> str:
    """The name of the parameter that stores the logarithm of a positive quantity."""
    return f"log_{name}"


def from_log(log: Tensor) -> Tensor:
    """The exponential of a logarithm, within 4e-18 to 2e17."""
    return log.clamp(-LOG_LIMIT, LOG_LIMIT).exp()


def stored_parameter(module: nn.Module, name: str) -> nn.Parameter | None:
    """The parameter of a name, or of its logarithm; None if neither."""
    return module._parameters.get(name, module._parameters.get(log_name(name)))


class LogParameter:
    """A descriptor that stores a positive tensor as the trainable parameter ``log_<name>``.

    Reading returns ``exp(log_<name>)``, with a gradient, within 4e-18 to 2e17; assigning a positive tensor or number
    sets it in place. No optimizer step can therefore make it zero, negative or infinite.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.log_name = name, log_name(name)

    def __get__(self, module: nn.Module | None, owner: type | None = None) -> Tensor:
        if module is None:
            return self  # type: ignore[return-value]
        return from_log(getattr(module, self.log_name))

    def __set__(self, module: nn.Module, value: Tensor | float) -> None:
        log = positive(self.name, value).log()
        stored = getattr(module, self.log_name, None)
        if stored is None:
            module.register_parameter(self.log_name, nn.Parameter(log))
            return
        if log.ndim and log.shape != stored.shape:
            raise ValueError(f"{self.name} has shape {tuple(stored.shape)}, got {tuple(log.shape)}.")
        set_value(module, self.log_name, log.to(stored).expand_as(stored))


def set_value(module: nn.Module, name: str, value: Tensor) -> None:
    """Set a quantity of a module in place: a parameter, or one that another parameter stores."""
    parameter = module._parameters.get(name)
    if parameter is None:
        setattr(module, name, value)
        return
    with torch.no_grad():
        parameter.copy_(value)
