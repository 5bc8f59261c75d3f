"""How the network is set before its radii are, and before it is trained."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from neurolsc.config.setting import setting
from neurolsc.initialisers import named
from neurolsc.network import Network
from neurolsc.stability.findings import Finding


@dataclass(frozen=True)
class StartSettings:
    """The start. It comes before the radii and the training.

    Raises:
        ValueError: if the text names no initialiser.
    """

    start: str = setting(
        "",
        "initialiser, such as 'LSUV + RateMatching(0.15)'; empty: Relay(), or Default if radii are set by a target",
    )

    def __post_init__(self) -> None:
        if self.start:
            named(self.start)

    def run(self, network: Network, inputs: Sequence[Tensor], seed: int) -> tuple[Finding, ...]:
        """Set a network, with batches of inputs (T, B, n_in); what could not be reached."""
        return named(self.start or "Default").apply(network, inputs, seed=seed)
