# %% [markdown]
# # 1. Your first network, and what a radius is
#
# After this page you can build a spiking network, measure its *radii*, initialise it so that it learns,
# train it and score it. You need to know nothing about spikes.

# %%
import matplotlib.pyplot as plt
import torch

from neurolsc import LIF, Network, evaluate, initialize, radius_profile, train
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.stability import state_gradients

SEED = 0
plt.rcParams["figure.figsize"] = (9, 3)
train_set, validation, test_set = (SpikeLatencyMNIST.embedded(split) for split in ("train", "validation", "test"))
print(f"{len(train_set)} digits to train with, {len(validation)} to validate, {len(test_set)} to test")

# %% [markdown]
# ## The input
#
# Each of the 784 pixels is one input, and spikes at most once: the brighter, the sooner. Every
# frame is shown twice, so a spike fills two of the 100 steps. Axes are `(T, B, N)` everywhere:
# time, batch, neuron.

# %%
x, label = train_set[0]
step, pixel = x.nonzero(as_tuple=True)
figure, (left, right) = plt.subplots(1, 2, width_ratios=(1, 3), layout="constrained")
left.imshow(train_set.images[0].view(28, 28).numpy(), cmap="gray_r")
left.set(title=f"the digit {label}", xticks=[], yticks=[])
right.scatter(step, pixel, s=4)
right.set(title="its spikes", xlabel="time step", ylabel="pixel", xlim=(0, 100), ylim=(0, 784))
plt.show()

# %% [markdown]
# ## The network
#
# A leaky neuron adds its input to its voltage, forgets a part of it at each step (`tau_v=50`: it
# retains `exp(-1/50)`, 98 %), and spikes when the voltage is above a threshold; after a spike it is
# reset. Neurons of a layer read each other's spikes one step later. `layer_delay=0` lets a layer
# read the one below in the same step.
#
# An output is a weighted sum of the last layer's spikes. Every step at which that layer fires votes
# for the class of the largest output; the class with most votes wins. The share of samples won so
# is the *mode accuracy*.

# %%
torch.manual_seed(SEED)
layers = [LIF(784, 64, tau_v=50.0), LIF(64, 64, tau_v=50.0), LIF(64, 64, tau_v=50.0)]
network = Network(layers, n_out=10, layer_delay=0)
inputs = input_batches(train_set, 32, seed=SEED)  # without labels, to measure on
spikes = network.run(inputs[0]).spikes
print("spikes per neuron and step, layer by layer:", ", ".join(f"{z.mean():.4f}" for z in spikes))

# %% [markdown]
# Few neurons fire, and fewer in each layer.
#
# ## What a radius is
#
# A gradient is sent back through time. From each step to the one before, it is multiplied by a
# matrix: the derivative of a layer's state by its own state one step earlier. The **radius** of
# that matrix, the largest modulus of its eigenvalues, is the factor by which a gradient grows or
# shrinks at each step, in the long run. Below 1 it vanishes, above 1 it explodes.
#
# These single layers differ in `tau_v` alone. Solid: the gradient of the last step's outputs by the
# voltages so many steps back. Dotted: the layer's mean radius to that power.

# %%
figure, ax = plt.subplots(layout="constrained")
radii, slopes = [], []
for color, tau_v in zip(("C0", "C1", "C2", "C3"), (5.0, 10.0, 20.0, 50.0), strict=True):
    torch.manual_seed(SEED)
    one = Network([LIF(784, 64, tau_v=tau_v)], n_out=10)
    radii.append(radius_profile(one, inputs[0][:, :4], steps=16).time_mean.item())
    back = state_gradients(one, inputs[0], lambda logits: logits[-1].sum())[0].mean(1).flip(0)
    slopes.append((back[-1] / back[49]).item() ** (1 / 50))  # a step, over the farther half
    ax.semilogy(back / back[0], color=color, label=f"tau_v {tau_v:g}: radius {radii[-1]:.2f}")
    ax.semilogy([radii[-1] ** k for k in range(len(back))], color=color, linestyle=":")
ax.set(xlabel="steps back", ylabel="gradient, relative")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# The radius predicts the slope. It can be above 1 although every leak is below 1, because the
# neurons of a layer feed each other. The radius *through depth* is that of the derivative of a
# layer's state by the state of the layer below. *Silent* is the share of steps and samples at which
# no neuron of the layer fires; the last column names the largest terms of the radius through time.

# %%
untrained = radius_profile(network, inputs[0][:, :4], steps=16)
print(untrained)

# %% [markdown]
# Gradients of the untrained network explode through time, and vanish through depth.
#
# ## Initialise it
#
# `initialize` reads a batch of inputs, without labels. It scales the thresholds of the lowest layer
# until it fires at a rate, and bounds its recurrence. Every layer above is an *identity layer*: it begins by
# passing on each spike that it reads, plus a part of its drawn weights ([how](../initialise.md#what-it-does)).

# %%
print(initialize(network, inputs[0], seed=SEED))
initialised = radius_profile(network, inputs[0][:, :4], steps=16)
print(initialised)

# %% [markdown]
# Now all layers fire. A good radius alone does not make a network learn: layers must fire, and their
# spikes must still depend on the input ([the study](../study.md)).
#
# ## Train and score
#
# The validation set chooses the epoch. The test set is opened once, at the end.

# %%
result = train(network, train_set, validation, epochs=2, lr=2e-3, seed=SEED, progress=False)
for row in result.history:
    rates = ", ".join(f"{rate:.2f}" for rate in row["firing_rate"])
    print(
        f"epoch {row['epoch']}: validation loss {row['validation_loss']:.2f}, "
        f"mode accuracy {row['validation_mode_accuracy']:.1%}, spikes per neuron and step {rates}"
    )
scores = evaluate(network, test_set)
rates = ", ".join(f"{rate:.2f}" for rate in scores.firing_rate)
print(f"test: mode accuracy {scores.mode_accuracy:.1%}, spikes per neuron and step {rates}")

# %% [markdown]
# One seed is an illustration. The claims of this page:

# %%
assert radii[0] < 1 < radii[-1] and radii == sorted(radii), "a longer memory, a larger radius"
assert all(abs(slope - radius) < 0.02 for slope, radius in zip(slopes, radii, strict=True))
assert untrained.time_mean.min() > 1 > 0.5 > untrained.depth_mean[1:].max(), "explodes in time, fades in depth"
assert initialised.firing_rate.min() > 0.04
assert (initialised.time_mean < 1.02).all()
assert (initialised.depth_mean[1:] > untrained.depth_mean[1:]).all()
assert scores.mode_accuracy > 0.7, "chance is 0.1"

# %% [markdown]
# **Next:** [your network of snnTorch or norse](2_your_library.md).
