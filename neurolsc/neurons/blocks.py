"""Neurons of a few variables each, which weights couple by spikes alone: their derivatives in closed form."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from neurolsc.neurons.cell import Cell, Membrane, ScaledParameter, State, Thresholds
from neurolsc.neurons.derivatives import Derivatives, LinearOperator, Matrices, StepMap, Term
from neurolsc.neurons.spiking import Spike, spike_config, spike_function
from neurolsc.neurons.spiking_derivatives import RECURRENCE, DiagonalBlocks
from neurolsc.surrogate import FastSigmoid, in_two_methods
from neurolsc.validation import number


@dataclass(eq=False)
class NeuronStep(StepMap):
    r"""d h[t] / d h[t-1] at P states of n neurons with V variables each.

    .. math:: \mathrm{d}h_i' = K_i\,\mathrm{d}h_i + c_i \sum_j W_{ij}\, \sigma_j \cdot \mathrm{d}h_j

    with :math:`\sigma = \partial z / \partial h` of a neuron and c the share of a current that each variable takes.
    """

    blocks: dict[str, Tensor]  # named terms of K (P, V, V, n)
    slopes: Tensor  # sigma (P, V, n)
    w_rec: Tensor  # W (n, n), the same at all states
    into: Tensor  # c (V, n)

    def __post_init__(self) -> None:
        self.rows = self.columns = self.slopes.shape[1] * self.slopes.shape[2]
        self.whole = torch.stack(list(self.blocks.values())).sum(0)

    def _spikes(self, h: Tensor) -> Tensor:
        return (self.slopes * h).sum(1)

    def matvec(self, x: Tensor) -> Tensor:
        h = x.unflatten(1, self.slopes.shape[1:])
        current = self._spikes(h) @ self.w_rec.T
        return ((self.whole * h.unsqueeze(1)).sum(2) + self.into * current.unsqueeze(1)).flatten(1)

    def rmatvec(self, y: Tensor) -> Tensor:
        g = y.unflatten(1, self.slopes.shape[1:])
        by_spikes = (self.into * g).sum(1) @ self.w_rec
        return ((self.whole * g.unsqueeze(2)).sum(1) + self.slopes * by_spikes.unsqueeze(1)).flatten(1)

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h, g = (part.unflatten(1, self.slopes.shape[1:]) for part in (x, y))
        found = {name: (g.unsqueeze(2) * k * h.unsqueeze(1)).sum((1, 2, 3)) for name, k in self.blocks.items()}
        current = self._spikes(h) @ self.w_rec.T
        return found | {"recurrence": ((self.into * g).sum(1) * current).sum(1)}

    def take(self, index: Tensor) -> "NeuronStep":
        blocks = {name: k[index] for name, k in self.blocks.items()}
        return replace(self, blocks=blocks, slopes=self.slopes[index])


class NeuronDerivatives(Derivatives):
    """The derivatives of a cell with a ``linearised(state)`` that is a :class:`NeuronStep`."""

    reads_input = False

    def __init__(self, cell: Any, terms: Sequence[Term]) -> None:
        self.cell, self.terms = cell, (*terms, RECURRENCE)

    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        step = self.cell.linearised(state)
        shape = (len(step.slopes), step.rows, step.rows)
        terms = {name: torch.diag_embed(k).transpose(2, 3).reshape(shape) for name, k in step.blocks.items()}
        between = torch.einsum("vi,ij,puj->pviuj", step.into, step.w_rec, step.slopes)
        return terms | {"recurrence": between.reshape(shape)}

    def by_input(self, x: Tensor, state: State) -> Tensor:
        return (self.cell.shares().unsqueeze(2) * self.cell.w_in).flatten(0, 1).unsqueeze(0)

    def of_output(self, state: State) -> Tensor:
        return torch.diag_embed(self.cell.linearised(state).slopes).transpose(1, 2).flatten(2)

    def state_map(self, x: Tensor, state: State) -> NeuronStep:
        return self.cell.linearised(state)

    def input_maps(self, x: Tensor, state: State) -> Sequence[LinearOperator]:
        return [Matrices(self.cell.w_in.unsqueeze(0)), DiagonalBlocks(self.cell.shares()[None, :, None])]

    def output_maps(self, state: State) -> Sequence[LinearOperator]:
        return [DiagonalBlocks(self.cell.linearised(state).slopes.unsqueeze(1))]


class NeuronCell(Cell):
    r"""Spiking neurons with input and recurrent weights, and derivatives neuron by neuron.

    A subclass has :meth:`update`, :meth:`blocks` and :meth:`shares` of one step; it takes ``closed_form`` and
    ``subthreshold`` from here by name, so that neither is used for the step of another class.

    Args:
        spike: the surrogate; by default a new ``FastSigmoid()``.
        threshold: the fixed threshold of all neurons, positive; the buffer ``theta`` may be set per neuron.

    Attributes:
        w_in: input weights (n_hidden, n_in), uniform in ±1/sqrt(n_in).
        w_rec: recurrent weights (n_hidden, n_hidden), orthogonal.
        theta: thresholds (n_hidden,), not trainable.
        block_terms: the terms of :meth:`blocks`, in the order of tables and pictures.
    """

    scaled_parameters = (ScaledParameter("w_in", "depth"), ScaledParameter("w_rec", "time"))
    block_terms: tuple[Term, ...] = ()
    variable = "u"  # of the state: the voltage
    theta: Tensor

    def __init__(self, n_in: int, n_hidden: int, spike: Spike | None, threshold: float) -> None:
        super().__init__(n_in, n_hidden)
        self.spike = FastSigmoid() if spike is None else spike_function("spike", spike)
        self.register_buffer("theta", torch.full((n_hidden,), number("threshold", threshold)))
        self.w_in = nn.Parameter(torch.empty(n_hidden, n_in).uniform_(-(n_in**-0.5), n_in**-0.5))
        self.w_rec = nn.Parameter(nn.init.orthogonal_(torch.empty(n_hidden, n_hidden)))
        self.recurrent_synapses = n_hidden

    @abstractmethod
    def blocks(self, state: State, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        """Named terms of K (P, V, V, n), at spikes z and their derivative s by the voltage, both (P, n)."""

    @abstractmethod
    def shares(self) -> Tensor:
        """The share of a current that each variable takes (V, n_hidden)."""

    def slopes(self, s: Tensor) -> Tensor:
        """The spikes' derivative by each variable (P, V, n), from that by the voltage (P, n)."""
        names = self.initial_state(1)._fields
        return torch.stack([s if name == self.variable else torch.zeros_like(s) for name in names], 1)

    def weights_between(self) -> Tensor:
        """The recurrent weights as they act."""
        return self.w_rec

    def initial_zeros(self, batch: int, variables: int) -> Tensor:
        return torch.zeros(variables, batch, self.n_hidden, **self.dtype_and_device)

    def current(self, x: Tensor, z: Tensor) -> Tensor:
        """The input of all neurons (B, n_hidden), from x and the own last spikes."""
        return x @ self.w_in.T + z @ self.weights_between().T

    def distance(self, state: State) -> Tensor:
        """Voltage - threshold (B, n_hidden); a spike where positive."""
        return getattr(state, self.variable) - self.theta

    def output(self, state: State) -> Tensor:
        return self.spike(self.distance(state))

    def linearised(self, state: State) -> NeuronStep:
        s = self.spike.derivative(self.distance(state))  # type: ignore[attr-defined]
        blocks = self.blocks(state, s, self.output(state).detach())
        return NeuronStep(blocks, self.slopes(s), self.weights_between(), self.shares())

    def closed_form(self) -> Derivatives | None:
        return NeuronDerivatives(self, self.block_terms) if in_two_methods(self.spike) else None

    def subthreshold(self, slope: float = 0.0) -> Tensor:
        silent = torch.zeros(1, self.n_hidden, **self.dtype_and_device)
        blocks = self.blocks(self.initial_state(1), silent + slope, silent)
        return torch.stack(list(blocks.values())).sum(0)[0].permute(2, 0, 1)

    def thresholds(self) -> Thresholds:
        return Thresholds(self, ("theta",))

    def membrane(self) -> Membrane:
        return Membrane(self.variable, lambda _: self.theta, self.spike)

    def config(self) -> dict[str, object]:
        return super().config() | {"spike": spike_config(self.spike)}


def matrix_of(rows: Sequence[Sequence[Tensor | float]], like: Tensor) -> Tensor:
    """A matrix of neurons (P, V, V, n) from its entries, numbers or broadcast to `like` (P, n)."""
    entries = [[torch.as_tensor(e).to(like).expand_as(like) for e in row] for row in rows]
    return torch.stack([torch.stack(row, 1) for row in entries], 1)


def drawn(
    name: str, ends: tuple[float, float], size: int, *, positive: bool = False
) -> tuple[tuple[float, float], Tensor]:
    """The ends of a range, checked, and values drawn evenly from it (size,)."""
    low, high = (float(end) for end in ends)
    if not -float("inf") < low <= high < float("inf") or (positive and low <= 0):
        wanted = "positive, finite" if positive else "finite"
        raise ValueError(f"{name} must be two {wanted} numbers, the lower one first, got {tuple(ends)}.")
    return (low, high), torch.empty(size).uniform_(low, high)
