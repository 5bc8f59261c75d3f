"""A sweep on a Ray cluster of two nodes, one of which is killed.

    python -m tests.sweeps.ray_cluster GRID OUT

The node is killed with all its processes, as a machine dies, in mid-trial, once the first trials
are finished. Printed is what was finished then, as JSON. A process of its own, as Ray leaves
threads and sockets behind.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

from neurolsc.experiment import read_grid, run_sweep
from neurolsc.experiment.sweep import RayTasks
from tests.sweeps.grids import finished


def workers_of(process: int) -> list[int]:
    """The processes that a process has started, from what Linux tells of it."""
    told = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for file in told for child in file.read_text().split()]


if __name__ == "__main__":
    from ray.cluster_utils import Cluster

    file, out = Path(sys.argv[1]), Path(sys.argv[2])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    before: dict[str, int] = {}

    def kill() -> None:
        while not finished(out) or len(list(out.glob("*.partial/train.checkpoint"))) < 2:
            time.sleep(0.01)  # until a trial is finished, and each node is in the middle of another
        before.update(finished(out))
        raylet = node.all_processes["raylet"][0].process.pid
        for task in workers_of(raylet):  # else they live on for a while, and may end their trial
            os.kill(task, signal.SIGKILL)
        cluster.remove_node(node, allow_graceful=False)

    threading.Thread(target=kill, daemon=True).start()
    rows = run_sweep(read_grid(file), out, RayTasks(cluster.address), progress=False)
    cluster.shutdown()
    print(json.dumps({"before": before, "rows": len(rows)}))
