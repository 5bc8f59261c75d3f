# %% [markdown]
# # 3. Speech, and scores that can be trusted
#
# After this page you can train on spoken digits and report a score with what belongs to it: a
# control, several seeds, and the standard error of the test set.

# %%
import math
from collections import Counter

import matplotlib.pyplot as plt
import torch

from neurolsc import ALIFPlus, Network, evaluate, train
from neurolsc.datasets import SHD, ChannelJitter, SpikeDrop, TimeStretch, collate, input_batches
from neurolsc.init import FiringRate, Identity

EPOCHS, SEEDS = 40, (0, 1, 2)
plt.rcParams["figure.figsize"] = (9, 3)

# %% [markdown]
# ## The data
#
# The package has 150 recordings of ten English digits by five people, as spikes of 700 units in the
# layout of the Spiking Heidelberg Digits. They are [not SHD](../data.md#spoken-digits).
#
# Spikes are counted in bins of 40 ms, five neighbouring units as one of 140 channels, for the first
# second.

# %%
form = {"dt": 0.04, "window": 1.0, "channels": 140, "repeat": 1}
train_set, validation, test_set = (SHD.embedded(split, **form) for split in ("train", "validation", "test"))
for name, part in (("train", train_set), ("validation", validation), ("test", test_set)):
    words = Counter(part.names[label] for label in part.labels)
    print(f"{name}: {len(part)} utterances; of each word {min(words.values())} to {max(words.values())}")

# %% [markdown]
# ## Augmentation
#
# 80 utterances are soon learnt by heart. `augment` changes the spikes in every epoch anew. Use it for
# training only, never for scores.

# %%
changes = (ChannelJitter(20.0), TimeStretch(0.9, 1.1), SpikeDrop(0.1))
varied = SHD.embedded("train", **form, augment=changes)
torch.manual_seed(0)
figure, axes = plt.subplots(1, 3, sharey=True, layout="constrained")
for ax, (x, _), title in zip(axes, (train_set[0], varied[0], varied[0]), ("recorded", "varied", "again"), strict=True):
    ax.imshow(x.T.numpy(), aspect="auto", cmap="gray_r", origin="lower")
    ax.set(title=title, xlabel="time step")
axes[0].set_ylabel("channel")
plt.show()

# %% [markdown]
# ## The error of a score
#
# The score is the *mode accuracy*; a tie of votes counts for nobody. Of n utterances, a share p right
# has a standard error of $\sqrt{p (1 - p) / n}$.


# %%
def standard_error(share, n):
    return math.sqrt(share * (1 - share) / n)


for n in (20, 50, 250, 2264):
    print(f"{n} utterances, half of them right: 50 % ± {100 * standard_error(0.5, n):.0f}")

# %% [markdown]
# 20 utterances cannot choose an epoch, a learning rate or an initialisation. So settings are fixed beforehand
# here, and the epoch is that with the lowest loss on the training utterances without augmentation.
# 2,264 is the size of SHD's test set.
#
# ## The control, and seeds
#
# Five layers of 64 ALIF+ (leaky neurons whose threshold rises with each of their spikes) begin as
# identity layers from the second on. The control, called *rate-matched*, is merely scaled to the same
# firing rate: without it a good score may be due to the firing alone. Each has three seeds, which draw
# the weights, the order of the utterances and their changes.

# %%
initialisers = {"identity": Identity(), "rate-matched": FiringRate(0.15)}
scores = {name: [] for name in initialisers}
for name, initialiser in initialisers.items():
    for seed in SEEDS:
        torch.manual_seed(seed)
        cells = [ALIFPlus(140, 64), *(ALIFPlus(64, 64) for _ in range(4))]
        network = Network(cells, train_set.n_classes, layer_delay=0)
        initialiser.apply(network, input_batches(train_set, 32, seed=seed), seed=seed)
        x, _ = collate([train_set[i] for i in range(16)])
        before = ", ".join(f"{z.mean():.2f}" for z in network.run(x).spikes)
        settings = {"epochs": EPOCHS, "batch_size": 16, "lr": 1e-2, "patience": EPOCHS, "progress": False}
        result = train(network, varied, train_set, seed=seed, **settings)
        found = evaluate(network, test_set)
        scores[name].append(found.mode_accuracy)
        after = ", ".join(f"{rate:.2f}" for rate in found.firing_rate)
        known = result.best["validation_mode_accuracy"]
        print(f"{name}, seed {seed}: test {found.mode_accuracy:.0%}, training set {known:.0%}")
        print(f"  spikes per step {before} -> {after}")

# %% [markdown]
# ## The table
#
# All seeds share the test utterances: more seeds do not make their error smaller. The error of the
# difference is computed as if each initialisation had test utterances of its own.

# %%
mean, deviation = {}, {}
for name, values in scores.items():
    values = torch.tensor(values)
    mean[name], deviation[name] = values.mean().item(), values.std().item()
    print(
        f"{name}: {mean[name]:.1%} ± {deviation[name]:.1%} over {len(SEEDS)} seeds; "
        f"standard error of {len(test_set)} utterances {standard_error(mean[name], len(test_set)):.1%}"
    )

difference = mean["identity"] - mean["rate-matched"]
error = math.hypot(*(standard_error(mean[name], len(test_set)) for name in scores))
print(f"difference: {difference:.1%}, standard error {error:.1%}")

figure, ax = plt.subplots(layout="constrained")
for place, name in enumerate(scores):
    ax.plot([place] * len(SEEDS), scores[name], "o", color=f"C{place}")
    ax.errorbar(place + 0.15, mean[name], standard_error(mean[name], len(test_set)), fmt="_", color="black", capsize=4)
ax.axhline(0.1, color="black", linestyle=":", linewidth=1)
ax.set(title="Test: seeds, mean and its standard error", xticks=(0, 1), xticklabels=list(scores), ylim=(0, 1))
plt.show()

# %% [markdown]
# Identity layers are ahead in this short training, by a few standard errors at most. They stay ahead in [the
# study](../study_tables.md#relay-taken-apart), with 2,025 utterances, where one part of them is enough: weak
# adaptation.
#
# A report needs seeds and their deviation, the control at the same learning rates, firing rates,
# how the epoch was chosen, and the standard error of the test set.

# %%
assert mean["identity"] > 0.1 + 3 * standard_error(0.1, len(test_set)), "chance is 0.1"
assert 0 < difference < 5 * error, "ahead, and not by much"

# %% [markdown]
# **Next:** [to the chip](4_to_the_chip.md).
