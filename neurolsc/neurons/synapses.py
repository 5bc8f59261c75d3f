"""The weights of a cell, found by what it says of itself: input and recurrent matrices."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from neurolsc.neurons.cell import Cell
from neurolsc.positive import behind, set_value


@dataclass(frozen=True)
class Synapses:
    """A matrix of weights of a cell, to read and to set.

    Attributes:
        cell: the cell.
        name: the name of the weights on it, dotted where they belong to a module of the cell.
    """

    cell: Cell
    name: str

    @property
    def weights(self) -> Tensor:
        """The weights, detached: (to, from), or as a convolution has them (to, from, ...)."""
        owner, name = owner_of(self.cell, self.name)
        return getattr(owner, name).detach()

    @property
    def frozen(self) -> bool:
        """Whether they are a parameter that asks for no gradient, and so are to stay."""
        return is_frozen(self.cell, self.name)

    @property
    def fan_in(self) -> int:
        """Inputs of a neuron."""
        return self.weights[0].numel()

    @property
    def fan_out(self) -> int:
        """Neurons that hear an input."""
        return self.weights[:, 0].numel()

    def set(self, weights: Tensor) -> None:
        """Set the weights in place; frozen ones stay."""
        if not self.frozen:
            set_value(*owner_of(self.cell, self.name), weights.to(self.weights))


def synapses(cell: Cell, radius: Literal["time", "depth"], *, inputs: bool = False) -> tuple[Synapses, ...]:
    """The matrices of a cell that set a radius: recurrent ones through time, input ones in depth.

    A cell names them in its ``answers``; what has fewer than two axes is no matrix.

    Args:
        cell: the cell.
        radius: the radius.
        inputs: also the input matrices that set no radius (:attr:`neurolsc.Cell.input_matrices`).
    """
    named = [Synapses(cell, answer.parameter) for answer in cell.answers if answer.radius == radius]
    named += [Synapses(cell, name) for name in cell.input_matrices] if inputs else []
    return tuple(dict.fromkeys(s for s in named if s.weights.ndim >= 2))


def owner_of(cell: Cell, name: str) -> tuple[nn.Module, str]:
    """The module that a dotted name belongs to, and the name there."""
    path, _, name = name.rpartition(".")
    return cell.get_submodule(path), name


def is_frozen(cell: Cell, name: str) -> bool:
    """Whether a quantity of a cell is a parameter, or stands behind one, that is frozen."""
    parameter = behind(*owner_of(cell, name))
    return parameter is not None and not parameter.requires_grad
