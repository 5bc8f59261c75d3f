"""Weights and parameters of a cell by name: matrices to read and to set, who stores a quantity, and what is frozen."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from neurolsc.neurons.cell import Cell
from neurolsc.neurons.parameters import parametrized_by, set_value, value_of


@dataclass(frozen=True)
class WeightMatrix:
    """A matrix of weights of a cell, with a row for each neuron that reads, to read and to set."""

    cell: Cell
    name: str  # dotted where the weights belong to a module of the cell

    @property
    def weights(self) -> Tensor:
        """The weights, detached, of shape (to, from), and (to, from, ...) for a convolution."""
        return value_of(*owner_of(self.cell, self.name))

    @property
    def frozen(self) -> bool:
        """True if the weights are not trained."""
        return is_frozen(self.cell, self.name)

    @property
    def fan_in(self) -> int:
        """The number of weights by which a neuron reads."""
        return self.weights[0].numel()

    @property
    def fan_out(self) -> int:
        """The number of weights that read an input."""
        return self.weights[:, 0].numel()

    def set(self, weights: Tensor) -> None:
        """Set the weights in place; frozen ones stay."""
        if not self.frozen:
            self.overwrite(weights)

    def overwrite(self, weights: Tensor) -> None:
        """Set the weights in place, frozen ones too."""
        set_value(*owner_of(self.cell, self.name), weights.to(self.weights))


@dataclass(frozen=True)
class OneToOne(WeightMatrix):
    """Recurrent weights by which every neuron reads itself alone, as the diagonal of a matrix (n_hidden, n_hidden)."""

    @property
    def weights(self) -> Tensor:
        """The matrix, detached, with the stored weights on its diagonal."""
        return torch.diag(self._stored().expand(self._shape).flatten())

    @property
    def fan_in(self) -> int:
        return 1

    @property
    def fan_out(self) -> int:
        return 1

    def overwrite(self, weights: Tensor) -> None:
        """Set the weights to the diagonal of a matrix; a weight that neurons share, to the mean of their entries."""
        stored = self._stored()
        by_neuron = weights.diagonal().to(stored).view(self._shape)
        sharing = by_neuron.numel() / stored.numel()  # neurons for each stored weight
        mean = by_neuron.sum_to_size(stored.shape) / sharing
        set_value(*owner_of(self.cell, self.name), mean)

    @property
    def _shape(self) -> tuple[int, ...]:
        """The shape of the layer's output for one sample, as of a wrapped convolution; by default (n_hidden,)."""
        return getattr(self.cell, "output_shape", (self.cell.n_hidden,))

    def _stored(self) -> Tensor:
        """The weights as the cell holds them, detached: one number, or a shape that expands to the output's."""
        return value_of(*owner_of(self.cell, self.name))


WIDEST = 4096  # neurons of a layer up to which one-to-one weights are taken as a matrix, which has WIDEST^2 entries


def weight_matrices(cell: Cell, radius: Literal["time", "depth"], *, inputs: bool = False) -> tuple[WeightMatrix, ...]:
    """Return the weight matrices of a cell that scale a radius.

    They are the matrices among ``scaled_parameters``. One-to-one weights (:attr:`neurolsc.Cell.recurrent_vectors`)
    count as a matrix in layers of at most 4096 neurons, and are left out in wider ones.

    Args:
        cell: the cell.
        radius: the radius that they scale.
        inputs: add :attr:`neurolsc.Cell.input_matrices`.
    """
    names = [scaled.parameter for scaled in cell.scaled_parameters if scaled.radius == radius]
    if inputs:
        names += cell.input_matrices
    matrices: list[WeightMatrix] = []
    for name in dict.fromkeys(names):  # each name once
        if name in cell.recurrent_vectors:
            if cell.n_hidden <= WIDEST:
                matrices.append(OneToOne(cell, name))
            continue
        matrix = WeightMatrix(cell, name)
        if matrix.weights.ndim >= 2:  # else it is a vector, such as time constants
            matrices.append(matrix)
    return tuple(matrices)


def recurrent_weights(cell: Cell) -> tuple[WeightMatrix, ...]:
    """Return the weights by which neurons read their own layer, one-to-one weights in layers of any width included."""
    vectors = ()
    if cell.n_hidden > WIDEST:  # weight_matrices leaves them out
        vectors = [WeightMatrix(cell, name) for name in cell.recurrent_vectors]
    return (*weight_matrices(cell, "time"), *vectors)


# ---- by name


def owner_of(cell: Cell, name: str) -> tuple[nn.Module, str]:
    """Return the module that a dotted name belongs to, and the name there: for "layer.weight" cell.layer, "weight"."""
    path, _, name = name.rpartition(".")
    return cell.get_submodule(path), name


def is_frozen(cell: Cell, name: str) -> bool:
    """True if the parameter that stores a quantity of a cell requires no gradient."""
    parameter = stored_parameter(cell, name)
    if parameter is not None:
        return not parameter.requires_grad
    originals = parametrized_by(*owner_of(cell, name))
    if not originals:  # no parameter stores it
        return False
    return not any(original.requires_grad for original in originals)


def stored_parameter(cell: Cell, name: str) -> nn.Parameter | None:
    """Return the parameter that stores a quantity: <name>, log_<name>, or as ``stored_in`` says; None if none does."""
    stored_name = dict(cell.stored_in).get(name, name)
    owner, last = owner_of(cell, stored_name)
    if last in owner._parameters:
        return owner._parameters[last]
    return owner._parameters.get(f"log_{last}")
