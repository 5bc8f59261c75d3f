"""Settings in, a run folder out, without a command line."""

import copy
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

import neurolsc
from neurolsc.cli import demo
from neurolsc.config import DataSettings, NetworkSettings, PretrainSettings, StartSettings, TrainSettings
from neurolsc.experiment import Experiment, diagnose_run, load_network, score, write_diagnosis
from neurolsc.fit import Fit
from neurolsc.runs import Stopped, read_settings
from neurolsc.schedule import Constant, Cosine
from neurolsc.stability.lsc.look import Look
from neurolsc.stability.lsc.loop import Loop

DATA = DataSettings(data="shd", dt=0.05, channels=70, repeat=1)
WHOLE = Experiment(
    NetworkSettings(width=8, layers=1, tau_v=3.0, seed=4),
    DATA,
    PretrainSettings("0.5", method="scale", pretrain_samples=2, pretrain_times=4),
    TrainSettings(epochs=1, batch_size=32, lr=0.01),
    StartSettings("Default"),
)
UNTRAINED = {"settings.toml", "network.safetensors"}
RADII = {f"radii_{when}.{kind}" for when in ("before", "after") for kind in ("json", "png")} | {"pretraining.json"}
TRAINED = {"history.csv", "history.json", "learning.png", "split.json"}


@pytest.mark.parametrize(
    ("experiment", "files"),
    [
        (WHOLE, UNTRAINED | RADII | TRAINED),
        (replace(WHOLE, training=None), UNTRAINED | RADII),
        (replace(WHOLE, pretraining=PretrainSettings()), UNTRAINED | TRAINED),
        (replace(WHOLE, pretraining=None, training=None), UNTRAINED),
    ],
    ids=["whole", "not trained", "radii left", "neither"],
)
def test_a_run_does_what_its_settings_say_and_keeps_it(experiment, files, tmp_path):
    said = []
    outcome = experiment.run(tmp_path / "run", say=said.append)
    assert {file.name for file in (tmp_path / "run").iterdir()} == files
    assert (outcome.pretraining is None) is ("pretraining.json" not in files)
    assert (outcome.training is None) is ("history.json" not in files)
    assert said == [outcome.pretraining] * (outcome.pretraining is not None)
    assert read_settings(tmp_path / "run") == experiment.settings()
    kept, fresh = load_network(tmp_path / "run").state_dict(), experiment.build().state_dict()
    assert all(torch.equal(kept[name], value) for name, value in outcome.network.state_dict().items())
    assert torch.equal(kept["readout.weight"], fresh["readout.weight"]) is ("history.json" not in files)


def test_the_pictures_of_a_run_have_titles_with_network_data_and_seed(tmp_path, monkeypatch):
    titles: dict[str, str] = {}

    def watched(figure: Figure, path: Path, title: str) -> None:
        titles[path.name] = title

    for picture in ("diagnosis", "learning", "profile", "pretraining"):
        monkeypatch.setattr(f"neurolsc.plots.{picture}.finish", watched)
    settings = replace(WHOLE.pretraining, method="gradient", pretrain_steps=1)
    experiment = replace(WHOLE, network=replace(WHOLE.network, layers=2), pretraining=settings)
    experiment.run(tmp_path / "run", progress=False)
    write_diagnosis(diagnose_run(tmp_path / "run", samples=4), tmp_path, experiment.title)
    about = "2 x 8 ALIFPlus, spoken digits (sample in the package), seed 4"
    assert titles == {
        "radii_before.png": f"{about}, before pre-training",
        "radii_after.png": f"{about}, after pre-training",
        "pretraining.png": about,
        "learning.png": f"{about}, start Default, radii set to 0.5",
        "diagnosis.png": about,
    }


def test_a_title_names_a_file_of_weights_a_cell_of_ones_own_and_data_that_are_not_the_sample():
    own = replace(WHOLE, network=replace(WHOLE.network, cell="package.module:Mine"))
    assert own.title == "1 x 8 Mine, spoken digits (sample in the package), seed 4"
    given = NetworkSettings(weights="folder/half.safetensors")
    assert Experiment(given, DataSettings(root="MNIST")).title == (
        "network of half.safetensors, spike-latency MNIST, seed 0"
    )
    assert DataSettings(data="store-recall", delay=7).title == "store and recall after 7 steps"


STARTED = replace(WHOLE, start=StartSettings("FourConditions((1, 2, 3)) + RateMatching(0.2123, tolerance=0)"))


def test_a_start_comes_first_and_tells_what_it_did_not_reach(tmp_path):
    said, experiment = [], replace(STARTED, pretraining=None, training=None)
    network = experiment.run(tmp_path / "run", say=said.append).network
    by_hand = experiment.build()
    inputs = neurolsc.datasets.input_batches(DATA.load("train"), 32, seed=4)
    found = neurolsc.initialisers.named(experiment.start.start).apply(by_hand, inputs, seed=4)
    assert found and said == [str(finding) for finding in found]
    assert all(torch.equal(value, by_hand.state_dict()[key]) for key, value in network.state_dict().items())
    assert network.cells[0].spike.dampening == by_hand.cells[0].spike.dampening != 0.5
    assert not torch.equal(network.cells[0].w_rec, experiment.build().cells[0].w_rec)
    told = json.loads((tmp_path / "run/start.json").read_text())
    assert told["start"] == experiment.start.start and told["findings"] == said and told["seconds"] > 0
    assert {file.name for file in (tmp_path / "run").iterdir()} == UNTRAINED | {"start.json"}
    assert Experiment.of(tmp_path / "run") == replace(
        experiment, pretraining=PretrainSettings(), training=TrainSettings()
    )
    assert network.run(experiment.first_samples("train", 8)[0]).spikes[0].mean() > 0.05


def test_radii_are_looked_at_where_no_sample_is_padding():
    pieces = Experiment(NetworkSettings(cell="LSTM", width=8), DataSettings(data="jsb"))
    x, _, mask = pieces.first_samples("train", 4)
    assert not mask.all()
    found = pieces.first_inputs("train", 4)
    assert torch.equal(found, x[: mask.sum(0).min()])
    digits = replace(pieces, data=DataSettings())
    assert torch.equal(digits.first_inputs("train", 4).to_dense(), digits.first_samples("train", 4)[0].to_dense())


@pytest.mark.slow
def test_a_start_is_followed_by_the_pre_training(tmp_path):
    started = replace(STARTED, training=None).run(tmp_path / "run")
    assert {file.name for file in (tmp_path / "run").iterdir()} == UNTRAINED | RADII | {"start.json"}
    plain = replace(WHOLE, training=None).run(tmp_path / "plain")
    assert not torch.equal(started.network.cells[0].w_rec, plain.network.cells[0].w_rec)
    for outcome in (started, plain):
        assert outcome.pretraining.profile.time_mean.item() == pytest.approx(0.5, abs=0.1)


@pytest.mark.slow
def test_a_start_that_is_done_is_not_done_again(tmp_path, monkeypatch):
    experiment = replace(STARTED, pretraining=None)
    through = experiment.run(tmp_path / "through")

    def interrupt(self, *_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TrainSettings, "run", interrupt)
        with pytest.raises(Stopped, match=r"kept in .*run\.partial"):
            experiment.run(tmp_path / "run")
    said = []
    with monkeypatch.context() as patched:
        patched.setattr(StartSettings, "run", None)
        again = experiment.run(tmp_path / "run", say=said.append)
    assert said == json.loads((tmp_path / "run/start.json").read_text())["findings"] != []
    assert all(torch.equal(a, b) for a, b in zip(again.network.parameters(), through.network.parameters(), strict=True))
    assert [row["train_loss"] for row in again.training.history] == [
        row["train_loss"] for row in through.training.history
    ]
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        file.name for file in (tmp_path / "through").iterdir()
    }


def test_a_start_that_names_nothing_is_refused_at_once():
    with pytest.raises(ValueError, match=r"unknown initialiser Lsuv; .* did you mean LSUV\?"):
        StartSettings("Lsuv")


def test_training_takes_optimizer_and_conditioning_from_its_settings(tmp_path, monkeypatch):
    taken = {}
    monkeypatch.setattr("neurolsc.config.training.train", lambda *_, **more: taken.update(more))
    TrainSettings().run(*[None] * 3, seed=0)
    assert (taken["optimizer"], taken["schedule"], taken["by_gain"]) == (torch.optim.Adam, Cosine(), True)
    assert taken["conditioning"] == neurolsc.Conditioning(clip_gradient=1.0, centralize=True)
    given = {"clip_gradient": 0.5, "clip_spectrum": 0.9, "centralize": False, "by_gain": False}
    TrainSettings(optimizer="adabelief-lookahead", schedule="constant", **given).run(*[None] * 3, seed=0)
    assert (taken["optimizer"], taken["schedule"]) == (neurolsc.optimizer.adabelief_lookahead, Constant())
    assert (taken["conditioning"], taken["by_gain"]) == (neurolsc.Conditioning(0.5, 0.9), False)


class Wordless(neurolsc.ALIFPlus):
    """A cell that says nothing of its thresholds: it changes its step."""

    def update(self, x, z, state):
        return super().update(x, z, state)


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({}, "Relay()"),
        ({"start": StartSettings("LSUV()")}, "LSUV()"),
        ({"pretraining": PretrainSettings("0.5")}, "Default"),
        ({"pretraining": PretrainSettings("0.5"), "start": StartSettings("LSUV()")}, "LSUV()"),
        ({"network": NetworkSettings(weights="x.safetensors")}, "Default"),
        ({"network": NetworkSettings(cell="tests.test_experiment:Wordless")}, "Default"),
        ({"network": NetworkSettings(cell="nowhere.at.all:Cell")}, "Relay()"),
    ],
)
def test_a_start_that_is_not_given_is_relays_where_nothing_else_sets_the_network(given, start):
    experiment = Experiment(**({"network": NetworkSettings(), "data": DATA} | given))
    assert experiment.beginning.start == start


def test_the_default_start_wakes_the_network(tmp_path):
    experiment = Experiment(NetworkSettings(width=16, layers=3), DATA)
    network = experiment.run(tmp_path / "run").network
    x = experiment.first_samples("train", 32)[0]
    assert [layer.mean().item() for layer in network.run(x).spikes] == pytest.approx([0.15] * 3, abs=0.05)
    assert read_settings(tmp_path / "run")["start"] == "Relay()"
    assert Experiment.of(tmp_path / "run").beginning == experiment.beginning


@pytest.mark.slow
def test_an_experiment_is_known_again_from_its_folder_and_scored_there(tmp_path):
    trained = WHOLE.run(tmp_path / "run").network
    assert Experiment.of(tmp_path / "run") == WHOLE
    found = score(tmp_path / "run", "test")
    assert found == neurolsc.evaluate(trained, DATA.load("test"))
    assert found.firing_rate[0] > 0.01
    assert json.loads((tmp_path / "run" / "test.json").read_text()) == found.to_dict()
    with pytest.raises(FileExistsError, match="run exists already"):
        WHOLE.run(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scale", pytest.param("gradient", marks=pytest.mark.slow)])
def test_a_run_stopped_in_its_training_keeps_the_pretraining_and_ends_in_the_same_bits(method, tmp_path, monkeypatch):
    settings = replace(WHOLE.pretraining, method=method)
    experiment = replace(WHOLE, pretraining=settings, training=replace(WHOLE.training, epochs=3))
    through = experiment.run(tmp_path / "through")
    trained = TrainSettings.run

    def stop(self, *data, **more):
        def interrupt(history):
            if len(history) == 2:
                raise KeyboardInterrupt

        return trained(self, *data, on_epoch=interrupt, **more)

    with monkeypatch.context() as patched:
        patched.setattr(TrainSettings, "run", stop)
        with pytest.raises(Stopped, match=r"kept in .*run\.partial"):
            experiment.run(tmp_path / "run")
    assert {file.name for file in tmp_path.iterdir()} == {"through", "run.partial"}
    said = []
    with monkeypatch.context() as patched:
        patched.setattr(Look, "_measure", None)  # no radius is measured again
        patched.setattr(Loop, "advance", None)
        resumed = experiment.run(tmp_path / "run", say=said.append)
    assert str(said[0]) == str(resumed.pretraining)
    assert resumed.pretraining.history[-1] == said[0].history[-1]
    assert (tmp_path / "run/network.safetensors").read_bytes() == (
        tmp_path / "through/network.safetensors"
    ).read_bytes()
    assert [row["train_loss"] for row in resumed.training.history] == [
        row["train_loss"] for row in through.training.history
    ]
    names = [{file.name for file in (tmp_path / run).iterdir()} for run in ("run", "through")]
    assert names[0] == names[1]


def test_a_run_that_diverges_leaves_its_best_network_and_says_where(tmp_path, monkeypatch):
    experiment = replace(WHOLE, pretraining=None, training=replace(WHOLE.training, epochs=4))
    epoch, seen = Fit.epoch, []

    def diverge(self, *arguments):
        if len(self.history) == 2:
            seen.append(self.best)
            raise FloatingPointError("the loss is nan in epoch 3, batch 1")
        return epoch(self, *arguments)

    monkeypatch.setattr(Fit, "epoch", diverge)
    told = (
        r"epoch 3, batch 1: lower the learning rate .*weights of epoch \d, its best\. They are kept in .*run\.partial"
    )
    with pytest.raises(FloatingPointError, match=told):
        experiment.run(tmp_path / "run")
    kept = neurolsc.load(tmp_path / "run.partial" / "network.safetensors").state_dict()
    assert all(torch.equal(kept[name], value) for name, value in seen[0].items())
    with pytest.raises(ValueError, match=r"unfinished run with other settings \(lr was 0\.01, is now 0\.001\)"):
        replace(experiment, training=replace(experiment.training, lr=1e-3)).run(tmp_path / "run")
    monkeypatch.setattr(Fit, "epoch", epoch)
    experiment.run(tmp_path / "run")
    assert {file.name for file in tmp_path.iterdir()} == {"run"}


def test_there_is_no_radius_to_set_without_a_target():
    with pytest.raises(ValueError, match="target is 'none'"):
        PretrainSettings().run(WHOLE.build(), [torch.zeros(5, 1, 70)], seed=0)


@pytest.mark.slow
def test_it_needs_no_command_line():
    code = "import sys, neurolsc.experiment; print('click' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


@pytest.mark.slow
def test_a_run_goes_on_from_the_weights_that_it_began_with_or_not_at_all(tmp_path, monkeypatch):
    weights, other = tmp_path / "weights", replace(WHOLE, network=replace(WHOLE.network, seed=5))
    neurolsc.save(other.build(), weights)
    changed = weights.read_bytes()
    neurolsc.save(WHOLE.build(), weights)
    first = weights.read_bytes()
    experiment = replace(WHOLE, network=NetworkSettings(weights=str(weights)))
    trained = TrainSettings.run

    def stop(self, *data, **more):
        trained(self, *data, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr(TrainSettings, "run", stop)
        experiment.run(tmp_path / "run")
    weights.write_bytes(changed)
    with pytest.raises(
        ValueError, match=r"other settings \(weights_sha256 was '[0-9a-f]{64}', is now '[0-9a-f]{64}'\)"
    ):
        experiment.run(tmp_path / "run")
    weights.unlink()
    with pytest.raises(FileNotFoundError, match="weights"):
        experiment.run(tmp_path / "run")
    weights.write_bytes(first)
    outcome = experiment.run(tmp_path / "run")
    known = Experiment.of(tmp_path / "run").network
    assert known.weights_sha256 == hashlib.sha256(first).hexdigest()
    assert torch.equal(known.build(1, 1).cells[0].w_in, WHOLE.build().cells[0].w_in)
    assert not torch.equal(outcome.network.cells[0].w_in, WHOLE.build().cells[0].w_in)
    weights.write_bytes(changed)
    with pytest.raises(ValueError, match=r"weights has changed, weights_sha256 = [0-9a-f]{64}, now [0-9a-f]{64}"):
        known.build(1, 1)
    with pytest.raises(ValueError, match="weights_sha256 is of a file"):
        replace(known, weights="").build(1, 1)


@pytest.mark.slow
def test_the_demo_trains_its_arms_reports_them_and_goes_on_where_it_was_stopped(tmp_path, monkeypatch, capsys):
    given = copy.deepcopy(demo.GIVEN)
    given["fixed"]["width"] = 6
    lif = {"start": "BySource(recurrence=0)", "cell": "LIF", "tau_v": 50.0, "lr": 2e-3}
    given["either"] = [{"start": "Default", "lr": 1e-2}, lif]
    out = tmp_path / "demo"
    demo.show(out, epochs=1, seed=0, workers=2, given=given)
    report, told = (out / "report.md").read_text(), capsys.readouterr().out
    for start in ("| Default | 0.01 |", "| BySource(recurrence=0) | 0.002 | LIF | 50 |"):
        assert start in report and start in told
    pictures = re.findall(r"\]\((.*?\.(?:png|gif))\)", report)
    assert {"learning.png", "raster.png"} < set(pictures)
    for picture in pictures:
        assert (out / picture).stat().st_size > 5_000, picture
    trained = {path: path.stat().st_mtime_ns for path in out.glob("*/network.safetensors")}
    assert len(trained) == 2 and len(list(out.glob("*/test.json"))) == 2
    (out / "report.md").unlink()
    demo.show(out, epochs=1, seed=0, workers=2, given=given)  # a stop before the report
    assert (out / "report.md").exists()
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/network.safetensors")} == trained
