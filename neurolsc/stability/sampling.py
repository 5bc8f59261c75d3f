r"""Points (step, sample) at which radii are measured: rectangles that grow until the means are known.

Radii are measured at the first k steps and the first b samples of a :class:`Grid`, and either number is doubled until
the standard error of every mean is below 1 %, or the work is beyond what takes seconds. The steps of a grid are drawn
one from each stretch of the run, and ordered so that the first k of them lie evenly over it, from a place that is
drawn: their mean is that of all steps in expectation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.stability.rules import error_parts
from neurolsc.stability.transitions import draw_steps

MOST = 32  # steps, and samples, of a grid
ALL = 64  # points of an input up to which all are measured at once, as long as that takes seconds
ENOUGH = 16  # points before which no standard error is believed
ERROR = 0.01  # standard error of a mean, relative to it, at which it is known
WORK = 3e10  # floating-point operations of eigenvalues after which no more points are drawn: about four seconds
DRAWN = 128  # rows of all random sub-matrices of a point together, where a single one has fewer
MOST_DRAWS = 16  # sub-matrices of a point
BY_PRODUCTS = 400  # size up to which products with vectors mostly give a radius
AUTOGRAD = 3.0  # how many times as long a radius takes without a closed form of the derivative


@dataclass(frozen=True)
class Grid:
    """Steps and samples of an input, of which some are measured.

    Attributes:
        steps: the steps (K,), increasing.
        samples: the samples (B,).
        order: which of the steps come first (K,).
        total: steps of the input.
    """

    steps: Tensor
    samples: Tensor
    order: Tensor
    total: int

    @classmethod
    def drawn(
        cls, total: int, batch: int, generator: torch.Generator, *, steps: int = MOST, samples: int = MOST
    ) -> "Grid":
        """Draw a grid of at most so many steps and samples of an input of `total` steps of `batch` samples."""
        count = min(total, steps)
        drawn = draw_steps(total, count, generator)
        shift = torch.randint(count, (1,), generator=generator)
        order = (spread(count) + shift) % count
        chosen = torch.randperm(batch, generator=generator)[: min(batch, samples)]
        return cls(drawn, chosen, order, total)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.steps), len(self.samples)

    def rectangle(self, shape: tuple[int, int]) -> Tensor:
        """Places of the first steps and samples among all points, step by step: (k, b)."""
        rows = self.order[: shape[0]].sort().values
        return rows.unsqueeze(1) * len(self.samples) + torch.arange(shape[1])


def spread(count: int) -> Tensor:
    """The numbers 0 to count - 1 in an order whose first ones lie evenly: by their bits from the last to the first."""
    bits = max(count - 1, 1).bit_length()

    def reversed_bits(number: int) -> int:
        return int(format(number, f"0{bits}b")[::-1], 2)

    return torch.tensor(sorted(range(count), key=reversed_bits))


def first_shape(grid: Grid, of_point: float, work: float = WORK) -> tuple[int, int]:
    """How many steps and samples are measured first, where a point may take so many operations."""
    steps, samples = grid.shape
    if steps * samples <= ALL and steps * samples * of_point <= work:
        return grid.shape
    return min(2, steps), min(2, samples)


def next_shape(
    shape: tuple[int, int], grid: Grid, measured: Sequence[Tensor], spent: float, work: float = WORK
) -> tuple[int, int] | None:
    """How many steps and samples are measured next; None if the means are known, or more would take too long.

    Args:
        shape: how many have been.
        grid: all that there are.
        measured: radii (k, b) at them, of all layers and directions.
        spent: floating-point operations that they took.
        work: operations after which no more are measured.
    """
    (steps, samples), (most_steps, most_samples) = shape, grid.shape
    if shape == grid.shape:
        return None
    parts = [error_parts(radii, grid.total) for radii in measured]
    means = [radii.double().mean().item() for radii in measured]
    if steps * samples >= ENOUGH and all(
        between + along <= (ERROR * mean) ** 2 for (between, along), mean in zip(parts, means, strict=True)
    ):
        return None
    more_steps, more_samples = min(2 * steps, most_steps), min(2 * samples, most_samples)
    relative = [
        (between / mean**2, along / mean**2) for (between, along), mean in zip(parts, means, strict=True) if mean
    ]
    worst = max(relative, key=sum, default=(0.0, 0.0))
    if steps * samples < ENOUGH:
        following = (more_steps, more_samples)
    elif (worst[0] >= worst[1] or steps == most_steps) and samples < most_samples:
        following = (steps, more_samples)
    else:
        following = (more_steps, samples)
    grown = following[0] * following[1] / (steps * samples)
    return following if spent * grown <= work else None


def operations(size: int, exact: Tensor) -> float:
    """Floating-point operations of the radii of matrices of a size, dense or by products (P,)."""
    dense = exact.sum().item()
    by_products = len(exact) - dense
    # LAPACK and what precedes it; a basis of about a hundred vectors
    return dense * 25 * size**3 + by_products * (200 * size**2 + 2e4 * size)


def draws(size: int) -> int:
    """How many sub-matrices of a size are drawn at a point: the radius of a small one varies much."""
    return min(max(DRAWN // size, 1), MOST_DRAWS)


def affordable(points: int, size: int) -> Tensor:
    """Places of some of so many points, evenly: at least four, and as many as take about a second at a size."""
    dense = torch.tensor([size > BY_PRODUCTS])
    count = min(points, max(int(WORK / 4 / operations(size, dense)), 4))
    return torch.arange(count) * points // count
