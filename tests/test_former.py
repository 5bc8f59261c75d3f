"""Settings, runs and sweeps in which some things have their former names are read as they are called now."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from neurolsc.experiment import Experiment, Stopped, read_grid, read_sweep, run_sweep
from neurolsc.experiment.former import FILES, STATISTICS
from tests.patterns import stopped, succeed
from tests.sweeps.grids import FIXED, Here, write_grid
from tests.test_experiment import INITIALISED

TEXT = "FiringRate(0.2)"


def as_before(folder: Path) -> None:
    """Rename what a run folder holds to what it was called before."""
    for former, name in FILES.items():
        if (folder / name).exists():
            os.replace(folder / name, folder / former)
    settings = folder / "settings.toml"
    settings.write_text(settings.read_text().replace("\ninit = ", "\nstart = "))
    assert "\nstart = " in settings.read_text()
    before = folder / "before_training.json"
    if before.exists():
        content = json.loads(before.read_text())
        for former, name in STATISTICS.items():
            content["statistics"][former] = content["statistics"].pop(name)
        before.write_text(json.dumps(content))


@pytest.mark.long
def test_a_finished_run_and_a_file_of_settings(tmp_path: Path):
    experiment = replace(INITIALISED, pretraining=None, training=None)
    experiment.run(tmp_path / "run")
    as_before(tmp_path / "run")
    assert Experiment.of(tmp_path / "run").settings.items() >= experiment.settings.items()
    file = tmp_path / "mine.toml"
    file.write_text(f'data = "shd"\nwidth = 8\nstart = "{TEXT}"\n')
    out = tmp_path / "out"
    succeed("radii", "--config", file, "--samples", "2", "--times", "2", "--out", out)
    assert f'init = "{TEXT}"' in (out / "settings.toml").read_text()
    file.write_text('start = "Default"\ninit = "Default"\n')
    with pytest.raises(ValueError, match="start is the former name of init; leave one of them out"):
        read_grid(file)


def test_an_unfinished_run_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch):
    experiment = replace(INITIALISED, pretraining=None)
    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr("neurolsc.experiment.run.train", stopped(KeyboardInterrupt(), 1))
        experiment.run(tmp_path / "run")
    partial = tmp_path / "run.partial"
    checkpoint = (partial / "init.checkpoint").read_bytes()
    as_before(partial)
    assert (partial / "start.checkpoint").read_bytes() == checkpoint
    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "begin", None)  # it is not initialised again
        experiment.run(tmp_path / "run")
    assert not [name for name in FILES if (tmp_path / "run" / name).exists()]
    assert (tmp_path / "run" / "init.json").exists()


@pytest.mark.usefixtures("quick")
def test_a_sweep_finds_its_trials_and_has_the_same_table(tmp_path: Path):
    content = {"name": "small", "fixed": FIXED, "grid": {"init": ["Default", TEXT], "seed": [0]}}
    sweep = tmp_path / "sweep"
    grid = read_grid(write_grid(tmp_path / "grid.toml", **content))
    rows = run_sweep(grid, sweep, Here(), progress=False)
    for trial in grid.trials:
        former = trial.name_with({"init": "start"})
        as_before(sweep / trial.name)
        os.replace(sweep / trial.name, sweep / former)
    assert (sweep / former).exists() and "start=FiringRate" in former
    old = content | {"grid": {"start": ["Default", TEXT], "seed": [0]}}
    write_grid(sweep / "grid.toml", **old)
    assert read_sweep(sweep)[1] == rows
    assert rows[1]["init_similarity_to_input_1"] is not None
    again = Here()
    assert run_sweep(read_grid(sweep / "grid.toml"), sweep, again, progress=False) == rows
    assert again.jobs == []
    assert {path.name for path in sweep.glob("*=*")} == {trial.name for trial in grid.trials}
