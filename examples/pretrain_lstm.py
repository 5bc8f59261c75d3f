"""Can one added call make a torch.nn.LSTM stable, over a hundred steps? Takes 20 s on a CPU."""

import sys

import torch
from torch import nn

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches

WIDTH, TARGET, SEED = 48, 0.5, 0

torch.manual_seed(SEED)
lstm, out = nn.LSTM(784, WIDTH, num_layers=2), nn.Linear(WIDTH, 10)
batches = [x.float() for x in input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=SEED)]
network = neurolsc.wrap([lstm, out])  # in the order in which a step goes through them
print(f"as PyTorch makes it\n{neurolsc.radius_profile(network, batches[0][:, :4], steps=16)}\n")

result = neurolsc.pretrain(network, batches, target=TARGET, seed=SEED, max_steps=100, progress=False)  # the added call

print(result)
forget = torch.sigmoid(lstm.bias_ih_l1 + lstm.bias_hh_l1)[WIDTH : 2 * WIDTH].mean()
print(f"\nthe second layer's forget gates rest at {forget:.2f}; they began at 0.50")
assert result.converged
torch.testing.assert_close(network(batches[0]), out(lstm(batches[0])[0]))

result.plot(*sys.argv[1:], title=f"2 x {WIDTH} torch.nn.LSTM, spike-latency MNIST, seed {SEED}")
