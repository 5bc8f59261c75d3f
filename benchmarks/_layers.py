"""The networks that layers.py runs against each other: two recurrent spiking layers and a linear readout, by five libraries."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import snntorch
import torch
from norse.torch import LIFRecurrent, LSNNRecurrent
from snntorch import surrogate as snntorch_surrogate
from torch import Tensor, nn

from neurolsc import ALIFPlus, Network

try:
    from spikingjelly.activation_based import functional, layer, neuron, surrogate
except ImportError:  # an optional contestant: pip install --no-deps spikingjelly, and loguru
    layer = None


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
    """ALIF+ of this package: by its own loop, that with recomputation, or step by step as for a cell that it does not know."""

    def __init__(self, n_in: int, width: int, n_out: int, *, depth: int = 2, recompute: bool = False) -> None:
        super().__init__()
        widths = [n_in, *[width] * depth]
        cells = [ALIFPlus(below, width, tau_v=5.0) for below in widths[:-1]]
        self.network = Network(cells, n_out, recompute=recompute)
        self.inputs = [cell.w_in for cell in cells]

    def spikes(self, x: Tensor) -> list[Tensor]:
        return list(self.network.run(x).spikes)

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


class OursByMoments(Ours):
    """The same step by step, all layers at once: the only way before the layers had a loop of their own."""

    def spikes(self, x: Tensor) -> list[Tensor]:
        outputs = [moment.outputs for moment in self.network.moments(x)]
        return [torch.stack(sent) for sent in zip(*outputs, strict=True)]

    def forward(self, x: Tensor) -> Tensor:
        return self.network.readout(self.spikes(x)[-1])


class SnnTorch(Peer):
    """RLeaky, in the loop over time of snnTorch's tutorials."""

    def __init__(self, n_in: int, width: int, n_out: int) -> None:
        super().__init__()
        self.fc = nn.ModuleList([nn.Linear(n_in, width), nn.Linear(width, width)])
        spike = snntorch_surrogate.fast_sigmoid()
        self.cells = nn.ModuleList(
            [snntorch.RLeaky(beta=0.8, linear_features=width, spike_grad=spike) for _ in range(2)]
        )
        self.readout = nn.Linear(width, n_out)
        self.inputs = [fc.weight for fc in self.fc]

    def spikes(self, x: Tensor) -> list[Tensor]:
        states, sent = [cell.init_rleaky() for cell in self.cells], []
        for frame in x.unbind(0):
            for i, (fc, cell) in enumerate(zip(self.fc, self.cells, strict=True)):
                frame, mem = cell(fc(frame), *states[i])
                states[i] = (frame, mem)
            sent.append([spk for spk, _ in states])
        return [torch.stack(each) for each in zip(*sent, strict=True)]


class Norse(Peer):
    """A recurrent layer of norse, which loops over time by itself."""

    def __init__(self, kind: type[nn.Module], n_in: int, width: int, n_out: int) -> None:
        super().__init__()
        self.cells = nn.ModuleList([kind(n_in, width), kind(width, width)])
        self.readout = nn.Linear(width, n_out)
        self.inputs = [cell.input_weights for cell in self.cells]

    def spikes(self, x: Tensor) -> list[Tensor]:
        sent = []
        for cell in self.cells:
            x, _ = cell(x)
            sent.append(x)
        return sent


class SpikingJelly(Peer):
    """LIFNode in a LinearRecurrentContainer: its Linear reads the projected input and the last spikes side by side."""

    def __init__(self, n_in: int, width: int, n_out: int) -> None:
        super().__init__()
        self.fc = nn.ModuleList([nn.Linear(n_in, width), nn.Linear(width, width)])
        self.cells = nn.ModuleList(
            [
                layer.LinearRecurrentContainer(
                    neuron.LIFNode(tau=5.0, surrogate_function=surrogate.ATan()), width, width, step_mode="m"
                )
                for _ in range(2)
            ]
        )
        self.readout = nn.Linear(width, n_out)
        self.inputs = [fc.weight for fc in self.fc]

    def spikes(self, x: Tensor) -> list[Tensor]:
        functional.reset_net(self)
        sent = []
        for fc, cell in zip(self.fc, self.cells, strict=True):
            x = cell(fc(x))
            sent.append(x)
        return sent


CONTESTANTS: dict[str, Callable[[int, int, int], Peer]] = {
    "neurolsc ALIF+": Ours,
    "neurolsc ALIF+, recompute": lambda *sizes: Ours(*sizes, recompute=True),
    "neurolsc ALIF+, step by step": OursByMoments,
    "snnTorch RLeaky": SnnTorch,
    "norse LSNNRecurrent": lambda *sizes: Norse(LSNNRecurrent, *sizes),
    "norse LIFRecurrent": lambda *sizes: Norse(LIFRecurrent, *sizes),
}
if layer is not None:
    CONTESTANTS["spikingjelly LIFNode"] = SpikingJelly
OURS = [name for name in CONTESTANTS if name.startswith("neurolsc")]
PEERS = [name for name in CONTESTANTS if name not in OURS]


def build(make: Callable[..., Peer], sizes: tuple[int, int, int], gains: Sequence[float]) -> Peer:
    """A network whose input weights are multiplied by these gains, one a layer."""
    torch.manual_seed(0)
    network = make(*sizes)
    with torch.no_grad():
        for weight, gain in zip(network.inputs, gains, strict=False):
            weight.mul_(gain)
    return network


def gains_for(make: Callable[..., Peer], x: Tensor, sizes: tuple[int, int, int], rate: float) -> list[float]:
    """The gains with which every layer fires at about that rate (spikes per neuron and step) on x."""
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
