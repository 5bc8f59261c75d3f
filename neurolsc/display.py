"""Results as lines and tables of text, and progress bars."""

import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm

WIDTH = 80  # of sentences in print, in characters
LOG_INTERVAL = 10.0  # seconds between two states of a bar that goes to a file or a pipe
PATIENCE = 5.0  # seconds after which work that nobody asked to watch shows a bar


@dataclass(frozen=True)
class Table:
    """Cells in columns below their names; columns with words are aligned left, all others right."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]  # each with a cell for every name; trailing spaces in a cell align numbers

    def __str__(self) -> str:
        forms = []
        for name, *cells in zip(self.head, *self.rows, strict=True):
            side = ">"
            if any(cell[:1].isalpha() for cell in cells):  # a cell that begins with a letter is a word
                side = "<"
            width = max(map(len, (name, *cells)))
            forms.append(f"{side}{width}")  # a format specification
        lines = []
        for row in (self.head, *self.rows):
            cells = map(format, row, forms)
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)


def in_80_columns(sentence: object) -> str:
    """Return a finding or another sentence in lines of at most 80 characters, indented from the second on."""
    return textwrap.fill(str(sentence), WIDTH, subsequent_indent="  ", break_long_words=False)


class Displayed(ABC):
    """A result that prints as lines and tables, in a notebook too.

    A subclass that is a dataclass is made with ``repr=False``: else it gets a repr of its own.
    """

    @abstractmethod
    def parts(self) -> Iterable[str | Table]:
        """Return what is shown, from the top: sentences and tables."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.parts()))

    def __repr__(self) -> str:
        return str(self)


def or_dash(value: float | None, form: str) -> str:
    """Return a number as text in a form such as ``.4f``, or a dash for None and NaN."""
    if value is None or value != value:
        return "-"
    return format(value, form)


def shapes(axes: str, **tensors: Tensor | Sequence[Tensor] | None) -> str:
    """Return names and shapes of tensors as text, such as ``logits (T=50, B=32, 10)``.

    Args:
        axes: names of the first axes of each tensor, a letter each, such as "TB".
        **tensors: a tensor, several or None by name; equal ones in a row print as ``2 x (...)``, None is left out.
    """
    parts = []
    for name, value in tensors.items():
        if value is None:
            continue
        each = []
        for tensor in [value] if isinstance(value, Tensor) else value:
            named = [f"{axis}={size}" for axis, size in zip(axes, tensor.shape, strict=False)]
            each.append(f"({', '.join([*named, *map(str, tensor.shape[len(axes) :])])})")
        texts = [f"{count} x {shape}" if count > 1 else shape for shape, count in counted(each)]
        parts.append(f"{name} {', '.join(texts)}")
    return ", ".join(parts)


def counted(values: Iterable[Any]) -> list[tuple[Any, int]]:
    """Return for each run of equal values the value, and how often it comes in a row."""
    return [(value, len(list(equal))) for value, equal in groupby(values)]


def state_repr(self: Any) -> str:
    """Return the ``__repr__`` of a cell's state, a named tuple: the shapes of its tensors (B, ...)."""
    return f"{type(self).__name__}({shapes('B', **self._asdict())})"


def progress_bar(total: float | None, *, desc: str, unit: str, shown: bool = True, **options: Any) -> tqdm:
    """Return a bar of tqdm on standard error; if that is no terminal but a log, it is renewed every ten seconds.

    ``TQDM_DISABLE=1`` in the environment hides all bars.

    Args:
        total: number of units of the work; None if it is not known.
        desc: what is done.
        unit: name of a unit.
        shown: False: the bar is hidden.
        **options: options of tqdm, such as ``initial`` or ``delay``.
    """
    if not sys.stderr.isatty():
        options.setdefault("mininterval", LOG_INTERVAL)
    if not shown:  # disable=False is not passed, as it would show the bar against TQDM_DISABLE
        options["disable"] = True
    return tqdm(total=total, desc=desc, unit=unit, **options)
