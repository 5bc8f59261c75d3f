r"""What a cell may offer in place of autograd: the derivatives of its step in closed form.

With h the state before the step, x the input and z = output(h), all variables of a state side by
side (a complex one as its real and imaginary parts),

.. math:: \frac{\partial h'}{\partial h} \; (S, S), \qquad
          \frac{\partial h'}{\partial x} \; (S, n_{in}), \qquad
          \frac{\partial z}{\partial h} \; (n_{hidden}, S)

A cell gives them as matrices. Where products with vectors are cheaper than matrices it gives those
too; else the matrices are multiplied.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from neurolsc.neurons.isolated import Known, hears_few, held_alone


class Factors(NamedTuple):
    """A factorised M - shift I of one point, M real (n, n).

    What is here are its inverse and that of its adjoint, on vectors (n,).
    """

    solve: Callable[[Tensor], Tensor]
    solve_adjoint: Callable[[Tensor], Tensor]


class LinearOperator(ABC):
    """A linear map at each of P points, from vectors (P, columns) to vectors (P, rows)."""

    rows: int
    columns: int
    splits: bool | None = None
    """whether it may fall into blocks so small that a start at random has hardly a part in each;
    None if that is not known"""
    same: bool = False
    """whether it is the same map at all points, whatever their number"""

    @abstractmethod
    def matvec(self, x: Tensor) -> Tensor:
        """M x, differentiable by the parameters."""

    @abstractmethod
    def rmatvec(self, y: Tensor) -> Tensor:
        """The transpose of M times y, likewise."""

    @abstractmethod
    def take(self, index: Tensor) -> "LinearOperator":
        """The map at some of the points."""

    def known(self, right: bool, tolerance: float) -> Known | None:
        """The largest eigenvalues with right or left eigenvectors, where no product is needed.

        None where nothing is known.
        """
        return None

    def dense(self) -> Tensor | None:
        """The matrices (P, rows, columns), or one (1, rows, columns) for all points.

        None where they are not at hand.
        """
        return None

    def factors(self, shift: Tensor) -> Factors | None:
        """A factorisation of M - shift I at the only point.

        None where there is none that is cheaper than that of a dense matrix.
        """
        return None


def lu_factors(m: Tensor) -> Factors:
    """Factors of one matrix (n, n), never nearly singular.

    A pivot below eps times the largest becomes this.
    """
    # one matrix at a time: torch's batched LU on the CPU is broken after torch.set_num_threads
    # (pytorch#142815)
    lu, pivots, _ = torch.linalg.lu_factor_ex(m)
    pivot = lu.diagonal()
    smallest = torch.finfo(m.dtype).eps * pivot.abs().max().clamp(min=torch.finfo(m.dtype).tiny)
    pivot[pivot.abs() < smallest] = smallest.to(m.dtype)

    def solve(b: Tensor, adjoint: bool = False) -> Tensor:
        return torch.linalg.lu_solve(lu, pivots, b.to(m.dtype).unsqueeze(1), adjoint=adjoint).squeeze(1)

    return Factors(solve, lambda b: solve(b, adjoint=True))


class Linearised(NamedTuple):
    r"""One step of a LIF or ALIF cell at P states, differentiated by the state.

    With :math:`q = s (\mathrm{d}v - \mathrm{d}\vartheta)` the change of the spikes,

    .. math:: \mathrm{d}v' = D\,\mathrm{d}v + E\,\mathrm{d}\vartheta + W_{rec}\,q - R\,q, \qquad
              \mathrm{d}\vartheta' = e^{-1/\tau_\vartheta}\,\mathrm{d}\vartheta + \beta q

    and all but W_rec is per neuron. A LIF has no second line and no E.
    """

    w_rec: Tensor
    """recurrent weights (n, n), the same at all states"""
    s: Tensor
    """derivative of the spikes by the voltage (P, n)"""
    d: Tensor
    """share of the voltage that is kept (P, n)"""
    e: Tensor
    """derivative of the voltage by the threshold, spikes held (P, n)"""
    r: Tensor
    """what a spike takes off the voltage, as far as a gradient goes through it (P, n)"""
    adaptation: Tensor | None
    """rise of the threshold at a spike (n,); None where the state is the voltage alone"""
    decay_theta: Tensor | None
    """share of the threshold that is kept (n,); None likewise"""


State = Any


@dataclass(frozen=True)
class Term:
    """A named part of the derivative by the state, for those who ask what holds a radius.

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
    """The derivative by the state at P points as products, and its terms between two vectors."""

    @abstractmethod
    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The sums y^T (term) x of the named terms, at real vectors (P, S); each (P,)."""


class Derivatives(ABC):
    """The derivatives of a cell's step, at B inputs and states.

    Attributes:
        terms: the named terms of the derivative by the state, in the order of tables and pictures.
        reads_input: whether the derivative by the state depends on the input of the step.
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
        """d h' / d h as products."""
        return _Terms.of(self.by_state(x, state))

    def input_maps(self, x: Tensor, state: State) -> Sequence[LinearOperator]:
        """d h' / d x as products, in the order in which they act."""
        return [Matrices(self.by_input(x, state))]

    def output_maps(self, state: State) -> Sequence[LinearOperator]:
        """d output / d h as products, likewise."""
        return [Matrices(self.of_output(state))]


class Matrices(LinearOperator):
    """Matrices (P, rows, columns), or one (1, rows, columns) that is the same at all points."""

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


class _Terms(StepMap):
    """A sum of named matrices, each (P, S, S) or (1, S, S), at some of the P points."""

    def __init__(self, parts: dict[str, Tensor], whole: Tensor, at: Tensor) -> None:
        self.parts, self.whole, self.at = parts, whole, at
        self.rows, self.columns = whole.shape[1:]

    @classmethod
    def of(cls, parts: dict[str, Tensor]) -> "_Terms":
        """At all of the points."""
        whole = sum(parts.values(), torch.zeros(()).to(next(iter(parts.values()))))
        return cls(parts, whole, torch.arange(len(whole), device=whole.device))

    def matvec(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(1) @ self.whole.mT).squeeze(1)

    def rmatvec(self, y: Tensor) -> Tensor:
        return (y.unsqueeze(1) @ self.whole).squeeze(1)

    def take(self, index: Tensor) -> "_Terms":
        return _Terms(self.parts, self.whole[index], self.at[index])

    def dense(self) -> Tensor:
        return self.whole

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        parts = {name: part if len(part) == 1 else part[self.at] for name, part in self.parts.items()}
        return {name: ((y.unsqueeze(1) @ part).squeeze(1) * x).sum(1) for name, part in parts.items()}


class SpikingStep(StepMap):
    """d h[t] / d h[t-1] of a LIF or ALIF cell in closed form."""

    def __init__(self, step: Linearised) -> None:
        self.step = step
        self.rows = self.columns = step.s.shape[1] * (1 if step.adaptation is None else 2)

    def matvec(self, x: Tensor) -> Tensor:
        w_rec, s, d, e, r, adaptation, decay_theta = self.step
        if adaptation is None or decay_theta is None:
            q = s * x
            return d * x - r * q + q @ w_rec.T
        v, theta = x.chunk(2, 1)
        q = s * (v - theta)
        return torch.cat((d * v + e * theta - r * q + q @ w_rec.T, decay_theta * theta + adaptation * q), 1)

    def rmatvec(self, y: Tensor) -> Tensor:
        w_rec, s, d, e, r, adaptation, decay_theta = self.step
        if adaptation is None or decay_theta is None:
            return d * y + s * (y @ w_rec - r * y)
        v, theta = y.chunk(2, 1)
        q = s * (v @ w_rec - r * v + adaptation * theta)
        return torch.cat((d * v + q, e * v + decay_theta * theta - q), 1)

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The sums y^T (term) x of the named terms of the derivative, at real vectors.

        Each is (P,).
        """
        w_rec, s, d, e, r, adaptation, decay_theta = self.step
        if adaptation is None or decay_theta is None:
            q = s * x
            parts = {"leak": y * d * x, "reset": -y * r * q, "recurrence": y * (q @ w_rec.T)}
        else:
            v, theta = x.chunk(2, 1)
            to_v, to_theta = y.chunk(2, 1)
            q = s * (v - theta)
            parts = {
                "leak": to_v * d * v + to_theta * decay_theta * theta,
                "reset": to_v * (e * theta - r * q),
                "feedback": to_theta * adaptation * q,
                "recurrence": to_v * (q @ w_rec.T),
            }
        return {name: part.sum(1) for name, part in parts.items()}

    def take(self, index: Tensor) -> "SpikingStep":
        w_rec, s, d, e, r, adaptation, decay_theta = self.step
        return SpikingStep(Linearised(w_rec, s[index], d[index], e[index], r[index], adaptation, decay_theta))

    @property
    def splits(self) -> bool:  # type: ignore[override]
        """Where some neuron hears few others: small circles may hold the largest eigenvalue."""
        return hears_few(self.step.w_rec)

    def known(self, right: bool, tolerance: float) -> Known:
        """Where neurons alone hold the radius."""
        return held_alone(self.step, right, tolerance)

    def factors(self, shift: Tensor) -> Factors | None:
        r"""A factorisation of an n x n matrix, also where the state has 2 n variables.

        The threshold rows are diagonal: with :math:`u = v - \vartheta` they read
        :math:`\beta s\,u + (e^{-1/\tau_\vartheta} - \lambda)\,\vartheta = b`, so (u, theta) of a
        neuron is one unknown w times a unit vector (p, q) that solves them for b = 0, and what is
        left is an n x n system in w.
        """
        w_rec, s, d, e, r, adaptation, decay_theta = (None if a is None else a.detach() for a in self.step)
        assert w_rec is not None and s is not None and d is not None and e is not None and r is not None
        s, d, e, r = s[0], d[0], e[0], r[0]
        coupling = w_rec.to(shift.dtype)
        if adaptation is None or decay_theta is None:
            return lu_factors(coupling * s + torch.diag(d - r * s - shift))
        feedback, slow = adaptation * s, decay_theta - shift
        norm = (slow.abs().square() + feedback.square()).sqrt().clamp(min=torch.finfo(s.dtype).tiny ** 0.5)
        p, q = slow / norm, -feedback / norm
        fast, cross = d - r * s - feedback - shift, d + e - decay_theta
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
    """d z / d h of a LIF or ALIF cell: s dv, or s (dv - dtheta)."""

    splits = False

    def __init__(self, s: Tensor, threshold: bool) -> None:
        self.s, self.threshold = s, threshold
        self.rows = s.shape[1]
        self.columns = self.rows * (2 if threshold else 1)

    def matvec(self, x: Tensor) -> Tensor:
        if not self.threshold:
            return self.s * x
        v, theta = x.chunk(2, 1)
        return self.s * (v - theta)

    def rmatvec(self, y: Tensor) -> Tensor:
        return torch.cat((self.s * y, -self.s * y), 1) if self.threshold else self.s * y

    def take(self, index: Tensor) -> "Spikes":
        return Spikes(self.s[index], self.threshold)


class Weights(LinearOperator):
    """d v / d x of a LIF or ALIF cell: w_in, the same at all points."""

    same = True

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.rows, self.columns = weights.shape

    @property
    def splits(self) -> bool:  # type: ignore[override]
        """As of recurrent weights."""
        return hears_few(self.weights)

    def matvec(self, x: Tensor) -> Tensor:
        return x @ self.weights.T

    def rmatvec(self, y: Tensor) -> Tensor:
        return y @ self.weights

    def take(self, index: Tensor) -> "Weights":
        return self


class Voltage(LinearOperator):
    """Where the voltage stands in the state (v, theta): dv becomes (dv, 0)."""

    same, splits = True, False

    def __init__(self, n: int) -> None:
        self.rows, self.columns = 2 * n, n

    def matvec(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, self.columns))

    def rmatvec(self, y: Tensor) -> Tensor:
        return y[:, : self.columns]

    def take(self, index: Tensor) -> "Voltage":
        return self


LEAK = Term(
    "leak",
    "shorten tau_theta and tau_v: a silent surrogate leaves exactly exp(-1/tau)",
    "lengthen tau_theta or tau_v",
    "#0072b2",
)
RESET = Term(
    "reset",
    "detach the reset (reset_gradient=False), or lower the thresholds",
    "raise w_rec or the decays",
    "#cc79a7",
)
FEEDBACK = Term(
    "feedback",
    "lower the adaptation, or use a rule under which it follows the radius through time",
    "raise w_rec or the decays",
    "#d55e00",
)
RECURRENCE = Term(
    "recurrence",
    "scale w_rec down, or dampen the surrogate",
    "scale w_rec up: while a layer hardly fires its surrogate is small",
    "#009e73",
)


class LeakyDerivatives(Derivatives):
    """The derivatives of a LIF or an ALIF.

    Args:
        cell: the cell.
        adapts: whether its threshold moves.
    """

    reads_input = False

    def __init__(self, cell: Any, adapts: bool) -> None:
        self.cell, self.adapts = cell, adapts
        self.terms = (LEAK, RESET, FEEDBACK, RECURRENCE) if adapts else (LEAK, RESET, RECURRENCE)

    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        w_rec, s, d, e, r, adaptation, decay_theta = self.cell.linearised(state)
        kick, recurrence = r * s, w_rec * s.unsqueeze(-2)
        if adaptation is None or decay_theta is None:
            return {"leak": torch.diag_embed(d), "reset": torch.diag_embed(-kick), "recurrence": recurrence}
        zero, feedback, hidden = torch.zeros_like(s), adaptation * s, s.shape[1]
        return {
            "leak": _diagonal_blocks(d, zero, zero, decay_theta.expand_as(s)),
            "reset": _diagonal_blocks(-kick, e + kick, zero, zero),
            "feedback": _diagonal_blocks(zero, zero, feedback, -feedback),
            "recurrence": pad(torch.cat((recurrence, -recurrence), -1), (0, 0, 0, hidden)),
        }

    def by_input(self, x: Tensor, state: State) -> Tensor:
        """w_in, or (w_in; 0), the same for all samples."""
        w_in = self.cell.w_in
        return (pad(w_in, (0, 0, 0, len(w_in))) if self.adapts else w_in).unsqueeze(0)

    def of_output(self, state: State) -> Tensor:
        """diag(s), or (diag(s), -diag(s))."""
        s = torch.diag_embed(self.cell.linearised(state).s)
        return torch.cat((s, -s), -1) if self.adapts else s

    def state_map(self, x: Tensor, state: State) -> SpikingStep:
        return SpikingStep(self.cell.linearised(state))

    def input_maps(self, x: Tensor, state: State) -> Sequence[LinearOperator]:
        w_in = self.cell.w_in
        return [Weights(w_in), Voltage(len(w_in))] if self.adapts else [Weights(w_in)]

    def output_maps(self, state: State) -> Sequence[LinearOperator]:
        return [Spikes(self.cell.linearised(state).s, self.adapts)]


def _diagonal_blocks(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """[[diag a, diag b], [diag c, diag d]] of vectors (B, n)."""
    upper = torch.cat((torch.diag_embed(a), torch.diag_embed(b)), -1)
    lower = torch.cat((torch.diag_embed(c), torch.diag_embed(d)), -1)
    return torch.cat((upper, lower), -2)
