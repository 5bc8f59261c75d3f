"""Fig. 1 a and b: the ways of a gradient through time and depth, and how many there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from examples.paper.asked import Asked
from examples.paper.figure import PICTURE, Figure, Result
from examples.paper.pictures import plot_grid, plot_paths
from examples.paper.reading import Count, Judgement
from neurolsc import theory

Path2D = tuple[tuple[int, int], ...]
"""points (step, layer), from the last ones down to the first"""


def walks(steps: int, layers: int) -> list[Path2D]:
    """All ways down a grid, of which every step goes back in time or down a layer.

    Example:
        >>> walks(1, 1)
        [((1, 1), (0, 1), (0, 0)), ((1, 1), (1, 0), (0, 0))]
    """
    found = []
    for back in combinations(range(steps + layers), steps):
        points = [(steps, layers)]
        for move in range(steps + layers):
            step, layer = points[-1]
            points.append((step - 1, layer) if move in back else (step, layer - 1))
        found.append(tuple(points))
    return found


@dataclass(frozen=True)
class Grids:
    """Ways down grids.

    Attributes:
        steps: of the grid that is drawn.
        layers: likewise.
        ways: all ways down it.
        counts: of every side up to these, by walking and by the binomial coefficient.
    """

    steps: int
    layers: int
    ways: list[Path2D]
    counts: list[tuple[int, int]]


class GridFigure(Figure[Grids]):
    """Fig. 1 a."""

    name, title = "1a", "Fig. 1 a"
    claim = "A gradient reaches a point of the grid by many ways, as many as a binomial coefficient says."

    def measure(self, asked: Asked, results: Sequence[Result]) -> Grids:
        """Walk all ways of small grids."""
        steps, layers = 5, 3
        sides = [(t, n) for t in range(1, steps + 1) for n in range(1, layers + 1)]
        counts = [(len(walks(t, n)), int(theory.paths(t, n, layer_delay=0))) for t, n in sides]
        return Grids(steps, layers, walks(steps, layers), counts)

    def draw(self, found: Grids, out: Path) -> None:
        """The grid, with three of the ways."""
        ways = found.ways
        chosen = {f"path {i + 1}": ways[at] for i, at in enumerate((0, len(ways) // 2, len(ways) - 1))}
        title = f"{self.title}: 3 of {len(ways)} paths back through {found.steps} steps and {found.layers} layers"
        plot_grid(chosen, out / PICTURE, steps=found.steps, layers=found.layers, title=title)

    def judge(self, found: Grids) -> list[Judgement]:
        """Whether what was walked is the coefficient."""
        right = Count(sum(a == b for a, b in found.counts), len(found.counts))
        return [Judgement("walked paths are as many as the binomial coefficient", right.yes == right.total, str(right))]


@dataclass(frozen=True)
class Growth:
    """How many ways there are along one line of grids.

    Attributes:
        title: of the panel.
        over: what is along its axis.
        places: how long the side is (N,).
        logs: natural logarithms of the numbers (N,), read at the same step.
        late: likewise, with each layer one step late.
        degree: the power of the side that the number grows by at the end.
        bend: its last increment, as a logarithm, by that in the middle: 1 for a straight line.
    """

    title: str
    over: str
    places: Tensor
    logs: Tensor
    late: Tensor

    @property
    def degree(self) -> float:
        a, b = self.places[-2:].double().log()
        return float((self.logs[-1] - self.logs[-2]) / (b - a))

    @property
    def bend(self) -> float:
        steps = self.logs.diff()
        return float(steps[-1] / steps[len(steps) // 2])


class PathsFigure(Figure[list[Growth]]):
    """Fig. 1 b."""

    name, title = "1b", "Fig. 1 b"
    claim = "The number of gradient paths grows as a power of one side, and exponentially with both."
    fixed = 5

    def measure(self, asked: Asked, results: Sequence[Result]) -> list[Growth]:
        """Over steps, over layers, and over both."""
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
        """Three panels."""
        panels = {
            g.title: {"read at once (Lemma 2)": (g.places, g.logs), "a step late": (g.places, g.late)} for g in found
        }
        plot_paths(panels, out / PICTURE, over=[g.over for g in found])

    def judge(self, found: list[Growth]) -> list[Judgement]:
        """A power by its degree, an exponential by increments that stay."""
        *sides, both = found
        powers = [g.degree < self.fixed + 1e-6 and g.bend < 0.9 for g in sides]
        degrees = ", ".join(f"degree {g.degree:.2f} after {int(g.places[-1])} {g.over}" for g in sides)
        return [
            Judgement("polynomial with one side fixed", all(powers), degrees),
            Judgement(
                "exponential with both",
                abs(both.bend - 1) < 0.02,
                f"{both.logs.diff()[-1] / torch.log(torch.tensor(10.0)):.2f} decades for each layer, "
                f"{both.bend:.3f} of those half-way",
            ),
        ]
