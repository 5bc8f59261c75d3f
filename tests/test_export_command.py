"""``neurolsc export``, on small untrained networks for the spoken digits in the package."""

import json
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import neurolsc
from neurolsc import runs
from neurolsc.cli import app
from neurolsc.config import DataSettings, NetworkSettings, TrainSettings, as_dict
from neurolsc.export import from_nir, read_netx

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
    assert "verified by: not run: no Lava environment" in result.output
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
            "whose step is not that of ALIF; only LIF and CubaLIF and ALIF and LI can be exported",
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
