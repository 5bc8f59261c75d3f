"""Workers that are tasks on a Ray cluster."""

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any, Self

from neurolsc.sweeps.pools import Outcome
from neurolsc.sweeps.work import Answer, Job


class RayTasks:
    """Workers on a Ray cluster, a core each, and a GPU each where they are to use one.

    A job whose worker or node dies is told as such.

    All nodes must see the sweep's folder, the data and this package under the same paths.

    Args:
        address: of the cluster, as ``ray.init`` takes it; empty: the one that runs on this machine
            or that RAY_ADDRESS names, else a new one of this machine's cores.

    Raises:
        ImportError: if Ray is not installed.
    """

    def __init__(self, address: str = "") -> None:
        try:
            self.ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise ImportError("sweeps on a cluster need Ray: pip install 'ray>=2.40,<3'.") from error
        self.address = address
        self.jobs: dict[Any, Job] = {}
        self.ours = False

    def __enter__(self) -> Self:
        if not self.ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of our own tells nobody
            self.ray.init(address=self.address or None, log_to_driver=False, logging_level="warning")
            self.ours = True
        # no retries of Ray's: it would do so for ever, or give up, without the sweep's knowledge
        self.task = self.ray.remote(num_cpus=1, max_retries=0)(_run)
        return self

    def __exit__(self, *_: object) -> None:
        for reference in self.jobs:
            self.ray.cancel(reference, force=True)
        self.jobs.clear()
        if self.ours:
            self.ray.shutdown()

    def has_room(self) -> bool:
        """Always: Ray lets jobs wait."""
        return True

    def start(self, job: Job) -> None:
        """Hand a job to Ray, with a GPU of its own if it is to run on one."""
        task = self.task.options(num_gpus=int(job.device.startswith("cuda")))
        self.jobs[task.remote(job, str(Path.cwd()))] = job

    def wait(self, seconds: float) -> list[tuple[Job, Outcome]]:
        """The jobs that came to an end; waits for one so long at most."""
        if not self.jobs:
            time.sleep(seconds)
            return []
        ready, _ = self.ray.wait(list(self.jobs), timeout=seconds)
        return [(self.jobs.pop(reference), self._outcome(reference)) for reference in ready]

    def _outcome(self, reference: Any) -> Outcome:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayTaskError:  # what the job itself raised
            raise
        except self.ray.exceptions.RayError:
            return "died"


def _run(job: Job, where: str) -> Answer:
    """A job in a worker, in the folder where the sweep was called, as far as the node has it."""
    import torch

    if os.path.isdir(where):
        os.chdir(where)
        sys.path.append(where)  # where settings such as cell = "module:Class" find modules
    torch.set_num_threads(1)
    return job.run()
