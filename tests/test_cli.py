"""The command line, run on the digits in the package."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import neurolsc
from neurolsc.cli import app, commands
from neurolsc.experiment import (
    DataSettings,
    Experiment,
    InitSettings,
    NetworkSettings,
    Outcome,
    TrainSettings,
)
from neurolsc.experiment.run import NETWORK, SETTINGS, run_folder
from neurolsc.export import from_nir, read_netx
from neurolsc.neurons import cell as registry
from neurolsc.stability import truncation_errors
from neurolsc.training import TrainResult
from tests.patterns import names, refused, succeed
from tests.sweeps.grids import Here
from tests.words import draw_words, write_words

SMALL = ["--width", "8", "--layers", "2"]
DIGITS = ["--data", "shd", "--channels", "70", "--dt", "0.05", "--repeat", "1"]
SPOKEN = [*SMALL, *DIGITS]


def test_every_command_explains_itself_with_each_setting_under_the_heading_of_its_kind():
    for command in app.commands:
        assert len(succeed(command, "--help")) > 200
    headings = ["Options", "The network", "The data", "The initialisation", "Radii before training", "The training"]
    text = succeed("train", "--help")
    parts = [text.index(f"\n{heading}:\n") for heading in headings]
    assert parts == sorted(parts)
    sections = [text[a:b] for a, b in zip(parts, [*parts[1:], len(text)], strict=True)]
    flags = {"--out": 0, "--width": 1, "--split-by": 2, "--init": 3, "--rule": 4, "--lr": 5}
    assert all([f"\n  {flag} " in section for section in sections].index(True) == i for flag, i in flags.items())
    assert "shd, text: share of" in " ".join(sections[2].split())
    assert "None" not in sections[4]  # which no flag takes


# ---- settings


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("widht = 6", "settings.toml: unknown setting widht; known are cell, layers, width"),
        ("width = 'six'", "width must be int, got 'six'"),
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
        (["train", "--cell", "LIF", "--tau-theta", "7", *OUT], "a cell LIF does not take tau_theta."),
        (["radii", "--width", "0"], "width must be at least 1, got 0."),
        (["train", "--layers", "0", *OUT], "layers must be at least 1, got 0."),
        (["train", "--seed", "-1", *OUT], "seed must be at least 0, got -1."),
        (["train", "--seed", str(2**64), *OUT], "seed must be below 17592186044416, got 18446744073709551616."),
        (["radii", "--device", "cuda:99"], "torch cannot use the device 'cuda:99' here"),
        (["radii", "--cell", "no_such_module:Cell"], "there is no cell 'no_such_module:Cell': No module named"),
        (["radii", "sl-mnist-alif", "--width", "8"], "sl-mnist-alif is a whole network; leave out --width."),
        (["radii", "spoken-digits-alif"], "reads 140 inputs, and data = sl-mnist have 784"),
        (["train", "--cell", "Leaky", *OUT], "; Leaky of other libraries is LIF here."),
        (["train", "--cell", "Synaptic", *OUT], "; Synaptic of other libraries is CubaLIF here."),
        (
            ["train", "--data", "shd", "--root", "{tmp}/new", *OUT],
            "/new. Make the folder first, and what is missing is",
        ),
        (["radii", "--root", "{tmp}/new"], "/new. Make the folder first, and what is missing is"),
    ],
)
def test_bad_input_is_one_clear_line_and_leaves_no_run(tmp_path, command, words):
    assert words in refused(*(word.format(tmp=tmp_path) for word in command))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["radii", "diagnose", "evaluate", "export"])
@pytest.mark.parametrize(("name", "reader"), [("a.nir", "from_nir"), ("a.net", "read_netx")])
def test_a_file_of_a_network_is_sent_to_what_reads_it(tmp_path, command, name, reader):
    (tmp_path / name).touch()
    rest = ["--to", "nir"] if command == "export" else []
    assert f"{name} holds a network, but no run: in Python neurolsc.export.{reader}(path" in " ".join(
        refused(command, tmp_path / name, *rest).split()
    )


# ---- radii, pretrain, train, evaluate


def test_radii_measures_a_new_network_a_run_a_saved_one_and_what_an_initialisation_leaves(tmp_path):
    """Each as the library measures it: the run with its own data, split and seed."""
    data = DataSettings("shd", channels=70, dt=0.05, repeat=1)
    fresh = Experiment(NetworkSettings(width=8, seed=3), data, init=InitSettings("FiringRate(0.2)"))
    network = fresh.run(tmp_path / "run").network
    ours = str(neurolsc.radius_profile(network, fresh.first_inputs("train", 2), steps=4, seed=3))
    assert "time radius, by term" in ours
    few = ["--samples", "2", "--times", "4"]
    flags = [*DIGITS, "--seed", "3"]
    assert ours in succeed("radii", tmp_path / "run", *few)
    assert ours in succeed("radii", tmp_path / "run" / "network.safetensors", *few, *flags)
    assert ours in succeed("radii", "--width", "8", "--init", "FiringRate(0.2)", *few, *flags)
    out = tmp_path / "matched"
    assert ours not in succeed("radii", tmp_path / "run", "--init", "FiringRate(0.4)", *few, "--out", out)
    assert 'init = "FiringRate(0.4)"' in (out / "settings.toml").read_text()
    assert len(json.loads((out / "profile.json").read_text())["time_mean"]) == 2
    assert (out / "profile.png").stat().st_size > 1000


@pytest.mark.parametrize("command", [["radii"], ["train"], ["pretrain", "--target", "0.5"]])
def test_a_folder_that_exists_is_refused_before_anything_is_computed(tmp_path, monkeypatch, command):
    monkeypatch.setattr(Experiment, "build", None)
    assert f"{tmp_path} exists already; choose another folder." in refused(*command, "--out", tmp_path)


def test_radii_says_how_many_steps_back_the_gradient_has_to_go():
    data = DataSettings("jsb")
    init = InitSettings("FiringRate(0.2)")
    experiment = Experiment(NetworkSettings(cell="LIF", tau_v=5.0, width=8), data, init=init)
    x, (_, targets, *_) = experiment.first_inputs("train", 2), experiment.first_samples("train", 2)
    found = truncation_errors(experiment.begin()[0], x, lambda o: data.task.loss(o, targets[: len(x)]))
    assert all(1 < k < len(x) for k in found.needed())
    flags = ["--cell", "LIF", "--tau-v", "5", "--width", "8", "--init", init.init, "--samples", "2", "--times", "2"]
    assert str(found) in succeed("radii", *flags, "--data", "jsb", "--truncation")


def test_a_network_is_pretrained_trained_and_scored(tmp_path):
    half, run = tmp_path / "half", tmp_path / "run"
    words = [*SPOKEN, "--pretrain-samples", "2", "--pretrain-times", "4", "--method", "scale"]
    assert "converged" in succeed("pretrain", *words, "--target", "0.5", "--out", half)
    assert names(half) >= {"settings.toml", "radii_before.png", "pretraining.json"}
    reported = json.loads((half / "radii_after.json").read_text())["time_mean"]
    assert all(abs(radius - 0.5) < 0.05 for radius in reported)
    words = ["--weights", half / "network.safetensors", *DIGITS, "--batch-size", "64", "--out", run]
    succeed("train", *words, "--epochs", "2")
    assert (run / "history.csv").read_text().count("\n") == 3
    succeed("evaluate", run)
    scores = json.loads((run / "test.json").read_text())
    data = DataSettings("shd", channels=70, dt=0.05, repeat=1).load("test")
    assert scores["mode_accuracy"] == neurolsc.evaluate(neurolsc.load(run / "network.safetensors"), data).mode_accuracy


@pytest.fixture
def taken(monkeypatch) -> list[Experiment]:
    """The experiments of commands, which are not run."""
    found: list[Experiment] = []
    best = TrainResult([{"validation_mode_accuracy": 0.1}], 1, False)
    monkeypatch.setattr(Experiment, "run", lambda self, *_, **__: found.append(self) or Outcome(None, None, best))
    return found


def test_settings_come_from_flags_else_from_the_file_else_from_defaults(tmp_path, taken):
    (tmp_path / "settings.toml").write_text('width = 6\nlayers = 1\ncell = "LIF"\nclip_spectrum = 0.9\n')
    words = ["--layers", "2", "--init", "Orthogonal() + FiringRate(0.15)", "--clip-gradient", "2"]
    output = succeed("train", "--config", tmp_path / "settings.toml", *words, "--out", tmp_path / "run")
    assert "best epoch 1: validation mode accuracy 10.0%" in output
    (experiment,) = taken
    assert experiment.network == NetworkSettings(cell="LIF", width=6, layers=2)
    assert experiment.init.init == "Orthogonal() + FiringRate(0.15)"
    assert experiment.training == TrainSettings(clip_gradient=2.0, clip_spectrum=0.9)


def test_a_run_for_a_chip_is_exported_as_it_is(tmp_path):
    succeed("train", "--for", "netx", *SPOKEN, "--epochs", "1", "--tau-v", "9", "--out", tmp_path / "run")
    settings = Experiment.of(tmp_path / "run").settings
    assert settings.items() >= {"cell": "LIF", "tau_v": 9.0, "lr": 2e-3, "clip_weight": 3.0}.items()
    succeed("export", tmp_path / "run", "--to", "netx", "--samples", "20")


def test_for_a_chip_a_network_that_is_read_or_set_to_a_target_is_not_initialised_anew(tmp_path, taken):
    network = NetworkSettings(cell="LIF", width=8, tau_v=9.0).build(784, 10)
    neurolsc.save(network, tmp_path / "saved")
    words = ["train", "--for", "netx", "--out", tmp_path / "run"]
    assert "--for netx sets --lr 0.002 --clip-weight 3.0\n" in succeed(*words, "--weights", tmp_path / "saved")
    assert "--init" not in succeed(*words, "--width", "8", "--target", "0.5")
    succeed(*words, "--width", "8")
    succeed(*words, "--weights", tmp_path / "saved", "--init", "Identity()")
    assert [experiment.initialiser for experiment in taken] == ["Default", "Default", "Identity()", "Identity()"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "jsb"], "data = jsb have targets at every step, .*: train on other data, such as sl-mnist"),
        (
            ["--data", "mnist", "--layer-delay", "0"],
            r"an input is 0\.\d+, .* take 0 or 1: train on other data, such as",
        ),
        ([*DIGITS, "--no-binary"], r"an input is [2-9], exported networks take 0 or 1: train with --binary"),
        ([*DIGITS, "--window", "0"], "samples have unequal lengths, export needs one length: train with --window 1"),
    ],
)
def test_data_that_do_not_fit_a_chip_are_refused_at_once_with_a_cure_that_they_have(tmp_path, words, message):
    output = refused("train", "--for", "netx", *SMALL, *words, "--out", tmp_path / "run")
    assert re.search(message, " ".join(output.split()))
    assert not list(tmp_path.iterdir())


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


# ---- Ctrl-C


@pytest.mark.long
def test_a_folder_in_use_is_refused_and_ctrl_c_prints_the_command_that_goes_on(tmp_path, capfd):
    run = tmp_path / "my run"
    words = ["train", *SPOKEN, "--epochs", "30", "--patience", "30", "--lr", "0.01", "--out", run]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else a child in the background ignores it
    command = [sys.executable, "-m", "neurolsc", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 120
    while not (tmp_path / "my run.partial" / "train.checkpoint").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    for lr in ("0.3", "0.01"):
        assert "my run is in use" in refused("train", *SPOKEN, "--lr", lr, "--out", run)
    process.send_signal(signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 130, output
    assert "its checkpoints are in" in output and "Traceback" not in output
    line = output.strip().splitlines()[-1]
    assert shlex.split(line) == ["neurolsc", *map(str, words)]
    capfd.readouterr()
    succeed(*shlex.split(line)[1:])
    assert "epoch 1/30" not in capfd.readouterr().err  # it is not repeated
    assert names(tmp_path) == {"my run"}
    assert "lr = 0.01" in (run / "settings.toml").read_text()


# ---- a cell of one's own


def test_a_cell_of_ones_own_in_the_folder_of_the_command_is_trained_scored_and_measured(tmp_path, monkeypatch):
    (tmp_path / "my_own.py").write_text("from tests.patterns import Leak\nclass OwnLeak(Leak): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part])
    words = ["--cell", "my_own:OwnLeak", "--width", "8", "--layers", "1", *DIGITS]
    succeed("train", *words, "--epochs", "1", "--init", "Default", "--out", "run")
    history = json.loads(Path("run/history.json").read_text())["history"]
    assert history[0]["firing_rate"] == [None]  # it does not spike
    registry.CELLS.pop("OwnLeak")  # as in a new process
    assert succeed("evaluate", "run").splitlines()[2].split()[-3:] == ["-", "-", "-"]
    registry.CELLS.pop("OwnLeak")
    few = ["--weights", "run/network.safetensors", "--samples", "2", "--times", "3", *DIGITS]
    assert "not known" in succeed("radii", "--cell", "my_own:OwnLeak", *few)  # what holds its radius
    registry.CELLS.pop("OwnLeak")


# ---- spoken digits


def test_a_run_on_spoken_digits_notes_its_split_and_opens_the_test_file_in_evaluate_only(tmp_path):
    root, run = tmp_path / "root", tmp_path / "run"
    write_words(root / "shd_train.h5", draw_words(40), speakers=[(7, 2, 5)[i % 3] for i in range(40)])
    (root / "shd_test.h5").write_bytes(b"")
    words = [*SPOKEN, "--root", root, "--split-by", "speaker", "--split-share", "0.25", "--epochs", "1", "--out", run]
    succeed("train", *words, "--window", "0")
    split = json.loads((run / "split.json").read_text())
    assert split["train"]["speakers"] == [2, 5] and split["validation"]["speakers"] == [7]
    assert "shd_test.h5: not a whole HDF5 file" in refused("evaluate", run)


# ---- diagnose and demo


def test_diagnose_reads_a_run_with_its_history_tries_cures_and_writes_what_it_prints(tmp_path):
    run, out = tmp_path / "run", tmp_path / "doctor"
    data = DataSettings("shd", channels=70, dt=0.05, repeat=1)
    Experiment(NetworkSettings(width=8, b_theta=100.0), data, init=InitSettings("Default")).run(run)  # silent
    history = [{"train_loss": loss} for loss in (2.3, 2.4, 2.5)]
    (run / "history.json").write_text(json.dumps({"history": history}))
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    output = succeed("diagnose", run, "--samples", "8", "--try", "--out", out)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before
    files = {"settings.toml", "diagnosis.json", "diagnosis.txt", "diagnosis.png"}
    assert names(out) == files
    text = (out / "diagnosis.txt").read_text()
    assert output == f"{text}written to {out}\n"
    assert "layer 1: never fires" in text and "layer 2: never fires" in text
    assert "network: the training loss only grew, from 2.3 to 2.5 in 3 epochs" in text
    assert "tried for dead layer of layer 1, 2" in text
    assert json.loads((out / "diagnosis.json").read_text())["trials"][0]["name"] == "dead layer"
    assert "exists already" in refused("diagnose", run, "--out", out)


@pytest.mark.long
def test_the_demo_trains_its_arms_reports_them_and_goes_on_where_it_was_stopped(tmp_path, monkeypatch):
    lif = {"init": "LayerwiseScaling(recurrence=0)", "cell": "LIF", "tau_v": 50.0, "lr": 2e-3}
    either, fixed = [{"init": "Default", "lr": 1e-2}, lif], commands.DEMO["fixed"] | {"width": 6}
    monkeypatch.setattr(commands, "DEMO", commands.DEMO | {"either": either, "fixed": fixed})
    monkeypatch.setattr(commands.experiments, "Processes", lambda _: Here())
    out = tmp_path / "demo"
    output = succeed("demo", "--out", out, "--epochs", "1", "--workers", "2")
    report = (out / "report.md").read_text()
    for arm in ("| Default | 0.01 |", "| LayerwiseScaling(recurrence=0) | 0.002 | LIF | 50 |"):
        assert arm in report and arm in output
    assert "](learning.png)" in report and (out / "learning.png").stat().st_size > 5_000
    trained = {path: path.stat().st_mtime_ns for path in out.glob("*/network.safetensors")}
    assert len(trained) == 2 and len(list(out.glob("*/test.json"))) == 2
    (out / "report.md").unlink()
    succeed("demo", "--out", out, "--epochs", "1", "--workers", "2")
    assert (out / "report.md").exists()
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/network.safetensors")} == trained


# ---- export

EXPORTED = DataSettings(data="shd", dt=0.05, channels=70, repeat=1, binary=True)
CHIP = NetworkSettings(cell="ALIFPositive", width=8, tau_v=5.0, b_theta=0.002, adaptation=0.1, reset="static")


def finished(folder: Path, network: NetworkSettings = CHIP, data: DataSettings = EXPORTED) -> Path:
    """The folder of a run, as ``neurolsc train`` leaves it."""
    with run_folder(folder, Experiment(network, data, training=TrainSettings(batch_size=64)).settings) as inside:
        neurolsc.save(network.build(data.channels, 20), inside / NETWORK)
    return folder


def test_a_run_becomes_a_file_with_its_report(tmp_path):
    run = finished(tmp_path / "run")
    output = succeed("export", run, "--to", "netx", "--samples", "6")
    out = run / "netx"
    assert names(out) == {"network.net", "report.json", "report.txt", "settings.toml"}
    report = json.loads((out / "report.json").read_text())
    assert report["decisions"]["samples"] == 6
    assert all(a["rate_integer"] > 0.01 for a in report["activity"])
    assert (out / "report.txt").read_text().strip() in output
    assert len(read_netx(out / "network.net").run(torch.zeros(20, 1, 70)).spikes) == 2
    assert "exists already" in refused("export", run, "--to", "netx", "--samples", "2", "--out", run)


def test_a_run_becomes_a_nir_file_that_gives_its_network_back(tmp_path):
    run = finished(tmp_path / "run")
    succeed("export", run, "--to", "nir", "--dt", "0.05")
    for none in ("0", "0.1"):
        assert "--dt does not fit --to netx" in refused("export", run, "--to", "netx", "--dt", none)
    assert "--samples does not fit --to nir" in refused("export", run, "--to", "nir", "--dt", "1", "--samples", "2")
    before, after = neurolsc.load(run / NETWORK), from_nir(run / "nir" / "network.nir")
    assert [type(cell) for cell in after.cells] == [neurolsc.ALIFPositive] * len(before.cells)
    assert all(torch.equal(after.state_dict()[name], value) for name, value in before.state_dict().items())


def test_fine_tuning_saves_the_network_that_is_exported(tmp_path):
    run, out = finished(tmp_path / "run"), tmp_path / "out"
    succeed("export", run, "--to", "netx", "--samples", "8", "--fine-tune", "1", "--out", out)
    assert names(out) >= {"network.net", "network.safetensors"}
    assert not list(out.glob("*.checkpoint"))
    tuned, before = (neurolsc.load(folder / NETWORK) for folder in (out, run))
    assert not torch.equal(tuned.cells[0].w_in, before.cells[0].w_in)


def test_an_export_that_was_stopped_goes_on_with_the_same_network_alone(tmp_path, monkeypatch):
    run, other = finished(tmp_path / "run"), finished(tmp_path / "other")  # of equal settings
    neurolsc.save(replace(CHIP, seed=1).build(70, 20), other / NETWORK)  # but of other weights
    words = ["--to", "netx", "--samples", "8", "--fine-tune", "1", "--out", tmp_path / "out"]

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(commands, "to_netx", stop)
        assert "its checkpoints are in" in refused("export", run, *words)
    assert "unfinished run with other settings (network was" in refused("export", other, *words)
    succeed("export", run, *words)


def test_a_simulator_that_is_missing_is_named_and_one_that_fails_leaves_no_export(tmp_path, monkeypatch):
    run = finished(tmp_path / "run")
    monkeypatch.setenv("NEUROLSC_LAVA_PYTHON", sys.executable)  # which has no Lava
    result = CliRunner().invoke(app, ["export", str(run), "--to", "netx", "--samples", "2", "--verify"])
    assert result.exit_code != 0 and "Lava failed on" in result.output  # with the simulator's own traceback
    assert names(run) == {NETWORK, SETTINGS}
    monkeypatch.setenv("NEUROLSC_LAVA_PYTHON", str(tmp_path / "nothing"))
    output = succeed("export", run, "--to", "netx", "--samples", "2", "--verify")
    assert "golden samples through the integers of the file: 2 samples of 20 steps" in output
    words = (run / "netx/report.txt").read_text().split()  # where lines are broken depends on the path
    assert "make lava-env" in " ".join(words)


@pytest.mark.parametrize(
    ("network", "data", "command", "words"),
    [
        ({"cell": "ALIFLowPass"}, {}, ["netx"], "whose step is not that of ALIF"),
        ({}, {"binary": False}, ["netx"], "exported networks take 0 or 1: train with --binary"),
        ({}, {"window": 0.0}, ["netx"], "samples have unequal lengths"),
        ({}, {}, ["netx", "--dt", "0.001"], "--dt does not fit"),
        ({}, {}, ["nir"], "--to nir needs --dt"),
    ],
)
def test_a_run_that_does_not_fit_is_refused_in_one_line_and_leaves_no_file(tmp_path, network, data, command, words):
    settings = NetworkSettings(**(CHIP.__dict__ | network)), DataSettings(**(EXPORTED.__dict__ | data))
    run = finished(tmp_path / "run", *settings)
    assert words in refused("export", run, "--to", *command)
    assert names(run) == {NETWORK, SETTINGS}
