"""The network as it was built."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from neurolsc.initialisers.initialiser import Initialiser
from neurolsc.initialisers.spec import register
from neurolsc.network import Network, as_network
from neurolsc.stability.findings import Finding


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
