"""Settings in, a run folder out, without a command line."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import neurolsc
from neurolsc.display import in_80_columns
from neurolsc.experiment import (
    DataSettings,
    Experiment,
    InitSettings,
    NetworkSettings,
    PretrainSettings,
    Stopped,
    TrainSettings,
    load_network,
)
from neurolsc.experiment.run import run_folder
from neurolsc.io import write_tree
from tests.patterns import names, stopped

DATA = DataSettings(data="shd", dt=0.05, channels=70, repeat=1)
WHOLE = Experiment(
    NetworkSettings(width=8, layers=1, tau_v=3.0, seed=4),
    DATA,
    PretrainSettings("0.5", method="scale", pretrain_samples=2, pretrain_times=4),
    TrainSettings(epochs=1, batch_size=32, lr=0.01),
    InitSettings("Default"),
)
INITIALISED = replace(WHOLE, init=InitSettings("FourConditions + FiringRate(0.99)"))
UNTRAINED = {"settings.toml", "network.safetensors"}
RADII = {f"radii_{when}.{kind}" for when in ("before", "after") for kind in ("json", "png")} | {"pretraining.json"}
TRAINED = {"history.csv", "history.json", "learning.png", "split.json"}


@pytest.mark.parametrize(
    ("experiment", "files"),
    [
        (WHOLE, UNTRAINED | RADII | TRAINED),
        (replace(WHOLE, training=None), UNTRAINED | RADII),
        (replace(WHOLE, pretraining=None, training=None), UNTRAINED),
    ],
    ids=["whole", "not trained", "neither"],
)
def test_a_run_does_what_its_settings_name_and_saves_it(experiment, files, tmp_path):
    lines = []
    outcome = experiment.run(tmp_path / "run", say=lines.append)
    assert names(tmp_path / "run") == files
    assert (outcome.pretraining is None) is ("pretraining.json" not in files)
    assert (outcome.training is None) is ("history.json" not in files)
    assert lines == [outcome.pretraining] * (outcome.pretraining is not None)
    assert Experiment.of(tmp_path / "run").settings.items() >= experiment.settings.items()
    saved, fresh = load_network(tmp_path / "run").state_dict(), experiment.build().state_dict()
    assert all(torch.equal(saved[name], value) for name, value in outcome.network.state_dict().items())
    assert torch.equal(saved["readout.weight"], fresh["readout.weight"]) is ("history.json" not in files)


@pytest.mark.parametrize(
    "changes",
    [
        {"pretraining": PretrainSettings("0.5", loop="paper", pretrain_steps=1)},
        {"pretraining": None, "init": InitSettings("Default + LSC(0.5, loop='released', max_steps=1)")},
    ],
    ids=["target", "init"],
)
def test_the_papers_loops_get_all_training_samples_in_batches_of_the_training(changes, tmp_path):
    experiment = replace(WHOLE, training=TrainSettings(epochs=1, batch_size=40), **changes)
    batches = experiment.input_batches()
    data = DATA.load("train")
    sizes = [x.shape[1] for x, _ in batches]
    assert sum(sizes) == len(data) and set(sizes[:-1]) == {40}
    assert sorted(torch.cat([labels for _, labels in batches]).tolist()) == sorted(data.labels.tolist())
    assert not torch.equal(batches[0][1], data.labels[:40]), "in random order"
    outcome = replace(experiment, training=None).run(tmp_path / "run", progress=False)
    if outcome.pretraining is not None:
        assert outcome.pretraining.options.of_loop().max_steps == 1 == outcome.pretraining.steps
    assert WHOLE.input_batches()[0].shape[1] == 32


# ---- the initialisation


class Wordless(neurolsc.ALIFPlus):
    """A cell that does not name its input weights."""

    scaled_parameters = ()


@pytest.mark.parametrize(
    ("parts", "initialiser"),
    [
        ({}, "Identity()"),
        ({"init": InitSettings("LSUV()")}, "LSUV()"),
        ({"pretraining": PretrainSettings("0.5")}, "Default"),
        ({"pretraining": PretrainSettings("0.5"), "init": InitSettings("LSUV()")}, "LSUV()"),
        ({"network": NetworkSettings(weights="x.safetensors")}, "Default"),
        ({"network": NetworkSettings(cell="tests.test_experiment:Wordless")}, "Default"),
        ({"network": NetworkSettings(cell="nowhere.at.all:Cell")}, "Identity()"),
    ],
)
def test_the_initialisation_is_relay_unless_another_setting_sets_the_network(parts, initialiser):
    assert Experiment(**({"network": NetworkSettings(), "data": DATA} | parts)).initialiser == initialiser


def test_an_initialisation_comes_first_and_reports_what_it_did_not_reach(tmp_path):
    lines, experiment = [], replace(INITIALISED, pretraining=None, training=None)
    network = experiment.run(tmp_path / "run", say=lines.append).network
    by_hand = experiment.build()
    inputs = neurolsc.datasets.input_batches(DATA.load("train"), 32, seed=4)
    found = neurolsc.init.named(experiment.init.init).apply(by_hand, inputs, seed=4)
    assert found and "\n".join(lines) == "\n".join(map(in_80_columns, found))
    assert all(torch.equal(value, by_hand.state_dict()[key]) for key, value in network.state_dict().items())
    report = json.loads((tmp_path / "run/init.json").read_text())
    assert report["init"] == experiment.init.init and report["findings"] == lines and report["seconds"] > 0
    assert names(tmp_path / "run") == UNTRAINED | {"init.json"}
    with pytest.raises(ValueError, match=r"unknown name Lsuv; did you mean LSUV\?"):
        InitSettings("Lsuv")


# ---- stopped and resumed


@pytest.mark.long
def test_an_initialisation_that_is_done_is_not_done_again(tmp_path, monkeypatch):
    experiment = replace(INITIALISED, pretraining=None)
    through = experiment.run(tmp_path / "through")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr("neurolsc.experiment.run.train", interrupt)
        experiment.run(tmp_path / "run")
    lines = []
    with monkeypatch.context() as patched:
        patched.setattr(Experiment, "begin", None)
        again = experiment.run(tmp_path / "run", say=lines.append)
    assert lines == json.loads((tmp_path / "run/init.json").read_text())["findings"] != []
    assert all(torch.equal(a, b) for a, b in zip(again.network.parameters(), through.network.parameters(), strict=True))
    assert names(tmp_path / "run") == names(tmp_path / "through")


@pytest.mark.long
def test_a_run_stopped_in_its_training_ends_in_the_same_bits(tmp_path, monkeypatch):
    experiment = replace(WHOLE, training=replace(WHOLE.training, epochs=3))
    through = experiment.run(tmp_path / "through")
    with monkeypatch.context() as patched, pytest.raises(Stopped, match=r"run\.partial"):
        patched.setattr("neurolsc.experiment.run.train", stopped(KeyboardInterrupt(), 2))
        experiment.run(tmp_path / "run")
    assert names(tmp_path) == {"through", "run.partial"}
    lines = []
    resumed = experiment.run(tmp_path / "run", say=lines.append)
    assert str(lines[0]) == str(resumed.pretraining)
    one, other = (tmp_path / run / "network.safetensors" for run in ("run", "through"))
    assert one.read_bytes() == other.read_bytes()
    losses = [[row["train_loss"] for row in outcome.training.history] for outcome in (resumed, through)]
    assert losses[0] == losses[1]
    assert names(tmp_path / "run") == names(tmp_path / "through")


@pytest.mark.long
def test_a_run_on_changed_samples_pretrains_and_watches_alike_where_it_was_stopped(tmp_path, monkeypatch):
    data = replace(DATA, channel_jitter=20.0, time_stretch=0.2, spike_drop=0.3)
    radii = PretrainSettings("0.5", pretrain_steps=12, pretrain_samples=2, pretrain_times=4)
    training = replace(WHOLE.training, epochs=2)
    init = InitSettings("FiringRate(0.3)")  # which a resumed run reads
    experiment = replace(WHOLE, data=data, init=init, pretraining=radii, training=training)
    experiment.run(tmp_path / "through", monitor=2)

    def write_and_stop(path, tree):
        write_tree(path, tree)
        raise KeyboardInterrupt

    for module in ("stability.pretrain", "training.loop"):  # stopped at the first checkpoint of both
        with monkeypatch.context() as patched, pytest.raises(Stopped):
            patched.setattr(sys.modules[f"neurolsc.{module}"], "write_tree", write_and_stop)
            experiment.run(tmp_path / "run", monitor=2)
        torch.seed()  # as in a new process
    experiment.run(tmp_path / "run", monitor=2)
    for name in ("radii_before.json", "radii_after.json", "network.safetensors"):
        one, other = (tmp_path / run / name for run in ("run", "through"))
        assert one.read_bytes() == other.read_bytes(), name

    def measured(run: str) -> list[list[float]]:
        rows = map(json.loads, (tmp_path / run / "monitor.jsonl").read_text().splitlines())
        return [[row[name] for name in ("rate_1", "probe_loss", "gradient_1", "radius_time_1")] for row in rows]

    assert measured("run") == measured("through") and len(measured("run")) == 4


def test_samples_on_which_a_run_is_measured_are_changed_by_the_seed_alone():
    experiment = replace(WHOLE, data=replace(DATA, channel_jitter=20.0))
    for draw in (lambda: experiment.first_samples("train", 4), lambda: experiment.drawn_samples(4)):
        (x, _), _, (again, _) = draw(), torch.rand(1), draw()
        assert torch.equal(x, again)


def test_a_run_that_diverges_leaves_its_best_network_and_names_it(tmp_path, monkeypatch):
    experiment = replace(WHOLE, pretraining=None, training=replace(WHOLE.training, epochs=4))
    with monkeypatch.context() as patched, pytest.raises(FloatingPointError, match=r"nan. They are saved in .*partial"):
        patched.setattr("neurolsc.experiment.run.train", stopped(FloatingPointError("nan."), 2))
        experiment.run(tmp_path / "run")
    assert (tmp_path / "run.partial" / "network.safetensors").exists()
    with pytest.raises(ValueError, match=r"unfinished run with other settings \(lr was 0\.01, is now 0\.001\)"):
        replace(experiment, training=replace(experiment.training, lr=1e-3)).run(tmp_path / "run")
    experiment.run(tmp_path / "run")
    assert names(tmp_path) == {"run"}


# ---- one run in a folder: locked, claimed by its settings, cleaned up, named when finished


def test_a_second_run_in_the_folder_is_refused_and_changes_nothing(tmp_path: Path):
    with run_folder(tmp_path / "run", {"lr": 0.01}) as folder:
        (folder / "mine").touch()
        for settings in ({"lr": 0.3}, {"lr": 0.01}):  # an equal run is refused, too
            with pytest.raises(BlockingIOError, match="run is in use"):
                run_folder(tmp_path / "run", settings).__enter__()
        assert (folder / "settings.toml").read_text() == "lr = 0.01\n"
        with run_folder(tmp_path / "other", {}):
            pass
    assert names(tmp_path) == {"run", "other"}
    assert names(tmp_path / "run") == {"mine", "settings.toml"}
    with pytest.raises(ValueError, match=r"would be the name of an unfinished run"):
        run_folder(tmp_path / "run.partial", {}).__enter__()
    with pytest.raises(FileExistsError, match="run exists already"):
        run_folder(tmp_path / "run", {"lr": 0.3}).__enter__()
    with pytest.raises(FileExistsError, match=r"\. exists already"):
        run_folder(".", {}).__enter__()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(FileExistsError, match="link exists already"):
        run_folder(tmp_path / "link", {}).__enter__()
    assert names(tmp_path) == {"run", "other", "link"}


@pytest.mark.parametrize(
    ("error", "files"), [(KeyError, ()), (KeyboardInterrupt, ()), (ValueError, ("init.checkpoint",))]
)
def test_a_run_that_fails_early_leaves_nothing(error: type[BaseException], files: tuple[str, ...], tmp_path: Path):
    with pytest.raises(error) as caught, run_folder(tmp_path / "run", {}) as folder:
        (folder / "below").mkdir()
        for name in (*files, "below/file"):
            (folder / name).touch()
        raise error
    assert not isinstance(caught.value, Stopped)
    assert not names(tmp_path)


@pytest.mark.parametrize("saved", ["init.checkpoint", "train.checkpoint", "network.safetensors"])
def test_ctrl_c_keeps_a_checkpoint_and_names_its_folder(saved: str, tmp_path: Path):
    with pytest.raises(Stopped, match=r"run\.partial"), run_folder(tmp_path / "run", {}) as folder:
        (folder / saved).touch()
        raise KeyboardInterrupt
    assert names(tmp_path) == {"run.partial"}
    with run_folder(tmp_path / "run", {}) as folder:
        assert (folder / saved).exists()
