# %% [markdown]
# # 6. The theory in pictures
#
# After this page you know why radii are set to 1, to one half or to a balance of both directions,
# what the radius of a spiking neuron is due to, and what one half costs. Formulas and sources are
# in [the method](../method.md).

# %%
import math

import matplotlib.pyplot as plt
import torch

from neurolsc import ALIFPlus, Network, TransitionRule, pretrain, radius_profile
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.stability import state_gradients

SEED = 0
plt.rcParams["figure.figsize"] = (9, 3)

# %% [markdown]
# ## Paths through time and depth
#
# A gradient goes back along every path through the grid of time steps and layers. In the smallest
# such network every arrow is a number: `time` from step to step, `depth` from layer to layer. Over
# n steps and k layers there are $\binom{n}{k}$ paths, so the derivative is
#
# $$
# \binom{n}{k}\; \mathrm{time}^{\,n - k}\; \mathrm{depth}^{\,k}.
# $$

# %%
STEPS, LAYERS = 60, 20


def derivatives(time, depth):
    """Of the top layer's last state, by the state n steps and k layers back (n, k)."""
    found = torch.zeros(STEPS + 1, LAYERS + 1, dtype=torch.float64)
    found[0, 0] = 1
    for n in range(STEPS):
        found[n + 1] = time * found[n]
        found[n + 1, 1:] += depth * found[n, :-1]
    return found


targets = {"1 and 1": (1.0, 1.0), "0.5 and 0.5": (0.5, 0.5), "balanced: 0.75 and 0.25": (0.75, 0.25)}
found = {name: derivatives(*radii) for name, radii in targets.items()}
figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained", sharey=True)
for ax, (name, values) in zip(axes, found.items(), strict=True):
    image = ax.imshow(values.clamp(min=1e-12).log10().T.numpy(), aspect="auto", cmap="RdBu_r", vmin=-12, vmax=12)
    ax.set(title=name, xlabel="steps back")
axes[0].set_ylabel("layers back")
figure.colorbar(image, label="log10 of the derivative")
plt.show()

# %% [markdown]
# At radii of 1 no single path grows, but their number does: where time and depth grow together the
# derivative explodes. For pairs with the sum 1 the derivatives n steps back, summed over layers,
# are binomial probabilities, as long as they have not reached the lowest layer. The *balanced*
# target splits the 1 by the shape of the grid, here 60 steps and 20 layers. The price is in the
# upper rows of the panels: over few layers a gradient vanishes in time.

# %%
for name, values in found.items():
    print(f"{name:<24} 20 steps back: sum over layers {values[20].sum():.3g}, same layer {values[20, 0]:.2g}")

# %% [markdown]
# ## The radius of a spiking neuron
#
# An ALIF neuron has a voltage with the time constant $\tau_v$, and a threshold, which each spike
# raises by β, the *adaptation*, and which falls back with $\tau_\vartheta$. Without recurrence, one
# neuron has the derivative
#
# $$
# \begin{pmatrix} e^{-1/\tau_v} & 0 \\ \beta s & e^{-1/\tau_\vartheta} - \beta s \end{pmatrix},
# $$
#
# with the surrogate's derivative s, at most its dampening, 0.5. Far from the threshold s is 0 and
# the leak of the threshold sets the radius: 0.99 at $\tau_\vartheta = 100$, one half at 1.44. Near
# it, the feedback of a spike on its own threshold can take over. The voltage hardly counts: the
# paper has $\tau_v = 0.1$.

# %%
s = torch.linspace(0, 0.5, 101, dtype=torch.float64)
figure, ax = plt.subplots(layout="constrained")
for tau, beta in ((100.0, 1.8), (100.0, 7.2), (1.44, 1.8), (1.44, 0.9)):
    matrix = torch.zeros(len(s), 2, 2, dtype=torch.float64)
    matrix[:, 0, 0] = math.exp(-1 / 0.1)  # of the voltage
    matrix[:, 1, 0] = beta * s
    matrix[:, 1, 1] = math.exp(-1 / tau) - beta * s
    radius = torch.linalg.eigvals(matrix).abs().amax(1)
    ax.plot(s.tolist(), radius.tolist(), label=f"tau_theta {tau:g}, adaptation {beta:g}")
ax.axhline(0.5, color="black", linestyle=":", linewidth=1)
ax.set(title="Radius through time of one neuron", xlabel="surrogate's derivative s", ylim=(0, None))
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# A profile names for each layer the term that the radius is due to. Two untrained layers of the
# paper's ALIF+ hardly spike, so it is the leak.


# %%
def build():
    torch.manual_seed(SEED)
    return Network([ALIFPlus(784, 48), ALIFPlus(48, 48)], n_out=10)


batches = input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=SEED)
x = batches[0][:, :4]
networks = {"untrained": build()}
profiles = {"untrained": radius_profile(networks["untrained"], x, steps=24, target=(0.5, 0.5))}
print(profiles["untrained"])
profiles["untrained"].plot()

# %% [markdown]
# ## Set to one half
#
# Our rule moves what stands in the derivative: a factor on the recurrence, the adaptation and the
# *decays* multiplies the whole matrix, and with it the radius. Once as it is, once with the
# thresholds at rest fixed.

# %%
results = {}
for name, rule in (("0.5", TransitionRule()), ("0.5, threshold fixed", TransitionRule(hold_threshold=True))):
    networks[name] = build()
    results[name] = pretrain(networks[name], batches, target=0.5, rule=rule, seed=SEED, samples=2, progress=False)
    profiles[name] = radius_profile(networks[name], x, steps=24, target=(0.5, 0.5))
    print(f"{name}: {'reached' if results[name].converged else 'missed'} in {results[name].steps} steps")

# %% [markdown]
# ## What one half costs
#
# Memory: a threshold that remembered a hundred steps remembers two, and after ten steps less than a
# thousandth is left of a gradient. Firing: thresholds fall and the layers fire far more often,
# unless thresholds are fixed.

# %%
faded = {}
figure, axes = plt.subplots(1, 3, figsize=(10, 3), layout="constrained")
for (name, network), color, line in zip(networks.items(), ("C0", "C1", "C2"), ("-", "-", "--"), strict=True):
    decay = network.cells[0].decay_theta.mean().item()
    axes[0].plot([decay**k for k in range(41)], color=color, linestyle=line, label=name)
    back = state_gradients(network, batches[0][:, :16], lambda logits: logits[-1].sum())[0].mean(1).flip(0)
    faded[name] = (back[11] / back[1]).item()
    axes[1].semilogy(range(1, 31), back[1:31] / back[1], color=color, linestyle=line)
    rates = profiles[name].firing_rate.tolist()
    axes[2].semilogy((1, 2), rates, color=color, linestyle=line, marker="o")
    print(
        f"{name:<20} tau_theta {network.cells[0].tau_theta.mean():.3g}, threshold at rest "
        f"{network.cells[0].theta_rest.mean():.2g}, spikes per step {rates[0]:.4f}, {rates[1]:.4f}"
    )
axes[0].set(title="Memory of a threshold", xlabel="steps")
axes[1].set(title="Gradient, first layer", xlabel="steps back")
axes[2].set(title="Spikes per neuron and step", xlabel="layer", xticks=(1, 2))
axes[0].legend(frameon=False, fontsize="small")
plt.show()

# %% [markdown]
# So a gain after pre-training may be due to the firing and not to the radius; `match_firing_rates`
# makes the control. In [the study](../study.md) networks set to one half with thresholds fixed
# learn less than networks merely woken, on speech and on digits.

# %%
for name, (time, depth) in targets.items():
    exact = [[math.comb(n, k) * time ** max(n - k, 0) * depth**k for k in range(LAYERS + 1)] for n in range(STEPS + 1)]
    torch.testing.assert_close(found[name], torch.tensor(exact, dtype=torch.float64))
before, after, fixed = profiles.values()
assert all(parts["leak"] > 0.9 for parts in before.due_to)
assert all(result.converged for result in results.values())
assert (after.time_mean - 0.5).abs().max() < 0.1
assert max(faded["0.5"], faded["0.5, threshold fixed"]) < 1e-3 < faded["untrained"]
assert networks["0.5"].cells[0].tau_theta.mean() < 2.5
assert after.firing_rate.min() > 10 * before.firing_rate.max(), "one half wakes the layers"
assert fixed.firing_rate.max() < after.firing_rate.min(), "unless thresholds are fixed"
