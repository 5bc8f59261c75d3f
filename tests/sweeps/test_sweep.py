"""A sweep: every trial once, whatever stops it; an error is a row; arms over seeds."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

import neurolsc
from neurolsc.experiment import (
    Experiment,
    Grid,
    arms,
    draw,
    markdown,
    read_grid,
    read_sweep,
    run_sweep,
)
from neurolsc.experiment.sweep import DEATHS, Job
from neurolsc.experiment.table import visible
from neurolsc.io import locked
from tests.patterns import refused, succeed
from tests.sweeps.grids import CHOOSING, FIXED, PAIR, SMALL, WITHOUT_RATE, DeathError, Here, finished, grid, write_grid

pytestmark = pytest.mark.usefixtures("quick")


def sweep(folder: Path, pool: Any, *, retry: bool = False, **content: Any) -> list[dict[str, Any]]:
    made = grid(folder.parent / "grids", **content)
    return run_sweep(made, folder, pool, retry=retry, progress=False)


def test_every_trial_is_a_run_and_a_row_of_the_table(tmp_path: Path):
    content = SMALL | {"grid": {"layers": [1, 2]}, "budgets": [1, 2, 3]}
    rows = sweep(tmp_path / "s", pool := Here(), **content)
    assert [row["layers"] for row in rows] == [1, 2]
    assert len(pool.jobs) == 2
    for row in rows:
        run = tmp_path / "s" / row["trial"]
        history = json.loads((run / "history.json").read_text())["history"]
        best = min(history, key=lambda epoch: epoch["validation_loss"])
        assert row["best_epoch"] == best["epoch"]
        assert row["validation_mode_accuracy"] == best["validation_mode_accuracy"]
        assert row["after_1_validation_mode_accuracy"] == history[0]["validation_mode_accuracy"]
        assert row["after_2_validation_mode_accuracy"] == best["validation_mode_accuracy"]
        assert "after_3_validation_mode_accuracy" not in row  # the training was to take two
        assert row["end_firing_rate_1"] == best["firing_rate"][0] > 0.01
        assert 0 < row["init_time_radius_1"] < 1.5
        assert ("init_depth_radius_2" in row) is (row["layers"] == 2)
        assert (row["error"], row["chosen"], row["device"]) == (None, True, "cpu")
        assert not any(name.startswith("test") for name in row)
    with open(tmp_path / "s" / "table.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["trial"] for row in written] == [row["trial"] for row in rows]
    assert float(written[1]["validation_loss"]) == rows[1]["validation_loss"]
    assert read_sweep(tmp_path / "s")[1] == rows
    # statistics of the network before its training
    experiment = Experiment.of(tmp_path / "s" / rows[0]["trial"])
    x, labels = experiment.first_samples("train", 32)
    network, _ = experiment.begin()
    assert rows[0]["init_firing_rate_1"] == pytest.approx(network.run(x).spikes[0].mean().item())
    layer = neurolsc.diagnose(network, (x, labels), samples=4, steps=8).measurements.layers[0]
    assert rows[0]["init_gradient_1"] == pytest.approx(layer.gradient)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cell": "nope"}, "unknown cell 'nope'"),
        ({"cell": "LIF", "tau_theta": 7.0}, "a cell LIF does not take tau_theta"),
        ({"tau_v": -1.0}, "tau_v must be positive"),
        ({"shift": 1}, "shift: for data = sl-mnist only, got data = shd"),
    ],
)
def test_a_wrong_setting_of_any_trial_is_refused_before_a_trial_is_run(tmp_path: Path, settings, words):
    pool = Here()
    with pytest.raises(ValueError, match=f"a trial of small has a wrong setting: .*{words}"):
        sweep(tmp_path / "s", pool, **SMALL, either=[{}, settings])
    assert pool.jobs == [] and not (tmp_path / "s").exists()


def test_paths_of_this_machine_are_not_in_the_table(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.h5").write_text("text")
    rows = sweep(tmp_path / "s", Here(), **(SMALL | {"fixed": FIXED | {"root": str(tmp_path / "mine")}}))
    assert rows[0]["error"].startswith("ValueError: mine/train.h5") and rows[0]["root"] == "mine"
    assert str(tmp_path) not in (tmp_path / "s" / "table.csv").read_text()


def test_a_folder_named_by_a_dot_leaves_the_dots_of_an_error(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.h5").write_text("text")
    (row, *_) = sweep(tmp_path / "s", Here(), **(SMALL | {"fixed": FIXED | {"root": "."}}))
    assert row["error"].startswith("ValueError: train.h5")


@pytest.mark.long
def test_what_is_over_is_not_repeated_and_a_changed_grid_keeps_it(tmp_path: Path):
    sweep(tmp_path / "s", Here(), **PAIR)
    before = finished(tmp_path / "s")
    sweep(tmp_path / "s", pool := Here(), **PAIR)
    assert pool.jobs == []
    more = PAIR | {"fixed": WITHOUT_RATE, "grid": {"layers": [1], "seed": [0, 1, 2], "lr": [0.01]}}
    rows = sweep(tmp_path / "s", pool := Here(), **more)
    assert [job.trial.settings["seed"] for job in pool.jobs] == [2]
    assert [row["seed"] for row in rows] == [0, 1, 2]
    assert before.items() < finished(tmp_path / "s").items()


def test_a_rate_is_chosen_on_validation_and_only_the_chosen_are_tested(tmp_path: Path):
    content = SMALL | CHOOSING | {"grid": CHOOSING["grid"] | {"layers": [1]}}
    rows = sweep(tmp_path / "s", Here(), **content)
    assert len(rows) == 4
    best = max((row for row in rows if row["seed"] == 3), key=lambda row: row["validation_mode_accuracy"])
    assert [(row["seed"], row["lr"]) for row in rows if row["chosen"]] == [(seed, best["lr"]) for seed in (3, 4, 5)]
    for row in rows:
        assert (row.get("test_mode_accuracy") is not None) is row["chosen"]
        assert (tmp_path / "s" / row["trial"] / "test.json").exists() is row["chosen"]
    assert read_grid(tmp_path / "s" / "grid.toml") == grid(tmp_path / "g", **content)


DIVERGING = PAIR | {"fixed": FIXED | {"lr": 1e30}}
WRONG = PAIR | {"fixed": FIXED | {"dt": 1e-4}}  # which only the data tell


@pytest.mark.parametrize(
    ("content", "words"),
    [(DIVERGING, "FloatingPointError: the loss is nan"), (WRONG, "ValueError: dt must not be below")],
    ids=["diverging", "wrong"],
)
def test_an_error_is_a_row_until_it_is_to_be_tried_again(tmp_path: Path, content: Any, words: str):
    rows = sweep(tmp_path / "s", Here(), **content)
    assert [row["error"].startswith(words) for row in rows] == [True] * 2
    sweep(tmp_path / "s", again := Here(), **content)
    assert again.jobs == []
    sweep(tmp_path / "s", again, retry=True, **content)
    assert len(again.jobs) == 2


def test_a_trial_of_other_defaults_or_damaged_is_a_row_with_an_error_and_is_mended_by_retry(tmp_path: Path):
    (first, *_) = sweep(tmp_path / "s", Here(), **PAIR)
    settings = tmp_path / "s" / first["trial"] / "settings.toml"
    settings.write_text(settings.read_text().replace("tau_theta = 100.0", "tau_theta = 30.0"))
    (row, *_) = sweep(tmp_path / "s", Here(), **PAIR)
    assert "was run when defaults were others (tau_theta was 30.0, is now 100.0)" in row["error"]
    settings.write_text("\n".join(line for line in settings.read_text().splitlines() if "tau_theta" not in line))
    (row, *_) = sweep(tmp_path / "s", Here(), **PAIR)
    assert row["error"] is None  # a setting that an older version did not know
    settings.write_text("{")
    (row, other) = sweep(tmp_path / "s", pool := Here(), **PAIR)
    assert "settings.toml" in row["error"] and (pool.jobs, other["error"]) == ([], None)
    (row, _) = sweep(tmp_path / "s", pool, retry=True, **PAIR)
    assert (len(pool.jobs), row["error"], row["validation_loss"]) == (1, None, first["validation_loss"])


def test_a_trial_of_another_process_is_waited_for(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("neurolsc.experiment.sweep.REST", 0.05)
    (tmp_path / "s").mkdir()
    job = Job(grid(tmp_path, **PAIR).trials[0], tmp_path / "s", False)
    with locked(job.folder):
        assert (job.run(), job.is_over()) == (False, False)
        with pytest.raises(BlockingIOError):
            job.forget()
    rows = sweep(tmp_path / "s", pool := Here([False, False]), **PAIR)
    assert [row["error"] for row in rows] == [None] * 2
    assert len(pool.jobs) == 4


def test_a_worker_that_dies_is_replaced_but_not_for_ever(tmp_path: Path):
    for deaths in (DEATHS - 1, DEATHS):
        (row,) = sweep(
            tmp_path / f"{deaths}", pool := Here([DeathError()] * deaths), **PAIR | {"grid": {"layers": [1]}}
        )
        assert len(pool.jobs) == DEATHS
        assert (row["error"] is None) is (deaths < DEATHS)
    assert row["error"] == f"its worker died {DEATHS} times: it was killed, or had too little memory."


# ---- arms


def rows_of(made: Grid, accuracy: Any = lambda settings: 0.5, **more: Any) -> list[dict[str, Any]]:
    """A row for every trial, with a score made of its settings."""
    rows = []
    for trial in made.trials:
        row = {"trial": trial.name, "chosen": True, "error": None} | visible(trial)
        rows.append(row | {"validation_mode_accuracy": accuracy(trial.settings)} | more)
    return rows


def test_the_line_of_an_arm_has_mean_and_deviation_over_its_seeds(tmp_path: Path):
    made = grid(tmp_path, grid={"layers": [5, 2], "seed": [0, 1, 2]})
    rows = rows_of(made, lambda s: {5: 0.4, 2: 0.8}[s["layers"]] + 0.1 * s["seed"])
    rows[0] |= {"init_firing_rate_1": 0.25, "init_firing_rate_2": 0.01}
    rows[-1] |= {"error": "FloatingPointError: the loss is nan"}
    assert [arm.name for arm in arms(made, rows)] == ["layers 5", "layers 2"]  # as in the file
    header, line, *lines = [[c.strip() for c in row.strip("|").split("|")] for row in markdown(made, rows).splitlines()]
    assert set(line) == {"---"}
    assert header == ["layers", "seeds", "validation", "rate before training"]
    assert lines == [  # the sample deviation of 40, 50, 60
        ["5", "3", "50.0 ± 10.0 %", "0.01 to 0.25"],
        ["2", "3 (1 failed)", "85.0 ± 7.1 %", "-"],
    ]


def test_only_chosen_trials_count_and_arms_can_be_made_by_other_settings(tmp_path: Path):
    made = grid(tmp_path, **CHOOSING)
    rows = [row | {"chosen": row["lr"] == 1e-2} for row in rows_of(made, lambda s: s["lr"])]
    assert [row["seed"] for row in arms(made, rows)[0].rows] == [3, 4, 5]
    assert markdown(made, rows).splitlines()[2].startswith("| 1 | 0.01 | 3 | 1.0 ± 0.0 % |")
    assert [(arm.name, len(arm.rows)) for arm in arms(made, rows_of(made), ["lr"])] == [("lr 0.001", 6), ("lr 0.01", 6)]
    with pytest.raises(ValueError, match="there is no setting depth; those that vary are layers, lr, seed"):
        arms(made, rows, ["depth"])


def test_an_arm_whose_every_value_failed_is_a_line_and_leaves_nothing_to_run(tmp_path: Path):
    made = grid(tmp_path, **(CHOOSING | {"grid": {"layers": [1, 2], "lr": [1e-3, 1e-2], "seed": [3, 4]}}))
    rows = [
        row | {"chosen": row["layers"] == 2 and row["lr"] == 1e-2, "error": "nan" if row["layers"] == 1 else None}
        for row in rows_of(made)
        if row["seed"] == 3 or (row["layers"], row["lr"]) == (2, 1e-2)  # what a sweep runs
    ]
    assert (made.total(), made.total(rows[:1]), made.total(rows)) == (6, 6, len(rows))
    table = [[c.strip() for c in row.strip("|").split("|")] for row in markdown(made, rows).splitlines()]
    assert table[2:] == [["1", "-", "2 (2 failed)", "-"], ["2", "0.01", "2", "50.0 ± 0.0 %"]]


@pytest.mark.long
def test_table_and_figure_of_a_sweep(tmp_path: Path, monkeypatch):
    content = SMALL | CHOOSING | {"grid": {"layers": [1, 2], "lr": [1e-3, 1e-2], "seed": [3]}}
    made = grid(tmp_path / "g", **content)
    rows = run_sweep(made, tmp_path / "s", Here(), progress=False)
    output = succeed("sweep", write_grid(tmp_path / "g.toml", **content), "--out", tmp_path / "s", "--workers", "1")
    assert f"4 trials in {tmp_path / 's' / 'table.csv'}" in output
    output = succeed("table", tmp_path / "s")
    assert output == (tmp_path / "s" / "table.md").read_text()
    assert output.count("\n") == 4
    assert "| layers | lr (chosen) | seeds | validation | test |" in output
    assert succeed("table", tmp_path / "s", "--by", "width").count("\n") == 3
    succeed("figure", tmp_path / "s")
    for name in ("learning.png", "scores.png"):
        assert (tmp_path / "s" / name).stat().st_size > 5000
    words = "over must be a setting that varies from arm to arm, layers, got 'width'"
    assert words in refused("figure", tmp_path / "s", "--over", "width")
    titles: list[str] = []
    monkeypatch.setattr("neurolsc.plots.finish", lambda figure, path, title: titles.append(title))
    draw(made, rows, tmp_path / "s")
    about = f"small: cell ALIFPlus, width 6, {made.trials[0].data.title}"
    assert titles == [f"{about}; bands from lowest to highest seed", about]


@pytest.mark.long
def test_a_sweep_whose_trials_all_fail_is_an_error_and_says_why(tmp_path: Path):
    path = write_grid(tmp_path / "grid.toml", **PAIR | {"fixed": FIXED | {"lr": 1e30, "clip_gradient": 0.0}})
    output = refused("sweep", path, "--out", tmp_path / "s", "--workers", "1")
    assert output.count("FloatingPointError") == 2 and "all 2 trials failed" in output


def test_a_sweep_without_ray_names_what_to_install(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    output = refused("sweep", write_grid(tmp_path / "grid.toml", **SMALL), "--out", tmp_path / "s", "--ray")
    assert "pip install 'ray>=2.40,<3'" in output
    assert not (tmp_path / "s").exists()
