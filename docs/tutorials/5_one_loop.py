# %% [markdown]
# # 5. One network in your own loop, from diagnosis to chip
#
# After this page you can take a network through everything: diagnose, initialise, train, export. The network is that of
# snnTorch's tutorial 5, in a loop of its own.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import snntorch as snn
import torch
from snntorch import spikegen
from snntorch.functional import ce_count_loss
from torch import nn

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST
from neurolsc.export import refusals, to_netx, verify

SEED, LR, EPOCHS, BATCH, STEPS = 0, 3e-3, 3, 128, 25
train_set, test_set = (SpikeLatencyMNIST.embedded(part) for part in ("train", "test"))
plt.rcParams["figure.figsize"] = (9, 3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(784, 1000), snn.Leaky(beta=0.95)
        self.fc2, self.lif2 = nn.Linear(1000, 10), snn.Leaky(beta=0.95)

    def forward(self, x):
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spikes, membranes = [], []
        for step in x:
            spk1, mem1 = self.lif1(self.fc1(step), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spikes.append(spk2)
            membranes.append(mem2)
        return torch.stack(spikes), torch.stack(membranes)


def coded(images):
    return spikegen.rate(images / 255, num_steps=STEPS)  # (time, batch, pixels)


torch.manual_seed(SEED)
net = Net()
x, y = coded(train_set.images[:BATCH]), train_set.labels[:BATCH]

# %% [markdown]
# ## Diagnose it
#
# The tutorial takes the cross-entropy of the membranes at a learning rate of 0.0005. There is nothing to do:

# %%
healthy = neurolsc.diagnose(net, x, y, loss="membrane", lr=5e-4)
print(healthy)

# %% [markdown]
# The same network with a loss of spike counts, at 0.003:

# %%
found = neurolsc.diagnose(net, x, y, loss="count", lr=LR)
print(found)

# %% [markdown]
# ## Initialise it
#
# `refusals` says before the training what could not be exported.

# %%
initialised = Net()
initialised.load_state_dict(net.state_dict())
print(neurolsc.initialize(initialised, x, loss="count"))
print("refused:", refusals(initialised, x))

# %% [markdown]
# ## Train it
#
# Your own loop, with your own optimizer. [`accelerate`](../accelerate.md) runs the same network, with the same
# parameters, on faster kernels; without it the loop takes longer and learns the same.


# %%
def accuracy(net):
    with torch.no_grad():
        counts = net(coded(test_set.images))[0].sum(0)
    return (counts.argmax(1) == test_set.labels).double().mean().item()


def train(net):
    torch.manual_seed(SEED)
    fast = neurolsc.accelerate(net, x)
    optimizer = torch.optim.Adam(net.parameters(), lr=LR)
    curve = [accuracy(fast)]
    for _ in range(EPOCHS):
        for some in torch.randperm(len(train_set.labels)).split(BATCH):
            spikes, _ = fast(coded(train_set.images[some]))
            loss = ce_count_loss()(spikes, train_set.labels[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        curve.append(accuracy(fast))
    return curve


curves = {"as built": train(net), "initialised": train(initialised)}
figure, ax = plt.subplots(layout="constrained")
for name, curve in curves.items():
    print(f"{name:<11}", *(f"{score:.0%}" for score in curve))
    ax.plot([100 * score for score in curve], marker="o", label=name)
ax.set(xlabel="epoch", xticks=range(EPOCHS + 1), ylabel="test accuracy (%)", ylim=(0, 100))
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## Export it
#
# To integers of Loihi, in a file that holds four samples and what each neuron does with them. `verify` runs the file.
#
# The *mode accuracy* of the report is lower than the accuracy above (74 in place of 81 %): each step votes, where
# above spikes are counted, and it is of the first 100 test digits alone.

# %%
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "digits.net"
    report = to_netx(initialised, path, coded(test_set.images[:100]), labels=test_set.labels[:100])
    checked = verify(path)
print(report)
print(checked)

# %%
assert not healthy and found, "nothing to do with one loss, and something with the other"
assert checked.exact
assert curves["initialised"][-1] > curves["as built"][-1] + 0.1

# %% [markdown]
# One seed is an illustration; [more seeds and networks](../study.md#in-a-plain-loop) are evidence.
