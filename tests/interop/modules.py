"""Models as the users of each library write them, in the layouts of its tutorials, with inputs that they take."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # norse's import: `torch.jit.script` is deprecated
    import norse.torch as norse
import snntorch as snn
from spikingjelly.activation_based import functional, layer, neuron

from neurolsc import LIF, Network
from neurolsc.interop import norse as in_norse
from neurolsc.interop import snntorch as in_snntorch

STEPS, BATCH, N_IN, N, CLASSES = 12, 5, 7, 9, 3


class Case(NamedTuple):
    """A model, an input that it takes, and how its time and batch are told."""

    make: Callable[[], nn.Module]
    x: Callable[[], Tensor]
    by_step: Callable[[Tensor], Tensor]  # the input as (T, B, n_in)
    layout: str


def sequence() -> Tensor:
    return 3 * torch.rand(STEPS, BATCH, N_IN)


def of_batches() -> Tensor:
    return sequence().transpose(0, 1)


def frames() -> Tensor:
    return 3 * torch.rand(STEPS, BATCH, 1, 6, 6)


def image() -> Tensor:
    return 3 * torch.rand(BATCH, 1, 6, 6)


def same(x: Tensor) -> Tensor:
    return x


def turned(x: Tensor) -> Tensor:
    return x.transpose(0, 1)


def flat(x: Tensor) -> Tensor:
    return x.flatten(2)


def in_all_steps(x: Tensor) -> Tensor:
    return x.flatten(1).expand(STEPS, -1, -1)


TIME_FIRST = f"time first (T, B, {N_IN})"
ONE_STEP = f"{TIME_FIRST}, one step a call"


class Tutorial(nn.Module):
    """snnTorch's tutorial 5, with its input in the layout of a case."""

    def __init__(self, batch_first: bool = False, static: bool = False) -> None:
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(N_IN, N), snn.Leaky(beta=0.9)
        self.fc2, self.lif2 = nn.Linear(N, CLASSES), snn.Leaky(beta=0.8)
        self.drop = nn.Dropout(0.5)
        self.batch_first = batch_first
        self.static = static

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        spikes, membranes = [], []
        steps = [x] * STEPS if self.static else x.transpose(0, 1) if self.batch_first else x
        for step in steps:
            spk1, mem1 = self.lif1(self.fc1(step), mem1)
            spk2, mem2 = self.lif2(self.fc2(self.drop(spk1)), mem2)
            spikes.append(spk2)
            membranes.append(mem2)
        return torch.stack(spikes), torch.stack(membranes)


class Images(nn.Module):
    """snnTorch's tutorial 6, which shows one image in all steps."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.lif1 = nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), snn.Leaky(beta=0.5)
        self.fc, self.lif2 = nn.Linear(8, CLASSES), snn.Leaky(beta=0.5)
        nn.init.uniform_(self.conv.weight, 0, 1)
        nn.init.uniform_(self.fc.weight, 0, 1)

    def forward(self, x: Tensor) -> Tensor:
        mem1, mem2, out = self.lif1.reset_mem(), self.lif2.reset_mem(), []
        for _ in range(STEPS):
            spk1, mem1 = self.lif1(self.pool(self.conv(x)), mem1)
            spk2, mem2 = self.lif2(self.fc(spk1.flatten(1)), mem2)
            out.append(spk2)
        return torch.stack(out)


class Repeats(nn.Module):
    """spikingjelly's network for static images: repeated over time in forward, multi-step, mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            layer.Conv2d(1, 2, 3), layer.BatchNorm2d(2), neuron.IFNode(), layer.MaxPool2d(2), layer.Flatten(),
            layer.Linear(8, CLASSES), neuron.IFNode(),
        )  # fmt: skip
        functional.set_step_mode(self, "m")

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.unsqueeze(0).repeat(STEPS, 1, 1, 1, 1)).mean(0)


class Reads(nn.Module):
    """PyTorch's way: recurrent layers over all steps, a readout."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(N_IN, N, num_layers=2, batch_first=batch_first), nn.Linear(N, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0])


def leaky(**settings: Any) -> nn.Module:
    return snn.Leaky(beta=0.9, init_hidden=True, **settings)


CASES = {
    "snnTorch time first": Case(Tutorial, sequence, same, TIME_FIRST),
    "snnTorch batch first": Case(lambda: Tutorial(batch_first=True), of_batches, turned, f"batch first (B, T, {N_IN})"),
    "snnTorch static": Case(
        lambda: Tutorial(static=True), lambda: sequence()[0], in_all_steps, f"one input for all {STEPS} steps"
    ),
    "snnTorch images": Case(Images, image, in_all_steps, f"one image for all {STEPS} steps"),
    "snnTorch step": Case(
        lambda: nn.Sequential(nn.Linear(N_IN, N), leaky(), nn.Linear(N, CLASSES), leaky(output=True)),
        sequence, same, ONE_STEP,
    ),
    "snnTorch images step": Case(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), leaky(threshold=0.1), nn.Flatten(), nn.Linear(32, CLASSES), leaky(threshold=0.1)),
        frames, flat, "time first (T, B, 1, 6, 6), one step a call",
    ),
    "snnTorch ours": Case(
        lambda: nn.Sequential(nn.Linear(N_IN, N), in_snntorch.ALIFPlus(0.9, N, threshold=0.3, init_hidden=True)),
        sequence, same, ONE_STEP,
    ),
    "norse over time": Case(
        lambda: norse.SequentialState(norse.LIFRecurrent(N_IN, N), norse.Lift(nn.Linear(N, CLASSES)), norse.LI()),
        lambda: 10 * sequence(), same, TIME_FIRST,
    ),
    "norse step": Case(
        lambda: norse.SequentialState(nn.Linear(N_IN, N), norse.LIFCell(), norse.LILinearCell(N, CLASSES)),
        lambda: 30 * sequence(), same, ONE_STEP,
    ),
    "norse ours": Case(
        lambda: norse.SequentialState(in_norse.ALIFPlusRecurrent(N_IN, N, v_th=0.3), norse.Lift(nn.Linear(N, CLASSES))),
        sequence, same, TIME_FIRST,
    ),
    "spikingjelly over time": Case(
        lambda: functional_multi(
            nn.Sequential(layer.Linear(N_IN, N), layer.BatchNorm1d(N), neuron.LIFNode(), layer.Linear(N, CLASSES))
        ),
        sequence, same, TIME_FIRST,
    ),
    "spikingjelly step": Case(
        lambda: nn.Sequential(nn.Linear(N_IN, N), nn.BatchNorm1d(N), neuron.ParametricLIFNode(), nn.Linear(N, CLASSES)),
        sequence, same, ONE_STEP,
    ),
    "spikingjelly images": Case(Repeats, image, in_all_steps, f"one image for all {STEPS} steps"),
    "PyTorch time first": Case(lambda: Reads(False), sequence, same, TIME_FIRST),
    "PyTorch batch first": Case(lambda: Reads(True), of_batches, turned, f"batch first (B, T, {N_IN})"),
    "PyTorch LSTM alone": Case(lambda: nn.LSTM(N_IN, N, batch_first=True), of_batches, turned, f"batch first (B, T, {N_IN})"),
    "ours": Case(lambda: Network([LIF(N_IN, N)], CLASSES), sequence, same, "as the network reads it"),
}  # fmt: skip


def functional_multi(net: nn.Module) -> nn.Module:
    functional.set_step_mode(net, "m")
    return net


def run_by_its_user(net: nn.Module, x: Tensor, one_step: bool) -> Tensor:
    """What a model sends in evaluation mode, from rest, in its user's loop over steps or by itself."""
    net.eval()
    functional.reset_net(net)
    for part in net.modules():
        if hasattr(part, "reset_mem"):
            part.reset_mem()
    if not one_step:
        out = net(x)
        return out[0] if isinstance(out, tuple) else out
    sent, state = [], None
    for step in x:
        out = net(step, state) if isinstance(net, norse.SequentialState) else net(step)
        if isinstance(net, norse.SequentialState):
            out, state = out
        sent.append(out[0] if isinstance(out, tuple) else out)
    return torch.stack(sent)
