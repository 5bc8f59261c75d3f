"""A sweep: the trials of a grid, run by processes or on a Ray cluster, as one table.

Every trial is a run in a folder of its own, so that a sweep can be interrupted and continued.
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
TRIAL_ENDS = ("", UNFINISHED, FAILED)  # ends of names: of a finished run, an unfinished one, the note of an error
DEATHS = 3  # workers that die over one trial before it counts as failed
REST = 2.0  # seconds until a trial is tried again that another process runs
# errors with which a trial fails, and the sweep goes on: a diverging loss, settings that do not fit, no radii
EXPECTED = (ArithmeticError, ValueError, RuntimeError)


@dataclass(frozen=True)
class Job:
    """A trial that is to be run to its end."""

    trial: Experiment
    sweep: Path  # folder of the sweep
    test: bool = False  # score it on the test set, too
    device: str = "cpu"

    @property
    def folder(self) -> Path:
        return self.sweep / self.trial.name

    @property
    def failure(self) -> Path:
        return self.sweep / (self.trial.name + FAILED)

    def is_over(self) -> bool:
        """Return True if the trial failed, or has finished and, where it is to be tested, has its test scores."""
        # the file or folder that appears last
        if self.test:
            last = self.folder / TEST
        else:
            last = self.folder
        return last.exists() or self.failure.exists()

    def run(self) -> bool:
        """Run the trial from its last checkpoint on; return False if another process is at work on it.

        An error of ``EXPECTED`` is written into a note, with which the trial is over.
        """
        usable_device(self.device)  # outside of the try: a missing device is no fault of the trial
        try:
            if not self.folder.exists():
                experiment = replace(self.trial, device=self.device)

                def measure(network: Network, unfinished: Path) -> None:
                    """Write what the table says of a network before its training."""
                    if not (unfinished / BEFORE).exists():  # else it was written before the run was stopped
                        content = {"environment": environment(self.device)}
                        write_json(unfinished / BEFORE, content | {"statistics": statistics(network, experiment)})

                experiment.run(self.folder, before_training=measure, progress=False)
            if self.test:
                with locked(self.folder):
                    if not (self.folder / TEST).exists():  # another process may have written it meanwhile
                        score(self.folder, "test", device=self.device)
        except BlockingIOError:
            return False
        except FileExistsError:  # another process finished it meanwhile
            return self.is_over()
        except EXPECTED as error:
            self.fail(f"{type(error).__name__}: {error}")
        return True

    def fail(self, error: str) -> None:
        """Write an error into a note, with which the trial is over."""
        write_json(self.failure, {"error": error, "environment": environment(self.device)})

    def forget(self) -> None:
        """Remove what is left of a failed trial, so that it can be run anew.

        If there is a note of the error, the note and the unfinished run are removed. If there is none, the finished run
        is damaged, and is removed.
        """
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
        # each worker has an executor of its own, since the death of a process breaks its whole executor
        self.executors: dict[ProcessPoolExecutor, Future[bool]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for executor, future in self.executors.items():
            if not future.done():
                for process in (executor._processes or {}).values():
                    process.terminate()  # terminate_workers() from Python 3.14 on
            executor.shutdown(cancel_futures=True)
        self.executors.clear()

    def submit(self, job: Job) -> Future[bool] | None:
        """Start a job; return the future of :meth:`Job.run`, or None if all workers are busy."""
        free = []
        for executor, future in list(self.executors.items()):
            if not future.done():
                continue
            if future.exception() is None:
                free.append(executor)
            else:  # its process died, or its job raised an error, with which the sweep ends
                del self.executors[executor]
        if free:
            executor = free[0]
        elif len(self.executors) < self.size:
            spawn = multiprocessing.get_context("spawn")
            executor = ProcessPoolExecutor(1, mp_context=spawn, initializer=_become_worker)
        else:
            return None
        before = dict(os.environ)
        os.environ["OMP_NUM_THREADS"] = "1"  # read by a new process when it imports torch
        try:
            self.executors[executor] = executor.submit(job.run)
        finally:
            os.environ.clear()
            os.environ.update(before)
        return self.executors[executor]

    def died(self, error: BaseException) -> bool:
        """Return True if a future's error says that its worker died, and False if the job raised it."""
        return isinstance(error, BrokenProcessPool)


def _become_worker() -> None:
    """Set up a new process: it ends with its parent, leaves Ctrl-C to the sweep, and uses one thread."""

    def die_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
        self.address = address
        self.ours = False  # True if Ray was started here, and must be stopped here
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

    def submit(self, job: Job) -> Future[bool]:  # never None: Ray queues jobs
        task = self.task.options(num_gpus=int(job.device.startswith("cuda")))
        self.futures.append(task.remote(job, str(Path.cwd())).future())
        return self.futures[-1]

    def died(self, error: BaseException) -> bool:
        errors = self.ray.exceptions
        raised_by_job = isinstance(error, errors.RayTaskError)
        return isinstance(error, errors.RayError) and not raised_by_job


def _run_on_node(job: Job, working_directory: str) -> bool:
    """Run a job on a node of the cluster, in the directory of the sweep if the node has it."""
    if os.path.isdir(working_directory):
        os.chdir(working_directory)
        sys.path.append(working_directory)  # for settings such as cell = "module:Class"
    torch.set_num_threads(1)
    return job.run()


Pool = Processes | RayTasks


def run_sweep(
    grid: Grid, folder: Path, pool: Pool, *, retry: bool = False, device: str = "cpu", progress: bool = True
) -> list[Row]:
    """Run the trials of a grid that are not over yet, and write the table.

    After an interruption, call again with the same arguments to continue. Several calls may work on one folder at the
    same time: each trial is then run by one of them.

    Args:
        grid: the trials.
        folder: folder of the sweep; made if it is missing.
        pool: the workers.
        retry: run failed trials again.
        device: where the networks run, as torch calls it; the table has a column for it.
        progress: show a bar over the trials.

    Returns:
        The table: one row per trial that was run.

    Raises:
        ValueError: if a setting of a trial is wrong, before anything runs, or torch cannot use the device.
        OSError: if the folder cannot be written, or another process runs a trial that is to be run again.
        Stopped: for a KeyboardInterrupt.
    """
    # a check builds the network: once for all trials that differ in other settings alone
    different = {(replace(trial.network, seed=0), trial.data): trial for trial in grid.trials}
    for trial in different.values():
        try:
            trial.check()
        except ValueError as error:
            raise ValueError(f"a trial of {grid.name} has a wrong setting: {error}") from error
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    rename_trials(folder, grid.trials, TRIAL_ENDS)  # those of an earlier version
    write_text(folder / GRID, tomli_w.dumps(grid.content))
    if retry:
        for trial in grid.trials:
            row = make_row(trial, folder, grid)
            # at most twice: the note of an error, then perhaps a damaged run next to it
            while row is not None and row["error"] is not None:
                Job(trial, folder).forget()
                row = make_row(trial, folder, grid)
    state = _State(grid, folder, device)
    state.update()
    write_csv(folder / TABLE, state.table())
    running: dict[Future[bool], Job] = {}
    not_before: dict[Job, float] = {}  # times until which jobs of other processes are left alone
    deaths: Counter[Job] = Counter()
    bar = progress_bar(
        grid.total(),
        desc=grid.name,
        unit="trial",
        shown=progress,
        initial=len(state.rows),
        smoothing=0,  # the time left follows from the mean over all trials of this call
    )
    try:
        with bar, pool:
            while jobs := state.jobs():
                # Submit jobs until the pool is full.
                for job in jobs:
                    if job in running.values() or not_before.get(job, 0) > time.monotonic():
                        continue  # it runs here, or another process was running it a moment ago
                    future = pool.submit(job)
                    if future is None:
                        break
                    running[future] = job
                if not running:  # other processes run all that is left: wait() would return at once
                    time.sleep(REST)
                # Wait until some end, or it is time to look for trials that other processes have ended.
                for future in concurrent.futures.wait(running, REST, concurrent.futures.FIRST_COMPLETED).done:
                    job = running.pop(future)
                    error = future.exception()
                    if error is None:
                        if not future.result():  # another process runs it
                            not_before[job] = time.monotonic() + REST
                        continue
                    if not pool.died(error):
                        raise error
                    deaths[job] += 1
                    if deaths[job] == DEATHS:
                        job.fail(f"its worker died {DEATHS} times: it was killed, or had too little memory.")
                # Show what is new.
                before = len(state.rows)
                if state.update():
                    bar.update(len(state.rows) - before)
                    write_csv(folder / TABLE, state.table())
    except KeyboardInterrupt as error:
        state.update()
        table = state.table()
        write_csv(folder / TABLE, table)
        raise Stopped(f"{len(state.rows)} of {grid.total(table)} trials are over, in {folder}") from error
    return state.table()


def read_sweep(folder: Path) -> tuple[Grid, list[Row]]:
    """Return a sweep's grid, and the table of its trials that are over; ``ValueError`` if the folder holds no sweep."""
    if not (folder / GRID).exists():
        raise ValueError(f"{folder} is not the folder of a sweep: it has no {GRID}.")
    grid = read_grid(folder / GRID)
    rename_trials(folder, grid.trials, TRIAL_ENDS)  # those of an earlier version
    state = _State(grid, folder)
    state.update()  # reads which trials are over
    return grid, state.table()


class _State:
    """What is known of a sweep by now: the rows of the trials that are over, and the jobs that are left."""

    def __init__(self, grid: Grid, folder: Path, device: str = "cpu") -> None:
        self.grid = grid
        self.folder = folder
        self.device = device
        self.rows: dict[Experiment, Row] = {}
        self.over: set[Job] = set()  # jobs whose rows are read; one with test=True is another job of the same trial

    def plan(self) -> dict[Experiment, bool]:
        """Return the trials to be run by what is known now, each with True if it is chosen: :meth:`Grid.wanted`."""
        if self.grid.choice:
            score = self.grid.choice.by
        else:
            score = f"validation_{self.grid.score}"
        scores = {}
        for trial, row in self.rows.items():
            # not by row["error"]: a failed scoring on the test set changes no choice
            scores[trial] = row.get(score) if row["finished"] else None
        return self.grid.wanted(scores)

    def jobs(self) -> list[Job]:
        """Return the jobs that have neither finished nor failed.

        A chosen trial is tested if the grid says so. Its test is another job than its training, and is left to do even
        where the training is over.
        """
        jobs = []
        for trial, chosen in self.plan().items():
            job = Job(trial, self.folder, test=chosen and self.grid.test, device=self.device)
            if job not in self.over:
                jobs.append(job)
        return jobs

    def update(self) -> bool:
        """Read the rows of trials that have ended, in whatever process; return True if there are any."""
        found = False
        # repeated, because the rows of an arm may decide its value, which makes new jobs, which may be over as well
        while ended := [job for job in self.jobs() if job.is_over()]:
            found = True
            for job in ended:
                row = make_row(job.trial, self.folder, self.grid)
                if row is not None:
                    self.rows[job.trial] = row
                    self.over.add(job)
        return found

    def table(self) -> list[Row]:
        """Return the rows in the order of the grid, with a column ``chosen``."""
        plan = self.plan()
        rows = [(trial, self.rows[trial]) for trial in self.grid.trials if trial in plan and trial in self.rows]
        return [{"trial": row["trial"], "chosen": plan[trial]} | row for trial, row in rows]
