"""Set the radii directly: find each layer's two scales by root finding on the measured radii, without gradients.

Bottom up, one layer after the other. Through depth the derivative is linear in w_in, so its scale follows from one
measurement; the radius through time depends on the states, which the scale itself changes, so its scale is found by
Brent's method on a logarithmic axis. Layers above do not act on those below, so one sweep is enough.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from neurolsc.network import Network
from neurolsc.neurons.cell import Cell
from neurolsc.stability.cycles import NonSquare
from neurolsc.stability.lsc.rules import Rule
from neurolsc.stability.lsc.targets import Aim
from neurolsc.stability.measure import depth_radius, time_radius
from neurolsc.stability.transition import follow

_RANGE = math.log(1e4)


def scale_layers(
    network: Network,
    x: Tensor,
    steps: Tensor,
    goal: Aim,
    rule: Rule,
    *,
    non_square: NonSquare,
    include_input: bool,
    seed: int,
    on_measure: Callable[[int, float, float], None],
) -> None:
    """Scale every layer of a network, in place, until its mean radii meet the goal on one batch.

    A radius whose root is not bracketed by scales of 1e-4 to 1e4 is left at the scale that came closest.

    Args:
        network: the network.
        x: input (T, B, n_in).
        steps: the steps at which radii are measured (K,).
        goal: radii aimed at.
        rule: what a scale multiplies.
        non_square: what stands for the radius between unequal widths.
        include_input: scale the first layer's w_in too.
        seed: of the sub-matrices that are drawn.
        on_measure: called after each measurement with layer, scale and mean radius through time.
    """
    for layer, cell in enumerate(network.cells):
        if layer or include_input:
            transitions, _ = follow(network, x, steps)
            with torch.no_grad():
                depth = depth_radius(transitions[layer], layer, non_square, torch.Generator().manual_seed(seed)).radius
            if depth.mean() > 0:
                rule.apply(cell, time=1.0, depth=goal.depth / depth.mean().item())
        _scale_time(network, cell, layer, x, steps, goal.time, rule, on_measure)


def _scale_time(
    network: Network,
    cell: Cell,
    layer: int,
    x: Tensor,
    steps: Tensor,
    target: float,
    rule: Rule,
    on_measure: Callable[[int, float, float], None],
) -> None:
    start = {name: value.clone() for name, value in cell.state_dict().items()}
    tried: dict[float, float] = {}

    def miss(log_scale: float) -> float:
        cell.load_state_dict(start)
        rule.apply(cell, time=math.exp(log_scale), depth=1.0)
        with torch.no_grad():
            transitions, _ = follow(network, x, steps)
            radius = time_radius(transitions[layer], layer).radius.mean().item()
        tried[log_scale] = abs(radius - target)
        on_measure(layer, math.exp(log_scale), radius)
        return radius - target

    low, high = _bracket(miss)
    if low < high:
        from scipy.optimize import brentq  # slow to import, and only this method needs it

        brentq(miss, low, high, xtol=1e-4, maxiter=40, disp=False)
    miss(min(tried, key=tried.__getitem__))


def _bracket(miss: Callable[[float], float]) -> tuple[float, float]:
    """Widen away from scale 1 towards the root until the sign changes; an empty bracket if it never does."""
    here = miss(0.0)
    if here == 0:
        return 0.0, 0.0
    outward = -math.copysign(1.0, here)
    near, far = 0.0, outward * 0.25
    while abs(near) < _RANGE:
        if miss(far) * here <= 0:
            return min(near, far), max(near, far)
        near, far = far, outward * min(2 * abs(far), _RANGE)
    return 0.0, 0.0
