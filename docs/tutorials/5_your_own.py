# %% [markdown]
# # 5. Your own neuron, surrogate and task
#
# After this page you can write a surrogate gradient, a neuron with a synaptic current and a task, a
# few lines each, and measure, start and train with them.

# %%
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import neurolsc
from neurolsc.datasets import LatencyEncoding, SpikeLatencyMNIST, input_batches
from neurolsc.neurons import LogParameter, Membrane, SpikingCell, Thresholds
from neurolsc.surrogate import FastSigmoid, Surrogate

SEED = 0
plt.rcParams["figure.figsize"] = (9, 3)
coarse = LatencyEncoding(dt=2.0, repeat=1)  # 25 steps instead of 100
splits = ("train", "validation", "test")
train_set, validation, test_set = (SpikeLatencyMNIST.embedded(split, encoding=coarse) for split in splits)
inputs = input_batches(train_set, 32, seed=SEED)

# %% [markdown]
# ## A surrogate
#
# Two methods are enough: the shape of the derivative, and the odd function whose derivative it is
# ([more](../surrogates.md)).


# %%
@neurolsc.register
class Parabola(Surrogate):
    """f(x) = max(0, 1 - x²)."""

    def shape(self, x):
        return (1 - x**2).clamp(min=0)

    def shape_integral(self, x):
        inside = x.clamp(-1, 1)
        return inside - inside**3 / 3


v = torch.linspace(-2, 2, 401, dtype=torch.float64, requires_grad=True)
spike = Parabola(dampening=0.5, sharpness=1.0)
(by_autograd,) = torch.autograd.grad(spike(v).sum(), v)
error = (by_autograd - spike.derivative(v)).abs().max().item()
figure, ax = plt.subplots(layout="constrained")
for name, other in (("Parabola", spike), ("FastSigmoid, the default", FastSigmoid(dampening=0.5))):
    ax.plot(v.tolist(), other.derivative(v).tolist(), label=name)
ax.set(title="Derivative of a spike", xlabel="voltage - threshold")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# ## A neuron
#
# The input charges a current, which charges the voltage, so that a spike acts for some steps:
#
# $$
# \begin{aligned}
# i_t &= e^{-1/\tau_i}\, i_{t-1} + W_{in} x_t + W_{rec} z_{t-1} \\
# v_t &= e^{-1/\tau_v}\, v_{t-1} + (1 - e^{-1/\tau_v})\, i_t - \vartheta z_{t-1}
# \end{aligned}
# $$
#
# A `SpikingCell` has weights, the voltage's leak and the surrogate. It needs the state at rest, the
# distance from the threshold, and the step. A `LogParameter` stays above 0 in training. The rest is
# [optional](../your_own_neuron.md#what-it-may-say-more).


# %%
class SynapticState(NamedTuple):
    i: Tensor
    v: Tensor


@neurolsc.register
class Synaptic(SpikingCell):
    """Leaky neurons behind a leaky current."""

    tau_i = LogParameter()
    scaled_parameters = (
        neurolsc.ScaledParameter("w_in", "depth"),
        neurolsc.ScaledParameter("w_rec", "time"),
        *(neurolsc.ScaledParameter(name, "time", through="decay") for name in ("tau_i", "tau_v")),
    )

    def __init__(self, n_in: int, n_hidden: int, *, tau_v: float = 10.0, tau_i: float = 2.0, **options) -> None:
        super().__init__(n_in, n_hidden, tau_v=tau_v, **options)
        self.tau_i = torch.full((n_hidden,), tau_i)
        self.register_buffer("theta", torch.ones(n_hidden))

    def initial_state(self, batch: int) -> SynapticState:
        return SynapticState(*torch.zeros(2, batch, self.n_hidden, **self.dtype_and_device))

    def distance(self, state: SynapticState) -> Tensor:
        return state.v - self.theta

    def update(self, x: Tensor, z: Tensor, state: SynapticState) -> SynapticState:
        i = torch.exp(-1 / self.tau_i) * state.i + x @ self.w_in.T + z @ self.w_rec.T
        v = self.decay_v * state.v + (1 - self.decay_v) * i - (self.theta * z).detach()
        return SynapticState(i, v)

    def thresholds(self) -> Thresholds:
        return Thresholds(self, ("theta",))

    def membrane(self) -> Membrane:
        return Membrane("v", lambda _: self.theta, self.spike)


# %% [markdown]
# `BySource` scales the thresholds until both layers fire, the second layer's input weights until its
# radius through depth is 0.6, and the recurrent ones so that no radius through time is above 1.
# Without a closed form the profile does not know what a radius is due to.


# %%
def build() -> neurolsc.Network:
    torch.manual_seed(SEED)
    cells = [Synaptic(784, 64, spike=Parabola()), Synaptic(64, 64, spike=Parabola())]
    return neurolsc.Network(cells, n_out=10, layer_delay=0)


network = build()
print(neurolsc.radius_profile(network, inputs[0][:, :2], steps=4))
start = neurolsc.initialisers.BySource()
findings = start.apply(network, inputs, seed=SEED)
started = neurolsc.radius_profile(network, inputs[0][:, :2], steps=4)
print(started)

# %% [markdown]
# ## A task
#
# By default every step is classified. A task of your own has a loss, measures, and the name of the
# measure that counts. Here the mean output over time is classified.


# %%
@dataclass(frozen=True)
class MeanOutput:
    """One decision for a sample, by the outputs' mean over time."""

    score = "accuracy"

    def loss(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        return nn.functional.cross_entropy(self._mean(logits, mask), targets)

    def measures(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> dict[str, float]:
        return {"accuracy": (self._mean(logits, mask).argmax(1) == targets).double().mean().item()}

    def _mean(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return logits.mean(0)
        return (logits * mask.unsqueeze(-1)).sum(0) / mask.sum(0).unsqueeze(-1)  # samples of unequal length


task = MeanOutput()
result = neurolsc.train(network, train_set, validation, task=task, epochs=3, seed=SEED, progress=False)
scores = neurolsc.evaluate(network, test_set, task=task)
for row in result.history:
    rates = ", ".join(f"{rate:.2f}" for rate in row["firing_rate"])
    print(f"epoch {row['epoch']}: validation {row['validation_accuracy']:.1%}, spikes per neuron and step {rates}")
rates = ", ".join(f"{rate:.2f}" for rate in scores.firing_rate)
print(f"test: {scores.accuracy:.1%} of {len(test_set)} digits, spikes per neuron and step {rates}")

# %% [markdown]
# ## Saved and loaded
#
# `register` has made both classes known by name: import their module before `load`. The command line
# takes the neuron, too: `neurolsc radii --cell your_module:Synaptic`.

# %%
with tempfile.TemporaryDirectory() as folder:
    neurolsc.save(network, Path(folder, "network.safetensors"))
    again = neurolsc.load(Path(folder, "network.safetensors"))
same = torch.equal(again(inputs[0]), network(inputs[0]))
print("the same outputs:", same)

# %%
assert error < 1e-12, "the shape is the derivative of its integral"
assert not findings, "rates and radii are reached"
assert started.firing_rate.min() > 0.05, "a silent network has these radii, too"
assert started.time_mean.max() < 1.05
assert abs(started.depth_mean[1] - 0.6) < 0.05
assert scores.accuracy > 0.5, "chance is 0.1"
assert same

# %% [markdown]
# **Next:** [the method](../method.md).
