"""Trials of figures that no sweep describes: they are listed, their rows kept, and a stopped figure goes on."""

import importlib
import inspect
import json
import pickle
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner
from torch.optim.optimizer import register_optimizer_step_pre_hook

from examples.paper import FIGURES, Scale, find, reproduce, trials_of
from examples.paper.trials import Row, Trial, run_trials
from neurolsc.experiment import Processes
from neurolsc.experiment.run import Stopped
from tests.sweeps.grids import Here


def squares(start: int, count: int) -> Row:
    return {"squares": [i**2 for i in range(start, start + count)]}


def halves(start: float, count: int) -> Row:
    return {"halves": [start / 2] * count}


def refused(start: int) -> NoReturn:
    raise ValueError(f"{start} is refused")


class Impatient(Here):
    """A pool in which somebody stops the command after so many jobs."""

    def __init__(self, patience: int) -> None:
        super().__init__()
        self.patience = patience

    def submit(self, job: Any) -> Future[bool]:
        if len(self.jobs) == self.patience:
            raise KeyboardInterrupt
        return super().submit(job)


def names(pool: Here) -> list[str]:
    return [job.trial.name for job in pool.jobs]


# ---- trials and rows


def test_rows_are_settings_and_results_in_the_order_of_trials(tmp_path: Path):
    trials = [Trial(squares, {"start": start, "count": 2}) for start in (3, 0)]
    rows = run_trials(trials, tmp_path, Here(), title="squares", progress=False)
    assert rows == [{"start": 3, "count": 2, "squares": [9, 16]}, {"start": 0, "count": 2, "squares": [0, 1]}]
    assert sorted(path.stem for path in tmp_path.glob("[!.]*")) == sorted(trial.name for trial in trials)


def test_a_name_tells_function_and_settings():
    one = Trial(squares, {"start": 1, "count": 2})
    assert one.name.startswith("squares,start=1,count=2-")
    others = [Trial(squares, {"start": 1, "count": 3}), Trial(halves, {"start": 1, "count": 2})]
    others += [Trial(squares, {"start": 1, "count": 2, "root": "a/" * 200 + end}) for end in "bc"]
    assert len({one.name, *(other.name for other in others)}) == 5
    assert all(len(other.name) < 100 and "/" not in other.name for other in others)


def test_a_changed_setting_is_another_row(tmp_path: Path):
    first = run_trials([Trial(squares, {"start": 1, "count": 2})], tmp_path, Here(), title="", progress=False)
    pool = Here()
    other = run_trials([Trial(squares, {"start": 1, "count": 3})], tmp_path, pool, title="", progress=False)
    assert (first[0]["squares"], other[0]["squares"], len(pool.jobs)) == ([1, 4], [1, 4, 9], 1)


@pytest.mark.slow
def test_an_error_of_a_trial_is_raised_and_leaves_no_row(tmp_path: Path):
    trials = [Trial(squares, {"start": 1, "count": 1}), Trial(refused, {"start": 2})]
    with pytest.raises(ValueError, match="2 is refused"):
        run_trials(trials, tmp_path, Processes(1), title="", progress=False)
    assert [path.stem for path in tmp_path.glob("[!.]*")] == [trials[0].name]


def test_a_damaged_row_is_named(tmp_path: Path):
    trial = Trial(squares, {"start": 1, "count": 1})
    (tmp_path / f"{trial.name}.json").write_text('{"start": 1, "squ')
    with pytest.raises(ValueError, match=rf"{trial.name}\.json: not the row of a trial, remove it to run the trial"):
        run_trials([trial], tmp_path, Here(), title="", progress=False)


# ---- figures


WITH_TRIALS = [name for name, figure in FIGURES.items() if figure.trials(Scale())]


def test_figures_with_trials_are_those_that_train_without_a_sweep():
    memory = {f"memory-{n}" for n in (3, 4, 5, 7, 9, "10d", 11, "spikes")}
    stable = {f"stable-{n}" for n in (1, 2, 3, 4, 5, "spikes")}
    assert set(WITH_TRIALS) == {"1c", "S2", "S3"} | memory | stable


@pytest.mark.parametrize("scale", [Scale(), Scale("paper", root="data", epochs=3, seeds=2)], ids=["small", "paper"])
@pytest.mark.parametrize("name", WITH_TRIALS)
def test_every_trial_can_be_called_by_another_process(name: str, scale: Scale):
    trials = FIGURES[name].trials(scale)
    assert len({trial.name for trial in trials}) == len(trials)
    for trial in trials:
        inspect.signature(trial.function).bind(**trial.settings)
        assert pickle.loads(pickle.dumps(trial)) == trial
        assert json.loads(json.dumps(trial.settings)).keys() == trial.settings.keys()


def test_a_dry_run_lists_and_counts_the_trials_of_all_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the command sets it when it is imported
    main = importlib.import_module("examples.paper.__main__").main
    told = CliRunner().invoke(main, ["all", "--dry-run", "--out", str(tmp_path / "paper")])
    lines = told.stdout.splitlines()
    for figure in FIGURES.values():
        trials = [trial for grid in figure.grids(Scale()) for trial in grid.trials]
        trials += figure.trials(Scale())
        end = lines.index(f"{figure.title}, size small: {len(trials)} trials")
        assert lines[end - len(trials) : end] == [trial.name for trial in trials]
    assert told.exit_code == 0 and not (tmp_path / "paper").exists()


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("no-such-figure", "the paper has no figure 'no-such-figure' here; known are 1a, 1b"),
        ("2 --size paper", "the package has no whole cifar10, cifar100, mnist: name with --root a folder"),
        ("2 --root ROOT", "Fig. 2 needs the folder ROOT/mnist: make it, and what it lacks is downloaded into it"),
        ("stable-2 --root ROOT", "Fig. 2 needs the folder ROOT/jsb: make it, and what it lacks is downloaded into it"),
        ("stable-1 --root ROOT", "one of the folders atis, jsb, ptb-characters, wikitext-2 in ROOT, which has none"),
        ("stable-1 --root ROOT --dry-run", "Table 1 needs at least one of the folders atis, jsb"),
        ("stable-4 --root ROOT", "Fig. 4 needs at least one of the folders jsb, wikitext-2 in ROOT, which has none"),
        ("stable-4 --root ROOT --dry-run", "Fig. 4 needs at least one of the folders jsb, wikitext-2"),
    ],
)
def test_what_cannot_be_made_ends_in_one_line(
    arguments: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    main = importlib.import_module("examples.paper.__main__").main
    given = arguments.replace("ROOT", str(tmp_path)).split()
    told = CliRunner().invoke(main, [*given, "--out", str(tmp_path / "paper")])
    assert told.exit_code == 2 and isinstance(told.exception, SystemExit)
    assert wanted.replace("ROOT", str(tmp_path)) in told.stderr
    assert not (tmp_path / "paper").exists()


@pytest.mark.slow
def test_a_missing_file_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    main = importlib.import_module("examples.paper.__main__").main
    (tmp_path / "atis").mkdir()
    told = CliRunner().invoke(main, ["stable-1", "--root", str(tmp_path), "--out", str(tmp_path), "--workers", "1"])
    missing = tmp_path / "atis" / "atis-2.train.w-intent.iob"
    assert told.exit_code == 1 and f"Error: there is no {missing}: ATIS is not downloaded" in told.stderr


def made(name: str, folder: Path, scale: Scale, pool: Any) -> str:
    return reproduce(find(name), folder, scale, pool, progress=False)


@pytest.mark.parametrize(("name", "scale"), [("memory-3", Scale(epochs=1, seeds=1)), ("stable-5", Scale())])
def test_a_stopped_figure_goes_on_where_it_was(name: str, scale: Scale, tmp_path: Path):
    wanted = [trial.name for trial in trials_of(find(name), scale)]
    stopped = Impatient(2)
    with pytest.raises(Stopped, match=f"2 of {len(wanted)} trials are over, in "):
        made(name, tmp_path, scale, stopped)
    assert names(stopped) == wanted[:2] and not (tmp_path / "reading.txt").exists()
    pool = Here()
    line = made(name, tmp_path, scale, pool)
    assert names(pool) == wanted[2:]
    again = Here()
    assert made(name, tmp_path, scale, again) == line
    assert not again.jobs


@pytest.mark.slow
def test_workers_find_what_this_process_finds(tmp_path: Path):
    scale = Scale(epochs=2, seeds=1)
    made("memory-10d", tmp_path / "here", scale, Here())
    made("memory-10d", tmp_path / "workers", scale, Processes(2))
    rows = {path.name: json.loads(path.read_text()) for path in (tmp_path / "here" / "trials").glob("[!.]*")}
    found = {path.name: json.loads(path.read_text()) for path in (tmp_path / "workers" / "trials").glob("[!.]*")}
    assert len(rows) == 6 and rows.keys() == found.keys()
    for name, row in rows.items():
        assert found[name]["losses"] == pytest.approx(row["losses"], rel=1e-3)


TINY = {"memory-spikes": Scale(epochs=10, seeds=2)}


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_TRIALS)
def test_a_figure_trains_the_listed_trials_and_nothing_else(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scale = TINY.get(name, Scale(epochs=1, seeds=1))
    pool = Here()
    line = made(name, tmp_path, scale, pool)
    assert names(pool) == [trial.name for trial in trials_of(find(name), scale)]

    def trains(*_: object, **__: object) -> NoReturn:
        raise AssertionError("this trains")

    for function in ("students.train", "teacher.train", "stable.named", "paths.pretrain", "covariance.named"):
        monkeypatch.setattr(f"examples.paper.{function}", trains)
    hook = register_optimizer_step_pre_hook(trains)
    try:
        assert made(name, tmp_path, scale, Here()) == line
    finally:
        hook.remove()
