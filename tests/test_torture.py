"""A short run of tests/torture.py, which `make torture` runs at length."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_few_kills_of_every_job_lose_nothing_and_leave_nothing(tmp_path: Path):
    words = [sys.executable, "-m", "tests.torture", "--kills", "7", "--seed", "3", "--json", str(tmp_path / "t")]
    done = subprocess.run(words, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "t").read_text())["jobs"]
    assert {job["kills"] for job in found.values()} == {1}
