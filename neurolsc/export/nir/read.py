"""Networks from graphs of NIR: ours to the last bit, others where our cells say the same."""

from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from neurolsc.export.nir.graph import read_chain
from neurolsc.export.nir.nodes import load_nir, notes
from neurolsc.export.nir.table import NEURONS
from neurolsc.export.nir.voltage import fill, width
from neurolsc.network import Network
from neurolsc.neurons import Cell
from neurolsc.untrusted.hdf5 import Content
from neurolsc.untrusted.refusal import refusing
from neurolsc.untrusted.room import Room
from neurolsc.untrusted.words import clean
from neurolsc.validation import number

if TYPE_CHECKING:
    import nir

__all__ = ["from_nir", "read_nir"]

NOT_NIR = "damaged, or does not hold a graph of NIR"
COPIES = 24
"""bytes of memory that a weight takes while a layer is made: as float64 twice, as float32 twice"""


def from_nir(
    source: "nir.NIRGraph | str | PathLike[str]", *, dt: float | None = None, layer_delay: Literal[0, 1] | None = None
) -> Network:
    """Make a network of a graph of NIR.

    A graph of :func:`neurolsc.export.to_nir` comes back with every parameter and ``layer_delay``,
    in its dtype; surrogates are the default. Of other programs' graphs, chains of ``Linear`` or
    ``Affine`` and ``LIF`` or ``CubaLIF`` nodes can be read, each with its own recurrence, and an
    ``LI`` or ``CubaLI`` at the end, as their Euler step of dt seconds does them; layers then read
    the one below in the same step.

    Args:
        source: the graph, or the file that holds it.
        dt: seconds per time step, for files that do not say it: 1e-4 for snnTorch's; norse 1.1
            writes time constants too small by the factor dt, so that its own (default 1e-3) takes
            1e-6 here.
        layer_delay: 1 for layers that read the one below one step late, as on a chip; by default
            what the graph was written with, else 0.

    Returns:
        The network. Without a readout in the graph it is the identity, as after an LI.

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
    nir = load_nir()
    if not isinstance(source, str | PathLike):
        if not isinstance(source, nir.NIRGraph):
            raise TypeError(f"wanted a NIRGraph or the path of a file, got {type(source).__name__}.")
        return _network(source, dt, None, layer_delay)
    with open(source, "rb") as file:
        data = file.read()
    with refusing(source, NOT_NIR):
        graph, room = _parsed(data)
        return _network(graph, dt, room, layer_delay)


def read_nir(path: str | PathLike[str]) -> "nir.NIRGraph":
    """The graph in a file.

    Raises:
        ValueError: if the file is damaged, or holds something else.
        OSError: if it cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read()
    load_nir()
    with refusing(path, NOT_NIR):
        return _parsed(data)[0]


def _parsed(data: bytes) -> tuple["nir.NIRGraph", Room]:
    """The graph in the bytes of a file, and the room that is left to it."""
    nir = load_nir()
    with Content(data) as content:
        tree = _texts(content.tree("node"))
    if "type_check" in tree:
        raise ValueError("node/type_check: no part of a graph is called so.")
    # nir's check refuses a batch axis, which other writers leave in; shapes are checked here
    graph = nir.dict2NIRNode(tree | {"type_check": False})
    if not isinstance(graph, nir.NIRGraph):
        raise ValueError(f"wanted a graph of NIR, got a {type(graph).__name__}.")
    return graph, content.room


def _texts(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with text where a file has bytes."""
    return {
        name: _texts(value) if isinstance(value, dict) else value.decode() if isinstance(value, bytes) else value
        for name, value in tree.items()
    }


def _network(graph: "nir.NIRGraph", dt: float | None, room: Room | None, delay: Literal[0, 1] | None) -> Network:
    """The network of a graph; of a file's, no larger than the file has room for."""
    about = notes(graph)
    dt = _step(about, dt)
    starts = {kind: neuron for neuron in NEURONS.values() for kind in neuron.starts}
    chain = read_chain(graph, {kind: neuron.inside for kind, neuron in starts.items()})
    if room is not None:
        for layer in chain.layers:
            neurons, inputs = width(layer)
            room.take(COPIES * neurons * (neurons + inputs), f"the weights of {clean(layer.name)}")
    if delay is None:
        delay = 1 if int(about.get("layer_delay", 0)) else 0
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        cells = [starts[type(layer.neuron).__name__].read(layer, dt) for layer in chain.layers]
        return Network(cells, _readout(chain.readout, cells[-1]), layer_delay=delay)


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
    if not np.isfinite(weight).all():
        raise ValueError("the weights of the readout must be finite.")
    if weight.ndim != 2 or weight.shape[1] != cell.n_hidden:
        raise ValueError(f"the weights of the readout have shape {weight.shape}, wanted (classes, {cell.n_hidden}).")
    bias = None if node is None else getattr(node, "bias", None)
    kind = cell.dtype_and_device["dtype"]
    readout = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=kind)
    fill(readout.weight, weight)
    if bias is not None:
        fill(readout.bias, np.asarray(bias))
    return readout.requires_grad_(not cell.integrator)
