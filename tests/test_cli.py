"""The command line, run on the digits in the package."""

import json
import os
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

SMALL = ["--width", "8", "--layers", "2"]
QUICK = [*SMALL, "--pretrain-samples", "2", "--pretrain-times", "4"]


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("command", ["radii", "pretrain", "train", "evaluate", "demo"])
def test_every_command_explains_itself(command):
    result = call(command, "--help")
    assert result.exit_code == 0
    assert len(result.output) > 200


def test_radii_prints_a_line_per_layer_and_writes_what_it_prints(tmp_path):
    result = call("radii", *SMALL, "--samples", "2", "--times", "4", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "radius through time is held by" in result.output
    written = json.loads((tmp_path / "run/profile.json").read_text())
    assert len(written["time_mean"]) == 2
    assert (tmp_path / "run/profile.png").stat().st_size > 1000


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
        ("cell = 'ALIV'", "cell must be one of LIF, ALIFPlus, ALIFPlusMinus, got 'ALIV'"),
        ("width = ", "is not a TOML file"),
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
            "target must be a radius in (0, inf) or 'balanced', got -1.0",
        ),
        (["train", "--width", "0", "--out", "{tmp}/run"], "n_hidden must be at least 1, got 0"),
        (["radii", "--tau-v", "-3"], "tau_v must be positive and finite, got -3"),
        (["radii", "--weights", "{tmp}/nothing"], "nothing"),
        (["evaluate", "{tmp}"], "is not the folder of a finished run"),
        (["radii", "--out", "{tmp}"], "exists already"),
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
    assert "cannot write the run folder" in result.output


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
