"""The recipes of docs/training.md do what the page says."""

import importlib.util
import re
from pathlib import Path

import pytest

import neurolsc
from neurolsc.datasets import collate
from tests.patterns import Patterns, small_network

PAGE = Path(__file__).parent.parent / "docs" / "training.md"


def recipe(heading: str) -> str:
    """The code below a heading, with fewer epochs."""
    part = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```", part, re.M | re.S)
    return code.replace("epochs=40", "epochs=2, progress=False")


def run(heading: str) -> dict:
    names = {"network": small_network(), "training": Patterns(12), "validation": Patterns(6), "train": neurolsc.train}
    names["words"] = names["training"]
    exec(recipe(heading), names)
    return names


def test_loaders():
    found = run("Loaders")
    assert found["loader"].collate_fn is collate
    assert len(found["result"].history) == 2


def test_learning_rates_by_torchs_schedulers():
    assert run("Learning rates by torch's schedulers")["rise_and_fall"].every == "update"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of tensorboard's import
def test_tensorboard(tmp_path: Path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    seen = []
    train = neurolsc.train

    def noting(*arguments, **settings):
        seen.append(train(*arguments, **settings))
        return seen[-1]

    monkeypatch.setattr(neurolsc, "train", noting)
    run("TensorBoard")
    (result,) = seen
    board = EventAccumulator(str(tmp_path / "runs" / "board"))
    board.Reload()
    assert set(board.Tags()["scalars"]) == {
        *(result.history[0].keys() - {"epoch", "firing_rate"}),
        "firing_rate/layer_1",
        "firing_rate/layer_2",
    }
    for tag, values in (
        ("validation_loss", [row["validation_loss"] for row in result.history]),
        ("firing_rate/layer_2", [row["firing_rate"][1] for row in result.history]),
    ):
        assert [event.step for event in board.Scalars(tag)] == [1, 2]
        assert [event.value for event in board.Scalars(tag)] == pytest.approx(values)
        assert all(values)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb: pip install wandb")
@pytest.mark.filterwarnings("ignore")  # of wandb's
def test_weights_and_biases_offline(tmp_path: Path, monkeypatch):
    import wandb

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_SILENT", "true")
    logged = []
    log = wandb.Run.log

    def noting(run, row):
        logged.append(row)
        log(run, row)

    monkeypatch.setattr(wandb.Run, "log", noting)
    run("Weights & Biases")
    wandb.teardown()  # until then its process may hold what is to be written
    assert [row["epoch"] for row in logged] == [1, 2]
    (kept,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"validation_loss" in kept.read_bytes()
