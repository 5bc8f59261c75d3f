"""Weights by the mean derivative of the surrogate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from neurolsc.initialisers.cells import input_synapses, membrane, normal, put, told
from neurolsc.initialisers.initialiser import Initialiser, generator
from neurolsc.initialisers.spec import register
from neurolsc.network import Network, as_network
from neurolsc.neurons.cell import Membrane, weight_matrices
from neurolsc.stability.findings import Finding
from neurolsc.validation import one_of


@register
@dataclass(frozen=True)
class IKUN(Initialiser):
    r"""Initialization to keep SNN training great with surrogate-stable variance.

    .. math:: W_{ij} \sim N\Big(0, \frac{\beta}{n_{in}}\Big) \;\text{or}\;
        N\Big(0, \frac{\beta}{n_{in} + n_{out}}\Big), \quad
        \frac1\beta = \frac12 \int_{-1}^{1} \Big|\frac{dz}{dv}(v - \vartheta = u)\Big|\, du

    The formulas are those of the released code, which knows one surrogate and no recurrence; the
    mean is taken here of whatever surrogate a layer has, with its dampening, and recurrent matrices
    get the variance of their own shape.

    Attributes:
        version: ``"v1"``: the first variance; ``"v2"``: the second.

    Source: Chang, Wang & Yang, arXiv:2411.18250, and its released code.
    """

    version: Literal["v1", "v2"] = "v1"

    def __post_init__(self) -> None:
        one_of("version", self.version, ("v1", "v2"))

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew; inputs are not looked at."""
        layers = as_network(network).spiking
        slopes = {i: mean_slope(membrane(network, i), network.cells[i].dtype_and_device) for i in layers}
        below = {i: input_synapses(network, i) for i in layers}
        for i in layers:
            if not slopes[i] > 0:
                raise ValueError(f"{told(network, i)} has a surrogate without a derivative within 1 of its threshold.")
        for i in layers:
            for matrix in (*below[i], *weight_matrices(network.cells[i], "time")):
                fan = matrix.fan_in + (matrix.fan_out if self.version == "v2" else 0)
                put(matrix, normal(matrix, generator(seed, i, matrix.name)) / math.sqrt(slopes[i] * fan))
        return ()


def mean_slope(of: Membrane, like: dict[str, object]) -> float:
    """The mean of the surrogate's derivative within 1 of the threshold, over all neurons."""
    with torch.enable_grad():
        distance = torch.linspace(-1, 1, 2001, **like).unsqueeze(1).requires_grad_()  # type: ignore[call-overload]
        sent = of.spike(distance)
        ones = torch.ones_like(sent)
        (slope,) = torch.autograd.grad(sent, distance, ones, materialize_grads=True, allow_unused=True)
    return (slope.abs().double().mean() / sent.shape[1]).item()
