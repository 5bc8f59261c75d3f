"""Does a network spike alike after a NIR file? Takes 10 s on a CPU."""

import sys
import tempfile
from pathlib import Path

import torch

from neurolsc import LIF, ALIFPlus, Network
from neurolsc.datasets import SpikeLatencyMNIST, collate
from neurolsc.export import from_nir, to_nir
from neurolsc.plots import plot_raster

WIDTH, SEED = 48, 0
GAIN = 4.0  # on the weights into each layer, so that a network that never learned fires
DT = 1e-3  # seconds per step

digits = SpikeLatencyMNIST.embedded("test")
x, _ = collate([digits[i] for i in range(8)])
torch.manual_seed(SEED)
networks = {
    "LIF": Network([LIF(784, WIDTH, tau_v=5.0), LIF(WIDTH, WIDTH, tau_v=5.0)], n_out=10),
    "LIF, reset to zero": Network([LIF(784, WIDTH, tau_v=5.0, reset="zero")], n_out=10),
    "ALIF": Network([ALIFPlus(784, WIDTH, tau_v=5.0, reset="static")], n_out=10),
}
drawn = {"input": x[:, 0]}
for name, network in networks.items():
    with torch.no_grad():
        for cell in network.cells:
            cell.w_in.mul_(GAIN)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "network.nir")
        graph = to_nir(network, path, dt=DT)
        again = from_nir(path)
    here, there = network.run(x), again.run(x)
    drawn[f"{name}, layer {len(there.spikes)}"] = there.spikes[-1][:, 0].detach()
    rates = ", ".join(f"{z.mean():.3f}" for z in here.spikes)
    print(f"{name}: nodes {', '.join(graph.nodes)}; spikes per neuron and step {rates}")
    assert all(torch.equal(a, b) for a, b in zip(here.spikes, there.spikes, strict=True))
    assert torch.equal(here.logits, there.logits)
    print("  read back: the same spikes and logits")

title = f"Networks of 1 or 2 layers of {WIDTH}, untrained, read back from NIR files, spike-latency MNIST, seed {SEED}"
plot_raster(drawn, *sys.argv[1:], title=title)
