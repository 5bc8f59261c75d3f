"""Weights by variance: as built, by fan, surrogate, voltages and statistics of spikes, and by four conditions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from neurolsc.init.base import (
    Initialiser,
    Layer,
    bottom_up,
    by_neuron,
    first_input,
    generator,
    layers_of,
    register,
    scaling,
    set_nonzero,
)
from neurolsc.network import Network, as_network
from neurolsc.stability.conditions import Finding, surrogate_slope
from neurolsc.stability.scale import rate, solve
from neurolsc.surrogate import Surrogate
from neurolsc.surroundings import eval_mode
from neurolsc.validation import number, one_of, whole

ROUNDS = 20  # most rounds of setting a recurrence for a rate and measuring the rate that it gives
FIRST_GUESS = 0.1  # spikes per neuron and step


@register
@dataclass(frozen=True)
class Default(Initialiser):
    """Nothing is changed: the weights are those that the cells drew when they were made, ours Glorot uniform.

    Source: arXiv:2308.12075, App. H.
    """

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
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

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        for layer in layers_of(network, "inputs", integrators=True):
            for matrix in layer.matrices:
                draws = generator(seed, layer.index, matrix.name)
                uniform = torch.rand(matrix.weights.shape, generator=draws, dtype=torch.float64)
                set_nonzero(matrix, self.gain * (math.sqrt(6 / (matrix.fan_in + matrix.fan_out)) * (2 * uniform - 1)))
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

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        for layer in layers_of(network, "inputs", integrators=True):
            for matrix in layer.matrices:
                set_nonzero(matrix, self.gain * (math.sqrt(2 / matrix.fan_in) * layer.normal(matrix, seed)))
        return ()


@register
@dataclass(frozen=True)
class IKUN(Initialiser):
    r"""Initialization to keep SNN training great with surrogate-stable variance.

    .. math:: W_{ij} \sim N\Big(0, \frac{\beta}{n_{in}}\Big) \;\text{or}\;
        N\Big(0, \frac{\beta}{n_{in} + n_{out}}\Big), \quad
        \frac1\beta = \frac12 \int_{-1}^{1} \Big|\frac{dz}{dv}(v - \vartheta = u)\Big|\, du

    The released code has one surrogate and no recurrence; here :math:`1/\beta` is of each layer's own surrogate, with
    its dampening, and recurrent matrices get the variance of their own shape.

    Attributes:
        version: ``"v1"``: the first variance; ``"v2"``: the second.

    Source: Chang, Wang & Yang, arXiv:2411.18250, and its released code.
    """

    version: Literal["v1", "v2"] = "v1"

    def __post_init__(self) -> None:
        one_of("version", self.version, ("v1", "v2"))

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        for layer in layers_of(network, "membrane", "inputs"):
            distance = torch.linspace(-1, 1, 2001, **layer.cell.dtype_and_device)
            slope = surrogate_slope(layer.membrane, distance).abs().double().mean().item()
            for matrix in layer.matrices:
                fan = matrix.fan_in
                if self.version == "v2":
                    fan += matrix.fan_out
                set_nonzero(matrix, layer.normal(matrix, seed) / math.sqrt(slope * fan))
        return ()


@register
@dataclass(frozen=True)
class LSUV(Initialiser):
    r"""Layer-sequential unit variance of the voltages of a run, bottom up.

    .. math:: W \leftarrow c_l\, Q, \quad \mathrm{Var}_{t,b,i}\, v_{t,b,i}(c_l) = s^2

    with Q a matrix of orthonormal rows or columns. One scale per layer, of its input and recurrent matrices together,
    is found as a root. That the variance is taken over the steps of a run is ours.

    Attributes:
        variance: :math:`s^2`.

    Source: Mishkin & Matas, arXiv:1511.06422, algorithm 1.
    """

    variance: float = 1.0

    def __post_init__(self) -> None:
        number("variance", self.variance)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set all layers on the first batch; a variance that misses by 5 % is a finding."""
        x = first_input(network, inputs)
        found = []
        target = math.log(self.variance)
        reach = math.log(1e4)
        least = 1e-30  # stands for a variance of 0
        with eval_mode(network):
            for layer, layer_input in bottom_up(network, x, layers_of(network, "membrane", "inputs")):
                for matrix in layer.matrices:
                    set_nonzero(matrix, layer.orthogonal(matrix, seed))

                # the defaults bind the layer of this turn of the loop
                def log_variance(layer: Layer = layer, layer_input: Tensor = layer_input) -> float:
                    return math.log(max(layer.voltages(layer_input).double().var(correction=0).item(), least))

                found_log = solve(scaling(layer.matrices), log_variance, target, reach=reach, tolerance=0.01)
                if abs(math.exp(found_log) / self.variance - 1) > 0.05:
                    reached = 0.0
                    if found_log > math.log(least):  # else the voltages do not vary at all
                        reached = math.exp(found_log)
                    problem = f"the variance of its voltages is {reached:.3g}, not {self.variance:g}"
                    cure = "nothing reaches it: let the layer below fire"
                    if reached:
                        cure = "it moves in jumps"
                    found.append(layer.finding(problem, cure))
        return tuple(found)


@register
@dataclass(frozen=True)
class FluctuationDriven(Initialiser):
    r"""Weights under which spikes drive the voltage to a wanted mean and deviation in time.

    Under independent Poisson spikes of rate :math:`\nu`, weights of mean :math:`\mu_w` and deviation
    :math:`\sigma_w`, and the neuron's filter :math:`\varepsilon(t)`, the voltage without threshold and reset has

    .. math:: \mu_U = n \nu\, \bar\varepsilon\, \mu_w, \quad
        \sigma_U^2 = n \nu\, \hat\varepsilon\, (\sigma_w^2 + \mu_w^2), \quad
        \bar\varepsilon = \sum_t \varepsilon(t), \quad \hat\varepsilon = \sum_t \varepsilon(t)^2,

    which are solved for the weights. With recurrence a share :math:`\alpha` of the variance comes from the inputs and
    the rest from the layer itself, while :math:`\mu_w` is the same for both. Unless a rate is given, rates are
    measured, bottom up; the rate of the layer's own spikes, which depends on its recurrence, is measured in rounds.
    :math:`\varepsilon` is measured on each neuron as it is.

    With a rate and steps the weights are those of the released code. There one rate holds for all connections, the
    filter is that of two exponentials, in discrete time,

    .. math:: \varepsilon(t) = (1 - \beta) \sum_{s < t} \beta^{t - 1 - s} \alpha_{syn}^s, \quad
        \alpha_{syn} = e^{-\Delta t / \tau_{syn}}, \quad \beta = e^{-\Delta t / \tau_{mem}},

    over ten of the longer time constant, and the threshold is 1. A voltage without the factor :math:`1 - \beta`, as in
    snnTorch, has these weights at a threshold of :math:`1 / (1 - \beta)`; a neuron without synaptic current has one
    exponential. The paper's integrals in continuous time, :math:`\bar\varepsilon = \tau_{syn}` and
    :math:`\hat\varepsilon = \tau_{syn}^2 / (2 (\tau_{syn} + \tau_{mem}))`, are 5 % and 10 % smaller than
    :math:`\Delta t \sum_t \varepsilon` and :math:`\Delta t \sum_t \varepsilon^2` at time constants of 10 and 20 steps.
    The released code also draws biases, which stay here.

    Attributes:
        mu: :math:`\mu_U`, in resting thresholds of the neuron (the paper's threshold is 1).
        sigma: :math:`\sigma_U`, likewise; the paper's :math:`\xi` is (1 - mu) / sigma.
        alpha: :math:`\alpha`, in (0, 1]; 1 leaves the recurrence without variance.
        rate: :math:`\nu` of all that a neuron reads, in spikes per step (in Hz times :math:`\Delta t` in s); 0:
            measured.
        steps: how many steps of the filter count; 0: those of the first batch.

    Source: Rossbroich, Gygax & Zenke, arXiv:2206.10226, and its released code.
    """

    mu: float = 0.0
    sigma: float = 1.0
    alpha: float = 0.9
    rate: float = 0.0
    steps: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise ValueError(f"alpha must be in (0, 1], got {self.alpha}.")
        number("sigma", self.sigma, zero_allowed=True)
        number("rate", self.rate, zero_allowed=True)
        whole("steps", self.steps, at_least=0)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set all layers, bottom up.

        A layer that reads no spikes or stops firing is a finding, and so is one whose mean weight alone makes more
        variance than sigma allows.
        """
        found = list[Finding]()
        layers = layers_of(network, "membrane", "inputs")
        if self.rate and self.steps:  # no input is needed
            x = None
        else:
            x = first_input(network, inputs)
        length = self.steps or len(x)  # type: ignore[arg-type]
        with eval_mode(network):
            if self.rate:  # nothing is run
                pairs: Any = ((layer, None) for layer in layers)
            else:
                pairs = bottom_up(network, x, layers)  # type: ignore[arg-type]
            for layer, layer_input in pairs:
                if layer_input is not None and not layer_input.any():
                    found.append(layer.unread())
                    continue
                below = layer.inputs
                own = layer.recurrent
                drawn = [layer.normal(matrix, seed) for matrix in layer.matrices]
                response = layer.impulse_response(length)
                threshold = layer.resting_threshold()
                mean = square = self.rate  # mean and mean square of the inputs: spikes are 0 or 1, so both are the rate
                if layer_input is not None:
                    mean = layer_input.double().mean().item()
                    square = layer_input.double().square().mean().item()
                share = self.alpha if own else 1.0  # of the variance that comes from the inputs
                own_rate = mean if mean > 0 else FIRST_GUESS  # inputs that are no spikes may be negative
                short = False
                for _ in range(ROUNDS):  # until the layer fires, to 1 %, at the rate for which its recurrence is drawn
                    # of each matrix: mean and mean square of what it reads, and its share of the variance
                    sources = [(matrix, mean, square, share / len(below)) for matrix in below]
                    sources += [(matrix, own_rate, own_rate, (1 - share) / len(own)) for matrix in own]
                    drive = response.sum(0) * sum(matrix.fan_in * fires for matrix, fires, _, _ in sources)
                    mean_weight = torch.zeros_like(drive)
                    if self.mu:  # else the drive may be 0
                        mean_weight = self.mu * threshold / drive
                    short = False  # the variance that is left for the weights is negative
                    for (matrix, _, power, part), numbers in zip(sources, drawn, strict=True):
                        variance = part * (self.sigma * threshold).square()
                        variance = variance / (matrix.fan_in * power * response.square().sum(0)) - mean_weight.square()
                        short |= bool((variance < 0).any())
                        deviation = variance.clamp(min=0).sqrt()
                        set_nonzero(matrix, by_neuron(mean_weight, matrix) + by_neuron(deviation, matrix) * numbers)
                    if layer_input is None:  # the rate is given
                        fires = own_rate
                    else:
                        fires = rate(layer.cell, layer_input)
                    if not own or abs(fires - own_rate) <= 0.01 * own_rate:
                        break
                    if not fires:  # at a rate of 0 no recurrent weights make a variance
                        cure = f"its recurrence was drawn for {own_rate:.3g} spikes per step; raise sigma"
                        found.append(layer.finding("never fires", cure))
                        short = False
                        break
                    own_rate = fires
                if short:
                    problem = "the mean alone makes more variance than sigma allows"
                    found.append(layer.finding(problem, "lower mu, or raise sigma"))
        return tuple(found)


@register
@dataclass(frozen=True)
class ActivityPropagation(Initialiser):
    r"""Normal weights that preserve the variance 1 of the voltage through spikes.

    .. math:: W_{ij} \sim N\Big(0, \frac{1}{n\, P(u > \vartheta)}\Big), \quad
        P(u > \vartheta) = \tfrac12 \mathrm{erfc}(\vartheta / \sqrt 2)

    In the first layer P is the mean square of what it reads of the first batch, with an embedding the vectors of the
    words; with recurrence n P is the sum over both sources. Assumed: a voltage without memory and reset, thresholds at
    rest, and wide layers.

    Source: Micheli, Booij, van Gemert & Tömen, arXiv:2410.00580 (the variance).
    """

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set all layers; one whose weights would be infinite keeps its own, which is a finding."""
        found = list[Finding]()
        x = first_input(network, inputs)
        power = network.embedded(x).double().square().mean().item()  # mean square of what a layer reads
        layers = layers_of(network, "membrane", "inputs")
        if not power:
            return (Finding(1, "reads nothing: the input is all zeros", "give inputs that are not all 0"),)
        for layer in layers:
            fires = torch.special.ndtr(-layer.resting_threshold()).mean().item()  # of a voltage of variance 1
            drive = sum(m.fan_in * power for m in layer.inputs) + sum(m.fan_in * fires for m in layer.recurrent)
            drawn = [layer.normal(matrix, seed) / math.sqrt(drive) for matrix in layer.matrices]
            if all(w.to(matrix.weights).isfinite().all() for matrix, w in zip(layer.matrices, drawn, strict=True)):
                for matrix, weights in zip(layer.matrices, drawn, strict=True):
                    set_nonzero(matrix, weights)
            else:  # at a threshold of 20 a voltage of variance 1 fires with a probability of 1e-89
                problem = f"keeps its weights: it reads a mean square of {power:.3g}, for which they would be infinite"
                cure = "scale the inputs up" if layer.index == 0 else "lower the thresholds of the layer below"
                found.append(layer.finding(problem, cure))
            power = fires
        return tuple(found)


# ---------------------------------------------------------------- four conditions


@register
@dataclass(frozen=True)
class FourConditions(Initialiser):
    r"""Recurrent weights and dampening from four conditions of stability.

    With n recurrent weights :math:`w` a neuron, leak :math:`\alpha`, inputs :math:`x`, and the surrogate's derivative
    :math:`s = \gamma f(\omega(v - \vartheta))` of dampening :math:`\gamma` and sharpness :math:`\omega`:

    1.  The layer fires at a rate of 1/2, by the mean :math:`\bar w` of the recurrent weights, found as a root on the
        first batch.
    2.  Recurrence and input contribute the same variance to the current, by the variance of w:

        .. math:: n \big(\tfrac12 \mathrm{Var}\, w + \tfrac14 \bar w^2\big) =
            n_{in}\, \mathrm{E}[w_{in}^2]\, \mathrm{E}[x^2]

    3.  The largest gradient neither grows nor shrinks, by the dampening:

        .. math:: \alpha + \gamma f(0) \frac1n \sum_i \sum_j \max(w_{ij}, 0) = 1

    4.  Nor does the variance of the gradient, :math:`\alpha^2 + n\, \mathrm{E}[w^2]\, \mathrm{E}[s^2] = 1`, by the
        sharpness. With the dampening of condition 3, and many weights of a positive mean, the left side is below 1 at
        every sharpness; so the sharpness is not changed.

    Applied in this order, layer by layer, bottom up, to cells with a surrogate of ours.

    Source: Herranz-Celotti & Rouat, arXiv:2202.00282, conditions I to IV, and their released code.
    """

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        x = first_input(network, inputs)
        found = list[Finding]()
        surrogates = list[Surrogate]()
        layers = layers_of(network, "membrane", "inputs", "recurrent")
        for layer in layers:
            surrogate = next((part for part in layer.cell.modules() if isinstance(part, Surrogate)), None)
            if surrogate is None or surrogate in surrogates:  # a shared one cannot have a dampening for each layer
                raise TypeError(f"{layer.name} needs a surrogate of neurolsc of its own, which no other layer has.")
            surrogates.append(surrogate)
        with eval_mode(network), torch.no_grad():
            for (layer, layer_input), surrogate in zip(bottom_up(network, x, layers), surrogates, strict=True):
                found += _set_weights(layer, layer_input, seed)
                found += _set_dampening(layer, surrogate)
        return tuple(found)


def _set_weights(layer: Layer, layer_input: Tensor, seed: int) -> list[Finding]:
    """Set recurrent weights by conditions 1 and 2, for a layer's input (T, B, n_in).

    Returns:
        Findings if the rate misses 1/2 by more than 0.05, or no variance is left for the weights.
    """
    own = layer.recurrent
    found = list[Finding]()
    fan_in = sum(matrix.fan_in for matrix in own)
    drawn = [layer.normal(matrix, seed) for matrix in own]
    power = sum(m.fan_in * m.weights.double().square().mean().item() for m in layer.inputs)
    from_input = layer_input.double().square().mean().item() * power  # variance of the input current: E[w^2] E[x^2] n
    # the mean weight at which the recurrent weights of a neuron sum to the mean threshold
    unit = layer.resting_threshold().mean().item() / fan_in
    variance = 0.0

    def set_to(sums: float) -> None:
        """Set the mean sum of a neuron's recurrent weights, in thresholds, and their variance by condition 2."""
        nonlocal variance
        variance = 2 * from_input / fan_in - (unit * sums) ** 2 / 2
        for matrix, numbers in zip(own, drawn, strict=True):
            set_nonzero(matrix, unit * sums + math.sqrt(max(variance, 0.0)) * numbers)

    fires = solve(set_to, lambda: rate(layer.cell, layer_input), 0.5, reach=1024, tolerance=0.005)
    if not abs(fires - 0.5) <= 0.05:  # NaN is a miss, too
        problem = f"fires {fires:.3g} spikes per neuron and step, not 0.5"
        cure = "its spikes feed on each other, and the rate jumps: raise its input weights"
        found.append(layer.finding(problem, cure))
    if variance < 0:
        problem = "the mean recurrent weight alone makes more variance than the input"
        found.append(layer.finding(problem, "raise its input weights"))
    return found


def _set_dampening(layer: Layer, surrogate: Surrogate) -> list[Finding]:
    """Set the dampening of a layer's surrogate by condition 3; a frozen one stays.

    Returns:
        A finding if no dampening meets the condition, else nothing.
    """
    peak = float(surrogate.shape(torch.zeros(1, dtype=torch.float64)))  # f(0)
    # of each neuron the sum of its positive recurrent weights (n_hidden,)
    excitation = torch.stack([m.weights.double().clamp(min=0).flatten(1).sum(1) for m in layer.recurrent]).sum(0)
    leak = _decay_factor(layer)
    gain = peak * excitation.mean().item()
    if not (gain > 0 and leak < 1):
        problem = "no dampening keeps its largest gradient at 1"
        return [layer.finding(problem, "give it a leak below 1 and positive recurrent weights")]
    dampening = (1 - leak) / gain
    if surrogate.learnable:
        parameter = surrogate.get_parameter("log_dampening")
        if parameter.requires_grad:
            parameter.fill_(math.log(dampening))
    elif isinstance(surrogate.fixed_dampening, Tensor):
        surrogate.fixed_dampening.fill_(dampening)
    else:
        setattr(surrogate, "fixed_dampening", dampening)  # noqa: B010  # declared as a tensor
    return []


def _decay_factor(layer: Layer) -> float:
    """Return the factor by which the voltage's distance from rest decays in a step, mean over neurons."""
    cell = layer.cell
    membrane = layer.membrane
    shift = -0.125  # below rest, where nothing fires; exact in floating point
    rest = cell.initial_state(1)
    x = torch.zeros(1, cell.n_in, **cell.dtype_and_device)
    z = cell.output(rest)
    lowered = membrane.voltage(cell.update(x, z, membrane.moved(rest, shift)))
    as_is = membrane.voltage(cell.update(x, z, rest))
    return ((lowered - as_is)[0].double() / shift).mean().item()
