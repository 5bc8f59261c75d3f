# %% [markdown]
# # 4. To the chip
#
# After this page you can train a network that fits Intel's Loihi, turn it into integers in a NetX
# file, verify the file, and write the same network to NIR.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from neurolsc import LIF, Network, evaluate, initialize, train
from neurolsc.datasets import LatencyEncoding, SpikeLatencyMNIST, collate
from neurolsc.export import QuantizationAware, from_nir, quantize, to_netx, to_nir, verify

SEED = 0
plt.rcParams["figure.figsize"] = (9, 3)
coarse = LatencyEncoding(dt=2.0, repeat=1)  # 25 steps instead of 100
splits = ("train", "validation", "test")
train_set, validation, test_set = (SpikeLatencyMNIST.embedded(split, encoding=coarse) for split in splits)

# %% [markdown]
# ## A network for the chip
#
# The chip has leaky neurons, read one step late, and a readout without bias: the defaults of `LIF`
# and `Network`. Inputs are 0 or 1. `clip_weight` bounds weights at every update
# to three thresholds, so that 8 bits resolve them. On the command line: `neurolsc train --for
# netx`.

# %%
torch.manual_seed(SEED)
network = Network([LIF(784, 64, tau_v=25.0), LIF(64, 64, tau_v=25.0)], n_out=10)
x, _ = collate([train_set[i] for i in range(64)])
print(initialize(network, x, seed=SEED))
settings = {"clip_weight": 3.0, "seed": SEED, "progress": False}
result = train(network, train_set, validation, epochs=3, lr=2e-3, **settings)
print(f"validation: mode accuracy {result.best['validation_mode_accuracy']:.1%} in epoch {result.best_epoch}")

# %% [markdown]
# ## Integers
#
# `quantize` divides every row of weights by its neuron's threshold and scales it to 8 bits; decays
# get 12. The result is an integer model that equals the chip's simulator in every spike, voltage
# and sum.

# %%
integers = quantize(network)
figure, (left, right) = plt.subplots(1, 2, layout="constrained")
left.hist(network.cells[0].w_in.flatten().tolist(), bins=80)
right.hist(integers.layers[0].weight.flatten().tolist(), bins=80)
left.set(title="Input weights of the first layer, floats", yscale="log")
right.set(title="and in integers", yscale="log")
plt.show()

# %% [markdown]
# ## The file and its report
#
# `to_netx` quantises, checks and writes. Of [the report](../export.md#the-report) read
# *units/threshold* first, the number of weight steps from 0 to a threshold, then the lines with
# rates and decisions.

# %%
calibration, known = collate([validation[i] for i in range(50)])
folder = tempfile.TemporaryDirectory()
file = Path(folder.name, "digits.net")
report = to_netx(network, file, calibration, labels=known)
print(report)

# %% [markdown]
# Rounding flips single spikes. So compare rates and decisions, here on test digits, before and after
# one more epoch *through* the integers: `QuantizationAware` rounds forward, and lets gradients pass.

# %%
rows = {}


def score(name, network):
    scores = evaluate(network, test_set)
    rows[name] = scores.mode_accuracy
    rates = ", ".join(f"{rate:.3f}" for rate in scores.firing_rate)
    print(f"{name:<16} {scores.mode_accuracy:.1%} of {len(test_set)} digits, spikes per step {rates}")


score("floats", network)
score("integers", QuantizationAware(network, calibration))
train(QuantizationAware(network, calibration), train_set, validation, epochs=1, lr=5e-4, **settings)
score("tuned, floats", network)
score("tuned, integers", QuantizationAware(network, calibration))

# %% [markdown]
# Here fine-tuning gained nothing: the integers go from 86.0 to 85.0 %, since rounding had cost nothing. Try it
# where the integers score worse than the floats.
#
# ## Verified
#
# The file has the input and the spikes of a few samples, and `verify` replays them. With spikes of
# yours it also runs the file in Intel's simulator
# [Lava](../export.md#frozen-checks-lava-and-nengo-loihi), if that is installed.

# %%
x, _ = collate([test_set[i] for i in range(20)])
tuned = Path(folder.name, "tuned.net")
to_netx(network, tuned, calibration, labels=known)
found = verify(tuned, x[:, :2])
print(found)
assert found.exact

# %% [markdown]
# ## NIR
#
# A NIR file takes the floats. Its time constants are in seconds, so it needs the length of a step.

# %%
graph = to_nir(network, Path(folder.name, "digits.nir"), dt=2e-3)
again = from_nir(Path(folder.name, "digits.nir"))
print("nodes:", ", ".join(graph.nodes))
same = all(torch.equal(a, b) for a, b in zip(network.run(x).spikes, again.run(x).spikes, strict=True))
print("spikes equal after reading:", same)
folder.cleanup()

# %%
assert all(layer.rounded_to_zero < 0.5 for layer in report.layers)
assert all(abs(rows[name] - rows["floats"]) < 0.06 for name in rows), "about the same decisions"
assert rows["tuned, integers"] > 0.7, "chance is 0.1"
assert same

# %% [markdown]
# **Next:** your own [neuron](../your_own_neuron.md), [surrogate](../surrogates.md#your-own) and
# [task](../training.md#a-task-of-your-own).
