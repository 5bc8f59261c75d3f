"""What all tables are made with: results read, seeds averaged, Markdown written.

Every table ends in a caption with the date and the versions of its results. Results that are not
there, or are of an earlier form of their script, give a line that says so instead.
"""

import json
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MENDED = "2026-11-22"
"""the day of the changes that the changelog lists under wrong numbers; older results say so"""

TABLES: dict[str, Callable[[], list[str]]] = {}
NOT_KEYS = ("date", "core_seconds", "wall_seconds", "machine", "device", "data")


class MissingError(Exception):
    """There are no results, or none of this form."""


def table(make: Callable[..., list[str]], name: str = "", *arguments: str) -> Callable[..., list[str]]:
    """Enter a function, at given arguments, as the table of its name."""

    @wraps(make)
    def lines() -> list[str]:
        try:
            return make(*arguments)
        except MissingError as missing:
            return [f"*No results of the present script yet: {missing}*"]

    TABLES[name or make.__name__.replace("_", "-")] = lines
    return make


def read(name: str, script: str = "", *, form: Callable[[Any], bool] = lambda _: True) -> Any:
    """The results of a script, if they are there in the form that it writes."""
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if found is None or not form(found):
        raise MissingError(f"`python benchmarks/{script or name + '.py'}` makes this table.")
    return found


def caption(about: dict[str, Any], *more: str) -> list[str]:
    """Date, versions and settings of results, and whether they are of older code."""
    said = [f"{key} {value}" for key, value in about.items() if key not in NOT_KEYS]
    first = [str(about[key]) for key in ("data", "device") if key in about]
    older = [f"by code from before the changes of {MENDED}"] if about["date"] < MENDED else []
    return ["", f"*{'; '.join([about['date'], *first, *said, *more, *older])}.*"]


def rows(head: Iterable[str], body: Iterable[Iterable[object]]) -> list[str]:
    """A table in Markdown."""
    head = list(head)
    lines = ([*map(str, row)] for row in body)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *lines)]


def percent(values: list[float]) -> str:
    """Mean ± deviation over seeds, with the extremes; one or two values stand themselves."""
    if len(values) < 3:
        return ", ".join(f"{100 * value:.1f}" for value in values) + " %"
    low, high = 100 * min(values), 100 * max(values)
    return f"{100 * mean(values):.1f} ± {100 * pstdev(values):.1f} % ({low:.1f} to {high:.1f})"


def ends(runs: list[dict], where: str, key: str, form: str) -> str:
    """Means over seeds of the first and the last layer."""
    layers = [mean(column) for column in zip(*(run[where][key] for run in runs), strict=True)]
    return ", ".join(f"{value:{form}}" for value in (layers[0], layers[-1]))


def grouped(runs: list[dict], *keys: str) -> dict[tuple, list[dict]]:
    """Rows of equal keys, in the order in which they come."""
    groups: dict[tuple, list[dict]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in keys), []).append(run)
    return groups
