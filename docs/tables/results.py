"""Results of benchmarks, and tables of them in Markdown with a caption: date, versions, settings."""

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MENDED = "2026-11-22"
"""the day of the changes that the changelog lists under wrong numbers; older results say so"""

TABLES: dict[str, Callable[[], list[str]]] = {}
NOT_KEYS = ("date", "core_seconds", "wall_seconds", "machine", "device", "data")


def table(make: Callable[..., list[str]], name: str = "", *arguments: str) -> Callable[..., list[str]]:
    """Enter a function, at given arguments, as the table of its name."""
    TABLES[name or make.__name__.replace("_", "-")] = partial(make, *arguments)
    return make


def read(name: str) -> Any:
    """The results of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


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
