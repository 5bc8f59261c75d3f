# %% [markdown]
# # 2. Your network of snnTorch or norse
#
# After this page you can measure, diagnose and initialise a network that you wrote in snnTorch or norse, in the
# training loop that you have. Lightning has a [callback](../interop.md#lightning).

# %%
import warnings

import matplotlib.pyplot as plt
import snntorch as snn
import torch
from snntorch.surrogate import fast_sigmoid
from torch import nn
from torch.nn.functional import cross_entropy

import neurolsc
from neurolsc.datasets import LatencyEncoding, SpikeLatencyMNIST

SEED, LR, EPOCHS = 0, 1e-3, 4
coarse = LatencyEncoding(dt=2.0, repeat=1)  # 25 steps instead of 100, so that this page runs faster
parts = {name: SpikeLatencyMNIST.embedded(name, encoding=coarse) for name in ("train", "test")}
spikes = {name: torch.stack([part[i][0] for i in range(len(part))], 1).float() for name, part in parts.items()}
labels = {name: part.labels for name, part in parts.items()}
x, y = spikes["train"][:, :64], labels["train"][:64]  # a batch (time, batch, pixels), and its digits
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
        self.first, self.recurrent = nn.Linear(784, 64), snn.RLeaky(linear_features=64, **leaky)
        self.linears = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.neurons = nn.ModuleList(snn.Leaky(reset_mechanism="zero", **leaky) for _ in range(4))
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        spikes, membrane = self.recurrent.init_rleaky()
        membranes = [each.init_leaky() for each in self.neurons]
        logits = []
        for step in x:
            spikes, membrane = self.recurrent(self.first(step), spikes, membrane)
            z = spikes
            for i, (linear, neuron) in enumerate(zip(self.linears, self.neurons, strict=True)):
                z, membranes[i] = neuron(linear(z), membranes[i])
            logits.append(self.out(z))
        return torch.stack(logits)


torch.manual_seed(SEED)
net = Net()

# %% [markdown]
# ## Diagnose it
#
# One batch with its labels is enough; `loss` and `lr` are those of your loop, here the cross-entropy of the mean
# output. Read *spikes*, per neuron and step, first; then *dead*, the
# share of neurons that never fire; and *input*, the share of the differences between samples that
# is left in the layer ([all columns](../diagnose.md#the-table)).

# %%
diagnosis = neurolsc.diagnose(net, x, y, loss="membrane", lr=LR)
print(diagnosis)
diagnosis.plot()

# %% [markdown]
# At this learning rate the loss hardly falls, and that of an initialised copy does
# ([all faults](../diagnose.md#the-faults)).
#
# ## Initialise it
#
# `initialize` sets weights and thresholds of your model in place, and says what it set. It needs one batch of inputs.

# %%
print(neurolsc.initialize(net, x))
print(neurolsc.diagnose(net, x, y, loss="membrane", lr=LR))

# %% [markdown]
# Does the network learn? A plain loop, with the network as built and initialised. One line of it is ours: `accelerate`
# runs the same parameters several times as fast ([page](../accelerate.md)).


# %%
def accuracy(net):
    with torch.no_grad():
        return (net(spikes["test"]).mean(0).argmax(1) == labels["test"]).double().mean().item()


def train(net, lr):
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    net = neurolsc.accelerate(net, x)
    curve = [accuracy(net)]
    for _ in range(EPOCHS):
        for some in torch.randperm(len(labels["train"])).split(64):
            optimizer.zero_grad()
            cross_entropy(net(spikes["train"][:, some]).mean(0), labels["train"][some]).backward()
            optimizer.step()
        curve.append(accuracy(net))
    return curve


curves = {}
for lr in (LR, 5 * LR):
    for method in ("as built", "initialised"):
        torch.manual_seed(SEED)
        net = Net()
        if method == "initialised":
            neurolsc.initialize(net, x)
        curves[method, lr] = train(net, lr)
        print(f"{method:<11}  learning rate {lr:g}  test {curves[method, lr][-1]:.0%}")

# %%
figure, ax = plt.subplots(layout="constrained")
for (method, lr), curve in curves.items():
    color, style = ("C1", "C0")[method == "initialised"], ("-", "--")[lr > LR]
    ax.plot([100 * score for score in curve], style, color=color, marker="o", label=f"{method}, {lr:g}")
ax.set(xlabel="epoch", xticks=range(EPOCHS + 1), ylabel="test accuracy (%)", ylim=(0, 100))
ax.axhline(10, color="black", linestyle=":", linewidth=1)
ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %% [markdown]
# One seed and four epochs are an illustration; [more seeds and networks](../study.md#in-a-plain-loop) are evidence.
#
# ## Measure it
#
# `wrap` returns a `Network` over the *same* parameters, for everything else that this package can do. Each cell shows
# which parameters move which [radius](1_first_network.md).

# %%
network = neurolsc.wrap(net, x)
assert torch.equal(network(x), net(x))
print(*(cell.extra_repr() for cell in network.cells), sep="\n")
print(neurolsc.radius_profile(net, x))

# %% [markdown]
# ## norse
#
# The same calls ([what can be wrapped](../interop.md#what-can-be-wrapped)). This network ends in
# norse's leaky integrator, `LI`, which has no threshold: `initialize` leaves it and its weights as they are.

# %%
warnings.filterwarnings("ignore", category=DeprecationWarning)  # norse's import uses torch.jit.script
import norse.torch as norse  # noqa: E402

torch.manual_seed(SEED)
other = norse.SequentialState(
    norse.LIFRecurrent(784, 64), nn.Linear(64, 64), norse.LIF(), nn.Linear(64, 10), norse.LI()
)
print(neurolsc.diagnose(other, x, y, loss="membrane", lr=LR))
report = neurolsc.initialize(other, x)
print(report)

# %%
assert diagnosis, "something was found"
assert curves["initialised", LR][-1] > curves["as built", LR][-1] + 0.05
assert torch.isfinite(other(x)[0]).all()

# %% [markdown]
# **Next:** [speech](3_speech.md), and scores that can be trusted.
