"""Benchmarks run in worker processes, which they must reach, and keep every run in its folder."""

import importlib.util
import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import neurolsc
from neurolsc.config import DataSettings, NetworkSettings
from neurolsc.experiment import Experiment

ARMS = Path(__file__).parents[1] / "benchmarks" / "_arms.py"


@pytest.fixture
def arms(monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_arms", ARMS)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "_arms", module)
    spec.loader.exec_module(module)
    quick = {arm: settings and replace(settings, pretrain_steps=4) for arm, settings in module.ARMS.items()}
    monkeypatch.setattr(module, "ARMS", quick)
    return module


def small(arms):
    data = DataSettings(data="shd", dt=0.05, channels=70, repeat=1, split_share=0.2)
    experiment = Experiment(NetworkSettings(width=8), data, training=arms.as_the_paper(1, 32, 0.01), start=arms.LEFT)
    return arms.Benchmark("small", "a sample", experiment, chance=0.05)


def test_a_benchmark_can_be_sent_to_a_worker(arms):
    assert pickle.loads(pickle.dumps(small(arms))) == small(arms)


def test_an_arm_is_prepared_trained_and_scored_once(arms, tmp_path, monkeypatch):
    row = arms.run(small(arms), "0.5, threshold held", 3, tmp_path)
    folder = tmp_path / "0_5-threshold-held-3"
    assert row["pretraining"]["converged"] is not None
    assert all(rate > 0 for rate in row["after"]["firing_rate"])
    network = neurolsc.load(folder / "network.safetensors")
    test = small(arms).experiment.data.load("test")
    assert row["test"]["mode_accuracy"] == neurolsc.evaluate(network, test).mode_accuracy
    assert Experiment.of(folder).network.seed == 3
    assert not list(folder.glob("*.checkpoint"))
    monkeypatch.setattr(arms, "prepare", None)  # a finished run is read
    assert arms.run(small(arms), "0.5, threshold held", 3, tmp_path) == json.loads(json.dumps(row))


def test_the_control_fires_like_the_network_whose_radii_were_set(arms):
    experiment = small(arms).experiment
    inputs = neurolsc.datasets.input_batches(experiment.data.load("train"), 32, seed=0)
    control, about = arms.prepare(experiment, "thresholds scaled", inputs)
    default = experiment.build()
    wanted, reached = about["wanted_rates"], arms.look(control, inputs[0])["firing_rate"]
    assert reached == pytest.approx(wanted, rel=0.2)
    assert (control.cells[0].w_in == default.cells[0].w_in).all()
    assert arms.look(default, inputs[0])["firing_rate"] != pytest.approx(wanted, rel=0.2)
