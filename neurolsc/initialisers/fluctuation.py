"""Voltages that fluctuate about a mean below the threshold."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.initialisers.cells import (
    by_neuron,
    impulse_response,
    input_synapses,
    membrane,
    normal,
    put,
    resting_threshold,
)
from neurolsc.initialisers.initialiser import Initialiser, first_input, generator
from neurolsc.initialisers.spec import register
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import Cell, Membrane, WeightMatrix, weight_matrices
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import rate, reads
from neurolsc.validation import number

_TURNS, _SAME = 20, 0.01
"""most turns until a layer's own rate is that for which its recurrence was drawn, to this share"""


@register
@dataclass(frozen=True)
class FluctuationDriven(Initialiser):
    r"""Weights under which spikes drive the voltage to a given mean and deviation in time.

    Of independent Poisson spikes of rate :math:`\nu` through weights of mean :math:`\mu_w` and
    deviation :math:`\sigma_w`, filtered by the neuron's :math:`\varepsilon(t)`, the voltage without
    threshold and reset has

    .. math:: \mu_U = n \nu\, \bar\varepsilon\, \mu_w, \quad
        \sigma_U^2 = n \nu\, \hat\varepsilon\, (\sigma_w^2 + \mu_w^2), \quad
        \bar\varepsilon = \sum_t \varepsilon(t), \quad \hat\varepsilon = \sum_t \varepsilon(t)^2,

    solved for the weights. With recurrence a share :math:`\alpha` of the variance comes from the
    inputs and the rest from the layer itself, while :math:`\mu_w` is the same for both.

    Measured, where the paper guesses one rate for all: :math:`\nu` of what each layer reads, bottom
    up (of inputs that are not 0 or 1, their mean and mean square), and of its own spikes, by
    drawing the same numbers for another rate until it fires at that; and the filter
    :math:`\varepsilon`, as the response to a small current. Assumed: spikes without correlations.

    Attributes:
        mu: :math:`\mu_U`, in resting thresholds of the neuron (the paper's threshold is 1).
        sigma: :math:`\sigma_U`, likewise; the paper's :math:`\xi` is (1 - mu) / sigma.
        alpha: :math:`\alpha`, in (0, 1]; 1 leaves the recurrence without variance.

    Source: Rossbroich, Gygax & Zenke, arXiv:2206.10226, and its released code.
    """

    mu: float = 0.0
    sigma: float = 1.0
    alpha: float = 0.9

    def __post_init__(self) -> None:
        number("sigma", self.sigma)
        number("mu", abs(self.mu), zero_allowed=True)
        if not number("alpha", self.alpha) <= 1:
            raise ValueError(f"alpha must be in (0, 1], got {self.alpha}.")

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew, for the rates on the first batch."""
        x, found = first_input(network, inputs), list[Finding]()
        wanted = {i: (membrane(network, i), input_synapses(network, i)) for i in network.spiking}
        with eval_mode(network):
            for layer, (of, below) in wanted.items():
                read = reads(network, x, layer)
                if not read.any():
                    found.append(Finding(layer + 1, "reads no spikes", "let the layer below fire"))
                    continue
                plan = _Plan.of(self, network.cells[layer], of, below, read, layer, seed)
                problem = plan.settle()
                if problem:
                    found.append(Finding(layer + 1, *problem))
        return tuple(found)


@dataclass(frozen=True)
class _Plan:
    """What the weights of one layer are drawn for."""

    wanted: FluctuationDriven
    cell: Cell
    read: Tensor
    below: tuple[WeightMatrix, ...]
    own: tuple[WeightMatrix, ...]
    numbers: list[Tensor]
    """standard normal numbers of the matrices below, then of its own"""
    threshold: Tensor
    mean_filter: Tensor
    square_filter: Tensor

    @classmethod
    def of(
        cls,
        wanted: FluctuationDriven,
        cell: Cell,
        of: Membrane,
        below: tuple[WeightMatrix, ...],
        read: Tensor,
        layer: int,
        seed: int,
    ) -> "_Plan":
        """Draw the numbers, and measure the filter."""
        own = weight_matrices(cell, "time")
        numbers = [normal(matrix, generator(seed, layer, matrix.name)) for matrix in (*below, *own)]
        response = impulse_response(cell, of, below, len(read))
        filters = response.sum(0), response.square().sum(0)
        return cls(wanted, cell, read, below, own, numbers, resting_threshold(cell, of), *filters)

    def settle(self) -> tuple[str, str] | None:
        """Set the weights, until the own rate is that for which they are drawn; what went wrong."""
        expected, short = self.read.double().mean().item(), False
        for _ in range(_TURNS):
            short = self.set(expected)
            fires = rate(self.cell, self.read)
            if not self.own or abs(fires - expected) <= _SAME * expected:
                break
            if not fires:
                return "never fires", f"its recurrence was drawn for {expected:.3g} spikes per step; raise sigma"
            expected = fires
        if short:
            return "the mean alone makes more variance than sigma allows", "lower mu, or raise sigma"
        return None

    def set(self, own_rate: float) -> bool:
        """Set the weights for a rate of the layer itself; whether a variance had to be cut at 0."""
        read, wanted = self.read.double(), self.wanted
        share = wanted.alpha if self.own else 1.0
        mean_drive, square_drive = read.mean().item(), read.square().mean().item()
        sources = [(m, mean_drive, square_drive, share / len(self.below)) for m in self.below]
        sources += [(m, own_rate, own_rate, (1 - share) / len(self.own)) for m in self.own]
        drive = self.mean_filter * sum(m.fan_in * mean for m, mean, _, _ in sources)
        mean_weight = wanted.mu * self.threshold / drive if wanted.mu else torch.zeros_like(drive)
        short = False
        for (matrix, _, square, part), numbers in zip(sources, self.numbers, strict=True):
            variance = part * (wanted.sigma * self.threshold).square() / (matrix.fan_in * square * self.square_filter)
            variance = variance - mean_weight.square()
            short |= bool((variance < 0).any())
            deviation = variance.clamp(min=0).sqrt()
            put(matrix, by_neuron(mean_weight, matrix) + by_neuron(deviation, matrix) * numbers)
        return short
