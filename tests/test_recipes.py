"""The recipes of docs/training.md run, on a small network."""

import re
from pathlib import Path

import pytest

import neurolsc
from tests.patterns import Patterns, small_network

PAGE = Path(__file__).parent.parent / "docs" / "training.md"


def run(heading: str) -> dict:
    """Run the code under a heading, with fewer epochs."""
    part = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", part, re.M | re.S)
    names = {"network": small_network(), "training": Patterns(12), "validation": Patterns(6), "train": neurolsc.train}
    names["words"] = names["training"]
    exec(code.replace("epochs=40", "epochs=2, progress=False"), names)
    return names


def test_loaders():
    assert len(run("Loaders")["result"].history) == 2


def test_a_task_of_your_own():
    result = run("A task of your own")["result"]
    assert len(result.history) == 2
    assert 0 <= result.best["validation_accuracy"] <= 1
    assert result.best["firing_rate"][0] > 0


def test_learning_rates_by_torchs_schedulers():
    assert run("Learning rates by torch's schedulers")["rise_and_fall"].every == "update"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's import
def test_tensorboard(tmp_path: Path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    run("TensorBoard")
    board = EventAccumulator(str(tmp_path / "runs" / "board"))
    board.Reload()
    assert {"validation_loss", "firing_rate/layer_1", "firing_rate/layer_2"} <= set(board.Tags()["scalars"])
    assert [event.step for event in board.Scalars("validation_loss")] == [1, 2]


@pytest.mark.slow
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    run("Weights & Biases")
    wandb.teardown()  # until then its process may hold what is to be written
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"validation_loss" in written.read_bytes()
