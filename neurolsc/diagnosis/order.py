"""Whether an input came batch first."""

import math

import torch
from torch import Tensor

from neurolsc.diagnosis.batch import Given

GROUPS = 16
"""groups of neighbouring inputs whose sums are followed: one input alone may fire once"""
SMOOTH, ROUGH = 0.7, 0.9
"""below the one an axis is time, whose neighbours are alike; above the other it is samples, which
are drawn apart and give 1. Of a ratio of n values the deviation is 1 / sqrt(n), and many groups and
lines are taken together, so that chance stays within 0.1"""


def batch_first(given: Given) -> str:
    """Why the first two axes of an input look swapped; empty if they do not.

    Targets say it for sure where steps and samples differ in number. Else time is the axis along
    which neighbours are alike (:func:`roughness`); an input without any order in time, such as
    Poisson spikes at one rate, tells nothing.
    """
    steps, samples = given.x.shape[:2]
    if given.targets is not None and steps != samples:
        wanted = given.targets.shape[:1] if given.targets.ndim == 1 else given.targets.shape[:2]
        axes = (steps,) if given.targets.ndim == 1 else (samples, steps)
        if tuple(wanted) == axes:
            return f"there are {steps} targets, as many as x {tuple(given.x.shape)} has steps"
        return ""
    first, second = roughness(given.x, 0), roughness(given.x, 1)
    if first > ROUGH and second < SMOOTH:
        return f"neighbours are alike along its second axis (roughness {second:.2f}), not its first ({first:.2f})"
    return ""


def roughness(x: Tensor, axis: int) -> float:
    r"""The ratio of von Neumann along an axis of an input (T, B, N).

    .. math:: \eta = \frac{n}{n - 1} \frac{\sum_{i=1}^{n-1} (a_{i+1} - a_i)^2}
        {2 \sum_{i=1}^{n} (a_i - \bar a)^2},

    where a are the sums of groups of neighbouring inputs, and both sums run over all groups and all
    lines along the axis. It is 1 on the average for values in any order, and falls to 0 for smooth
    ones. NaN for fewer than 4 values, or where none changes.

    Source: J. von Neumann, Annals of Mathematical Statistics 12 (1941).
    """
    length = x.shape[axis]
    if length < 4:
        return math.nan
    sums = torch.stack([part.double().sum(2) for part in x.tensor_split(min(GROUPS, x.shape[2]), 2)])
    rows = sums.movedim(axis + 1, 0)
    spread = (rows - rows.mean(0)).square().sum()
    return (length / (length - 1) * rows.diff(dim=0).square().sum() / (2 * spread)).item()
