"""Weights by their variance: as built, by fan, by the surrogate's slope, by measured voltages."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from neurolsc.initialisers.base import (
    Initialiser,
    first_input,
    generator,
    input_matrices,
    layer_name,
    membrane,
    normal,
    orthogonal,
    put,
    register,
    scaling,
    voltages,
)
from neurolsc.network import Network, as_network, eval_mode
from neurolsc.neurons.cell import Membrane, WeightMatrix, weight_matrices
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import reads, settle
from neurolsc.validation import number, one_of


@register
@dataclass(frozen=True)
class Default(Initialiser):
    """Nothing is changed: the weights are those that the cells drew when they were made.

    Of our cells these are Glorot uniform.

    Source: arXiv:2308.12075, App. H.
    """

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Change nothing."""
        as_network(network)
        return ()


@dataclass(frozen=True)
class _ByFan(Initialiser):
    """Input and recurrent matrices with a deviation that follows from their shape."""

    gain: float = 1.0

    def __post_init__(self) -> None:
        number("gain", self.gain)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew; inputs are not used."""
        below = [input_matrices(network, layer) for layer in range(len(as_network(network).cells))]
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
    r"""Uniform weights that preserve variances forwards and backwards, of linear neurons.

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
    r"""Normal weights that preserve the mean square forwards, of rectified neurons.

    .. math:: W_{ij} \sim N\Big(0, \frac{2 g^2}{n_{in}}\Big)

    Assumed: neurons that are linear above 0 and silent below, and inputs that are symmetric about
    0. Input and recurrent matrices are treated alike.

    Attributes:
        gain: g.

    Source: He et al., arXiv:1502.01852, eq. 10.
    """

    def draw(self, matrix: WeightMatrix, generator: torch.Generator) -> Tensor:
        return math.sqrt(2 / matrix.fan_in) * normal(matrix, generator)


@register
@dataclass(frozen=True)
class IKUN(Initialiser):
    r"""Initialization to keep SNN training great with surrogate-stable variance.

    .. math:: W_{ij} \sim N\Big(0, \frac{\beta}{n_{in}}\Big) \;\text{or}\;
        N\Big(0, \frac{\beta}{n_{in} + n_{out}}\Big), \quad
        \frac1\beta = \frac12 \int_{-1}^{1} \Big|\frac{dz}{dv}(v - \vartheta = u)\Big|\, du

    The formulas are those of the released code, which knows one surrogate and no recurrence; here the mean is that of
    each layer's surrogate, with its dampening, and recurrent matrices get the variance of their own shape.

    Attributes:
        version: ``"v1"``: the first variance; ``"v2"``: the second.

    Source: Chang, Wang & Yang, arXiv:2411.18250, and its released code.
    """

    version: Literal["v1", "v2"] = "v1"

    def __post_init__(self) -> None:
        one_of("version", self.version, ("v1", "v2"))

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew; inputs are not used."""
        layers = as_network(network).spiking
        slopes = {i: mean_slope(membrane(network, i), network.cells[i].dtype_and_device) for i in layers}
        below = {i: input_matrices(network, i) for i in layers}
        for i in layers:
            if not slopes[i] > 0:
                name = layer_name(network, i)
                raise ValueError(f"{name} has a surrogate without a derivative within 1 of its threshold.")
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


@register
@dataclass(frozen=True)
class LSUV(Initialiser):
    r"""Layer-sequential unit variance, over time: of the voltages of a run, bottom up.

    .. math:: W \leftarrow c_l\, Q, \quad \mathrm{Var}_{t,b,i}\, v_{t,b,i}(c_l) = s^2

    with Q orthonormal rows or columns. One scale per layer is found for its input and recurrent matrices together, by
    root finding: leaks, resets and spikes make the variance anything but proportional to the square of the scale. The
    variance is over all steps, samples and neurons of the first batch, about the mean of all of them.

    Ours is the run over time: the paper divides the weights of feed-forward layers by the deviation
    of their outputs on one batch, a few times.

    Attributes:
        variance: the variance wanted.
        orthonormal: start from orthonormal matrices, as the paper; else from the present ones.

    Source: Mishkin & Matas, arXiv:1511.06422, algorithm 1.
    """

    variance: float = 1.0
    orthonormal: bool = True

    def __post_init__(self) -> None:
        number("variance", self.variance)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set all layers on the first batch; a variance that misses by 5 % is a finding."""
        x, found = first_input(network, inputs), []
        wanted = {i: (membrane(network, i), input_matrices(network, i)) for i in network.spiking}
        with eval_mode(network):
            for layer, (of, below) in wanted.items():
                cell, read = network.cells[layer], reads(network, x, layer)
                matrices = (*below, *weight_matrices(cell, "time"))
                for matrix in matrices if self.orthonormal else ():
                    put(matrix, orthogonal(matrix, generator(seed, layer, matrix.name)))

                def log_variance(cell=cell, of=of, read=read) -> float:
                    return math.log(max(voltages(cell, of, read).double().var(correction=0).item(), 1e-30))

                target, reach = math.log(self.variance), math.log(1e4)
                log = settle(scaling(matrices), log_variance, target, reach=reach, close=0.01)
                if abs(math.exp(log) / self.variance - 1) > 0.05:
                    reached = math.exp(log) if log > math.log(1e-30) else 0.0
                    problem = f"the variance of its voltages is {reached:.3g}, not {self.variance:g}"
                    cure = "it moves in jumps" if reached else "nothing reaches it: let the layer below fire"
                    found.append(Finding(layer + 1, problem, cure))
        return tuple(found)
