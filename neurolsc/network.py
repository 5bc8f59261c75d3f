"""Cells stacked in depth, with a readout."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from neurolsc.display import counted, shapes, state_repr
from neurolsc.embedding import Embedding, Tied
from neurolsc.frames import frames, frozen, keep, last_seen, running_lengths, stretch
from neurolsc.modes import evaluating
from neurolsc.neurons.cell import Cell, State, dtype_and_device
from neurolsc.neurons.spiking import LIF
from neurolsc.validation import tensor, whole


class NetworkState(NamedTuple):
    """The state of a network between two steps."""

    layers: tuple[State, ...]
    """one state per cell, first layer first"""
    x: Tensor | None
    """the input that the first layer has yet to read (B, n_in); None where ``layer_delay=0``"""

    def detach(self) -> "NetworkState":
        """The same values without their history, for truncated backpropagation through time."""
        layers = tuple(type(s)(*(leaf.detach() for leaf in s)) for s in self.layers)
        return NetworkState(layers, None if self.x is None else self.x.detach())

    def __repr__(self) -> str:
        layers = (f"{count} x {state}" for state, count in counted(map(state_repr, self.layers)))
        return f"NetworkState({', '.join(filter(None, (*layers, shapes('B', x=self.x))))})"


class Run(NamedTuple):
    """What a run over time returns."""

    logits: Tensor
    """readout at every step (T, B, n_out)"""
    spikes: tuple[Tensor, ...]
    """output of every cell at every step, each (T, B, n_hidden)"""
    states: NetworkState
    """state after the last step, to go on from"""

    def __repr__(self) -> str:
        seen = shapes("TB", logits=self.logits, spikes=self.spikes)
        return f"Run({seen}, states of {len(self.states.layers)} layers)"


class Moment(NamedTuple):
    """One step of a run, seen from inside."""

    before: NetworkState
    """state before the step"""
    inputs: tuple[Tensor, ...]
    """what each cell read in this step, each (B, n_in of the cell)"""
    outputs: tuple[Tensor, ...]
    """what each cell sent in this step, each (B, n_hidden)"""
    after: NetworkState
    """state after the step"""

    def __repr__(self) -> str:
        return f"Moment({shapes('B', inputs=self.inputs, outputs=self.outputs)}, states before and after)"


class Network(nn.Module):
    r"""Cells in depth, and a readout of the last one's output in the same step, by default linear.

    .. math:: h[t, l] = g_l(h[t-1, l],\, h[t-1, l-1]), \qquad o[t] = W_R\, z[t, L]

    Args:
        cells: the layers, first layer first; each reads the one before.
        n_out: number of classes; or the readout itself, a module without state that maps the last
            cell's output (B, n_hidden) to (B, classes) and is called step by step; None where an
            embedding is tied, and so the readout.
        layer_delay: 1: every layer reads the layer below, and the first one the input, one step
            late (eq. 1 and 49); 0: in the same step, as in stacks of snnTorch, norse and PyTorch.
        recompute: keep less for the gradient, about the states of 2 sqrt(T) steps, and run the
            steps between again. It costs the time of a forward pass, changes no result, is no part
            of what is saved, and may be set at any time.
        embedding: what makes vectors of words, if x are numbers of words (T, B, 1).
        readout_bias: give the readout made here a bias. Without one (eq. 49) a silent last layer
            ties all classes and casts no vote (:func:`neurolsc.metrics.mode_vote`); Table S1 counts
            one.

    Raises:
        ValueError: if there is no cell, widths do not fit, layer_delay is neither 0 nor 1, a
            readout is given and does not map (B, n_hidden) to (B, classes), or there are two
            readouts or none.

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
        recompute: bool = False,
    ) -> None:
        super().__init__()
        if not cells:
            raise ValueError("a network needs at least one cell, got none.")
        for i, (below, cell) in enumerate(pairwise(cells), start=1):
            if below.n_hidden != cell.n_in:
                raise ValueError(f"cell {i} reads {cell.n_in} inputs, but cell {i - 1} has {below.n_hidden} outputs.")
        if layer_delay not in (0, 1):
            raise ValueError(f"layer_delay must be 0 or 1, got {layer_delay!r}.")
        self.cells: Sequence[Cell] = nn.ModuleList(cells)  # type: ignore[assignment]
        self.layer_delay = layer_delay
        self.recompute = recompute
        self.embedding = embedding
        self.readout: nn.Module
        if embedding is not None:
            _check_widths(embedding, cells)
        if n_out is None or (embedding is not None and embedding.tied):
            if n_out is not None or embedding is None or not embedding.tied:
                raise ValueError("n_out must be given, unless a tied embedding is the readout; then it must not.")
            self.readout, self._n_out = Tied(embedding), embedding.words
        elif isinstance(n_out, nn.Module):
            self.readout, self._n_out = n_out, _classes(n_out, cells[-1])
        else:
            self._n_out = whole("n_out", n_out)
            self.readout = nn.Linear(cells[-1].n_hidden, self._n_out, bias=readout_bias)
            nn.init.xavier_uniform_(self.readout.weight)
            if readout_bias:
                nn.init.zeros_(self.readout.bias)

    @classmethod
    def exportable(
        cls,
        n_in: int,
        widths: Sequence[int],
        n_out: int,
        *,
        tau_v: float = 50.0,
        spike: Callable[[Tensor], Tensor] | None = None,
    ) -> "Network":
        """Layers of LIF that a chip can hold, read one step late, and a readout without bias.

        Start it with ``Relay(recurrence=0, rate=0.1, drawn=1)``, and train it with ``lr=2e-3`` and
        ``clip_weight=3.0``, which bounds its weights to what 8 bits can tell apart: ``neurolsc
        train --for netx`` does so.

        Args:
            n_in: number of inputs.
            widths: neurons of each layer.
            n_out: number of classes.
            tau_v: mean time constant of the voltage, in steps.
            spike: surrogate of all layers; a fast sigmoid if None.

        Raises:
            ValueError: if there is no layer, or a number is out of range.

        Example:
            >>> from neurolsc.export import quantize
            >>> len(quantize(Network.exportable(40, (32, 32), 10)).layers)
            2
        """
        cells = [LIF(below, width, tau_v=tau_v, spike=spike) for below, width in pairwise([n_in, *widths])]
        return cls(cells, n_out)

    def extra_repr(self) -> str:
        sizes = counted(cell.n_hidden for cell in self.cells)
        hidden = " -> ".join(f"{count} x {size}" if count > 1 else str(size) for size, count in sizes)
        parameters = sum(p.numel() for p in self.parameters())
        return f"{self.n_in} -> {hidden} -> {self.n_out}, layer_delay={self.layer_delay}, {parameters:,} parameters"

    @property
    def spiking(self) -> tuple[int, ...]:
        """The layers that starts set and rates are of, from 0: all but integrators, such as LI."""
        return tuple(i for i, cell in enumerate(self.cells) if not cell.integrator)

    @property
    def n_in(self) -> int:
        """Number of inputs; 1, the number of a word, where there is an embedding."""
        return self.cells[0].n_in if self.embedding is None else 1

    @property
    def n_out(self) -> int:
        """Number of classes."""
        return self._n_out

    @property
    def dtype_and_device(self) -> dict[str, Any]:
        """The dtype and device of the parameters, as keywords for a tensor's constructor."""
        return dtype_and_device(self)

    def initial_states(self, batch: int) -> NetworkState:
        """Every cell at rest, and no input yet."""
        whole("batch", batch)
        layers = tuple(cell.initial_state(batch) for cell in self.cells)
        pending = torch.zeros(batch, self.cells[0].n_in, **self.dtype_and_device) if self.layer_delay else None
        return NetworkState(layers, pending)

    def step(self, x: Tensor, states: NetworkState) -> tuple[Tensor, NetworkState]:
        """One time step.

        Args:
            x: input of this step (B, n_in), any real dtype.
            states: the state before.

        Returns:
            Logits (B, n_out) and the state after.

        Raises:
            ValueError: if x has not the shape (B, n_in), or the states are not those of B samples
                of this network.
            TypeError: if x is complex.
        """
        if tensor("x", x).ndim != 2 or x.shape[1] != self.n_in:
            raise ValueError(f"x must have shape (B, {self.n_in}), got {tuple(x.shape)}.")
        _refuse_complex(x)
        self._check_states(states, x.shape[0])
        if self.embedding is not None:
            self.embedding.check(x)
            x = self.embedding(x)
        outputs = tuple(cell.output(state) for cell, state in zip(self.cells, states.layers, strict=True))
        moment = self._moment(x, outputs, states)
        return self.readout(moment.outputs[-1]), moment.after

    def _moment(self, x: Tensor, z: tuple[Tensor, ...], states: NetworkState) -> Moment:
        """One step of all cells, given their last outputs z."""
        x = x.to(**self.dtype_and_device)
        inputs, outputs, after = [], [], []
        below = states.x if self.layer_delay else x
        assert below is not None
        for i, (cell, state) in enumerate(zip(self.cells, states.layers, strict=True)):
            state = cell.update(below, z[i], state)
            inputs.append(below)
            after.append(state)
            outputs.append(cell.output(state))
            below = z[i] if self.layer_delay else outputs[-1]
        pending = x if self.layer_delay else None
        return Moment(states, tuple(inputs), tuple(outputs), NetworkState(tuple(after), pending))

    def moments(self, x: Tensor, states: NetworkState | None = None, *, mask: Tensor | None = None) -> Iterator[Moment]:
        """Run over time, one :class:`Moment` after the other; arguments as in :meth:`run`."""
        x, mask = self._checked(x, mask)
        yield from self._moments(self.embedded(x), self._start(states, x.shape[1]), mask)

    def _moments(self, x: Tensor, states: NetworkState, mask: Tensor | None) -> Iterator[Moment]:
        """The same of what the first layer reads."""
        z = tuple(cell.output(state) for cell, state in zip(self.cells, states.layers, strict=True))
        masks: Iterable[Tensor | None] = [None] * x.shape[0] if mask is None else mask.unbind(0)
        for now, alive in zip(frames(x), masks, strict=True):
            moment = self._moment(now, z, states)
            if alive is not None:
                moment = _freeze(moment, z, alive)
            yield moment
            z, states = moment.outputs, moment.after

    def embedded(self, x: Tensor) -> Tensor:
        """What the first layer reads of an input (T, B, n_in): itself, or vectors of its words."""
        return x if self.embedding is None else self.embedding(x)

    def run(self, x: Tensor, states: NetworkState | None = None, *, mask: Tensor | None = None) -> Run:
        """Run over time.

        Args:
            x: input (T, B, n_in), dense (float, bool or integer) or sparse (COO); it is moved to
                the network's device.
            states: where to start; by default every cell at rest. Two runs with the state handed
                over equal one.
            mask: (T, B) bool, True where a sample still runs. Where it is False the state stands
                still, and outputs and logits are 0.

        Returns:
            Logits, the outputs of all cells, and the last state.

        Raises:
            ValueError: if x is not (T, B, n_in) with T, B >= 1, holds NaN or infinity, mask is not
                (T, B) bool, or the states are not those of B samples of this network.
            TypeError: if x is complex.
        """
        if torch.compiler.is_compiling():  # a loop over time would be unrolled: a minute for 50 steps
            run: Any = torch.compiler.disable(self._run)  # the loop of a cell needs no torch.compile
            return run(x, states, mask)
        return self._run(x, states, mask)

    def _run(self, x: Tensor, states: NetworkState | None, mask: Tensor | None) -> Run:
        x, mask = self._checked(x, mask)
        states, x = self._start(states, x.shape[1]), self.embedded(x)
        lengths = None if mask is None else running_lengths(mask)
        if mask is None:
            spikes, after = self._by_layers(x, states, None)
        elif lengths is None:
            moments = [(m.outputs, m.after) for m in self._moments(x, states, mask)]
            spikes = tuple(torch.stack(layer) for layer in zip(*(outputs for outputs, _ in moments), strict=True))
            after = moments[-1][1]
        else:  # no longer than the longest sample: how much padding follows has no effect, not even by rounding
            steps = max(int(lengths.max()), 1)
            spikes, after = self._by_layers(x if steps == len(x) else stretch(x, 0, steps), states, lengths)
            spikes = tuple(pad(layer, (0, 0, 0, 0, 0, len(x) - steps)) for layer in spikes)
        if mask is not None:
            spikes = tuple(layer * mask.unsqueeze(-1) for layer in spikes)
        at_once = isinstance(self.readout, nn.Linear | Tied)
        logits = self.readout(spikes[-1]) if at_once else torch.stack([self.readout(z) for z in spikes[-1]])
        if mask is not None:
            logits = logits * mask.unsqueeze(-1)
        return Run(logits, spikes, after)

    def _by_layers(
        self, x: Tensor, states: NetworkState, lengths: Tensor | None
    ) -> tuple[tuple[Tensor, ...], NetworkState]:
        """The outputs of all cells and the last state, one layer after the other over all steps.

        That is the order of :meth:`moments` turned around: no layer reads anything of a layer
        above. Lengths are as in a cell's run.
        """
        below, first, outputs, after = x, states.x, [], []
        for cell, state in zip(self.cells, states.layers, strict=True):
            below, last = cell.run(below, state, first=first, lengths=lengths, recompute=self.recompute)
            first = cell.output(state) if self.layer_delay else None
            outputs.append(below)
            after.append(last)
        return tuple(outputs), NetworkState(tuple(after), None if states.x is None else last_seen(x, states.x, lengths))

    def forward(self, x: Tensor) -> Tensor:
        """Logits at every step (T, B, n_out) of an input (T, B, n_in); see :meth:`run`."""
        return self.run(x).logits

    def _checked(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Both, on the network's device."""
        if tensor("x", x).ndim != 3 or x.shape[2] != self.n_in or 0 in x.shape:
            raise ValueError(f"x must have shape (T, B, {self.n_in}) with T, B >= 1, got {tuple(x.shape)}.")
        _refuse_complex(x)
        if self.embedding is not None:
            self.embedding.check(x)
        values = x.coalesce().values() if x.is_sparse else x
        # the sum first, which is five times as fast
        if values.is_floating_point() and not values.sum().isfinite() and not values.isfinite().all():
            raise ValueError("x must be finite, got NaN or infinity.")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            turned = mask.ndim == 2 and mask.shape == x.shape[1::-1]
            hint = "; x or mask looks batch-first: transpose(0, 1)" if turned else ""
            raise ValueError(f"mask must be bool {tuple(x.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}{hint}.")
        device = self.dtype_and_device["device"]
        return x.to(device), None if mask is None else mask.to(device)

    def _start(self, states: NetworkState | None, batch: int) -> NetworkState:
        if states is None:
            return self.initial_states(batch)
        self._check_states(states, batch)
        return states

    def _check_states(self, states: NetworkState, batch: int) -> None:
        pending = () if states.x is None else (states.x,)
        if len(states.layers) != len(self.cells) or len(pending) != self.layer_delay:
            raise ValueError(
                f"states must be those of {len(self.cells)} cells with layer_delay={self.layer_delay}, got "
                f"{len(states.layers)} {'with' if pending else 'without'} a pending input."
            )
        sizes = {leaf.shape[0] for leaf in (*pending, *(leaf for layer in states.layers for leaf in layer))}
        if sizes != {batch}:
            raise ValueError(f"states must be those of {batch} samples, as x is, got {sorted(sizes)}.")


def _refuse_complex(x: Tensor) -> None:
    if x.is_complex():
        raise TypeError(f"x must be real, got {x.dtype}.")


def _check_widths(embedding: Embedding, cells: Sequence[Cell]) -> None:
    """Refuse layers that an embedding does not fit."""
    if embedding.width != cells[0].n_in:
        raise ValueError(f"cell 0 reads {cells[0].n_in} inputs, but the embedding has vectors of {embedding.width}.")
    if embedding.tied and embedding.width != cells[-1].n_hidden:
        raise ValueError(
            f"a tied embedding asks for a last cell of as many outputs as its vectors have entries, {embedding.width}, "
            f"got {cells[-1].n_hidden}."
        )


def as_network(network: object) -> Network:
    """The network, if it is one.

    Raises:
        TypeError: if it is something else; of a module the message names :func:`neurolsc.wrap`, of
            one by ``torch.compile`` what was compiled.
    """
    if isinstance(network, Network):
        return network
    if isinstance(getattr(network, "_orig_mod", None), Network):
        raise TypeError("network must be a neurolsc.Network, got one in torch.compile: give the network itself.")
    cure = ": give neurolsc.wrap(module), a Network over the same parameters" if isinstance(network, nn.Module) else ""
    raise TypeError(f"network must be a neurolsc.Network, got {type(network).__name__}{cure}.")


def _classes(readout: nn.Module, cell: Cell) -> int:
    """The number of classes that a given readout tells apart."""
    with torch.no_grad(), evaluating(readout):
        logits = readout(torch.zeros(1, cell.n_hidden, **cell.dtype_and_device))
    if logits.ndim != 2:
        raise ValueError(f"the readout must map (B, {cell.n_hidden}) to (B, classes), got {tuple(logits.shape)}.")
    return logits.shape[1]


def _freeze(moment: Moment, z: tuple[Tensor, ...], alive: Tensor) -> Moment:
    """Keep state and output of the samples that are not alive (B,)."""
    before, after = moment.before, moment.after
    layers = tuple(frozen(new, old, alive) for new, old in zip(after.layers, before.layers, strict=True))
    pending = None if after.x is None or before.x is None else keep(after.x, before.x, alive)
    outputs = tuple(keep(new, old, alive) for new, old in zip(moment.outputs, z, strict=True))
    return Moment(before, moment.inputs, outputs, NetworkState(layers, pending))
