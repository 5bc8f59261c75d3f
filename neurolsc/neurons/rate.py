"""Cells that send numbers: feed-forward, RNN, GRU and LSTM."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, silu
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from neurolsc.display import state_repr
from neurolsc.frames import keep
from neurolsc.neurons.cell import Answer, Cell, State, register
from neurolsc.neurons.derivatives import Derivatives, LinearOperator, StepMap, Term, Weights
from neurolsc.neurons.isolated import hears_few
from neurolsc.validation import one_of


@dataclass(frozen=True)
class Activation:
    """A function of one number, and its derivative.

    Attributes:
        value: the function, of a tensor of any shape.
        slope: its derivative, likewise.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


def _sigmoid_slope(a: Tensor) -> Tensor:
    s = torch.sigmoid(a)
    return s * (1 - s)


def _swish_slope(a: Tensor) -> Tensor:
    s = torch.sigmoid(a)
    return s * (1 + a * (1 - s))


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(torch.relu, lambda a: (a > 0).to(a.dtype)),
    "sigmoid": Activation(torch.sigmoid, _sigmoid_slope),
    "tanh": Activation(torch.tanh, lambda a: 1 - torch.tanh(a).square()),
    "swish": Activation(silu, _swish_slope),
    "sine": Activation(torch.sin, torch.cos),
    "cosine": Activation(torch.cos, lambda a: -torch.sin(a)),
    "linear": Activation(lambda a: a, torch.ones_like),
}
"""The activations that a cell can be told by name. Of the paper: relu, sine and cosine in
feed-forward networks, sigmoid, relu and swish, x sigmoid(x), in recurrent ones."""


def read_by(x: Tensor, first: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What a layer reads, dense (T, B, n_in): x, or x one step late after `first`."""
    x = (x.to_dense() if x.is_sparse else x).to(dtype)
    return x if first is None else torch.cat([first.to(dtype).unsqueeze(0), x[:-1]])


def last_of(outputs: Tensor, start: Tensor, lengths: Tensor | None) -> Tensor:
    """The last of the values (T, B, ...) that each sample had; the start where it had none."""
    if lengths is None:
        return outputs[-1]
    last = outputs[(lengths - 1).clamp(min=0), torch.arange(len(start), device=start.device)]
    return keep(last, start, lengths > 0)


def one_by_one(
    advance: Callable[[Tensor, Tensor], Tensor], currents: Tensor, start: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The states of all steps (T, B, n), which are the outputs, and the last one.

    Args:
        advance: the next state, of what the input does in a step and the state.
        currents: what the input does at all steps (T, B, ...).
        start: the state before.
        lengths: as in :func:`by_kernel`.
    """
    h, states = start, []
    for current in currents.unbind(0):
        h = advance(current, h)
        states.append(h)
    outputs = torch.stack(states)
    return outputs, last_of(outputs, start, lengths)


def by_kernel(
    kernel: Callable[..., Any],
    x: Tensor,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    lengths: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs of all steps, and the last state, by a kernel such as ``torch.lstm``.

    Args:
        kernel: ``torch.rnn_tanh``, ``rnn_relu``, ``gru`` or ``lstm``.
        x: what is read (T, B, n_in).
        state: its variables, each (B, n_hidden).
        weights: input weights, recurrent weights and their two biases, in PyTorch's order.
        lengths: steps after which each sample stands still (B,), or None.
    """
    starts = tuple(leaf.unsqueeze(0) for leaf in state)
    if lengths is None:
        outputs, *last = kernel(x, _as_given(starts), weights, True, 1, 0.0, True, False, False)
        return outputs, tuple(leaf.squeeze(0) for leaf in last)
    packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), enforce_sorted=False)
    order, back = packed.sorted_indices, packed.unsorted_indices
    starts = tuple(leaf[:, order] for leaf in starts)
    data, *last = kernel(packed.data, packed.batch_sizes, _as_given(starts), weights, True, 1, 0.0, True, False)
    outputs, _ = pad_packed_sequence(packed._replace(data=data), total_length=len(x))
    after = (leaf.squeeze(0)[back] for leaf in last)
    return outputs, tuple(keep(new, old, lengths > 0) for new, old in zip(after, state, strict=True))


def _as_given(state: tuple[Tensor, ...]) -> Any:
    """A kernel takes one variable as it is, two as a tuple."""
    return state[0] if len(state) == 1 else state


MEMORY = Term(
    "memory",
    "make it forget: lower the bias of the gate that keeps the state",
    "make it remember: raise the bias of the gate that keeps the state",
    "#0072b2",
)
RECURRENCE = Term(
    "recurrence", "scale w_rec down", "scale w_rec up, or move neurons off where they saturate", "#009e73"
)


class Scaled(LinearOperator):
    """A factor for every entry, (P, n)."""

    splits = False

    def __init__(self, factor: Tensor) -> None:
        self.factor = factor
        self.rows = self.columns = factor.shape[1]

    def matvec(self, x: Tensor) -> Tensor:
        return self.factor * x

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.factor * y

    def take(self, index: Tensor) -> "Scaled":
        return Scaled(self.factor[index])


class First(LinearOperator):
    """The first n entries of a state, which are what the cell sends.

    Args:
        n: how many.
        long: entries of the state.
    """

    same, splits = True, False

    def __init__(self, n: int, long: int) -> None:
        self.rows, self.columns = n, long

    def matvec(self, x: Tensor) -> Tensor:
        return x[:, : self.rows]

    def rmatvec(self, y: Tensor) -> Tensor:
        return pad(y, (0, self.columns - self.rows))

    def take(self, index: Tensor) -> "First":
        return self


class Gates(LinearOperator):
    r"""What currents of the gates do to the state: :math:`dh_v = \sum_g k_{vg} \, da_g`.

    Args:
        k: the factors (P, V, G, n).
    """

    splits = False

    def __init__(self, k: Tensor) -> None:
        self.k = k
        self.rows, self.columns = k.shape[1] * k.shape[3], k.shape[2] * k.shape[3]

    def matvec(self, x: Tensor) -> Tensor:
        _, _, g, n = self.k.shape
        return (self.k * x.view(-1, 1, g, n)).sum(2).flatten(1)

    def rmatvec(self, y: Tensor) -> Tensor:
        _, v, _, n = self.k.shape
        return (self.k * y.view(-1, v, 1, n)).sum(1).flatten(1)

    def take(self, index: Tensor) -> "Gates":
        return Gates(self.k[index])

    def of(self, weights: Tensor) -> Tensor:
        """What inputs through weights (P or 1, G n, m) do to the state, dense (P, V n, m)."""
        points, v, g, n = self.k.shape
        by_gate = weights.view(len(weights), 1, g, n, -1)
        return (self.k.unsqueeze(-1) * by_gate).sum(2).view(points, v * n, -1)


class GatedStep(StepMap):
    r"""d h' / d h: what is kept, and what the neurons hear through the gates.

    .. math:: dh'_v = \sum_u d_{vu} \, dh_u + \sum_g k_{vg} \, W_g \, dh_1

    Args:
        kept: the factors d (P, V, V, n).
        gates: the gates.
        w_rec: their weights W (G n, n).
        read: the gates for what is read from the layer below, where they differ.
    """

    def __init__(self, kept: Tensor, gates: Gates, w_rec: Tensor, read: Gates | None = None) -> None:
        self.kept, self.gates, self.w_rec, self.read = kept, gates, w_rec, gates if read is None else read
        self.rows = self.columns = kept.shape[1] * kept.shape[3]

    @property
    def splits(self) -> bool:  # type: ignore[override]
        """Where some neuron hears few others."""
        return hears_few(self.w_rec)

    def heard(self, x: Tensor) -> Tensor:
        """The currents (P, G n) that what is sent (P, n) makes."""
        return x @ self.w_rec.T

    def heard_by(self, y: Tensor) -> Tensor:
        """The transpose of :meth:`heard`."""
        return y @ self.w_rec

    def weights(self) -> Tensor:
        """The matrix of :meth:`heard`, (P or 1, G n, n)."""
        return self.w_rec.unsqueeze(0)

    def matvec(self, x: Tensor) -> Tensor:
        memory, recurrence = self._parts(x)
        return memory + recurrence

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        _, v, _, n = self.kept.shape
        memory = (self.kept * x.view(-1, 1, v, n)).sum(2).flatten(1)
        return memory, self.gates.matvec(self.heard(x[:, :n]))

    def rmatvec(self, y: Tensor) -> Tensor:
        _, v, _, n = self.kept.shape
        memory = (self.kept * y.view(-1, v, 1, n)).sum(1).flatten(1)
        return memory + pad(self.heard_by(self.gates.rmatvec(y)), (0, (v - 1) * n))

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        memory, recurrence = self._parts(x)
        return {"memory": (y * memory).sum(1), "recurrence": (y * recurrence).sum(1)}

    def take(self, index: Tensor) -> "GatedStep":
        return GatedStep(self.kept[index], self.gates.take(index), self.w_rec)

    def by_terms(self) -> dict[str, Tensor]:
        """The terms, dense (P, V n, V n)."""
        points, v, _, n = self.kept.shape
        memory = torch.diag_embed(self.kept).transpose(2, 3).reshape(points, v * n, v * n)
        return {"memory": memory, "recurrence": pad(self.gates.of(self.weights()), (0, (v - 1) * n))}


class ResetBefore(Gates):
    r"""The gates of a GRU whose reset acts before the recurrent weights.

    .. math:: dh = k_z \, da_z + k_h \, (da_h + U_h (e \, da_r))

    Args:
        k: the factors of r (0, it acts through h), z and h (P, 1, 3, n).
        e: how far the reset moves what U_h reads, (P, n).
        u: U_h (n, n).
    """

    def __init__(self, k: Tensor, e: Tensor, u: Tensor) -> None:
        super().__init__(k)
        self.e, self.u = e, u

    def matvec(self, x: Tensor) -> Tensor:
        r, z, h = x.chunk(3, 1)
        return super().matvec(torch.cat((r, z, h + (self.e * r) @ self.u.T), 1))

    def rmatvec(self, y: Tensor) -> Tensor:
        _, z, h = super().rmatvec(y).chunk(3, 1)
        return torch.cat((self.e * (h @ self.u), z, h), 1)

    def take(self, index: Tensor) -> "ResetBefore":
        return ResetBefore(self.k[index], self.e[index], self.u)

    def of(self, weights: Tensor) -> Tensor:
        r, z, h = weights.expand(len(self.e), -1, -1).chunk(3, 1)
        return super().of(torch.cat((r, z, h + self.u @ (self.e.unsqueeze(2) * r)), 1))


class ResetBeforeStep(GatedStep):
    """The step of such a GRU: the candidate hears the state through the reset.

    Args:
        kept: the factors d (P, 1, 1, n).
        gates: the gates.
        w_rec: U of r, z and h (3 n, n).
        r: the reset (P, n).
    """

    gates: ResetBefore

    def __init__(self, kept: Tensor, gates: ResetBefore, w_rec: Tensor, r: Tensor) -> None:
        super().__init__(kept, gates, w_rec)
        self.r = r

    def heard(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return torch.cat((x @ self.w_rec[: 2 * n].T, (self.r * x) @ self.w_rec[2 * n :].T), 1)

    def heard_by(self, y: Tensor) -> Tensor:
        n = y.shape[1] // 3
        return y[:, : 2 * n] @ self.w_rec[: 2 * n] + self.r * (y[:, 2 * n :] @ self.w_rec[2 * n :])

    def weights(self) -> Tensor:
        n = self.r.shape[1]
        rz, h = self.w_rec[: 2 * n].expand(len(self.r), -1, -1), self.w_rec[2 * n :] * self.r.unsqueeze(1)
        return torch.cat((rz, h), 1)

    def take(self, index: Tensor) -> "ResetBeforeStep":
        return ResetBeforeStep(self.kept[index], self.gates.take(index), self.w_rec, self.r[index])


WEIGHTS = (Answer("w_in", "depth"), Answer("w_rec", "time"))
"""what multipliers move, by the paper's rule"""
KEPT = Answer("kept", "time", through="share")
"""what they move as well, by ours, of a cell that keeps a share of its state"""


class HiddenState(NamedTuple):
    """State of an RNN, a GRU or a feed-forward layer."""

    h: Tensor
    """what the layer sends (B, n_hidden)"""

    def __repr__(self) -> str:
        return state_repr(self)


class GatedCell(Cell):
    """A recurrent layer that sends the first variable h of its state, and reads it through gates.

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        gates: matrices through which a step reads, one below the other in the weights.

    Attributes:
        w_in: input weights (gates n_hidden, n_in), each gate's Glorot uniform.
        w_rec: recurrent weights (gates n_hidden, n_hidden), each gate's orthogonal.
        bias: constant inputs (gates n_hidden,), zero.

    Source: arXiv:2308.12075, App. H.
    """

    answers = WEIGHTS
    paper_answers = WEIGHTS

    def __init__(self, n_in: int, n_hidden: int, gates: int = 1) -> None:
        super().__init__(n_in, n_hidden)
        self.w_in = nn.Parameter(torch.cat([self._drawn(nn.init.xavier_uniform_, n_in) for _ in range(gates)]))
        self.w_rec = nn.Parameter(torch.cat([self._drawn(nn.init.orthogonal_, n_hidden) for _ in range(gates)]))
        self.bias = nn.Parameter(torch.zeros(gates * n_hidden))

    def _drawn(self, draw: Callable[[Tensor], Tensor], columns: int) -> Tensor:
        return draw(torch.empty(self.n_hidden, columns))

    def initial_state(self, batch: int) -> State:
        """All zero."""
        return HiddenState(torch.zeros(batch, self.n_hidden, **self.dtype_and_device))

    def output(self, state: State) -> Tensor:
        """The first variable of the state, h."""
        return state.h

    @abstractmethod
    def linearised(self, x: Tensor, state: State) -> GatedStep:
        """The step at P inputs and states, differentiated by the state."""

    def derivatives(self) -> Derivatives | None:
        return GatedDerivatives(self)


class GatedDerivatives(Derivatives):
    """The derivatives of a gated cell."""

    terms = (MEMORY, RECURRENCE)

    def __init__(self, cell: GatedCell) -> None:
        self.cell = cell

    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        return self.state_map(x, state).by_terms()

    def by_input(self, x: Tensor, state: State) -> Tensor:
        return self.state_map(x, state).read.of(self.cell.w_in.unsqueeze(0))

    def of_output(self, state: State) -> Tensor:
        n, variables = self.cell.n_hidden, len(state)
        return torch.eye(n, variables * n, dtype=state.h.dtype, device=state.h.device).unsqueeze(0)

    def state_map(self, x: Tensor, state: State) -> GatedStep:
        return self.cell.linearised(x, state)

    def input_maps(self, x: Tensor, state: State) -> Sequence[LinearOperator]:
        return [Weights(self.cell.w_in), self.state_map(x, state).read]

    def output_maps(self, state: State) -> Sequence[LinearOperator]:
        return [First(self.cell.n_hidden, len(state) * self.cell.n_hidden)]


@register
class FeedForward(Cell):
    r"""A fully connected layer without memory.

    .. math:: h[t] = a(W x[t] + b)

    Its radius through time is 0 and nothing moves it: pre-train with ``target=Along(1.0, "depth")``
    (:class:`neurolsc.stability.lsc.targets.Along`). A network of it sees an image in one step, x
    (1, B, n_in), with ``layer_delay=0``.

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        activation: a, by name (:data:`neurolsc.neurons.rate.ACTIVATIONS`); the paper's are
            ``"relu"``, ``"sine"`` and ``"cosine"``.

    Attributes:
        w_in: W (n_hidden, n_in), Glorot uniform.
        bias: b (n_hidden,), zero.

    Raises:
        ValueError: if a size is below 1, or the activation is not known.

    Example:
        >>> from neurolsc import Network
        >>> network = Network([FeedForward(784, 32), FeedForward(32, 32)], 10, layer_delay=0)
        >>> network(torch.rand(1, 5, 784)).shape
        torch.Size([1, 5, 10])

    Source: arXiv:2308.12075, Sec. II-E.
    """

    answers = (Answer("w_in", "depth"),)
    paper_answers = answers

    def __init__(self, n_in: int, n_hidden: int, *, activation: str = "relu") -> None:
        super().__init__(n_in, n_hidden)
        self.activation = activation
        self._a = ACTIVATIONS[one_of("activation", activation, tuple(ACTIVATIONS))]
        self.w_in = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_hidden, n_in)))
        self.bias = nn.Parameter(torch.zeros(n_hidden))

    def initial_state(self, batch: int) -> HiddenState:
        """All zero; the first step forgets it."""
        return HiddenState(torch.zeros(batch, self.n_hidden, **self.dtype_and_device))

    def output(self, state: HiddenState) -> Tensor:
        return state.h

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        return HiddenState(self._a.value(linear(x, self.w_in, self.bias)))

    def slope(self, x: Tensor) -> Tensor:
        """a' at inputs (P, n_in), (P, n_hidden)."""
        return self._a.slope(linear(x, self.w_in, self.bias))

    def derivatives(self) -> Derivatives:
        return _FeedForwardDerivatives(self)

    def run(
        self,
        x: Tensor,
        state: HiddenState,
        *,
        first: Tensor | None = None,
        lengths: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, HiddenState]:
        outputs = self._a.value(linear(read_by(x, first, state.h.dtype), self.w_in, self.bias))
        return outputs, HiddenState(last_of(outputs, state.h, lengths))

    def config(self) -> dict[str, object]:
        return super().config() | {"activation": self.activation}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


_NOTHING = Term("nothing", "it has no memory", "it has no memory: take target=Along(radius, 'depth')", "#999999")


class _FeedForwardDerivatives(Derivatives):
    """The derivatives of a layer without memory."""

    terms = (_NOTHING,)
    reads_input = False  # by the state

    def __init__(self, cell: FeedForward) -> None:
        self.cell = cell

    def by_state(self, x: Tensor, state: HiddenState) -> dict[str, Tensor]:
        n = self.cell.n_hidden
        return {"nothing": state.h.new_zeros(len(state.h), n, n)}

    def by_input(self, x: Tensor, state: HiddenState) -> Tensor:
        return self.cell.slope(x).unsqueeze(2) * self.cell.w_in

    def of_output(self, state: HiddenState) -> Tensor:
        n = self.cell.n_hidden
        return torch.eye(n, dtype=state.h.dtype, device=state.h.device).unsqueeze(0)

    def input_maps(self, x: Tensor, state: HiddenState) -> Sequence[LinearOperator]:
        return [Weights(self.cell.w_in), Scaled(self.cell.slope(x))]

    def output_maps(self, state: HiddenState) -> Sequence[LinearOperator]:
        return [First(self.cell.n_hidden, self.cell.n_hidden)]


_KERNELS = {"relu": torch.rnn_relu, "tanh": torch.rnn_tanh}


@register
class RNN(GatedCell):
    r"""A fully connected recurrent layer.

    .. math:: h[t] = a(W_{rec}\, h[t-1] + W_{in}\, x[t] + b)

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        activation: a, by name (:data:`neurolsc.neurons.rate.ACTIVATIONS`); the paper's are
            ``"relu"`` and ``"sigmoid"``, and ``"swish"`` on words.

    Attributes:
        w_in: input weights (n_hidden, n_in), Glorot uniform.
        w_rec: recurrent weights (n_hidden, n_hidden), orthogonal.
        bias: (n_hidden,), Glorot uniform, "to make sure the neurons are not off when the input is
            zero": within :math:`\sqrt{3 / n_{hidden}}`.

    Raises:
        ValueError: if a size is below 1, or the activation is not known.

    Example:
        >>> cell = RNN(3, 2)
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> torch.equal(z, state.h), z.shape
        (True, torch.Size([5, 2]))

    Source: arXiv:2308.12075, Sec. II-E and App. H.
    """

    def __init__(self, n_in: int, n_hidden: int, *, activation: str = "relu") -> None:
        super().__init__(n_in, n_hidden)
        self.activation = activation
        self._a = ACTIVATIONS[one_of("activation", activation, tuple(ACTIVATIONS))]
        bound = math.sqrt(3 / n_hidden)  # fan in and fan out of a vector are both its length
        nn.init.uniform_(self.bias, -bound, bound)

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        return HiddenState(self._after(linear(x, self.w_in, self.bias), z))

    def _after(self, current: Tensor, h: Tensor) -> Tensor:
        """The next state, from what the input does (B, n_hidden) and the state."""
        return self._a.value(torch.addmm(current, h, self.w_rec.T))

    def linearised(self, x: Tensor, state: HiddenState) -> GatedStep:
        slope = self._a.slope(torch.addmm(linear(x, self.w_in, self.bias), state.h, self.w_rec.T))[:, None, None]
        return GatedStep(torch.zeros_like(slope), Gates(slope), self.w_rec)

    def run(
        self,
        x: Tensor,
        state: HiddenState,
        *,
        first: Tensor | None = None,
        lengths: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, HiddenState]:
        if recompute:
            return super().run(x, state, first=first, lengths=lengths, recompute=True)
        read = read_by(x, first, state.h.dtype)
        if self.activation in _KERNELS:
            weights = (self.w_in, self.w_rec, self.bias, torch.zeros_like(self.bias))
            outputs, (h,) = by_kernel(_KERNELS[self.activation], read, state, weights, lengths)
            return outputs, HiddenState(h)
        outputs, h = one_by_one(self._after, linear(read, self.w_in, self.bias), state.h, lengths)
        return outputs, HiddenState(h)

    def config(self) -> dict[str, object]:
        return super().config() | {"activation": self.activation}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


@register
class GRU(GatedCell):
    r"""Gated recurrent units.

    .. math::
        r &= \sigma(W_r x[t] + U_r h[t-1] + b_r) \\
        z &= \sigma(W_z x[t] + U_z h[t-1] + b_z) \\
        \hat h &= \tanh(W_h x[t] + U_h (r \circ h[t-1]) + b_h) \\
        h[t] &= (1 - z) \circ h[t-1] + z \circ \hat h

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        reset_after: False: as above, the paper's eq. 48, with one bias a gate. True: what
            ``torch.nn.GRU`` does: the reset acts after the recurrent weights, which have a bias of
            their own, :math:`r \circ (U_h h[t-1] + b'_h)` and likewise in the other gates, and z
            is the share that is kept, :math:`h[t] = z \circ h[t-1] + (1 - z) \circ \hat h`. This
            form is what the paper's Table S1 counts, and PyTorch's own kernels run it.

    Attributes:
        w_in: W of r, z and h (3 n_hidden, n_in), Glorot uniform.
        w_rec: U, likewise (3 n_hidden, n_hidden), orthogonal.
        bias: b (3 n_hidden,), zero.
        recurrent_bias: b' (3 n_hidden,), zero; None where the reset acts before.
        kept: share of the state that is kept at input and state 0 (n_hidden,): 1 - sigmoid(b_z),
            and sigmoid(b_z + b'_z) with ``reset_after``; settable, by ``bias``.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> cell = GRU(3, 2)
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> z.shape, cell.kept
        (torch.Size([5, 2]), tensor([0.5000, 0.5000], grad_fn=<SigmoidBackward0>))

    Source: arXiv:2308.12075, eq. 48.
    """

    answers: tuple[Answer, ...] = (*WEIGHTS, KEPT)
    recurrent_bias: nn.Parameter | None

    def __init__(self, n_in: int, n_hidden: int, *, reset_after: bool = False) -> None:
        super().__init__(n_in, n_hidden, gates=3)
        self.reset_after = reset_after
        self.register_parameter("recurrent_bias", nn.Parameter(torch.zeros(3 * n_hidden)) if reset_after else None)

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        if self.recurrent_bias is None:
            return HiddenState(self._after(linear(x, self.w_in, self.bias), z, *self._heard_by()))
        return HiddenState(torch.gru_cell(x, z, self.w_in, self.w_rec, self.bias, self.recurrent_bias))

    def _heard_by(self) -> tuple[Tensor, Tensor]:
        """U of r and z (n_hidden, 2 n_hidden), and of h, turned for products from the right."""
        both, last = self.w_rec.split_with_sizes((2 * self.n_hidden, self.n_hidden))
        return both.t(), last.t()

    def _after(self, current: Tensor, h: Tensor, by_both: Tensor, by_last: Tensor) -> Tensor:
        """The next state by equation 48, from what the input does (B, 3 n_hidden) and the state."""
        _, z, candidate = self._gates(current, h, by_both, by_last)
        if candidate.dtype != h.dtype:  # under autocast
            z, candidate = z.to(h.dtype), candidate.to(h.dtype)
        return torch.lerp(h, candidate, z)

    def _gates(self, current: Tensor, h: Tensor, by_both: Tensor, by_last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r, z and the candidate of equation 48."""
        both, last = current.split_with_sizes((2 * self.n_hidden, self.n_hidden), 1)
        r, z = torch.addmm(both, h, by_both).sigmoid_().chunk(2, 1)
        return r, z, torch.addmm(last, r * h, by_last).tanh_()

    @property
    def kept(self) -> Tensor:
        """Share of the state that is kept at input and state 0 (n_hidden,)."""
        own = self.bias[self._z]
        return torch.sigmoid(-own if self.recurrent_bias is None else own + self.recurrent_bias[self._z])

    @kept.setter
    def kept(self, value: Tensor) -> None:
        with torch.no_grad():
            more = torch.logit(value) - torch.logit(self.kept)
            self.bias[self._z] += more if self.reset_after else -more

    @property
    def _z(self) -> slice:
        return slice(self.n_hidden, 2 * self.n_hidden)

    def linearised(self, x: Tensor, state: HiddenState) -> GatedStep:
        h, current = state.h, linear(x, self.w_in, self.bias)
        if self.reset_after:
            heard = linear(h, self.w_rec, self.recurrent_bias)
            r, z = torch.sigmoid(current + heard)[:, : 2 * self.n_hidden].chunk(2, 1)
            last, own = (part[:, 2 * self.n_hidden :] for part in (current, heard))
            candidate = torch.tanh(last + r * own)
            of_z, of_h = (h - candidate) * z * (1 - z), (1 - z) * (1 - candidate.square())
            of_r = of_h * own * r * (1 - r)
            gates, read = (Gates(torch.stack((of_r, of_z, by), 1).unsqueeze(1)) for by in (of_h * r, of_h))
            return GatedStep(z[:, None, None], gates, self.w_rec, read)
        r, z, candidate = self._gates(current, h, *self._heard_by())
        k = torch.stack((torch.zeros_like(h), (candidate - h) * z * (1 - z), z * (1 - candidate.square())), 1)
        before = ResetBefore(k.unsqueeze(1), h * r * (1 - r), self.w_rec[2 * self.n_hidden :])
        return ResetBeforeStep((1 - z)[:, None, None], before, self.w_rec, r)

    def run(
        self,
        x: Tensor,
        state: HiddenState,
        *,
        first: Tensor | None = None,
        lengths: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, HiddenState]:
        if recompute:
            return super().run(x, state, first=first, lengths=lengths, recompute=True)
        read = read_by(x, first, state.h.dtype)
        if self.recurrent_bias is None:
            by_both, by_last = self._heard_by()
            after = partial(self._after, by_both=by_both, by_last=by_last)
            outputs, h = one_by_one(after, linear(read, self.w_in, self.bias), state.h, lengths)
        else:
            weights = (self.w_in, self.w_rec, self.bias, self.recurrent_bias)
            outputs, (h,) = by_kernel(torch.gru, read, state, weights, lengths)
        return outputs, HiddenState(h)

    def config(self) -> dict[str, object]:
        return super().config() | {"reset_after": self.reset_after}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reset_after={self.reset_after}"


class LSTMState(NamedTuple):
    """State of an LSTM, for radii side by side."""

    h: Tensor
    """what the layer sends (B, n_hidden)"""
    c: Tensor
    """its memory (B, n_hidden)"""

    def __repr__(self) -> str:
        return state_repr(self)


@register
class LSTM(GatedCell):
    r"""Long short-term memory.

    .. math::
        i, f, o &= \sigma(W_j x[t] + U_j h[t-1] + b_j), \quad j = i, f, o \\
        g &= \tanh(W_c x[t] + U_c h[t-1] + b_c) \\
        c[t] &= f \circ c[t-1] + i \circ g \\
        h[t] &= o \circ \tanh(c[t])

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.

    Attributes:
        w_in: W of i, f, c and o, PyTorch's order (4 n_hidden, n_in), Glorot uniform.
        w_rec: U, likewise (4 n_hidden, n_hidden), orthogonal.
        bias: b (4 n_hidden,), zero; PyTorch's layer has two, which are added.
        kept: share of the memory that is kept at input and output 0, sigmoid(b_f) (n_hidden,);
            settable, by ``bias``.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> cell = LSTM(3, 2)
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> torch.equal(z, state.h), state.c.shape
        (True, torch.Size([5, 2]))

    Source: arXiv:2308.12075, eq. 47.
    """

    answers: tuple[Answer, ...] = (*WEIGHTS, KEPT)

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__(n_in, n_hidden, gates=4)

    def initial_state(self, batch: int) -> LSTMState:
        """All zero."""
        zero = torch.zeros(batch, self.n_hidden, **self.dtype_and_device)
        return LSTMState(zero, zero.clone())

    def update(self, x: Tensor, z: Tensor, state: LSTMState) -> LSTMState:
        return LSTMState(*torch.lstm_cell(x, (z, state.c), self.w_in, self.w_rec, self.bias, self._no_bias()))

    def _no_bias(self) -> Tensor:
        """The second bias that kernels ask for."""
        return torch.zeros_like(self.bias)

    @property
    def kept(self) -> Tensor:
        """Share of the memory that is kept at input and output 0 (n_hidden,)."""
        return torch.sigmoid(self.bias[self._f])

    @kept.setter
    def kept(self, value: Tensor) -> None:
        with torch.no_grad():
            self.bias[self._f] = torch.logit(value)

    @property
    def _f(self) -> slice:
        return slice(self.n_hidden, 2 * self.n_hidden)

    def linearised(self, x: Tensor, state: LSTMState) -> GatedStep:
        currents = torch.addmm(linear(x, self.w_in, self.bias), state.h, self.w_rec.T)
        a_i, a_f, a_g, a_o = currents.chunk(4, 1)
        i, f, o = (torch.sigmoid(a) for a in (a_i, a_f, a_o))
        g = torch.tanh(a_g)
        told = torch.tanh(f * state.c + i * g)
        to_h = o * (1 - told.square())  # d h / d c[t]
        of_c = torch.stack((g * i * (1 - i), state.c * f * (1 - f), i * (1 - g.square()), torch.zeros_like(o)), 1)
        of_h = to_h.unsqueeze(1) * of_c
        of_h = torch.cat((of_h[:, :3], (told * o * (1 - o)).unsqueeze(1)), 1)
        zero = torch.zeros_like(f)
        kept = torch.stack((zero, to_h * f, zero, f), 1).unflatten(1, (2, 2))
        return GatedStep(kept, Gates(torch.stack((of_h, of_c), 1)), self.w_rec)

    def run(
        self,
        x: Tensor,
        state: LSTMState,
        *,
        first: Tensor | None = None,
        lengths: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, LSTMState]:
        half = x.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if recompute or (half and not torch.ops.mkldnn._is_mkldnn_bf16_supported()):  # there torch.lstm fails
            return super().run(x, state, first=first, lengths=lengths, recompute=recompute)
        weights = (self.w_in, self.w_rec, self.bias, self._no_bias())
        outputs, last = by_kernel(torch.lstm, read_by(x, first, state.h.dtype), state, weights, lengths)
        return outputs, LSTMState(*last)
