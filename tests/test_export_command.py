"""``neurolsc export``, on small untrained networks for the spoken digits in the package."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from torch import nn

import neurolsc
from neurolsc import LIF, Network
from neurolsc.cli import app
from neurolsc.experiment import run as runs
from neurolsc.experiment.config import DataSettings, NetworkSettings, TrainSettings, as_dict
from neurolsc.export import from_nir, read_netx
from neurolsc.neurons import LI

DATA = DataSettings(data="shd", dt=0.05, channels=70, repeat=1, binary=True)
NETWORK = NetworkSettings(cell="ALIFPositive", width=8, tau_v=5.0, b_theta=0.002, adaptation=0.1, reset="static")


def finished(folder: Path, network: NetworkSettings = NETWORK, data: DataSettings = DATA) -> Path:
    """The folder of a run, as ``neurolsc train`` leaves it."""
    with runs.run_folder(folder, as_dict(network, data, TrainSettings(batch_size=64))) as inside:
        neurolsc.save(network.build(data.channels if data.data == "shd" else 784, 20), inside / runs.NETWORK)
    return folder


def export(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, words)])


def test_a_run_becomes_a_file_with_its_report(tmp_path):
    run = finished(tmp_path / "run")
    result = export(run, "--to", "netx", "--samples", "6")
    assert result.exit_code == 0, result.output
    out = run / "netx"
    assert {p.name for p in out.iterdir()} == {
        "network.net",
        "report.json",
        "report.txt",
        "report.png",
        "settings.toml",
    }
    report = json.loads((out / "report.json").read_text())
    assert report["decisions"]["samples"] == 6
    assert report["verification"] == "not run"
    assert all(a["rate_integer"] > 0.01 for a in report["activity"])
    assert (out / "report.txt").read_text().strip() in result.output
    x = torch.zeros(20, 1, 70)
    assert len(read_netx(out / "network.net").run(x).spikes) == 2


def test_a_run_becomes_a_nir_file_that_gives_its_network_back(tmp_path):
    run = finished(tmp_path / "run")
    result = export(run, "--to", "nir", "--dt", "0.05")
    assert result.exit_code == 0, result.output
    before, after = neurolsc.load(run / runs.NETWORK), from_nir(run / "nir" / "network.nir")
    assert [type(cell) for cell in after.cells] == [neurolsc.ALIFPositive] * len(before.cells)
    wanted, got = before.state_dict(), after.state_dict()
    assert all(torch.equal(got[name], value) for name, value in wanted.items())


def test_fine_tuning_keeps_the_network_that_is_exported_and_what_was_before(tmp_path):
    run = finished(tmp_path / "run")
    result = export(run, "--to", "netx", "--samples", "8", "--fine-tune", "1", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "before fine-tuning: " in result.output
    files = {p.name for p in (tmp_path / "out").iterdir()}
    assert files >= {"network.net", "network.safetensors", "report_before.json"}
    assert not [name for name in files if name.endswith(".checkpoint")]
    tuned, before = (neurolsc.load(f / runs.NETWORK) for f in (tmp_path / "out", run))
    assert not torch.equal(tuned.cells[0].w_in, before.cells[0].w_in)
    assert "lr = 0.001" in (tmp_path / "out" / "settings.toml").read_text()  # a fifth of the run's


def test_without_lava_the_file_is_written_and_the_report_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setenv("NEUROLSC_LAVA_PYTHON", str(tmp_path / "nothing"))
    result = export(finished(tmp_path / "run"), "--to", "netx", "--samples", "2", "--verify")
    assert result.exit_code == 0, result.output
    assert "verified by: golden samples through the integers of the file: 2 samples of 20 steps" in result.output
    assert "Lava: not run: no Lava environment" in result.output
    assert "make lava-env" in (tmp_path / "run/netx/report.txt").read_text()


def test_a_simulator_that_fails_leaves_no_export(tmp_path, monkeypatch):
    monkeypatch.setenv("NEUROLSC_LAVA_PYTHON", sys.executable)  # which has no Lava
    result = export(finished(tmp_path / "run"), "--to", "netx", "--samples", "2", "--verify")
    assert result.exit_code != 0
    assert "Lava failed on" in result.output
    assert {p.name for p in (tmp_path / "run").iterdir()} == {runs.NETWORK, runs.SETTINGS}


@pytest.mark.parametrize(
    ("network", "data", "words", "told"),
    [
        (
            {"cell": "ALIFLowPass"},
            {},
            [],
            "whose step is not that of ALIF; only LIF, CubaLIF, ALIF, LI can be exported",
        ),
        ({"cell": "ALIFLowPass"}, {}, ["--to", "nir", "--dt", "0.001"], "whose step is not that of ALIF"),
        ({"cell": "ALIFPlusMinus"}, {}, [], "Train neurolsc.ALIFPositive (--cell ALIFPositive)"),
        ({"reset": "subtract"}, {}, [], "train with reset='static'"),
        ({"readout_bias": True}, {}, [], "the readout has a bias"),
        ({}, {"binary": False}, [], "exported networks take 0 or 1: train with --binary"),
        ({}, {"window": 0.0}, [], "samples have unequal lengths"),
        ({}, {}, ["--dt", "0.001"], "--dt is not for --to netx"),
        ({}, {}, ["--to", "nir", "--verify"], "--verify is not for --to nir"),
        ({}, {}, ["--to", "nir"], "--to nir needs --dt"),
        ({}, {}, ["--samples", "0"], "samples"),
    ],
)
def test_what_cannot_be_exported_is_one_clear_line_and_leaves_no_file(tmp_path, network, data, words, told):
    settings = NetworkSettings(**(NETWORK.__dict__ | network)), DataSettings(**(DATA.__dict__ | data))
    run = finished(tmp_path / "run", *settings)
    result = export(run, "--to", "netx", *words)
    assert result.exit_code != 0
    assert told in result.output
    assert "Traceback" not in result.output
    assert {p.name for p in run.iterdir()} == {runs.NETWORK, runs.SETTINGS}


def test_an_existing_export_is_not_written_over(tmp_path):
    run = finished(tmp_path / "run")
    result = export(run, "--to", "netx", "--samples", "2", "--out", run)
    assert result.exit_code != 0
    assert "exists already" in result.output


def test_a_folder_without_a_run_is_refused(tmp_path):
    assert "is not the folder of a finished run" in export(tmp_path, "--to", "netx").output


def a_file(folder: Path) -> Path:
    """A network that reads 20 inputs and ends in an integrator, as neurolsc.save writes it."""
    torch.manual_seed(0)
    network = Network([LIF(20, 12, tau_v=5.0), LI(12, 4)], nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        network.readout.weight.copy_(torch.eye(4))
        network.cells[0].w_in.mul_(4)
    neurolsc.save(network, folder / "net.safetensors")
    return folder / "net.safetensors"


def test_a_saved_network_becomes_a_file_compared_on_samples_that_are_given(tmp_path):
    file, x = a_file(tmp_path), (torch.rand(50, 3, 20) < 0.3).numpy()
    np.save(tmp_path / "x.npy", x)
    result = export(file, "--to", "netx", "--inputs", tmp_path / "x.npy")
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "net-netx" / "report.json").read_text())
    assert report["decisions"]["samples"] == 3
    assert report["activity"][0]["rate_integer"] > 0.05
    run = read_netx(tmp_path / "net-netx" / "network.net").run(torch.from_numpy(x))
    assert run.logits.abs().max() > 1000
    assert export(file, "--to", "netx", "--out", tmp_path / "without").exit_code == 0
    assert export(file, "--to", "nir", "--dt", "0.001").exit_code == 0
    again = from_nir(tmp_path / "net-nir" / "network.nir")
    before = neurolsc.load(file).state_dict()
    assert all(torch.equal(value, before[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--samples", "3"], "--samples needs the data of a run"),
        (["--fine-tune", "1"], "--fine-tune needs the data of a run"),
        (["--verify"], "give --inputs"),
        (["--inputs", "wide.npy"], "of shape (T, B, 20), got (5, 1, 30)"),
        (["--inputs", "graded.npy"], "with values from 0.5 to 0.5"),
        (["--inputs", "net.safetensors"], "must be an .npy file of spikes"),
    ],
)
def test_what_does_not_fit_a_saved_network_is_one_clear_line_and_leaves_no_file(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = a_file(tmp_path)
    np.save(tmp_path / "wide.npy", np.zeros((5, 1, 30)))
    np.save(tmp_path / "graded.npy", np.full((5, 1, 20), 0.5))
    before = {*tmp_path.iterdir()}
    result = export(file, "--to", "netx", *words)
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())
    assert "Traceback" not in result.output
    assert {*tmp_path.iterdir()} == before
