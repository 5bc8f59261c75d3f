"""The sweep: which trials are over, which are next, and the table."""

import time
from collections import Counter
from pathlib import Path

import tomli_w
from tqdm import tqdm

from neurolsc.progress import progress_bar
from neurolsc.runs import Stopped, write_text
from neurolsc.sweeps.grid import Grid, read_grid
from neurolsc.sweeps.known import KNOWN, Known, read_known
from neurolsc.sweeps.pools import Pool
from neurolsc.sweeps.row import Row, make_row
from neurolsc.sweeps.table import TABLE, write_table
from neurolsc.sweeps.trial import Trial
from neurolsc.sweeps.work import Job

GRID = "grid.toml"
DEATHS = 3
"""workers that may die over a trial before it counts as failed"""
REST = 2.0
"""seconds until a trial is tried again that another process is at"""


def run_sweep(
    grid: Grid,
    folder: Path,
    pool: Pool,
    *,
    retry: bool = False,
    known: Path | None = None,
    device: str = "cpu",
    progress: bool = True,
) -> list[Row]:
    """Run the trials of a grid that are not over yet, and write the table.

    Each trial has a run folder of its own in the folder; see :mod:`neurolsc.runs`. Whatever stops
    the sweep, the same call goes on with it. Several sweeps on one folder share the trials.

    Args:
        grid: the trials.
        folder: where they are kept; made if it is missing.
        pool: who runs them.
        retry: run those anew that came to an error.
        known: the table of an earlier sweep: finished trials that stand in it are over, and taken
            from it. It is kept in the folder, as known.csv. They can be in no learning curve.
        device: where their networks run, as torch calls it. It is no part of what a trial is, and
            the table says what each ran on.
        progress: show a bar over the trials.

    Returns:
        The table: one row per trial.

    Raises:
        ValueError: if torch cannot use the device, or what is known is no table of a sweep, or of
            none of these trials, or of one with other settings.
        BlockingIOError: if a trial is to be run anew that another process is at.
        OSError: if the folder cannot be written.
        Stopped: for a KeyboardInterrupt.
    """
    folder = folder.resolve()
    given = None if known is None else _known_of(grid, known)
    folder.mkdir(parents=True, exist_ok=True)
    if given is not None:
        (_kept(folder) | given).write(folder)
    write_text(folder / GRID, tomli_w.dumps(grid.given))
    if retry:
        for trial in grid.trials:
            while (row := make_row(trial, folder, grid.figures)) is not None and row["error"] is not None:
                trial.forget(folder)
    state = _Sweep(grid, folder, device)
    state.note_those_that_are_over()
    write_table(state.table(), folder / TABLE)
    # the time left is reckoned from the trials of this call
    bar = progress_bar(grid.total, desc=grid.name, unit="trial", shown=progress, initial=len(state.rows), smoothing=0)
    with bar, pool:
        try:
            state.drive(pool, bar)
        except KeyboardInterrupt as error:
            state.note_those_that_are_over()
            write_table(state.table(), folder / TABLE)
            raise Stopped(f"{len(state.rows)} of {grid.total} trials are over, in {folder}") from error
    return state.table()


def read_sweep(folder: Path) -> tuple[Grid, list[Row]]:
    """A sweep's grid, and its table as it stands: of the trials that are over.

    Raises:
        ValueError: if the folder is not that of a sweep.
    """
    if not (folder / GRID).exists():
        raise ValueError(f"{folder} is not the folder of a sweep: it has no {GRID}.")
    state = _Sweep(read_grid(folder / GRID), folder)
    state.note_those_that_are_over()
    return state.grid, state.table()


def _kept(folder: Path) -> Known:
    """The known trials that a sweep's folder keeps."""
    return read_known(folder / KNOWN) if (folder / KNOWN).exists() else Known({})


def _known_of(grid: Grid, path: Path) -> Known:
    """Those of a table that are trials of the grid."""
    found = read_known(path)
    rows = {trial.name: row for trial in grid.trials if (row := found.row(trial)) is not None}
    if not rows:
        raise ValueError(f"{path}: none of its {len(found.rows)} finished trials is a trial of {grid.name}.")
    return Known(rows)


class _Sweep:
    """A sweep under way: what is known of its trials."""

    def __init__(self, grid: Grid, folder: Path, device: str = "cpu") -> None:
        self.grid, self.folder, self.device = grid, folder, device
        self.known = _kept(folder)
        self.rows: dict[Trial, Row] = {}
        self.over: set[Job] = set()

    def drive(self, pool: Pool, bar: tqdm) -> None:
        """Bring all trials to their end."""
        at_work: set[Job] = set()
        resting: dict[Job, float] = {}
        deaths: Counter[Job] = Counter()
        while jobs := self.jobs():
            for job in jobs:
                if job not in at_work and resting.get(job, 0) < time.monotonic() and pool.has_room():
                    pool.start(job)
                    at_work.add(job)
            for job, outcome in pool.wait(REST):
                at_work.remove(job)
                if outcome == "busy":
                    resting[job] = time.monotonic() + REST
                elif outcome == "died":
                    deaths[job] += 1
                    if deaths[job] == DEATHS:
                        job.fail(f"its worker died {DEATHS} times: it was killed, or had too little memory.")
            before = len(self.rows)
            if self.note_those_that_are_over():
                bar.update(len(self.rows) - before)
                write_table(self.table(), self.folder / TABLE)

    def jobs(self) -> list[Job]:
        """What is to be done next, as far as can be said."""
        jobs = [
            Job(trial, self.folder, chosen and self.grid.test, self.device) for trial, chosen in self.plan().items()
        ]
        return [job for job in jobs if job not in self.over]

    def plan(self) -> dict[Trial, bool]:
        """The trials that are wanted by now, and whether each is chosen."""
        choice = self.grid.choice
        by = f"validation_{self.grid.score}" if choice is None else choice.by
        # an error of the scoring on the test set changes no choice
        return self.grid.wanted({t: row.get(by) if row["finished"] else None for t, row in self.rows.items()})

    def note_those_that_are_over(self) -> bool:
        """Read the rows of trials that came to their end, by whomever; tell if there were any."""
        found = False
        while ended := [job for job in self.jobs() if job.is_over() or self.known.covers(job)]:
            found = True
            for job in ended:
                row = make_row(job.trial, self.folder, self.grid.figures) or self.known.row(job.trial)
                if row is not None:
                    self.rows[job.trial] = row
                    self.over.add(job)
        return found

    def table(self) -> list[Row]:
        """The rows in the order of the grid, each with whether it is chosen."""
        plan = self.plan()
        rows = [(trial, self.rows[trial]) for trial in self.grid.trials if trial in plan and trial in self.rows]
        return [{"trial": row["trial"], "chosen": plan[trial]} | row for trial, row in rows]
