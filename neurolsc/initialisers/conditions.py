"""Four conditions of stability for a recurrent spiking layer and its surrogate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.initialisers.base import Initialiser, Layer, first_input, layers_of, put, register
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import WeightMatrix
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import rate, reads, settle
from neurolsc.surrogate import Surrogate
from neurolsc.validation import log_name


@register
@dataclass(frozen=True)
class FourConditions(Initialiser):
    r"""Recurrent weights, dampening and sharpness from four conditions of stability.

    With n recurrent weights :math:`w` a neuron, leak :math:`\alpha`, inputs :math:`x`, and :math:`s = \gamma f(\omega(v
    - \vartheta))`:

    1.  The layer fires at a rate of 1/2, by the mean :math:`\bar w` of the recurrent weights. For a LIF with its reset
        by subtraction the paper has :math:`n \bar w = (3 - 2\alpha) \vartheta`; here the mean is found by root finding
        on the first batch, since thresholds here may move.
    2.  Recurrence and input contribute the same variance to the current, by the variance of w:

        .. math:: n \big(\tfrac12 \mathrm{Var}\, w + \tfrac14 \bar w^2\big) =
            n_{in}\, \mathrm{E}[w_{in}^2]\, \mathrm{E}[x^2]

        with recurrent spikes of mean 1/2; in the released code the left :math:`\frac12` is 1.

    3.  The largest gradient neither grows nor shrinks, by the dampening:

        .. math:: \alpha + \gamma f(0) \frac1n \sum_i \sum_j \max(w_{ij}, 0) = 1

    4.  So does the variance of the gradient, by the sharpness, with voltages uniform between the least and the largest
        that the weights allow:

        .. math:: \alpha^2 + n\, \mathrm{E}[w^2]\, \mathrm{E}[s^2] = 1, \quad
            v \sim U\Big(\tfrac{-\sum \max(-w, 0)}{1 - \alpha}, \tfrac{\sum \max(w, 0)}{1 -
            \alpha}\Big)

        with sums over the recurrent and the input weights of a neuron.

    Conditions 3 and 4 are those without a gradient through the reset, and without that from the layer above. All are
    applied in this order, layer by layer, bottom up.

    Attributes:
        conditions: which of them are applied. 3 and 4 need cells with a surrogate of ours.

    Source: Herranz-Celotti & Rouat, arXiv:2202.00282, conditions I to IV, and their released code.
    """

    conditions: tuple[int, ...] = (1, 2, 3, 4)

    def __post_init__(self) -> None:
        if not isinstance(self.conditions, tuple) or not set(self.conditions) <= {1, 2, 3, 4} or not self.conditions:
            raise ValueError(f"conditions must be some of (1, 2, 3, 4), got {self.conditions!r}.")

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw the recurrent matrices, and set dampening and sharpness."""
        x, found = first_input(network, inputs), list[Finding]()
        layers = layers_of(network, "membrane", "inputs", "recurrent")
        spikes = _surrogates(layers) if {3, 4} & set(self.conditions) else {}
        with eval_mode(network), torch.no_grad():
            for layer in layers:
                if {1, 2} & set(self.conditions):
                    found += self._weights(layer, reads(network, x, layer.index), seed)
                if 3 in self.conditions:
                    found += _dampen(layer, spikes[layer.index])
                if 4 in self.conditions:
                    found += _sharpen(layer, spikes[layer.index])
        return tuple(found)

    def _weights(self, layer: Layer, read: Tensor, seed: int) -> list[Finding]:
        """Conditions 1 and 2, for a layer's input (T, B, n_in)."""
        own, found, short = layer.recurrent, [], False
        before = [matrix.weights.double() for matrix in own]
        fan_in = sum(matrix.fan_in for matrix in own)
        from_input = read.double().square().mean().item() * _power(layer.inputs)

        def set_to(mean: float) -> None:
            nonlocal short
            variance = 2 * from_input / fan_in - mean**2 / 2
            short = 2 in self.conditions and variance < 0
            for matrix, weights in zip(own, before, strict=True):
                around = weights - weights.mean()
                if 2 in self.conditions:
                    around = math.sqrt(max(variance, 0.0)) * layer.normal(matrix, seed).to(around)
                put(matrix, mean + around)

        if 1 in self.conditions:  # by sums of a neuron's recurrent weights, in thresholds
            unit = layer.resting_threshold().mean().item() / fan_in
            fires = settle(
                lambda sums: set_to(unit * sums), lambda: rate(layer.cell, read), 0.5, reach=1024, close=0.005
            )
            if not abs(fires - 0.5) <= 0.05:
                problem = f"fires {fires:.3g} spikes per neuron and step, not 0.5"
                cure = "its spikes feed on each other, and the rate jumps: raise its input weights"
                found.append(layer.finding(problem, cure))
        else:
            set_to(sum(float(w.mean()) for w in before) / len(before))
        if short:
            problem = "the mean recurrent weight alone makes more variance than the input"
            found.append(layer.finding(problem, "raise its input weights"))
        return found


def _surrogates(layers: Sequence[Layer]) -> dict[int, Surrogate]:
    """The surrogate of each layer, by its index, where each has its own."""
    found: dict[int, Surrogate] = {}
    for layer in layers:
        spike = next((part for part in layer.cell.modules() if isinstance(part, Surrogate)), None)
        if spike is None:
            raise TypeError(
                f"{layer.name} has no surrogate of neurolsc, whose dampening could be set: use FourConditions((1, 2)), "
                "or give the layer one of neurolsc.surrogate."
            )
        if spike in found.values():
            raise ValueError(f"{layer.name} shares its surrogate with a layer below: give each its own.")
        found[layer.index] = spike
    return found


def _dampen(layer: Layer, spike: Surrogate) -> list[Finding]:
    """Condition 3."""
    leak = retained_share(layer).mean().item()
    peak = float(spike.shape(torch.zeros(1, dtype=torch.float64)))
    gain = _sums(layer.recurrent, 1.0).mean().item() * peak
    if not (gain > 0 and leak < 1):
        problem = "no dampening keeps its largest gradient at 1"
        return [layer.finding(problem, "give it a leak below 1 and positive recurrent weights")]
    _set(spike, "dampening", (1 - leak) / gain)
    return []


def _sharpen(layer: Layer, spike: Surrogate) -> list[Finding]:
    """Condition 4."""
    leak, threshold = retained_share(layer).mean().item(), layer.resting_threshold()
    if not leak < 1:
        return [layer.finding("no sharpness keeps the variance of its gradient", "give it a leak below 1")]
    high, low = (sign * _sums((*layer.recurrent, *layer.inputs), sign) / (1 - leak) for sign in (1.0, -1.0))
    along = torch.linspace(0, 1, 4096, dtype=torch.float64).unsqueeze(1)
    distance = low + along * (high - low) - (threshold if len(threshold) == len(high) else threshold.mean())
    distance = distance.to(layer.recurrent[0].weights)
    power, start = _power(layer.recurrent), float(torch.as_tensor(spike.sharpness).mean())

    def growth() -> float:
        slope = torch.as_tensor(spike.derivative(distance)).double()
        return leak**2 + power * slope.square().mean().item()

    def sharpen(log: float) -> None:
        _set(spike, "sharpness", start * math.exp(-log))

    reached = settle(sharpen, growth, 1.0, reach=math.log(100), close=1e-3)
    if abs(reached - 1) <= 0.01:
        return []
    sharpen(0.0)
    what = "shrinks at every sharpness" if reached < 1 else "grows"
    problem = f"the variance of its gradient {what} (nearest {reached:.3g} per step); the sharpness stays"
    return [layer.finding(problem, "raise the dampening or its weights")]


def _power(matrices: Sequence[WeightMatrix]) -> float:
    """The mean sum of the squared weights of a neuron."""
    return sum(m.fan_in * m.weights.double().square().mean().item() for m in matrices)


def _sums(matrices: Sequence[WeightMatrix], sign: float) -> Tensor:
    """The sum of the weights of this sign, of every neuron, as a positive number."""
    return sum(((sign * m.weights.double()).clamp(min=0).flatten(1).sum(1).cpu() for m in matrices), torch.zeros(()))


def retained_share(layer: Layer) -> Tensor:
    """The share of its voltage that a neuron at rest retains over a step (n_hidden,)."""
    cell, of, by = layer.cell, layer.membrane, -0.125
    with torch.no_grad():
        rest = cell.initial_state(1)
        x, z = torch.zeros(1, cell.n_in, **cell.dtype_and_device), cell.output(rest)
        lowered, as_is = (of.voltage(cell.update(x, z, state)) for state in (of.moved(rest, by), rest))
    return ((lowered - as_is)[0].double() / by).cpu()


def _set(spike: Surrogate, name: str, value: float) -> None:
    """Set dampening or sharpness, for all neurons; a frozen one stays."""
    if spike.learnable:
        parameter = spike.get_parameter(log_name(name))
        if parameter.requires_grad:
            parameter.fill_(math.log(value))
    elif isinstance(getattr(spike, f"fixed_{name}"), Tensor):
        getattr(spike, f"fixed_{name}").fill_(value)
    else:
        setattr(spike, f"fixed_{name}", value)
