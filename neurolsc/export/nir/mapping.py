"""What NIR must know of a kind of neurons: nodes of a cell, and a cell of nodes."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from neurolsc.export.nir.graph import ChainLayer, Walk
from neurolsc.neurons import Cell

__all__ = ["NirNeuron"]

C = TypeVar("C", bound=Cell)


class NirNeuron(ABC, Generic[C]):
    """A kind of neurons in NIR, both ways; entered in :data:`neurolsc.export.nir.table.NEURONS`."""

    word: ClassVar[str]
    """what its nodes are called, before the number of the layer"""
    starts: ClassVar[tuple[str, ...]]
    """types of node with which such neurons begin"""

    def name(self, i: int) -> str:
        """The node of layer i, counted from 1."""
        return f"{self.word}_{i}"

    @abstractmethod
    def check(self, layer: str, cell: C, layer_delay: int) -> None:
        """Refuse what NIR cannot say.

        Raises:
            ValueError: naming the layer and the number.
        """

    @abstractmethod
    def check_reader(self, layer: str, cell: C, reader: str) -> None:
        """Refuse what ``"norse"``, ``"snntorch"`` or ``"spikingjelly"`` cannot read.

        Raises:
            ValueError: naming the layer and the reader.
        """

    @abstractmethod
    def write(self, name: str, cell: C, dt: float) -> ChainLayer:
        """The nodes of a cell at dt seconds per step."""

    def inside(self, walk: Walk, start: str) -> tuple[str, dict[str, str]]:
        """The node that fires, and by a name of their own all beside the first.

        Raises:
            ValueError: if what follows the first node is something else.
        """
        return start, {}

    @abstractmethod
    def read(self, layer: ChainLayer, dt: float) -> Any:
        """The cell that does what the nodes do in Euler steps of dt seconds.

        Called without gradients; random numbers may be drawn.

        Raises:
            ValueError: if there is none; the message names the node and its type.
        """
