"""Benchmarks run in worker processes, which a task must reach."""

import importlib.util
import pickle
import sys
from pathlib import Path

ARMS = Path(__file__).parents[1] / "benchmarks" / "_arms.py"


def test_a_task_can_be_sent_to_a_worker(monkeypatch):
    spec = importlib.util.spec_from_file_location("_arms", ARMS)
    arms = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "_arms", arms)
    spec.loader.exec_module(arms)
    task = arms.Task("name", "data", arms.prepare, arms.prepare, None, epochs=1, batch=1, lr=1e-3, chance=0.1)
    assert pickle.loads(pickle.dumps(task)) == task
