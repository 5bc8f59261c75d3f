"""A chain of layers as a graph of NIR, and the chain inside a graph, whoever wrote it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from neurolsc.export.nir.nodes import load_nir, notes

if TYPE_CHECKING:
    import nir

__all__ = ["Chain", "ChainLayer", "Walk", "read_chain", "write_chain"]

MOST_EDGES = 10_000
DENSE = ("Linear", "Affine")

Inside = Callable[["Walk", str], tuple[str, dict[str, str]]]
"""says of which nodes neurons consist, as :meth:`neurolsc.export.nir.mapping.NirNeuron.inside`"""


@dataclass(frozen=True)
class ChainLayer:
    """A layer of a chain: weights, neurons, and what goes from the neurons back to themselves."""

    name: str
    """of its neurons; where they were read, with the names of the graphs around them before dots"""
    weight: Any
    """the node ``Linear`` or ``Affine`` before the neurons"""
    neuron: Any
    """their node; of neurons of several nodes the first one, or the sub-graph to be written"""
    recurrent: Any | None = None
    """``Linear`` or ``Affine``"""
    parts: dict[str, Any] = field(default_factory=dict)
    """the nodes beside the first one"""
    about: dict[str, Any] = field(default_factory=dict)
    """what we noted beside the neurons"""

    @property
    def dtype(self) -> torch.dtype:
        """That of the weights."""
        return torch.float64 if np.asarray(self.weight.weight).dtype == np.float64 else torch.float32


@dataclass(frozen=True)
class Chain:
    """Layers in depth, and a readout if there is one; else the last layer is it."""

    layers: tuple[ChainLayer, ...]
    readout: Any | None


def write_chain(chain: Chain, about: dict[str, Any]) -> "nir.NIRGraph":
    """Make a graph of layers and a readout, with a note beside it."""
    nir = load_nir()
    first = chain.layers[0]
    nodes: dict[str, Any] = {"input": nir.Input(np.array([first.weight.weight.shape[1]]))}
    edges: list[tuple[str, str]] = []
    source = "input"
    for i, layer in enumerate(chain.layers, start=1):
        w_in, w_rec, neuron = f"w_in_{i}", f"w_rec_{i}", layer.name
        nodes |= {w_in: layer.weight, neuron: layer.neuron}
        edges += [(source, w_in), (w_in, neuron)]
        if layer.recurrent is not None:
            nodes[w_rec] = layer.recurrent
            # before the edge to the next layer: norse's reader takes the node that it comes to last
            # for the output
            edges += [(neuron, w_rec), (w_rec, neuron)]
        source = neuron
    last = chain.layers[-1].weight
    if chain.readout is not None:
        last, nodes["readout"] = chain.readout, chain.readout
        edges, source = [*edges, (source, "readout")], "readout"
    nodes["output"] = nir.Output(np.array([last.weight.shape[0]]))
    edges.append((source, "output"))
    return nir.NIRGraph(nodes, edges, metadata={"neurolsc": about})


def read_chain(graph: "nir.NIRGraph", starts: Mapping[str, Inside]) -> Chain:
    """Find layer after layer on the way from the input to the output.

    Args:
        graph: the graph.
        starts: types of node with which neurons begin -> what they consist of.

    Raises:
        ValueError: if the graph is not one chain of layers; the message names the node and its
            type.
    """
    return Walk(graph).chain(starts)


class Walk:
    """A graph without graphs inside, and which of its nodes were seen on the way through."""

    def __init__(self, graph: "nir.NIRGraph") -> None:
        self.nodes: dict[str, Any] = {}
        self.about: dict[str, dict[str, Any]] = {}
        self.edges: set[tuple[str, str]] = set()
        self.seen: set[str] = set()
        entrance, exit_ = self._flatten(graph, "", {})
        self.input, self.output = self.only("input", entrance), self.only("output", exit_)

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
        """The only one of some nodes.

        Raises:
            ValueError: if there are none or more.
        """
        names = sorted(names)
        if len(names) != 1:
            raise ValueError(f"wanted one {what}, got {_list(names)}: only chains of layers can be read.")
        return names[0]

    def expect(self, name: str, kinds: Iterable[str]) -> str:
        """The type of a node, one of some, that is seen for the first time.

        Raises:
            ValueError: if it is another, or was seen before.
        """
        kind, kinds = type(self.nodes[name]).__name__, tuple(kinds)
        if kind not in kinds:
            wanted = " or ".join(kinds)
            raise ValueError(f"{self.named(name)} stands where {wanted} was expected; no cell of ours is such a node.")
        if name in self.seen:
            raise ValueError(f"{self.named(name)} is reached twice: only chains of layers can be read.")
        self.seen.add(name)
        return kind

    def expect_loop(self, start: str, middle: str, end: str) -> None:
        """Demand that a node reads one other and feeds one other.

        Raises:
            ValueError: if it does not.
        """
        if (self.before(middle), self.after(middle)) != ({start}, {end}):
            raise ValueError(
                f"{self.named(middle)} must lead from {start} to {end} alone, but reads {_list(self.before(middle))} "
                f"and leads to {_list(self.after(middle))}: only chains of layers, each with its own recurrence, can "
                "be read."
            )

    def chain(self, starts: Mapping[str, Inside]) -> Chain:
        """See :func:`read_chain`."""
        layers: list[ChainLayer] = []
        source, onward, readout = self.input, self.after(self.input), None
        self.seen |= {self.input, self.output}
        while onward != {self.output}:
            weight = self.only(f"node after {self.named(source)}", onward)
            self.expect(weight, DENSE)
            onward = self.after(weight)
            if onward == {self.output}:
                readout = self.nodes[weight]
                break
            neuron = self.only(f"node after {self.named(weight)}", onward)
            source, parts = starts[self.expect(neuron, starts)](self, neuron)
            recurrent = self._recurrent(neuron, source, weight)
            onward = self.after(source) - {recurrent, *parts.values()}
            layers.append(
                ChainLayer(
                    neuron,
                    self.nodes[weight],
                    self.nodes[neuron],
                    self.nodes[recurrent] if recurrent else None,
                    {name: self.nodes[part] for name, part in parts.items()},
                    self.about[neuron],
                )
            )
        left = sorted(self.nodes.keys() - self.seen)
        if left:
            raise ValueError(f"{self.named(left[0])} is on no way from the input to the output.")
        if not layers:
            raise ValueError("the graph has no layer of neurons.")
        return Chain(tuple(layers), readout)

    def _recurrent(self, neuron: str, source: str, weight: str) -> str | None:
        others = self.before(neuron) - {weight}
        if not others:
            return None
        recurrent = self.only(f"recurrent node before {self.named(neuron)}", others)
        self.expect(recurrent, DENSE)
        self.expect_loop(source, recurrent, neuron)
        return recurrent

    def _flatten(self, graph: Any, prefix: str, about: dict[str, Any]) -> tuple[list[str], list[str]]:
        """Take the nodes of a graph and of the graphs in it; its inputs and outputs."""
        nir = load_nir()
        inner: dict[str, tuple[list[str], list[str]]] = {}
        for name, node in graph.nodes.items():
            if isinstance(node, nir.NIRGraph):
                inner[name] = self._flatten(node, f"{prefix}{name}.", notes(node))
            else:
                self.nodes[prefix + name] = node
                self.about[prefix + name] = notes(node) or about
        for a, b in graph.edges:
            for end in (a, b):
                if end not in graph.nodes:
                    raise ValueError(f"an edge leads from {a} to {b}, but there is no node {end}.")
            sources = inner[a][1] if a in inner else [prefix + a]
            targets = inner[b][0] if b in inner else [prefix + b]
            self._join(sources, targets)
        ends = ([], [])
        for name, node in graph.nodes.items():
            for kind, names in zip((nir.Input, nir.Output), ends, strict=True):
                if isinstance(node, kind):
                    names.append(prefix + name)
        for pair in inner.values():
            for name in (*pair[0], *pair[1]):
                self._bypass(name)
        return ends

    def _bypass(self, name: str) -> None:
        """Take out an input or output of an inner graph: what reached it reaches what it led to."""
        before, after = self.before(name), self.after(name)
        self.edges = {edge for edge in self.edges if name not in edge}
        self._join(before, after)
        del self.nodes[name]

    def _join(self, sources: Collection[str], targets: Collection[str]) -> None:
        """Lead all of some nodes to all of others."""
        if len(self.edges) + len(sources) * len(targets) > MOST_EDGES:
            raise ValueError(f"it has more than {MOST_EDGES} edges: only chains of layers can be read.")
        self.edges |= {(source, target) for source in sources for target in targets}


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
