"""Networks written as graphs of NIR, the neuromorphic intermediate representation, and read.

The nodes of each neuron, both ways, are in :mod:`neurolsc.export.neurons`.
"""

import io
from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import h5py
import numpy as np
import torch
from torch import Tensor, nn

from neurolsc.export.neurons import NEURONS, NirLayer, exported_neuron, fill, linear, load_nir, notes
from neurolsc.export.wrapped import from_wrapped, integrates
from neurolsc.hdf5 import HDF5
from neurolsc.io import atomic_write, refusing
from neurolsc.metrics import is_binary
from neurolsc.network import Network
from neurolsc.validation import number

if TYPE_CHECKING:
    import nir

__all__ = ["NirChain", "from_nir", "to_nir"]

DENSE = ("Linear", "Affine")
COPIES = 24  # bytes of memory of a weight while a layer is made: as float64 twice, as float32 twice


def to_nir(
    network: Network, path: str | PathLike[str] | None = None, *, dt: float, golden: Tensor | None = None
) -> "nir.NIRGraph":
    """Describe a network as a graph of NIR, and write it to a file if there is a path.

    Nodes are ``w_in_1``, ``lif_1`` (or the sub-graph ``alif_1``), ``w_rec_1`` and so on,
    ``readout`` (or ``li_3``). Connections between layers have no latency in NIR, recurrent ones one
    step: of a network with ``layer_delay=1`` other readers send the spikes of layer l, counted from
    1, l steps earlier. Metadata let :func:`from_nir` restore every bit; surrogates are left out.

    Args:
        network: LIF layers with any reset, CubaLIF with reset to zero, ALIF layers with
            ``reset="static"``, and a linear readout or an LI at the end; or what
            :func:`neurolsc.wrap` made of such.
        path: a file to write, usually ``*.nir``; written whole or not at all.
        dt: seconds per time step. snnTorch's reader supposes 1e-4.
        golden: samples (T, B, n_in) that the file holds with the spikes of every layer and the
            readout, where no layer has a delay; ``nir.read_data`` (nir 1.0.8) returns them, and
            :func:`neurolsc.export.verify_nir` replays them.

    Returns:
        The graph.

    Raises:
        TypeError: if a layer or the readout cannot be exported.
        ValueError: if something cannot be expressed; the message names the layer and the number; or
            if there are golden samples and no path.
        ImportError: if nir is not installed.
        OSError: if the file cannot be written.

    Example:
        >>> from neurolsc import LIF
        >>> graph = to_nir(Network([LIF(30, 8, reset="zero")], n_out=4), dt=1e-4)
        >>> list(graph.nodes)
        ['input', 'w_in_1', 'lif_1', 'w_rec_1', 'readout', 'output']
    """
    nir = load_nir()
    dt = number("dt", dt)
    if golden is not None and path is None:
        raise ValueError("golden samples are written to a file: give its path.")
    network = from_wrapped(network)
    leaky = integrates(network)
    for name, value in network.readout.named_parameters():
        if not value.isfinite().all():
            raise ValueError(f"readout: {name} must be finite, got {value[~value.isfinite()][0].item()}.")
    names: list[str] = []
    nodes: dict[str, Any] = {"input": nir.Input(np.array([network.n_in]))}
    edges: list[tuple[str, str]] = []
    source = "input"
    for i, cell in enumerate(network.cells, start=1):
        neuron = exported_neuron(f"layer {i}", cell)
        layer = neuron.nodes(f"layer {i}", f"{neuron.word}_{i}", cell, dt, network.layer_delay)
        nodes |= {f"w_in_{i}": layer.weight, layer.name: layer.neuron}
        edges += [(source, f"w_in_{i}"), (f"w_in_{i}", layer.name)]
        if layer.recurrent is not None:
            nodes[f"w_rec_{i}"] = layer.recurrent
            # before the edge to the next layer: norse's reader takes the node that it reaches last
            # for the output
            edges += [(layer.name, f"w_rec_{i}"), (f"w_rec_{i}", layer.name)]
        source = layer.name
        names.append(layer.name)
    if not leaky:
        readout: Any = network.readout
        nodes["readout"] = linear(readout.weight, readout.bias)
        edges.append((source, "readout"))
        source = "readout"
    nodes["output"] = nir.Output(np.array([network.n_out]))
    edges.append((source, "output"))
    about = {"dt": dt, "layer_delay": network.layer_delay}
    graph = nir.NIRGraph(nodes, edges, metadata={"neurolsc": about})
    if path is None:
        return graph
    buffer = io.BytesIO()
    nir.write(buffer, graph)
    if golden is not None:
        if not hasattr(nir, "write_data"):
            raise ImportError(
                f"golden samples need nir 1.0.8 or later, got {nir.__version__}: pip install 'nir>=1.0.8'."
            )
        at_once = Network(list(network.cells), network.readout, layer_delay=0)
        x = (golden.to_dense() if golden.is_sparse else golden).to(**network.dtype_and_device)
        with torch.no_grad():
            run = at_once.run(x)
        sent = {}
        for name, values in zip(("input", *names, "output"), (x, *run.spikes, run.logits), strict=True):
            numbers, binary = values.transpose(0, 1).cpu().numpy(), is_binary(values)
            grid = nir.TimeGriddedData(numbers.astype(bool) if binary else numbers, dt)
            sent[name] = nir.NIRNodeData({"spikes" if binary else "values": grid})
        data = io.BytesIO()
        nir.write_data(data, nir.NIRGraphData(sent))
        with h5py.File(data) as samples, h5py.File(buffer, "r+") as file:  # they share no name
            samples.copy("nodes", file)
            file.attrs.update(samples.attrs)
    atomic_write(path, lambda file: file.write(buffer.getvalue()))
    return graph


def from_nir(
    source: "nir.NIRGraph | str | PathLike[str]", *, dt: float | None = None, layer_delay: Literal[0, 1] | None = None
) -> Network:
    """Make a network of a graph of NIR.

    A graph of :func:`to_nir` comes back with every parameter and ``layer_delay``, in its dtype. Of
    other programs' graphs, chains of ``Linear`` or ``Affine`` and ``LIF`` or ``CubaLIF`` nodes can
    be read, each with its own recurrence, and an ``LI`` or ``CubaLI`` at the end, by their Euler
    steps of dt seconds; layers then read the one below in the same step.

    Args:
        source: the graph, or the file that holds it.
        dt: seconds per time step, for files without it: 1e-4 for snnTorch's; norse 1.1
            writes time constants too small by the factor dt, so that its own (default 1e-3) takes
            1e-6 here.
        layer_delay: 1 for layers that read the one below one step late, as on a chip; by default
            what the graph was written with, else 0.

    Returns:
        The network. Without a readout in the graph it is the identity, as after an LI.

    Raises:
        ValueError: if the file is damaged, dt is missing or contradicts the file, or our cells
            cannot do the same; the message names the node and its type.
        TypeError: if the source is neither a graph nor a path.
        ImportError: if nir is not installed.
        OSError: if the file cannot be read.

    Example:
        >>> from neurolsc import LIF
        >>> network = Network([LIF(30, 8)], n_out=4)
        >>> again = from_nir(to_nir(network, dt=1e-4))
        >>> torch.equal(again.cells[0].w_rec, network.cells[0].w_rec)
        True
    """
    nir = load_nir()
    if not isinstance(source, str | PathLike):
        if not isinstance(source, nir.NIRGraph):
            raise TypeError(f"wanted a NIRGraph or the path of a file, got {type(source).__name__}.")
        return _network(source, dt, layer_delay, None)
    with open(source, "rb") as file:
        data = file.read()
    with refusing(source, "damaged, or does not hold a graph of NIR"):
        with HDF5(data) as content:
            tree = _texts(content.tree("node"))
        # nir's check refuses a batch axis, which other writers leave in; shapes are checked here
        graph = nir.dict2NIRNode(tree | {"type_check": False})
        if not isinstance(graph, nir.NIRGraph):
            raise ValueError(f"wanted a graph of NIR, got a {type(graph).__name__}.")
        return _network(graph, dt, layer_delay, content.memory)


def _texts(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree with text where a file has bytes."""
    return {
        name: _texts(value) if isinstance(value, dict) else value.decode() if isinstance(value, bytes) else value
        for name, value in tree.items()
    }


def _network(graph: Any, dt: float | None, layer_delay: Literal[0, 1] | None, memory: Any) -> Network:
    about = notes(graph)
    if "dt" in about:
        written = float(about["dt"])
        if dt is not None and not np.isclose(dt, written):
            raise ValueError(f"the graph was written with dt = {written:g} s, got dt = {dt:g} s.")
        dt = written
    if dt is None:
        raise ValueError(
            "the graph does not say how long a time step is: give dt in seconds (snnTorch writes for 1e-4)."
        )
    dt = number("dt", dt)
    if layer_delay is None:
        layer_delay = 1 if int(about.get("layer_delay", 0)) else 0
    layers, last = NirChain(graph).layers()
    starts = {kind: neuron for neuron in NEURONS.values() for kind in neuron.starts}
    if memory is not None:
        for layer in layers:
            neurons, inputs = layer.size
            memory.take(COPIES * neurons * (neurons + inputs), f"the weights of {layer.name}")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        cells = [starts[type(layer.neuron).__name__].cell(layer, dt) for layer in layers]
        top = cells[-1]
        weight = np.eye(top.n_hidden) if last is None else np.asarray(last.weight)
        if not np.isfinite(weight).all():
            raise ValueError("the weights of the readout must be finite.")
        if weight.ndim != 2 or weight.shape[1] != top.n_hidden:
            raise ValueError(f"the weights of the readout have shape {weight.shape}, wanted (classes, {top.n_hidden}).")
        bias = None if last is None else getattr(last, "bias", None)
        dtype = top.dtype_and_device["dtype"]
        readout = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=dtype)
        fill(readout.weight, weight)
        if bias is not None:
            fill(readout.bias, np.asarray(bias))
        return Network(cells, readout.requires_grad_(not top.integrator), layer_delay=layer_delay)


class NirChain:
    """A chain of layers in a graph of NIR, whoever wrote it; graphs in the graph are flattened.

    Raises:
        ValueError: if the graph is not one chain of layers; the message names the node and its
            type.
    """

    def __init__(self, graph: "nir.NIRGraph") -> None:
        self.nodes: dict[str, Any] = {}
        self.about: dict[str, dict[str, Any]] = {}
        self.edges: set[tuple[str, str]] = set()
        self.seen: set[str] = set()
        inputs, outputs = self._flatten(graph, "", {})
        self.input, self.output = self.only("input", inputs), self.only("output", outputs)

    def _flatten(self, graph: Any, prefix: str, about: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Take the nodes of a graph and of the graphs in it; its inputs and outputs."""
        nir = load_nir()
        inner: dict[str, tuple[list[str], list[str]]] = {}
        for name, node in graph.nodes.items():
            if isinstance(node, nir.NIRGraph):
                inner[name] = self._flatten(node, f"{prefix}{name}.", notes(node))
            else:
                self.nodes[prefix + name], self.about[prefix + name] = node, notes(node) or about
        for a, b in graph.edges:
            for end in (a, b):
                if end not in graph.nodes:
                    raise ValueError(f"an edge leads from {a} to {b}, but there is no node {end}.")
            sources = inner[a][1] if a in inner else [prefix + a]
            targets = inner[b][0] if b in inner else [prefix + b]
            self.edges |= {(source, target) for source in sources for target in targets}
        for pair in inner.values():
            for name in (*pair[0], *pair[1]):  # of an inner graph: what reached it reaches what it led to
                joined = {(a, b) for a in self.before(name) for b in self.after(name)}
                self.edges = {edge for edge in self.edges if name not in edge} | joined
                del self.nodes[name]
        inputs, outputs = (
            [prefix + name for name, node in graph.nodes.items() if isinstance(node, kind)]
            for kind in (nir.Input, nir.Output)
        )
        return inputs, outputs

    def before(self, name: str) -> set[str]:
        """The nodes that a node reads."""
        return {a for a, b in self.edges if b == name}

    def after(self, name: str) -> set[str]:
        """The nodes that read a node."""
        return {b for a, b in self.edges if a == name}

    def named(self, name: str) -> str:
        """A node with its type, for errors."""
        return f"node {name} ({type(self.nodes[name]).__name__})"

    def only(self, what: str, names: Iterable[str]) -> str:
        """The only one of some nodes."""
        names = sorted(names)
        if len(names) != 1:
            raise ValueError(f"wanted one {what}, got {_list(names)}: only chains of layers can be read.")
        return names[0]

    def visit(self, name: str, kinds: Iterable[str]) -> str:
        """The type of a node, one of `kinds`, that is visited for the first time."""
        kind, kinds = type(self.nodes[name]).__name__, tuple(kinds)
        if kind not in kinds:
            wanted = " or ".join(kinds)
            raise ValueError(f"{self.named(name)} stands where {wanted} was expected; no cell of ours is such a node.")
        if name in self.seen:
            raise ValueError(f"{self.named(name)} is reached twice: only chains of layers can be read.")
        self.seen.add(name)
        return kind

    def check_loop(self, start: str, middle: str, end: str) -> None:
        """Demand that a node reads one other and feeds one other."""
        if (self.before(middle), self.after(middle)) != ({start}, {end}):
            raise ValueError(
                f"{self.named(middle)} must lead from {start} to {end} alone, but reads {_list(self.before(middle))} "
                f"and leads to {_list(self.after(middle))}: only chains of layers, each with its own recurrence, can "
                "be read."
            )

    def layers(self) -> tuple[list[NirLayer], Any]:
        """Layers from the input to the output, and the readout's node, None if there is none."""
        starts = {kind: neuron for neuron in NEURONS.values() for kind in neuron.starts}
        layers: list[NirLayer] = []
        source, onward, readout = self.input, self.after(self.input), None
        self.seen |= {self.input, self.output}
        while onward != {self.output}:
            weight = self.only(f"node after {self.named(source)}", onward)
            self.visit(weight, DENSE)
            onward = self.after(weight)
            if onward == {self.output}:
                readout = self.nodes[weight]
                break
            neuron = self.only(f"node after {self.named(weight)}", onward)
            source, parts = starts[self.visit(neuron, starts)].inside(self, neuron)
            recurrent = None
            if others := self.before(neuron) - {weight}:
                recurrent = self.only(f"recurrent node before {self.named(neuron)}", others)
                self.visit(recurrent, DENSE)
                self.check_loop(source, recurrent, neuron)
            onward = self.after(source) - {recurrent, *parts.values()}
            layers.append(
                NirLayer(
                    neuron,
                    self.nodes[weight],
                    self.nodes[neuron],
                    self.nodes[recurrent] if recurrent else None,
                    {name: self.nodes[part] for name, part in parts.items()},
                    self.about[neuron],
                )
            )
        if left := sorted(self.nodes.keys() - self.seen):
            raise ValueError(f"{self.named(left[0])} is on no way from the input to the output.")
        if not layers:
            raise ValueError("the graph has no layer of neurons.")
        return layers, readout


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
