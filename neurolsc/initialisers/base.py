"""Initialisers as objects, as chains, as texts; and what they read of a cell and set."""

import ast
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from neurolsc.network import Network, as_network
from neurolsc.neurons.cell import Cell, Membrane, WeightMatrix, owner_of, weight_matrices
from neurolsc.positive import set_value
from neurolsc.stability.findings import Finding, surrogate_fault
from neurolsc.stability.one_layer import steps
from neurolsc.stability.pretrain import input_of
from neurolsc.validation import meant


class StartReport(tuple[Finding, ...]):
    """Findings of a start, with a summary line.

    Attributes:
        summary: firing rates and radii before and after, on a batch that the start did not set them on, where it
            measures them; else empty.
    """

    summary: str

    def __new__(cls, findings: Iterable[Finding] = (), summary: str = "") -> "StartReport":
        report = super().__new__(cls, findings)
        report.summary = summary
        return report

    def __str__(self) -> str:
        return "\n".join([self.summary, *map(str, self)] if self.summary else map(str, self))


class Initialiser(ABC):
    """A way to start: sets parameters of the cells of a network, in place.

    A subclass is a frozen dataclass whose fields are the numbers of the method. It states its formula, its source and
    what it assumes. Frozen parameters (``requires_grad=False``) stay, and so does the readout, unless the method says
    otherwise. What is drawn comes from the seed alone; torch's own generator is not touched.

    ``first + second`` applies both, in this order; ``str`` returns the text from which
    :func:`neurolsc.initialisers.named` makes an equal object.
    """

    @abstractmethod
    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set a network.

        Args:
            network: the network; :func:`neurolsc.wrap` makes one of other modules.
            inputs: batches x (T, B, n_in), or (x, labels), as :func:`neurolsc.datasets.input_batches` makes them. A
                method that needs one takes the first; one that needs none takes an empty list.
            seed: of what is drawn.

        Returns:
            What could not be reached, and where; empty if all is well. Some return a :class:`StartReport`, whose text
            also says what the start did.

        Raises:
            TypeError: if a cell lacks what the method needs.
            ValueError: if an input is needed and does not fit.
        """

    def __add__(self, other: "Initialiser") -> "Chain":
        if not isinstance(other, Initialiser):
            return NotImplemented
        first, second = (one.parts if isinstance(one, Chain) else (one,) for one in (self, other))
        return Chain((*first, *second))

    def __str__(self) -> str:
        values = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]  # type: ignore[arg-type]
        shown = [f"{name}={value!r}" for name, value, default in values if default is MISSING or value != default]
        return type(self).__name__ + (f"({', '.join(shown)})" if shown else "")


@dataclass(frozen=True)
class Chain(Initialiser):
    """Initialisers one after the other; ``+`` makes it.

    Attributes:
        parts: what is applied, in this order, each with the seed of the whole.
    """

    parts: tuple[Initialiser, ...]

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Apply all parts; their findings and summaries, in the same order."""
        reports = [part.apply(network, inputs, seed=seed) for part in self.parts]
        summaries = [report.summary for report in reports if isinstance(report, StartReport) and report.summary]
        return StartReport([finding for report in reports for finding in report], "; then ".join(summaries))

    def __str__(self) -> str:
        return " + ".join(map(str, self.parts))


# ---------------------------------------------------------------- as texts

I = TypeVar("I", bound=type[Initialiser])  # noqa: E741

INITIALISERS: dict[str, type[Initialiser]] = {}


def register(cls: I) -> I:
    """Make an initialiser known to :func:`named` under the name of its class.

    Args:
        cls: a frozen dataclass derived from :class:`neurolsc.initialisers.Initialiser`.

    Returns:
        The class, so that it can be used as a decorator.

    Raises:
        TypeError: if it is not such a class.
        ValueError: if another class has the name.
    """
    if not (isinstance(cls, type) and issubclass(cls, Initialiser) and is_dataclass(cls)):
        raise TypeError(f"register takes a dataclass derived from Initialiser, got {cls!r}.")
    there = INITIALISERS.get(cls.__name__, cls)
    if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"{cls.__name__!r} is another initialiser already, {there.__module__}.{there.__qualname__}.")
    INITIALISERS[cls.__name__] = cls  # a class of the same place is the same one, defined anew in a notebook
    return cls


def named(spec: str) -> Initialiser:
    """The initialiser that a text names; nothing in it is executed.

    Args:
        spec: a name, with numbers and words in brackets where it takes some, or several joined by ``+``: ``"Default"``,
            ``"LSUV(variance=0.5)"``, ``"Orthogonal() + RateMatching(0.15)"``.

    Raises:
        TypeError: if it is no text.
        ValueError: if it cannot be read, or the name is unknown; the message lists the known ones.

    Example:
        >>> named("Orthogonal(inputs=True)+RateMatching(0.15)").parts
        (Orthogonal(gain=1.0, inputs=True), RateMatching(rate=0.15, tolerance=0.1))
    """
    if not isinstance(spec, str):
        raise TypeError(f"an initialiser is named by a text, such as 'LSUV()', got {type(spec).__name__}.")
    known = ", ".join(sorted(INITIALISERS))

    def made(tree: ast.expr) -> Initialiser:
        match tree:
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return made(left) + made(right)
            case ast.Name(id=name):
                args, words = [], {}
            case ast.Call(func=ast.Name(id=name), args=positional, keywords=keywords):
                args = [ast.literal_eval(arg) for arg in positional]
                words = {str(word.arg): ast.literal_eval(word.value) for word in keywords}
            case _:
                raise SyntaxError
        if name not in INITIALISERS:
            raise LookupError(f"unknown initialiser {name[:80]}; known are {known}{meant(INITIALISERS, name)}")
        try:
            return INITIALISERS[name](*args, **words)
        except (TypeError, ValueError) as error:
            takes = ", ".join(f.name for f in fields(INITIALISERS[name]))  # type: ignore[arg-type]
            raise LookupError(f"{name} takes {takes or 'nothing'}: {error}") from error

    try:
        if len(spec) > 1000:
            raise SyntaxError
        return made(ast.parse(spec.strip(), mode="eval").body)
    except LookupError as error:
        raise ValueError(*error.args) from error
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(
            f"{spec[:80]!r} is no initialiser: write a name, with numbers or words in brackets, such as "
            f"RateMatching(0.15), or several joined by +; known are {known}."
        ) from error


# ---------------------------------------------------------------- inputs, draws, faults


def generator(seed: int, *place: object) -> torch.Generator:
    """A generator for one place of a network, independent of those of other places."""
    digest = hashlib.sha256(f"{seed} {place}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def first_input(network: Network, inputs: Sequence[Tensor]) -> Tensor:
    """The first batch, in the network's dtype and on its device.

    Raises:
        TypeError: if network is no network, or inputs is no sequence of tensors, or of tuples that begin with one.
        ValueError: if there is none, or it does not fit the network.
    """
    n_in = as_network(network).n_in
    if isinstance(inputs, Tensor) or not isinstance(inputs, Sequence):
        raise TypeError(f"inputs must be a list of batches (T, B, n_in), got {type(inputs).__name__}: give [x].")
    if not inputs:
        raise ValueError("this initialiser needs at least one batch of inputs, got none.")
    x = input_of(inputs[0], 1)
    if x.shape[2] != n_in or 0 in x.shape:
        raise ValueError(f"inputs must be (T, B, {n_in}), got {tuple(x.shape)}.")
    if network.embedding is not None:
        return x.to(network.dtype_and_device["device"])  # numbers of words stay whole
    return (x.to_dense() if x.is_sparse else x).to(**network.dtype_and_device)


def surrogate_faults(network: Network) -> list[Finding]:
    """The layers whose surrogate has a derivative that is not finite everywhere."""
    found = (surrogate_fault(network.cells[layer], layer) for layer in network.spiking)
    return [finding for finding in found if finding is not None]


# ---------------------------------------------------------------- parts of a cell


def layer_name(network: Network, layer: int) -> str:
    """A layer in a message: its number and its kind."""
    cell = network.cells[layer]
    inner = getattr(cell, "layer", None)
    of = f" of a {type(inner).__name__}" if isinstance(inner, nn.Module) else ""
    return f"layer {layer + 1}, a {type(cell).__name__}{of},"


def input_matrices(network: Network, layer: int) -> tuple[WeightMatrix, ...]:
    """The input matrices of a layer.

    Raises:
        TypeError: if its cell names none.
    """
    if found := weight_matrices(network.cells[layer], "depth", inputs=True):
        return found
    raise TypeError(
        f"{layer_name(network, layer)} names no input matrix among its scaled_parameters: put an nn.Linear before it, or use a "
        "start of thresholds alone, RateMatching(0.15)."
    )


def recurrent_matrices(network: Network, layer: int) -> tuple[WeightMatrix, ...]:
    """The recurrent matrices of a layer.

    Raises:
        TypeError: if its cell names none.
    """
    if found := weight_matrices(network.cells[layer], "time"):
        return found
    raise TypeError(
        f"{layer_name(network, layer)} names no recurrent matrix among its scaled_parameters: use a start that needs none, such as "
        "RateMatching(0.15), LSUV() or BySource()."
    )


def membrane(network: Network, layer: int) -> Membrane:
    """The membrane of a layer.

    Raises:
        TypeError: if its cell does not say what its voltage is.
    """
    if (found := network.cells[layer].membrane()) is not None:
        return found
    raise TypeError(
        f"{layer_name(network, layer)} does not say what its voltage and threshold are: use a start of weights alone, "
        "Glorot(), Orthogonal() or LSC(), or write its membrane()."
    )


def resting_threshold(cell: Cell, of: Membrane) -> Tensor:
    """The threshold of every neuron at rest (n_hidden,), in float64 on the CPU."""
    with torch.no_grad():
        return of.thresholds(cell.initial_state(1))[0].double().cpu()


def voltages(cell: Cell, of: Membrane, read: Tensor) -> Tensor:
    """The voltage after every step of a run from rest (T, B, n_hidden)."""
    return torch.stack([of.voltage(after) for _, _, after in steps(cell, read)])


def impulse_response(cell: Cell, of: Membrane, inputs: tuple[WeightMatrix, ...], length: int) -> Tensor:
    r"""The voltage after an input current of 1 in the first step, without spikes (T, n_hidden).

    It is measured: the input matrices are replaced, for the while, by ones through which every
    neuron gets the mean of its inputs, and the current is a thousandth of the lowest threshold. Of LIF and ALIF it is
    :math:`e^{-t/\tau_v}`.
    """
    threshold = resting_threshold(cell, of)
    size = 1e-3 * threshold[threshold > 0].amin().item() if (threshold > 0).any() else 1e-3
    quiet = torch.zeros(length, 1, cell.n_in, **cell.dtype_and_device)
    pulse = quiet.clone()
    pulse[0] = size
    before = [(owner_of(s.cell, s.name), s.weights.clone()) for s in inputs]
    try:
        for (place, weights), s in zip(before, inputs, strict=True):
            set_value(*place, torch.full_like(weights, 1 / s.fan_in))
        response = voltages(cell, of, pulse).double() - voltages(cell, of, quiet).double()
    finally:
        for place, weights in before:
            set_value(*place, weights)
    return (response[:, 0] / size).cpu()


# ---------------------------------------------------------------- matrices


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


def scaling(matrices: Sequence[WeightMatrix]) -> Callable[[float], None]:
    """A function of a logarithm that sets matrices to multiples of what they are now."""
    start = [matrix.weights.clone() for matrix in matrices]

    def scale(log: float) -> None:
        for matrix, weights in zip(matrices, start, strict=True):
            put(matrix, math.exp(log) * weights)

    return scale


def by_neuron(values: Tensor, like: WeightMatrix) -> Tensor:
    """Values of neurons (n_hidden,) as factors of rows; their mean where rows are others."""
    rows = len(like.weights)
    return (values if len(values) == rows else values.mean().expand(rows)).view(-1, *[1] * (like.weights.ndim - 1))
