"""What an initialiser is: an object that sets a network before its training; and chains of them."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields

import torch
from torch import Tensor

from neurolsc.network import Network, as_network
from neurolsc.stability.findings import Finding, surrogate_fault
from neurolsc.stability.lsc.inputs import input_of


class StartReport(tuple[Finding, ...]):
    """What a start did and what it could not reach: a tuple of findings with a first line.

    Attributes:
        summary: firing rates and radii before and after, on a batch that the start did not set them
            on, where it measures them; else empty.
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

    A subclass is a frozen dataclass whose fields are the numbers of the method. It names its
    formula, its source and what it assumes. Frozen parameters (``requires_grad=False``) stay, and
    so does the readout, unless the method says otherwise. What is drawn comes from the seed alone;
    torch's own generator is not touched.

    ``first + second`` applies both, in this order; ``str`` gives the text from which
    :func:`neurolsc.initialisers.named` makes an equal object.
    """

    @abstractmethod
    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set a network.

        Args:
            network: the network; :func:`neurolsc.wrap` makes one of other modules.
            inputs: batches x (T, B, n_in), as :func:`neurolsc.datasets.input_batches` gives them,
                or (x, labels), whose labels tell a batch that comes first. A method that needs one
                takes the first; one that needs none takes an empty list.
            seed: of what is drawn.

        Returns:
            What could not be reached, and where; empty if all is well. Some return a
            :class:`StartReport`, whose text also says what the start did.

        Raises:
            TypeError: if a cell lacks what the method needs.
            ValueError: if an input is needed and does not fit.
        """

    def __add__(self, other: "Initialiser") -> "Chain":
        if not isinstance(other, Initialiser):
            return NotImplemented
        return Chain((*parts_of(self), *parts_of(other)))

    def __str__(self) -> str:
        given = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]  # type: ignore[arg-type]
        shown = [f"{name}={value!r}" for name, value, default in given if default is MISSING or value != default]
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


def parts_of(initialiser: Initialiser) -> tuple[Initialiser, ...]:
    """The parts of a chain, or the one that it is."""
    return initialiser.parts if isinstance(initialiser, Chain) else (initialiser,)


def generator(seed: int, *place: object) -> torch.Generator:
    """Where the numbers for one place of a network are drawn from; other places are independent."""
    digest = hashlib.sha256(f"{seed} {place}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def first_input(network: Network, inputs: Sequence[Tensor]) -> Tensor:
    """The first batch, in the network's dtype and on its device.

    Raises:
        TypeError: if network is no network, or inputs is no sequence of tensors, or of tuples that
            begin with one.
        ValueError: if there is none, or it does not fit the network.
    """
    n_in = as_network(network).n_in
    if isinstance(inputs, Tensor) or not isinstance(inputs, Sequence):
        raise TypeError(f"inputs must be a list of batches (T, B, n_in), got {type(inputs).__name__}: give [x].")
    if not inputs:
        raise ValueError("this initialiser needs at least one batch of inputs, got none.")
    x = inputs[0]
    if isinstance(x, tuple | list) and x:
        x = input_of(x, 1)  # without its labels, which tell whether it is batch first
    if not isinstance(x, Tensor):
        cure = ": give torch.from_numpy(x)" if type(x).__module__ == "numpy" else ""
        raise TypeError(f"inputs must be a list of batches (T, B, n_in), got a list of {type(x).__name__}{cure}.")
    if x.ndim != 3 or x.shape[2] != n_in or 0 in x.shape:
        raise ValueError(f"inputs must be (T, B, {n_in}), got {tuple(x.shape)}.")
    if network.embedding is not None:
        return x.to(network.dtype_and_device["device"])  # numbers of words stay whole
    return (x.to_dense() if x.is_sparse else x).to(**network.dtype_and_device)


def surrogate_faults(network: Network) -> list[Finding]:
    """The layers whose surrogate has a derivative that is not finite everywhere."""
    found = (surrogate_fault(network.cells[layer], layer) for layer in network.spiking)
    return [finding for finding in found if finding is not None]
