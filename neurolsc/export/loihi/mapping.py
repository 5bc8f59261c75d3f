"""What Loihi's integers must know of a kind of neurons, there and back."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from neurolsc.export.loihi.fixed_point import IntegerLayer, Spike
from neurolsc.neurons import Cell

__all__ = ["LayerFloats", "LoihiNeuron"]

C = TypeVar("C", bound=Cell)


@dataclass(frozen=True, kw_only=True)
class LayerFloats:
    """A float layer as the report sees it beside its integers. Vectors are (n_hidden,)."""

    w_in: Tensor
    """(n_hidden, n_in)"""
    w_rec: Tensor
    """(n_hidden, n_hidden)"""
    bias: Tensor
    """constant input per step"""
    threshold: Tensor
    """at rest"""
    tau_v: Tensor
    """of the voltage, steps"""
    spike: Spike
    """the surrogate that fine-tuning takes the derivative of"""
    tau_theta: Tensor | None = None
    """of the threshold, steps; None where it is fixed"""


class LoihiNeuron(ABC, Generic[C]):
    """A kind of neurons on the chip, both ways; :mod:`neurolsc.export.loihi.table` lists them."""

    @abstractmethod
    def floats(self, cell: C) -> LayerFloats:
        """What the cell is, in its dtype and with its gradients."""

    @abstractmethod
    def integers(self, name: str, cell: C, *, force: bool, halvings: int) -> IntegerLayer:
        """The cell in integers.

        Args:
            name: of the layer, for errors.
            cell: the cell; its tau_v is known to fit 12 bits.
            force: accept few weight units per threshold.
            halvings: how often to halve the weight units where weights keep their bits by that.

        Raises:
            ValueError: if something cannot be expressed; the message names the layer and the
                number.
        """

    @abstractmethod
    def leak(self, cell: C, layer: IntegerLayer) -> Tensor:
        """The layer's decays of what is the cell's voltage, (n_hidden,), 1 to 4096."""

    @abstractmethod
    def restore(self, cell: C, layer: IntegerLayer) -> None:
        """Give a cell in float64 the parameters that the integers stand for."""

    @abstractmethod
    def describe(self, cell: C) -> str:
        """What it was and what it became."""
