"""``neurolsc export``, on small untrained networks for the spoken digits in the package."""

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import neurolsc
from neurolsc.cli import app
from neurolsc.experiment import DataSettings, Experiment, NetworkSettings, TrainSettings
from neurolsc.experiment.run import NETWORK, SETTINGS, run_folder
from neurolsc.export import from_nir, read_netx
from tests.patterns import names, refused, succeed

DATA = DataSettings(data="shd", dt=0.05, channels=70, repeat=1, binary=True)
CHIP = NetworkSettings(cell="ALIFPositive", width=8, tau_v=5.0, b_theta=0.002, adaptation=0.1, reset="static")


def finished(folder: Path, network: NetworkSettings = CHIP, data: DataSettings = DATA) -> Path:
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


def test_a_simulator_that_is_missing_is_named_and_one_that_fails_leaves_no_export(tmp_path, monkeypatch):
    run = finished(tmp_path / "run")
    monkeypatch.setenv("NEUROLSC_LAVA_PYTHON", sys.executable)  # which has no Lava
    result = CliRunner().invoke(app, ["export", str(run), "--to", "netx", "--samples", "2", "--verify"])
    assert result.exit_code != 0 and "Lava failed on" in result.output  # with the simulator's own traceback
    assert names(run) == {NETWORK, SETTINGS}
    monkeypatch.setenv("NEUROLSC_LAVA_PYTHON", str(tmp_path / "nothing"))
    output = succeed("export", run, "--to", "netx", "--samples", "2", "--verify")
    assert "golden samples through the integers of the file: 2 samples of 20 steps" in output
    assert "make lava-env" in (run / "netx/report.txt").read_text()


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
    settings = NetworkSettings(**(CHIP.__dict__ | network)), DataSettings(**(DATA.__dict__ | data))
    run = finished(tmp_path / "run", *settings)
    assert words in refused("export", run, "--to", *command)
    assert names(run) == {NETWORK, SETTINGS}
