"""Trials of figures that no sweep describes: functions of their settings, whose results are kept in a folder.

A trial whose result is there is not run again, so that a stopped figure goes on where it was.
"""

import concurrent.futures
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from neurolsc.display import progress_bar
from neurolsc.experiment.run import Stopped
from neurolsc.experiment.sweep import Pool
from neurolsc.io import refusing, write_json

Row = dict[str, Any]  # the settings of a trial and what it found: all that JSON can hold
T = TypeVar("T")


@dataclass(frozen=True)
class Trial:
    """A function, and the settings that it is called with."""

    function: Callable[..., Row]  # of a module, for other processes to find; it depends on its arguments alone
    settings: Row

    @property
    def name(self) -> str:
        """Name of its file: the function, the first of its settings, and a digest of all."""
        text = json.dumps(self.settings, sort_keys=True)
        digest = hashlib.sha256(f"{self.function.__qualname__} {text}".encode()).hexdigest()[:12]
        words = [self.function.__name__]
        for name, value in self.settings.items():
            words.append(f"{name}={value}")
        readable = re.sub(r"[^A-Za-z0-9.=,_-]+", "-", ",".join(words))[:80].strip("-,.=")
        return f"{readable}-{digest}"


@dataclass(frozen=True)
class Job:
    """A trial to be run, as the workers of a sweep take it."""

    trial: Trial
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / f"{self.trial.name}.json"

    def run(self) -> bool:
        """Run the trial and write its row."""
        found = self.trial.function(**self.trial.settings)
        write_json(self.file, self.trial.settings | found)
        return True

    def row(self) -> Row:
        """The row that was written; ``ValueError`` if its file was damaged since."""
        with refusing(self.file, "not the row of a trial, remove it to run the trial again"):
            return json.loads(self.file.read_text(encoding="utf-8"))


def run_trials(trials: Sequence[Trial], folder: Path, pool: Pool, *, title: str, progress: bool = True) -> list[Row]:
    """Run the trials that have no row in a folder yet.

    Args:
        trials: the trials.
        folder: folder of the rows, a file each; made if it is missing.
        pool: the workers.
        title: what the bar over the trials is called.
        progress: show the bar.

    Returns:
        The rows of all trials, in their order.

    Raises:
        Stopped: for a KeyboardInterrupt; rows of trials that are over are kept.
    """
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [Job(trial, folder) for trial in trials]
    left = [job for job in jobs if not job.file.exists()]
    running: set[Future[bool]] = set()
    bar = progress_bar(len(jobs), desc=title, unit="trial", shown=progress, initial=len(jobs) - len(left), smoothing=0)
    try:
        with bar, pool:
            while left or running:
                # Submit jobs until the pool is full.
                while left:
                    future = pool.submit(left[0])  # type: ignore[arg-type]  # a pool asks no more of a job than run()
                    if future is None:
                        break
                    running.add(future)
                    left.pop(0)
                over, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in over:
                    future.result()  # raises the error of its trial
                    bar.update()
    except KeyboardInterrupt as error:
        count = sum(job.file.exists() for job in jobs)
        raise Stopped(f"{count} of {len(jobs)} trials are over, in {folder}") from error
    return [job.row() for job in jobs]


def of_row(kind: Callable[..., T], row: Row) -> T:
    """A dataclass, made of the entries of a row that are called as its fields."""
    return kind(**{field.name: row[field.name] for field in fields(kind)})  # type: ignore[arg-type]
