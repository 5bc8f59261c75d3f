"""Sweeps on a Ray cluster."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from neurolsc.sweeps import Processes, read_grid, read_sweep, run_sweep
from tests.sweeps.grids import finished, write_grid
from tests.sweeps.test_processes import CONTENT, counted, same

__all__ = ["counted"]

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'ray>=2.40,<3'")


@pytest.mark.slow
def test_a_node_killed_in_mid_sweep_loses_nothing_and_repeats_nothing(tmp_path: Path, counted):
    """Two local nodes, one killed; the table is that of a sweep in processes."""
    content = CONTENT | {"grid": {"lr": [0.003, 0.01], "layers": [1, 2], "seed": [0, 1]}}
    content["fixed"] = {name: value for name, value in CONTENT["fixed"].items() if name != "layers"} | {
        "epochs": 12,
        "patience": 12,
    }
    file = write_grid(tmp_path / "grid.toml", **content)
    command = [sys.executable, "-m", "tests.sweeps.ray_cluster", str(file), str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.strip().splitlines()[-1])
    assert told["before"]
    assert told["before"].items() < finished(tmp_path / "s").items()
    assert told["rows"] == len(finished(tmp_path / "s")) == 6
    built = counted()
    assert len(set(built)) >= 2  # both nodes were at work
    assert not list(tmp_path.glob("s/*.partial"))
    _, rows = read_sweep(tmp_path / "s")
    local = run_sweep(read_grid(file), tmp_path / "local", Processes(2), progress=False)
    assert same(rows) == same(local)
    assert len(built) > len(counted()) - len(built)  # what was under way on the dead node was begun again
