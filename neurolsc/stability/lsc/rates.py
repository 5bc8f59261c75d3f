"""A control for pre-training: another network's firing rates, by scaling the thresholds alone."""

import math
from collections.abc import Sequence

from torch import Tensor

from neurolsc.network import Network, as_network, eval_mode
from neurolsc.neurons.cell import Thresholds
from neurolsc.stability.one_layer import next_reads, reads, scale_to_rate
from neurolsc.validation import number, tensor

REACH = 1e3
"""Largest scale of thresholds, and one over the least: beyond, no threshold is left that means
anything, or nothing but the threshold."""


def match_firing_rates(network: Network, x: Tensor, rates: Sequence[float], *, tolerance: float = 0.1) -> list[float]:
    r"""Scale the thresholds of each layer, in place, until it fires at a given rate; bottom up.

    Of an ALIF :math:`b_\vartheta` and :math:`\beta` are multiplied, so that the whole threshold
    :math:`\vartheta[t]` scales; its time constants and all weights stay. Pre-training that only
    wakes a silent network does no better than this control.

    Cost: ten to twenty runs of each layer alone.

    Args:
        network: layers whose cells say how their thresholds scale
            (:meth:`neurolsc.Cell.thresholds`).
        x: input (T, B, n_in).
        rates: wanted spikes per neuron and step, one per layer; that of an integrator, such as
            norse's LI, is not used.
        tolerance: how far a rate may end from the wanted one, as a share of that. A rate moves in
            jumps where a network is small or its spikes feed on each other. ``math.inf`` takes what
            comes nearest, whatever it is.

    Returns:
        The rates reached; NaN of an integrator.

    Raises:
        ValueError: if the number of rates is not that of the layers, a rate is outside [0, 1], or
            no scale in that range brings a layer within the tolerance; the network is then as
            before.
        TypeError: if a cell does not say how its thresholds scale, all are integrators, or network
            is not one.
    """
    cells, x = as_network(network).cells, tensor("x", x)
    if len(rates) != len(cells) or not all(0 <= rates[i] <= 1 for i in network.spiking):
        raise ValueError(f"rates must be {len(cells)} numbers in [0, 1], got {list(rates)}.")
    if tolerance != math.inf:
        number("tolerance", tolerance, zero_allowed=True)
    thresholds = {layer: _thresholds(layer, network) for layer in network.spiking}
    if not thresholds:
        raise TypeError("no layer spikes: all are integrators, whose thresholds nothing can scale.")
    reached: list[float] = []
    try:
        with eval_mode(network):
            read = reads(network, x.to_dense() if x.is_sparse else x, 0)
            for layer, (cell, wanted) in enumerate(zip(cells, rates, strict=True)):
                own = thresholds.get(layer)
                reached.append(math.nan if own is None else scale_to_rate(cell, own, read, wanted, reach=REACH))
                if abs(reached[-1] - wanted) > tolerance * wanted:
                    raise ValueError(
                        f"layer {layer + 1}: no scale of its thresholds from {1 / REACH:g} to {REACH:g} gives "
                        f"{wanted:g} spikes per neuron and step; the nearest that was found is {reached[-1]:.4g}. Give "
                        f"a larger tolerance than {tolerance:g} to take that."
                    )
                read = next_reads(network, read, layer)
    except ValueError:
        for changed in thresholds.values():
            changed.scale(1.0)
        raise
    return reached


def _thresholds(layer: int, network: Network) -> Thresholds:
    cell = network.cells[layer]
    thresholds = cell.thresholds()
    if thresholds is None:
        raise TypeError(no_thresholds(f"layer {layer + 1}, a {type(cell).__name__},"))
    return thresholds


def no_thresholds(layer: str) -> str:
    """The message for a layer without thresholds, and what to use instead."""
    return (
        f"{layer} does not say how its thresholds scale: use a start of weights alone, Glorot(), Orthogonal() or LSC(), "
        "or write its thresholds()."
    )
