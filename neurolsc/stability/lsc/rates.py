"""A control for pre-training: another network's firing rates, by scaling the thresholds alone."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from neurolsc.modes import evaluating
from neurolsc.network import Network, as_network
from neurolsc.neurons.thresholds import Thresholds
from neurolsc.validation import number, whole

SCALES = 1e-3, 1e3
"""Least and largest scale of thresholds: beyond, a network has none left, or only that."""


def match_firing_rates(
    network: Network, x: Tensor, rates: Sequence[float], *, tolerance: float = 0.1, halvings: int = 24
) -> list[float]:
    r"""Scale the thresholds of each layer, in place, until it fires at a given rate; bottom up.

    Of an ALIF :math:`b_\vartheta` and :math:`\beta` are multiplied, so that the whole threshold
    :math:`\vartheta[t]` scales; its time constants and all weights stay. Pre-training that only
    wakes a silent network does no better than this control.

    Args:
        network: layers whose cells say how their thresholds scale
            (:meth:`neurolsc.Cell.thresholds`).
        x: input (T, B, n_in).
        rates: wanted spikes per neuron and step, one per layer.
        tolerance: how far a rate may end from the wanted one, as a share of that. A rate moves in
            jumps where a network is small or its spikes feed on each other. ``math.inf`` takes what
            comes nearest, whatever it is.
        halvings: steps of bisection on the logarithm of the scale, from 1e-3 to 1e3.

    Returns:
        The rates reached.

    Raises:
        ValueError: if the number of rates is not that of the layers, a rate is outside [0, 1], or
            no scale in that range brings a layer within the tolerance; the network is then as
            before.
        TypeError: if a cell has no threshold, or network is not one.
    """
    cells, whole_number = as_network(network).cells, whole("halvings", halvings)
    if len(rates) != len(cells) or not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(f"rates must be {len(cells)} numbers in [0, 1], got {list(rates)}.")
    if tolerance != math.inf:
        number("tolerance", tolerance, zero_allowed=True)
    thresholds = [_thresholds(layer, network) for layer in range(len(cells))]
    reached: list[float] = []
    try:
        with evaluating(network):
            for layer, wanted in enumerate(rates):
                reached.append(_match(network, x, layer, thresholds[layer], wanted, tolerance, whole_number))
    except ValueError:
        for kept in thresholds:
            kept.scale(1.0)
        raise
    return reached


def _thresholds(layer: int, network: Network) -> Thresholds:
    cell = network.cells[layer]
    thresholds = cell.thresholds()
    if thresholds is None:
        raise TypeError(f"layer {layer + 1}, a {type(cell).__name__}, does not say how its thresholds scale.")
    return thresholds


def _match(
    network: Network, x: Tensor, layer: int, thresholds: Thresholds, wanted: float, tolerance: float, halvings: int
) -> float:
    """Leave a layer at the scale whose rate comes nearest; that rate."""

    def rate_at(log_scale: float) -> float:
        thresholds.scale(math.exp(log_scale))
        with torch.no_grad():
            return network.run(x).spikes[layer].ne(0).double().mean().item()

    low, high = map(math.log, SCALES)  # the rate falls as the scale grows
    at_low, at_high = rate_at(low), rate_at(high)
    for _ in range(halvings):
        middle = (low + high) / 2
        rate = rate_at(middle)
        if rate > wanted:
            low, at_low = middle, rate
        else:
            high, at_high = middle, rate
    nearest, scale = min((abs(at_low - wanted), low), (abs(at_high - wanted), high))
    if nearest > tolerance * wanted:
        raise ValueError(
            f"layer {layer + 1}: no scale of its thresholds from {SCALES[0]:g} to {SCALES[1]:g} gives {wanted:g} spikes "
            f"per neuron and step; nearest are {at_high:.4g} at {math.exp(high):.3g} and {at_low:.4g} at "
            f"{math.exp(low):.3g}. Give a larger tolerance than {tolerance:g} to take the nearest."
        )
    return rate_at(scale)
