"""A sweep: the trials of a grid, run by processes or on a Ray cluster, as one table.

Every trial is a run in a folder of its own, so that a sweep goes on after whatever stopped it.
"""

import concurrent.futures
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import tomli_w
import torch
from tqdm import tqdm

from neurolsc.display import progress_bar
from neurolsc.experiment.former import rename_trials
from neurolsc.experiment.grid import Grid, read_grid
from neurolsc.experiment.run import UNFINISHED, Experiment, Stopped, score
from neurolsc.experiment.table import BEFORE, FAILED, TABLE, TEST, Row, environment, make_row, statistics
from neurolsc.io import locked, write_csv, write_json, write_text
from neurolsc.network import Network
from neurolsc.validation import usable_device, whole

GRID = "grid.toml"
TRIAL_ENDS = ("", UNFINISHED, FAILED)  # a finished run, an unfinished one, the note of an error
DEATHS = 3  # of workers over one trial, until it counts as failed
REST = 2.0  # seconds until a trial is tried again that another process runs
EXPECTED = (ArithmeticError, ValueError, RuntimeError)  # a diverging loss, settings that do not fit, no radii


@dataclass(frozen=True)
class Job:
    """A trial to be brought to its end."""

    trial: Experiment
    sweep: Path  # folder of the sweep
    test: bool  # score it on the test set, too
    device: str = "cpu"

    @property
    def folder(self) -> Path:
        return self.sweep / self.trial.name

    @property
    def failure(self) -> Path:
        return self.sweep / (self.trial.name + FAILED)

    def is_over(self) -> bool:
        """True if nothing is left to be done."""
        return (self.folder / TEST if self.test else self.folder).exists() or self.failure.exists()

    def run(self) -> bool:
        """Run the trial from its last checkpoint on; False if another process is at work on it.

        An error that comes from its settings is noted, and ends it.
        """
        usable_device(self.device)  # a missing device is no fault of the trial
        try:
            if not self.folder.exists():
                experiment = replace(self.trial, device=self.device)

                def before(network: Network, unfinished: Path) -> None:
                    if not (unfinished / BEFORE).exists():  # else this goes on after a stop
                        content = {"environment": environment(self.device)}
                        write_json(unfinished / BEFORE, content | {"statistics": statistics(network, experiment)})

                experiment.run(self.folder, before_training=before, progress=False)
            if self.test:
                with locked(self.folder):
                    if not (self.folder / TEST).exists():
                        score(self.folder, "test", device=self.device)
        except BlockingIOError:
            return False
        except FileExistsError:
            return self.is_over()
        except EXPECTED as error:
            self.fail(f"{type(error).__name__}: {error}")
        return True

    def fail(self, error: str) -> None:
        """Note an error, which ends the trial."""
        write_json(self.failure, {"error": error, "environment": environment(self.device)})

    def forget(self) -> None:
        """Remove the note of an error with the unfinished run, else a damaged run."""
        with locked(self.folder):
            if not self.failure.exists():
                shutil.rmtree(self.folder)
            else:
                shutil.rmtree(self.sweep / (self.trial.name + UNFINISHED), ignore_errors=True)
                self.failure.unlink()


class Processes:
    """Workers that are processes of this machine, one thread each; a dead one is replaced."""

    def __init__(self, workers: int) -> None:
        self.size = whole("workers", workers)
        # an executor for each worker: the death of a process breaks its whole executor
        self.executors: dict[ProcessPoolExecutor, Future[bool]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for executor, future in self.executors.items():
            for process in () if future.done() else (executor._processes or {}).values():
                process.terminate()  # terminate_workers() from Python 3.14 on
            executor.shutdown(cancel_futures=True)
        self.executors.clear()

    def submit(self, job: Job) -> Future[bool] | None:
        """The future of a job, False if another process is at work on it; None while all workers are busy."""
        ended = {executor: future for executor, future in self.executors.items() if future.done()}
        alive = [executor for executor, future in ended.items() if future.exception() is None]
        self.executors = {e: f for e, f in self.executors.items() if e not in ended or e in alive}
        if not alive and len(self.executors) == self.size:
            return None
        spawn = multiprocessing.get_context("spawn")
        executor = alive[0] if alive else ProcessPoolExecutor(1, mp_context=spawn, initializer=_become_worker)
        before = dict(os.environ)
        os.environ["OMP_NUM_THREADS"] = "1"  # read by a new process when it imports torch
        try:
            self.executors[executor] = executor.submit(job.run)
        finally:
            os.environ.clear()
            os.environ.update(before)
        return self.executors[executor]

    def died(self, error: BaseException) -> bool:
        """True if the error of a future says that its worker died."""
        return isinstance(error, BrokenProcessPool)


def _become_worker() -> None:
    def die_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the sweep, which then stops its workers
    threading.Thread(target=die_with_parent, daemon=True).start()
    tqdm.set_lock(threading.RLock())  # type: ignore[no-untyped-call]  # its semaphore would be left behind
    torch.set_num_threads(1)


class RayTasks:
    """Workers on a Ray cluster, with a core each, and a GPU each if their networks run on one.

    All nodes must see the sweep's folder, the data and this package under the same paths. The address is that of
    ``ray.init``; empty: the cluster of this machine or of RAY_ADDRESS, else a new one.
    """

    def __init__(self, address: str = "") -> None:
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError("sweeps on a cluster need Ray: pip install 'ray>=2.40,<3'.") from error
        self.address, self.ours = address, False
        self.futures: list[Any] = []

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            self.ray.init(address=self.address or None, log_to_driver=False, logging_level="warning")
            self.ours = True
        self.task = self.ray.remote(num_cpus=1, max_retries=0)(_run_on_node)  # the sweep counts retries itself
        return self

    def __exit__(self, *_: object) -> None:
        for future in self.futures:
            if not future.done():
                self.ray.cancel(future.object_ref, force=True)
        self.futures.clear()
        if self.ours:
            self.ray.shutdown()

    def submit(self, job: Job) -> Future[bool]:  # Ray queues jobs
        task = self.task.options(num_gpus=int(job.device.startswith("cuda")))
        self.futures.append(task.remote(job, str(Path.cwd())).future())
        return self.futures[-1]

    def died(self, error: BaseException) -> bool:
        errors = self.ray.exceptions
        return isinstance(error, errors.RayError) and not isinstance(error, errors.RayTaskError)  # raised by the job


def _run_on_node(job: Job, where: str) -> bool:
    if os.path.isdir(where):
        os.chdir(where)
        sys.path.append(where)  # for settings such as cell = "module:Class"
    torch.set_num_threads(1)
    return job.run()


Pool = Processes | RayTasks


def run_sweep(
    grid: Grid, folder: Path, pool: Pool, *, retry: bool = False, device: str = "cpu", progress: bool = True
) -> list[Row]:
    """Run the trials of a grid that are not over yet, and write the table.

    Whatever stops the sweep, the same call goes on with it. Several sweeps on one folder share the trials.

    Args:
        grid: the trials.
        folder: of the sweep; made if it is missing.
        pool: the workers.
        retry: run trials anew that failed.
        device: where their networks run, as torch calls it; not a setting, but a column.
        progress: show a bar over the trials.

    Returns:
        The table: one row per trial.

    Raises:
        ValueError: if torch cannot use the device.
        OSError: if the folder cannot be written, or another process runs a trial that is to be run anew.
        Stopped: for a KeyboardInterrupt.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rename_trials(folder, grid.trials, TRIAL_ENDS)
    write_text(folder / GRID, tomli_w.dumps(grid.content))
    for trial in grid.trials if retry else ():
        while (row := make_row(trial, folder, grid)) is not None and row["error"] is not None:
            Job(trial, folder, False).forget()
    state = _State(grid, folder, device)
    state.update()
    write_csv(folder / TABLE, state.table())
    at_work: dict[Future[bool], Job] = {}
    resting: dict[Job, float] = {}
    deaths: Counter[Job] = Counter()
    # the time left is reckoned from the trials of this call
    bar = progress_bar(grid.total(), desc=grid.name, unit="trial", shown=progress, initial=len(state.rows), smoothing=0)
    try:
        with bar, pool:
            while jobs := state.jobs():
                for job in jobs:
                    if job in at_work.values() or resting.get(job, 0) > time.monotonic():
                        continue
                    if (future := pool.submit(job)) is None:
                        break
                    at_work[future] = job
                if not at_work:
                    time.sleep(REST)
                for future in concurrent.futures.wait(at_work, REST, concurrent.futures.FIRST_COMPLETED).done:
                    job, error = at_work.pop(future), future.exception()
                    if error is None and not future.result():
                        resting[job] = time.monotonic() + REST
                    elif error is not None and pool.died(error):
                        deaths[job] += 1
                        if deaths[job] == DEATHS:
                            job.fail(f"its worker died {DEATHS} times: it was killed, or had too little memory.")
                    elif error is not None:
                        raise error
                before = len(state.rows)
                if state.update():
                    bar.update(len(state.rows) - before)
                    write_csv(folder / TABLE, state.table())
    except KeyboardInterrupt as error:
        state.update()
        write_csv(folder / TABLE, state.table())
        raise Stopped(f"{len(state.rows)} of {grid.total(state.table())} trials are over, in {folder}") from error
    return state.table()


def read_sweep(folder: Path) -> tuple[Grid, list[Row]]:
    """A sweep's grid, and its table of the trials that are over; ``ValueError`` if the folder holds no sweep."""
    if not (folder / GRID).exists():
        raise ValueError(f"{folder} is not the folder of a sweep: it has no {GRID}.")
    grid = read_grid(folder / GRID)
    rename_trials(folder, grid.trials, TRIAL_ENDS)
    state = _State(grid, folder)
    state.update()
    return state.grid, state.table()


class _State:
    """The rows of the trials that are over, and which jobs that leaves."""

    def __init__(self, grid: Grid, folder: Path, device: str = "cpu") -> None:
        self.grid, self.folder, self.device = grid, folder, device
        self.rows: dict[Experiment, Row] = {}
        self.over: set[Job] = set()

    def plan(self) -> dict[Experiment, bool]:
        """The trials that are wanted by now, each with True if it is chosen."""
        by = self.grid.choice.by if self.grid.choice else f"validation_{self.grid.score}"
        # "finished": a failed scoring on the test set changes no choice
        return self.grid.wanted({t: row.get(by) if row["finished"] else None for t, row in self.rows.items()})

    def jobs(self) -> list[Job]:
        """The jobs that are left."""
        wanted = self.plan().items()
        jobs = (Job(trial, self.folder, chosen and self.grid.test, self.device) for trial, chosen in wanted)
        return [job for job in jobs if job not in self.over]

    def update(self) -> bool:
        """Read the rows of trials that ended, in whatever process; True if there are any."""
        found = False
        while ended := [job for job in self.jobs() if job.is_over()]:
            found = True
            for job in ended:
                if (row := make_row(job.trial, self.folder, self.grid)) is not None:
                    self.rows[job.trial] = row
                    self.over.add(job)
        return found

    def table(self) -> list[Row]:
        """The rows in the order of the grid, each with True if it is chosen."""
        plan = self.plan()
        rows = [(trial, self.rows[trial]) for trial in self.grid.trials if trial in plan and trial in self.rows]
        return [{"trial": row["trial"], "chosen": plan[trial]} | row for trial, row in rows]
