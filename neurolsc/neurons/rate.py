"""The paper's cells that send numbers: feed-forward, RNN, GRU and LSTM.

Autograd differentiates them. Where PyTorch has a kernel for a cell, it runs all steps at once.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from neurolsc.display import state_repr
from neurolsc.neurons.cell import AtOnce, Cell, ScaledParameter, State, keep, register
from neurolsc.validation import one_of, probability

# the paper's: relu, sine and cosine in feed-forward networks; sigmoid, relu and swish, x sigmoid(x), in recurrent ones
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "swish": silu,
    "sine": torch.sin,
    "cosine": torch.cos,
    "linear": lambda a: a,
}


# the arguments has_biases, num_layers, dropout, train, bidirectional, batch_first of PyTorch's kernels
ONE_LAYER = (True, 1, 0.0, True, False, False)


class HiddenState(NamedTuple):
    """State of an RNN, a GRU or a feed-forward layer."""

    h: Tensor  # the output (B, n_hidden)
    __repr__ = state_repr


class LSTMState(NamedTuple):
    """State of an LSTM; radii are those of h and c side by side."""

    h: Tensor  # the output (B, n_hidden)
    c: Tensor  # its memory (B, n_hidden)
    __repr__ = state_repr


def inputs_of(x: Tensor, late: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the input of each step (T, B, n_in): x; or, if `late` (B, n_in) is given, late and x[:-1]."""
    x = x.to(dtype)
    if late is None:
        return x
    return torch.cat([late.to(dtype).unsqueeze(0), x[:-1]])


def last_of(outputs: Tensor, start: Tensor, lengths: Tensor | None) -> Tensor:
    """Return each sample's value after its last step (B, ...).

    Args:
        outputs: the values after each step (T, B, ...).
        start: those before the first step (B, ...), which samples of length 0 keep.
        lengths: steps of each sample (B,); None: T.
    """
    if lengths is None:
        return outputs[-1]
    last = outputs[(lengths - 1).clamp(min=0), torch.arange(len(start), device=start.device)]
    return keep(last, start, lengths > 0)


def under_autocast(x: Tensor) -> bool:
    """True under autocast, where PyTorch's kernels would keep states in half precision; plain steps do not."""
    return torch.is_autocast_enabled(x.device.type)


def chrono(n: int, memory: float) -> Tensor:
    r"""Draw retentions f (n,) of long memories, as Chrono starts a gated cell.

    .. math:: f = \frac{T}{1 + T}, \quad T \sim U\Big(\frac1{1 - \nu}, \frac2{1 - \nu}\Big)

    Args:
        n: how many.
        memory: ν, in [0, 1).

    Source: C. Tallec, Y. Ollivier, arXiv:1804.11188; arXiv:2405.21064, eq. 31 to 33.
    """
    times = (1 + torch.rand(n)) / (1 - probability("memory", memory))
    return times / (1 + times)


class GatedCell(Cell):
    """Base of RNN, GRU and LSTM: a layer whose gates read the input and the layer's last output.

    The matrices of G gates stand one below the other: w_in (G n_hidden, n_in), each Glorot uniform, w_rec (G n_hidden,
    n_hidden), each orthogonal, and bias (G n_hidden,), zero. Source: arXiv:2308.12075, App. H.
    """

    state_type = HiddenState
    scaled_parameters = (ScaledParameter("w_in", "depth"), ScaledParameter("w_rec", "time"))
    paper_scaled_parameters = scaled_parameters

    def __init__(self, n_in: int, n_hidden: int, gates: int = 1) -> None:
        super().__init__(n_in, n_hidden)
        w_in = [nn.init.xavier_uniform_(torch.empty(n_hidden, n_in)) for _ in range(gates)]
        w_rec = [nn.init.orthogonal_(torch.empty(n_hidden, n_hidden)) for _ in range(gates)]
        self.w_in = nn.Parameter(torch.cat(w_in))
        self.w_rec = nn.Parameter(torch.cat(w_rec))
        self.bias = nn.Parameter(torch.zeros(gates * n_hidden))

    def output(self, state: State) -> Tensor:
        return state.h


@register
class FeedForward(Cell):
    r"""A fully connected layer without memory.

    .. math:: h[t] = a(W x[t] + b)

    Its radius through time is 0: pre-train with ``target=1.0, direction="depth"``. A network of it sees an image in one
    step, x (1, B, n_in), with ``layer_delay=0``.

    Args:
        activation: a, by name (:data:`neurolsc.neurons.rate.ACTIVATIONS`).

    Attributes:
        w_in: W (n_hidden, n_in), Glorot uniform.
        bias: b (n_hidden,), zero.

    Source: arXiv:2308.12075, Sec. II-E.
    """

    settings = ("activation",)
    state_type = HiddenState
    scaled_parameters = (ScaledParameter("w_in", "depth"),)
    paper_scaled_parameters = scaled_parameters

    def __init__(self, n_in: int, n_hidden: int, *, activation: str = "relu") -> None:
        super().__init__(n_in, n_hidden)
        self.activation = one_of("activation", activation, tuple(ACTIVATIONS))
        self.w_in = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_hidden, n_in)))
        self.bias = nn.Parameter(torch.zeros(n_hidden))

    output = GatedCell.output

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        h = ACTIVATIONS[self.activation](linear(x, self.w_in, self.bias))
        return HiddenState(h.to(state.h.dtype))

    def run_at_once(self, x: Tensor, state: HiddenState, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
        outputs = self.update(inputs_of(x, late, state.h.dtype), state.h, state).h
        return outputs, HiddenState(last_of(outputs, state.h, lengths))


@register
class RNN(GatedCell):
    r"""A fully connected recurrent layer.

    .. math:: h[t] = a(W_{rec}\, h[t-1] + W_{in}\, x[t] + b)

    ``activation="linear"`` with a `memory` is the linear RNN of "the curse of memory", arXiv:2405.21064.

    Args:
        activation: a, by name (:data:`neurolsc.neurons.rate.ACTIVATIONS`).
        memory: ν, in [0, 1): before training all \|λ\| of W_rec are at least ν. The eigenvalues of a Gaussian matrix of
            deviation 1/√n keep their angles and get the moduli :math:`\nu + (1 - \nu) \tanh|\lambda|`, and biases are
            0. None: w_rec and bias as below.

    Attributes:
        w_in: input weights (n_hidden, n_in), Glorot uniform.
        w_rec: recurrent weights (n_hidden, n_hidden), orthogonal.
        bias: (n_hidden,), uniform within :math:`\sqrt{3 / n_{hidden}}`.

    Source: arXiv:2308.12075, Sec. II-E and App. H; the memory: arXiv:2405.21064, eq. 15.
    """

    settings = ("activation",)

    def __init__(self, n_in: int, n_hidden: int, *, activation: str = "relu", memory: float | None = None) -> None:
        super().__init__(n_in, n_hidden)
        self.activation = one_of("activation", activation, tuple(ACTIVATIONS))
        if memory is not None:
            least = probability("memory", memory)
            gaussian = torch.randn(n_hidden, n_hidden, dtype=torch.float64) / n_hidden**0.5
            values, vectors = torch.linalg.eig(gaussian)
            eigenvalues = torch.polar(least + (1 - least) * values.abs().tanh(), values.angle())
            # real up to rounding, since pairs of conjugate eigenvalues stay pairs
            self.w_rec.data.copy_((vectors @ torch.diag(eigenvalues) @ torch.linalg.inv(vectors)).real)
            return
        bound = math.sqrt(3 / n_hidden)  # fan in and fan out of a vector are both its length
        nn.init.uniform_(self.bias, -bound, bound)

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        current = torch.addmm(linear(x, self.w_in, self.bias), z, self.w_rec.T)
        return HiddenState(ACTIVATIONS[self.activation](current).to(state.h.dtype))

    def run_at_once(self, x: Tensor, state: HiddenState, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
        kernel = {"relu": torch.rnn_relu, "tanh": torch.rnn_tanh}.get(self.activation)  # PyTorch has no others
        if kernel is None or under_autocast(x):
            return None
        weights = (self.w_in, self.w_rec, self.bias, torch.zeros_like(self.bias))  # the kernel adds two biases
        x = inputs_of(x, late, state.h.dtype)
        outputs, _ = kernel(x, state.h[None], weights, *ONE_LAYER)
        return outputs, HiddenState(last_of(outputs, state.h, lengths))


@register
class GRU(GatedCell):
    r"""Gated recurrent units.

    .. math::
        r &= \sigma(W_r x[t] + U_r h[t-1] + b_r) \\
        z &= \sigma(W_z x[t] + U_z h[t-1] + b_z) \\
        \hat h &= \tanh(W_h x[t] + U_h (r \circ h[t-1]) + b_h) \\
        h[t] &= (1 - z) \circ h[t-1] + z \circ \hat h

    Args:
        reset_after: False: as above, the paper's eq. 48. True: ``torch.nn.GRU``, which the paper's Table S1 counts and
            PyTorch's kernels run: the reset acts after the recurrent weights, which have a bias of their own, :math:`r
            \circ (U_h h[t-1] + b'_h)`, and z is the retention.
        memory: ν, in [0, 1): before training retentions are :func:`~neurolsc.neurons.rate.chrono`'s, within [ν, 1].
            With ``reset_after`` that is the Chrono-GRU of arXiv:2405.21064. None: all are 1/2.

    Attributes:
        w_in: W of r, z and h (3 n_hidden, n_in), Glorot uniform.
        w_rec: U, likewise (3 n_hidden, n_hidden), orthogonal.
        bias: b (3 n_hidden,), zero.
        recurrent_bias: b' (3 n_hidden,), zero; None where the reset acts before.
        retention: of the state at input and state 0 (n_hidden,): 1 - sigmoid(b_z), and sigmoid(b_z + b'_z) with
            ``reset_after``; settable, by ``bias``.

    Source: arXiv:2308.12075, eq. 48; the memory: arXiv:2405.21064, eq. 26 to 33.
    """

    settings = ("reset_after",)
    scaled_parameters = (*GatedCell.scaled_parameters, ScaledParameter("retention", "time", through="decay_factor"))
    stored_in = (("retention", "bias"),)
    recurrent_bias: nn.Parameter | None

    def __init__(self, n_in: int, n_hidden: int, *, reset_after: bool = False, memory: float | None = None) -> None:
        super().__init__(n_in, n_hidden, gates=3)
        self.reset_after = reset_after
        self.register_parameter("recurrent_bias", None)
        if reset_after:
            self.recurrent_bias = nn.Parameter(torch.zeros(3 * n_hidden))
        if memory is not None:
            self.retention = chrono(n_hidden, memory)

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        current = linear(x, self.w_in, self.bias)
        if self.recurrent_bias is None:  # the reset acts before the recurrent weights
            step = self._eq_48()
            return HiddenState(step(current, z, state.h))
        in_r, in_z, in_h = current.chunk(3, 1)
        rec_r, rec_z, rec_h = linear(z, self.w_rec, self.recurrent_bias).chunk(3, 1)
        candidate = torch.tanh(in_h + torch.sigmoid(in_r + rec_r) * rec_h)
        retention = torch.sigmoid(in_z + rec_z)  # under autocast neither has the dtype of h
        return HiddenState(torch.lerp(candidate.to(state.h.dtype), state.h, retention.to(state.h.dtype)))

    def _eq_48(self) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Return a function of W x + b (B, 3 n_hidden), output and h (B, n_hidden) that returns the next h.

        A run makes it once for all steps, since cutting the weights takes time.
        """
        sizes = (2 * self.n_hidden, self.n_hidden)
        u_rz, u_h = (u.t() for u in self.w_rec.split_with_sizes(sizes))

        def step(current: Tensor, output: Tensor, h: Tensor) -> Tensor:
            to_rz, to_h = current.split_with_sizes(sizes, 1)
            r, z = torch.addmm(to_rz, output, u_rz).sigmoid().chunk(2, 1)
            candidate = torch.addmm(to_h, r * output, u_h).tanh()
            return torch.lerp(h, candidate.to(h.dtype), z.to(h.dtype))  # under autocast neither has the dtype of h

        return step

    @property
    def retention(self) -> Tensor:
        """The share of the state that a step leaves at input and state 0, (n_hidden,)."""
        z = slice(self.n_hidden, 2 * self.n_hidden)
        if self.recurrent_bias is None:
            return torch.sigmoid(-self.bias[z])
        return torch.sigmoid(self.bias[z] + self.recurrent_bias[z])

    @retention.setter
    def retention(self, value: Tensor) -> None:
        with torch.no_grad():
            change = torch.logit(value) - torch.logit(self.retention)
            if not self.reset_after:  # the retention is 1 - z
                change = -change
            self.bias[self.n_hidden : 2 * self.n_hidden] += change

    def run_at_once(self, x: Tensor, state: HiddenState, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
        x = inputs_of(x, late, state.h.dtype)
        if self.recurrent_bias is not None:  # torch.nn.GRU, for which there is a kernel
            if under_autocast(x):
                return None
            weights = (self.w_in, self.w_rec, self.bias, self.recurrent_bias)
            outputs, _ = torch.gru(x, state.h[None], weights, *ONE_LAYER)
            return outputs, HiddenState(last_of(outputs, state.h, lengths))
        # PyTorch has no kernel for eq. 48: the input is projected for all steps at once, then the steps run one by one
        step = self._eq_48()
        h = state.h
        hidden = []
        for current in linear(x, self.w_in, self.bias).unbind(0):
            h = step(current, h, h)
            hidden.append(h)
        outputs = torch.stack(hidden)
        return outputs, HiddenState(last_of(outputs, state.h, lengths))


@register
class LSTM(GatedCell):
    r"""Long short-term memory.

    .. math::
        i, f, o &= \sigma(W_j x[t] + U_j h[t-1] + b_j), \quad j = i, f, o \\
        g &= \tanh(W_c x[t] + U_c h[t-1] + b_c) \\
        c[t] &= f \circ c[t-1] + i \circ g \\
        h[t] &= o \circ \tanh(c[t])

    Args:
        memory: ν, in [0, 1): before training retentions are :func:`~neurolsc.neurons.rate.chrono`'s, within [ν, 1], and
            the gate i is 1 - f at input and output 0. None: both gates are 1/2 there.

    Attributes:
        w_in: W of i, f, c and o, PyTorch's order (4 n_hidden, n_in), Glorot uniform.
        w_rec: U, likewise (4 n_hidden, n_hidden), orthogonal.
        bias: b (4 n_hidden,), zero; PyTorch's layer has two, which are added.
        retention: of the memory at input and output 0, sigmoid(b_f) (n_hidden,); settable, by ``bias``.

    Source: arXiv:2308.12075, eq. 47; the memory: arXiv:2405.21064, App. D.1.
    """

    state_type = LSTMState
    scaled_parameters = GRU.scaled_parameters
    stored_in = GRU.stored_in

    def __init__(self, n_in: int, n_hidden: int, *, memory: float | None = None) -> None:
        super().__init__(n_in, n_hidden, gates=4)
        if memory is not None:
            self.retention = chrono(n_hidden, memory)
            self.bias.data[:n_hidden] = -self.bias.data[n_hidden : 2 * n_hidden]  # b_i = -b_f, so that i = 1 - f

    def update(self, x: Tensor, z: Tensor, state: LSTMState) -> LSTMState:
        gates = torch.addmm(linear(x, self.w_in, self.bias), z, self.w_rec.T)
        i, f, g, o = gates.to(state.c.dtype).chunk(4, 1)
        c = torch.sigmoid(f) * state.c + torch.sigmoid(i) * torch.tanh(g)
        return LSTMState(torch.sigmoid(o) * torch.tanh(c), c)

    @property
    def retention(self) -> Tensor:
        """The share of the memory that a step leaves at input and output 0, (n_hidden,)."""
        return torch.sigmoid(self.bias[self.n_hidden : 2 * self.n_hidden])

    @retention.setter
    def retention(self, value: Tensor) -> None:
        with torch.no_grad():
            self.bias[self.n_hidden : 2 * self.n_hidden] = torch.logit(value)

    def run_at_once(self, x: Tensor, state: LSTMState, lengths: Tensor | None, late: Tensor | None) -> AtOnce:
        if under_autocast(x):
            return None
        x = inputs_of(x, late, state.h.dtype)
        start = (state.h[None], state.c[None])  # (1, B, n_hidden): of one layer
        weights = (self.w_in, self.w_rec, self.bias, torch.zeros_like(self.bias))
        if lengths is None:
            outputs, h, c = torch.lstm(x, start, weights, *ONE_LAYER)
            return outputs, LSTMState(h[0], c[0])
        # h and c at the end of each sample come from a packed sequence, which sorts the samples by length; it takes no
        # length 0, so that samples without a step run one, and get their start back at the end
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), enforce_sorted=False)
        start = tuple(leaf[:, packed.sorted_indices] for leaf in start)
        data, h, c = torch.lstm(packed.data, packed.batch_sizes, start, weights, *ONE_LAYER[:-1])  # no batch_first
        outputs, _ = pad_packed_sequence(packed._replace(data=data), total_length=len(x))
        after = (leaf[0][packed.unsorted_indices] for leaf in (h, c))
        return outputs, LSTMState(*(keep(new, old, lengths > 0) for new, old in zip(after, state, strict=True)))
