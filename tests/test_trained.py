"""The trained networks in the package, on the test samples in the package."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import neurolsc
from neurolsc.datasets import SHD, SpikeLatencyMNIST, collate
from neurolsc.export import QuantizationAware, to_netx
from neurolsc.io import TRAINED, trained


@dataclass(frozen=True)
class Known:
    """A shipped network, and what it was measured to do: bounds a little below that."""

    data: Any
    accuracy: float
    integer_gap: float


KNOWN = {
    "sl-mnist-alif": Known(SpikeLatencyMNIST.embedded, 0.92, 0.02),
    "spoken-digits-alif": Known(
        lambda split: SHD.embedded(split, dt=0.02, channels=140, repeat=1, binary=True), 0.75, 0.1
    ),
}


def test_these_are_the_networks_in_the_package(tmp_path, monkeypatch):
    assert trained() == sorted(KNOWN)
    with pytest.raises(FileNotFoundError, match=r"\(sl-mnist-alif, spoken-digits-alif\): 'shd-alif'"):
        neurolsc.load("shd-alif")
    monkeypatch.chdir(tmp_path)
    neurolsc.save(neurolsc.Network([neurolsc.LIF(3, 2)], 2), "sl-mnist-alif")
    assert neurolsc.load("sl-mnist-alif").n_in == 3  # a file comes first
    assert {file.suffix for file in TRAINED.iterdir()} == {".safetensors", ".md"}


@pytest.mark.parametrize("name", KNOWN)
def test_each_classifies_samples_that_it_has_not_seen_with_firing_layers(name):
    known = KNOWN[name]
    found = neurolsc.evaluate(neurolsc.load(name), known.data("test"))
    assert found.mode_accuracy > known.accuracy
    assert all(0.02 < rate < 0.5 for rate in found.firing_rate)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_each_can_be_exported_and_its_integers_decide_like_it(name, tmp_path):
    known, network = KNOWN[name], neurolsc.load(name)
    validation, test = (
        collate(known.data(s).__getitems__(range(len(known.data(s)))))[0] for s in ("validation", "test")
    )
    report = to_netx(network, tmp_path / "a.net", validation)
    assert all(a.extremes.reach < 1 and a.rate_integer > 0.02 for a in report.activity or ())
    labels = torch.as_tensor([label for _, label in (known.data("test")[i] for i in range(test.shape[1]))])
    with torch.no_grad():
        integer = QuantizationAware(network, validation).run(test)
    exact = neurolsc.evaluate(network, known.data("test")).mode_accuracy
    assert neurolsc.metrics.mode_accuracy(integer.logits, labels) > exact - known.integer_gap
