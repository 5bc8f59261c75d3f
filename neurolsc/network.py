"""Cells stacked in depth, with a readout."""

import copy
import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding as vectors_of
from torch.nn.functional import linear, pad
from torch.nn.parameter import UninitializedBuffer, is_lazy

from neurolsc.display import counted, shapes, state_repr
from neurolsc.neurons.cell import Cell, State, dtype_and_device, refuse_wrong_step
from neurolsc.surroundings import eval_mode, original
from neurolsc.validation import BATCH_FIRST, shown, tensor, whole

M = TypeVar("M", bound=nn.Module)


class NetworkState(NamedTuple):
    """The state of a network between two steps."""

    layers: tuple[State, ...]  # one state per cell, first layer first
    x: Tensor | None  # the input that the first layer has yet to read (B, n_in); None with ``layer_delay=0``

    def detach(self) -> "NetworkState":
        """Return the same values without their history, for truncated backpropagation through time."""
        layers = tuple(type(s)(*(leaf.detach() for leaf in s)) for s in self.layers)  # s: a named tuple of tensors
        return NetworkState(layers, None if self.x is None else self.x.detach())

    def __repr__(self) -> str:
        parts = [f"{count} x {state}" for state, count in counted(map(state_repr, self.layers))]
        if self.x is not None:
            parts.append(shapes("B", x=self.x))
        return f"NetworkState({', '.join(parts)})"


class Run(NamedTuple):
    """What a run over time returns."""

    logits: Tensor  # readout at every step (T, B, n_out)
    spikes: tuple[Tensor, ...]  # output of every cell at every step, each (T, B, n_hidden)
    states: NetworkState  # state after the last step, to go on from

    def __repr__(self) -> str:
        seen = shapes("TB", logits=self.logits, spikes=self.spikes)
        return f"Run({seen}, states of {len(self.states.layers)} layers)"


class StepRecord(NamedTuple):
    """One step of a run: states, inputs and outputs of all cells."""

    before: NetworkState  # state before the step
    inputs: tuple[Tensor, ...]  # input of each cell in this step, each (B, n_in of the cell)
    outputs: tuple[Tensor, ...]  # output of each cell in this step, each (B, n_hidden)
    after: NetworkState  # state after the step


class Embedding(nn.Module):
    r"""A vector for each word, which the first layer reads; the same vectors are the readout.

    The network then reads token indices x (T, B, 1), and its first layer reads their vectors. The logits of the words
    are products of the last layer's output with the same vectors, :math:`o[t] = E\, z[t, L]`, so that the last layer
    must be as wide as a vector.

    Args:
        words: number of words.
        width: entries of a vector.

    Attributes:
        weight: E (words, width), uniform within 0.05.

    Example:
        >>> from neurolsc import GRU, Network
        >>> network = Network([GRU(8, 8)], embedding=Embedding(50, 8))
        >>> network(torch.randint(50, (20, 4, 1))).shape
        torch.Size([20, 4, 50])

    Source: arXiv:2308.12075, App. G ("the output of the last layer is multiplied by the embedding"); arXiv:1608.05859.
    """

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = whole("words", words)
        self.width = whole("width", width)
        self.weight = nn.Parameter(nn.init.uniform_(torch.empty(words, width), -0.05, 0.05))

    def forward(self, indices: Tensor) -> Tensor:
        """Return the vectors (..., width) of token indices (..., 1); TypeError if these are not integers."""
        if indices.is_floating_point() or indices.dtype == torch.bool:
            raise TypeError(f"x must be integer token indices, got {indices.dtype}.")
        return vectors_of(indices.squeeze(-1).long(), self.weight)

    def config(self) -> dict[str, object]:
        """Return the constructor's arguments as JSON values."""
        return {"words": self.words, "width": self.width}

    def extra_repr(self) -> str:
        return f"{self.words}, {self.width}"


class Tied(nn.Module):
    """The readout of an embedding: products with its vectors."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self._embedding = [embedding]  # a list hides it from nn.Module: its weight belongs to the embedding alone

    def forward(self, z: Tensor) -> Tensor:
        return linear(z, self._embedding[0].weight)


class Network(nn.Module):
    r"""Cells in depth, and a readout of the last one's output in the same step, by default linear.

    .. math:: h[t, l] = g_l(h[t-1, l],\, h[t-1, l-1]), \qquad o[t] = W_R\, z[t, L]

    Args:
        cells: the layers, first layer first; each reads the one before.
        n_out: number of classes; or the readout itself, a module without state that maps the last cell's output (B,
            n_hidden) to (B, classes) and is called step by step; None if an embedding is the readout.
        layer_delay: 1: every layer reads the layer below, and the first layer the input, one step late (eq. 1 and 49);
            0: they read it in the same step, as in other libraries.
        embedding: the vectors of words, if x are token indices (T, B, 1).
        readout_bias: give a linear readout that is made here a bias. Without one (eq. 49) a silent last layer ties all
            classes and casts no vote (:func:`neurolsc.metrics.mode_vote`); Table S1 of the paper counts a bias.

    Raises:
        ValueError: if widths do not fit each other, there are two readouts, or a cell lacks a scaled parameter.
        TypeError: if a cell is no :class:`Cell`, or one's own returns something else than that class says, or a readout
            returns no tensor; the message names what came.

    Example:
        >>> from neurolsc import ALIFPlus
        >>> network = Network([ALIFPlus(784, 128), ALIFPlus(128, 128)], n_out=10)
        >>> network(torch.zeros(100, 4, 784)).shape
        torch.Size([100, 4, 10])

    Source: arXiv:2308.12075, eq. 1.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        n_out: int | nn.Module | None = None,
        *,
        embedding: Embedding | None = None,
        layer_delay: Literal[0, 1] = 1,
        readout_bias: bool = False,
    ) -> None:
        super().__init__()
        if not cells:
            raise ValueError("a network needs at least one cell, got none.")
        for i, cell in enumerate(cells):
            if not isinstance(cell, Cell):
                raise TypeError(
                    f"cells must be cells of neurolsc, got {shown(cell)} as cell {i}: neurolsc.wrap makes a network of "
                    "layers of another library."
                )
        for i, (below, cell) in enumerate(pairwise(cells), start=1):
            if below.n_hidden != cell.n_in:
                raise ValueError(f"cell {i} reads {cell.n_in} inputs, but cell {i - 1} has {below.n_hidden} outputs.")
        for cell in cells:
            if not type(cell).__module__.startswith("neurolsc."):  # a cell of one's own
                refuse_wrong_step(cell)
        if layer_delay not in (0, 1):
            raise ValueError(f"layer_delay must be 0 or 1, got {layer_delay!r}.")
        self.cells: Sequence[Cell] = nn.ModuleList(cells)  # type: ignore[assignment]
        self.layer_delay = layer_delay
        self.embedding = embedding
        self.readout: nn.Module
        if embedding is not None:
            n_in = cells[0].n_in
            n_last = cells[-1].n_hidden
            if n_out is not None or not n_in == n_last == embedding.width:
                wanted = f"cells that read and send {embedding.width} numbers, and n_out=None"
                got = f"{n_in} read, {n_last} sent and n_out={n_out}"
                raise ValueError(f"an embedding of vectors of {embedding.width} needs {wanted}, got {got}.")
            self.readout = Tied(embedding)
            self.n_out = embedding.words
        elif isinstance(n_out, nn.Module):
            with torch.no_grad(), eval_mode(n_out):
                logits = n_out(torch.zeros(1, cells[-1].n_hidden, **cells[-1].dtype_and_device))
            wanted = f"the readout must map (B, {cells[-1].n_hidden}) to a tensor (B, classes)"
            if not isinstance(logits, Tensor):  # such as the spikes and the voltage of a neuron
                raise TypeError(f"{wanted}, got a {type(logits).__name__}.")
            if logits.ndim != 2:
                raise ValueError(f"{wanted}, got {tuple(logits.shape)}.")
            self.readout = n_out
            self.n_out = logits.shape[1]
        else:
            self.n_out = whole("n_out", n_out)  # type: ignore[arg-type]
            like = cells[-1].dtype_and_device
            self.readout = nn.Linear(cells[-1].n_hidden, self.n_out, bias=readout_bias, **like)
            nn.init.xavier_uniform_(self.readout.weight)
            if readout_bias:
                nn.init.zeros_(self.readout.bias)

    def extra_repr(self) -> str:
        sizes = counted(cell.n_hidden for cell in self.cells)
        hidden = " -> ".join(f"{count} x {size}" if count > 1 else str(size) for size, count in sizes)
        parameters = sum(p.numel() for p in self.parameters())
        return f"{self.n_in} -> {hidden} -> {self.n_out}, layer_delay={self.layer_delay}, {parameters:,} parameters"

    @property
    def spiking(self) -> tuple[int, ...]:
        """Indices of all layers but integrators such as LI; cells that send numbers, such as a GRU, are among them."""
        return tuple(i for i, cell in enumerate(self.cells) if not cell.integrator)

    @property
    def n_in(self) -> int:
        """Number of inputs; with an embedding 1, the token index."""
        if self.embedding is None:
            return self.cells[0].n_in
        return 1

    @property
    def dtype_and_device(self) -> dict[str, Any]:
        """The dtype and device of the parameters, as keywords."""
        return dtype_and_device(self)

    def initial_states(self, batch: int) -> NetworkState:
        """Return the state of a batch with every cell at rest; with a layer delay its input yet to be read is 0."""
        whole("batch", batch)
        layers = tuple(cell.initial_state(batch) for cell in self.cells)
        pending = None
        if self.layer_delay:
            pending = torch.zeros(batch, self.cells[0].n_in, **self.dtype_and_device)
        return NetworkState(layers, pending)

    def step(self, x: Tensor, states: NetworkState) -> tuple[Tensor, NetworkState]:
        """Return logits (B, n_out) and state after one step with the input x (B, n_in), of any real dtype."""
        if tensor("x", x).ndim != 2 or x.shape[1] != self.n_in:
            raise ValueError(f"x must have shape (B, {self.n_in}), got {tuple(x.shape)}.")
        record = next(self.records(x.unsqueeze(0), states))
        return self.readout(record.outputs[-1]), record.after

    def records(self, x: Tensor, states: NetworkState | None = None) -> Iterator[StepRecord]:
        """Run over time, and yield a :class:`StepRecord` after each step; arguments as in :meth:`run`."""
        x, _, states = self._check_arguments(x, None, states)
        z = tuple(cell.output(state) for cell, state in zip(self.cells, states.layers, strict=True))
        for now in x.unbind(0):
            record = self._record(now, z, states)
            yield record
            z = record.outputs
            states = record.after

    def _record(self, x: Tensor, z: tuple[Tensor, ...], states: NetworkState) -> StepRecord:
        """Do one step with the input x (B, n_in) and all cells' outputs z in the step before, each (B, n_hidden)."""
        x = x.to(**self.dtype_and_device)
        inputs = []
        outputs = []
        after = []
        below = x if states.x is None else states.x  # with a layer delay the first layer reads the step before's input
        for i, (cell, state) in enumerate(zip(self.cells, states.layers, strict=True)):
            inputs.append(below)
            after.append(cell.update(below, z[i], state))
            outputs.append(cell.output(after[-1]))
            below = z[i] if self.layer_delay else outputs[-1]
        following = NetworkState(tuple(after), x if self.layer_delay else None)
        return StepRecord(states, tuple(inputs), tuple(outputs), following)

    def embedded(self, x: Tensor) -> Tensor:
        """Return the first layer's input: x (T, B, n_in) itself, or the vectors of its words."""
        if self.embedding is None:
            return x
        return self.embedding(x)

    def run(self, x: Tensor, states: NetworkState | None = None, *, mask: Tensor | None = None) -> Run:
        """Run over time.

        Args:
            x: input (T, B, n_in), float, bool or integer; it is moved to the network's device.
            states: the states to begin with, such as the last ones of another run; by default every cell is at rest.
            mask: (T, B) bool, True while a sample runs. After its end its state stands still, and its outputs and
                logits are 0.

        Returns:
            Logits, the outputs of all cells, and the last state.

        Raises:
            ValueError: if x is not (T, B, n_in) with T, B >= 1, holds NaN or infinity, mask is not (T, B) bool or has
                gaps, or the states are not those of B samples of this network.
            TypeError: if x is complex.
        """
        if torch.compiler.is_compiling():  # a loop over time would be unrolled: a minute for 50 steps
            # torch's error under fullgraph=True shows the next line, and so what to do
            run: Any = torch.compiler.disable(self._run_beside_graph)  # not with fullgraph=True: use cell.run there
            return run(x, states, mask)
        return self._run(x, states, mask)

    def _run_beside_graph(self, x: Tensor, states: NetworkState | None, mask: Tensor | None) -> Run:
        """Do :meth:`run` within ``torch.compile``, with a warning that the network is not compiled."""
        warnings.warn(
            "torch.compile leaves a neurolsc.Network out of its graph: its layers run over all steps in kernels of "
            "their own. Loops over cell.run or cell.step are compiled.",
            stacklevel=1,  # one place, so that Python says it once
        )
        return self._run(x, states, mask)

    def _run(self, x: Tensor, states: NetworkState | None, mask: Tensor | None) -> Run:
        """Do :meth:`run` layer by layer: each layer runs over all steps before the next one does."""
        x, mask, states = self._check_arguments(x, mask, states)
        lengths = None if mask is None else mask.sum(0)
        # no more steps than the longest sample has, so that padding has no effect, not even by rounding
        if lengths is None:
            steps = len(x)
        else:
            steps = max(int(lengths.max()), 1)
        below = x[:steps]
        pending = states.x
        late = pending  # with a layer delay what the next layer reads in its first step; else None
        spikes = []
        layers = []
        for cell, state in zip(self.cells, states.layers, strict=True):
            below, last = cell.run(below, state, lengths=lengths, late=late)
            late = None
            if self.layer_delay:
                late = cell.output(state)
            spikes.append(below if steps == len(x) else pad(below, (0, 0, 0, 0, 0, len(x) - steps)))
            layers.append(last)
        # the input that the first layer has yet to read is that of each sample's last step
        if pending is not None and lengths is None:
            pending = x[-1].to(pending.dtype)
        elif pending is not None:
            # index 0 is the former pending input, which a sample without steps keeps
            inputs = torch.cat([pending[None], x.to(pending.dtype)])
            pending = inputs[lengths, torch.arange(len(pending), device=inputs.device)]
        if mask is not None:
            spikes = [layer * mask.unsqueeze(-1) for layer in spikes]
        if isinstance(self.readout, nn.Linear | Tied):  # these take all steps at once
            logits = self.readout(spikes[-1])
        else:
            logits = torch.stack([self.readout(z) for z in spikes[-1]])
        if mask is not None:
            logits = logits * mask.unsqueeze(-1)
        return Run(logits, tuple(spikes), NetworkState(tuple(layers), pending))

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits at every step (T, B, n_out) of an input x (T, B, n_in); see :meth:`run`."""
        return self.run(x).logits

    def _check_arguments(
        self, x: Tensor, mask: Tensor | None, states: NetworkState | None
    ) -> tuple[Tensor, Tensor | None, NetworkState]:
        """Check the arguments of :meth:`run`, with the errors that it documents, and complete them.

        Returns:
            x (T, B, n_in of the first cell), embedded and on the network's device; the mask on it, or None; and the
            states, at rest if they were None.
        """
        if tensor("x", x).ndim != 3 or x.shape[2] != self.n_in or 0 in x.shape:
            raise ValueError(f"x must have shape (T, B, {self.n_in}) with T, B >= 1, got {tuple(x.shape)}.")
        if x.is_complex():
            raise TypeError(f"x must be real, got {x.dtype}.")
        # the sum is checked first, five times as fast; the entries too, as a sum of finite but large ones may overflow
        if x.is_floating_point() and not x.sum().isfinite() and not x.isfinite().all():
            raise ValueError("x must be finite, got NaN or infinity.")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            turned = mask.ndim == 2 and mask.shape == x.shape[1::-1]
            hint = ""
            if turned:
                hint = f"; {BATCH_FIRST}, or turn the mask"
            raise ValueError(f"mask must be bool {tuple(x.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}{hint}.")
        if mask is not None and (mask[1:] & ~mask[:-1]).any():
            raise ValueError("mask must be True up to the last step of each sample and False after it, got gaps.")
        batch = x.shape[1]
        device = self.dtype_and_device["device"]
        if mask is not None:
            mask = mask.to(device)
        x = self.embedded(x.to(device))
        if states is None:
            return x, mask, self.initial_states(batch)
        pending = () if states.x is None else (states.x,)
        if len(states.layers) != len(self.cells) or len(pending) != self.layer_delay:
            raise ValueError(
                f"states must be those of {len(self.cells)} cells with layer_delay={self.layer_delay}, got "
                f"{len(states.layers)} {'with' if pending else 'without'} a pending input."
            )
        leaves = [leaf for layer in states.layers for leaf in layer]
        sizes = {leaf.shape[0] for leaf in (*pending, *leaves)}
        if sizes != {batch}:
            raise ValueError(f"states must be those of {batch} samples, as x is, got {sorted(sizes)}.")
        return x, mask, states


def copied(module: M) -> M:
    """Return an independent copy of a module that may hold tensors with a gradient history, such as layers' states.

    ``deepcopy`` refuses tensors with a history: these are copied without it. It also refuses the buffers of a lazy
    layer that was not called, such as ``LazyBatchNorm1d``.
    """
    values: list[object] = []
    for part in module.modules():
        memories = getattr(part, "_memories", {})  # spikingjelly keeps states there
        values += [*part._buffers.values(), *vars(part).values(), *memories.values()]
    memo: dict[int, Tensor] = {}  # deepcopy takes what is in it as copied already
    for value in values:
        if isinstance(value, UninitializedBuffer):
            options: dict[str, Any] = {"device": value.device, "dtype": value.dtype}
            memo[id(value)] = UninitializedBuffer(**options)
        elif isinstance(value, Tensor) and not is_lazy(value) and not value.is_leaf:
            memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)


def as_network(network: object) -> Network:
    """Return a Network itself, or the original of a compiled Network; TypeError for anything else."""
    network = original(network, parallel=False)
    if isinstance(network, Network):
        return network
    cure = ""
    if isinstance(network, nn.Module):
        cure = ": give neurolsc.wrap(module), a Network over the same parameters"
    raise TypeError(f"network must be a neurolsc.Network, got {type(network).__name__}{cure}.")
