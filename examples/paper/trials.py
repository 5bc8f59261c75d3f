"""Rows of trials: scores by settings, and which of two starts won how often."""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import mean
from typing import Any

from examples.paper.figure import Result
from examples.paper.reading import Count
from neurolsc.experiment.table import Row
from neurolsc.metrics import MetricSpec

DIVERGED = "FloatingPointError"
"""what the error of a training begins with whose loss became no number"""
PAPER: dict[str, Any] = {
    "optimizer": "adabelief-lookahead",
    "schedule": "constant",
    "by_gain": False,
    "clip_gradient": 0.0,
    "centralize": False,
    "patience": 10,
}
"""The paper's training, as settings."""
RATES = (1e-2, 3.16e-3, 1e-3, 3.16e-4, 1e-4, 3.16e-5, 1e-5)
"""The paper's grid of learning rates."""


def value(row: Row, column: str, measure: MetricSpec) -> float | None:
    """A score of a trial: the worst if its training diverged, None if there is none."""
    if row["error"] is None:
        found: float | None = row.get(column)
        return found
    return worst(measure) if row["error"].startswith(DIVERGED) else None


def worst(measure: MetricSpec) -> float:
    """What a diverged training is worth."""
    return math.inf if measure.lower_is_better else -math.inf


def scores(result: Result, split: str, *by: str) -> dict[tuple[Any, ...], list[float]]:
    """Scores of trials put together by settings, in the order of the grid; infinite if diverged.

    Args:
        result: the trials.
        split: ``"validation"`` or ``"test"``.
        by: the settings.
    """
    grid = result.grid
    found: dict[tuple[Any, ...], list[float]] = {}
    for row in result.rows:
        score = value(row, f"{split}_{grid.score}", grid.measure)
        if score is not None:
            found.setdefault(tuple(row[name] for name in by), []).append(score)
    return found


def finite(values: Iterable[float]) -> list[float]:
    """Those that are numbers."""
    return [v for v in values if math.isfinite(v)]


def duel(result: Result, first: str, second: str, *, where: Callable[[Row], bool] = lambda _: True) -> Count:
    """How often one start did better than another, on the test set, all else the same.

    Pairs that did equally well are not counted.

    Args:
        result: the trials.
        first: the start that is to win.
        second: the other.
        where: which trials are looked at.
    """
    grid = result.grid
    rest = [name for name in grid.varied if name != "start"]
    sides: dict[str, dict[tuple[Any, ...], float]] = {first: {}, second: {}}
    for row in filter(where, result.rows):
        score = value(row, f"test_{grid.score}", grid.measure)
        if row["start"] in sides and score is not None:
            sides[row["start"]][tuple(row[name] for name in rest)] = score
    pairs = [(sides[first][key], sides[second][key]) for key in sides[first] if key in sides[second]]
    pairs = [(a, b) for a, b in pairs if a != b]
    return Count(sum(grid.measure.better(a, b) for a, b in pairs), len(pairs))


def total(counts: Iterable[Count]) -> Count:
    """Several counts as one."""
    counts = list(counts)
    return Count(sum(c.yes for c in counts), sum(c.total for c in counts))


def best_rate(by_rate: dict[float, list[float]], measure: MetricSpec) -> float | None:
    """The learning rate with the best mean score, the first of equals; None if all diverged."""
    means = {rate: mean(values) for rate, values in by_rate.items() if values}
    means = {rate: value for rate, value in means.items() if math.isfinite(value)}
    sign = -1 if measure.lower_is_better else 1
    return max(means, key=lambda rate: sign * means[rate], default=None)


def trained(results: Sequence[Result]) -> str:
    """How many trials there were, how many diverged, and what else failed, if anything did."""
    rows = [row for result in results for row in result.rows]
    errors = [row["error"] for row in rows if row["error"] is not None]
    others = [error for error in errors if not error.startswith(DIVERGED)]
    told = f"{len(rows)} trials"
    if diverged := len(errors) - len(others):
        told += f", {diverged} of which diverged"
    return told + (f", {len(others)} of which failed ({others[0].rstrip('.')})" if others else "")
