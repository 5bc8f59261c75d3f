"""Small sweeps, and workers for them without processes."""

from concurrent.futures import Future
from pathlib import Path
from typing import Self

import tomli_w

from neurolsc.experiment import Grid, read_grid
from neurolsc.experiment.sweep import Job

FIXED = {"data": "shd", "dt": 0.05, "channels": 70, "repeat": 1, "width": 6, "epochs": 2, "batch_size": 32, "lr": 0.01}
WITHOUT_RATE = {name: value for name, value in FIXED.items() if name != "lr"}
SMALL = {"name": "small", "fixed": FIXED, "grid": {"layers": [1, 2], "seed": [0, 1]}}
PAIR = {"name": "pair", "fixed": FIXED, "grid": {"layers": [1], "seed": [0, 1]}}
CHOOSING = {
    "fixed": WITHOUT_RATE,
    "grid": {"layers": [1, 2], "lr": [1e-3, 1e-2], "seed": [3, 4, 5]},
    "choose": {"setting": "lr"},
}


def write_grid(path: Path, **content: object) -> Path:
    path.write_text(tomli_w.dumps(content))
    return path


def grid(folder: Path, **content: object) -> Grid:
    """A grid read from a file with this content."""
    folder.mkdir(parents=True, exist_ok=True)
    return read_grid(write_grid(folder / "grid.toml", **content))


def finished(sweep: Path) -> dict[str, int]:
    """When each finished trial of a sweep got its history."""
    files = [file for file in sweep.glob("*/history.json") if not file.parent.name.endswith(".partial")]
    return {file.parent.name: file.stat().st_mtime_ns for file in files}


class DeathError(Exception):
    """What a future raises whose worker died."""


class Here:
    """A pool that runs each job at once and records it; its first outcomes may be prescribed: a result, or a death."""

    def __init__(self, outcomes: list[bool | DeathError] | None = None) -> None:
        self.jobs: list[Job] = []
        self.outcomes = outcomes or []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, job: Job) -> Future[bool]:
        self.jobs.append(job)
        outcome = self.outcomes.pop(0) if self.outcomes else job.run()
        future: Future[bool] = Future()
        if isinstance(outcome, DeathError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
        return future

    def died(self, error: BaseException) -> bool:
        return isinstance(error, DeathError)
