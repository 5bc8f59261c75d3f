"""The pictures of a sweep: learning curves of its arms, and their scores over a setting."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neurolsc.plots import plot_bands, plot_scores
from neurolsc.sweeps.grid import Grid
from neurolsc.sweeps.row import Row, best_so_far, read_history
from neurolsc.sweeps.summary import Group, groups, shown


def draw(grid: Grid, rows: Iterable[Row], sweep: Path, over: str | None = None) -> list[Path]:
    """Draw learning.png and scores.png into the folder of a sweep; return their paths.

    Trials known from a table alone have scores and no curves; without any curve learning.png is
    not drawn. Scores are those of the epoch that early stopping would keep, the epoch with the
    lowest validation loss so far. Trials that came to an error are left out. How many seeds there
    are stands in the title, or where arms differ behind their names: a number, or one a panel. Of a
    measure that is no share the curves are shown where they lie after a quarter of the epochs.

    Args:
        grid: the grid of the sweep.
        rows: its table.
        sweep: its folder.
        over: the setting along the axis of the scores, and of the panels of learning curves;
            by default layers, or else the first that varies. What it decides is not named again.

    Raises:
        ValueError: if the setting does not vary, or no chosen trial is over.
    """
    varied = grid.arm_settings
    over = over or ("layers" if "layers" in varied or not varied else varied[0])
    if varied and over not in varied:
        raise ValueError(f"over must be a setting that varies from arm to arm, {', '.join(varied)}, got {over!r}.")
    rest = [name for name in varied if name != over and not _follows(grid, name, over)]
    column, share = f"validation_{grid.score}", grid.measure.share
    arms = [group for group in groups(grid, rows, [over, *rest]) if group.values(column)]
    if not arms:
        raise ValueError("there is nothing to draw: no trial that was chosen is over.")
    folders = {trial.name: trial.folder(sweep) for trial in grid.trials}
    panels: dict[str, dict[str, Any]] = {}
    scores: dict[str, dict[Any, list[float]]] = {}
    for group in arms:
        value, name = group.arm[over], Group({name: group.arm[name] for name in rest}, ()).name
        if curves := [curve for row in group.whole if (curve := _curve(folders[row["trial"]], column))]:
            panels.setdefault(f"{over} {shown(value)}", {})[name] = curves
        scores.setdefault(name, {})[value] = group.values(column)
    paths = [sweep / "learning.png", sweep / "scores.png"]
    seeds = {name: [len(values) for values in runs.values()] for name, runs in scores.items()}
    missing = sum(map(sum, seeds.values())) - sum(len(runs) for curves in panels.values() for runs in curves.values())
    title = _title(grid)
    if len({number for numbers in seeds.values() for number in numbers}) == 1:
        title += f", {_told(next(iter(seeds.values())))}"
        told = {name: name for name in seeds}
    else:
        told = {name: f"{name} ({_told(numbers)})" for name, numbers in seeds.items()}
    panels = {panel: {told[name]: runs for name, runs in curves.items()} for panel, curves in panels.items()}
    bands, score = f"{title}; bands from lowest to highest", column.replace("_", " ")
    bands += f"; no curve of {missing} trials known from a table" if missing else ""
    if panels:
        limits = (
            None if share else _late([run for curves in panels.values() for runs in curves.values() for run in runs])
        )
        told_score = f"{score}\nof the best epoch so far"
        plot_bands(panels, paths[0], score=told_score, share=share, limits=limits, title=bands)
    runs_of = {told[name]: runs for name, runs in scores.items()}
    plot_scores(runs_of, paths[1], over=over, score=score, share=share, title=title)
    return paths if panels else paths[1:]


def _follows(grid: Grid, name: str, other: str) -> bool:
    """Whether another setting says what a setting is, in all trials of the grid."""
    pairs = {(trial.settings[other], trial.settings[name]) for trial in grid.trials}
    return len(pairs) == len({value for value, _ in pairs})


def _late(curves: Iterable[list[float]]) -> tuple[float, float]:
    """Between what scores lie after the first quarter of the epochs, with some room."""
    late = [value for curve in curves for value in curve[len(curve) // 4 :]]
    room = 0.05 * (max(late) - min(late)) or 0.05 * abs(max(late)) or 1.0
    return min(late) - room, max(late) + room


def _title(grid: Grid) -> str:
    """The sweep, and what of network and data all trials share."""
    first = grid.trials[0]
    shared = [
        f"{name} {shown(first.settings[name])}" for name in ("cell", "layers", "width") if name not in grid.varied
    ]
    data = [] if {"data", "root"} & set(grid.varied) else [first.experiment.data.title]
    return f"{grid.name}: {', '.join([*shared, *data])}"


def _told(seeds: list[int]) -> str:
    """How many seeds an arm has, one number for each panel where they differ."""
    numbers = seeds[:1] if len(set(seeds)) == 1 else seeds
    return f"{', '.join(map(str, numbers))} {'seed' if numbers == [1] else 'seeds'}"


def _curve(folder: Path, column: str) -> list[float]:
    return [row[column] for row in best_so_far(read_history(folder))]
