r"""The multipliers of pre-training, one per layer and direction.

.. math:: \kappa = \mathrm{clip}(\rho_t / \bar\rho,\ \text{low},\ \text{high})

Source: arXiv:2308.12075, Sec. II-D (bounds 0.85 and 1.15).
"""

from typing import Any


def kappa(mean: float, target: float, bounds: tuple[float, float]) -> float:
    """The multiplier of a layer of that mean radius; at 0, which no ratio tells, the highest."""
    low, high = bounds
    return min(max(target / mean if mean > 0 else high, low), high)


class Damping:
    r"""Multipliers that act less after each turn: :math:`\kappa^{1/(1+n)}` after n turns.

    A turn is a multiplier above 1 after one below, or the reverse. Near the target what is left of
    a miss is mostly the noise of the look; so damped, the steps average over looks instead of
    following each.

    Args:
        layers: number of layers; turns are counted in each on its own.
    """

    def __init__(self, layers: int) -> None:
        self.up: list[bool] | None = None
        self.turns = [0] * layers

    def __call__(self, kappas: list[float]) -> list[float]:
        """Count the turns, and damp."""
        up = [k > 1 for k in kappas]
        before = up if self.up is None else self.up
        self.turns = [n + (a != b) for n, a, b in zip(self.turns, up, before, strict=True)]
        self.up = up
        return [k ** (1 / (1 + n)) for k, n in zip(kappas, self.turns, strict=True)]

    def state(self) -> dict[str, Any]:
        """What the next multipliers depend on."""
        return {"up": self.up, "turns": self.turns}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.up, self.turns = state["up"], state["turns"]
