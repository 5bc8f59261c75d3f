"""Progress of long work: a bar on a terminal and in a notebook, plain lines everywhere else."""

import sys
import time
from typing import Any, Protocol, Self

from tqdm.asyncio import tqdm_asyncio
from tqdm.auto import tqdm

EVERY = 10.0
"""seconds between two lines of the same work"""
_WIDGETS = tqdm is not tqdm_asyncio
"""whether this is a notebook with widgets, for which tqdm.auto has another class"""


class Progress(Protocol):
    """Work under way; a context, at whose end it is told for the last time."""

    n: float
    """how much is done"""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def update(self, n: float = 1) -> None:
        """So much more is done."""
        ...

    def note(self, text: str) -> None:
        """Show a text behind the numbers from now on."""
        ...

    def complete(self) -> None:
        """Nothing is left to do: what is done is all."""
        ...


def reporting(
    total: float | None,
    *,
    desc: str,
    unit: str,
    shown: bool = True,
    initial: float = 0,
    often: bool = True,
    delay: float = 0.0,
    **bar: Any,
) -> Progress:
    """Show how far some work is, on standard error.

    Args:
        total: how much there is to do; None if that is not known.
        desc: what is done.
        unit: what is counted, in the singular.
        shown: False: nothing is shown.
        initial: how much is done already.
        often: whether plain lines come every :data:`EVERY` seconds; else there is one at the end.
        delay: seconds of work before anything is shown; what takes less is never shown.
        bar: more keywords for a bar of tqdm's.
    """
    if not shown or sys.stderr.isatty() or _WIDGETS:
        return _Bar(tqdm(total=total, initial=initial, desc=desc, unit=unit, disable=not shown, delay=delay, **bar))
    return _Lines(total, desc, unit, initial, often, delay)


class _Bar:
    """A bar of tqdm's: on a terminal, or in a notebook with widgets."""

    def __init__(self, bar: Any) -> None:
        self.bar, self.n = bar, bar.n

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def update(self, n: float = 1) -> None:
        self.n += n
        self.bar.update(n)

    def note(self, text: str) -> None:
        self.bar.set_postfix_str(text, refresh=False)

    def complete(self) -> None:
        if hasattr(self.bar, "container"):
            self.bar.container.children[1].max = self.n or 1  # of the widget, which tqdm sets once
        self.bar.total = self.n
        self.bar.refresh()


class _Lines:
    """A line of its own each time, for files and pipes: no line is written over."""

    def __init__(self, total: float | None, desc: str, unit: str, initial: float, often: bool, delay: float) -> None:
        self.n, self.initial, self.total, self.often, self.delay = initial, initial, total, often, delay
        self.desc, self.unit, self.text = desc, unit, ""
        self.started = self.told = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if time.monotonic() - self.started >= self.delay:
            self._tell()

    def update(self, n: float = 1) -> None:
        self.n += n
        if self.often and time.monotonic() - self.told >= EVERY:
            self._tell(going_on=True)

    def note(self, text: str) -> None:
        self.text = text

    def complete(self) -> None:
        self.total = self.n

    def _tell(self, going_on: bool = False) -> None:
        self.told = time.monotonic()
        taken, of, left = self.told - self.started, "", ""
        if self.total is not None:
            of = f"/{self.total:.0f}"
            if going_on and self.total > self.n > self.initial:
                left = f"about {taken * (self.total - self.n) / (self.n - self.initial):.0f} s left"
        parts = [f"{self.unit} {self.n:.0f}{of}", f"{taken:.1f} s", left, self.text]
        print(f"{self.desc}: {', '.join(filter(None, parts))}", file=sys.stderr, flush=True)
