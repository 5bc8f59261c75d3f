"""The linear recurrent unit, in its residual block."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, layer_norm, linear

from neurolsc.display import state_repr
from neurolsc.eigen.maps import Map
from neurolsc.neurons.all_steps import last_of, read_by
from neurolsc.neurons.cell import Answer, Cell
from neurolsc.neurons.derivatives import Derivatives
from neurolsc.neurons.linear_maps import Weights
from neurolsc.neurons.linear_scan import linear_scan
from neurolsc.neurons.lru_maps import MEMORY, Entering, Leaving, Norm, Rotated, Sending, as_matrices, gelu_slope
from neurolsc.neurons.registry import register
from neurolsc.validation import one_of, probability, whole


class LRUState(NamedTuple):
    """State of an LRU."""

    x: Tensor
    """the memory, complex (B, n_state); for radii its real and imaginary parts"""
    u: Tensor
    """what the block has read in this step, and hands on beside the memory (B, n_hidden)"""

    def __repr__(self) -> str:
        return state_repr(self)


@register
class LRU(Cell):
    r"""A linear recurrence of complex numbers in a residual block.

    .. math::
        v[t] &= \mathrm{LayerNorm}(u[t]) \\
        x[t] &= \lambda \circ x[t-1] + e^{\gamma} \circ (B v[t]), \quad
            \lambda = e^{-e^{\nu} + i \varphi} \\
        y[t] &= \Re(C x[t]) + D \circ v[t] \\
        o[t] &= u[t] + \mathrm{GLU}(\mathrm{GELU}(y[t]))

    with GLU(g) = (P g + p) sigmoid(Q g + q). u is the input, through W_in first where it has
    another width, and a dropout (the exterior one); after GELU and after GLU there is a dropout,
    too.

    Args:
        n_in: number of inputs.
        n_hidden: width of the block, and so of its output.
        n_state: complex numbers of the memory; by default n_hidden.
        dropout: probability of the two dropouts inside, while training.
        exterior_dropout: likewise of the one before the block, skip connection included.
        radius_of: what the derivatives are of. ``"state"``: x alone, as in the paper, whose radius
            through depth leaves out what passes beside x, through the skip connection and D.
            ``"block"``: all that a layer hands on, (x, u), with a radius through depth near 1 or
            above whatever the weights, for the skip connection is the identity.

    Attributes:
        w_in: (n_hidden, n_in), Glorot uniform; None where n_in is n_hidden.
        nu_log, phase, gamma_log: ν, φ and γ (n_state,): at the start \|λ\| is uniform in [0.5, 1],
            the phase in [0, π/10], and e^γ is the root of 1 - \|λ\|².
        b_real, b_imag: B (n_state, n_hidden), Gaussian of deviation 1/√n_hidden each.
        c_real, c_imag: C (n_hidden, n_state), of deviation 1/√(2 n_state).
        d: D (n_hidden,), of deviation 1.
        norm_weight, norm_bias: of the layer norm, (n_hidden,), 1 and 0.
        glu_weight, glu_bias: P above Q, (2 n_hidden, n_hidden), Glorot uniform each, and p above q.
        modulus: \|λ\| (n_state,), which holds the radius through time: it is exactly the largest of
            them; settable, by ``nu_log``.

    Raises:
        ValueError: if a size is below 1, a probability outside [0, 1), or radius_of another word.

    Example:
        >>> cell = LRU(8, 8)
        >>> z, state = cell.step(torch.ones(5, 8), cell.initial_state(5))
        >>> z.shape, state.x.dtype
        (torch.Size([5, 8]), torch.complex64)

    Source: arXiv:2308.12075v2, eq. 50 and 51, App. H; A. Orvieto et al., "Resurrecting recurrent
    neural networks for long sequences", ICML 2023.
    """

    w_in: nn.Parameter | None

    answers = (
        Answer("b_real", "depth"),
        Answer("b_imag", "depth"),
        Answer("modulus", "time", through="share"),
    )
    paper_answers = (
        *(Answer(name, "depth") for name in ("b_real", "b_imag", "c_real", "c_imag")),
        Answer("nu_log", "time"),
    )

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        n_state: int | None = None,
        dropout: float = 0.1,
        exterior_dropout: float = 0.0,
        radius_of: Literal["state", "block"] = "state",
    ) -> None:
        super().__init__(n_in, n_hidden)
        self.n_state = n = self.n_hidden if n_state is None else whole("n_state", n_state)
        self.dropout = probability("dropout", dropout)
        self.exterior_dropout = probability("exterior_dropout", exterior_dropout)
        self.radius_of = one_of("radius_of", radius_of, ("state", "block"))
        fits = n_in == n_hidden
        drawn = None if fits else nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_hidden, n_in)))
        self.register_parameter("w_in", drawn)
        modulus = 0.5 + torch.rand(n) / 2
        modulus = modulus.clamp(max=1 - torch.finfo(modulus.dtype).eps)
        self.nu_log = nn.Parameter(torch.log(-torch.log(modulus)))
        self.phase = nn.Parameter(torch.rand(n) * math.pi / 10)
        self.gamma_log = nn.Parameter(torch.log(1 - modulus.square()) / 2)
        into, out = n_hidden**-0.5, (2 * n) ** -0.5
        self.b_real, self.b_imag = (nn.Parameter(torch.randn(n, n_hidden) * into) for _ in range(2))
        self.c_real, self.c_imag = (nn.Parameter(torch.randn(n_hidden, n) * out) for _ in range(2))
        self.d = nn.Parameter(torch.randn(n_hidden))
        self.norm_weight, self.norm_bias = nn.Parameter(torch.ones(n_hidden)), nn.Parameter(torch.zeros(n_hidden))
        halves = [nn.init.xavier_uniform_(torch.empty(n_hidden, n_hidden)) for _ in range(2)]
        self.glu_weight, self.glu_bias = nn.Parameter(torch.cat(halves)), nn.Parameter(torch.zeros(2 * n_hidden))

    def initial_state(self, batch: int) -> LRUState:
        """No memory, and nothing read."""
        u = torch.zeros(batch, self.n_hidden, **self.dtype_and_device)
        x = torch.zeros(batch, self.n_state, dtype=u.dtype.to_complex(), device=u.device)
        return LRUState(x, u)

    def output(self, state: LRUState) -> Tensor:
        """o, shape (B, n_hidden)."""
        return self._sent(state.x, state.u, self.normed(state.u))

    def update(self, x: Tensor, z: Tensor, state: LRUState) -> LRUState:
        u = self._entered(x)
        return LRUState(self.eigenvalues * state.x + self.driven(self.normed(u)), u)

    def _entered(self, x: Tensor) -> Tensor:
        return dropout(x if self.w_in is None else linear(x, self.w_in), self.exterior_dropout, self.training)

    def normed(self, u: Tensor) -> Tensor:
        """v, the layer norm of u (..., n_hidden)."""
        return layer_norm(u, (self.n_hidden,), self.norm_weight, self.norm_bias)

    def driven(self, v: Tensor) -> Tensor:
        """What v (..., n_hidden) adds to the memory, complex (..., n_state)."""
        scale = self.gamma_log.exp()
        return torch.complex(linear(v, self.b_real) * scale, linear(v, self.b_imag) * scale)

    def told(self, x: Tensor, v: Tensor) -> Tensor:
        """y, of the memory x (..., n_state) and v (..., n_hidden)."""
        return linear(x.real, self.c_real) - linear(x.imag, self.c_imag) + self.d * v

    def _sent(self, x: Tensor, u: Tensor, v: Tensor) -> Tensor:
        inner = dropout(gelu(self.told(x, v)), self.dropout, self.training)
        value, gate = linear(inner, self.glu_weight, self.glu_bias).chunk(2, -1)
        return u + dropout(value * torch.sigmoid(gate), self.dropout, self.training)

    @property
    def eigenvalues(self) -> Tensor:
        """λ (n_state,), complex."""
        return torch.polar(self.modulus, self.phase)

    @property
    def modulus(self) -> Tensor:
        r"""\|λ\| (n_state,)."""
        return torch.exp(-torch.exp(self.nu_log))

    @modulus.setter
    def modulus(self, value: Tensor) -> None:
        with torch.no_grad():
            below = torch.finfo(value.dtype).eps
            self.nu_log.copy_(torch.log(-torch.log(value.clamp(below, 1 - below))))

    def derivatives(self) -> Derivatives | None:
        return LRUDerivatives(self)

    def run(
        self,
        x: Tensor,
        state: LRUState,
        *,
        first: Tensor | None = None,
        lengths: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, LRUState]:
        if recompute:
            return super().run(x, state, first=first, lengths=lengths, recompute=True)
        u = self._entered(read_by(x, first, state.u.dtype))
        v = self.normed(u)
        memory = linear_scan(self.eigenvalues, self.driven(v), state.x)
        last = LRUState(last_of(memory, state.x, lengths), last_of(u, state.u, lengths))
        return self._sent(memory, u, v), last

    def config(self) -> dict[str, object]:
        names = ("n_state", "dropout", "exterior_dropout", "radius_of")
        return super().config() | {name: getattr(self, name) for name in names}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, n_state={self.n_state}, radius_of={self.radius_of!r}"


class LRUDerivatives(Derivatives):
    """The derivatives of an LRU block, without dropout."""

    terms = (MEMORY,)
    reads_input = False

    def __init__(self, cell: "LRU") -> None:
        self.cell = cell

    def by_state(self, x: Tensor, state: LRUState) -> dict[str, Tensor]:
        # the same at all points
        return {"memory": as_matrices([self._step(1)], 1, state.u).expand(len(state.u), -1, -1)}

    def by_input(self, x: Tensor, state: LRUState) -> Tensor:
        return as_matrices(self.input_maps(x, state), len(x), state.u)

    def of_output(self, state: LRUState) -> Tensor:
        return as_matrices(self.output_maps(state), len(state.u), state.u)

    def state_map(self, x: Tensor, state: LRUState) -> Rotated:
        return self._step(len(state.u))

    def _step(self, points: int) -> Rotated:
        return Rotated(self.cell.eigenvalues, self.cell.n_hidden, points)

    def input_maps(self, x: Tensor, state: LRUState) -> Sequence[Map]:
        cell = self.cell
        u = x if cell.w_in is None else linear(x, cell.w_in)
        into = torch.stack((cell.b_real, cell.b_imag), 1) * cell.gamma_log.exp()[:, None, None]
        entering = Entering(Norm.at(cell.norm_weight, u), into.flatten(0, 1), cell.radius_of == "block")
        return [entering] if cell.w_in is None else [Weights(cell.w_in), entering]

    def output_maps(self, state: LRUState) -> Sequence[Map]:
        cell = self.cell
        y = cell.told(state.x, cell.normed(state.u))
        value, gate = linear(gelu(y), cell.glu_weight, cell.glu_bias).chunk(2, 1)
        open_ = torch.sigmoid(gate)
        at = Sending(
            torch.stack((cell.c_real, -cell.c_imag), 2).flatten(1),
            cell.d,
            Norm.at(cell.norm_weight, state.u),
            gelu_slope(y),
            cell.glu_weight,
            torch.stack((open_, value * open_ * (1 - open_)), 1),
        )
        return [Leaving(at, cell.radius_of == "block")]
