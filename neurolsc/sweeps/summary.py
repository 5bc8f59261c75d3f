"""Trials of one arm put together: means over seeds, as numbers and as Markdown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, pstdev
from typing import Any

from neurolsc.measure import Measure
from neurolsc.sweeps.grid import Grid
from neurolsc.sweeps.row import Row


@dataclass(frozen=True)
class Group:
    """The trials of an arm, one for each seed."""

    arm: dict[str, Any]
    """the settings that they share and that tell them from others"""
    rows: tuple[Row, ...]

    @cached_property
    def whole(self) -> tuple[Row, ...]:
        """Those that came to no error."""
        return tuple(row for row in self.rows if row["error"] is None)

    @property
    def name(self) -> str:
        """The settings in words."""
        return ", ".join(f"{name} {shown(value)}" for name, value in self.arm.items()) or "all"

    def values(self, column: str) -> list[float]:
        """A column, of the trials that have it."""
        return [row[column] for row in self.whole if row.get(column) is not None]

    def layers(self, column: str) -> list[float]:
        """The mean over trials of a column with one entry a layer."""
        columns = []
        while values := self.values(f"{column}_{len(columns) + 1}"):
            columns.append(mean(values))
        return columns


def groups(grid: Grid, rows: Iterable[Row], by: Sequence[str] = ()) -> list[Group]:
    """The chosen trials, put together by settings.

    Args:
        grid: the grid of the sweep.
        rows: its table.
        by: the settings that make an arm; by default all that vary but the seed and the chosen one.

    Raises:
        ValueError: if one of these is not a setting of the trials.
    """
    rows = [row for row in rows if row["chosen"]]
    by = by or grid.arm_settings
    if unknown := [name for name in by if name not in grid.trials[0].settings]:
        raise ValueError(f"there is no setting {', '.join(unknown)}; those that vary are {', '.join(grid.varied)}.")
    arms = [tuple(trial.shown()[name] for name in by) for trial in grid.trials]  # in the order of the grid
    found: dict[tuple[Any, ...], list[Row]] = {arm: [] for arm in arms}
    for row in rows:
        found.setdefault(tuple(row[name] for name in by), []).append(row)
    return [Group(dict(zip(by, values, strict=True)), tuple(part)) for values, part in found.items() if part]


def markdown(grid: Grid, arms: Sequence[Group]) -> str:
    """The arms as a table in Markdown: mean ± deviation over seeds (divided by their number)."""
    rows = [_line(group, grid) for group in arms]
    titles = [title for title in dict.fromkeys(name for row in rows for name in row) if any(row[title] for row in rows)]
    lines = [titles, ["---"] * len(titles), *([row[title] or "-" for title in titles] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _line(group: Group, grid: Grid) -> dict[str, str]:
    figures, count = grid.figures, len(group.rows)
    cells = {name: shown(value) for name, value in group.arm.items()}
    if grid.choice is not None:
        name = grid.choice.setting
        cells[f"{name} (chosen)"] = ", ".join(dict.fromkeys(shown(row[name]) for row in group.rows))
    failed = count - len(group.whole)
    cells["seeds"] = f"{count} ({failed} failed)" if failed else str(count)
    score, measure = f"validation_{grid.score}", grid.measure
    named = "" if measure.share else f" {grid.score}"
    told = _percent if measure.share else _numbers
    cells |= {f"after {n} epochs": told(group.values(f"after_{n}_{score}")) for n in figures.budgets}
    cells[f"validation{named}"] = told(group.values(score))
    cells[f"test{named}"] = told(group.values(f"test_{grid.score}"))
    if figures.learns is not None:
        side = "below" if measure.lower_is_better else "above"
        cells[f"{side} {_bound(figures.learns, measure)}"] = f"{sum(group.values('learns')):.0f} of {count}"
    cells["best epoch"] = _spread(group.values("best_epoch"), ".0f")
    if figures.reach is not None:
        cells[f"epochs to {_bound(figures.reach, measure)}"] = _reached(group)
    cells["rate at start"] = _range(group.layers("start_firing_rate"))
    cells["at end"] = _range(group.layers("end_firing_rate"))
    cells["radius through time"] = _range(group.layers("start_time_radius"))
    cells["through depth"] = _range(group.layers("start_depth_radius"))
    cells["start, s"] = _spread(group.values("start_seconds"), ".3g")
    cells["training, s"] = _spread(group.values("train_seconds"), ".3g")
    return cells


def shown(value: Any) -> str:
    """A setting as text."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bound(value: float, measure: Measure) -> str:
    """A bound of a score as text."""
    return f"{value:.0%}" if measure.share else f"{value:g}"


def _numbers(values: list[float]) -> str:
    return _spread(values, ".4g")


def _percent(values: list[float]) -> str:
    return f"{_spread([100 * value for value in values], '.1f')} %" if values else ""


def _spread(values: list[float], form: str) -> str:
    if len(values) < 2:
        return format(values[0], form) if values else ""
    return f"{mean(values):{form}} ± {pstdev(values):{form}}"


def _range(layers: list[float]) -> str:
    """The lowest and highest of layers."""
    told = list(dict.fromkeys(f"{value:.2g}" for value in (min(layers), max(layers)))) if layers else []
    return " to ".join(told)


def _reached(group: Group) -> str:
    epochs = group.values("epochs_to_reach")
    if not epochs:
        return "never"
    missed = len(group.rows) - len(epochs)
    return _spread(epochs, ".0f") + (f" ({len(epochs)} of {len(group.rows)})" if missed else "")
