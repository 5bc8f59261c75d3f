"""Results of trials that nobody ran: scores as a function of the settings."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from examples.paper import Asked, Figure, Result
from neurolsc.experiment import Grid


def results(
    figure: Figure[Any], asked: Asked, score: Callable[[Mapping[str, Any]], float | str], folder: Path = Path("nowhere")
) -> list[Result]:
    """The table of every grid of a figure, with these scores; a text is an error."""
    return [
        Result(grid, tuple(_row(grid, trial.shown(), trial.name, score) for trial in grid.trials), folder)
        for grid in figure.grids(asked)
    ]


def _row(
    grid: Grid, given: dict[str, Any], name: str, score: Callable[[Mapping[str, Any]], float | str]
) -> dict[str, Any]:
    value = score(given)
    row = {"trial": name, "error": value if isinstance(value, str) else None} | given
    if isinstance(value, str):
        return row
    return row | {f"{split}_{grid.score}": value for split in ("validation", "test")} | {"validation_loss": value}


def judged(figure: Figure[Any], asked: Asked, rows: list[Result]) -> dict[str, tuple[bool | None, str]]:
    """What a figure finds in results: by claim whether it holds, and the numbers."""
    return {j.claim: (j.holds, j.found) for j in figure.judge(figure.measure(asked, rows))}
