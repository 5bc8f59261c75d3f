# %% [markdown]
# # 2. Your network of snnTorch, norse or Lightning
#
# You have a network in snnTorch, and it does not learn. Here it is measured where it is, told what
# is wrong with it, and started so that it learns. The same calls work for norse, and in a training
# of Lightning.

# %%
import logging
import warnings

import matplotlib.pyplot as plt
import snntorch as snn
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset

import neurolsc
from neurolsc import initialisers
from neurolsc.datasets import LatencyEncoding, SpikeLatencyMNIST, collate, input_batches
from neurolsc.stability import surviving_share
from neurolsc.tasks import cross_entropy

SEED, LR = 0, 1e-2
coarse = LatencyEncoding(dt=2.0, repeat=1)  # 25 steps instead of 100, so that this page runs faster
train_set, validation = (SpikeLatencyMNIST.embedded(split, encoding=coarse) for split in ("train", "validation"))
batches = [x.float() for x in input_batches(train_set, 32, seed=SEED)]  # without labels
x, labels = collate([train_set[i] for i in range(32)])
x = x.float()
plt.rcParams.update({"figure.figsize": (9, 3), "figure.dpi": 110, "axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## The network, as you would write it
#
# Three hidden layers of 64 leaky neurons, the first one recurrent, with snnTorch's own names and
# loop.


# %%
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(784, 64), snn.RLeaky(beta=0.9, linear_features=64)
        self.fc2, self.lif2 = nn.Linear(64, 64), snn.Leaky(beta=0.9, reset_mechanism="zero")
        self.fc3, self.lif3 = nn.Linear(64, 64), snn.Leaky(beta=0.9, reset_mechanism="zero")
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


torch.manual_seed(SEED)
net = Net()

# %% [markdown]
# ## Wrap it
#
# `wrap` returns a `Network` over the *same* parameters: what is measured is your network, and what
# is set is set in it. Each cell says which parameters answer for which
# [radius](1_first_network.md), through time or through depth.

# %%
network = neurolsc.wrap(net)
assert torch.equal(network(x), net(x))
print(*(cell.extra_repr() for cell in network.cells), sep="\n")

# %% [markdown]
# ## Diagnose it
#
# One batch with its labels is enough. Read *spikes*, per neuron and step, first; *dead*, the share
# of neurons that never fire; and *input*, how much of what tells the samples apart is still in the
# layer. The other columns are in [why does it not learn?](../diagnose.md#the-table)

# %%
diagnosis = neurolsc.diagnose(network, (x, labels), labels=train_set.labels, lr=LR)
print(diagnosis)
diagnosis.plot()

# %% [markdown]
# The layers hardly fire, and of what tells digits apart in the input next to nothing is left in
# them. `try_cures` does what each finding says to a copy, and trains that for 20 updates, next to
# an untreated one:

# %%
trials = neurolsc.try_cures(network, (x, labels), diagnosis, lr=LR)
print(*trials, sep="\n")

# %% [markdown]
# So few updates on one batch decide little, and not alike on every machine ([what a trial
# says](../diagnose.md#what-a-trial-says)), so we try ways to start on more data.
#
# ## Start it right
#
# Three starts side by side: as snnTorch draws it; woken, which is the control; and `Relay`, which
# wakes the two lowest layers, keeps their radius through time from being above 1, and lets the
# third hand on the spikes that it reads. To do so a layer has to forget a spike of its own: it
# needs a reset to zero, as here, or recurrence. Where that is missing `Relay` says so;
# `BySource()`, which sets the radius through depth, needs neither. Two epochs show which way each
# goes.

# %%
starts = {
    "as it comes": initialisers.Default(),
    "woken": initialisers.RateMatching(0.15),
    "relays": initialisers.Relay(),
}
left, score = {}, {}
for name, start in starts.items():
    torch.manual_seed(SEED)
    net = Net()
    network = neurolsc.wrap(net)
    for finding in start.apply(network, batches, seed=SEED):
        print(finding)
    spikes = network.run(batches[1]).spikes
    left[name] = [surviving_share(batches[1], layer) for layer in spikes]
    settings = {"epochs": 2, "batch_size": 64, "lr": LR, "seed": SEED, "progress": False}
    result = neurolsc.train(network, train_set, validation, **settings)
    score[name] = result.best["validation_mode_accuracy"]
    print(
        f"{name:<12} validation {score[name]:.1%}; "
        f"spikes per neuron and step {', '.join(f'{z.mean():.2f}' for z in spikes)} at the start, "
        f"{', '.join(f'{rate:.2f}' for rate in result.best['firing_rate'])} then"
    )

# %% [markdown]
# Left: the column *input*, for each start, on a batch that the starts have not seen.

# %%
figure, (ax, bars) = plt.subplots(1, 2, layout="constrained")
for name, shares in left.items():
    ax.plot((1, 2, 3), shares, marker="o", label=name)
ax.set(title="Input left, before training", xlabel="layer", xticks=(1, 2, 3), ylim=(0, None))
ax.legend(frameon=False)
bars.bar(list(score), list(score.values()), color=["C0", "C1", "C2"])
bars.axhline(0.1, color="black", linestyle=":", linewidth=1)
bars.set(title="Mode accuracy after two epochs, 200 digits", ylim=(0, 1))
plt.show()

# %% [markdown]
# `neurolsc.train` centralizes and clips gradients, which keeps what the start has set ([while
# training](../initialisers.md#while-training)). You need not use it: the parameters are those of
# your model, so your own loop goes on from here.

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
# The same call, on a `SequentialState`, a list of layers or a module of your own. What is wrapped
# and what is refused is listed in [other libraries](../interop.md). What holds a radius is *not
# known* of layers without a closed form; the line below the table is about [how radii are
# found](../method.md#a-grid-of-time-and-depth).

# %%
warnings.filterwarnings("ignore", category=DeprecationWarning)  # norse's import uses torch.jit.script
import norse.torch as norse  # noqa: E402

torch.manual_seed(SEED)
model = norse.SequentialState(norse.LIFRecurrent(784, 64), norse.LIFRecurrent(64, 64), nn.Linear(64, 10))
wrapped = neurolsc.wrap(model)
print(neurolsc.radius_profile(wrapped, x[:, :2], steps=4))
for finding in initialisers.RateMatching(0.15).apply(wrapped, batches, seed=SEED):
    print(finding)
print("thresholds scaled; spikes per neuron and step:", ", ".join(f"{z.mean():.3f}" for z in wrapped.run(x).spikes))

# %% [markdown]
# ## Lightning
#
# `LSCPretraining` sets radii before the first epoch; `Diagnosing` looks at the network while it
# trains, and prints what it finds when it is new.

# %%
from lightning.pytorch import LightningModule, Trainer  # noqa: E402

from neurolsc.interop.lightning import Diagnosing  # noqa: E402

warnings.filterwarnings("ignore", ".*does not have many workers")
warnings.filterwarnings("ignore", category=FutureWarning)  # inside Lightning
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, _):
        loss = cross_entropy(self.net(batch[0].float()), batch[1])
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


torch.manual_seed(SEED)
model, watch = Model(), Diagnosing("net", every=1)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
trainer = Trainer(max_epochs=1, callbacks=[watch], accelerator="cpu", **quiet)
trainer.fit(model, DataLoader(Subset(train_set, range(64)), batch_size=32, collate_fn=collate))

# %% [markdown]
# One seed and two epochs are an illustration. Over four seeds and forty epochs, on spoken digits,
# [the study](../study.md) compares the three starts at two, five and ten layers.

# %%
assert {finding.layer for finding in diagnosis} >= {1, 2, 3}, "all layers hardly fire"
assert left["relays"][-1] > left["woken"][-1], "relays scatter less of the input"
assert score["relays"] > max(score["as it comes"], score["woken"]) + 0.1

# %% [markdown]
# **Next:** [speech](3_speech.md), and scores that can be trusted.
