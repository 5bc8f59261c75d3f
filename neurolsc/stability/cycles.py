"""The derivatives of a network as products: through time, and through depth also between unequal widths."""

from typing import Literal

import torch
from torch import Tensor

from neurolsc.eigen.maps import Choice, Cycle, Flipped, Map
from neurolsc.neurons.linear_maps import Differentiated, Spikes, SpikingStep, Voltage, Weights
from neurolsc.stability.transition import Transitions, flat, unflat

NonSquare = Literal["submatrix", "singular"]
"""What stands for the radius between unequal widths: that of a random square sub-matrix (the paper's released code), or
the largest singular value. The text of the paper does not say."""


def time_cycle(t: Transitions) -> Cycle:
    """d h[t, l] / d h[t-1, l] at the points of t."""
    if t.cell.has_closed_form():
        return Cycle([SpikingStep(t.cell.linearised(t.before))], t.x.shape[0])

    def step(h: Tensor, x: Tensor) -> Tensor:
        state = unflat(h, t.before)
        return flat(t.cell.update(x, t.cell.output(state), state))

    return Cycle([Differentiated(step, flat(t.before), t.x)], t.x.shape[0])


def depth_cycle(t: Transitions, non_square: NonSquare, generator: torch.Generator) -> Cycle:
    """d h[t, l] / d h[t', l-1] at the points of t; between unequal widths a square one in its place.

    There is one point where it is the same at all. In place of what is not square stands a random sub-matrix, or M times its
    transpose, whose radius is the square of the largest singular value.
    """
    maps = [*_by_state_below(t), *_by_input(t)]
    rows, columns = maps[-1].rows, maps[0].columns
    points = t.x.shape[0]
    if all(isinstance(part, Weights | Voltage) for part in maps) and (rows == columns or non_square == "singular"):
        points = 1
    if rows == columns:
        return Cycle(maps, points)
    if non_square == "singular":
        return Cycle([*maps, *(Flipped(part) for part in reversed(maps))], points)
    long = max(rows, columns)
    choice = Choice(draw_lines(points, long, min(rows, columns), generator).to(t.x.device), long)
    return Cycle([*maps, choice] if rows > columns else [Flipped(choice), *maps], points)


def draw_lines(points: int, long: int, count: int, generator: torch.Generator) -> Tensor:
    """For each point `count` lines of `long`, in random order: (points, count)."""
    return torch.rand(points, long, generator=generator).argsort(-1)[:, :count]


def _by_input(t: Transitions) -> list[Map]:
    """d h[t, l] / d x."""
    if t.cell.has_closed_form():
        weights = Weights(t.cell.w_in)  # type: ignore[arg-type]
        states = sum(leaf[0].numel() for leaf in t.before)
        return [weights] if states == weights.rows else [weights, Voltage(weights.rows)]

    def step(x: Tensor, h: Tensor) -> Tensor:
        state = unflat(h, t.before)
        return flat(t.cell.update(x, t.cell.output(state), state))

    return [Differentiated(step, t.x, flat(t.before))]


def _by_state_below(t: Transitions) -> list[Map]:
    """d x / d h below; nothing for the first layer."""
    below, state = t.below, t.state_below
    if below is None:
        return []
    if below.has_closed_form():
        step = below.linearised(state)
        return [Spikes(step.s, step.adaptation is not None)]
    return [Differentiated(lambda h: below.output(unflat(h, state)), flat(state))]
