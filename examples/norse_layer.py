"""Can a norse network with our adaptive neurons be brought to radius 0.5 and then trained as any
other? Takes 30 s on a CPU."""

import sys

import torch
from norse.torch import Lift, LILinearCell, SequentialState
from torch.nn.functional import cross_entropy

from neurolsc import Network, pretrain, radius_profile
from neurolsc.datasets import SpikeLatencyMNIST, collate, input_batches
from neurolsc.interop.norse import ALIFPlusRecurrentCell

WIDTH, UPDATES, BATCH, SEED = 64, 30, 64, 0

train, test = SpikeLatencyMNIST.embedded("train"), SpikeLatencyMNIST.embedded("validation")

torch.manual_seed(SEED)
cell = ALIFPlusRecurrentCell(784, WIDTH)
net = Lift(SequentialState(cell, LILinearCell(WIDTH, 10)))

# The layer is one of our cells as well: a Network over it measures and sets its radius, in place.
ours = Network([cell], n_out=10, layer_delay=0)
batches = input_batches(train, 32, seed=SEED)
before = radius_profile(ours, batches[0], steps=16).time_mean[0]
result = pretrain(ours, batches, target=0.5, seed=SEED, progress=False)
after = result.profile.time_mean[0]
print(f"radius through time {before:.2f} -> {after:.2f} in {result.steps} steps")


def decide(x: torch.Tensor) -> torch.Tensor:
    """The mean voltage of each output (B, 10), scaled to differ enough for the cross-entropy."""
    voltages, _ = net(x[::2].float())
    return voltages.mean(0) * 3


optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for update in range(UPDATES):
    x, labels = collate([train[(update * BATCH + i) % len(train)] for i in range(BATCH)])
    loss = cross_entropy(decide(x), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

x, labels = collate([test[i] for i in range(len(test))])
with torch.no_grad():
    accuracy = (decide(x).argmax(1) == labels).float().mean().item()
print(f"loss {loss.item():.2f}, {accuracy:.0%} of {len(test)} unseen digits")

assert result.converged
assert not cell.recurrent_weights.diagonal().any()
assert accuracy > 0.5

title = f"{WIDTH} ALIFPlus in norse, before the training, spike-latency MNIST, seed {SEED}"
result.plot(*sys.argv[1:], title=title)
