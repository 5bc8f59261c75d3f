"""What a target knows of neurons: one entry per step, found by the class that defines it."""

from collections.abc import Mapping
from typing import TypeVar

from neurolsc.neurons import Cell, SpikingCell
from neurolsc.neurons.cell import BESIDES, OFFERS, step_of
from neurolsc.neurons.reset import Reset, ResetName, StaticReset, ZeroReset

__all__ = ["RESET_NAMES", "Neurons", "find_reset"]

T = TypeVar("T")

RESET_NAMES: dict[type[Reset], ResetName] = {Reset: "subtract", StaticReset: "static", ZeroReset: "zero"}
"""what messages and files call them"""


class Neurons(dict[type[Cell], T]):
    """A table of a target: class that defines a step -> what the target makes of it.

    A class that keeps the step of another, as ALIF+ does that of ALIF, is found under the other;
    one that changes it is another neuron, and unknown. Your own neuron takes one entry more::

        NEURONS[MyCell] = MyMapping()

    Args:
        said: what happens to the neurons that are known, such as "written to NIR".
        known: the entries.

    Example:
        >>> from neurolsc import LIF, ALIFPlus
        >>> Neurons("exported", {LIF: "a leaky one"}).of("layer 2", ALIFPlus(3, 2))
        Traceback (most recent call last):
        TypeError: layer 2 is a ALIFPlus; only LIF can be exported.
    """

    def __init__(self, said: str, known: Mapping[type[Cell], T]) -> None:
        super().__init__(known)
        self.said = said

    def of(self, layer: str, cell: Cell) -> T:
        """The entry of a cell.

        Raises:
            TypeError: if there is none; the message names the layer and the cell's class.
        """
        step = step_of(type(cell))
        changed = [name for name in vars(cell) if hasattr(type(cell), name) and name not in (*BESIDES, *OFFERS)]
        if step in self and not changed:
            return self[step]
        related = next((known.__name__ for known in self if isinstance(cell, known)), None)
        own = f", whose step is not that of {related}" if related else ""
        own += f" (it has its own {', '.join(changed)})" if changed else ""
        names = " and ".join(known.__name__ for known in self)
        raise TypeError(f"{layer} is a {type(cell).__name__}{own}; only {names} can be {self.said}.")


def find_reset(layer: str, cell: SpikingCell, known: Mapping[type[Reset], T]) -> T:
    """What a target makes of a cell's reset.

    Raises:
        ValueError: if it knows no such reset.
    """
    kind = type(cell.reset)
    if kind in known:
        return known[kind]
    names = ", ".join(each.__name__ for each in known)
    raise ValueError(f"{layer}: its reset is {cell.reset!r}, known here are {names}.")
