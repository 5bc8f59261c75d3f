"""A control for pre-training: give a network another one's firing rates by scaling its thresholds alone."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from neurolsc.network import Network
from neurolsc.neurons.thresholds import Thresholds


def match_firing_rates(network: Network, x: Tensor, rates: Sequence[float], *, halvings: int = 24) -> list[float]:
    r"""Scale the thresholds of each layer, in place, until it fires at a given rate; layer by layer, bottom up.

    Of an ALIF :math:`b_\vartheta` and :math:`\beta` are multiplied, so that the whole threshold
    :math:`\vartheta[t]` scales; its time constants and all weights stay. Pre-training that only wakes a silent network does
    no better than this control.

    Args:
        network: LIF and ALIF layers.
        x: input (T, B, n_in).
        rates: wanted spikes per neuron and step, one per layer.
        halvings: steps of bisection on the logarithm of the scale, from 1e-6 to 1e3.

    Returns:
        The rates reached, which differ from the wanted ones where no scale gives them.

    Raises:
        ValueError: if the number of rates is not that of the layers, or a rate is outside [0, 1].
        TypeError: if a cell has no threshold.
    """
    if len(rates) != len(network.cells) or not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"rates must be {len(network.cells)} numbers in [0, 1], got {list(rates)}.")
    reached = []
    for layer, (cell, wanted) in enumerate(zip(network.cells, rates, strict=True)):
        start = cell.thresholds()
        if start is None:
            raise TypeError(f"layer {layer + 1}, a {type(cell).__name__}, does not say how its thresholds scale.")
        low, high = math.log(1e-6), math.log(1e3)  # the rate falls as the scale grows
        for _ in range(halvings):
            middle = (low + high) / 2
            rate = _rate_at(network, x, layer, start, math.exp(middle))
            low, high = (middle, high) if rate > wanted else (low, middle)
        reached.append(_rate_at(network, x, layer, start, math.exp((low + high) / 2)))
    return reached


def _rate_at(network: Network, x: Tensor, layer: int, thresholds: Thresholds, scale: float) -> float:
    thresholds.scale(scale)
    with torch.no_grad():
        return network.run(x).spikes[layer].ne(0).double().mean().item()
