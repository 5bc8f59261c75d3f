"""Four conditions of stability for a recurrent spiking layer and its surrogate."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
    put,
    recurrent_matrices,
    register,
    resting_threshold,
)
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import Cell, Membrane, WeightMatrix
from neurolsc.positive import log_name
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import rate, reads, settle
from neurolsc.surrogate import Surrogate


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
        of = {i: membrane(network, i) for i in network.spiking}
        below, own = ({i: some(network, i) for i in of} for some in (input_matrices, recurrent_matrices))
        spikes = self._surrogates(network) if {3, 4} & set(self.conditions) else {}
        with eval_mode(network), torch.no_grad():
            for i in network.spiking:
                cell, problems = network.cells[i], list[tuple[str, str]]()
                if {1, 2} & set(self.conditions):
                    problems += self._weights(cell, of[i], below[i], own[i], reads(network, x, i), (seed, i))
                if 3 in self.conditions:
                    problems += _dampen(cell, of[i], own[i], spikes[i])
                if 4 in self.conditions:
                    problems += _sharpen(cell, of[i], below[i], own[i], spikes[i])
                found += [Finding(i + 1, *words) for words in problems]
        return tuple(found)

    def _surrogates(self, network: Network) -> dict[int, Surrogate]:
        found: dict[int, Surrogate] = {}
        for i in network.spiking:
            spike = next((part for part in network.cells[i].modules() if isinstance(part, Surrogate)), None)
            if spike is None:
                raise TypeError(
                    f"{layer_name(network, i)} has no surrogate of neurolsc, whose dampening could be set: use "
                    "FourConditions((1, 2)), or give the layer one of neurolsc.surrogate."
                )
            if spike in found.values():
                raise ValueError(
                    f"{layer_name(network, i)} shares its surrogate with a layer below: give each its own."
                )
            found[i] = spike
        return found

    def _weights(
        self,
        cell: Cell,
        of: Membrane,
        below: Sequence[WeightMatrix],
        own: Sequence[WeightMatrix],
        read: Tensor,
        place: tuple[int, int],
    ) -> list[tuple[str, str]]:
        """Conditions 1 and 2."""
        before = [matrix.weights.double() for matrix in own]
        fan_in, short = sum(matrix.fan_in for matrix in own), False
        power = read.double().square().mean().item()
        from_input = power * sum(m.fan_in * m.weights.double().square().mean().item() for m in below)

        def set_to(mean: float) -> None:
            nonlocal short
            variance = 2 * from_input / fan_in - mean**2 / 2
            short = 2 in self.conditions and variance < 0
            for matrix, weights in zip(own, before, strict=True):
                around = weights - weights.mean()
                if 2 in self.conditions:
                    numbers = normal(matrix, generator(*place, matrix.name)).to(around)
                    around = math.sqrt(max(variance, 0.0)) * numbers
                put(matrix, mean + around)

        problems = []
        if 1 in self.conditions:  # by sums of a neuron's recurrent weights, in thresholds
            unit = resting_threshold(cell, of).mean().item() / fan_in
            reached = settle(lambda sums: set_to(unit * sums), lambda: rate(cell, read), 0.5, reach=1024, close=0.005)
            if not abs(reached - 0.5) <= 0.05:
                jumps = "its spikes feed on each other, and the rate jumps: raise its input weights"
                problems.append((f"fires {reached:.3g} spikes per neuron and step, not 0.5", jumps))
        else:
            set_to(sum(float(w.mean()) for w in before) / len(before))
        if short:
            weak = "the mean recurrent weight alone makes more variance than the input"
            problems.append((weak, "raise its input weights"))
        return problems


def _dampen(cell: Cell, of: Membrane, own: Sequence[WeightMatrix], spike: Surrogate) -> list[tuple[str, str]]:
    """Condition 3."""
    leak = retained_share(cell, of).mean().item()
    peak = float(spike.shape(torch.zeros(1, dtype=torch.float64)))
    gain = _sums(own, 1.0).mean().item() * peak
    if not (gain > 0 and leak < 1):
        problem = "no dampening keeps its largest gradient at 1"
        return [(problem, "give it a leak below 1 and positive recurrent weights")]
    _set(spike, "dampening", (1 - leak) / gain)
    return []


def _sharpen(
    cell: Cell, of: Membrane, below: Sequence[WeightMatrix], own: Sequence[WeightMatrix], spike: Surrogate
) -> list[tuple[str, str]]:
    """Condition 4."""
    leak, threshold = retained_share(cell, of).mean().item(), resting_threshold(cell, of)
    if not leak < 1:
        return [("no sharpness keeps the variance of its gradient", "give it a leak below 1")]
    high, low = (sign * _sums((*own, *below), sign) / (1 - leak) for sign in (1.0, -1.0))
    along = torch.linspace(0, 1, 4096, dtype=torch.float64).unsqueeze(1)
    distance = low + along * (high - low) - (threshold if len(threshold) == len(high) else threshold.mean())
    distance = distance.to(own[0].weights)
    power = sum(m.fan_in * m.weights.double().square().mean().item() for m in own)
    start = float(torch.as_tensor(spike.sharpness).mean())

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
    return [(problem, "raise the dampening or its weights")]


def _sums(matrices: Sequence[WeightMatrix], sign: float) -> Tensor:
    """The sum of the weights of this sign, of every neuron, as a positive number."""
    return sum(((sign * m.weights.double()).clamp(min=0).flatten(1).sum(1).cpu() for m in matrices), torch.zeros(()))


def retained_share(cell: Cell, of: Membrane) -> Tensor:
    """The share of its voltage that a neuron at rest retains over a step (n_hidden,)."""
    with torch.no_grad():
        rest = cell.initial_state(1)
        x, z, by = torch.zeros(1, cell.n_in, **cell.dtype_and_device), cell.output(rest), -0.125
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
