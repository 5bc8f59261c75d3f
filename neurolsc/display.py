"""Results as lines and tables of text, and progress bars."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm

LOG_INTERVAL = 10.0  # seconds between two states of a bar that goes to a file or a pipe
PATIENCE = 5.0  # seconds after which work that nobody asked to watch shows a bar


@dataclass(frozen=True)
class Table:
    """Cells in columns below their names; columns with words are set to the left, others right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]  # each with a cell for every name; spaces at an end keep numbers below each other

    def __str__(self) -> str:
        forms = []
        for name, *cells in zip(self.head, *self.rows, strict=True):
            side = ">"
            if any(cell[:1].isalpha() for cell in cells):
                side = "<"
            forms.append(f"{side}{max(map(len, (name, *cells)))}")
        lines = (zip(row, forms, strict=True) for row in (self.head, *self.rows))
        return "\n".join("  ".join(format(cell, form) for cell, form in line).rstrip() for line in lines)


class Displayed(ABC):
    """A result whose text, printed or at the end of a notebook's cell, is lines and tables.

    A dataclass among them is made with ``repr=False``, or its own repr comes first.
    """

    @abstractmethod
    def parts(self) -> Iterable[str | Table]:
        """What is shown, from the top: sentences and tables."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))

    def __repr__(self) -> str:
        return str(self)


def or_dash(value: float | None, form: str) -> str:
    """A number, or a dash where there is none: None or NaN."""
    if value is None or value != value:
        return "-"
    return format(value, form)


def shapes(axes: str, **tensors: Tensor | Sequence[Tensor] | None) -> str:
    """Names and shapes of tensors, such as ``logits (T=50, B=32, 10)``; `axes` names the first ones, a letter each."""
    parts = []
    for name, value in tensors.items():
        if value is None:
            continue
        found = []
        for tensor in [value] if isinstance(value, Tensor) else value:
            named = [f"{axis}={size}" for axis, size in zip(axes, tensor.shape, strict=False)]
            found.append(f"({', '.join([*named, *map(str, tensor.shape[len(axes) :])])})")
        texts = [f"{count} x {shape}" if count > 1 else shape for shape, count in counted(found)]
        parts.append(f"{name} {', '.join(texts)}")
    return ", ".join(parts)


def counted(values: Iterable[Any]) -> list[tuple[Any, int]]:
    """Values, each with how many equal ones follow one another."""
    return [(value, len(list(equal))) for value, equal in groupby(values)]


def state_repr(self: Any) -> str:
    """The ``__repr__`` of a cell's state, a named tuple: the shapes of its tensors (B, ...)."""
    return f"{type(self).__name__}({shapes('B', **self._asdict())})"


def progress_bar(total: float | None, *, desc: str, unit: str, shown: bool = True, **options: Any) -> tqdm:
    """A bar of tqdm on standard error, in a log renewed every ten seconds.

    ``TQDM_DISABLE=1`` in the environment hides all; options are tqdm's, such as ``initial`` or ``delay``.
    """
    if not sys.stderr.isatty():
        options.setdefault("mininterval", LOG_INTERVAL)
    if not shown:  # unset, TQDM_DISABLE decides
        options["disable"] = True
    return tqdm(total=total, desc=desc, unit=unit, **options)
