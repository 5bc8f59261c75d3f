"""Sweeps in processes and on Ray that are killed, stopped, and run on one folder together."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from neurolsc.experiment import Processes, read_grid, read_sweep, run_sweep
from tests.sweeps.grids import WITHOUT_RATE, Here, finished, grid, write_grid

CONTENT: dict[str, Any] = {
    "fixed": WITHOUT_RATE | {"cell": "tests.sweeps.counted:Counted", "layers": 1, "epochs": 8, "patience": 8},
    "grid": {"lr": [0.003, 0.01], "seed": [0, 1]},
    "choose": {"setting": "lr"},
}
TRIALS = 3  # two rates with the first seed, the better one with the second
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def counted(tmp_path: Path, monkeypatch) -> Callable[[], list[str]]:
    """The processes that built a network, one entry a network."""
    monkeypatch.setenv("COUNTED", str(tmp_path / "counted"))
    monkeypatch.setenv("DEADLY", str(tmp_path / "deadly"))
    (tmp_path / "counted").touch()
    torch.set_num_threads(1)
    return lambda: (tmp_path / "counted").read_text().split()


def start(file: Path, out: Path) -> subprocess.Popen[str]:
    """A sweep in a process that takes Ctrl-C."""
    command = [sys.executable, "-m", "neurolsc", "sweep", str(file), "--out", str(out), "--workers", "1"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for(something: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + 200
    while not something():
        assert time.monotonic() < deadline
        assert process is None or process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not (state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def same(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without what differs from run to run."""
    return [{n: value for n, value in row.items() if not n.endswith("seconds")} for row in rows]


@pytest.mark.slow
def test_a_worker_killed_in_mid_trial_loses_nothing_and_repeats_nothing(tmp_path: Path, counted):
    made = grid(tmp_path, **CONTENT)
    through = run_sweep(made, tmp_path / "through", Here(), progress=False)
    undisturbed = counted()
    assert len(through) == TRIALS
    before: dict[str, int] = {}

    def light_the_fuse() -> None:
        wait_for(lambda: finished(tmp_path / "s"))
        before.update(finished(tmp_path / "s"))
        (tmp_path / "deadly").touch()

    thread = threading.Thread(target=light_the_fuse)
    thread.start()
    rows = run_sweep(made, tmp_path / "s", Processes(1), progress=False)
    thread.join()
    builds = counted()[len(undisturbed) :]
    assert len(set(builds)) == 2  # the worker and the one in its place, and nobody else
    assert not (tmp_path / "deadly").exists()
    assert before and before.items() < finished(tmp_path / "s").items()
    assert same(rows) == same(through)
    assert not list(tmp_path.glob("s/*.partial"))
    assert len(builds) == len(undisturbed) + 1  # the one that was killed was begun twice


@pytest.mark.long
def test_of_two_sweeps_on_one_folder_one_is_stopped_one_killed_both_take_workers_along_and_a_third_goes_on(
    tmp_path: Path, counted
):
    content = CONTENT | {"grid": {"lr": [0.003, 0.01], "seed": [0, 1, 2]}, "test": False}
    file = write_grid(tmp_path / "grid.toml", **content)
    stopped, killed = (start(file, tmp_path / "s") for _ in range(2))
    wait_for(lambda: len(set(counted())) == 2 and finished(tmp_path / "s"), stopped)  # both are at work
    stopped.send_signal(signal.SIGINT)
    output = stopped.communicate()[0]
    assert stopped.returncode == 130
    assert re.search(rf"Stopped; [123] of 4 trials are over, in {tmp_path}/s\. To go on:", output)
    assert output.rstrip().endswith(f"neurolsc sweep {file} --out {tmp_path}/s --workers 1")
    assert "Traceback" not in output and "leaked" not in output
    killed.kill()
    killed.communicate()
    wait_for(lambda: not any(is_alive(int(pid)) for pid in counted()))
    before, third = finished(tmp_path / "s"), start(file, tmp_path / "s")
    output = third.communicate()[0]
    assert third.returncode == 0 and "4 trials in" in output
    assert before.items() <= finished(tmp_path / "s").items()
    assert len(finished(tmp_path / "s")) == 4
    assert not list(tmp_path.glob("s/*.partial"))
    assert (tmp_path / "s" / "table.csv").read_text().count("\n") == 4 + 1


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'ray>=2.40,<3'")
@pytest.mark.long
def test_a_node_killed_in_mid_sweep_loses_nothing_and_repeats_nothing(tmp_path: Path, counted):
    """Two local nodes, one killed; the table is that of a sweep in this process."""
    content = {"grid": CONTENT["grid"], "fixed": CONTENT["fixed"] | {"epochs": 12, "patience": 12}}
    file = write_grid(tmp_path / "grid.toml", **content)
    command = [sys.executable, "-m", "tests.sweeps.ray_cluster", str(file), str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert report["before"] and report["before"].items() < finished(tmp_path / "s").items()
    assert report["rows"] == len(finished(tmp_path / "s")) == 4
    built = counted()
    assert len(set(built)) >= 2  # both nodes were at work
    assert not list(tmp_path.glob("s/*.partial"))
    _, rows = read_sweep(tmp_path / "s")
    local = run_sweep(read_grid(file), tmp_path / "local", Here(), progress=False)
    assert same(rows) == same(local)
    assert len(built) > len(counted()) - len(built)  # what was under way on the dead node was begun again
