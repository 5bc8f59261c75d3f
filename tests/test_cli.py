"""The command line, run on the digits in the package."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import neurolsc
from neurolsc.cli import app
from neurolsc.experiment import Experiment, Outcome, load_network
from neurolsc.experiment.config import DataSettings, NetworkSettings, StartSettings, TrainSettings
from neurolsc.neurons import cell as registry
from neurolsc.training import TrainResult
from tests.words import draw_words, write_words

SMALL = ["--width", "8", "--layers", "2"]
QUICK = [*SMALL, "--pretrain-samples", "2", "--pretrain-times", "4"]


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


COMMANDS = ["radii", "pretrain", "train", "diagnose", "evaluate", "export", "demo", "data info", "data splits"]
COMMANDS += ["sweep", "table", "figure"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    result = call(*command.split(), "--help")
    assert result.exit_code == 0
    assert len(result.output) > 200


def test_radii_prints_a_line_per_layer_and_writes_what_it_prints(tmp_path):
    result = call("radii", *SMALL, "--samples", "2", "--times", "4", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "time radius due to" in result.output
    written = json.loads((tmp_path / "run/profile.json").read_text())
    assert len(written["time_mean"]) == 2
    assert (tmp_path / "run/profile.png").stat().st_size > 1000


def test_radii_measures_a_finished_run_a_saved_network_and_what_a_start_leaves(tmp_path):
    """Each as the library measures it: the run with its own data, split and seed."""
    data = DataSettings("shd", channels=70, dt=0.05, repeat=1)
    fresh = Experiment(NetworkSettings(width=8, seed=3), data, start=StartSettings("RateMatching(0.2)"))
    network = fresh.run(tmp_path / "run").network
    x = fresh.first_inputs("train", 2)
    ours = str(neurolsc.radius_profile(network, x, steps=4, seed=3))
    few = ["--samples", "2", "--times", "4"]
    flags = ["--data", "shd", "--channels", "70", "--dt", "0.05", "--repeat", "1", "--seed", "3"]
    measured = [
        call("radii", tmp_path / "run", *few),
        call("radii", tmp_path / "run" / "network.safetensors", *few, *flags),
        call("radii", "--width", "8", "--start", "RateMatching(0.2)", *few, *flags),
    ]
    assert all(ours in result.output for result in measured), measured[0].output
    drawn = call("radii", "--width", "8", *few, *flags)
    assert drawn.exit_code == 0 and ours not in drawn.output
    woken = call("radii", tmp_path / "run", "--start", "RateMatching(0.4)", *few, "--out", tmp_path / "woken")
    assert woken.exit_code == 0 and ours not in woken.output
    assert 'start = "RateMatching(0.4)"' in (tmp_path / "woken" / "settings.toml").read_text()


@pytest.mark.slow
def test_pretrain_keeps_the_network_whose_radii_it_reports(tmp_path):
    result = call("pretrain", *QUICK, "--target", "0.5", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "converged" in result.output
    run = tmp_path / "run"
    names = {file.name for file in run.iterdir()}
    assert names >= {"settings.toml", "network.safetensors", "radii_before.png", "radii_after.json", "pretraining.png"}
    assert not list(run.glob("*.checkpoint"))
    reported = json.loads((run / "radii_after.json").read_text())["time_mean"]
    again = call("radii", "--weights", run / "network.safetensors", "--samples", "4", "--times", "16")
    assert again.exit_code == 0, again.output
    assert all(abs(radius - 0.5) < 0.05 for radius in reported)


@pytest.mark.slow
def test_train_and_evaluate_write_a_whole_run(tmp_path):
    run = tmp_path / "run"
    result = call("train", *QUICK, "--target", "0.5", "--epochs", "2", "--batch-size", "128", "--out", run)
    assert result.exit_code == 0, result.output
    history = json.loads((run / "history.json").read_text())["history"]
    assert len(history) == 2
    assert min(history[-1]["firing_rate"]) > 0
    assert (run / "history.csv").read_text().count("\n") == 3
    result = call("evaluate", run)
    assert result.exit_code == 0, result.output
    scores = json.loads((run / "test.json").read_text())
    data = neurolsc.datasets.SpikeLatencyMNIST.embedded("test")
    assert scores["mode_accuracy"] == neurolsc.evaluate(neurolsc.load(run / "network.safetensors"), data).mode_accuracy


def test_settings_come_from_the_file_and_flags_go_before_it(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('width = 6\nlayers = 1\ncell = "LIF"\nepochs = 3\n')
    run = tmp_path / "run"
    words = ["radii", "--config", file, "--layers", "2", "--samples", "2", "--times", "4", "--out", run]
    assert call(*words).exit_code == 0
    written = (run / "settings.toml").read_text()
    assert "width = 6" in written
    assert "layers = 2" in written
    assert 'cell = "LIF"' in written


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("widht = 6", "unknown setting widht; known are cell, layers, width"),
        ("width = 'six'", "width must be int, got 'six'"),
        ("widht = 6\nepoch = 3", "start; did you mean width, epochs?"),
        ("reset = 'substract'", "one of subtract, static, zero, got 'substract'; did you mean subtract?"),
        ("cell = 'ALIV'", "unknown cell 'ALIV'; known are ALIFLowPass, ALIFPlus, ALIFPlusMinus, ALIFPositive"),
        ("cell = 'lfi'", "; did you mean LI? One of your own is known after"),
        ("surrogate = 'Slow'", "unknown surrogate 'Slow'; known are Arctan, Exponential, FastSigmoid"),
        ("width = ", "settings.toml: not a TOML file"),
    ],
)
def test_a_wrong_settings_file_is_refused_by_name(tmp_path, content, told):
    file = tmp_path / "settings.toml"
    file.write_text(content)
    result = call("radii", "--config", file)
    assert result.exit_code != 0
    assert told in result.output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pretrain", "--out", "{tmp}/run"], "needs a --target"),
        (
            ["pretrain", "--target", "half", "--out", "{tmp}/run"],
            "target must be a number, 'balanced' or 'none', got 'half'",
        ),
        (
            ["pretrain", "--target", "-1", "--out", "{tmp}/run"],
            "target must be a radius in (0, inf) or 'balanced', or an object with aim(steps, layers), got -1.0",
        ),
        (["train", "--width", "0", "--out", "{tmp}/run"], "n_hidden must be at least 1, got 0"),
        (["radii", "--tau-v", "-3"], "tau_v must be positive and finite, got -3"),
        (["radii", "--weights", "{tmp}/nothing"], "nothing"),
        (["train", "--cell", "LIF", "--tau-theta", "7", "--out", "{tmp}/run"], "a cell LIF does not take tau_theta."),
        (["radii", "--cell", "no_such_module:Cell"], "there is no cell 'no_such_module:Cell': No module named"),
        (["radii", "--cell", "neurolsc.neurons:LIFState"], "must be a class of Cell"),
        (["evaluate", "{tmp}"], "is not the folder of a finished run"),
        (["radii", "--out", "{tmp}"], "exists already"),
        (
            ["train", "--device", "gpu", "--out", "{tmp}/run"],
            "unknown device 'gpu': write cuda for a GPU (cuda:1 for the second), cpu for none.",
        ),
        (["pretrain", "--target", "1", "--device", "meta", "--out", "{tmp}/run"], "torch cannot use the device"),
        (["radii", "--device", "cuda:99"], "torch cannot use the device 'cuda:99' here"),
        (["radii", "--channels", "70", "--dt", "0.01"], "dt, channels: for data = shd only, got data = sl-mnist"),
        (["train", "--optimizer", "adan", "--out", "{tmp}/run"], "'adabelief-lookahead', 'adam'; did you mean adam?"),
        (["train", "--target", "0.5", "--lr", "-1", "--out", "{tmp}/run"], "lr must be positive and finite, got -1."),
        (
            ["train", "--target", "1", "--pretrain-times", "0", "--out", "{tmp}/run"],
            "pretrain_times must be at least 1",
        ),
        (
            ["train", "--cell", "RNN", *SMALL, "--clip-weight", "3", "--out", "{tmp}/run"],
            "clip_weight needs a cell that names its voltage, which a RNN does not.",
        ),
        (
            ["train", "--split-by", "speaker", "--out", "{tmp}/run"],
            "split_by: for data = shd only, got data = sl-mnist",
        ),
        (["radii", "{tmp}"], "is not the folder of a finished run"),
        (["radii", "{tmp}/nothing"], "neither a file nor one of the trained networks in the package (sl-mnist-alif"),
        (["radii", "sl-mnist-alif", "--width", "8"], "sl-mnist-alif is a whole network; leave out --width."),
        (["radii", "spoken-digits-alif"], "reads 140 inputs, and data = sl-mnist have 784"),
        (["radii", "--data", "shd", "--channels", "60"], "channels must divide 700"),
        (["train", "--data", "shd", "--time-stretch", "1.5", "--out", "{tmp}/run"], "low must be positive"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_no_run(tmp_path, words, told):
    result = call(*(word.format(tmp=tmp_path) for word in words))
    assert result.exit_code != 0
    assert told in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "run").exists()


def test_an_unfinished_run_is_not_taken_over_under_other_settings(tmp_path):
    partial = tmp_path / "run.partial"
    partial.mkdir()
    (partial / "settings.toml").write_text("width = 8\n")
    (partial / "train.checkpoint").write_bytes(b"")
    result = call("train", "--width", "9", "--out", tmp_path / "run")
    assert result.exit_code != 0
    assert "width was 8, is now 9" in result.output


@pytest.mark.skipif(os.geteuid() == 0, reason="for root no folder is read-only")
def test_an_unwritable_folder_is_told_before_any_work(tmp_path):
    tmp_path.chmod(0o500)
    result = call("radii", *SMALL, "--out", tmp_path / "run")
    assert result.exit_code != 0
    assert "Permission denied" in result.output


def kill_at(words: list[str], file: Path) -> None:
    """Start the command, and kill -9 it as soon as a checkpoint has been written."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not file.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it ended before it could be killed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "checkpoint"),
    [
        (["pretrain", *QUICK, "--target", "1", "--rule", "paper", "--pretrain-steps", "30"], "pretrain.checkpoint"),
        (["train", *SMALL, "--epochs", "3", "--batch-size", "300"], "train.checkpoint"),
    ],
    ids=["pretrain", "train"],
)
def test_a_command_killed_in_the_middle_goes_on_to_the_same_bits(tmp_path, command, checkpoint):
    words = [sys.executable, "-m", "neurolsc", *command, "--out"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*words, str(whole)], check=True, capture_output=True)
    kill_at([*words, str(killed)], tmp_path / "killed.partial" / checkpoint)
    assert not killed.exists()
    subprocess.run([*words, str(killed)], check=True, capture_output=True)
    one, other = (neurolsc.load(run / "network.safetensors").state_dict() for run in (whole, killed))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_ctrl_c_prints_the_command_that_goes_on(tmp_path, monkeypatch):
    run = TrainSettings.run

    def stop(self, *data, **more):
        def interrupt(history):
            raise KeyboardInterrupt

        return run(self, *data, on_epoch=interrupt, **more)

    monkeypatch.setattr(TrainSettings, "run", stop)
    words = ["train", *SMALL, "--epochs", "2", "--batch-size", "300", "--out", tmp_path / "my run"]
    result = call(*words)
    assert result.exit_code == 130
    assert "Traceback" not in result.output
    assert "what was done is kept in" in result.output
    line = result.output.strip().splitlines()[-1]
    assert shlex.split(line) == ["neurolsc", *map(str, words)]
    monkeypatch.undo()
    again = call(*shlex.split(line)[1:])
    assert again.exit_code == 0, again.output
    assert "epoch 1/2" not in again.output  # it is not repeated
    assert {file.name for file in tmp_path.iterdir()} == {"my run"}


def test_train_takes_a_start(tmp_path, monkeypatch):
    taken = []
    grew = TrainResult([{"train_loss": 1.0, "validation_mode_accuracy": 0.1}], 1, False)
    monkeypatch.setattr(Experiment, "run", lambda self, *_, **__: taken.append(self) or Outcome(None, None, grew))
    words = ["--start", "Orthogonal() + RateMatching(0.15)", "--optimizer", "adam", "--clip-gradient", "1"]
    result = call("train", *words, "--clip-spectrum", "0.9", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    (experiment,) = taken
    assert experiment.start.start == "Orthogonal() + RateMatching(0.15)"
    assert experiment.training == TrainSettings(optimizer="adam", clip_gradient=1.0, clip_spectrum=0.9)
    wrong = call("train", "--start", "Orthogonol()", "--out", tmp_path / "run")
    assert wrong.exit_code != 0 and "did you mean Orthogonal?" in wrong.output and "Traceback" not in wrong.output
    wrong = call("train", "--optimizer", "sgd", "--out", tmp_path / "run")
    assert wrong.exit_code != 0 and "adabelief-lookahead" in wrong.output


@pytest.mark.slow
def test_a_started_run_trains_and_says_what_was_not_reached(tmp_path):
    words = ["--start", "RateMatching(0.3, tolerance=1e-6)", "--epochs", "1", "--batch-size", "300"]
    result = call("train", *SMALL, *words, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "spikes per neuron and step, not 0.3" in result.output
    assert json.loads((tmp_path / "run/start.json").read_text())["findings"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], {"tau_v": 50.0, "lr": 2e-3, "clip_weight": 3.0, "start": "Relay(recurrence=0, rate=0.1, drawn=1)"}),
        (["--tau-v", "9"], {"tau_v": 9.0, "lr": 2e-3}),
    ],
)
@pytest.mark.slow
def test_a_run_for_a_chip_is_exported_as_it_is(tmp_path, words, told):
    result = call("train", "--for", "netx", *SMALL, "--epochs", "1", *words, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "--for netx sets --cell LIF " in result.output
    settings = Experiment.of(tmp_path / "run").settings()
    assert {name: settings[name] for name in told} == told
    assert settings["cell"] == "LIF"
    exported = call("export", tmp_path / "run", "--to", "netx", "--samples", "20")
    assert exported.exit_code == 0, exported.output


def test_a_run_for_a_chip_takes_spikes_and_what_a_file_says(tmp_path):
    (tmp_path / "mine.toml").write_text('tau_v = 7.0\ndata = "shd"\ndt = 0.05\nchannels = 70\nrepeat = 1\n')
    words = ["--config", tmp_path / "mine.toml", *SMALL, "--epochs", "1", "--out", tmp_path / "run"]
    result = call("train", "--for", "netx", *words)
    assert result.exit_code == 0, result.output
    run = Experiment.of(tmp_path / "run")
    assert run.data.binary and run.network.tau_v == 7.0 and run.network.cell == "LIF"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--cell", "ALIFPositive"],
            "--for netx trains cells LIF, which fit it for sure, got ALIFPositive.",
        ),
        (["--readout-bias"], "not for netx: the readout has a bias"),
    ],
)
def test_what_cannot_be_exported_is_refused_at_once_where_it_is_for_a_chip(tmp_path, words, told):
    result = call("train", "--for", "netx", *SMALL, *words, "--out", tmp_path / "run")
    assert result.exit_code != 0
    assert told in result.output
    assert not list(tmp_path.iterdir())


QUIET = Outcome(None, None, TrainResult([{"train_loss": 1.0, "validation_mode_accuracy": 0.1}], 1, False))


def test_a_run_for_a_chip_prints_the_flags_that_it_sets_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda *_, **__: QUIET)
    words = ["--data", "shd", "--lr", "0.002", "--tau-v", "9", "--out", tmp_path / "run"]
    said = call("train", "--for", "netx", *words).output.splitlines()[0]
    start = "Relay(recurrence=0, rate=0.1, drawn=1)"
    flags = ["--cell", "LIF", "--binary", "--start", start, "--clip-weight", "3.0"]
    assert said.startswith("--for netx sets ")
    assert sorted(shlex.split(said.removeprefix("--for netx sets "))) == sorted(flags)


def test_of_chips_nothing_is_said_unless_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(StartSettings, "run", lambda *_: ())
    monkeypatch.setattr(Experiment, "_train", lambda *_, **__: QUIET.training)
    result = call("train", *SMALL, "--out", tmp_path / "run")  # of ALIF, which no chip takes
    assert result.exit_code == 0, result.output
    said = result.output.replace(str(tmp_path), "")
    assert "chip" not in said and "netx" not in said


def test_a_loss_that_only_grows_is_told(tmp_path, monkeypatch):
    grew = TrainResult([{"train_loss": loss, "validation_mode_accuracy": 0.1} for loss in (1.0, 2.0, 3.0)], 1, False)
    monkeypatch.setattr(Experiment, "run", lambda *_, **__: Outcome(None, None, grew))
    result = call("train", "--out", tmp_path / "run")
    assert "the training loss only grew, from 1 in epoch 1 to 3 in epoch 3" in result.output


def start(*words: str | Path) -> subprocess.Popen[str]:
    """A process that hears Ctrl-C, as those do not that a shell starts in the background."""
    command = [sys.executable, "-m", "neurolsc", *map(str, words)]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_of_two_processes_in_one_folder_the_second_is_refused_and_changes_nothing(tmp_path):
    run = tmp_path / "run"
    words = ["train", *SMALL, "--epochs", "6", "--batch-size", "100", "--out"]
    first = start(*words, run, "--lr", "0.01")
    deadline = time.monotonic() + 120
    while not (tmp_path / "run.partial" / "settings.toml").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    others = [start(*words, run, "--lr", lr) for lr in ("0.3", "0.01")]
    for second in others:
        said = second.communicate()[0]
        assert second.returncode == 1
        assert "run is in use by another process" in said
        assert said.count("\n") == 1
    third = start(*words, run, "--lr", "0.3")
    third.send_signal(signal.SIGINT)  # wherever it is
    third.communicate()
    said = first.communicate()[0]
    assert first.returncode == 0, said
    assert "lr = 0.01" in (run / "settings.toml").read_text()
    assert {file.name for file in tmp_path.iterdir()} == {"run"}
    alone = start(*words, tmp_path / "alone", "--lr", "0.01")
    said = alone.communicate()[0]
    assert alone.returncode == 0, said
    assert (run / "network.safetensors").read_bytes() == (tmp_path / "alone" / "network.safetensors").read_bytes()


@pytest.mark.slow
def test_of_eight_equal_processes_one_runs(tmp_path):
    words = ["train", *SMALL, "--epochs", "1", "--batch-size", "300", "--out", tmp_path / "run"]
    processes = [start(*words) for _ in range(8)]
    said = [process.communicate()[0] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0] + [1] * 7
    refused = [text for text, code in zip(said, codes, strict=True) if code]
    assert all("is in use by another process" in text or "exists already" in text for text in refused)
    assert {file.name for file in tmp_path.iterdir()} == {"run"}
    assert neurolsc.load(tmp_path / "run" / "network.safetensors").n_in == 784


@pytest.mark.slow
def test_ctrl_c_in_a_process_is_told_and_gone_on_from(tmp_path):
    words = ["train", *SMALL, "--epochs", "25", "--batch-size", "100", "--out", tmp_path / "run"]
    process = start(*words)
    deadline = time.monotonic() + 120
    while not (tmp_path / "run.partial" / "train.checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130
    assert said.rstrip().endswith(shlex.join(["neurolsc", *map(str, words)]))
    assert "Traceback" not in said
    again = start(*words)
    said = again.communicate()[0]
    assert again.returncode == 0, said
    assert "epoch 1/25" not in said


# a cell of one's own

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
    words = ["--cell", f"{own_cells}:Tanh", "--tau-v", "3", "--width", "8", "--layers", "1"]
    result = call("train", *words, "--epochs", "1", "--out", "run")
    assert result.exit_code == 0, result.output
    history = json.loads(Path("run/history.json").read_text())["history"]
    assert history[0]["firing_rate"] == [None]  # it does not spike
    registry.CELLS.pop("Tanh")  # as in a new process
    result = call("evaluate", "run")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[2].split()[-3:] == ["-", "-", "-"]
    assert neurolsc.load("run/network.safetensors").cells[0].tau_v == 3.0
    registry.CELLS.pop("Tanh")
    again = ["--weights", "run/network.safetensors", "--samples", "2", "--times", "3"]
    result = call("radii", "--cell", f"{own_cells}:Tanh", *again)
    assert result.exit_code == 0, result.output
    assert "not known" in result.output  # what holds its radius: it has no closed form


def test_a_cell_gets_what_its_constructor_takes_and_what_that_hands_on(own_cells, monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())
    sizes = {"width": 8, "layers": 1}
    loud = NetworkSettings(cell=f"{own_cells}:Loud", tau_v=4.0, surrogate="Gaussian", dampening=0.25, **sizes)
    cell = loud.build(5, 3).cells[0]
    assert type(cell.spike).__name__ == "Gaussian"
    assert (cell.spike.dampening, cell.theta[0].item()) == (0.25, pytest.approx(0.1))
    assert cell.tau_v.mean().item() == pytest.approx(4.0, rel=0.5)
    odd = NetworkSettings(cell=f"{own_cells}:Tanh", dampening=0.25, adaptation=0.1, reset="static", **sizes)
    with pytest.raises(ValueError, match=r"Tanh does not take dampening, adaptation, reset\.$"):
        odd.build(5, 3)


# spoken digits

SPOKEN = [*SMALL, "--data", "shd", "--channels", "70", "--dt", "0.05", "--repeat", "1"]


def test_help_shows_each_setting_under_the_heading_of_its_kind():
    headings = ["Options", "The network", "The data", "The start", "Radii before training", "The training"]
    text = call("train", "--help").output
    parts = [text.index(f"\n{heading}:\n") for heading in headings]
    assert parts == sorted(parts)
    sections = [text[a:b] for a, b in zip(parts, [*parts[1:], len(text)], strict=True)]
    flags = {"--out": 0, "--width": 1, "--split-by": 2, "--start": 3, "--rule": 4, "--lr": 5}
    assert all([f"\n  {flag} " in section for section in sections].index(True) == i for flag, i in flags.items())


def test_speakers_that_are_held_out_are_named_and_unknown_ones_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(Experiment, "_started", lambda *_: None)
    monkeypatch.setattr("neurolsc.experiment.run.checkpoint.save", lambda *_: None)
    monkeypatch.setattr(Experiment, "_train", lambda *_, **__: QUIET.training)
    words = [*SPOKEN, "--split-by", "speaker", "--root", tmp_path]
    write_words(tmp_path / "train.h5", draw_words(40), speakers=[(7, 2, 5)[i % 3] for i in range(40)])
    told = "trained on: speakers 2, 5 (26 utterances); held out for validation: speaker 7 (14 utterances)"
    result = call("train", *words, "--out", tmp_path / "run")
    assert result.exit_code == 0 and told in result.output, result.output
    assert told in call("data", "splits", *words[len(SMALL) :]).output
    write_words(tmp_path / "train.h5", draw_words(40), spoil=lambda file: file.__delitem__("extra/speaker"))
    result = call("train", *words, "--out", tmp_path / "other")
    assert result.exit_code == 1
    assert "validation by speaker needs to know who speaks, and the data do not say" in result.output
    assert not list(tmp_path.glob("other*"))
    assert call("train", *SPOKEN, "--root", tmp_path, "--out", tmp_path / "other").exit_code == 0  # at random it can


@pytest.mark.parametrize("by", ["random", "speaker"])
def test_a_run_on_spoken_digits_keeps_its_split_and_opens_the_test_file_in_evaluate_only(tmp_path, by):
    root, run = tmp_path / "root", tmp_path / "run"
    write_words(root / "shd_train.h5", draw_words(40))
    (root / "shd_test.h5").write_bytes(b"")
    words = [*SPOKEN, "--root", root, "--split-by", by, "--split-share", "0.25", "--epochs", "1", "--spike-drop", "0.1"]
    result = call("train", *words, "--cache", tmp_path / "cache", "--out", run)
    assert result.exit_code == 0, result.output
    split = json.loads((run / "split.json").read_text())
    assert [split[part]["utterances"] for part in ("train", "validation")] == [30, 10]
    apart = not set(split["train"]["speakers"]) & set(split["validation"]["speakers"])
    assert apart is (by == "speaker")
    assert f'split_by = "{by}"' in (run / "settings.toml").read_text()
    assert json.loads((run / "history.json").read_text())["history"][0]["firing_rate"][0] > 0
    result = call("evaluate", run)
    assert result.exit_code != 0
    assert "shd_test.h5: not a whole HDF5 file" in result.output
    write_words(root / "shd_test.h5", draw_words(10, seed=1))
    result = call("evaluate", run)
    assert result.exit_code == 0, result.output
    assert (run / "test.json").exists()


def test_whole_utterances_train_and_score_and_measure(tmp_path):
    whole = [*SPOKEN, "--window", "0"]
    result = call("train", *whole, "--epochs", "1", "--batch-size", "16", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    result = call("evaluate", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert call("radii", *whole, "--samples", "2", "--times", "4").exit_code == 0


def test_data_info_says_and_draws_what_is_in_a_file(tmp_path):
    path = write_words(tmp_path / "words.h5", draw_words(12))
    result = call("data", "info", path, "--picture", tmp_path / "words.png", "--utterance", "3")
    assert result.exit_code == 0, result.output
    sizes = [len(times) for times, _ in draw_words(12)]
    assert "words.h5: 12 utterances, 20 classes, 4 speakers" in result.output
    assert f"mean {sum(sizes) / 12:.0f}, {min(sizes)} to {max(sizes)}" in result.output
    one = draw_words(12)[3]
    assert f"  9 word 9            1  {len(one[0]):>6}  {float(one[0][-1]):>8.3f} s" in result.output
    assert "speaker 2             3" in result.output
    assert (tmp_path / "words.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["data", "info", "{tmp}/words.h5", "--utterance", "12"], "--utterance must lie in 0 ... 11, got 12"),
        (["data", "info", "{tmp}/text.h5"], "text.h5: not a whole HDF5 file"),
        (["data", "info", "{tmp}/damaged.h5"], "damaged.h5: spikes/times must be finite"),
    ],
)
def test_data_info_refuses_in_one_line_and_draws_nothing(tmp_path, words, told):
    write_words(tmp_path / "words.h5")
    (tmp_path / "text.h5").write_text("text")
    damaged = draw_words(12)
    damaged[5] = (damaged[5][0][::-1], damaged[5][1])
    write_words(tmp_path / "damaged.h5", damaged)
    result = call(*(word.format(tmp=tmp_path) for word in words), "--picture", tmp_path / "p.png")
    assert result.exit_code != 0
    assert told in result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "p.png").exists()


# ---- diagnose


@pytest.fixture(scope="module")
def silent_run(tmp_path_factory):
    """A finished run of a network that is not trained and whose thresholds nothing reaches."""
    out = tmp_path_factory.mktemp("silent") / "run"
    Experiment(NetworkSettings(width=8, b_theta=100.0), DataSettings(), start=StartSettings("Default")).run(out)
    return out


def test_diagnose_says_what_is_wrong_and_leaves_the_run_as_it_is(silent_run):
    before = {path.name: path.read_bytes() for path in silent_run.iterdir()}
    result = call("diagnose", silent_run, "--samples", "8")
    assert result.exit_code == 0, result.output
    assert "layer 1: never fires (its thresholds lie above all that it gets)" in result.output
    assert "layer 2: never fires (the layer below is silent)" in result.output
    assert "tried" not in result.output
    assert {path.name: path.read_bytes() for path in silent_run.iterdir()} == before


@pytest.mark.slow
def test_diagnose_tries_cures_and_writes_what_it_prints(silent_run, tmp_path):
    out = tmp_path / "doctor"
    result = call("diagnose", silent_run, "--samples", "8", "--try", "--out", out)
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {
        "settings.toml",
        "diagnosis.json",
        "diagnosis.txt",
        "diagnosis.png",
    }
    text = (out / "diagnosis.txt").read_text()
    assert result.output == f"{text}written to {out}\n"
    assert "tried for dead layer of layer 1, 2: thresholds scaled to rates of 0.15, 0.15; " in text
    told = json.loads((out / "diagnosis.json").read_text())
    assert [finding["name"] for finding in told["findings"]] == ["dead layer", "dead layer"]
    assert told["trials"][0]["name"] == "dead layer"
    assert call("diagnose", silent_run, "--out", out).exit_code != 0  # it exists


@pytest.mark.slow
def test_diagnose_leaves_nothing_where_it_fails(silent_run, tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("neurolsc.cli.commands.write_json", fail)
    result = call("diagnose", silent_run, "--samples", "8", "--out", tmp_path / "doctor")
    assert result.exit_code != 0 and "disk full" in result.output
    assert not list(tmp_path.iterdir())


def test_diagnose_reads_the_history_of_a_run(silent_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(silent_run, run)
    history = [{"train_loss": loss} for loss in (2.3, 2.4, 2.5)]
    (run / "history.json").write_text(json.dumps({"history": history}))
    result = call("diagnose", run, "--samples", "8")
    assert "network: the training loss only grew, from 2.3 to 2.5 in 3 epochs" in result.output


def test_diagnose_refuses_what_is_no_run(tmp_path):
    result = call("diagnose", tmp_path)
    assert result.exit_code != 0
    assert "is not the folder of a finished run" in result.output


def test_other_cells_are_trained_by_name(tmp_path):
    words = [
        "train",
        "--cell",
        "RNN",
        "--activation",
        "sigmoid",
        "--width",
        "8",
        "--epochs",
        "1",
        "--batch-size",
        "512",
    ]
    result = call(*words, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert load_network(tmp_path / "run").cells[0].activation == "sigmoid"
    result = call("train", "--cell", "GRU", "--activation", "tanh", "--out", tmp_path / "other")
    assert result.exit_code == 1
    assert "a cell GRU does not take activation" in result.output
