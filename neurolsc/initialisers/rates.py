"""All layers at one firing rate, by their thresholds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.initialisers.cells import told
from neurolsc.initialisers.initialiser import Initialiser, first_input, surrogate_faults
from neurolsc.initialisers.spec import register
from neurolsc.network import Network
from neurolsc.stability import match_firing_rates
from neurolsc.stability.findings import Finding
from neurolsc.validation import number


@register
@dataclass(frozen=True)
class RateMatching(Initialiser):
    r"""Thresholds scaled layer by layer until each fires at one rate; weights stay.

    .. math:: \vartheta_l \leftarrow c_l \vartheta_l, \quad
        \frac{1}{TBN} \sum_{t,b,i} z_{t,b,i}(c_l) = r

    With an ALIF's whole threshold, :math:`b_\vartheta` and :math:`\beta`, see
    :func:`neurolsc.match_firing_rates`. A rate that no scale from 1e-3 to 1e3 gives is approached
    as near as it goes, and told.

    Attributes:
        rate: r, spikes per neuron and step.
        tolerance: how far a rate may be from it, as a share, without being told.

    Source: ours.
    """

    rate: float
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        number("tolerance", self.tolerance, zero_allowed=True)
        if not number("rate", self.rate) < 1:
            raise ValueError(f"rate must be spikes per neuron and step, in (0, 1), got {self.rate}.")

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Scale the thresholds on the first batch."""
        x = first_input(network, inputs)
        for layer in network.spiking:
            _refuse_frozen(network, layer)
        reached = match_firing_rates(network, x, [self.rate] * len(network.cells), tolerance=math.inf)
        return tuple(surrogate_faults(network)) + tuple(
            Finding(
                layer,
                f"fires {rate:.3g} spikes per neuron and step, not {self.rate:g}",
                "its rate moves in jumps; take a wider layer, or weaker recurrence" if rate else "raise its weights",
            )
            for layer, rate in enumerate(reached, start=1)
            if abs(rate - self.rate) > self.tolerance * self.rate
        )


def _refuse_frozen(network: Network, layer: int) -> None:
    """Refuse a layer whose thresholds are frozen parameters: scaling would move them."""
    cell = network.cells[layer]
    thresholds, before = cell.thresholds(), {name: p.detach().clone() for name, p in cell.named_parameters()}
    if thresholds is None:
        return  # who matches the rates says so
    thresholds.scale(2.0)
    moved = [p for name, p in cell.named_parameters() if not torch.equal(p, before[name])]
    thresholds.scale(1.0)
    with torch.no_grad():
        for name, p in cell.named_parameters():
            p.copy_(before[name])
    if any(not p.requires_grad for p in moved):
        raise ValueError(f"{told(network, layer)} has frozen thresholds, which no rate may move.")
