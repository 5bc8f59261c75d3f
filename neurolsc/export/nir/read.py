"""Networks from graphs of NIR: ours to the last bit, others where our cells say the same."""

import os
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from neurolsc.export.nir.graph import read_chain
from neurolsc.export.nir.nodes import load_nir, notes
from neurolsc.export.nir.table import NEURONS
from neurolsc.export.nir.voltage import fill
from neurolsc.network import Network
from neurolsc.neurons import Cell
from neurolsc.validation import number

if TYPE_CHECKING:
    import nir

__all__ = ["from_nir", "read_nir"]


def from_nir(source: "nir.NIRGraph | str | PathLike[str]", *, dt: float | None = None) -> Network:
    """Make a network of a graph of NIR.

    A graph of :func:`neurolsc.export.to_nir` comes back with every parameter and ``layer_delay``,
    in its dtype; surrogates are the default. Of other programs' graphs, chains of ``Linear`` or
    ``Affine`` and ``LIF`` or ``CubaLIF`` nodes can be read, each with its own recurrence, as their
    Euler step of dt seconds does them; layers then read the one below in the same step.

    Args:
        source: the graph, or the file that holds it.
        dt: seconds per time step, for files that do not say it: 1e-4 for snnTorch's; norse 1.1
            writes time constants too small by the factor dt, so that its own (default 1e-3) takes
            1e-6 here.

    Returns:
        The network. Without a readout in the graph it is the identity.

    Raises:
        ValueError: if the file is damaged, dt is missing or contradicts the file, or our cells
            cannot say the same; the message names the node and its type.
        TypeError: if the source is neither a graph nor a path.
        ImportError: if nir is not installed.
        OSError: if the file cannot be read.

    Example:
        >>> from neurolsc import LIF
        >>> from neurolsc.export import to_nir
        >>> network = Network([LIF(30, 8)], n_out=4)
        >>> again = from_nir(to_nir(network, dt=1e-4))
        >>> torch.equal(again.cells[0].w_rec, network.cells[0].w_rec)
        True
    """
    graph = read_nir(source) if isinstance(source, str | PathLike) else source
    if not isinstance(graph, load_nir().NIRGraph):
        raise TypeError(f"wanted a NIRGraph or the path of a file, got {type(graph).__name__}.")
    about = notes(graph)
    dt = _step(about, dt)
    starts = {kind: neuron for neuron in NEURONS.values() for kind in neuron.starts}
    chain = read_chain(graph, {kind: neuron.inside for kind, neuron in starts.items()})
    delay: Literal[0, 1] = 1 if int(about.get("layer_delay", 0)) else 0
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        cells = [starts[type(layer.neuron).__name__].read(layer, dt) for layer in chain.layers]
        return Network(cells, _readout(chain.readout, cells[-1]), layer_delay=delay)


def read_nir(path: str | PathLike[str]) -> "nir.NIRGraph":
    """The graph in a file.

    Raises:
        ValueError: if the file is damaged, or holds something else.
        OSError: if it cannot be read.
    """
    nir = load_nir()
    name = os.fspath(path)
    with open(path, "rb"):  # else a missing file and a damaged one give the same error
        pass
    try:
        return nir.read(
            name, type_check=False
        )  # it refuses a batch axis, which other writers leave in; shapes are checked here
    except (OSError, KeyError, ValueError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
        said = f"nir {nir.version} says {type(error).__name__}: {error}"
        raise ValueError(f"{name} is damaged or does not hold a graph of NIR: {said}") from error


def _step(about: dict[str, Any], dt: float | None) -> float:
    if "dt" in about:
        said = float(about["dt"])
        if dt is not None and not np.isclose(dt, said):
            raise ValueError(f"the graph was written with dt = {said:g} s, got dt = {dt:g} s.")
        return number("dt", said)
    if dt is None:
        raise ValueError(
            "the graph does not say how long a time step is: give dt in seconds (snnTorch writes for 1e-4)."
        )
    return number("dt", dt)


def _readout(node: Any | None, cell: Cell) -> nn.Linear:
    weight = np.eye(cell.n_hidden) if node is None else np.asarray(node.weight)
    if weight.ndim != 2 or weight.shape[1] != cell.n_hidden:
        raise ValueError(f"the weights of the readout have shape {weight.shape}, wanted (classes, {cell.n_hidden}).")
    bias = None if node is None else getattr(node, "bias", None)
    kind = cell.dtype_and_device["dtype"]
    readout = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=kind)
    fill(readout.weight, weight)
    if bias is not None:
        fill(readout.bias, np.asarray(bias))
    return readout
