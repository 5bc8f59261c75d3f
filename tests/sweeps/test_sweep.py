"""A sweep: every trial once, whatever stops it, and an error is a row."""

import csv
import json
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import neurolsc
from neurolsc.config import TrainSettings
from neurolsc.experiment import Experiment, load_network
from neurolsc.locks import alone
from neurolsc.runs import Stopped
from neurolsc.sweeps import read_grid, read_sweep, run_sweep, start
from neurolsc.sweeps.sweep import DEATHS
from neurolsc.sweeps.work import Job
from tests.sweeps.grids import CHOOSING, FIXED, SMALL, Here, finished, grid, write_grid

pytestmark = pytest.mark.usefixtures("quick")


def sweep(folder: Path, pool: Any, *, retry: bool = False, **content: Any) -> list[dict[str, Any]]:
    made = grid(folder.parent / "grids", **content)
    return run_sweep(made, folder, pool, retry=retry, progress=False)


def test_a_device_that_is_not_there_stops_the_sweep_and_fails_no_trial(tmp_path: Path):
    made = grid(tmp_path / "grids", **SMALL)
    with pytest.raises(ValueError, match="unknown device 'abacus': write cuda for a GPU"):
        run_sweep(made, tmp_path / "s", Here(), device="abacus", progress=False)
    assert not list((tmp_path / "s").glob("*.failed.json"))
    rows = run_sweep(made, tmp_path / "s", Here(), device="cpu", progress=False)
    assert [(row["error"], row["device"]) for row in rows] == [(None, "cpu")] * 4


def test_every_trial_is_a_run_and_a_row_of_the_table(tmp_path: Path):
    rows = sweep(tmp_path / "s", pool := Here(), **SMALL, table={"budgets": [1, 2, 3], "reach": 0.0, "learns": 0.0})
    assert len(pool.jobs) == len(rows) == 4
    assert [(row["seed"], row["layers"]) for row in rows] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    for row in rows:
        run = tmp_path / "s" / row["trial"]
        history = json.loads((run / "history.json").read_text())["history"]
        best = min(history, key=lambda epoch: epoch["validation_loss"])
        assert row["best_epoch"] == best["epoch"]
        assert row["validation_mode_accuracy"] == best["validation_mode_accuracy"]
        assert row["after_1_validation_mode_accuracy"] == history[0]["validation_mode_accuracy"]
        assert row["after_2_validation_mode_accuracy"] == best["validation_mode_accuracy"]
        assert "after_3_validation_mode_accuracy" not in row  # the training was to take two
        assert row["epochs_to_reach"] == 1
        assert row["end_firing_rate_1"] == best["firing_rate"][0] > 0.01
        assert row["start_firing_rate_1"] > 0.01
        decay = torch.exp(-1 / load_network(run).cells[0].tau_theta.double()).mean()
        assert row["end_tau_theta_1"] == pytest.approx(-1 / decay.log().item())
        assert row["end_tau_theta_1"] != pytest.approx(row["tau_theta"], abs=1e-3)  # it was trained
        assert 0 < row["start_time_radius_1"] < 1.5
        assert row["start_depth_radius_1"] > 0
        assert ("start_depth_radius_2" in row) is (row["layers"] == 2)
        assert (row["error"], row["chosen"], row["cpus"] > 0) == (None, True, True)
        assert not any(name.startswith("test") for name in row)  # nobody asked for it
        assert Experiment.of(run).network.seed == row["seed"]
    with open(tmp_path / "s" / "table.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["trial"] for row in written] == [row["trial"] for row in rows]
    assert float(written[3]["validation_loss"]) == rows[3]["validation_loss"]
    assert read_sweep(tmp_path / "s")[1] == rows


def test_the_statistics_are_those_of_the_network_before_its_training(tmp_path: Path):
    (row, *_) = sweep(tmp_path / "s", Here(), **SMALL)
    experiment = Experiment.of(tmp_path / "s" / row["trial"])
    x, labels = experiment.first_samples("train", 32)
    network, _ = experiment.begin()
    spikes = network.run(x).spikes
    assert row["start_firing_rate_1"] == pytest.approx(spikes[0].mean().item())
    told = neurolsc.diagnose(network, (x, labels), samples=4, steps=8).figures.layers[0]
    for name in ("exponent", "singular_depth", "usable", "survives", "gradient", "noise"):
        assert row[f"start_{name}_1"] == pytest.approx(getattr(told, name))
    assert 0 < row["start_recurrence_radius_1"] <= row["start_time_radius_1"] + 0.1


def test_no_machine_or_place_is_named_in_the_table(tmp_path: Path):
    root = tmp_path / "nowhere"
    root.mkdir()
    (root / "train.h5").write_bytes(b"no HDF5")
    fixed = FIXED | {"root": str(root), "cache": str(tmp_path / "kept")}
    rows = sweep(tmp_path / "s", Here(), fixed=fixed)
    assert (rows[0]["root"], rows[0]["cache"]) == ("nowhere", "kept")
    assert rows[0]["error"].startswith("ValueError: nowhere/train.h5")
    assert str(tmp_path) not in (tmp_path / "s" / "table.csv").read_text()


def test_the_commit_is_that_of_the_package_and_of_nothing_around_it(tmp_path: Path, monkeypatch):
    start._commit.cache_clear()
    commit = start.environment()["commit"]
    assert commit is None or re.fullmatch(r"[0-9a-f]{40}\+?", commit)
    package = tmp_path / "site-packages" / "neurolsc"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    if shutil.which("git"):
        subprocess.run(["git", "init", "--quiet", tmp_path], check=True)  # it is installed in somebody's checkout
        commit_of = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet"]
        subprocess.run([*commit_of, "--allow-empty", "--message", "of another project"], check=True)
    monkeypatch.setattr("neurolsc.__file__", str(package / "__init__.py"))
    start._commit.cache_clear()
    assert start.environment()["commit"] is None
    start._commit.cache_clear()
    assert socket.gethostname() not in start.environment().values()


@pytest.mark.slow
def test_what_is_over_is_not_repeated_and_a_changed_grid_keeps_it(tmp_path: Path):
    sweep(tmp_path / "s", Here(), **SMALL)
    before = finished(tmp_path / "s")
    sweep(tmp_path / "s", pool := Here(), **SMALL)
    assert pool.jobs == []
    more = SMALL | {"grid": {"layers": [2], "seed": [0, 1, 2], "lr": [0.01]}}
    more["fixed"] = {name: value for name, value in FIXED.items() if name != "lr"}
    rows = sweep(tmp_path / "s", pool := Here(), **more)
    assert [job.trial.settings["seed"] for job in pool.jobs] == [2]
    assert [row["seed"] for row in rows] == [0, 1, 2]
    after = finished(tmp_path / "s")
    assert before.items() < after.items()


def test_a_rate_is_chosen_on_validation_and_only_the_chosen_are_tested(tmp_path: Path):
    rows = sweep(tmp_path / "s", pool := Here(), **(SMALL | CHOOSING))
    assert len(rows) == 8
    for layers in (1, 2):
        first = [row for row in rows if row["layers"] == layers and row["seed"] == 3]
        best = max(first, key=lambda row: row["validation_mode_accuracy"])
        chosen = [row for row in rows if row["layers"] == layers and row["chosen"]]
        assert [row["seed"] for row in chosen] == [3, 4, 5]
        assert {row["lr"] for row in chosen} == {best["lr"]}
        assert len(first) == 2
    for row in rows:
        assert (row.get("test_mode_accuracy") is not None) is row["chosen"]
        assert (tmp_path / "s" / row["trial"] / "test.json").exists() is row["chosen"]
    assert sum(job.test for job in pool.jobs) == 6
    before = finished(tmp_path / "s")
    sweep(tmp_path / "s", pool := Here(), **(SMALL | CHOOSING))
    assert pool.jobs == []
    assert finished(tmp_path / "s") == before


DIVERGING = SMALL | {"fixed": FIXED | {"lr": 1e30}}
WRONG = SMALL | {"fixed": FIXED | {"cell": "LIF", "adaptation": 0.5}}


@pytest.mark.parametrize(
    ("content", "told"),
    [(DIVERGING, "FloatingPointError: the loss is nan"), (WRONG, "ValueError: a cell LIF does not take adaptation.")],
    ids=["diverging", "wrong"],
)
def test_an_error_is_a_row_kept_until_it_is_to_be_tried_again(tmp_path: Path, content: Any, told: str):
    rows = sweep(tmp_path / "s", Here(), **content)
    assert len(rows) == 4
    for row in rows:
        assert row["error"].startswith(told)
        assert row["layers"] in (1, 2)
    sweep(tmp_path / "s", again := Here(), **content)
    assert again.jobs == []
    sweep(tmp_path / "s", again, retry=True, **content)
    assert len(again.jobs) == 4


def test_of_a_training_that_diverged_late_the_epochs_before_are_told(tmp_path: Path, monkeypatch):
    run = TrainSettings.run

    def diverge(self, *data, **more):
        def stop(history):
            if len(history) == 2:
                raise FloatingPointError("the loss is nan in epoch 3.")

        return run(self, *data, on_epoch=stop, **more)

    monkeypatch.setattr(TrainSettings, "run", diverge)
    (row, *_) = sweep(tmp_path / "s", Here(), **(SMALL | {"fixed": FIXED | {"epochs": 3}}))
    assert row["error"].startswith("FloatingPointError: the loss is nan in epoch 3. They are kept in layers=1")
    assert row["epochs_run"] == 2
    assert row["start_firing_rate_1"] > 0.01


def test_a_rate_that_diverges_is_not_chosen(tmp_path: Path):
    content = SMALL | CHOOSING | {"grid": {"lr": [1e30, 1e-2], "seed": [0, 1]}}
    rows = sweep(tmp_path / "s", Here(), **content)
    assert [(row["lr"], row["seed"], row["chosen"]) for row in rows] == [
        (1e30, 0, False),
        (1e-2, 0, True),
        (1e-2, 1, True),
    ]


@pytest.mark.slow
def test_a_test_set_that_cannot_be_read_changes_no_choice_and_costs_no_training(tmp_path: Path, monkeypatch):
    content = SMALL | CHOOSING
    through = sweep(tmp_path / "through", Here(), **content)

    def score(*_: object, **__: object) -> None:
        raise ValueError("test.h5: damaged.")

    with monkeypatch.context() as patched:
        patched.setattr("neurolsc.sweeps.work.score", score)
        rows = sweep(tmp_path / "s", Here(), **content)
    assert [(row["trial"], row["chosen"]) for row in rows] == [(row["trial"], row["chosen"]) for row in through]
    for row in rows:
        assert row["error"] == ("ValueError: test.h5: damaged." if row["chosen"] else None)
        assert row["validation_loss"] > 0
    before = finished(tmp_path / "s")
    mended = sweep(tmp_path / "s", Here(), retry=True, **content)
    assert finished(tmp_path / "s") == before
    assert [row.get("test_loss") for row in mended] == [row.get("test_loss") for row in through]


def test_another_kind_of_error_stops_the_sweep(tmp_path: Path, monkeypatch):
    def run(self, *where, **more):
        raise OSError(28, "no space left")

    monkeypatch.setattr(Experiment, "run", run)
    with pytest.raises(OSError, match="no space left"):
        sweep(tmp_path / "s", Here(), **SMALL)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *((name, "{") for name in ("history.json", "before_training.json", "after_training.json", "settings.toml")),
        ("after_training.json", "{}"),
    ],
)
@pytest.mark.slow
def test_a_damaged_trial_is_a_row_that_says_so_and_is_mended_by_retry(tmp_path: Path, file: str, content: str):
    (first, *others) = sweep(tmp_path / "s", Here(), **SMALL)
    (tmp_path / "s" / first["trial"] / file).write_text(content)
    (row, *rest) = sweep(tmp_path / "s", pool := Here(), **SMALL)
    assert file in row["error"]
    assert pool.jobs == []
    assert rest == others
    (row, *rest) = sweep(tmp_path / "s", pool, retry=True, **SMALL)
    assert len(pool.jobs) == 1
    assert row["error"] is None
    assert row["validation_loss"] == first["validation_loss"]
    assert rest == others


def test_a_trial_with_a_damaged_checkpoint_is_a_row_that_says_so(tmp_path: Path):
    made = grid(tmp_path, **SMALL)
    trial = made.trials[0]
    unfinished = trial.unfinished(tmp_path / "s")
    with pytest.raises(KeyboardInterrupt):
        stopped_after_an_epoch(trial.experiment, trial.folder(tmp_path / "s"))
    (unfinished / "train.checkpoint").write_bytes(b"nothing")
    (row, *_) = sweep(tmp_path / "s", Here(), **SMALL)
    assert "train.checkpoint" in row["error"]
    (row, *_) = sweep(tmp_path / "s", Here(), retry=True, **SMALL)
    assert row["error"] is None


def stopped_after_an_epoch(experiment: Experiment, folder: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        run = TrainSettings.run
        patched.setattr(TrainSettings, "run", lambda self, *data, **more: run(self, *data, on_epoch=stop, **more))
        experiment.run(folder, progress=False)


@pytest.mark.slow
def test_an_unfinished_trial_goes_on_from_its_checkpoint(tmp_path: Path):
    through = sweep(tmp_path / "through", Here(), **SMALL)
    trial = grid(tmp_path, **SMALL).trials[0]
    with pytest.raises(Stopped):
        stopped_after_an_epoch(trial.experiment, trial.folder(tmp_path / "s"))
    checkpoint = trial.unfinished(tmp_path / "s") / "train.checkpoint"
    assert checkpoint.exists()
    (row, *_) = sweep(tmp_path / "s", Here(), **SMALL)
    assert row["validation_loss"] == through[0]["validation_loss"]
    history = json.loads((tmp_path / "s" / row["trial"] / "history.json").read_text())["history"]
    assert len(history) == 2


def test_a_trial_whose_defaults_have_changed_is_not_taken_for_another(tmp_path: Path):
    (first, *_) = sweep(tmp_path / "s", Here(), **SMALL)
    settings = tmp_path / "s" / first["trial"] / "settings.toml"
    settings.write_text(settings.read_text().replace("tau_theta = 100.0", "tau_theta = 30.0"))
    (row, *_) = sweep(tmp_path / "s", Here(), **SMALL)
    assert "was run when defaults were others (tau_theta was 30.0, is now 100.0)" in row["error"]
    settings.write_text("\n".join(line for line in settings.read_text().splitlines() if "tau_theta" not in line))
    (row, *_) = sweep(tmp_path / "s", Here(), **SMALL)
    assert row["error"] is None  # a setting that an older version did not know


def test_a_trial_that_another_process_is_at_is_left_to_it_and_waited_for(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("neurolsc.sweeps.sweep.REST", 0.05)
    made = grid(tmp_path, **SMALL)
    job = Job(made.trials[0], tmp_path / "s", False)
    (tmp_path / "s").mkdir()
    with alone(job.trial.folder(tmp_path / "s")):
        assert job.run() == "busy"
        with pytest.raises(BlockingIOError, match="in use by process"):
            job.trial.forget(tmp_path / "s")
    assert not job.is_over()
    pool = Here(["busy", "busy"])
    rows = sweep(tmp_path / "s", pool, **SMALL)
    assert [row["error"] for row in rows] == [None] * 4
    assert len(pool.jobs) == 6


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_but_not_for_ever(tmp_path: Path):
    pool = Here(["died"] * (DEATHS - 1))
    rows = sweep(tmp_path / "s", pool, **SMALL)
    assert [row["error"] for row in rows] == [None] * 4
    assert len(pool.jobs) == 4 + DEATHS - 1
    rows = sweep(tmp_path / "t", Here(["died"] * DEATHS), **SMALL)
    assert rows[0]["error"] == f"its worker died {DEATHS} times: it was killed, or had too little memory."
    assert [row["error"] for row in rows[1:]] == [None] * 3


def test_ctrl_c_says_how_far_it_came(tmp_path: Path):
    class Interrupted(Here):
        def start(self, job: Job) -> None:
            if len(self.jobs) == 2:
                raise KeyboardInterrupt
            super().start(job)

    with pytest.raises(Stopped, match=re.escape(f"2 of 4 trials are over, in {tmp_path / 's'}")):
        sweep(tmp_path / "s", Interrupted(), **SMALL)
    assert (tmp_path / "s" / "table.csv").read_text().count("\n") == 3


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"is not the folder of a sweep: it has no grid\.toml"):
        read_sweep(tmp_path)


def test_the_grid_is_kept_beside_the_trials(tmp_path: Path):
    sweep(tmp_path / "s", Here(["died"] * 100), **(SMALL | CHOOSING))
    shutil.copy(tmp_path / "s" / "grid.toml", tmp_path / "copy.toml")
    assert read_grid(tmp_path / "copy.toml") == grid(tmp_path / "g", **(SMALL | CHOOSING))
    assert (
        write_grid(tmp_path / "again.toml", **read_grid(tmp_path / "copy.toml").given).read_text()
        == (tmp_path / "copy.toml").read_text()
    )
