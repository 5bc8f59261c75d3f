"""Can one added call make a network of snnTorch's tutorials stable? Takes 20 s on a CPU."""

import sys

import snntorch as snn
import torch
from torch import nn

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches

WIDTH, TARGET, SEED = 64, 0.5, 0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(784, WIDTH)
        self.lif1 = snn.RLeaky(beta=0.9, linear_features=WIDTH)
        self.fc2 = nn.Linear(WIDTH, WIDTH)
        self.lif2 = snn.Leaky(beta=0.9)
        self.fc3 = nn.Linear(WIDTH, 10)

    def forward(self, x):
        spk1, mem1 = self.lif1.init_rleaky()
        mem2 = self.lif2.init_leaky()
        logits = []
        for step in x:
            spk1, mem1 = self.lif1(self.fc1(step), spk1, mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            logits.append(self.fc3(spk2))
        return torch.stack(logits)


torch.manual_seed(SEED)
net = Net()
batches = [x.float() for x in input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=SEED)]
network = neurolsc.wrap(net, batches[0])
assert torch.equal(network(batches[0]), net(batches[0]))  # the same network, seen as cells
print(f"as snnTorch makes it\n{neurolsc.radius_profile(network, batches[0][:, :4], steps=16)}\n")

result = neurolsc.pretrain(network, batches, target=TARGET, seed=SEED, max_steps=100, progress=False)  # the added call

print(result)
print(f"\nbeta of the user's own layers is now {net.lif1.beta:.2f} and {net.lif2.beta:.2f}")
assert result.converged
assert torch.equal(network(batches[0]), net(batches[0]))

title = f"RLeaky({WIDTH}) and Leaky({WIDTH}) of snnTorch, spike-latency MNIST, seed {SEED}"
result.plot(*sys.argv[1:], title=title)
