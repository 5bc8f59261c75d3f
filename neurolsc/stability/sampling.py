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
    """The numbers 0 to count - 1, ordered by their reversed bits: wherever one stops, those so far lie evenly."""
    bits = max(count - 1, 1).bit_length()

    def reversed_bits(number: int) -> int:
        return int(format(number, f"0{bits}b")[::-1], 2)

    return torch.tensor(sorted(range(count), key=reversed_bits))


def first_shape(grid: Grid, of_point: float, work: float = WORK) -> tuple[int, int]:
    """How many steps and samples are measured first, if a point takes at most `of_point` operations."""
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
    if shape == grid.shape:
        return None
    steps, samples = shape
    most_steps, most_samples = grid.shape
    known = True
    # of the radii with the largest relative error: its parts between samples and along steps, squared
    worst_between = worst_along = 0.0
    for radii in measured:
        between, along = error_parts(radii, grid.total)
        mean = radii.double().mean().item()
        known &= between + along <= (ERROR * mean) ** 2
        if mean and (between + along) / mean**2 > worst_between + worst_along:
            worst_between = between / mean**2
            worst_along = along / mean**2
    few = steps * samples < ENOUGH
    if known and not few:
        return None
    # Double the number of samples or of steps, whichever the error comes from; of few points double both.
    by_samples = (worst_between >= worst_along or steps == most_steps) and samples < most_samples
    following_steps = steps
    following_samples = samples
    if few or by_samples:
        following_samples = min(2 * samples, most_samples)
    if few or not by_samples:
        following_steps = min(2 * steps, most_steps)
    grown = following_steps * following_samples / (steps * samples)
    if spent * grown > work:
        return None
    return following_steps, following_samples


def operations(size: int, exact: Tensor) -> float:
    """Floating-point operations of the radii of matrices of a size, dense or by products (P,)."""
    dense = exact.sum().item()
    by_products = len(exact) - dense
    # of LAPACK with the products before it; of a basis of about a hundred vectors
    return dense * 25 * size**3 + by_products * (200 * size**2 + 2e4 * size)


def draws(size: int) -> int:
    """The number of sub-matrices drawn at a point: the smaller they are, the more their radii vary."""
    return min(max(DRAWN // size, 1), MOST_DRAWS)


def affordable(points: int, size: int) -> Tensor:
    """Indices of some of `points` points, evenly: at least four, and as many as take about a second at a size."""
    dense = torch.tensor([size > BY_PRODUCTS])
    count = min(points, max(int(WORK / 4 / operations(size, dense)), 4))
    return torch.arange(count) * points // count
