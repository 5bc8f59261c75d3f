"""Initialisers as objects, chains and texts; and a layer as they measure and set it."""

import ast
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from neurolsc.display import Table, in_80_columns
from neurolsc.interop.prepared import Output, PreparedBatches, network_of, prepare_batches, some_batches
from neurolsc.interop.ranks import on_rank_0
from neurolsc.interop.saved import left_out, values_outside
from neurolsc.interop.sharing import shared_kept, shared_with
from neurolsc.network import Network, as_network
from neurolsc.neurons.cell import Membrane
from neurolsc.neurons.cell import Table as Register
from neurolsc.neurons.parameters import replaced
from neurolsc.neurons.weights import WeightMatrix, owner_of, weight_matrices
from neurolsc.stability.conditions import Finding
from neurolsc.stability.pretrain import input_of
from neurolsc.stability.scale import layer_inputs, steps_from_rest
from neurolsc.surroundings import in_full_precision
from neurolsc.validation import meant

BATCHES = 16  # of a loader, on which a network is initialised


@dataclass(frozen=True)
class LayerReport:
    """What an initialisation did to one layer.

    Attributes:
        layer: the layer, counted from 1.
        done: "identity", "drawn" (its drawn weights, with other thresholds) or "left" (as it was).
        why: why it is not the identity, or why it is left; empty for the identity.
        rate_before, rate_after: firing rates, in spikes per neuron and step; None if they were not measured.
        threshold_before, threshold_after: mean resting thresholds; None if they were not measured.
    """

    layer: int
    done: str
    why: str = ""
    rate_before: float | None = None
    rate_after: float | None = None
    threshold_before: float | None = None
    threshold_after: float | None = None

    @property
    def step_growth(self) -> float:
        """The factor by which an optimizer's update has grown, relative to the threshold; 1 if that is not known."""
        if not self.threshold_before or not self.threshold_after:  # None, or a threshold of 0
            return 1.0
        return self.threshold_before / self.threshold_after

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the layer's row in the table of :class:`InitReport`."""
        name = f"layer {self.layer}"
        if self.rate_after is None:  # the layer was left, and nothing of it measured
            return (name, self.done, "", "", "", self.why)
        rates = f"{self.rate_before:.2g} -> {self.rate_after:.2g}"
        thresholds = f"{self.threshold_before:.2g} -> {self.threshold_after:.2g}"
        return (name, self.done, rates, thresholds, f"x {self.step_growth:.2g}", self.why)


class InitReport(tuple[Finding, ...]):
    """What an initialisation did to each layer; as a tuple, its findings: what it could not reach.

    Attributes:
        summary: firing rates and spectral radii before and after, on the last batch; empty if none were measured.
        layers: what was done to each layer; empty if the initialisation does not say.
        title: the first line in print.
        layout: where time and batch were found in the x of a module; empty for a network, which reads (T, B, n_in).
        left_out: values of a module that were set and are not in its state_dict, and what keeps them; else empty.
    """

    summary: str
    layers: tuple[LayerReport, ...]
    title: str
    layout: str
    left_out: str

    def __new__(
        cls,
        findings: Iterable[Finding] = (),
        summary: str = "",
        layers: tuple[LayerReport, ...] = (),
        title: str = "",
        layout: str = "",
        left_out: str = "",
    ) -> "InitReport":
        report = super().__new__(cls, findings)
        report.summary = summary
        report.layers = layers
        report.title = title
        report.layout = layout
        report.left_out = left_out
        return report

    @property
    def step_growth(self) -> float:
        """The largest factor of all layers by which an optimizer's update has grown, relative to the threshold."""
        return max((layer.step_growth for layer in self.layers), default=1.0)

    def __str__(self) -> str:
        lines = [self.title, f"x: {self.layout}" if self.layout else "", self.summary]
        if self.layers:
            head = ("", "weights", "spikes/step", "threshold", "step", "")
            lines.append(str(Table(head, [layer.cells() for layer in self.layers])))
        lines += map(in_80_columns, (*self, self.left_out))
        return "\n".join(line for line in lines if line)


def on_any_network(apply: Callable[..., tuple[Finding, ...]]) -> Callable[..., tuple[Finding, ...]]:
    """Wrap the ``apply`` of an initialiser so that it also takes a user's module and the x of that module.

    For a module the wrapped ``apply`` returns an :class:`InitReport` with the layout of x and the values that the
    module's state_dict leaves out; for a network it returns what ``apply`` does. `prefers` is that of
    :func:`neurolsc.interop.prepared.prepare`.
    """

    @wraps(apply)
    def on_module(
        self: "Initialiser", net: nn.Module, x: Any, *, seed: int = 0, prefers: Output | None = None
    ) -> tuple[Finding, ...]:
        if isinstance(x, list) and not x:  # some methods need no input
            prepared = PreparedBatches(network_of(net), x, layout="")
        else:
            prepared = prepare_batches(net, x, prefers=prefers)
        network, batches, layout, leaves_membranes = prepared
        if isinstance(batches, list):
            inputs = batches
        else:
            inputs = some_batches(batches, BATCHES)
        before = values_outside(net)
        with shared_kept(network, net):
            report = apply(self, network, inputs, seed=seed)
        if network is net:  # no module was wrapped
            return report
        if not isinstance(report, InitReport):
            report = InitReport(report)
        if report.layers and leaves_membranes:
            layout += '\nof spikes and membranes the first are read; loss="membrane" reads the second'
        return InitReport(report, report.summary, report.layers, report.title, layout, left_out(net, before))

    return on_module


class Initialiser(ABC):
    """Sets parameters of the cells of a network before training, in place.

    A subclass is a frozen dataclass whose fields are the numbers of the method. Frozen parameters
    (``requires_grad=False``) and the readout stay. Draws come from the seed, not from torch's own generator.

    ``first + second`` applies both, in this order; ``str`` returns the text from which
    :func:`neurolsc.init.named` makes an equal object.
    """

    def __init_subclass__(cls) -> None:
        """Wrap the ``apply`` that a subclass defines for networks, so that it takes modules as well."""
        super().__init_subclass__()
        if "apply" in vars(cls):  # an inherited one is wrapped already
            cls.apply = on_rank_0(in_full_precision(on_any_network(cls.apply)))

    @abstractmethod
    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set a network.

        A caller may also give a module of snnTorch, norse, spikingjelly or PyTorch, with inputs as
        :func:`neurolsc.interop.prepared.prepare` takes them. The method of a subclass then gets a network over the
        same parameters, and the inputs as that network reads them.

        Args:
            network: the network, or a module.
            inputs: batches x (T, B, n_in), or (x, labels), as :func:`neurolsc.datasets.input_batches` makes them; or
                one batch, or a ``DataLoader``, whose first 16 batches are taken. A method that needs a batch takes the
                first; a method that needs none takes an empty list.
            seed: seed of all draws.

        Returns:
            What could not be reached, and where; empty if all is well. Some methods return an :class:`InitReport`. For
            a module all do; its ``layout`` says where time and batch were found in x.

        Raises:
            TypeError: if a cell lacks what the method needs, a module cannot be wrapped, or inputs are no inputs.
            ValueError: if an input is needed and does not fit.
        """

    def __add__(self, other: "Initialiser") -> "Chain":
        if not isinstance(other, Initialiser):
            return NotImplemented
        parts: list[Initialiser] = []
        for each in (self, other):  # the parts of a chain join the new one
            parts += each.parts if isinstance(each, Chain) else [each]
        return Chain(tuple(parts))

    def __str__(self) -> str:
        shown = []
        for f in fields(self):  # type: ignore[arg-type]  # of a subclass, which is a dataclass
            value = getattr(self, f.name)
            if value != f.default:
                shown.append(f"{f.name}={value!r}")
        return type(self).__name__ + (f"({', '.join(shown)})" if shown else "")


@dataclass(frozen=True)
class Chain(Initialiser):
    """Initialisers one after the other, each with the same seed; ``+`` makes it.

    Attributes:
        parts: the initialisers in their order.
    """

    parts: tuple[Initialiser, ...]

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Apply all parts; return their findings and summaries, in the same order."""
        reports = [part.apply(network, inputs, seed=seed) for part in self.parts]
        summaries = [report.summary for report in reports if isinstance(report, InitReport) and report.summary]
        return InitReport([finding for report in reports for finding in report], "; then ".join(summaries))

    def __str__(self) -> str:
        return " + ".join(map(str, self.parts))


# ---------------------------------------------------------------- as texts

I = TypeVar("I", bound=type[Initialiser])  # noqa: E741

INITIALISERS: Register[Initialiser] = Register("initialiser", Initialiser)


def register(cls: I) -> I:
    """Make an initialiser known to :func:`named` under the name of its class; a decorator.

    Args:
        cls: a frozen dataclass derived from :class:`neurolsc.init.Initialiser`.

    Raises:
        ValueError: if another class has the name.
    """
    INITIALISERS.enter(cls)
    return cls


FORMER = {"RateMatching": "FiringRate", "BySource": "LayerwiseScaling"}  # names in settings of earlier versions


def named(spec: str) -> Initialiser:
    """Parse the text of an initialiser; nothing in it is executed.

    Args:
        spec: a name, with numbers and words in brackets where it takes some, or several joined by ``+``: ``"Default"``,
            ``"LSUV(variance=0.5)"``, ``"Orthogonal() + FiringRate(0.15)"``.

    Raises:
        ValueError: if it cannot be read, or the name is unknown; the message lists the known ones.

    Example:
        >>> named("Orthogonal+FiringRate(0.15)").parts
        (Orthogonal(gain=1.0), FiringRate(rate=0.15))
    """
    try:
        return _make(ast.parse(spec.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        why = str(error).removesuffix(".")
        why += "" if why.endswith("?") else "."
        raise ValueError(
            f"{spec[:80]!r} is no initialiser: {why} Write a name, with numbers or words in brackets, such as "
            f"FiringRate(0.15), or several joined by +; known are {', '.join(sorted(INITIALISERS))}."
        ) from error


def _make(tree: ast.expr) -> Initialiser:
    """Make the initialiser of a parsed text: a name, a call with literals, or a sum of these.

    SyntaxError for anything else; ValueError for an unknown name; errors of the literals and of the initialiser's class
    pass through.
    """
    match tree:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _make(left) + _make(right)
        case ast.Name(id=name):
            args = []
            words = {}
        case ast.Call(func=ast.Name(id=name)):
            args = [ast.literal_eval(arg) for arg in tree.args]
            words = {str(word.arg): ast.literal_eval(word.value) for word in tree.keywords}
        case _:
            raise SyntaxError("neither a name nor a call nor a sum")
    name = FORMER.get(name, name)
    if name not in INITIALISERS:
        raise ValueError(f"unknown name {name[:80]}{meant(INITIALISERS, name)}")
    return INITIALISERS[name](*args, **words)


# ---------------------------------------------------------------- inputs and draws


def generator(seed: int, *place: object) -> torch.Generator:
    """Return a generator for one place of a network, such as (layer, name of a matrix), independent of other places."""
    digest = hashlib.sha256(f"{seed} {place}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))  # 56 bits: torch takes seeds of up to 64


def first_input(network: Network, inputs: Sequence[Any]) -> Tensor:
    """Return the x (T, B, n_in) of the first batch, on the network's device and in its dtype.

    Token indices stay integers.

    Raises:
        TypeError: if network is no network, or the batch is neither a tensor nor a tuple (x, ...).
        ValueError: if inputs is empty, or x does not fit the network or is not finite.
    """
    network = as_network(network)
    if not len(inputs):
        raise ValueError("this initialiser needs at least one batch of inputs, got none.")
    x = input_of(inputs[0], place=1)
    if x.shape[2] != network.n_in or 0 in x.shape:
        raise ValueError(f"inputs must be (T, B, {network.n_in}), got {tuple(x.shape)}.")
    if network.embedding is not None:
        return x.to(network.dtype_and_device["device"])  # token indices stay integers
    if not x.isfinite().all():
        raise ValueError("inputs must be finite, got NaN or infinity.")
    return x.to(**network.dtype_and_device)


# ---------------------------------------------------------------- layers

Need = Literal["inputs", "recurrent", "membrane"]
_LACKS: dict[Need, str] = {
    "inputs": "names no input matrix among its scaled_parameters: use FiringRate(0.15).",
    "recurrent": "names no recurrent matrix among its scaled_parameters: use FiringRate(0.15) or LSUV().",
    "membrane": "has no membrane(): use Glorot(), Orthogonal() or LSC().",
}


class Layer:
    """A layer of a network, as initialisers read and set it.

    Attributes:
        index: the layer, counted from 0.
        cell: its cell.
        name: its number, counted from 1, and class, to begin a message with.
        inputs: its input matrices.
        recurrent: its recurrent matrices.
        matrices: both, inputs first.
        membrane: the cell's membrane; None if it has none, which :meth:`require` with "membrane" rules out.
        shares: the places that share a parameter with the layer, such as "layer 2"; setting it would change them.
    """

    def __init__(self, network: Network, index: int) -> None:
        self.index = index
        self.cell = network.cells[index]
        inner = getattr(self.cell, "layer", None)  # of a wrapped cell the other library's layer
        wrapped = ""
        if isinstance(inner, nn.Module):
            wrapped = f" of a {type(inner).__name__}"
        self.name = f"layer {index + 1}, a {type(self.cell).__name__}{wrapped},"
        self.inputs = weight_matrices(self.cell, "depth", inputs=True)
        self.recurrent = weight_matrices(self.cell, "time")
        self.matrices = (*self.inputs, *self.recurrent)
        self.shares = shared_with(network, index)
        self.membrane: Membrane = self.cell.membrane()  # type: ignore[assignment]  # see `membrane` above

    @property
    def normalised(self) -> bool:
        """True if the cell has a batch norm, which scales its currents."""
        return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.cell.modules())

    def require(self, *needs: Need) -> None:
        """Raise a TypeError, which names another initialiser, if the layer lacks one of the needs."""
        for need in needs:
            if not getattr(self, need):
                raise TypeError(f"{self.name} {_LACKS[need]}")

    def finding(self, problem: str, cure: str) -> Finding:
        """Return a finding on this layer."""
        return Finding(self.index + 1, problem, cure)

    def unread(self) -> Finding:
        """Return the finding on a layer whose input is zero at all steps."""
        if self.index == 0:
            return self.finding("reads nothing: the input is all zeros", "give inputs that are not all 0")
        return self.finding("reads no spikes", "let the layer below fire")

    def normal(self, matrix: WeightMatrix, seed: int) -> Tensor:
        """Draw standard normal numbers in the shape of a matrix, in float64 on the CPU."""
        draws = generator(seed, self.index, matrix.name)
        return torch.randn(matrix.weights.shape, generator=draws, dtype=torch.float64)

    def orthogonal(self, matrix: WeightMatrix, seed: int) -> Tensor:
        """Draw weights in the shape of a matrix whose rows, or columns if these are fewer, are orthonormal.

        They are in float64 on the CPU. A row of a convolution is all weights of an output channel.
        """
        rows = torch.empty(matrix.weights.flatten(1).shape, dtype=torch.float64)
        draws = generator(seed, self.index, matrix.name)
        return nn.init.orthogonal_(rows, generator=draws).view(matrix.weights.shape)

    def resting_threshold(self) -> Tensor:
        """Return the threshold of every neuron at rest (n_hidden,), in float64 on the CPU."""
        with torch.no_grad():
            return self.membrane.thresholds(self.cell.initial_state(1))[0].double().cpu()

    def voltages(self, layer_input: Tensor) -> Tensor:
        """Return the voltage (T, B, n_hidden) after every step of a run from rest on an input (T, B, n_in)."""
        return torch.stack([self.membrane.voltage(after) for _, _, after in steps_from_rest(self.cell, layer_input)])

    def impulse_response(self, length: int) -> Tensor:
        r"""Return the voltage (length, n_hidden) at and after a step with an input current of 1, without spikes.

        It is measured with a current of a thousandth of the lowest positive threshold, so that no neuron fires.
        Meanwhile every input weight is one over the number of inputs, and biases, which might let neurons fire, are 0;
        afterwards all are as they were. Of LIF and ALIF the response is :math:`e^{-t/\tau_v}`.
        """
        threshold = self.resting_threshold()
        size = 1e-3 * min(threshold[threshold > 0].tolist(), default=1.0)
        quiet = torch.zeros(length, 1, self.cell.n_in, **self.cell.dtype_and_device)
        pulse = quiet.clone()
        pulse[0] = size
        meanwhile = []  # (owner, name, value) of each parameter that is replaced
        for matrix in self.inputs:
            weights = torch.full_like(matrix.weights, 1 / matrix.fan_in)
            meanwhile.append((*owner_of(self.cell, matrix.name), weights))
        for name, parameter in self.cell.named_parameters():
            if name.endswith("bias"):
                meanwhile.append((*owner_of(self.cell, name), torch.zeros_like(parameter)))
        with replaced(meanwhile):
            response = self.voltages(pulse).double() - self.voltages(quiet).double()
        return (response[:, 0] / size).cpu()


def layers_of(network: Network, *needs: Need, integrators: bool = False) -> list[Layer]:
    """Return the layers that spike, or with `integrators` all layers.

    Args:
        network: the network.
        needs: what each of the layers must have.
        integrators: return integrators, which send no spikes, as well.

    Raises:
        TypeError: if network is no network, or a cell lacks a need.
    """
    as_network(network)
    if integrators:
        indices = range(len(network.cells))
    else:
        indices = network.spiking
    layers = [Layer(network, i) for i in indices]
    for layer in layers:
        layer.require(*needs)
    return layers


def bottom_up(network: Network, x: Tensor, layers: Sequence[Layer]) -> Iterator[tuple[Layer, Tensor]]:
    """Yield some layers, from the bottom up, each with its input (T, B, n_in) in a run of the network on x.

    A caller may change a layer before it asks for the next one, which then reads the changed layer's output.
    """
    chosen = {layer.index: layer for layer in layers}
    for index, layer_input in enumerate(layer_inputs(network, x)):
        if index in chosen:
            yield chosen[index], layer_input


def set_nonzero(matrix: WeightMatrix, weights: Tensor) -> None:
    """Set the nonzero weights of a matrix: a weight of 0 is a connection that does not exist.

    A matrix of zeros alone has all its connections, and all are set. Frozen matrices stay.
    """
    absent = matrix.weights == 0
    if not absent.all():
        weights = weights.to(matrix.weights).masked_fill(absent, 0)
    matrix.set(weights)


def scaling(matrices: Sequence[WeightMatrix]) -> Callable[[float], None]:
    """Return a function of a logarithm that sets matrices to exp(log) times the weights that they have now."""
    start = [matrix.weights.clone() for matrix in matrices]

    def scale(log: float) -> None:
        for matrix, weights in zip(matrices, start, strict=True):
            set_nonzero(matrix, math.exp(log) * weights)

    return scale


def by_neuron(values: Tensor, like: WeightMatrix) -> Tensor:
    """Return values of neurons (n_hidden,) as factors of the rows of a matrix, (rows, 1, ...).

    Rows that are not neurons, as the channels of a convolution, all get the mean.
    """
    rows = len(like.weights)
    if len(values) != rows:
        values = values.mean().expand(rows)
    return values.view(-1, *[1] * (like.weights.ndim - 1))
