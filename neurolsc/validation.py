"""Checks of arguments: TypeError for a value of the wrong kind, ValueError for one out of range."""

import difflib
import math
from collections.abc import Iterable, Sequence
from dataclasses import field
from numbers import Real
from typing import Any, Literal, NamedTuple, get_args, get_origin

import torch
from torch import Tensor

from neurolsc.surroundings import without_inference


def numpy_hint(value: object) -> str:
    """Return an error message's end that says how to make a tensor, if the value is of NumPy; else an empty text."""
    if type(value).__module__ == "numpy":
        return ": torch.from_numpy makes it one"
    return ""


def tensor(name: str, value: object) -> Tensor:
    """Return the value if it is a tensor; else raise a TypeError."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple | list) and any(isinstance(part, Tensor) for part in value):
        cure = f": give {name} alone"
    elif isinstance(value, tuple | list):
        cure = ": torch.tensor makes it one"
    else:
        cure = numpy_hint(value)
    raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}{cure}.")


def dense(x: object, name: str = "x") -> Tensor:
    """Return a tensor with values as it is, a sparse one in its dense form.

    Raises:
        TypeError: if x is no tensor, or a nested one.
        ValueError: if x lies on the device meta, which holds no values.
    """
    value = tensor(name, x)
    if value.is_nested:
        raise TypeError(f"{name} must be a tensor of samples of one length, got a nested one: pad it, and give a mask.")
    if value.device.type == "meta":
        raise ValueError(f"{name} lies on the device meta, which holds no values.")
    if value.layout == torch.strided:
        return value
    return value.to_dense()


def shown(value: object) -> str:
    """Return in a few words for a message what a value is: a short repr, or its type."""
    text = repr(value)
    if len(text) < 80 and "\n" not in text:
        return text
    return f"a {type(value).__name__}"


class BatchParts(NamedTuple):
    """The parts of a batch; targets and mask are None if the batch has none."""

    x: Tensor  # input, with time first or as a model takes it
    targets: Any = None  # classes (B,), or targets for every step
    mask: Tensor | None = None  # (T, B), True while a sample lasts


def as_batch(batch: object, name: str = "a batch") -> BatchParts:
    """Take a batch apart: x, (x, targets) or (x, targets, mask).

    Raises:
        TypeError: if the batch is something else; the message says what.
    """
    parts: list[Any] = list(batch) if isinstance(batch, tuple | list) else [batch]
    mask = parts[2] if len(parts) == 3 else None
    if 1 <= len(parts) <= 3 and isinstance(parts[0], Tensor) and isinstance(mask, Tensor | None):
        return BatchParts(*map(without_inference, parts))
    kinds = ", ".join(type(part).__name__ for part in parts[:4])  # the first four of many parts say enough
    if isinstance(batch, tuple | list):
        kinds = f"({kinds}{', ...' * (len(parts) > 4)})"
    hint = numpy_hint(parts[0]) if parts else ""
    raise TypeError(f"{name} must be a tensor x, or (x, targets) or (x, targets, mask), got {kinds}{hint}.")


BATCH_FIRST = "x looks batch first: give x.transpose(0, 1)"


def swapped_axes(x: Tensor, targets: object) -> str:
    """Return a message if x (T, B, ...) looks batch first by the shape of its targets; else an empty text."""
    # the shapes do not tell where T equals B, where targets are no tensor, or where x has one axis
    if not isinstance(targets, Tensor) or x.ndim < 2 or x.shape[0] == x.shape[1]:
        return ""
    steps, samples = x.shape[:2]
    if targets.ndim == 1:  # a target for each sample, but as many as x seems to have steps
        swapped = targets.shape == (steps,)
    elif targets.ndim == 2 and targets.is_floating_point():  # may be one number for each sample and class
        swapped = False
    else:  # a target for each step and sample, with the axes the other way round than in x
        swapped = targets.shape[:2] == (samples, steps)
    if not swapped:
        return ""
    return f"x {tuple(x.shape)} looks batch first, as there are targets of {steps} samples: give x.transpose(0, 1)"


def positive(name: str, value: float | Tensor, *, zero_allowed: bool = False) -> Tensor:
    """Return the value as a detached float tensor if every entry is positive and finite; else raise a ValueError.

    With zero_allowed entries may also be 0. A TypeError if the value holds no real numbers.
    """
    if isinstance(value, Tensor):
        entries = value.detach()
    else:
        try:
            entries = torch.tensor(value, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError) as error:  # which of them depends on the value
            raise TypeError(f"{name} must be a number, got {shown(value)}.") from error
    if entries.is_complex():
        raise TypeError(f"{name} must be real, got {shown(value)}.")
    if not entries.is_floating_point():
        entries = entries.to(torch.get_default_dtype())
    if zero_allowed:
        wanted = "zero or positive"
        in_range = entries >= 0
    else:
        wanted = "positive"
        in_range = entries > 0
    good = entries.isfinite() & in_range
    if not good.all():
        raise ValueError(f"{name} must be {wanted} and finite, got {entries[~good].flatten()[0].item():g}.")
    return entries.clone()


def number(name: str, value: float, *, zero_allowed: bool = False) -> float:
    """Return the value as a float if it is one positive, finite number; else raise a TypeError or ValueError.

    With zero_allowed it may also be 0.
    """
    if type(value) is float and 0 < value < math.inf:
        return value  # without the detour of a tensor, which takes a hundred times as long
    if isinstance(value, Tensor) and value.ndim:
        raise TypeError(f"{name} must be one number, got a tensor of shape {tuple(value.shape)}; set it afterwards.")
    entries = positive(name, value, zero_allowed=zero_allowed)
    if entries.ndim:
        raise TypeError(f"{name} must be one number, got {shown(value)}.")
    return float(entries)


def finite(name: str, value: float | Tensor) -> float:
    """Return the value as a float if it is one finite real number of any sign; else raise a TypeError or ValueError."""
    if isinstance(value, Tensor) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {shown(value)}.")
    if not math.isfinite(value):
        raise ValueError(f"{name} must be finite, got {value}.")
    return float(value)


def flag(name: str, value: bool) -> bool:
    """Return the value if it is True or False; else raise a TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {shown(value)}.")
    return value


def probability(name: str, value: float) -> float:
    """Return the value as a float if it lies in [0, 1); else raise a ValueError."""
    chance = number(name, value, zero_allowed=True)
    if chance >= 1:
        raise ValueError(f"{name} must be a probability in [0, 1), got {value}.")
    return chance


def whole(name: str, value: int, *, at_least: int = 1) -> int:
    """Return the value if it is an int not below a bound; else raise a TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {type(value).__name__} ({value!r}).")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}.")
    return value


def one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    """Return the value if it is one of the known words; else raise a ValueError that guesses which is meant."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}{meant(known, value)}")
    return value


def meant(known: Iterable[str], *unknown: object) -> str:
    """Return the end of a message about unknown names: the nearest known ones, if any.

    Example:
        >>> meant(["cell", "width"], "widht"), meant(["cell", "width"], "depth_of_it")
        ('; did you mean width?', '.')
    """
    lower = {name.lower(): name for name in known}
    near = [lower[n] for name in unknown for n in difflib.get_close_matches(str(name)[:80].lower(), lower, n=1)]
    if near:
        return f"; did you mean {', '.join(dict.fromkeys(near))}?"
    return "."


def known_options(function: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise a TypeError that names the options which a function does not take, and the nearest that it takes."""
    if unknown := sorted(set(given) - set(known)):
        raise TypeError(
            f"{function}() takes the options {', '.join(known)}; got {', '.join(unknown)}{meant(known, *unknown)}"
        )


def words_of(kind: Any) -> tuple[str, ...]:
    """Return the words of a ``Literal``, or of the first one in a union; empty for another type."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    for part in get_args(kind):
        if words := words_of(part):
            return words
    return ()


def setting(default: Any, help: str, *data: str) -> Any:
    """Return a field of a dataclass of settings.

    Args:
        default: the default of the setting.
        help: the line of the setting in ``--help``.
        *data: names of the data sets that the setting is for; none: it is for all.
    """
    return field(default=default, metadata={"help": help, "data": data})


def usable_device(name: str) -> torch.device:
    """Return the device of a name, such as cpu, cuda or cuda:1; ``ValueError`` if torch cannot use it here."""
    try:
        probe = torch.ones(1, device=name)
        probe.item()  # fails on the device meta, which holds no values
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch is built without CUDA
        why = str(error).partition("\n")[0].partition(". ")[0].rstrip(".")  # its first sentence
        raise ValueError(
            f"torch cannot use the device {name!r} here: {why}. Write cuda for a GPU (cuda:1 for the second), cpu for none."
        ) from error
    return probe.device
