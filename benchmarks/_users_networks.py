"""The networks of benchmarks/users.py, as the tutorials of their libraries write them, and their data.

A network maps x (T, B, ...) to what its loss reads, (T, B, classes): spikes of the output layer, its membrane, or a
current at each step. `parts` of a network are what an initialisation sees.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import norse.torch as norse
import snntorch as snn
import torch
from snntorch import surrogate
from spikingjelly.activation_based import functional, layer, neuron
from torch import Tensor, nn

import neurolsc
from neurolsc.datasets import SHD, SpikeLatencyMNIST

CLASSES = 10
Readout = Literal["count", "membrane", "step"]
Data = tuple[Tensor, Tensor]  # samples and labels; what a sample is depends on the kind of data


# ---------------------------------------------------------------- networks


class Chain(nn.Module):
    """Layers in a row, stepped over time in a plain loop; each reads what the one below sends in the same step.

    With `skips` each layer of neurons also sends on the spikes that it was sent, where it has as many neurons.
    """

    def __init__(self, *layers: nn.Module, readout: Readout = "count", skips: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.readout = readout
        self.skips = skips

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What the loss reads (T, B, classes), and the firing rate of each spiking layer."""
        states: list = [None] * len(self.layers)
        sent = []
        counts = [x.new_zeros(()) for _ in self.layers]
        for frame in x:
            z = frame
            below = None  # what the layer of neurons below sends
            for i, module in enumerate(self.layers):
                if isinstance(module, snn.SpikingNeuron):
                    z, states[i] = step_of_snntorch(module, z, states[i])
                elif is_norse(module):
                    z, states[i] = module(z, states[i])
                else:
                    z = module(z)
                if is_spiking(module):
                    counts[i] = counts[i] + z.detach().mean()
                    if self.skips and below is not None and below.shape == z.shape:
                        z = z + below
                    below = z
            if self.readout == "membrane" and isinstance(self.layers[-1], snn.SpikingNeuron):
                z = states[-1][-1]
            sent.append(z)
        rates = [count / len(x) for count, module in zip(counts, self.layers, strict=True) if is_spiking(module)]
        return torch.stack(sent), rates


def step_of_snntorch(module: nn.Module, current: Tensor, state: tuple | None) -> tuple[Tensor, tuple]:
    """One step of a layer of snnTorch that keeps no state of its own: spikes, and what the next step reads."""
    recurrent = isinstance(module, snn.RLeaky | snn.RSynaptic)
    if state is None:
        width = module.recurrent.out_features if recurrent else current.shape[-1]
        shape = current.shape if not recurrent else (*current.shape[:-1], width)
        variables = 1 + recurrent + isinstance(module, snn.Synaptic | snn.RSynaptic)
        state = tuple(current.new_zeros(shape) for _ in range(variables))
    spikes, *after = module(current, *state)
    return spikes, (spikes, *after) if recurrent else tuple(after)


def is_norse(module: nn.Module) -> bool:
    """Whether a module is a neuron of norse, which returns (output, state)."""
    return type(module).__module__.startswith("norse")


def is_spiking(module: nn.Module) -> bool:
    """Whether a module is a layer of neurons that send spikes."""
    if isinstance(module, snn.SpikingNeuron):
        return module.reset_mechanism != "none"
    return is_norse(module) and not isinstance(module, norse.LICell)


class Jelly(nn.Module):
    """Layers of spikingjelly in multi-step mode."""

    readout = "membrane"  # the loss reads the mean of what is sent

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        functional.set_step_mode(self.layers, "m")

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        functional.reset_net(self.layers)
        rates = []
        for module in self.layers:
            x = module(x)
            if isinstance(module, neuron.BaseNode):
                rates.append(x.detach().mean())
        return x, rates


class Ours(nn.Module):
    """A network of our own cells."""

    def __init__(self, network: neurolsc.Network, readout: Readout) -> None:
        super().__init__()
        self.layers = network
        self.readout = readout

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        run = self.layers.run(x)
        return run.logits, [z.detach().mean() for z in run.spikes]


# ---------------------------------------------------------------- the grid


@dataclass(frozen=True)
class Kind:
    """A kind of network.

    Attributes:
        family: networks of one family differ in depth or width alone.
        data: "rates" (25 steps of spikes drawn by grey values), "images" and "pictures" (the same image in all 25
            steps, flat or of two dimensions), "speech", "pixels" (784 steps of one pixel).
        readouts: the losses that it can have, that of its tutorial first.
        side_by_side: whether several networks can be stacked and stepped at once.
    """

    family: str
    data: str
    readouts: tuple[Readout, ...]
    build: Callable[[Readout], nn.Module]
    side_by_side: bool = False
    batch: int = 64


def leaky(
    depth: int, width: int, spike: Callable, beta: float, *, normed: bool = False, skips: bool = False
) -> Callable[[Readout], nn.Module]:
    """Linear and Leaky in turn; the last layer is the output. Batch norm, if any, is of each step, but not there."""

    def build(readout: Readout) -> nn.Module:
        layers: list[nn.Module] = []
        for i in range(depth):
            read = width if i else 784
            last = i == depth - 1
            sends = CLASSES if last else width
            layers.append(nn.Linear(read, sends))
            if normed and not last:
                layers.append(nn.BatchNorm1d(sends))
            if last and readout == "step":
                break
            reset = "none" if last and readout == "membrane" else "subtract"
            layers.append(snn.Leaky(beta=beta, spike_grad=spike, reset_mechanism=reset))
        return Chain(*layers, readout=readout, skips=skips)

    return build


def tutorial_5(readout: Readout) -> nn.Module:
    """784-1000-10, whose loss reads the membrane of an output that spikes and resets."""
    return Chain(
        nn.Linear(784, 1000),
        snn.Leaky(beta=0.95, spike_grad=ATAN),
        nn.Linear(1000, CLASSES),
        snn.Leaky(beta=0.95, spike_grad=ATAN),
        readout=readout,
    )


def rleaky(depth: int, width: int, spike: Callable, n_in: int = 784) -> Callable[[Readout], nn.Module]:
    """Linear and RLeaky in turn, then an output: a Leaky that spikes or integrates, or a Linear."""

    def build(readout: Readout) -> nn.Module:
        layers: list[nn.Module] = []
        for i in range(depth):
            read = width if i else n_in
            layers.append(nn.Linear(read, width))
            layers.append(snn.RLeaky(beta=0.9, linear_features=width, spike_grad=spike))
        layers.append(nn.Linear(width, CLASSES))
        if readout != "step":
            reset = "none" if readout == "membrane" else "subtract"
            layers.append(snn.Leaky(beta=0.9, spike_grad=spike, reset_mechanism=reset))
        return Chain(*layers, readout=readout)

    return build


def tutorial_6(readout: Readout) -> nn.Module:
    """12C5-MP2-64C5-MP2-1024FC10."""
    spike = surrogate.fast_sigmoid(slope=25)
    return Chain(
        nn.Conv2d(1, 12, 5),
        nn.MaxPool2d(2),
        snn.Leaky(beta=0.5, spike_grad=spike),
        nn.Conv2d(12, 64, 5),
        nn.MaxPool2d(2),
        snn.Leaky(beta=0.5, spike_grad=spike),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, CLASSES),
        snn.Leaky(beta=0.5, spike_grad=spike),
        readout=readout,
    )


def rsynaptic(readout: Readout) -> nn.Module:
    """Two RSynaptic, an RLeaky and an output that integrates."""
    spike = surrogate.fast_sigmoid(slope=25)
    return Chain(
        nn.Linear(140, 64),
        snn.RSynaptic(alpha=0.9, beta=0.8, linear_features=64, spike_grad=spike),
        nn.Linear(64, 64),
        snn.RSynaptic(alpha=0.9, beta=0.8, linear_features=64, spike_grad=spike),
        nn.Linear(64, 64),
        snn.RLeaky(beta=0.8, linear_features=64, spike_grad=spike),
        nn.Linear(64, CLASSES),
        snn.Leaky(beta=0.8, spike_grad=spike, reset_mechanism="none"),
        readout=readout,
    )


def norse_recurrent(readout: Readout) -> nn.Module:
    """Two LIFRecurrent of norse and an LI."""
    return Chain(
        norse.LIFRecurrentCell(140, 64),
        norse.LIFRecurrentCell(64, 64),
        nn.Linear(64, CLASSES),
        norse.LICell(),
        readout=readout,
    )


def jelly(depth: int, normed: bool) -> Callable[[Readout], nn.Module]:
    """Linear, with or without batch norm, and LIFNode in turn."""

    def build(readout: Readout) -> nn.Module:
        layers: list[nn.Module] = []
        for i in range(depth):
            sends = CLASSES if i == depth - 1 else 64
            layers.append(layer.Linear(64 if i else 784, sends, bias=not normed))
            if normed:
                layers.append(layer.BatchNorm1d(sends))
            layers.append(neuron.LIFNode())
        return Jelly(*layers)

    return build


def alif(depth: int) -> Callable[[Readout], nn.Module]:
    """Our ALIF+, as it is built."""

    def build(readout: Readout) -> nn.Module:
        cells = [neurolsc.ALIFPlus(64 if i else 140, 64) for i in range(depth)]
        return Ours(neurolsc.Network(cells, n_out=CLASSES, layer_delay=0), readout)

    return build


def lif_pixels(readout: Readout) -> nn.Module:
    """Two layers of our LIF, which read one pixel a step."""
    cells = [neurolsc.LIF(64 if i else 1, 64, tau_v=20.0) for i in range(2)]
    return Ours(neurolsc.Network(cells, n_out=CLASSES, layer_delay=0), readout)


ATAN = surrogate.atan()
FAST = surrogate.fast_sigmoid(slope=25)
ALL: tuple[Readout, ...] = ("count", "membrane", "step")

KINDS: dict[str, Kind] = {
    "tutorial 5": Kind("tutorial 5", "images", ("membrane", "count"), tutorial_5, batch=128),
    "tutorial 6": Kind("tutorial 6", "pictures", ("count",), tutorial_6, batch=128),
    "4 Leaky": Kind("Leaky", "rates", ALL, leaky(4, 64, ATAN, 0.95), side_by_side=True),
    "8 Leaky": Kind("Leaky", "rates", ALL, leaky(8, 64, ATAN, 0.95), side_by_side=True),
    "8 Leaky normed": Kind("Leaky normed", "rates", ALL, leaky(8, 64, ATAN, 0.95, normed=True)),
    "8 Leaky with skips": Kind("Leaky with skips", "rates", ALL, leaky(8, 64, ATAN, 0.95, skips=True)),
    "4 RLeaky": Kind("RLeaky", "rates", ALL, rleaky(4, 64, FAST), side_by_side=True),
    "8 RLeaky": Kind("RLeaky", "rates", ALL, rleaky(8, 64, FAST), side_by_side=True),
    "8 RLeaky atan": Kind("RLeaky atan", "rates", ALL, rleaky(8, 64, ATAN), side_by_side=True),
    "12 RLeaky atan": Kind("RLeaky atan", "rates", ALL, rleaky(12, 64, ATAN), side_by_side=True),
    "16 RLeaky atan": Kind("RLeaky atan", "rates", ALL, rleaky(16, 64, ATAN), side_by_side=True),
    "RSynaptic": Kind("RSynaptic", "speech", ("membrane", "step"), rsynaptic),
    "norse": Kind("norse", "speech", ("membrane", "step"), norse_recurrent),
    "LIFNode normed": Kind("LIFNode normed", "rates", ("membrane",), jelly(4, normed=True)),
    "6 LIFNode": Kind("LIFNode", "rates", ("membrane",), jelly(6, normed=False)),
    "2 ALIF+": Kind("ALIF+", "speech", ("step", "membrane"), alif(2)),
    "5 ALIF+": Kind("ALIF+", "speech", ("step", "membrane"), alif(5)),
    "10 ALIF+": Kind("ALIF+", "speech", ("step", "membrane"), alif(10)),
    "784 LIF": Kind("784 LIF", "pixels", ("membrane", "step"), lif_pixels),
}


# ---------------------------------------------------------------- data


def data(kind: str, root: Path) -> dict[str, Data]:
    """Samples and labels of the training and the test part.

    Digits are those in the package: 1,000 of training, 500 of test. Speech is a folder in the layout of SHD: 1,000
    utterances of its training file and all of its test file, in 50 bins of 20 ms.
    """
    found = {}
    for split in ("train", "test"):
        if kind == "speech":
            options = {"dt": 20e-3, "window": 1.0, "channels": 140, "binary": True, "repeat": 1}
            utterances = SHD.from_file(root / f"{split}.h5", **options)
            batch = utterances.__getitems__(range(min(1000, len(utterances))))
            found[split] = (batch.x.transpose(0, 1).contiguous(), batch.labels)
        else:
            digits = SpikeLatencyMNIST.embedded(split)
            shape = (-1, 1, 28, 28) if kind == "pictures" else (-1, 784)
            grey = digits.images[:1000].float() / 255
            found[split] = (grey.view(shape), digits.labels[:1000])
    return found


def frames(kind: str, samples: Tensor, draw: torch.Generator) -> Tensor:
    """A batch of samples as the network reads it, (T, B, ...)."""
    if kind == "speech":
        return samples.transpose(0, 1).float()
    if kind == "pixels":
        return samples.T.unsqueeze(-1)
    if kind in ("images", "pictures"):
        return samples.expand(25, *samples.shape)
    grey = samples.expand(25, *samples.shape)
    return (torch.rand(grey.shape, generator=draw) < grey).float()
