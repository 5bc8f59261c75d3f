"""What of a cell's state is its voltage, and at which voltage it fires."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Membrane:
    """The voltage of a cell, which fires where it is above the threshold.

    Attributes:
        name: the variable of the state that is the voltage. Where a spike resets it within the same
            step, as in norse, it is the voltage after that.
        threshold: the threshold in a state, (B, n_hidden) or broadcast to it.
        spike: what is sent at a distance v - theta, elementwise, with the surrogate's derivative.
    """

    name: str
    threshold: Callable[[Any], Tensor]
    spike: Callable[[Tensor], Tensor]

    def voltage(self, state: Any) -> Tensor:
        """The voltage in a state (B, n_hidden)."""
        return getattr(state, self.name).flatten(1)

    def thresholds(self, state: Any) -> Tensor:
        """The threshold of every neuron in a state (B, n_hidden)."""
        return self.threshold(state).expand_as(getattr(state, self.name)).flatten(1)

    def moved(self, state: Any, by: float) -> Any:
        """The same state with another voltage."""
        return state._replace(**{self.name: getattr(state, self.name) + by})
