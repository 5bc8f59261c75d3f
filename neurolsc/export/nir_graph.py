"""The chain of layers inside a graph of NIR, whoever wrote it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from neurolsc.export.nir_package import load_nir

if TYPE_CHECKING:
    import nir

__all__ = ["Chain", "Layer", "read_chain"]


@dataclass(frozen=True)
class Layer:
    """A layer of a chain: weights, neurons, and what goes from the neurons back to themselves."""

    name: str
    """of its neuron, with the names of the graphs around it before dots"""
    weight: Any
    """the node ``Linear`` or ``Affine`` before the neurons"""
    neuron: Any
    """``LIF`` or ``CubaLIF``, or the ``LI`` of the voltage of an ALIF"""
    recurrent: Any | None
    """``Linear`` or ``Affine``"""
    adaptation: Any | None
    """the ``LI`` of an ALIF's threshold"""
    threshold: Any | None
    """the ``Threshold`` of an ALIF"""
    about: dict[str, Any]
    """what we noted beside the neurons"""


@dataclass(frozen=True)
class Chain:
    """Layers in depth, and a readout if there is one."""

    layers: tuple[Layer, ...]
    readout: Any | None


def read_chain(graph: "nir.NIRGraph") -> Chain:
    """Find layer after layer on the way from the input to the output.

    Raises:
        ValueError: if the graph is not one chain of layers; the message names the node and its type.
    """
    return _Walk(graph).chain()


class _Walk:
    """A graph without graphs inside, and which of its nodes were seen on the way through."""

    def __init__(self, graph: "nir.NIRGraph") -> None:
        self.nodes: dict[str, Any] = {}
        self.about: dict[str, dict[str, Any]] = {}
        self.edges: set[tuple[str, str]] = set()
        self.seen: set[str] = set()
        entrance, exit_ = self._flatten(graph, "", {})
        self.input, self.output = self._only("input", entrance), self._only("output", exit_)

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
            sources = inner[a][1] if a in inner else [prefix + a]
            targets = inner[b][0] if b in inner else [prefix + b]
            self.edges |= {(source, target) for source in sources for target in targets}
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
        self.edges = {edge for edge in self.edges if name not in edge} | {(a, b) for a in before for b in after}
        del self.nodes[name]

    def before(self, name: str) -> set[str]:
        return {a for a, b in self.edges if b == name}

    def after(self, name: str) -> set[str]:
        return {b for a, b in self.edges if a == name}

    def chain(self) -> Chain:
        nir = load_nir()
        dense = (nir.Linear, nir.Affine)
        layers: list[Layer] = []
        source, onward, readout = self.input, self.after(self.input), None
        self.seen |= {self.input, self.output}
        while onward != {self.output}:
            weight = self._only(f"node after {self._named(source)}", onward)
            self._expect(weight, dense, "Linear or Affine")
            onward = self.after(weight)
            if onward == {self.output}:
                readout = self.nodes[weight]
                break
            neuron = self._only(f"node after {self._named(weight)}", onward)
            self._expect(neuron, (nir.LIF, nir.CubaLIF, nir.LI), "LIF or CubaLIF")
            adaptive = isinstance(self.nodes[neuron], nir.LI)
            source, adaptation = self._adaptive(neuron) if adaptive else (neuron, None)
            recurrent = self._recurrent(neuron, source, weight)
            onward = self.after(source) - {recurrent, adaptation}
            layers.append(
                Layer(
                    neuron,
                    self.nodes[weight],
                    self.nodes[neuron],
                    self.nodes[recurrent] if recurrent else None,
                    self.nodes[adaptation] if adaptation else None,
                    self.nodes[source] if adaptive else None,
                    self.about[neuron],
                )
            )
        self._nothing_left()
        if not layers:
            raise ValueError("the graph has no layer of neurons.")
        return Chain(tuple(layers), readout)

    def _adaptive(self, membrane: str) -> tuple[str, str]:
        """The threshold that the voltage of an ALIF reaches, and what moves it."""
        nir = load_nir()
        threshold = self._only(f"node after {self._named(membrane)}", self.after(membrane))
        self._expect(threshold, (nir.Threshold,), "Threshold")
        others = self.before(threshold) - {membrane}
        adaptation = self._only(f"node beside {self._named(membrane)} before {self._named(threshold)}", others)
        self._expect(adaptation, (nir.LI,), "LI")
        self._loop(threshold, adaptation, threshold)
        return threshold, adaptation

    def _recurrent(self, neuron: str, source: str, weight: str) -> str | None:
        nir = load_nir()
        others = self.before(neuron) - {weight}
        if not others:
            return None
        recurrent = self._only(f"recurrent node before {self._named(neuron)}", others)
        self._expect(recurrent, (nir.Linear, nir.Affine), "Linear or Affine")
        self._loop(source, recurrent, neuron)
        return recurrent

    def _loop(self, start: str, middle: str, end: str) -> None:
        """Demand that a node reads one other and feeds one other."""
        if (self.before(middle), self.after(middle)) != ({start}, {end}):
            raise ValueError(
                f"{self._named(middle)} must lead from {start} to {end} alone, but reads {_list(self.before(middle))} and leads to "
                f"{_list(self.after(middle))}: only chains of layers, each with its own recurrence, can be read."
            )

    def _expect(self, name: str, kinds: tuple[type, ...], wanted: str) -> None:
        if not isinstance(self.nodes[name], kinds):
            raise ValueError(f"{self._named(name)} stands where {wanted} was expected; no cell of ours is such a node.")
        if name in self.seen:
            raise ValueError(f"{self._named(name)} is reached twice: only chains of layers can be read.")
        self.seen.add(name)

    def _only(self, what: str, names: Iterable[str]) -> str:
        names = sorted(names)
        if len(names) != 1:
            raise ValueError(f"wanted one {what}, got {_list(names)}: only chains of layers can be read.")
        return names[0]

    def _named(self, name: str) -> str:
        return f"node {name} ({type(self.nodes[name]).__name__})"

    def _nothing_left(self) -> None:
        left = sorted(self.nodes.keys() - self.seen)
        if left:
            raise ValueError(f"{self._named(left[0])} is on no way from the input to the output.")


def notes(node: Any) -> dict[str, Any]:
    """What we noted beside a node."""
    return node.metadata.get("neurolsc", {})


def values(node: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter of a node in float64, one number for all neurons spread over them.

    Raises:
        ValueError: if there are neither one nor as many as neurons.
    """
    value = np.asarray(getattr(node, name), dtype=np.float64)
    if value.size != 1 and value.shape != shape:
        raise ValueError(f"{name} of a {type(node).__name__} has shape {value.shape}, wanted {shape}.")
    return np.broadcast_to(value.reshape(()) if value.size == 1 else value, shape)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
