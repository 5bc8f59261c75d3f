"""Orthogonal recurrence."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from neurolsc.initialisers.cells import input_synapses, orthogonal, put, recurrent_synapses
from neurolsc.initialisers.initialiser import Initialiser, generator
from neurolsc.initialisers.spec import register
from neurolsc.network import Network, as_network
from neurolsc.stability.findings import Finding
from neurolsc.validation import number


@register
@dataclass(frozen=True)
class Orthogonal(Initialiser):
    r"""Recurrent matrices whose singular values are all the same.

    .. math:: W_{rec}^\top W_{rec} = g^2 I

    Drawn uniformly among all such (QR of a Gaussian matrix). Assumed: the recurrence passes through
    linear neurons, where it then keeps norms; of a layer without connections of a neuron to itself
    the diagonal is 0 afterwards, and the rest only nearly orthogonal.

    Attributes:
        gain: g.
        inputs: do the same with the input matrices; those that are not square get orthonormal rows
            or columns, whichever are fewer, times g.

    Source: Saxe, McClelland & Ganguli, arXiv:1312.6120; for recurrence: arXiv:2308.12075, Sec.
    II-E.
    """

    gain: float = 1.0
    inputs: bool = False

    def __post_init__(self) -> None:
        number("gain", self.gain)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Draw the matrices anew; inputs are not looked at."""
        layers = as_network(network).spiking
        below = {layer: input_synapses(network, layer) if self.inputs else () for layer in layers}
        recurrent = {layer: recurrent_synapses(network, layer) for layer in layers}
        for layer in layers:
            for matrix in (*below[layer], *recurrent[layer]):
                put(matrix, self.gain * orthogonal(matrix, generator(seed, layer, matrix.name)))
        return ()
