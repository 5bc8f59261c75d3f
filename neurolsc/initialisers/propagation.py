"""Weights that hand activity on through many layers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.initialisers.cells import input_synapses, membrane, normal, put, resting_threshold
from neurolsc.initialisers.initialiser import Initialiser, first_input, generator
from neurolsc.initialisers.spec import register
from neurolsc.network import Network
from neurolsc.neurons.cell import weight_matrices
from neurolsc.stability.findings import Finding


@register
@dataclass(frozen=True)
class ActivityPropagation(Initialiser):
    r"""Normal weights that keep the variance of the voltage at 1 through spikes.

    .. math:: W_{ij} \sim N\Big(0, \frac{1}{n\, P(u > \vartheta)}\Big), \quad
        P(u > \vartheta) = \tfrac12 \mathrm{erfc}(\vartheta / \sqrt 2)

    A spike is 1 with probability P, so that n of them through such weights have mean square 1; with
    :math:`u \sim N(0, 1)` below, it is the same above.

    The first layer reads data, so there P is the mean square of the first batch. Ours, since the
    paper's layers have no recurrence: the spikes of the layer itself are inputs like those from
    below, and n P is the sum over both. Assumed, as in the paper: a voltage without memory and
    reset, thresholds at rest (where a spike raises them, less fires), and wide layers.

    Source: Micheli, Booij, van Gemert & Tömen, arXiv:2410.00580 (the variance).
    """

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew; of the inputs the mean square is taken."""
        power = first_input(network, inputs).double().square().mean().item()
        wanted = {i: (membrane(network, i), input_synapses(network, i)) for i in network.spiking}
        if not power:
            return (Finding(1, "reads nothing", "give inputs that are not all 0"),)
        for layer, (of, below) in wanted.items():
            cell = network.cells[layer]
            own, fires = weight_matrices(cell, "time"), _share_above(resting_threshold(cell, of))
            drive = sum(m.fan_in * power for m in below) + sum(m.fan_in * fires for m in own)
            for matrix in (*below, *own):
                put(matrix, normal(matrix, generator(seed, layer, matrix.name)) / math.sqrt(drive))
            power = fires
        return ()


def _share_above(threshold: Tensor) -> float:
    """The share of neurons whose standard normal voltage is above their threshold."""
    return torch.special.ndtr(-threshold).mean().item()
