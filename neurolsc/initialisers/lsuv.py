"""Unit variance of the voltages, layer by layer."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from neurolsc.initialisers.cells import input_synapses, membrane, orthogonal, put, voltages
from neurolsc.initialisers.initialiser import Initialiser, first_input, generator
from neurolsc.initialisers.spec import register
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import Membrane, WeightMatrix, weight_matrices
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import reads, settle
from neurolsc.validation import number

_REACH = math.log(1e4)
_CLOSE = 0.01  # of the variance, as a share


@register
@dataclass(frozen=True)
class LSUV(Initialiser):
    r"""Layer-sequential unit variance, over time: of the voltages of a run, bottom up.

    .. math:: W \leftarrow c_l\, Q, \quad \mathrm{Var}_{t,b,i}\, v_{t,b,i}(c_l) = s^2

    with Q orthonormal rows or columns. One scale per layer is found for its input and recurrent
    matrices together, by root finding: leaks, resets and spikes make the variance anything but
    proportional to the square of the scale. The variance is over all steps, samples and neurons of
    the first batch, about the mean of all of them.

    Ours is the run over time: the paper divides the weights of feed-forward layers by the deviation
    of their outputs on one batch, a few times.

    Attributes:
        variance: the variance wanted.
        orthonormal: start from orthonormal matrices, as the paper; else from those that are there.

    Source: Mishkin & Matas, arXiv:1511.06422, algorithm 1.
    """

    variance: float = 1.0
    orthonormal: bool = True

    def __post_init__(self) -> None:
        number("variance", self.variance)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set all layers on the first batch; told are those whose variance misses by 5 %."""
        x, found = first_input(network, inputs), []
        wanted = {i: (membrane(network, i), input_synapses(network, i)) for i in network.spiking}
        with eval_mode(network):
            for layer, (of, below) in wanted.items():
                reached = self._set(network, x, layer, of, below, seed)
                if abs(reached / self.variance - 1) > 0.05:
                    problem = f"the variance of its voltages is {reached:.3g}, not {self.variance:g}"
                    cure = "it moves in jumps" if reached else "nothing reaches it: let the layer below fire"
                    found.append(Finding(layer + 1, problem, cure))
        return tuple(found)

    def _set(
        self, network: Network, x: Tensor, layer: int, of: Membrane, below: tuple[WeightMatrix, ...], seed: int
    ) -> float:
        """Set a layer; the variance that it has then."""
        cell = network.cells[layer]
        matrices = (*below, *weight_matrices(cell, "time"))
        if self.orthonormal:
            for matrix in matrices:
                put(matrix, orthogonal(matrix, generator(seed, layer, matrix.name)))
        start, read = [matrix.weights.clone() for matrix in matrices], reads(network, x, layer)

        def scale(log: float) -> None:
            for matrix, weights in zip(matrices, start, strict=True):
                matrix.set(math.exp(log) * weights)

        def variance() -> float:
            return voltages(cell, of, read).double().var(correction=0).item()

        def log_variance() -> float:
            return math.log(max(variance(), 1e-30))

        settle(scale, log_variance, math.log(self.variance), reach=_REACH, close=_CLOSE)
        return variance()
