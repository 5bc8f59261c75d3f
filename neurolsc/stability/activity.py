"""What the neurons of a layer do: how many are dead, saturated, or fire together."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.metrics import is_binary

ALWAYS = 0.9
"""spikes per step above which a neuron counts as saturated: what it says then is its silence"""
STILL = 1e-12
"""variance of spikes below which there is but rounding"""


class Activity(NamedTuple):
    """What the neurons of a layer do; all NaN where outputs are not all 0 or 1."""

    rate: float
    """spikes per neuron and step"""
    dead: float
    """share of the neurons that fire at no step of any sample"""
    saturated: float
    """share of the neurons that fire at more than nine steps of ten"""
    synchrony: float
    """share of the neurons' variance over time that they have in common, see :func:`activity`"""


def activity(spikes: Tensor, mask: Tensor | None = None) -> Activity:
    r"""Look at the spikes of one layer.

    Synchrony is the variance over time of the layer's mean output over the mean variance of a
    neuron, both of each sample, then summed over samples,

    .. math:: \chi^2 = \frac{\sum_b \mathrm{var}_t\, \frac{1}{n} \sum_i z_i[t, b]}
        {\sum_b \frac{1}{n} \sum_i \mathrm{var}_t\, z_i[t, b]},

    1 where all neurons fire at the same steps, about 1 / n where they are independent, and NaN
    where none ever changes. An input that comes and goes drives it up as well.

    Args:
        spikes: outputs of a layer (T, B, n).
        mask: (T, B), bool, the steps that count; None: all.

    Returns:
        Rate, shares and synchrony.

    Cost: O(T B n).

    Source: Golomb & Rinzel, Physica D 72 (1994) (synchrony).
    """
    if not is_binary(spikes):
        return Activity(math.nan, math.nan, math.nan, math.nan)
    z = spikes.detach().double()
    alive = torch.ones(z.shape[:2], dtype=z.dtype, device=z.device) if mask is None else mask.double()
    rate = (z * alive.unsqueeze(-1)).sum((0, 1)) / alive.sum()
    together, apart = _variance(z.mean(-1, keepdim=True), alive), _variance(z, alive)
    changes = apart.mean(-1).sum()
    synchrony = (together.sum() / changes).item() if changes > STILL else math.nan
    return Activity(
        rate.mean().item(), (rate == 0).double().mean().item(), (rate > ALWAYS).double().mean().item(), synchrony
    )


def _variance(z: Tensor, alive: Tensor) -> Tensor:
    """Variance over the steps of each sample (B, n)."""
    weight = (alive / alive.sum(0)).unsqueeze(-1)
    return (weight * (z - (weight * z).sum(0)).square()).sum(0)
