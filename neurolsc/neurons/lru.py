"""The linear recurrent unit, in its residual block."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, gelu, layer_norm, linear, pad

from neurolsc.display import state_repr
from neurolsc.neurons.cell import Answer, Cell, register
from neurolsc.neurons.derivatives import Derivatives, LinearOperator, StepMap, Term, Weights
from neurolsc.neurons.isolated import Known
from neurolsc.neurons.rate import last_of, read_by
from neurolsc.validation import one_of, probability, whole

BUSY = 2048
"""numbers in a step from which a CPU takes them one after the other (benchmarks/rate_cells.py)"""


def linear_scan(decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """The values after each of T steps, real or complex, differentiable any number of times.

    Args:
        decay: λ (N,).
        inputs: b (T, B, N), T >= 1.
        start: the value before the first step (B, N).

    Returns:
        x (T, B, N).

    Example:
        >>> half = torch.tensor([0.5])
        >>> linear_scan(half, torch.ones(4, 1, 1), torch.zeros(1, 1)).flatten()
        tensor([1.0000, 1.5000, 1.7500, 1.8750])
    """
    scanned: Tensor = _Scan.apply(decay, inputs, start)
    return scanned


class _Scan(torch.autograd.Function):
    """The recurrence with its gradient."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
        x = inputs.clone()
        x[0].addcmul_(decay, start)
        _scan(decay, x)
        ctx.save_for_backward(decay, x, start)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, x, start = ctx.saved_tensors
        (gradient,) = gradients
        back = linear_scan(decay.conj(), gradient.flip(0), torch.zeros_like(start)).flip(0)
        by_decay = (x[:-1].conj() * back[1:]).sum((0, 1)) + (start.conj() * back[0]).sum(0)
        return by_decay, back, decay.conj() * back[0]


def _scan(decay: Tensor, x: Tensor) -> None:
    """In place from b to x, from a start of 0."""
    if len(x) == 1:
        return
    if x.device.type == "cpu" and x[0].numel() >= BUSY:
        for now, last in zip(x[1:].unbind(0), x[:-1].unbind(0), strict=True):
            now.addcmul_(decay, last)
        return
    even, odd = x[0::2], x[1::2]
    odd.addcmul_(decay, even[: len(odd)])
    _scan(decay.square(), odd)
    even[1:].addcmul_(decay, odd[: len(even) - 1])


MEMORY = Term("memory", "make lambda smaller", "make lambda larger", "#0072b2")


def parts(x: Tensor) -> Tensor:
    """Complex (..., n) as real and imaginary parts side by side (..., 2 n)."""
    return torch.view_as_real(x).flatten(-2)


def as_complex(x: Tensor) -> Tensor:
    """The inverse of :func:`parts`."""
    return torch.complex(*x.unflatten(-1, (-1, 2)).unbind(-1))


class Rotated(StepMap):
    """d (x', u') / d (x, u): x is multiplied by lambda, and u is read anew in every step."""

    splits = True  # into pairs

    def __init__(self, eigenvalues: Tensor, beside: int, points: int) -> None:
        self.eigenvalues, self.beside, self.points = eigenvalues, beside, points
        self.rows = self.columns = 2 * len(eigenvalues) + beside

    def matvec(self, x: Tensor) -> Tensor:
        return self._by(self.eigenvalues, x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self._by(self.eigenvalues.conj(), y)

    def _by(self, factor: Tensor, x: Tensor) -> Tensor:
        memory = x[:, : self.rows - self.beside]
        return pad(parts(factor * as_complex(memory)), (0, self.beside))

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"memory": (y * self.matvec(x)).sum(1)}

    def take(self, index: Tensor) -> "Rotated":
        return Rotated(self.eigenvalues, self.beside, len(index))

    def known(self, right: bool, tolerance: float) -> Known:
        """Lambda itself is known, and so is the largest."""
        eigenvalues = self.eigenvalues.detach()
        i = eigenvalues.abs().argmax()
        vector = torch.zeros(self.rows, dtype=eigenvalues.dtype, device=eigenvalues.device)
        vector[2 * i] = 0.5**0.5
        vector[2 * i + 1] = (-1j if right else 1j) * 0.5**0.5
        sure = torch.ones(self.points, dtype=torch.bool, device=eigenvalues.device)
        return Known(eigenvalues[i].expand(self.points), vector.expand(self.points, -1), sure, sure)


class Entering(LinearOperator):
    """d (x', u') / d u: through norm and B into the memory, and u itself.

    With ``beside=False`` only into the memory.
    """

    splits = False

    def __init__(self, norm: "Norm", into: Tensor, beside: bool) -> None:
        self.norm, self.into, self.beside = norm, into, beside  # into: (2 n_state, n_hidden)
        self.columns = into.shape[1]
        self.rows = len(into) + self.columns

    def matvec(self, x: Tensor) -> Tensor:
        return torch.cat((self.norm.matvec(x) @ self.into.T, x if self.beside else torch.zeros_like(x)), 1)

    def rmatvec(self, y: Tensor) -> Tensor:
        memory, beside = y.split([len(self.into), self.columns], 1)
        back = self.norm.rmatvec(memory @ self.into)
        return back + beside if self.beside else back

    def take(self, index: Tensor) -> "Entering":
        return Entering(self.norm.take(index), self.into, self.beside)


class Leaving(LinearOperator):
    """d o / d (x, u): through C, D, GELU and GLU, and u itself.

    With ``beside=False`` only through C.
    """

    splits = False

    def __init__(self, at: "Sending", beside: bool) -> None:
        self.at, self.beside = at, beside
        self.rows = len(at.d)
        self.columns = at.out.shape[1] + self.rows

    def matvec(self, x: Tensor) -> Tensor:
        at = self.at
        memory, u = x.split([at.out.shape[1], self.rows], 1)
        y = memory @ at.out.T
        if self.beside:
            y = y + at.d * at.norm.matvec(u)
        sent = (at.glu * ((at.gelu * y) @ at.weight.T).view(-1, 2, self.rows)).sum(1)
        return sent + u if self.beside else sent

    def rmatvec(self, y: Tensor) -> Tensor:
        at = self.at
        inner = at.gelu * ((at.glu * y.unsqueeze(1)).flatten(1) @ at.weight)
        u = y + at.norm.rmatvec(at.d * inner) if self.beside else torch.zeros_like(y)
        return torch.cat((inner @ at.out, u), 1)

    def take(self, index: Tensor) -> "Leaving":
        return Leaving(self.at.take(index), self.beside)


class Norm(NamedTuple):
    """A layer norm at P points, differentiated."""

    weight: Tensor
    """(n,)"""
    unit: Tensor
    """u without its mean, of variance 1 (P, n)"""
    scale: Tensor
    """1 / deviation (P, 1)"""

    @classmethod
    def at(cls, weight: Tensor, u: Tensor, eps: float = 1e-5) -> "Norm":
        """That of :func:`torch.nn.functional.layer_norm`."""
        centred = u - u.mean(1, keepdim=True)
        scale = (centred.square().mean(1, keepdim=True) + eps).rsqrt()
        return cls(weight, centred * scale, scale)

    def matvec(self, x: Tensor) -> Tensor:
        return self.weight * self._projected(x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self._projected(self.weight * y)

    def _projected(self, x: Tensor) -> Tensor:
        x = x - x.mean(1, keepdim=True)
        return self.scale * (x - self.unit * (self.unit * x).mean(1, keepdim=True))

    def take(self, index: Tensor) -> "Norm":
        return Norm(self.weight, self.unit[index], self.scale[index])


class Sending(NamedTuple):
    """What a block sends, differentiated at P points."""

    out: Tensor
    """C on pairs of parts (n_hidden, 2 n_state)"""
    d: Tensor
    """(n_hidden,)"""
    norm: Norm
    gelu: Tensor
    """slope of GELU (P, n_hidden)"""
    weight: Tensor
    """of GLU (2 n_hidden, n_hidden)"""
    glu: Tensor
    """what its two halves do to the product (P, 2, n_hidden)"""

    def take(self, index: Tensor) -> "Sending":
        return self._replace(norm=self.norm.take(index), gelu=self.gelu[index], glu=self.glu[index])


def gelu_slope(y: Tensor) -> Tensor:
    r"""The derivative of GELU, :math:`\Phi(y) + y \varphi(y)`."""
    density = torch.exp(-y.square() / 2) / (2 * torch.pi) ** 0.5
    return torch.special.ndtr(y) + y * density


def as_matrices(maps: Sequence[LinearOperator], points: int, like: Tensor) -> Tensor:
    """The product of maps as matrices (P, rows, columns)."""
    columns = maps[0].columns
    at = torch.arange(points, device=like.device).repeat_interleave(columns)
    x = torch.eye(columns, dtype=like.dtype, device=like.device).repeat(points, 1)
    for part in maps:
        x = part.take(at).matvec(x)
    return x.view(points, columns, -1).mT


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

    def input_maps(self, x: Tensor, state: LRUState) -> Sequence[LinearOperator]:
        cell = self.cell
        u = x if cell.w_in is None else linear(x, cell.w_in)
        into = torch.stack((cell.b_real, cell.b_imag), 1) * cell.gamma_log.exp()[:, None, None]
        entering = Entering(Norm.at(cell.norm_weight, u), into.flatten(0, 1), cell.radius_of == "block")
        return [entering] if cell.w_in is None else [Weights(cell.w_in), entering]

    def output_maps(self, state: LRUState) -> Sequence[LinearOperator]:
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
