"""The derivatives of a network as products: through time and depth, also of unequal widths."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from neurolsc.eigen.autograd import Differentiated
from neurolsc.eigen.maps import Choice, Cycle, Flipped
from neurolsc.neurons.derivatives import LinearOperator
from neurolsc.stability.transition import Transitions, flat, output_below, step_by_input, step_by_state

NonSquare = Literal["submatrix", "singular"]
"""What stands for the radius between unequal widths: that of a random square sub-matrix (the
paper's released code), or the largest singular value. The text of the paper does not say."""


def time_cycle(t: Transitions) -> Cycle:
    """d h[t, l] / d h[t-1, l] at the points of t."""
    return Cycle([time_map(t)], t.x.shape[0])


def time_map(t: Transitions) -> LinearOperator:
    """The same as one map between states."""
    known = t.cell.derivatives()
    if known is None:
        return Differentiated(step_by_state(t), flat(t.before), t.x)
    return known.state_map(t.x, t.before)


def depth_maps(t: Transitions) -> list[LinearOperator]:
    """d h[t, l] / d h[t', l-1] at the points of t, in the order in which they act."""
    return [*_by_state_below(t), *by_input(t)]


def squared(maps: Sequence[LinearOperator], points: int) -> Cycle:
    """M times its transpose, whose radius is the square of M's largest singular value."""
    return Cycle([*maps, *(Flipped(part) for part in reversed(maps))], points)


def depth_cycle(t: Transitions, non_square: NonSquare, generator: torch.Generator) -> Cycle:
    """d h[t, l] / d h[t', l-1] at the points of t; in place of one not square, a square one.

    There is one point where it is the same at all. In place of what is not square stands a random
    sub-matrix, or M times its transpose, whose radius is the square of the largest singular value.
    """
    maps = depth_maps(t)
    rows, columns = maps[-1].rows, maps[0].columns
    points = t.x.shape[0]
    if all(part.same for part in maps) and (rows == columns or non_square == "singular"):
        points = 1
    if rows == columns:
        return Cycle(maps, points)
    if non_square == "singular":
        return squared(maps, points)
    long = max(rows, columns)
    choice = Choice(draw_lines(points, long, min(rows, columns), generator).to(t.x.device), long)
    return Cycle([*maps, choice] if rows > columns else [Flipped(choice), *maps], points)


def draw_lines(points: int, long: int, count: int, generator: torch.Generator) -> Tensor:
    """For each point `count` lines of `long`, in random order: (points, count)."""
    return torch.rand(points, long, generator=generator).argsort(-1)[:, :count]


def by_input(t: Transitions) -> Sequence[LinearOperator]:
    """d h[t, l] / d x."""
    known = t.cell.derivatives()
    if known is None:
        return [Differentiated(step_by_input(t), t.x, flat(t.before))]
    return known.input_maps(t.x, t.before)


def _by_state_below(t: Transitions) -> Sequence[LinearOperator]:
    """d x / d h below; nothing for the first layer."""
    if t.below is None:
        return []
    known = t.below.derivatives()
    if known is None:
        return [Differentiated(output_below(t), flat(t.state_below))]
    return known.output_maps(t.state_below)
