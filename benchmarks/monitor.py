"""What does a monitor cost? Updates of a plain loop with one and without. Takes three minutes on one core.

Three layers of 128 neurons and ten outputs, 25 steps, 64 samples, a row every 100 updates; the probe batch is as large
as the batches of the training. snnTorch's Leaky, and our LIF and ALIF, whose updates take less time. In turn, so that
what else the machine does falls on both.
"""

import time
import warnings
from statistics import median

import snntorch as snn
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, Monitor, Network

STEPS, BATCH, INPUTS, WIDTH, CLASSES = 25, 64, 64, 128, 10
EVERY, ROUNDS = 100, 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [INPUTS, WIDTH, WIDTH, WIDTH, CLASSES]
        self.fc = nn.ModuleList([nn.Linear(widths[i], widths[i + 1]) for i in range(4)])
        self.lif = nn.ModuleList([snn.Leaky(0.9) for _ in self.fc])

    def forward(self, x: Tensor) -> Tensor:
        mems = [layer.init_leaky() for layer in self.lif]
        sent = []
        for z in x:
            for i, (fc, layer) in enumerate(zip(self.fc, self.lif, strict=True)):
                z, mems[i] = layer(fc(z), mems[i])
            sent.append(z)
        return torch.stack(sent)


def seconds(monitor: Monitor | None, net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Processor time of a hundred updates."""
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    started = time.process_time()
    for _ in range(EVERY):
        loss = nn.functional.cross_entropy(net(x).sum(0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if monitor is not None:
            monitor.step(loss)
    return time.process_time() - started


def report(name: str, net: nn.Module, x: Tensor, y: Tensor) -> None:
    """Print what a monitor of a network costs."""
    monitor = Monitor(net, x, y, loss="count", every=EVERY)
    without, watched, rows = [], [], []
    for _ in range(ROUNDS):
        without.append(seconds(None, net, x, y))
        watched.append(seconds(monitor, net, x, y))
        started = time.process_time()
        for _ in range(EVERY):
            monitor.step()
        rows.append(time.process_time() - started)
    update = median(without) / EVERY
    row = median(rows)
    cost = f"an update takes {1e3 * update:.1f} ms, a row {1e3 * row:.0f} ms: {row / update / EVERY:.1%} of the updates"
    print(f"{name}: {cost}; with a monitor they take {median(watched) / median(without):.3f} times as long")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    x = (torch.rand(STEPS, BATCH, INPUTS) < 0.3).float()
    y = torch.randint(CLASSES, (BATCH,))
    report("snnTorch", Net(), x, y)
    for cell in (LIF, ALIFPlus):
        layers = [cell(INPUTS, WIDTH), cell(WIDTH, WIDTH), cell(WIDTH, WIDTH)]
        report(cell.__name__, Network(layers, CLASSES), x, y)
