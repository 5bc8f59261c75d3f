"""Fig. 1: the paths of a gradient through time and depth, how many they are, and the PascalRNN, which has them all."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from examples.paper.figure import ALWAYS, PICTURE, Count, Figure, Judgement, Result, Scale
from examples.paper.pictures import plot_grid, plot_pascal, plot_paths
from examples.paper.trials import Row, Trial
from neurolsc import theory
from neurolsc.datasets import input_batches
from neurolsc.experiment.config import DataSettings
from neurolsc.network import Network
from neurolsc.neurons import GRU
from neurolsc.stability import pretrain

_DECADES = 1 / math.log(10)
Path2D = tuple[tuple[int, int], ...]  # points (step, layer), from the last ones down to the first


def walks(steps: int, layers: int) -> list[Path2D]:
    """All ways down a grid, of which every step goes back in time or down a layer."""
    found = []
    for back in combinations(range(steps + layers), steps):
        points = [(steps, layers)]
        for move in range(steps + layers):
            step, layer = points[-1]
            points.append((step - 1, layer) if move in back else (step, layer - 1))
        found.append(tuple(points))
    return found


class GridFigure(Figure[dict[tuple[int, int], list[Path2D]]]):
    """Fig. 1 a."""

    name, title = "1a", "Fig. 1 a"
    steps, layers = 5, 3  # of the grid that is drawn

    def measure(self, scale: Scale, results: Sequence[Result]) -> dict[tuple[int, int], list[Path2D]]:
        return {(t, n): walks(t, n) for t in range(1, self.steps + 1) for n in range(1, self.layers + 1)}

    def draw(self, found: dict[tuple[int, int], list[Path2D]], out: Path) -> None:
        ways = found[self.steps, self.layers]
        chosen = {f"path {i + 1}": ways[at] for i, at in enumerate((0, len(ways) // 2, len(ways) - 1))}
        title = f"{self.title}: 3 of {len(ways)} paths back through {self.steps} steps and {self.layers} layers"
        plot_grid(chosen, out / PICTURE, steps=self.steps, layers=self.layers, title=title)

    def judge(self, found: dict[tuple[int, int], list[Path2D]]) -> list[Judgement]:
        right = Count(sum(len(ways) == math.comb(t + n, n) for (t, n), ways in found.items()), len(found))
        return [right.judge("walked paths are as many as the binomial coefficient", ALWAYS)]


@dataclass(frozen=True)
class Growth:
    """How many ways there are along one line of grids."""

    title: str  # of the panel
    over: str  # what is along its axis
    places: Tensor  # how long the side is (N,)
    logs: Tensor  # natural logarithms of the numbers (N,), read at the same step
    late: Tensor  # likewise, with each layer one step late

    @property
    def degree(self) -> float:
        """The power of the side by which the number grows at the end."""
        a, b = self.places[-2:].double().log()
        return float((self.logs[-1] - self.logs[-2]) / (b - a))

    @property
    def bend(self) -> float:
        """The last increment of the logarithm by that in the middle: 1 for a straight line."""
        steps = self.logs.diff()
        return float(steps[-1] / steps[len(steps) // 2])


class PathsFigure(Figure[list[Growth]]):
    """Fig. 1 b."""

    name, title = "1b", "Fig. 1 b"
    fixed = 5

    def measure(self, scale: Scale, results: Sequence[Result]) -> list[Growth]:
        n, both, side = torch.arange(201), torch.arange(21), torch.tensor(self.fixed)
        found = []
        for title, over, places, steps, layers in (
            (f"i) {self.fixed} layers", "steps", n, n, side),
            (f"ii) {self.fixed} steps", "layers", n, side, n),
            ("iii) 100 steps for each layer", "layers", both, 100 * both, both),
        ):
            logs, late = (theory.log_paths(steps, layers, layer_delay=delay) for delay in (0, 1))
            found.append(Growth(title, over, places, logs, late))
        return found

    def draw(self, found: list[Growth], out: Path) -> None:
        panels = {
            g.title: {"read at once (Lemma 2)": (g.places, g.logs), "a step late": (g.places, g.late)} for g in found
        }
        plot_paths(panels, out / PICTURE, over=[g.over for g in found])

    def judge(self, found: list[Growth]) -> list[Judgement]:
        """A power by its degree, an exponential by increments that stay."""
        *sides, both = found
        powers = [g.degree < self.fixed + 1e-6 and g.bend < 0.9 for g in sides]
        degrees = ", ".join(f"degree {g.degree:.2f} after {int(g.places[-1])} {g.over}" for g in sides)
        decades = both.logs.diff()[-1] * _DECADES
        grows = f"{decades:.2f} decades for each layer, {both.bend:.3f} of those half-way"
        return [
            Judgement("polynomial with one side fixed", all(powers), degrees),
            Judgement("exponential with both", abs(both.bend - 1) < 0.02, grows),
        ]


# ---------------------------------------------------------------- Fig. 1 c


@dataclass(frozen=True)
class Derivative:
    """What a network sends, and the derivative of the sum of it by the input."""

    network: str
    radius: float  # 0.5 or 1
    outputs: Tensor  # a neuron of the last layer (T, B)
    logs: Tensor  # natural logarithms of the derivative at each step (T,)
    bound: Tensor  # those of 1, or of the number of paths, times the least constant under which the bound holds (T,)
    reached: bool = True  # the mean radius, by a pre-training

    @property
    def drift(self) -> float:
        """Decades by which the derivative of the first tenth of the steps is above that half-way."""
        part, middle = max(1, len(self.logs) // 10), len(self.logs) // 2
        return float((self.logs[:part].mean() - self.logs[middle : middle + part].mean()) * _DECADES)


def growth(logs: Tensor) -> float:
    """Decades by which the first tenth of the steps is above the last."""
    part = max(1, len(logs) // 10)
    return float((logs[:part].mean() - logs[-part:].mean()) * _DECADES)


LAYERS = 7  # of the GRU


def pretrained_gru(radius: float, width: int, samples: int, data: dict[str, Any]) -> Row:
    """Pre-train a GRU to a radius by the loop that the paper prints.

    The row has outputs of a neuron (T, B), logarithms of the derivative (T,), and whether the mean radius was reached.
    """
    loaded = DataSettings(**data).load("train")
    inputs = input_batches(loaded, samples, count=4, seed=0)
    torch.manual_seed(0)
    cells = [GRU(n_in, width) for n_in in (loaded.n_in, *[width] * (LAYERS - 1))]
    network = Network(cells, nn.Identity(), layer_delay=0)
    result = pretrain(network, inputs, target=radius, loop="paper", progress=False)
    x = inputs[0][:, :6].to_dense().float().requires_grad_()
    outputs = network.run(x).logits
    (gradient,) = torch.autograd.grad(outputs.sum(), x)
    logs = gradient.double().norm(dim=2).mean(1).log()
    return {"outputs": outputs[..., 0].tolist(), "logs": logs.tolist(), "reached": result.converged}


class PascalFigure(Figure[list[Derivative]]):
    """Fig. 1 c."""

    name, title = "1c", "Fig. 1 c"

    def datasets(self, scale: Scale) -> set[str]:
        return {"shd"}

    def trials(self, scale: Scale) -> list[Trial]:
        how: dict[str, Any] = {"width": 117, "samples": 100}
        data = scale.data("shd")
        if not scale.full:
            how["width"] = 24
            data |= {"dt": 0.02, "channels": 140, "repeat": 1}
        return [Trial(pretrained_gru, {"radius": radius} | how | {"data": data}) for radius in (0.5, 1.0)]

    def measure(self, scale: Scale, results: Sequence[Row]) -> list[Derivative]:
        found = [_pascal(radius) for radius in (0.5, 1.0)]
        for row in results:
            outputs, logs = torch.tensor(row["outputs"]), torch.tensor(row["logs"], dtype=torch.float64)
            bound = _bound(len(logs), LAYERS, row["radius"])
            bound = bound + (logs - bound).max()
            network = f"GRU, {LAYERS} x {row['width']}"
            found.append(Derivative(network, row["radius"], outputs, logs, bound, row["reached"]))
        return found

    def draw(self, found: list[Derivative], out: Path) -> None:
        curves = {f"{d.network}, radii {d.radius:g}": (d.outputs, d.logs, d.bound) for d in found}
        plot_pascal(curves, out / PICTURE, title=f"{self.title}: outputs, and the derivative of their sum by the input")

    def judge(self, found: list[Derivative]) -> list[Judgement]:
        judged = []
        for name in dict.fromkeys(d.network for d in found):
            half, one = (d for d in found if d.network == name)
            slow, fast = (f"{d.drift:+.1f} decades over half of the steps" for d in (half, one))
            far = f"{growth(one.logs):+.1f} decades over all steps, paths {growth(one.bound):+.1f}"
            grows, enough = one.drift > max(0.5, half.drift), growth(one.logs) > 0.75 * growth(one.bound)
            missed = "".join(f"; mean radius not reached at {d.radius:g}" for d in (half, one) if not d.reached)
            for claim, holds, numbers in (
                ("at 0.5: the derivative stays through time", abs(half.drift) < 0.5, slow),
                ("at 1: it grows backwards", grows, fast),
                ("at 1: as far as the number of paths", enough, far),
            ):
                # a pre-training that has missed its mean says nothing of networks at that radius
                judged.append(Judgement(f"{name} {claim}", None if missed else holds, numbers + missed))
        return judged

    def notes(self) -> list[str]:
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
