r"""Derivatives of a cell's step in closed form, as linear operators and as matrices.

With h the state before the step, x the input and z = output(h), all variables of a state side by side (a complex one as
its real and imaginary parts), a closed form has

.. math:: \frac{\partial h'}{\partial h} \; (S, S), \qquad
          \frac{\partial h'}{\partial x} \; (S, n_{in}), \qquad
          \frac{\partial z}{\partial h} \; (n_{hidden}, S)

A cell of one's own gives matrices. LIF, ALIF and LRU also give operators, whose products with vectors cost less. The
derivatives of every other cell are autograd products.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from neurolsc.neurons.isolated import Known, isolated_radius

State = Any


class Factors(NamedTuple):
    """A factorised M - shift I of one point, M real (n, n): products with its inverse, on (n,)."""

    solve: Callable[[Tensor], Tensor]
    solve_adjoint: Callable[[Tensor], Tensor]


class LinearOperator(ABC):
    """A matrix M at each of P points, from vectors (P, columns) to vectors (P, rows)."""

    rows: int
    columns: int
    same: bool = False  # M is the same at all points, whatever their number

    @abstractmethod
    def matvec(self, x: Tensor) -> Tensor:
        """M x, differentiable by the parameters."""

    @abstractmethod
    def rmatvec(self, y: Tensor) -> Tensor:
        """The transpose of M times y, differentiable by the parameters."""

    @abstractmethod
    def take(self, index: Tensor) -> "LinearOperator":
        """The operator at some of the points."""

    def dense(self) -> Tensor | None:
        """The matrices (P, rows, columns), or (1, rows, columns) for all; None: not at hand."""
        return None

    def known(self, right: bool, tolerance: float) -> Known | None:
        """The largest eigenvalue with a right or left eigenvector, where no product is needed."""
        return None

    def factors(self, shift: Tensor) -> Factors | None:
        """M - shift I of the only point, factorised, where that is cheaper than densely."""
        return None


@dataclass(frozen=True)
class Term:
    """A named part of the derivative by the state, for profiles and diagnoses.

    Attributes:
        name: its name in tables.
        too_large: what to change where it holds a radius that is too large.
        too_small: likewise for one that is too small.
        color: its colour in pictures; None: one that is free.
    """

    name: str
    too_large: str = "scale the recurrent weights down"
    too_small: str = "scale the recurrent weights up"
    color: str | None = None


class StepMap(LinearOperator):
    """The derivative by the state at P points, and its named terms between two vectors."""

    @abstractmethod
    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The sums y^T (term) x of the named terms, at real vectors (P, S); each (P,)."""


class Derivatives(ABC):
    """The derivatives of a cell's step, at B inputs and states.

    Attributes:
        terms: the named terms of the derivative by the state, in the order of tables and pictures.
        reads_input: True if the derivative by the state depends on the input of the step.
    """

    terms: tuple[Term, ...] = ()
    reads_input: bool = True

    @abstractmethod
    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        """d h' / d h as named terms (B, S, S); their sum is the derivative."""

    @abstractmethod
    def by_input(self, x: Tensor, state: State) -> Tensor:
        """d h' / d x, shape (B, S, n_in); or (1, S, n_in) where it is the same for all samples."""

    @abstractmethod
    def of_output(self, state: State) -> Tensor:
        """d output / d h, shape (B, n_hidden, S)."""

    def state_map(self, x: Tensor, state: State) -> StepMap:
        """d h' / d h as an operator."""
        return SumOfMatrices(self.by_state(x, state))

    def input_maps(self, x: Tensor, state: State) -> Sequence[LinearOperator]:
        """d h' / d x as operators, in the order in which they act."""
        return [Matrices(self.by_input(x, state))]

    def output_maps(self, state: State) -> Sequence[LinearOperator]:
        """d output / d h as operators, in the order in which they act."""
        return [Matrices(self.of_output(state))]


class Matrices(LinearOperator):
    """Matrices (P, rows, columns), or one (1, rows, columns) for all points."""

    def __init__(self, m: Tensor) -> None:
        self.m = m
        self.rows, self.columns = m.shape[1:]
        self.same = len(m) == 1

    def matvec(self, x: Tensor) -> Tensor:
        return x @ self.m[0].T if self.same else (x.unsqueeze(1) @ self.m.mT).squeeze(1)

    def rmatvec(self, y: Tensor) -> Tensor:
        return y @ self.m[0] if self.same else (y.unsqueeze(1) @ self.m).squeeze(1)

    def take(self, index: Tensor) -> "Matrices":
        return self if self.same else Matrices(self.m[index])

    def dense(self) -> Tensor:
        return self.m


class SumOfMatrices(Matrices, StepMap):
    """A sum of named matrices, each (P, S, S) or (1, S, S)."""

    def __init__(self, parts: dict[str, Tensor]) -> None:
        points = max(len(part) for part in parts.values())
        super().__init__(torch.stack([part.expand(points, -1, -1) for part in parts.values()]).sum(0))
        self.parts, self.same = parts, False

    def take(self, index: Tensor) -> "SumOfMatrices":
        points = len(self.m)
        return SumOfMatrices({name: part.expand(points, -1, -1)[index] for name, part in self.parts.items()})

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {name: ((y.unsqueeze(1) @ part).squeeze(1) * x).sum(1) for name, part in self.parts.items()}


class JacobianOperator(LinearOperator):
    """The derivative of any function that treats the samples of a batch apart, by autograd.

    A product with the transpose is one backward pass; one with M itself is a backward pass through that one.

    Args:
        function: maps (P, columns) and the context to (P, rows), sample by sample.
        at: where (P, columns).
        context: further arguments (P, ...), not differentiated.
    """

    def __init__(self, function: Callable[..., Tensor], at: Tensor, *context: Tensor) -> None:
        self.function, self.context = function, tuple(c.detach() for c in context)
        with torch.enable_grad():
            self.at = at.detach().requires_grad_()
            self.value = function(self.at, *self.context)
        self.rows, self.columns = self.value.shape[1], at.shape[1]

    def matvec(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            probe = torch.zeros_like(self.value, requires_grad=True)
            back = _gradient(self.value, self.at, probe, create_graph=True)
        return _gradient(back, probe, x, create_graph=torch.is_grad_enabled())

    def rmatvec(self, y: Tensor) -> Tensor:
        return _gradient(self.value, self.at, y, create_graph=torch.is_grad_enabled())

    def matrices(self) -> Tensor:
        """The Jacobians (P, rows, columns), by a product with each unit vector."""
        points = len(self.at)
        unit = torch.eye(self.columns, dtype=self.at.dtype, device=self.at.device)
        copies = self.take(torch.arange(points, device=unit.device).repeat_interleave(self.columns))
        return copies.matvec(unit.repeat(points, 1)).view(points, self.columns, -1).mT

    def take(self, index: Tensor) -> "JacobianOperator":
        return JacobianOperator(self.function, self.at[index], *(c[index] for c in self.context))


def _gradient(value: Tensor, by: Tensor, weights: Tensor, *, create_graph: bool) -> Tensor:
    if not value.requires_grad:  # the function does not depend on it
        return torch.zeros_like(by)
    options: Any = {"create_graph": create_graph, "retain_graph": True, "materialize_grads": True}
    return torch.autograd.grad(value, by, weights, **options)[0]


def flat(state: State) -> Tensor:
    """All variables of a state, leaves (B, ...), side by side (B, S); complex ones as two reals."""
    leaves = (torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf in state)
    return torch.cat([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], 1)


def unflat(h: Tensor, like: State) -> State:
    """The state with the values h (B, S) and the shapes of another one (any batch)."""

    def leaf(part: Tensor, like: Tensor) -> Tensor:
        shape = (-1, *like.shape[1:])
        return torch.complex(*part.reshape(*shape, 2).unbind(-1)) if like.is_complex() else part.view(shape)

    parts = h.split([leaf[0].numel() * (1 + leaf.is_complex()) for leaf in like], 1)
    return type(like)(*(leaf(part, one) for part, one in zip(parts, like, strict=True)))


LEAK = Term(
    "leak",
    "shorten tau_theta and tau_v: a silent surrogate leaves exactly exp(-1/tau)",
    "lengthen tau_theta or tau_v",
    "#0072b2",
)
MORE = "raise w_rec or the decays"
RESET = Term("reset", "detach the reset (reset_gradient=False), or lower the thresholds", MORE, "#cc79a7")
FEEDBACK = Term(
    "feedback", "lower the adaptation, or use a rule under which it follows the radius through time", MORE, "#d55e00"
)
RECURRENCE = Term(
    "recurrence",
    "scale w_rec down, or dampen the surrogate",
    "scale w_rec up: while a layer hardly fires its surrogate is small",
    "#009e73",
)


class SpikingDerivatives(Derivatives):
    r"""The derivatives of a LIF or an ALIF, from its ``linearised(state)``.

    .. math:: \begin{pmatrix} D + K & E - K \\ \beta s & e^{-1/\tau_\vartheta} - \beta s
              \end{pmatrix}, \quad K = (W_{rec} - R)\,\mathrm{diag}(s), \quad
              s = \gamma f(\omega(v - \vartheta))

    with D, E and R of :meth:`neurolsc.neurons.spiking.Reset.derivatives`; a LIF has the upper left corner alone. The
    spikes in D and E are 0 or 1, whatever the surrogate's dampening and sharpness.

    Source: arXiv:2308.12075, eq. 49.
    """

    reads_input = False

    def __init__(self, cell: Any) -> None:
        self.cell, self.adapts = cell, hasattr(cell, "adaptation")
        self.terms = (LEAK, RESET, FEEDBACK, RECURRENCE) if self.adapts else (LEAK, RESET, RECURRENCE)

    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        step, terms = self.cell.linearised(state), {}
        for name, k in step.diagonals().items():  # (P, V, V, n): blocks that are diagonal
            terms[name] = torch.diag_embed(k).transpose(2, 3).reshape(len(k), step.rows, step.rows)
        recurrence = step.w_rec * step.s.unsqueeze(-2)
        if self.adapts:
            recurrence = pad(torch.cat((recurrence, -recurrence), -1), (0, 0, 0, step.s.shape[1]))
        return terms | {"recurrence": recurrence}

    def by_input(self, x: Tensor, state: State) -> Tensor:
        w_in = self.cell.w_in
        return (pad(w_in, (0, 0, 0, len(w_in))) if self.adapts else w_in).unsqueeze(0)

    def of_output(self, state: State) -> Tensor:
        s = torch.diag_embed(self.cell.linearised(state).s)
        return torch.cat((s, -s), -1) if self.adapts else s

    def state_map(self, x: Tensor, state: State) -> "SpikingStep":
        return self.cell.linearised(state)

    def input_maps(self, x: Tensor, state: State) -> Sequence[LinearOperator]:
        w_in = self.cell.w_in  # the narrowest of the operators decides the size of a product with them
        return [Matrices(w_in.unsqueeze(0)), *([Voltage(len(w_in))] if self.adapts else [])]

    def output_maps(self, state: State) -> Sequence[LinearOperator]:
        return [Spikes(self.cell.linearised(state).s, self.adapts)]


@dataclass(eq=False)
class SpikingStep(StepMap):
    r"""d h[t] / d h[t-1] of a LIF or ALIF at P states.

    With :math:`q = s (\mathrm{d}v - \mathrm{d}\vartheta)` the change of the spikes,

    .. math:: \mathrm{d}v' = D\,\mathrm{d}v + E\,\mathrm{d}\vartheta + W_{rec}\,q - R\,q, \qquad
              \mathrm{d}\vartheta' = e^{-1/\tau_\vartheta}\,\mathrm{d}\vartheta + \beta q

    """

    w_rec: Tensor  # recurrent weights (n, n), the same at all states
    s: Tensor  # derivative of the spikes by the voltage (P, n)
    d: Tensor  # D, E and R of the reset, each (P, n)
    e: Tensor
    r: Tensor
    adaptation: Tensor | None = None  # rise of the threshold at a spike (n,); None, as the next, for a LIF
    decay_theta: Tensor | None = None  # retention of the threshold (n,)

    def __post_init__(self) -> None:
        self.rows = self.columns = self.s.shape[1] * (1 if self.adaptation is None else 2)

    def matvec(self, x: Tensor) -> Tensor:
        if self.adaptation is None or self.decay_theta is None:
            q = self.s * x
            return self.d * x - self.r * q + q @ self.w_rec.T
        v, theta = x.chunk(2, 1)
        q = self.s * (v - theta)
        to_v = self.d * v + self.e * theta - self.r * q + q @ self.w_rec.T
        return torch.cat((to_v, self.decay_theta * theta + self.adaptation * q), 1)

    def rmatvec(self, y: Tensor) -> Tensor:
        if self.adaptation is None or self.decay_theta is None:
            return self.d * y + self.s * (y @ self.w_rec - self.r * y)
        v, theta = y.chunk(2, 1)
        q = self.s * (v @ self.w_rec - self.r * v + self.adaptation * theta)
        return torch.cat((self.d * v + q, self.e * v + self.decay_theta * theta - q), 1)

    def diagonals(self) -> dict[str, Tensor]:
        """The terms without the recurrence: diagonals of the blocks (P, V, V, n)."""
        s, d, e, kick = self.s, self.d, self.e, self.r * self.s
        if self.adaptation is None or self.decay_theta is None:
            blocks = {"leak": [[d]], "reset": [[-kick]]}
        else:
            zero, feedback = torch.zeros_like(s), self.adaptation * s
            blocks = {
                "leak": [[d, zero], [zero, self.decay_theta.expand_as(s)]],
                "reset": [[-kick, e + kick], [zero, zero]],
                "feedback": [[zero, zero], [feedback, -feedback]],
            }
        return {name: torch.stack([torch.stack(row, 1) for row in rows], 1) for name, rows in blocks.items()}

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        n = self.s.shape[1]
        before, after = x.view(len(x), 1, -1, n), y.view(len(y), -1, 1, n)
        found = {name: (after * k * before).sum((1, 2, 3)) for name, k in self.diagonals().items()}
        q = self.s * (x if self.adaptation is None else x[:, :n] - x[:, n:])
        return found | {"recurrence": (y[:, :n] * (q @ self.w_rec.T)).sum(1)}

    def take(self, index: Tensor) -> "SpikingStep":
        return replace(self, s=self.s[index], d=self.d[index], e=self.e[index], r=self.r[index])

    def known(self, right: bool, tolerance: float) -> Known:
        return isolated_radius(self, right, tolerance)

    def factors(self, shift: Tensor) -> Factors | None:
        r"""A factorisation of an n x n matrix, also where the state has 2 n variables.

        The threshold rows are diagonal: with :math:`u = v - \vartheta` they read :math:`\beta s\,u +
        (e^{-1/\tau_\vartheta} - \lambda)\,\vartheta = b`, so (u, theta) of a neuron is one unknown w times a unit
        vector (p, q) that solves them for b = 0, and what is left is an n x n system in w.
        """
        s, d, e, r = (part[0].detach() for part in (self.s, self.d, self.e, self.r))
        coupling = self.w_rec.detach().to(shift.dtype)
        if self.adaptation is None or self.decay_theta is None:
            return lu_factors(coupling * s + torch.diag(d - r * s - shift))
        decay = self.decay_theta.detach()
        feedback, slow = self.adaptation.detach() * s, decay - shift
        norm = (slow.abs().square() + feedback.square()).sqrt().clamp(min=torch.finfo(s.dtype).tiny ** 0.5)
        p, q = slow / norm, -feedback / norm
        fast, cross = d - r * s - feedback - shift, d + e - decay
        inner = lu_factors(coupling * (s * p) + torch.diag(fast * p + cross * q))

        def solve(rhs: Tensor) -> Tensor:
            a, b = rhs.chunk(2)
            a = a - b  # the row of v becomes that of u = v - theta
            u, theta = b * feedback / norm**2, b * slow.conj() / norm**2
            w = inner.solve(a - (fast * u + coupling @ (s * u)) - cross * theta)
            u, theta = w * p + u, w * q + theta
            return torch.cat((u + theta, theta))

        def solve_adjoint(rhs: Tensor) -> Tensor:
            a, b = rhs.chunk(2)
            b = a + b  # the adjoint of v = u + theta
            y = inner.solve_adjoint(p.conj() * a + q.conj() * b)
            a = a - fast.conj() * y - s * (coupling.mH @ y)
            b = b - cross * y
            z = (feedback * a + slow * b) / norm**2
            return torch.cat((y, z - y))

        return Factors(solve, solve_adjoint)


class Spikes(LinearOperator):
    """d z / d h of a LIF or ALIF: s dv, or s (dv - dtheta)."""

    def __init__(self, s: Tensor, adapts: bool) -> None:
        self.s, self.adapts = s, adapts
        self.rows = s.shape[1]
        self.columns = self.rows * (2 if adapts else 1)

    def matvec(self, x: Tensor) -> Tensor:
        return self.s * (x[:, : self.rows] - x[:, self.rows :] if self.adapts else x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return torch.cat((self.s * y, -self.s * y), 1) if self.adapts else self.s * y

    def take(self, index: Tensor) -> "Spikes":
        return Spikes(self.s[index], self.adapts)


class Voltage(LinearOperator):
    """dv becomes (dv, 0), its place in the state (v, theta)."""

    same = True

    def __init__(self, n: int) -> None:
        self.rows, self.columns = 2 * n, n

    def matvec(self, x: Tensor) -> Tensor:
        return pad(x, (0, self.columns))

    def rmatvec(self, y: Tensor) -> Tensor:
        return y[:, : self.columns]

    def take(self, index: Tensor) -> "Voltage":
        return self


def lu_factors(m: Tensor) -> Factors:
    """LU factors of one matrix (n, n); a pivot below eps times the largest becomes this."""
    # one matrix at a time: torch's batched LU on the CPU is broken after torch.set_num_threads
    # (pytorch#142815)
    lu, pivots, _ = torch.linalg.lu_factor_ex(m)
    pivot = lu.diagonal()
    smallest = torch.finfo(m.dtype).eps * pivot.abs().max().clamp(min=torch.finfo(m.dtype).tiny)
    pivot[pivot.abs() < smallest] = smallest.to(m.dtype)

    def solve(b: Tensor, adjoint: bool = False) -> Tensor:
        return torch.linalg.lu_solve(lu, pivots, b.to(m.dtype).unsqueeze(1), adjoint=adjoint).squeeze(1)

    return Factors(solve, lambda b: solve(b, adjoint=True))
