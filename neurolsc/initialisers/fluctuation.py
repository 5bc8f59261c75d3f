"""Weights by the statistics of spikes: voltages that fluctuate, activity that propagates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.initialisers.base import (
    Initialiser,
    by_neuron,
    first_input,
    generator,
    impulse_response,
    input_matrices,
    membrane,
    normal,
    put,
    register,
    resting_threshold,
)
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import weight_matrices
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import rate, reads
from neurolsc.validation import number


@register
@dataclass(frozen=True)
class FluctuationDriven(Initialiser):
    r"""Weights under which spikes drive the voltage to a wanted mean and deviation in time.

    Of independent Poisson spikes of rate :math:`\nu` through weights of mean :math:`\mu_w` and deviation
    :math:`\sigma_w`, filtered by the neuron's :math:`\varepsilon(t)`, the voltage without threshold and reset has

    .. math:: \mu_U = n \nu\, \bar\varepsilon\, \mu_w, \quad
        \sigma_U^2 = n \nu\, \hat\varepsilon\, (\sigma_w^2 + \mu_w^2), \quad
        \bar\varepsilon = \sum_t \varepsilon(t), \quad \hat\varepsilon = \sum_t \varepsilon(t)^2,

    solved for the weights. With recurrence a share :math:`\alpha` of the variance comes from the inputs and the rest
    from the layer itself, while :math:`\mu_w` is the same for both.

    Measured, where the paper guesses one rate for all: :math:`\nu` of what each layer reads, bottom
    up (of inputs that are not 0 or 1, their mean and mean square), and of its own spikes, by drawing the same numbers
    for another rate until it fires at that; and the filter :math:`\varepsilon`, as the response to a small current.
    Assumed: spikes without correlations.

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
        wanted = {i: (membrane(network, i), input_matrices(network, i)) for i in network.spiking}
        with eval_mode(network):
            for layer, (of, below) in wanted.items():
                read, cell = reads(network, x, layer), network.cells[layer]
                if not read.any():
                    found.append(Finding(layer + 1, "reads no spikes", "let the layer below fire"))
                    continue
                own = weight_matrices(cell, "time")
                drawn = [normal(matrix, generator(seed, layer, matrix.name)) for matrix in (*below, *own)]
                response, threshold = impulse_response(cell, of, below, len(read)), resting_threshold(cell, of)
                share, mean = self.alpha if own else 1.0, read.double().mean().item()
                square, own_rate, short, silent = read.double().square().mean().item(), mean, False, False
                for _ in range(20):  # until the own rate is that for which the recurrence is drawn
                    sources = [(m, mean, square, share / len(below)) for m in below]
                    sources += [(m, own_rate, own_rate, (1 - share) / len(own)) for m in own]
                    drive = response.sum(0) * sum(m.fan_in * rate_of for m, rate_of, _, _ in sources)
                    mean_weight = self.mu * threshold / drive if self.mu else torch.zeros_like(drive)
                    short = False
                    for (matrix, _, power, part), numbers in zip(sources, drawn, strict=True):
                        variance = part * (self.sigma * threshold).square()
                        variance = variance / (matrix.fan_in * power * response.square().sum(0)) - mean_weight.square()
                        short |= bool((variance < 0).any())
                        deviation = variance.clamp(min=0).sqrt()
                        put(matrix, by_neuron(mean_weight, matrix) + by_neuron(deviation, matrix) * numbers)
                    fires = rate(cell, read)
                    if not own or abs(fires - own_rate) <= 0.01 * own_rate:
                        break
                    if silent := not fires:
                        break
                    own_rate = fires
                if silent:
                    cure = f"its recurrence was drawn for {own_rate:.3g} spikes per step; raise sigma"
                    found.append(Finding(layer + 1, "never fires", cure))
                elif short:
                    problem = "the mean alone makes more variance than sigma allows"
                    found.append(Finding(layer + 1, problem, "lower mu, or raise sigma"))
        return tuple(found)


@register
@dataclass(frozen=True)
class ActivityPropagation(Initialiser):
    r"""Normal weights that preserve the variance 1 of the voltage through spikes.

    .. math:: W_{ij} \sim N\Big(0, \frac{1}{n\, P(u > \vartheta)}\Big), \quad
        P(u > \vartheta) = \tfrac12 \mathrm{erfc}(\vartheta / \sqrt 2)

    A spike is 1 with probability P, so that n of them through such weights have mean square 1; with :math:`u \sim N(0,
    1)` below, it is the same above.

    The first layer reads data, so there P is the mean square of the first batch. Ours, since the paper's layers have no
    recurrence: the spikes of the layer itself are inputs like those from below, and n P is the sum over both. Assumed,
    as in the paper: a voltage without memory and reset, thresholds at rest (where a spike raises them, less fires), and
    wide layers.

    Source: Micheli, Booij, van Gemert & Tömen, arXiv:2410.00580 (the variance).
    """

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew; of the inputs the mean square is taken."""
        power = first_input(network, inputs).double().square().mean().item()
        wanted = {i: (membrane(network, i), input_matrices(network, i)) for i in network.spiking}
        if not power:
            return (Finding(1, "reads nothing", "give inputs that are not all 0"),)
        for layer, (of, below) in wanted.items():
            cell = network.cells[layer]
            own = weight_matrices(cell, "time")
            fires = torch.special.ndtr(-resting_threshold(cell, of)).mean().item()
            drive = sum(m.fan_in * power for m in below) + sum(m.fan_in * fires for m in own)
            for matrix in (*below, *own):
                put(matrix, normal(matrix, generator(seed, layer, matrix.name)) / math.sqrt(drive))
            power = fires
        return ()
