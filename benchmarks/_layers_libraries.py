"""Networks of other libraries for torch, as their documentation shows them, for layers.py."""

from functools import partial

import snntorch
import torch
from _layers import Peer
from norse.torch import LIFRecurrent, LSNNRecurrent
from snntorch import surrogate as snntorch_surrogate
from torch import Tensor, nn

try:
    from spikingjelly.activation_based import functional, layer, neuron, surrogate
except ImportError:  # an optional contestant: pip install --no-deps spikingjelly, and loguru
    layer = None


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
    """LIFNode in a LinearRecurrentContainer: its Linear reads the projected input and the last
    spikes side by side."""

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


LIBRARIES = {
    "snnTorch RLeaky": SnnTorch,
    "norse LSNNRecurrent": partial(Norse, LSNNRecurrent),
    "norse LIFRecurrent": partial(Norse, LIFRecurrent),
}
if layer is not None:
    LIBRARIES["spikingjelly LIFNode"] = SpikingJelly
