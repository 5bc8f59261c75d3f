"""Do a trained network's spikes survive as integers, and does Lava agree? Takes 60 s on a CPU."""

import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Subset

from neurolsc import ALIFPositive, Network, evaluate, train
from neurolsc.datasets import SpikeLatencyMNIST, collate
from neurolsc.export import QuantizationAware, read_netx, to_netx, verify
from neurolsc.metrics import mode_accuracy
from neurolsc.plots import plot_raster

WIDTH, EPOCHS, TUNED, SIMULATED = 64, 5, 640, 10

data = {split: SpikeLatencyMNIST.embedded(split) for split in ("train", "validation", "test")}
calibration, known = collate(data["validation"].__getitems__(range(50)))
x, labels = collate(data["test"].__getitems__(range(SIMULATED)))
rows: list[tuple[str, str, str, str]] = []


def export(name: str, network: Network, file: Path) -> None:
    """Write the file, step it in Lava where that is installed, and note the accuracies."""
    report = to_netx(network, file, calibration, labels=known)
    exact, integer = (evaluate(n, data["test"]) for n in (network, QuantizationAware(network, calibration)))
    simulated = "not run"
    found = verify(file, x)  # what the file holds is replayed without Lava, too
    assert found.exact, found
    if found.simulated:
        simulated = f"{mode_accuracy(found.logits, labels):.1%} of {SIMULATED}, every spike equal"
    rows.append((name, f"{exact.mode_accuracy:.1%}", f"{integer.mode_accuracy:.1%}", simulated))
    rates = ", ".join(f"{a.rate_float:.3f} / {a.rate_integer:.3f}" for a in report.activity)
    print(f"{name}: spikes per neuron and step, float / integer: {rates}")


torch.manual_seed(0)
settings = {"tau_v": 20.0, "b_theta": 0.002, "adaptation": 0.2, "reset": "static"}
network = Network([ALIFPositive(784, WIDTH, **settings), ALIFPositive(WIDTH, WIDTH, **settings)], n_out=10)
train(network, data["train"], data["validation"], epochs=EPOCHS, batch_size=32, lr=5e-3)

with tempfile.TemporaryDirectory() as folder:
    export("trained", network, Path(folder, "trained.net"))
    some = Subset(data["train"], range(TUNED))
    train(QuantizationAware(network, calibration), some, data["validation"], epochs=1, batch_size=32, lr=1e-3)
    export("fine-tuned", network, Path(folder, "tuned.net"))
    integers = read_netx(Path(folder, "tuned.net")).run(x).spikes

print(f"\n{'':12}{'float':>8}{'integer':>10}   Lava's simulator")
for name, exact, integer, simulated in rows:
    print(f"{name:12}{exact:>8}{integer:>10}   {simulated}")

with torch.no_grad():
    spikes = {"floats": network.run(x).spikes, "integers": integers}
rasters = {f"layer {i + 1}, {kind}": z[i][:, 0] for i in (0, 1) for kind, z in spikes.items()}
title = f"2 x {WIDTH} ALIFPositive, fine-tuned through the integers, spike-latency MNIST, seed 0"
plot_raster(rasters, *sys.argv[1:], title=title)
