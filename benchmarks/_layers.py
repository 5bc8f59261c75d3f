"""Our networks that layers.py and layers_gpu.py run against others: two layers and a readout."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, Network


class Peer(nn.Module, ABC):
    """A network of another library.

    Attributes:
        inputs: the input weights of each layer, whose scale sets the firing rates.
    """

    inputs: Sequence[Tensor]

    @abstractmethod
    def spikes(self, x: Tensor) -> list[Tensor]:
        """The spikes of every layer, each (T, B, N)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.spikes(x)[-1])


class Ours(Peer):
    """ALIF+ or LIF of this package by its own loop."""

    def __init__(
        self, n_in: int, width: int, n_out: int, *, cell: Callable[..., ALIFPlus | LIF] = ALIFPlus, depth: int = 2
    ) -> None:
        super().__init__()
        widths = [n_in, *[width] * depth]
        self.cells = [cell(below, width, tau_v=5.0) for below in widths[:-1]]
        self.network = Network(self.cells, n_out, layer_delay=0)  # as the others
        self.inputs = [cell.w_in for cell in self.cells]

    def spikes(self, x: Tensor) -> list[Tensor]:
        return list(self.network.run(x).spikes)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


class OursByMoments(Ours):
    """The same step by step, all layers at once: the only way before the layers had a loop of their
    own."""

    def spikes(self, x: Tensor) -> list[Tensor]:
        outputs = [moment.outputs for moment in self.network.records(x)]
        return [torch.stack(sent) for sent in zip(*outputs, strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        return self.network.readout(self.spikes(x)[-1])


OURS: dict[str, Callable[..., Peer]] = {
    "neurolsc ALIF+": Ours,
    "neurolsc ALIF+, step by step": OursByMoments,
    "neurolsc LIF": partial(Ours, cell=LIF),
}


def build(make: Callable[..., Peer], sizes: tuple[int, int, int], gains: Sequence[float]) -> Peer:
    """A network whose input weights are multiplied by these gains, one a layer."""
    torch.manual_seed(0)
    network = make(*sizes)
    with torch.no_grad():
        for weight, gain in zip(network.inputs, gains, strict=False):
            weight.mul_(gain)
    return network


def gains_for(make: Callable[..., Peer], x: Tensor, sizes: tuple[int, int, int], rate: float) -> list[float]:
    """The gains with which every layer fires at about that rate (spikes per neuron and step) on
    x."""
    gains: list[float] = []
    for i in range(len(build(make, sizes, ()).inputs)):
        low, high = -2.0, 10.0
        for _ in range(10):
            middle = (low + high) / 2
            with torch.no_grad():
                found = build(make, sizes, [*gains, 2**middle]).spikes(x)[i].mean().item()
            low, high = (middle, high) if found < rate else (low, middle)
        gains.append(2 ** ((low + high) / 2))
    return gains
