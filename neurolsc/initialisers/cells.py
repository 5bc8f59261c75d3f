"""What initialisers read of a cell and set: its matrices, its voltages over a run, its filter."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from neurolsc.network import Network
from neurolsc.neurons.cell import Cell, Membrane, WeightMatrix, owner_of, weight_matrices
from neurolsc.positive import set_value
from neurolsc.stability.one_layer import steps


def input_synapses(network: Network, layer: int) -> tuple[WeightMatrix, ...]:
    """The input matrices of a layer.

    Raises:
        TypeError: if its cell names none.
    """
    found = weight_matrices(network.cells[layer], "depth", inputs=True)
    if not found:
        raise TypeError(
            f"{told(network, layer)} names no input matrix among its answers: put an nn.Linear before it, or use a start "
            "of thresholds alone, RateMatching(0.15)."
        )
    return found


def recurrent_synapses(network: Network, layer: int) -> tuple[WeightMatrix, ...]:
    """The recurrent matrices of a layer.

    Raises:
        TypeError: if its cell names none.
    """
    found = weight_matrices(network.cells[layer], "time")
    if not found:
        raise TypeError(
            f"{told(network, layer)} names no recurrent matrix among its answers: use a start that needs none, such as "
            "RateMatching(0.15), LSUV() or BySource()."
        )
    return found


def membrane(network: Network, layer: int) -> Membrane:
    """The membrane of a layer.

    Raises:
        TypeError: if its cell does not say what its voltage is.
    """
    found = network.cells[layer].membrane()
    if found is None:
        raise TypeError(
            f"{told(network, layer)} does not say what its voltage and threshold are: use a start of weights alone, "
            "Glorot(), Orthogonal() or LSC(), or write its membrane()."
        )
    return found


def told(network: Network, layer: int) -> str:
    """How a message names a layer."""
    cell = network.cells[layer]
    inner = getattr(cell, "layer", None)
    of = f" of a {type(inner).__name__}" if isinstance(inner, nn.Module) else ""
    return f"layer {layer + 1}, a {type(cell).__name__}{of},"


def normal(like: WeightMatrix, generator: torch.Generator) -> Tensor:
    """Standard normal numbers in the shape of a matrix, in float64 on the CPU."""
    return torch.randn(like.weights.shape, generator=generator, dtype=torch.float64)


def orthogonal(like: WeightMatrix, generator: torch.Generator) -> Tensor:
    """A matrix whose rows, or columns where these are fewer, are orthonormal."""
    rows = torch.empty(like.weights.flatten(1).shape, dtype=torch.float64)
    return nn.init.orthogonal_(rows, generator=generator).view(like.weights.shape)


def put(where: WeightMatrix, weights: Tensor) -> None:
    """Set a matrix; single weights of 0, which are connections that do not exist, stay."""
    absent = where.weights == 0
    where.set(weights if absent.all() else weights.to(where.weights).masked_fill(absent, 0))


def by_neuron(values: Tensor, like: WeightMatrix) -> Tensor:
    """Values of neurons (n_hidden,) as factors of rows; their mean where rows are others."""
    rows = len(like.weights)
    return (values if len(values) == rows else values.mean().expand(rows)).view(-1, *[1] * (like.weights.ndim - 1))


def voltages(cell: Cell, of: Membrane, read: Tensor) -> Tensor:
    """The voltage after every step of a run from rest (T, B, n_hidden)."""
    return torch.stack([of.voltage(after) for _, _, after in steps(cell, read)])


def resting_threshold(cell: Cell, of: Membrane) -> Tensor:
    """The threshold of every neuron at rest (n_hidden,), in float64 on the CPU."""
    with torch.no_grad():
        return of.thresholds(cell.initial_state(1))[0].double().cpu()


def impulse_response(cell: Cell, of: Membrane, inputs: tuple[WeightMatrix, ...], length: int) -> Tensor:
    r"""The voltage after an input current of 1 in the first step, without spikes (T, n_hidden).

    It is measured: the input matrices are replaced, for the while, by ones that give every neuron
    the mean of its inputs, and the current is a thousandth of the lowest threshold. Of LIF and ALIF
    it is :math:`e^{-t/\tau_v}`.
    """
    threshold = resting_threshold(cell, of)
    size = 1e-3 * threshold[threshold > 0].amin().item() if (threshold > 0).any() else 1e-3
    quiet = torch.zeros(length, 1, cell.n_in, **cell.dtype_and_device)
    pulse = quiet.clone()
    pulse[0] = size
    with _averaging(inputs):
        response = voltages(cell, of, pulse).double() - voltages(cell, of, quiet).double()
    return (response[:, 0] / size).cpu()


@contextmanager
def _averaging(inputs: tuple[WeightMatrix, ...]) -> Iterator[None]:
    """Give every neuron the mean of its inputs for a while."""
    before = [(owner_of(s.cell, s.name), s.weights.clone()) for s in inputs]
    try:
        for (place, weights), s in zip(before, inputs, strict=True):
            set_value(*place, torch.full_like(weights, 1 / s.fan_in))
        yield
    finally:
        for place, weights in before:
            set_value(*place, weights)


def kept_share(cell: Cell, of: Membrane) -> Tensor:
    """The share of its voltage that a neuron at rest keeps over a step (n_hidden,)."""
    with torch.no_grad():
        rest = cell.initial_state(1)
        x, z, by = torch.zeros(1, cell.n_in, **cell.dtype_and_device), cell.output(rest), -0.125
        lowered, as_is = (of.voltage(cell.update(x, z, state)) for state in (of.moved(rest, by), rest))
    return ((lowered - as_is)[0].double() / by).cpu()
