# %% [markdown]
# # 3. Speech, and scores that can be trusted
#
# Two layers learn spoken digits from 80 recordings. With so few, a score says little by itself.
# Here is what to put beside it: the control, several seeds, and what 50 utterances can show at all.

# %%
import math
from collections import Counter
from itertools import pairwise

import matplotlib.pyplot as plt
import torch

from neurolsc import ALIFPlus, Network, evaluate, train
from neurolsc.datasets import SHD, ChannelJitter, SpikeDrop, TimeStretch, collate, input_batches
from neurolsc.initialisers import RateMatching, Relay

EPOCHS, SEEDS = 40, (0, 1, 2)
plt.rcParams.update({"figure.figsize": (9, 3), "figure.dpi": 110, "axes.spines.top": False, "axes.spines.right": False})

# %% [markdown]
# ## The data
#
# The package has 150 recordings of ten English digits by five people, from the Free Spoken Digit
# Dataset, as spikes of 700 units in the layout of the Spiking Heidelberg Digits. They are not SHD,
# and no score on them is one on SHD. For that, write `SHD(folder, "train", ...)` and go on as here.
#
# Spikes are counted in bins: here of 40 ms, five neighbouring units as one of 140 channels, for the
# first second. `repeat=1` shows each frame once.

# %%
form = {"dt": 0.04, "window": 1.0, "channels": 140, "repeat": 1}
heard, validation, test_set = (SHD.embedded(split, **form) for split in ("train", "validation", "test"))
for name, part in (("train", heard), ("validation", validation), ("test", test_set)):
    words = Counter(part.names[label] for label in part.labels)
    print(f"{name}: {len(part)} utterances; of each word {min(words.values())} to {max(words.values())}")

# %%
events = heard.events(range(3))
figure, axes = plt.subplots(1, 3, sharey=True, layout="constrained")
for ax, (start, end), label in zip(axes, pairwise(events.offsets), heard.labels, strict=False):
    ax.scatter(events.times[start:end], events.units[start:end], s=0.3)
    ax.set(title=f'"{heard.names[label]}"', xlabel="seconds", xlim=(0, 1))
axes[0].set_ylabel("unit")
plt.show()

# %% [markdown]
# ## Augmentation
#
# 80 utterances are soon known by heart. `augment` changes the spikes, before they are binned, in
# every epoch anew: units are moved, time is stretched, a tenth of the spikes is dropped. This set
# is for training alone; what scores are taken on stays as it was said.

# %%
changes = (ChannelJitter(20.0), TimeStretch(0.9, 1.1), SpikeDrop(0.1))
varied = SHD.embedded("train", **form, augment=changes)
torch.manual_seed(0)
figure, axes = plt.subplots(1, 3, sharey=True, layout="constrained")
for ax, (x, _), title in zip(axes, (heard[0], varied[0], varied[0]), ("as said", "varied", "again"), strict=True):
    ax.imshow(x.T.numpy(), aspect="auto", cmap="gray_r", origin="lower")
    ax.set(title=title, xlabel="time step")
axes[0].set_ylabel("channel")
plt.show()

# %% [markdown]
# ## What a score is worth
#
# The score is the *mode accuracy*: at each step the largest output votes, the most frequent vote
# wins, and a tie counts for nobody. Of n utterances, a share p right has a standard error of
# $\sqrt{p (1 - p) / n}$: another 50 utterances of the same kind would have given another score.


# %%
def standard_error(share, n):
    return math.sqrt(share * (1 - share) / n)


for n in (20, 50, 250, 2264):
    print(f"{n} utterances, half of them right: 50 % ± {100 * standard_error(0.5, n):.0f}")

# %% [markdown]
# 20 utterances for validation cannot choose anything: neither the epoch, nor a learning rate, nor a
# start. So settings are fixed beforehand here, and the weights are those of the epoch with the
# lowest loss on the training utterances *as said*. The test set chooses nothing, ever; 2,264 is the
# size of SHD's.
#
# ## The control, and seeds
#
# Five layers of 64 ALIF+, leaky neurons whose threshold rises with each of their spikes, start with
# relays from the third on, which hand on the spikes that they read; and, the control, merely woken
# to the same firing rate. Without a control a good score of any start may be owed to its firing
# alone. Each has three seeds, which draw the weights, the order of the utterances and their
# changes.

# %%
starts = {"relays": Relay(), "woken": RateMatching(0.15)}
scores = {name: [] for name in starts}
curves = {}
for name, start in starts.items():
    for seed in SEEDS:
        torch.manual_seed(seed)
        cells = [ALIFPlus(140, 64), *(ALIFPlus(64, 64) for _ in range(4))]
        network = Network(cells, heard.n_classes, layer_delay=0)
        start.apply(network, input_batches(heard, 32, seed=seed), seed=seed)
        x, _ = collate([heard[i] for i in range(16)])
        before = ", ".join(f"{z.mean():.2f}" for z in network.run(x).spikes)
        settings = {"epochs": EPOCHS, "batch_size": 16, "lr": 1e-2, "patience": EPOCHS, "progress": False}
        result = train(network, varied, heard, seed=seed, **settings)
        found = evaluate(network, test_set)
        scores[name].append(found.mode_accuracy)
        curves[name, seed] = [row["validation_loss"] for row in result.history]
        after = ", ".join(f"{rate:.2f}" for rate in found.firing_rate)
        print(
            f"{name}, seed {seed}: test {found.mode_accuracy:.0%}, training set "
            f"{result.best['validation_mode_accuracy']:.0%}; spikes per step {before} -> {after}"
        )

# %% [markdown]
# ## The table
#
# Two kinds of chance are in a mean over seeds: the seeds, whose deviation you see, and the test
# utterances, which are the same for all seeds, so that more seeds do not make their error smaller.
# The error of the difference is here as if each start had test utterances of its own.

# %%
mean, deviation = {}, {}
for name, values in scores.items():
    values = torch.tensor(values)
    mean[name], deviation[name] = values.mean().item(), values.std().item()
    print(
        f"{name}: {mean[name]:.1%} ± {deviation[name]:.1%} over {len(SEEDS)} seeds; "
        f"standard error of {len(test_set)} utterances {standard_error(mean[name], len(test_set)):.1%}"
    )

difference = mean["relays"] - mean["woken"]
error = math.hypot(*(standard_error(mean[name], len(test_set)) for name in scores))
print(f"difference: {difference:.1%}, standard error {error:.1%}")

figure, (left, right) = plt.subplots(1, 2, layout="constrained")
for (name, seed), losses in curves.items():
    left.plot(
        range(1, EPOCHS + 1), losses, color={"relays": "C0", "woken": "C1"}[name], label=name if seed == 0 else None
    )
left.set(title="Loss on the training utterances as said", xlabel="epoch", xticks=range(0, EPOCHS + 1, 5))
left.legend(frameon=False)
for place, name in enumerate(scores):
    right.plot([place] * len(SEEDS), scores[name], "o", color=f"C{place}")
    right.errorbar(
        place + 0.15, mean[name], standard_error(mean[name], len(test_set)), fmt="_", color="black", capsize=4
    )
right.axhline(0.1, color="black", linestyle=":", linewidth=1)
right.set(
    title="Test: seeds, mean and its standard error",
    xticks=(0, 1),
    xticklabels=list(scores),
    ylim=(0, 1),
    xlim=(-0.5, 1.5),
)
plt.show()

# %% [markdown]
# Relays are ahead in this short training. Compare the difference with its error, a few of which it
# is at most, and do not conclude more: these are 40 epochs of 80 utterances. In [the
# study](../study.md), with 2,025 utterances and forty epochs, both learn: relays of five layers
# stay ahead to the end, and two layers need no more than to fire.
#
# What a report needs, then: seeds and their deviation, the control at the same learning rates,
# firing rates, who chose the epoch, and the standard error of the test set.

# %%
assert mean["relays"] > 0.1 + 3 * standard_error(0.1, len(test_set)), "chance is 0.1"
assert 0 < difference < 5 * error, "ahead, and not by much"

# %% [markdown]
# **Next:** [to the chip](4_to_the_chip.md).
