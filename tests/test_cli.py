"""The command line, run on the digits in the package."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import neurolsc
from neurolsc.cli import app
from neurolsc.cli import demo as demo_module
from neurolsc.experiment import (
    DataSettings,
    Experiment,
    NetworkSettings,
    Outcome,
    StartSettings,
    TrainSettings,
)
from neurolsc.neurons import cell as registry
from neurolsc.stability import truncation_errors
from neurolsc.training import TrainResult
from tests.words import draw_words, write_words

SMALL = ["--width", "8", "--layers", "2"]
QUICK = [*SMALL, "--pretrain-samples", "2", "--pretrain-times", "4"]
DIGITS = ["--data", "shd", "--channels", "70", "--dt", "0.05", "--repeat", "1"]
SPOKEN = [*SMALL, *DIGITS]
GREW = TrainResult([{"train_loss": loss, "validation_mode_accuracy": 0.1} for loss in (1.0, 2.0, 3.0)], 1, False)


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def succeed(*words: str | Path) -> str:
    result = call(*words)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str | Path) -> str:
    result = call(*words)
    assert result.exit_code != 0
    assert "Traceback" not in result.output
    return result.output


COMMANDS = ["radii", "pretrain", "train", "diagnose", "evaluate", "export", "demo", "sweep", "table", "figure"]


def test_every_command_explains_itself():
    for command in COMMANDS:
        assert len(succeed(command, "--help")) > 200


def test_help_shows_each_setting_under_the_heading_of_its_kind():
    headings = ["Options", "The network", "The data", "The start", "Radii before training", "The training"]
    text = succeed("train", "--help")
    parts = [text.index(f"\n{heading}:\n") for heading in headings]
    assert parts == sorted(parts)
    sections = [text[a:b] for a, b in zip(parts, [*parts[1:], len(text)], strict=True)]
    flags = {"--out": 0, "--width": 1, "--split-by": 2, "--start": 3, "--rule": 4, "--lr": 5}
    assert all([f"\n  {flag} " in section for section in sections].index(True) == i for flag, i in flags.items())
    assert "shd, text: share of" in " ".join(sections[2].split())


# ---- settings


def test_settings_come_from_the_file_and_flags_win(tmp_path):
    file, run = tmp_path / "settings.toml", tmp_path / "run"
    file.write_text('width = 6\nlayers = 1\ncell = "LIF"\nepochs = 3\n')
    succeed("radii", "--config", file, "--layers", "2", "--samples", "2", "--times", "4", "--out", run)
    written = (run / "settings.toml").read_text()
    assert all(line in written for line in ("width = 6", "layers = 2", 'cell = "LIF"'))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("widht = 6", "settings.toml: unknown setting widht; known are cell, layers, width"),
        ("width = 'six'", "width must be int, got 'six'"),
        ("cell = 'lfi'", "; did you mean LI? Your own class is known after"),
        ("surrogate = 'Slow'", "unknown surrogate 'Slow'; known are Arctan, Exponential, FastSigmoid"),
        ("width = ", "settings.toml: not a TOML file"),
    ],
)
def test_a_wrong_settings_file_is_refused_by_name(tmp_path, content, words):
    (tmp_path / "settings.toml").write_text(content)
    assert words in refused("radii", "--config", tmp_path / "settings.toml")


OUT = ["--out", "{tmp}/run"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["pretrain", *OUT], "needs a --target"),
        (["pretrain", "--target", "-1", *OUT], "target must be a radius in (0, inf), 'balanced'"),
        (["train", "--optimizer", "adan", *OUT], "'adabelief-lookahead', 'adam'"),
        (["train", "--start", "Orthogonol()", *OUT], "did you mean Orthogonal?"),
        (["train", "--cell", "LIF", "--tau-theta", "7", *OUT], "a cell LIF does not take tau_theta."),
        (["train", "--cell", "GRU", "--activation", "tanh", *OUT], "a cell GRU does not take activation"),
        (["train", "--cell", "RNN", "--clip-weight", "3", *OUT], "clip_weight needs a cell that names its voltage"),
        (["train", "--split-by", "speaker", *OUT], "split_by: for data = shd only, got data = sl-mnist"),
        (["radii", "--device", "cuda:99"], "torch cannot use the device 'cuda:99' here"),
        (["radii", "--cell", "no_such_module:Cell"], "there is no cell 'no_such_module:Cell': No module named"),
        (["radii", "{tmp}/nothing"], "neither a file nor one of the trained networks in the package (sl-mnist-alif"),
        (["radii", "sl-mnist-alif", "--width", "8"], "sl-mnist-alif is a whole network; leave out --width."),
        (["radii", "spoken-digits-alif"], "reads 140 inputs, and data = sl-mnist have 784"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_no_run(tmp_path, command, words):
    assert words in refused(*(word.format(tmp=tmp_path) for word in command))
    assert not (tmp_path / "run").exists()


# ---- radii, pretrain, train, evaluate


def test_radii_measures_a_new_network_a_run_a_saved_one_and_what_a_start_leaves(tmp_path):
    """Each as the library measures it: the run with its own data, split and seed."""
    data = DataSettings("shd", channels=70, dt=0.05, repeat=1)
    fresh = Experiment(NetworkSettings(width=8, seed=3), data, start=StartSettings("RateMatching(0.2)"))
    network = fresh.run(tmp_path / "run").network
    ours = str(neurolsc.radius_profile(network, fresh.first_inputs("train", 2), steps=4, seed=3))
    assert "time radius due to" in ours
    few = ["--samples", "2", "--times", "4"]
    flags = [*DIGITS, "--seed", "3"]
    assert ours in succeed("radii", tmp_path / "run", *few)
    assert ours in succeed("radii", tmp_path / "run" / "network.safetensors", *few, *flags)
    assert ours in succeed("radii", "--width", "8", "--start", "RateMatching(0.2)", *few, *flags)
    assert ours not in succeed("radii", "--width", "8", *few, *flags)
    out = tmp_path / "woken"
    assert ours not in succeed("radii", tmp_path / "run", "--start", "RateMatching(0.4)", *few, "--out", out)
    assert 'start = "RateMatching(0.4)"' in (out / "settings.toml").read_text()
    assert len(json.loads((out / "profile.json").read_text())["time_mean"]) == 2
    assert (out / "profile.png").stat().st_size > 1000


@pytest.mark.parametrize("flags", [DIGITS, ["--data", "jsb"]], ids=["labels", "targets at each step"])
def test_radii_says_how_many_steps_back_the_gradient_has_to_go(flags):
    flags = ["--cell", "LIF", "--tau-v", "5", *SMALL, *flags, "--start", "RateMatching(0.2)", "--samples", "2"]
    text = succeed("radii", *flags, "--times", "2", "--truncation")
    data = DataSettings("shd", channels=70, dt=0.05, repeat=1) if "shd" in flags else DataSettings("jsb")
    start = StartSettings("RateMatching(0.2)")
    experiment = Experiment(NetworkSettings(cell="LIF", tau_v=5.0, width=8, layers=2), data, start=start)
    x, (_, targets, *_) = experiment.first_inputs("train", 2), experiment.first_samples("train", 2)
    targets = targets[: len(x)] if targets.ndim > 1 else targets
    found = truncation_errors(experiment.begin()[0], x, lambda o: data.task.loss(o, targets))
    assert all(1 < k < len(x) for k in found.needed())
    assert str(found) in text


@pytest.mark.slow
def test_a_network_is_pretrained_trained_and_scored(tmp_path):
    half, run = tmp_path / "half", tmp_path / "run"
    assert "converged" in succeed("pretrain", *QUICK, "--target", "0.5", "--out", half)
    assert {file.name for file in half.iterdir()} >= {"settings.toml", "radii_before.png", "pretraining.png"}
    reported = json.loads((half / "radii_after.json").read_text())["time_mean"]
    assert all(abs(radius - 0.5) < 0.05 for radius in reported)
    words = ["--weights", half / "network.safetensors", "--batch-size", "128", "--out", run]
    succeed("train", *words, "--epochs", "2")
    assert (run / "history.csv").read_text().count("\n") == 3
    succeed("evaluate", run)
    scores = json.loads((run / "test.json").read_text())
    data = neurolsc.datasets.SpikeLatencyMNIST.embedded("test")
    assert scores["mode_accuracy"] == neurolsc.evaluate(neurolsc.load(run / "network.safetensors"), data).mode_accuracy


def test_flags_become_settings_and_a_loss_that_only_grows_is_reported(tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(Experiment, "run", lambda self, *_, **__: taken.append(self) or Outcome(None, None, GREW))
    words = ["--start", "Orthogonal() + RateMatching(0.15)", "--optimizer", "adam", "--clip-gradient", "1"]
    output = succeed("train", *words, "--clip-spectrum", "0.9", "--out", tmp_path / "run")
    assert "the training loss only grew, from 1 in epoch 1 to 3 in epoch 3" in output
    (experiment,) = taken
    assert experiment.start.start == "Orthogonal() + RateMatching(0.15)"
    assert experiment.training == TrainSettings(optimizer="adam", clip_gradient=1.0, clip_spectrum=0.9)


@pytest.mark.slow
def test_a_run_for_a_chip_is_exported_as_it_is(tmp_path):
    succeed("train", "--for", "netx", *SMALL, "--epochs", "1", "--tau-v", "9", "--out", tmp_path / "run")
    settings = Experiment.of(tmp_path / "run").settings
    assert settings.items() >= {"cell": "LIF", "tau_v": 9.0, "lr": 2e-3, "clip_weight": 3.0}.items()
    succeed("export", tmp_path / "run", "--to", "netx", "--samples", "20")


def test_for_a_chip_prints_the_flags_that_it_sets_and_leaves_those_of_flags_and_file(tmp_path, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda *_, **__: Outcome(None, None, GREW))
    (tmp_path / "mine.toml").write_text('data = "shd"\ntau_v = 9.0\n')
    words = ["--config", tmp_path / "mine.toml", "--lr", "0.002", "--out", tmp_path / "run"]
    line = succeed("train", "--for", "netx", *words).splitlines()[0]
    flags = ["--cell", "LIF", "--binary", "--start", "Relay(recurrence=0, rate=0.1, drawn=1)", "--clip-weight", "3.0"]
    assert sorted(shlex.split(line.removeprefix("--for netx sets "))) == sorted(flags)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cell", "ALIFPositive"], "--for netx trains cells LIF, which fit it for sure, got ALIFPositive."),
        (["--readout-bias"], "not for netx: the readout has a bias"),
    ],
)
def test_a_network_that_does_not_fit_a_chip_is_refused_at_once(tmp_path, words, message):
    assert message in refused("train", "--for", "netx", *SMALL, *words, "--out", tmp_path / "run")
    assert not list(tmp_path.iterdir())


# ---- kills and Ctrl-C


def start(*words: str | Path) -> subprocess.Popen[str]:
    """A process that takes Ctrl-C, as those do not that a shell starts in the background."""
    command = [sys.executable, "-m", "neurolsc", *map(str, words)]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


def complete(*words: str | Path) -> str:
    process = start(*words)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    return output


def wait_for(file: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not file.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


@pytest.mark.slow
def test_ctrl_c_prints_the_command_that_goes_on(tmp_path):
    words = ["train", *SMALL, "--epochs", "25", "--batch-size", "100", "--out", tmp_path / "my run"]
    process = start(*words)
    wait_for(tmp_path / "my run.partial" / "train.checkpoint", process)
    process.send_signal(signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 130
    assert "its checkpoints are in" in output and "Traceback" not in output
    line = output.strip().splitlines()[-1]
    assert shlex.split(line) == ["neurolsc", *map(str, words)]
    assert "epoch 1/25" not in complete(*shlex.split(line)[1:])  # it is not repeated
    assert {file.name for file in tmp_path.iterdir()} == {"my run"}


@pytest.mark.slow
def test_of_two_processes_in_one_folder_the_second_is_refused_and_changes_nothing(tmp_path):
    run = tmp_path / "run"
    words = ["train", *SMALL, "--epochs", "4", "--batch-size", "100", "--out"]
    first = start(*words, run, "--lr", "0.01")
    wait_for(tmp_path / "run.partial" / "settings.toml", first)
    for second in [start(*words, run, "--lr", lr) for lr in ("0.3", "0.01")]:
        output = second.communicate()[0]
        assert (second.returncode, "run is in use" in output) == (1, True)
    third = start(*words, run, "--lr", "0.3")
    third.send_signal(signal.SIGINT)  # wherever it is
    third.communicate()
    output = first.communicate()[0]
    assert first.returncode == 0, output
    assert "lr = 0.01" in (run / "settings.toml").read_text()
    assert {file.name for file in tmp_path.iterdir()} == {"run"}


# ---- a cell of one's own

OWN = """
from typing import NamedTuple
import torch
from neurolsc import Cell, LIF

class State(NamedTuple):
    h: torch.Tensor

class Tanh(Cell):
    def __init__(self, n_in, n_hidden, *, tau_v=2.0):
        super().__init__(n_in, n_hidden)
        self.tau_v = tau_v
        self.w = torch.nn.Parameter(torch.randn(n_hidden, n_in) / n_in ** 0.5)
    def initial_state(self, batch):
        return State(torch.zeros(batch, self.n_hidden))
    def output(self, state):
        return state.h
    def update(self, x, z, state):
        return State(torch.tanh((1 - 1 / self.tau_v) * z + x @ self.w.T))
    def config(self):
        return super().config() | {"tau_v": self.tau_v}

class Loud(LIF):
    def __init__(self, n_in, n_hidden, **others):
        super().__init__(n_in, n_hidden, threshold=0.1, **others)
"""


@pytest.fixture
def own_cells(tmp_path, monkeypatch):
    """A module with cells of one's own in the folder in which the command is run."""
    (tmp_path / "cells_of_my_own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part])
    yield "cells_of_my_own"
    sys.modules.pop("cells_of_my_own", None)
    for name in ("Tanh", "Loud"):
        registry.CELLS.pop(name, None)


def test_a_cell_of_ones_own_is_trained_and_scored_by_its_name(own_cells):
    words = ["--cell", f"{own_cells}:Tanh", "--tau-v", "3", "--width", "8", "--layers", "1", *DIGITS]
    succeed("train", *words, "--epochs", "1", "--out", "run")
    history = json.loads(Path("run/history.json").read_text())["history"]
    assert history[0]["firing_rate"] == [None]  # it does not spike
    registry.CELLS.pop("Tanh")  # as in a new process
    assert succeed("evaluate", "run").splitlines()[2].split()[-3:] == ["-", "-", "-"]
    assert neurolsc.load("run/network.safetensors").cells[0].tau_v == 3.0
    registry.CELLS.pop("Tanh")
    few = ["--weights", "run/network.safetensors", "--samples", "2", "--times", "3", *DIGITS]
    assert "not known" in succeed("radii", "--cell", f"{own_cells}:Tanh", *few)  # what holds its radius


# ---- spoken digits


def test_a_run_on_spoken_digits_notes_its_split_and_opens_the_test_file_in_evaluate_only(tmp_path):
    root, run = tmp_path / "root", tmp_path / "run"
    write_words(root / "shd_train.h5", draw_words(40), speakers=[(7, 2, 5)[i % 3] for i in range(40)])
    (root / "shd_test.h5").write_bytes(b"")
    words = [*SPOKEN, "--root", root, "--split-by", "speaker", "--split-share", "0.25", "--spike-drop", "0.1"]
    succeed("train", *words, "--epochs", "1", "--window", "0", "--out", run)
    split = json.loads((run / "split.json").read_text())
    assert split["train"]["speakers"] == [2, 5] and split["validation"]["speakers"] == [7]
    assert json.loads((run / "history.json").read_text())["history"][0]["firing_rate"][0] > 0
    assert "shd_test.h5: not a whole HDF5 file" in refused("evaluate", run)
    write_words(root / "shd_test.h5", draw_words(10, seed=1))
    succeed("evaluate", run)
    assert (run / "test.json").exists()


# ---- diagnose and demo


@pytest.fixture(scope="module")
def silent_run(tmp_path_factory):
    """A finished run of a network that is not trained and whose thresholds nothing reaches."""
    out = tmp_path_factory.mktemp("silent") / "run"
    Experiment(NetworkSettings(width=8, b_theta=100.0), DataSettings(), start=StartSettings("Default")).run(out)
    return out


def test_diagnose_reads_a_run_with_its_history_and_leaves_it_as_it_is(silent_run, tmp_path):
    before = {path.name: path.read_bytes() for path in silent_run.iterdir()}
    output = succeed("diagnose", silent_run, "--samples", "8")
    assert "layer 1: never fires" in output and "layer 2: never fires" in output
    assert {path.name: path.read_bytes() for path in silent_run.iterdir()} == before
    shutil.copytree(silent_run, tmp_path / "run")
    history = [{"train_loss": loss} for loss in (2.3, 2.4, 2.5)]
    (tmp_path / "run" / "history.json").write_text(json.dumps({"history": history}))
    output = succeed("diagnose", tmp_path / "run", "--samples", "8")
    assert "network: the training loss only grew, from 2.3 to 2.5 in 3 epochs" in output


@pytest.mark.slow
def test_diagnose_tries_cures_and_writes_what_it_prints(silent_run, tmp_path):
    out = tmp_path / "doctor"
    output = succeed("diagnose", silent_run, "--samples", "8", "--try", "--out", out)
    files = {"settings.toml", "diagnosis.json", "diagnosis.txt", "diagnosis.png"}
    assert {path.name for path in out.iterdir()} == files
    text = (out / "diagnosis.txt").read_text()
    assert output == f"{text}written to {out}\n"
    assert "tried for dead layer of layer 1, 2" in text
    assert json.loads((out / "diagnosis.json").read_text())["trials"][0]["name"] == "dead layer"
    assert "exists already" in refused("diagnose", silent_run, "--out", out)


@pytest.mark.slow
def test_the_demo_trains_its_arms_reports_them_and_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    lif = {"start": "BySource(recurrence=0)", "cell": "LIF", "tau_v": 50.0, "lr": 2e-3}
    either, fixed = [{"start": "Default", "lr": 1e-2}, lif], demo_module.GRID["fixed"] | {"width": 6}
    monkeypatch.setattr(demo_module, "GRID", demo_module.GRID | {"either": either, "fixed": fixed})
    out = tmp_path / "demo"
    output = succeed("demo", "--out", out, "--epochs", "1", "--workers", "2")
    report = (out / "report.md").read_text()
    for arm in ("| Default | 0.01 |", "| BySource(recurrence=0) | 0.002 | LIF | 50 |"):
        assert arm in report and arm in output
    assert "](learning.png)" in report and (out / "learning.png").stat().st_size > 5_000
    trained = {path: path.stat().st_mtime_ns for path in out.glob("*/network.safetensors")}
    assert len(trained) == 2 and len(list(out.glob("*/test.json"))) == 2
    (out / "report.md").unlink()
    succeed("demo", "--out", out, "--epochs", "1", "--workers", "2")
    assert (out / "report.md").exists()
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/network.safetensors")} == trained
