"""Workers that are processes of this machine."""

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Literal, Protocol, Self

from neurolsc.sweeps.work import Answer, Job
from neurolsc.validation import whole

Outcome = Answer | Literal["died"]
"""An answer, or that there will be none."""
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg"}


class Pool(Protocol):
    """Workers, each with one job at a time; a context, at whose end they are stopped."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def has_room(self) -> bool:
        """Whether another job can be started."""
        ...

    def start(self, job: Job) -> None:
        """Let a worker do a job."""
        ...

    def wait(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """The jobs that came to an end; waits for one so long at most.

        Raises:
            Exception: one that a job raised.
        """
        ...


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    job: Job | None = None


class Processes:
    """Workers that are processes of this machine, one thread each; a dead one is replaced."""

    def __init__(self, workers: int) -> None:
        self.size = whole("workers", workers)
        self.workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.connection.close()  # the end of one that waits for a job
            if worker.job is not None:
                worker.process.terminate()
        for worker in self.workers:
            worker.process.join()
        self.workers.clear()

    def has_room(self) -> bool:
        return sum(worker.job is not None for worker in self.workers) < self.size

    def start(self, job: Job) -> None:
        worker = next((w for w in self.workers if w.job is None and w.process.is_alive()), None) or self._hire()
        worker.job = job
        with suppress(OSError):  # it died just now, which wait() sees
            worker.connection.send(job)

    def wait(self, seconds: float) -> list[tuple[Job, Outcome]]:
        at_work = {worker.connection: worker for worker in self.workers if worker.job is not None}
        if not at_work:
            time.sleep(seconds)
        ended: list[tuple[Job, Outcome]] = []
        for connection in wait(list(at_work), seconds):
            worker = at_work[connection]  # type: ignore[index]
            job, worker.job = worker.job, None
            assert job is not None
            try:
                answer = worker.connection.recv()
            except (EOFError, OSError):
                answer = "died"
                self.workers.remove(worker)
                worker.process.join()
                worker.connection.close()
            if isinstance(answer, BaseException):
                raise answer
            ended.append((job, answer))
        return ended

    def _hire(self) -> _Worker:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(theirs,), daemon=True)
        with _environment():  # read when the worker imports torch
            process.start()
        theirs.close()
        self.workers.append(_Worker(process, ours))
        return self.workers[-1]


@contextmanager
def _environment() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _serve(connection: Connection) -> None:
    """The life of a worker."""
    import torch
    from tqdm import tqdm

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the sweep's, which then stops its workers
    threading.Thread(target=_die_with_parent, daemon=True).start()
    tqdm.set_lock(threading.RLock())  # type: ignore[no-untyped-call]  # its own is for many processes
    torch.set_num_threads(1)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        try:
            answer: object = job.run()
        except Exception as error:
            error.add_note(f"In a worker:\n{traceback.format_exc()}")
            answer = error
        connection.send(answer)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
