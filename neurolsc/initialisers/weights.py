"""Weights by variance: as built, by fan, by the surrogate's slope, by voltages, by the statistics of spikes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from neurolsc.initialisers.base import (
    Initialiser,
    Layer,
    by_neuron,
    first_input,
    generator,
    layers_of,
    put,
    register,
    scaling,
)
from neurolsc.network import Network, as_network, eval_mode
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import rate, reads, settle
from neurolsc.validation import number, one_of


@register
@dataclass(frozen=True)
class Default(Initialiser):
    """Nothing is changed: the weights are those that the cells drew when they were made, ours Glorot uniform.

    Source: arXiv:2308.12075, App. H.
    """

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Change nothing."""
        as_network(network)
        return ()


@register
@dataclass(frozen=True)
class Glorot(Initialiser):
    r"""Uniform input and recurrent weights that preserve variances forwards and backwards, of linear neurons.

    .. math:: W_{ij} \sim U(-a, a), \quad a = g \sqrt{\frac{6}{n_{in} + n_{out}}}

    Assumed: independent inputs of mean 0 and neurons that are linear about 0, which spiking ones are not.

    Attributes:
        gain: g.

    Source: Glorot & Bengio, AISTATS 2010, eq. 16.
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        number("gain", self.gain)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew; inputs are not used."""
        for layer in layers_of(network, "inputs", integrators=True):
            for matrix in layer.matrices:
                drawn = generator(seed, layer.index, matrix.name)
                uniform = torch.rand(matrix.weights.shape, generator=drawn, dtype=torch.float64)
                put(matrix, self.gain * (math.sqrt(6 / (matrix.fan_in + matrix.fan_out)) * (2 * uniform - 1)))
        return ()


@register
@dataclass(frozen=True)
class He(Initialiser):
    r"""Normal input and recurrent weights that preserve the mean square forwards, of rectified neurons.

    .. math:: W_{ij} \sim N\Big(0, \frac{2 g^2}{n_{in}}\Big)

    Assumed: neurons that are linear above 0 and silent below, and inputs that are symmetric about 0.

    Attributes:
        gain: g.

    Source: He et al., arXiv:1502.01852, eq. 10.
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        number("gain", self.gain)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew; inputs are not used."""
        for layer in layers_of(network, "inputs", integrators=True):
            for matrix in layer.matrices:
                put(matrix, self.gain * (math.sqrt(2 / matrix.fan_in) * layer.normal(matrix, seed)))
        return ()


@register
@dataclass(frozen=True)
class IKUN(Initialiser):
    r"""Initialization to keep SNN training great with surrogate-stable variance.

    .. math:: W_{ij} \sim N\Big(0, \frac{\beta}{n_{in}}\Big) \;\text{or}\;
        N\Big(0, \frac{\beta}{n_{in} + n_{out}}\Big), \quad
        \frac1\beta = \frac12 \int_{-1}^{1} \Big|\frac{dz}{dv}(v - \vartheta = u)\Big|\, du

    The released code knows one surrogate and no recurrence; here the mean is that of each layer's surrogate, with its
    dampening, and recurrent matrices get the variance of their own shape.

    Attributes:
        version: ``"v1"``: the first variance; ``"v2"``: the second.

    Source: Chang, Wang & Yang, arXiv:2411.18250, and its released code.
    """

    version: Literal["v1", "v2"] = "v1"

    def __post_init__(self) -> None:
        one_of("version", self.version, ("v1", "v2"))

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew; inputs are not used."""
        layers = layers_of(network, "membrane", "inputs")
        slopes = [_mean_slope(layer) for layer in layers]
        for layer, slope in zip(layers, slopes, strict=True):
            for matrix in layer.matrices:
                fan = matrix.fan_in + (matrix.fan_out if self.version == "v2" else 0)
                put(matrix, layer.normal(matrix, seed) / math.sqrt(slope * fan))
        return ()


def _mean_slope(layer: Layer) -> float:
    """The mean of the surrogate's derivative within 1 of the threshold, over all neurons."""
    with torch.enable_grad():
        distance = torch.linspace(-1, 1, 2001, **layer.cell.dtype_and_device).unsqueeze(1).requires_grad_()
        sent = layer.membrane.spike(distance)
        ones = torch.ones_like(sent)
        (slope,) = torch.autograd.grad(sent, distance, ones, materialize_grads=True, allow_unused=True)
    mean = (slope.abs().double().mean() / sent.shape[1]).item()
    if not mean > 0:
        raise ValueError(f"{layer.name} has a surrogate without a derivative within 1 of its threshold.")
    return mean


@register
@dataclass(frozen=True)
class LSUV(Initialiser):
    r"""Layer-sequential unit variance, over time: of the voltages of a run, bottom up.

    .. math:: W \leftarrow c_l\, Q, \quad \mathrm{Var}_{t,b,i}\, v_{t,b,i}(c_l) = s^2

    with Q orthonormal rows or columns. One scale per layer is found for its input and recurrent matrices together, by
    root finding: leaks, resets and spikes make the variance anything but proportional to the square of the scale. The
    variance is over all steps, samples and neurons of the first batch. Ours is the run over time: the paper divides
    the weights of feed-forward layers by the deviation of their outputs on one batch, a few times.

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
        target, reach, least = math.log(self.variance), math.log(1e4), 1e-30
        with eval_mode(network):
            for layer in layers_of(network, "membrane", "inputs"):
                read = reads(network, x, layer.index)
                for matrix in layer.matrices if self.orthonormal else ():
                    put(matrix, layer.orthogonal(matrix, seed))

                def log_variance(layer: Layer = layer, read: Tensor = read) -> float:
                    return math.log(max(layer.voltages(read).double().var(correction=0).item(), least))

                log = settle(scaling(layer.matrices), log_variance, target, reach=reach, close=0.01)
                if abs(math.exp(log) / self.variance - 1) > 0.05:
                    reached = math.exp(log) if log > math.log(least) else 0.0
                    problem = f"the variance of its voltages is {reached:.3g}, not {self.variance:g}"
                    cure = "it moves in jumps" if reached else "nothing reaches it: let the layer below fire"
                    found.append(layer.finding(problem, cure))
        return tuple(found)


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
    from the layer itself, while :math:`\mu_w` is the same for both. Measured, where the paper guesses one rate for all:
    :math:`\nu` of what each layer reads, bottom up (of inputs that are not 0 or 1, their mean and mean square), and of
    its own spikes, by drawing the same numbers for another rate until it fires at that; and the filter
    :math:`\varepsilon`, as the response to a small current.

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
        with eval_mode(network):
            for layer in layers_of(network, "membrane", "inputs"):
                read = reads(network, x, layer.index)
                found += self._set(layer, read, seed) if read.any() else [layer.finding(*READS_NOTHING)]
        return tuple(found)

    def _set(self, layer: Layer, read: Tensor, seed: int) -> list[Finding]:
        """Draw the matrices of a layer for its input (T, B, n_in)."""
        below, own = layer.inputs, layer.recurrent
        drawn = [layer.normal(matrix, seed) for matrix in layer.matrices]
        response, threshold = layer.impulse_response(len(read)), layer.resting_threshold()
        mean, square = read.double().mean().item(), read.double().square().mean().item()
        share, own_rate, short = self.alpha if own else 1.0, mean, False
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
            fires = rate(layer.cell, read)
            if not own or abs(fires - own_rate) <= 0.01 * own_rate:
                break
            if not fires:
                cure = f"its recurrence was drawn for {own_rate:.3g} spikes per step; raise sigma"
                return [layer.finding("never fires", cure)]
            own_rate = fires
        problem = "the mean alone makes more variance than sigma allows"
        return [layer.finding(problem, "lower mu, or raise sigma")] if short else []


READS_NOTHING = "reads no spikes", "let the layer below fire"


@register
@dataclass(frozen=True)
class ActivityPropagation(Initialiser):
    r"""Normal weights that preserve the variance 1 of the voltage through spikes.

    .. math:: W_{ij} \sim N\Big(0, \frac{1}{n\, P(u > \vartheta)}\Big), \quad
        P(u > \vartheta) = \tfrac12 \mathrm{erfc}(\vartheta / \sqrt 2)

    A spike is 1 with probability P, so that n of them through such weights have mean square 1; with :math:`u \sim N(0,
    1)` below, it is the same above. The first layer reads data, so there P is the mean square of the first batch. Ours,
    since the paper's layers have no recurrence: n P is the sum over the spikes from below and those of the layer
    itself. Assumed, as in the paper: a voltage without memory and reset, thresholds at rest, and wide layers.

    Source: Micheli, Booij, van Gemert & Tömen, arXiv:2410.00580 (the variance).
    """

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw all input and recurrent matrices anew; of the inputs the mean square is taken."""
        power = first_input(network, inputs).double().square().mean().item()
        layers = layers_of(network, "membrane", "inputs")
        if not power:
            return (Finding(1, "reads nothing", "give inputs that are not all 0"),)
        for layer in layers:
            fires = torch.special.ndtr(-layer.resting_threshold()).mean().item()
            drive = sum(m.fan_in * power for m in layer.inputs) + sum(m.fan_in * fires for m in layer.recurrent)
            for matrix in layer.matrices:
                put(matrix, layer.normal(matrix, seed) / math.sqrt(drive))
            power = fires
        return ()
