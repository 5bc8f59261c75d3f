"""Variances by fan: Glorot and He."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.initialisers.cells import input_synapses, normal, put
from neurolsc.initialisers.initialiser import Initialiser, generator
from neurolsc.initialisers.spec import register
from neurolsc.network import Network, as_network
from neurolsc.neurons.cell import WeightMatrix, weight_matrices
from neurolsc.stability.findings import Finding
from neurolsc.validation import number


@dataclass(frozen=True)
class _ByFan(Initialiser):
    """Input and recurrent matrices with a deviation that follows from their shape."""

    gain: float = 1.0

    def __post_init__(self) -> None:
        number("gain", self.gain)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew; inputs are not looked at."""
        below = [input_synapses(network, layer) for layer in range(len(as_network(network).cells))]
        for layer, cell in enumerate(network.cells):
            for matrix in (*below[layer], *weight_matrices(cell, "time")):
                put(matrix, self.gain * self.draw(matrix, generator(seed, layer, matrix.name)))
        return ()

    @abstractmethod
    def draw(self, matrix: WeightMatrix, generator: torch.Generator) -> Tensor:
        """A matrix at gain 1."""


@register
@dataclass(frozen=True)
class Glorot(_ByFan):
    r"""Uniform weights that keep variances forwards and backwards, of linear neurons.

    .. math:: W_{ij} \sim U(-a, a), \quad a = g \sqrt{\frac{6}{n_{in} + n_{out}}}

    Assumed: independent inputs of mean 0 and neurons that are linear about 0, which spiking ones
    are not. Input and recurrent matrices are treated alike.

    Attributes:
        gain: g.

    Source: Glorot & Bengio, AISTATS 2010, eq. 16.
    """

    def draw(self, matrix: WeightMatrix, generator: torch.Generator) -> Tensor:
        bound = math.sqrt(6 / (matrix.fan_in + matrix.fan_out))
        uniform = torch.rand(matrix.weights.shape, generator=generator, dtype=torch.float64)
        return bound * (2 * uniform - 1)


@register
@dataclass(frozen=True)
class He(_ByFan):
    r"""Normal weights that keep the mean square forwards, of rectified neurons.

    .. math:: W_{ij} \sim N\Big(0, \frac{2 g^2}{n_{in}}\Big)

    Assumed: neurons that are linear above 0 and silent below, and inputs that are symmetric about
    0. Input and recurrent matrices are treated alike.

    Attributes:
        gain: g.

    Source: He et al., arXiv:1502.01852, eq. 10.
    """

    def draw(self, matrix: WeightMatrix, generator: torch.Generator) -> Tensor:
        return math.sqrt(2 / matrix.fan_in) * normal(matrix, generator)
