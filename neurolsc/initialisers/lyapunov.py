"""Finite-time Lyapunov exponents of layers, set by the scale of their recurrence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.initialisers.cells import recurrent_synapses
from neurolsc.initialisers.initialiser import Initialiser, first_input, generator
from neurolsc.initialisers.spec import register
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import Cell
from neurolsc.stability.findings import Finding
from neurolsc.stability.indicators import layer_exponents
from neurolsc.stability.lsc.inputs import pick
from neurolsc.stability.one_layer import reads, settle, steps
from neurolsc.stability.transitions import Transitions
from neurolsc.validation import whole

_REACH = math.log(1e4)


@register
@dataclass(frozen=True)
class LSCLyapunov(Initialiser):
    r"""Recurrence scaled until the largest finite-time Lyapunov exponent of each layer is a target.

    .. math:: \lambda = \frac1T \sum_{t=1}^{T} \log \frac{\Vert M_t q_{t-1} \Vert}{\Vert q_{t-1}
        \Vert}, \quad q_t = M_t q_{t-1}, \quad M_t = \frac{\partial h[t, l]}{\partial h[t-1, l]}

    in the mean over samples: how fast a small change of the state of a layer grows in the layer
    itself, over the whole run, where the radius sees one step. Recurrent matrices alone are scaled,
    bottom up, by root finding; with detached resets and silent neurons the exponent is no lower
    than the logarithm of the slowest leak.

    Attributes:
        exponent: the exponent wanted, per step; 0 neither grows nor shrinks.
        samples: samples of the first batch that are followed.
        tolerance: how far the exponent may be from it without being told.

    Source: Benettin et al., Meccanica 15 (1980), for the exponents; as a target of initialisation:
    ours.
    """

    exponent: float = 0.0
    samples: int = 4
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        if not math.isfinite(self.exponent):
            raise ValueError(f"exponent must be finite, got {self.exponent}.")
        whole("samples", self.samples)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Scale the recurrence of all layers, on some samples of the first batch."""
        x = first_input(network, inputs)
        x = pick(x, torch.randperm(x.shape[1], generator=generator(seed, "samples"))[: self.samples])
        own = {layer: recurrent_synapses(network, layer) for layer in network.spiking}
        found = []
        with eval_mode(network):
            for layer, matrices in own.items():
                cell, read = network.cells[layer], reads(network, x, layer)
                start = [matrix.weights.clone() for matrix in matrices]

                def scale(log: float, matrices=matrices, start=start) -> None:
                    for matrix, weights in zip(matrices, start, strict=True):
                        matrix.set(math.exp(log) * weights)

                def exponent(cell=cell, read=read) -> float:
                    return largest_exponent(cell, read, seed).mean().item()

                reached = settle(scale, exponent, self.exponent, reach=_REACH, close=0.1 * self.tolerance)
                if not abs(reached - self.exponent) <= self.tolerance:
                    problem = f"its largest Lyapunov exponent is {reached:.3g}, not {self.exponent:g}"
                    above = reached > self.exponent
                    cure = "shorten its leaks: no recurrence makes it less" if above else "let it fire more"
                    found.append(Finding(layer + 1, problem, cure))
        return tuple(found)


def largest_exponent(cell: Cell, read: Tensor, seed: int) -> Tensor:
    """The largest finite-time Lyapunov exponent of a cell's run from rest, of each sample (B,).

    Args:
        cell: the cell.
        read: what it reads (T, B, n_in).
        seed: of the first direction, the same for all samples.
    """
    run = [(x, before) for x, before, _ in steps(cell, read)]
    leaves = zip(*(before for _, before in run), strict=True)
    states = type(run[0][1])(*map(torch.cat, leaves))
    t = Transitions(cell, torch.cat([x for x, _ in run]), states, None, None)
    with torch.no_grad():
        return layer_exponents(t, read.shape[1], 1, seed)[:, 0]
