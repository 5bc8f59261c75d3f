# %% [markdown]
# # 2. Your network of snnTorch or norse
#
# After this page you can measure, diagnose and initialise a network that you wrote in snnTorch or norse.
# Lightning has a [callback](../interop.md#lightning).

# %%
import warnings

import matplotlib.pyplot as plt
import snntorch as snn
import torch
from snntorch.surrogate import fast_sigmoid
from torch import nn

import neurolsc
from neurolsc import init
from neurolsc.datasets import LatencyEncoding, SpikeLatencyMNIST, collate, input_batches
from neurolsc.stability import similarity_to_input
from neurolsc.tasks import cross_entropy

SEED, LR = 0, 5e-3
coarse = LatencyEncoding(dt=2.0, repeat=1)  # 25 steps instead of 100, so that this page runs faster
train_set, validation = (SpikeLatencyMNIST.embedded(split, encoding=coarse) for split in ("train", "validation"))
batches = [x.float() for x in input_batches(train_set, 32, seed=0)]  # without labels
x, labels = collate([train_set[i] for i in range(32)])
x = x.float()
plt.rcParams["figure.figsize"] = (9, 3)

# %% [markdown]
# ## The network, as you would write it
#
# snnTorch's `fast_sigmoid` at slope 25 is narrow: a neuron far from its threshold passes back next
# to no gradient.


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        leaky = {"beta": 0.9, "spike_grad": fast_sigmoid(slope=25)}
        self.fc1, self.lif1 = nn.Linear(784, 64), snn.RLeaky(linear_features=64, **leaky)
        self.fc2, self.lif2 = nn.Linear(64, 64), snn.Leaky(reset_mechanism="zero", **leaky)
        self.fc3, self.lif3 = nn.Linear(64, 64), snn.Leaky(reset_mechanism="zero", **leaky)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        spk1, mem1 = self.lif1.init_rleaky()
        mem2, mem3 = self.lif2.init_leaky(), self.lif3.init_leaky()
        logits = []
        for step in x:
            spk1, mem1 = self.lif1(self.fc1(step), spk1, mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spk3, mem3 = self.lif3(self.fc3(spk2), mem3)
            logits.append(self.out(spk3))
        return torch.stack(logits)


torch.manual_seed(0)
net = Net()

# %% [markdown]
# ## Wrap it
#
# `wrap` returns a `Network` over the *same* parameters. With an example input it follows `forward`
# and compares what comes out. Each cell shows which parameters move which
# [radius](1_first_network.md).

# %%
network = neurolsc.wrap(net, x)
assert torch.equal(network(x), net(x))
print(*(cell.extra_repr() for cell in network.cells), sep="\n")

# %% [markdown]
# ## Diagnose it
#
# One batch with its labels is enough. Read *spikes*, per neuron and step, first; then *dead*, the
# share of neurons that never fire; and *input*, the share of the differences between samples that
# is left in the layer ([all columns](../diagnose.md#the-table)).

# %%
diagnosis = neurolsc.diagnose(network, (x, labels), labels=train_set.labels, lr=LR)
print(diagnosis)
diagnosis.plot()

# %% [markdown]
# The layers hardly fire. `try_cures` applies each cure to a copy and trains that for 20 updates, next
# to an untreated one:

# %%
trials = neurolsc.try_cures(network, (x, labels), diagnosis, lr=LR)
print(*trials, sep="\n")

# %% [markdown]
# So few updates on one batch [decide little](../diagnose.md#what-a-trial-shows).
#
# ## Initialise it
#
# Three initialisations of the same weights: as snnTorch draws them; *rate-matched*, with thresholds scaled until
# every layer fires 0.15 spikes per neuron and step; and `Relay`, which scales the two lowest layers
# and lets the third begin by passing on the spikes that it reads.

# %%
initialisers = {
    "as built": init.Default(),
    "rate-matched": init.RateMatching(0.15),
    "identity": init.Relay(),
}
settings = {"epochs": 3, "batch_size": 64, "lr": LR, "progress": False}
left, scores = {}, {}
for name, initialiser in initialisers.items():
    torch.manual_seed(SEED)
    net = Net()
    network = neurolsc.wrap(net, x)
    found = initialiser.apply(network, batches, seed=SEED)
    spikes = network.run(batches[1]).spikes
    left[name] = [similarity_to_input(batches[1], layer) for layer in spikes]
    result = neurolsc.train(network, train_set, validation, seed=SEED, **settings)
    scores[name] = result.best["validation_mode_accuracy"]
    print(
        f"{name:<9} validation {scores[name]:.1%}; "
        f"spikes per neuron and step {', '.join(f'{z.mean():.2f}' for z in spikes)} before training, "
        f"{', '.join(f'{rate:.2f}' for rate in result.best['firing_rate'])} then"
    )
    print(*found, sep="\n", end="\n" if found else "")

# %% [markdown]
# Left: the column *input*, for each initialisation, on a batch that none has seen.

# %%
figure, (ax, bars) = plt.subplots(1, 2, layout="constrained")
for name, shares in left.items():
    ax.plot((1, 2, 3), shares, marker="o", label=name)
ax.set(title="Similarity to the input, before training", xlabel="layer", xticks=(1, 2, 3), ylim=(0, None))
ax.legend(frameon=False)
bars.bar(list(scores), list(scores.values()), color=["C0", "C1", "C2"])
bars.axhline(0.1, color="black", linestyle=":", linewidth=1)
bars.set(title="Mode accuracy after three epochs", ylim=(0, 1))
plt.show()

# %% [markdown]
# Both initialisations make the network fire, and `Relay` is level with `RateMatching` or ahead
# ([which one to take](../initialise.md#which-one)). `neurolsc.train` centralizes and clips gradients,
# which [preserves the initialisation](../training.md#what-protects-an-initialisation). Your own loop works as well:

# %%
assert torch.equal(network(x), net(x))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
loss = cross_entropy(net(x), labels)
loss.backward()
optimizer.step()
print(f"an update of your own: loss {loss:.2f} -> {cross_entropy(net(x), labels):.2f}")

# %% [markdown]
# ## norse
#
# The same call ([what can be wrapped](../interop.md#what-can-be-wrapped)). This network ends in
# norse's leaky integrator, `LI`, which has no threshold, so initialisers leave it and its weights as they
# are; `network.spiking` names the layers that are set.

# %%
warnings.filterwarnings("ignore", category=DeprecationWarning)  # norse's import uses torch.jit.script
import norse.torch as norse  # noqa: E402

torch.manual_seed(0)
wrapped = neurolsc.wrap(
    norse.SequentialState(norse.LIFRecurrent(784, 64), nn.Linear(64, 64), norse.LIF(), nn.Linear(64, 10), norse.LI())
)
print(neurolsc.diagnose(wrapped, (x, labels), labels=train_set.labels, lr=LR))
print(initialisers["rate-matched"].apply(wrapped, batches))
rates = [wrapped.run(batches[1]).spikes[layer].mean().item() for layer in wrapped.spiking]
print("spikes per neuron and step:", ", ".join(f"{rate:.2f}" for rate in rates))

# %% [markdown]
# One seed and three epochs are an illustration; [the study](../study.md) has more.

# %%
assert {finding.layer for finding in diagnosis} >= {1, 2, 3}, "all layers hardly fire"
assert scores["rate-matched"] > scores["as built"] + 0.05
assert min(rates) > 0.1, "norse's layers fire"

# %% [markdown]
# **Next:** [speech](3_speech.md), and scores that can be trusted.
