"""Fig. 1 c: the PascalRNN and a pre-trained GRU, with radii of 0.5 and of 1."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from examples.paper.asked import Asked
from examples.paper.figure import PICTURE, Figure, Result
from examples.paper.pictures import plot_pascal
from examples.paper.reading import Judgement
from neurolsc import theory
from neurolsc.datasets import input_batches
from neurolsc.experiment.config import DataSettings
from neurolsc.initialisers import named
from neurolsc.network import Network
from neurolsc.neurons import GRU

RADII = (0.5, 1.0)
_DECADES = 1 / math.log(10)


@dataclass(frozen=True)
class Derivative:
    """What a network sends, and the derivative of the sum of it by the input.

    Attributes:
        network: its name.
        radius: 0.5 or 1.
        outputs: a neuron of the last layer (T, B).
        logs: natural logarithms of the derivative at each step (T,).
        bound: those of the bound, the constant 1 or the number of paths, times the least constant
            under which it holds (T,).
        missed: what the pre-training did not reach.
    """

    network: str
    radius: float
    outputs: Tensor
    logs: Tensor
    bound: Tensor
    missed: int = 0

    @property
    def growth(self) -> float:
        """Decades by which the derivative of the first tenth of the steps is above the last's."""
        part = max(1, len(self.logs) // 10)
        return float((self.logs[:part].mean() - self.logs[-part:].mean()) * _DECADES)

    @property
    def drift(self) -> float:
        """Decades by which it is above that of the middle, where no end is near."""
        part, middle = max(1, len(self.logs) // 10), len(self.logs) // 2
        return float((self.logs[:part].mean() - self.logs[middle : middle + part].mean()) * _DECADES)


@dataclass(frozen=True)
class PascalFigure(Figure[list[Derivative]]):
    """Fig. 1 c.

    Attributes:
        width: neurons in a layer of the GRU at the small size.
        samples: utterances that its derivative is taken of.
    """

    name, title = "1c", "Fig. 1 c"
    claim = "At radii of 1 the derivative grows backwards in time as the number of paths; at 0.5 it stays."
    width: int = 24
    samples: int = 6

    def datasets(self, asked: Asked) -> set[str]:
        """Spoken digits."""
        return {"shd"}

    def measure(self, asked: Asked, results: Sequence[Result]) -> list[Derivative]:
        """Both networks with both radii."""
        return [*(_pascal(radius) for radius in RADII), *(self._gru(asked, radius) for radius in RADII)]

    def _gru(self, asked: Asked, radius: float) -> Derivative:
        binned = {} if asked.whole else {"dt": 0.02, "channels": 140, "repeat": 1}
        data = DataSettings(**asked.data("shd"), **binned).load("train")
        batches = input_batches(data, 32, seed=0)
        width, layers = 117 if asked.whole else self.width, 7
        torch.manual_seed(0)
        cells = [GRU(n_in, width) for n_in in (data.n_in, *[width] * (layers - 1))]
        network = Network(cells, nn.Identity(), layer_delay=0)
        less = "" if asked.whole else ", max_steps=100, samples=2, steps=4"
        lsc = f"LSC({radius}, rule='paper'{less})"
        missed = len(named(lsc).apply(network, batches))
        x = batches[0][:, : self.samples].to_dense().float().requires_grad_()
        outputs = network.run(x).logits
        (gradient,) = torch.autograd.grad(outputs.sum(), x)
        logs = gradient.double().norm(dim=2).mean(1).log()
        bound = _bound(len(x), layers, radius)
        named_ = f"GRU, {layers} x {width}"
        return Derivative(named_, radius, outputs[..., 0].detach(), logs, bound + (logs - bound).max(), missed)

    def draw(self, found: list[Derivative], out: Path) -> None:
        """A column for every network and radius."""
        curves = {f"{d.network}, radii {d.radius:g}": (d.outputs, d.logs, d.bound) for d in found}
        plot_pascal(curves, out / PICTURE, title=f"{self.title}: outputs, and the derivative of their sum by the input")

    def judge(self, found: list[Derivative]) -> list[Judgement]:
        """How the derivative grows back in time."""
        judged = []
        for name in dict.fromkeys(d.network for d in found):
            half, one = (d for d in found if d.network == name)
            judged += [
                Judgement(
                    f"{name} at 0.5: the derivative stays through time",
                    abs(half.drift) < 0.5,
                    f"{half.drift:+.1f} decades over half of the steps",
                ),
                Judgement(
                    f"{name} at 1: it grows backwards",
                    one.drift > 0.5 and one.drift > half.drift,
                    f"{one.drift:+.1f} decades over half of the steps",
                ),
                Judgement(
                    f"{name} at 1: as far as the number of paths",
                    one.growth > 0.75 * _paths_growth(one),
                    f"{one.growth:+.1f} decades over all steps, paths {_paths_growth(one):+.1f}",
                ),
            ]
            if half.missed or one.missed:
                told = f"{half.missed} radii at 0.5, {one.missed} at 1"
                judged.append(Judgement(f"{name}: radii reached by pre-training", False, f"missed: {told}"))
        return judged

    def notes(self, asked: Asked) -> list[str]:
        """Which bound is drawn."""
        return ["the bounds drawn are times the least constant under which they hold"]


def _pascal(radius: float) -> Derivative:
    steps, layers, samples = 100, 10, 6
    drawn = torch.randn(steps, samples, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cells = [theory.PascalRNN(time=radius, depth=radius) for _ in range(layers)]
    network = Network(cells, nn.Identity(), layer_delay=0).double()
    x = (2 * drawn).requires_grad_()
    outputs = network(x)
    (gradient,) = torch.autograd.grad(outputs.sum(), x)
    logs, bound = gradient.abs().squeeze(2).mean(1).log(), _bound(steps, layers, radius)
    return Derivative(f"PascalRNN, {layers} layers", radius, outputs[..., 0].detach(), logs, bound)


def _bound(steps: int, layers: int, radius: float) -> Tensor:
    """Natural logarithms of the paper's bound (T,): 1 at 0.5, the number of paths at 1."""
    return theory.log_paths(torch.arange(steps - 1, -1, -1), layers, layer_delay=0) * (radius == 1)


def _paths_growth(one: Derivative) -> float:
    part = max(1, len(one.bound) // 10)
    return float((one.bound[:part].mean() - one.bound[-part:].mean()) * _DECADES)
