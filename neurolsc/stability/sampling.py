r"""Points (step, sample) at which radii are measured: a rectangle of steps and samples grows until the means are known.

Radii are measured at the first k steps and the first b samples of a :class:`Grid`, and either number is doubled until
the standard error of every mean is below 1 %, or the work is beyond what takes seconds. The steps of a grid are drawn
one from each stretch of the run, and ordered so that the first k of them lie evenly over it. The order starts at a
random step, so the expected mean over the first k is the mean over all steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.stability.rules import error_parts
from neurolsc.stability.transitions import draw_steps

MOST = 32  # steps, and samples, of a grid
ALL = 64  # a grid of at most so many points is measured at once, unless that takes more than WORK
ENOUGH = 16  # with fewer points no standard error is believed
# With fewer steps neither: they may all miss the start of a run, where radii differ. With 4 of 25 steps, up to 28 % of
# the draws of a mean of two LIF of 200 neurons were off by more than three standard errors; with 16 up to 4 %.
ENOUGH_STEPS = 16
ERROR = 0.01  # a mean is known if its standard error is at most this share of it
WORK = 3e10  # floating-point operations of eigenvalues after which no more points are drawn: about four seconds
DRAWN = 128  # rows that all random sub-matrices of a point have together, at most, unless a single one has more
MOST_DRAWS = 16  # largest number of sub-matrices of a point
BY_PRODUCTS = 400  # size of matrices up to which products with vectors mostly give the radius
AUTOGRAD = 3.0  # how many times as long a radius takes without a closed form of the derivative


@dataclass(frozen=True)
class Grid:
    """Steps and samples of an input, of which some are measured.

    Attributes:
        steps: indices of the steps (K,), increasing.
        samples: indices of the samples (B,), in the order in which they are measured.
        order: places of the steps in `steps` (K,), in the order in which they are measured.
        total: number of steps of the input.
    """

    steps: Tensor
    samples: Tensor
    order: Tensor
    total: int

    @classmethod
    def drawn(
        cls, total: int, batch: int, generator: torch.Generator, *, steps: int = MOST, samples: int = MOST
    ) -> "Grid":
        """Draw a grid of at most `steps` by `samples` points of an input of `total` steps and `batch` samples."""
        count = min(total, steps)
        drawn = draw_steps(total, count, generator)
        # Often only the first of the order are measured: without a shift the earliest step would always be among them.
        shift = torch.randint(count, (1,), generator=generator)
        order = (spread(count) + shift) % count
        chosen = torch.randperm(batch, generator=generator)[: min(batch, samples)]
        return cls(drawn, chosen, order, total)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of steps and samples, (K, B)."""
        return len(self.steps), len(self.samples)

    def rectangle(self, shape: tuple[int, int]) -> Tensor:
        """Places (k, b) of the first k steps and b samples, `shape`, among all K B points counted step by step."""
        rows = self.order[: shape[0]].sort().values
        return rows.unsqueeze(1) * len(self.samples) + torch.arange(shape[1])


def spread(count: int) -> Tensor:
    """The numbers 0 to count - 1 (count,), ordered by their reversed bits, so that the first ones always lie evenly."""
    bits = max(count - 1, 1).bit_length()

    def reversed_bits(number: int) -> int:
        return int(format(number, f"0{bits}b")[::-1], 2)

    return torch.tensor(sorted(range(count), key=reversed_bits))


def first_shape(grid: Grid, of_point: float, work: float = WORK) -> tuple[int, int]:
    """How many steps and samples are measured first, if a point takes at most `of_point` operations.

    That is all of a small grid, if it takes at most `work` operations; else two of each.
    """
    steps, samples = grid.shape
    if steps * samples <= ALL and steps * samples * of_point <= work:
        return grid.shape
    return min(2, steps), min(2, samples)


def next_shape(
    shape: tuple[int, int], grid: Grid, measured: Sequence[Tensor], spent: float, work: float = WORK
) -> tuple[int, int] | None:
    """Return how many steps and samples are measured next; None if no more are to be measured.

    No more are measured if there are none, if the means are known or if more would take too long. A mean is known if
    its standard error is at most ERROR of it.

    Args:
        shape: how many steps k and samples b have been measured.
        grid: the steps and samples that there are.
        measured: radii (k, b) at them, a tensor for each layer and direction.
        spent: floating-point operations that these took.
        work: the most operations that all measurements together may take.
    """
    if shape == grid.shape:
        return None
    steps, samples = shape
    most_steps, most_samples = grid.shape
    known = True
    # The square of the largest relative error of all layers and directions, in two parts: between samples, along steps.
    worst_between = worst_along = 0.0
    for radii in measured:
        between, along = error_parts(radii, grid.total)
        mean = radii.double().mean().item()
        known &= between + along <= (ERROR * mean) ** 2
        if mean and (between + along) / mean**2 > worst_between + worst_along:
            worst_between = between / mean**2
            worst_along = along / mean**2
    few_points = steps * samples < ENOUGH  # too few to know the error
    few_steps = steps < min(ENOUGH_STEPS, most_steps)
    if known and not few_points and not few_steps:
        return None
    # Double the number of samples or of steps, whichever the error comes from; of few points double both.
    by_samples = (worst_between >= worst_along or steps == most_steps) and samples < most_samples and not few_steps
    following_steps = steps
    following_samples = samples
    if few_points or by_samples:
        following_samples = min(2 * samples, most_samples)
    if few_points or not by_samples:
        following_steps = min(2 * steps, most_steps)
    growth = following_steps * following_samples / (steps * samples)
    if spent * growth > work:
        return None
    return following_steps, following_samples


def operations(size: int, exact: Tensor) -> float:
    """Floating-point operations of the radii of P matrices (size, size), of which `exact` (P,) are from LAPACK."""
    dense = exact.sum().item()
    by_products = len(exact) - dense
    of_lapack = 25 * size**3  # with the products that were tried before it
    of_basis = 200 * size**2 + 2e4 * size  # of about a hundred vectors
    return dense * of_lapack + by_products * of_basis


def draws(size: int) -> int:
    """The number of sub-matrices of a size to draw at a point: small ones need more, as their radii vary more."""
    return min(max(DRAWN // size, 1), MOST_DRAWS)


def affordable(points: int, size: int) -> Tensor:
    """Indices of evenly chosen points among `points`, as many as take about a second with matrices of a size.

    At least four are chosen, if there are so many.
    """
    dense = torch.tensor([size > BY_PRODUCTS])  # larger matrices often go by LAPACK
    seconds = 4  # how long WORK takes
    count = min(points, max(int(WORK / seconds / operations(size, dense)), 4))
    return torch.arange(count) * points // count
