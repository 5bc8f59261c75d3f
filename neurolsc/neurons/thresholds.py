"""What scales the thresholds of a cell, for those who set its firing rates."""

import torch
from torch import Tensor, nn

from neurolsc.positive import set_value


class Thresholds:
    """The thresholds of a cell as they are now, which may then be set to any multiple of that.

    Args:
        cell: the cell, whose parameters are set in place.
        names: quantities of which the whole threshold is a homogeneous function.
        rest: the name of the resting threshold, if other parameters move it and it can be set.
    """

    def __init__(self, cell: nn.Module, names: tuple[str, ...], rest: str | None = None) -> None:
        self._cell, self._rest, self.names = cell, rest, names
        self._start = {name: getattr(cell, name).detach().clone() for name in names}

    def scale(self, factor: float) -> None:
        """Set the thresholds to those at the making of this object times a factor."""
        for name, value in self._start.items():
            with torch.no_grad():
                set_value(self._cell, name, value * factor)

    def rest(self) -> Tensor | None:
        """A copy of the resting threshold (n_hidden,); None where nothing but itself moves it."""
        return None if self._rest is None else getattr(self._cell, self._rest).detach().clone()

    def set_rest(self, value: Tensor) -> None:
        """Set the resting threshold.

        Raises:
            TypeError: if it cannot be set apart from the threshold itself.
        """
        if self._rest is None:
            raise TypeError(f"a {type(self._cell).__name__} has no resting threshold apart from its threshold.")
        setattr(self._cell, self._rest, value)
