"""How do our adaptive neurons go into a snnTorch network in place of its own? Takes 25 s on a
CPU."""

import sys

import snntorch as snn
import torch
from snntorch import functional as SF
from snntorch import utils
from torch import nn

from neurolsc.datasets import SpikeLatencyMNIST, collate
from neurolsc.interop.snntorch import ALIFPlus
from neurolsc.plots import plot_raster
from neurolsc.surrogate import FastSigmoid

WIDTH, UPDATES, BATCH, SEED = 64, 60, 64, 0

train, test = SpikeLatencyMNIST.embedded("train"), SpikeLatencyMNIST.embedded("validation")
loss_function, accuracy, spikes = SF.ce_max_membrane_loss(), {}, {"input": test[0][0][::2]}


def forward(net: nn.Sequential, x: torch.Tensor) -> torch.Tensor:
    """Voltages of the outputs (T, B, 10)."""
    utils.reset(net)
    return torch.stack([net(frame)[1] for frame in x[::2].float()])  # every frame comes twice


spike = FastSigmoid(dampening=0.3, sharpness=2.0)  # our surrogates fit both
torch.manual_seed(SEED)  # the layers' recurrent weights are drawn where they are made
settings = {"beta": 0.95, "linear_features": WIDTH, "init_hidden": True, "spike_grad": spike}
for name, hidden in {
    "snntorch.RLeaky": snn.RLeaky(**settings),
    "our ALIFPlus": ALIFPlus(**settings, adaptation=0.2),
}.items():
    torch.manual_seed(SEED)
    output = snn.Leaky(beta=0.95, init_hidden=True, output=True, reset_mechanism="none")  # it does not fire
    net = nn.Sequential(nn.Linear(784, WIDTH), hidden, nn.Linear(WIDTH, 10), output)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
    for update in range(UPDATES):
        x, labels = collate([train[(update * BATCH + i) % len(train)] for i in range(BATCH)])
        loss = loss_function(forward(net, x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    x, labels = collate([test[i] for i in range(len(test))])
    with torch.no_grad():
        decided = forward(net, x).max(0).values.argmax(1)
        utils.reset(net)
        spikes[name] = torch.stack([net[:2](frame) for frame in x[::2, :1].float()])[:, 0]
    accuracy[name] = (decided == labels).float().mean().item()
    print(f"{name:<15} loss {loss.item():.2f}, {accuracy[name]:.0%} of {len(test)} unseen digits")

assert accuracy["our ALIFPlus"] > 0.5

title = f"hidden layers of {WIDTH}, trained in snnTorch, spike-latency MNIST, seed {SEED}"
plot_raster(spikes, *sys.argv[1:], label=str(labels[0].item()), title=title)
