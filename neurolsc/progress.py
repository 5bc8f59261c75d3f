"""Progress bars of tqdm: redrawn on a terminal, renewed every ten seconds in a log."""

import sys
from typing import Any

from tqdm.auto import tqdm

LOG_INTERVAL = 10.0  # seconds between two states of a bar that goes to a file or a pipe


def progress_bar(total: float | None, *, desc: str, unit: str, shown: bool = True, **options: Any) -> tqdm:
    """Return a bar on standard error; ``TQDM_DISABLE=1`` in the environment hides all of them.

    Args:
        total: number of units of work, or None if it is unknown.
        desc: the work.
        unit: what is counted, in the singular.
        shown: False hides the bar.
        options: more keywords of tqdm, such as ``initial`` or ``delay``.
    """
    if not sys.stderr.isatty():
        options.setdefault("mininterval", LOG_INTERVAL)
    if not shown:  # unset, TQDM_DISABLE decides
        options["disable"] = True
    return tqdm(total=total, desc=desc, unit=unit, **options)
