"""Spiking neurons of a few variables each, which weights couple by spikes alone: their derivatives in closed form.

And what isolated neurons say about the radius of a LIF or an ALIF.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.neurons.cell import SURROGATES, Cell, Membrane, ScaledParameter, State, Thresholds, definer
from neurolsc.neurons.derivatives import (
    Derivatives,
    EigenpairHint,
    Factors,
    LinearOperator,
    Matrices,
    StepMap,
    Term,
    lu_factors,
)
from neurolsc.surrogate import FastSigmoid, Surrogate, in_two_methods
from neurolsc.validation import number

Spike = Callable[[Tensor], Tensor]  # of v - theta, returns spikes: a surrogate of ours, or of another library
Range = tuple[float, float]

RECURRENCE = Term(
    "recurrence",
    "scale w_rec down, or dampen the surrogate",
    "scale w_rec up: while a layer hardly fires its surrogate is small",
    "#009e73",
)
RESET = Term("reset", "lower the thresholds", "raise w_rec", "#cc79a7")


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
        self.whole = reduce(torch.add, self.blocks.values())

    def matvec(self, x: Tensor) -> Tensor:
        h = x.unflatten(1, self.slopes.shape[1:])
        current = added(self.slopes * h) @ self.w_rec.T
        return plus_products(self.into * current.unsqueeze(1), self.whole, h).flatten(1)

    def rmatvec(self, y: Tensor) -> Tensor:
        g = y.unflatten(1, self.slopes.shape[1:])
        by_spikes = added(self.into * g) @ self.w_rec
        return plus_products(self.slopes * by_spikes.unsqueeze(1), self.whole.transpose(1, 2), g).flatten(1)

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        h, g = (part.unflatten(1, self.slopes.shape[1:]) for part in (x, y))
        found = {name: (g.unsqueeze(2) * k * h.unsqueeze(1)).sum((1, 2, 3)) for name, k in self.blocks.items()}
        return found | {"recurrence": (added(self.into * g) * (added(self.slopes * h) @ self.w_rec.T)).sum(1)}

    def take(self, index: Tensor) -> "NeuronStep":
        blocks = {name: k[index] for name, k in self.blocks.items()}
        return replace(self, blocks=blocks, slopes=self.slopes[index])


def added(h: Tensor) -> Tensor:
    """The sum over the variables of (P, V, n); without a copy where there is one."""
    return reduce(torch.add, h.unbind(1))


def plus_products(total: Tensor, k: Tensor, h: Tensor) -> Tensor:
    """total (P, R, n) plus K h of all neurons, k (P, R, C, n) and h (P, C, n)."""
    for part, variable in zip(k.unbind(2), h.unbind(1), strict=True):  # faster than all products and their sum
        total = torch.addcmul(total, part, variable.unsqueeze(1))
    return total


class DiagonalBlocks(LinearOperator):
    """Matrices of diagonal blocks k (P, R, C, n), or (1, R, C, n) for all points."""

    def __init__(self, k: Tensor) -> None:
        self.k, self.same = k, len(k) == 1
        self.rows, self.columns = k.shape[1] * k.shape[3], k.shape[2] * k.shape[3]

    def matvec(self, x: Tensor) -> Tensor:
        return (self.k * x.view(len(x), 1, *self.k.shape[2:])).sum(2).flatten(1)

    def rmatvec(self, y: Tensor) -> Tensor:
        return (self.k * y.view(len(y), -1, 1, self.k.shape[3])).sum(1).flatten(1)

    def take(self, index: Tensor) -> "DiagonalBlocks":
        return self if self.same else DiagonalBlocks(self.k[index])


class NeuronDerivatives(Derivatives):
    """The derivatives of a :class:`NeuronCell`; none depends on the input."""

    reads_input = False

    def __init__(self, cell: "NeuronCell") -> None:
        self.cell, self.terms = cell, (*cell.block_terms, RECURRENCE)

    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        step = self.cell.linearised(state)
        shape = (len(step.slopes), step.rows, step.rows)
        terms = {name: torch.diag_embed(k).transpose(2, 3).reshape(shape) for name, k in step.blocks.items()}
        between = torch.einsum("vi,ij,puj->pviuj", step.into, step.w_rec, step.slopes)
        return terms | {"recurrence": between.reshape(shape)}

    def by_input(self, x: Tensor, state: State) -> Tensor:
        return (self.cell.shares().unsqueeze(2) * self.cell.w_in).flatten(0, 1).unsqueeze(0)

    def of_output(self, state: State) -> Tensor:
        return torch.diag_embed(self.cell.slopes(self.cell.spike_derivative(state))).transpose(1, 2).flatten(2)

    def state_map(self, x: Tensor, state: State) -> NeuronStep:
        return self.cell.linearised(state)

    def input_maps(self, x: Tensor, state: State) -> Sequence[LinearOperator]:
        shares = self.cell.shares()
        if len(shares) == 1:
            return super().input_maps(x, state)
        # the narrowest of the operators decides the size of a product with them
        return [Matrices(self.cell.w_in.unsqueeze(0)), DiagonalBlocks(shares[None, :, None])]

    def output_maps(self, state: State) -> Sequence[LinearOperator]:
        return [DiagonalBlocks(self.cell.slopes(self.cell.spike_derivative(state)).unsqueeze(1))]


def uniform(weights: Tensor) -> Tensor:
    """Draw weights (n_hidden, n_in) in place, uniform in ±1/sqrt(n_in)."""
    return nn.init.uniform_(weights, -(weights.shape[1] ** -0.5), weights.shape[1] ** -0.5)


class NeuronCell(Cell):
    r"""Spiking neurons with input and recurrent weights, and derivatives neuron by neuron.

    A subclass has ``state_type``, :meth:`update` and, for derivatives in closed form, the :meth:`blocks` of that step
    in the same class; :meth:`shares` too, unless the first variable takes all of a current.

    Args:
        spike: the surrogate; by default a new ``FastSigmoid()``.
        threshold: the fixed threshold of all neurons, positive; the buffer ``theta`` may be set per neuron. None for
            neurons with another :meth:`distance`.
        initial: what draws the input and the recurrent weights in place.

    Attributes:
        w_in: input weights (n_hidden, n_in), by default uniform in ±1/sqrt(n_in).
        w_rec: recurrent weights (n_hidden, n_hidden), by default orthogonal.
        theta: thresholds (n_hidden,), not trainable.
        variable: the name of the variable of a state that spikes above the threshold.
        block_terms: the terms of :meth:`blocks`, in the order of tables and pictures.
    """

    scaled_parameters = (ScaledParameter("w_in", "depth"), ScaledParameter("w_rec", "time"))
    variable = "u"
    block_terms: tuple[Term, ...] = ()
    operator = NeuronStep
    theta: Tensor

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        spike: Spike | None = None,
        threshold: float | None = 1.0,
        initial: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = (uniform, nn.init.orthogonal_),
    ) -> None:
        super().__init__(n_in, n_hidden)
        self.spike = FastSigmoid() if spike is None else spike_function("spike", spike)
        if threshold is not None:
            self.register_buffer("theta", torch.full((n_hidden,), number("threshold", threshold)))
        self.w_in = nn.Parameter(initial[0](torch.empty(n_hidden, n_in)))
        self.w_rec = nn.Parameter(initial[1](torch.empty(n_hidden, n_hidden)))
        self.recurrent_synapses = n_hidden

    def draw(self, name: str, ends: Range, *, positive: bool = False, in_log: bool = False) -> Range:
        """Draw a parameter, or its logarithm, evenly from a range, the argument ``<name>_range``; return the range."""
        low, high = (float(end) for end in ends)
        if not -math.inf < low <= high < math.inf or (positive and low <= 0):
            wanted = "positive, finite" if positive else "finite"
            raise ValueError(f"{name}_range must be two {wanted} numbers, the lower one first, got {tuple(ends)}.")
        value = torch.empty(self.n_hidden).uniform_(*map(math.log, (low, high)) if in_log else (low, high))
        value = value.exp() if in_log else value
        setattr(self, name, value if hasattr(type(self), name) else nn.Parameter(value))  # the first: a LogParameter
        return low, high

    def distance(self, state: State) -> Tensor:
        """Voltage - threshold (B, n_hidden); a spike where positive."""
        return getattr(state, self.variable) - self.theta

    def output(self, state: State) -> Tensor:
        return self.spike(self.distance(state))

    def current(self, x: Tensor, z: Tensor) -> Tensor:
        """The input of all neurons (B, n_hidden), from x and the own last spikes."""
        return x @ self.w_in.T + z @ self.weights_between().T

    def weights_between(self) -> Tensor:
        """The recurrent weights as they act."""
        return self.w_rec

    def blocks(self, state: State, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        """Named terms of K (P, V, V, n), at spikes z and their derivative s by the voltage, both (P, n)."""
        raise NotImplementedError(f"{type(self).__name__} states no blocks: its derivatives are those of autograd.")

    def shares(self) -> Tensor:
        """The share of a current that each variable takes (V, n_hidden); by default the first takes all."""
        shares = torch.zeros(len(self.state_type._fields), self.n_hidden, **self.dtype_and_device)
        shares[0] = 1
        return shares

    def slopes(self, s: Tensor) -> Tensor:
        """The spikes' derivative by each variable (P, V, n), from that by the voltage (P, n)."""
        return torch.stack([s if n == self.variable else torch.zeros_like(s) for n in self.state_type._fields], 1)

    def spike_derivative(self, state: State) -> Tensor:
        """The spikes' derivative by the voltage (B, n_hidden)."""
        return self.spike.derivative(self.distance(state))  # type: ignore[attr-defined]

    def linearised(self, state: State) -> NeuronStep:
        s = self.spike_derivative(state)
        blocks = self.blocks(state, s, self.output(state).detach())
        return self.operator(blocks, self.slopes(s), self.weights_between(), self.shares())

    def closed_form(self) -> Derivatives | None:
        return NeuronDerivatives(self) if in_two_methods(self.spike) else None

    def subthreshold(self, slope: float | Tensor = 0.0) -> Tensor | None:
        state, silent = self.initial_state(1), torch.zeros(1, self.n_hidden, **self.dtype_and_device)
        membrane = self.membrane()
        if torch.as_tensor(slope).any() and membrane is not None:  # the derivative of a spike is that at the threshold
            state = membrane.moved(state, membrane.thresholds(state) - membrane.voltage(state))
        blocks = self.blocks(state, silent + slope, silent)
        return reduce(torch.add, blocks.values())[0].permute(2, 0, 1)

    def _defined_with_its_step(self, method: str) -> bool:
        # what a class without update says follows from blocks, which stands with update in a class below
        abstract = "update" in definer(type(self), method).__abstractmethods__
        return super()._defined_with_its_step("blocks" if abstract else method)

    def thresholds(self) -> Thresholds | None:
        return Thresholds(self, ("theta",))

    def membrane(self) -> Membrane | None:
        return Membrane(self.variable, lambda _: self.theta, self.spike)

    def config(self) -> dict[str, object]:
        if not isinstance(self.spike, Surrogate):
            raise TypeError(f"only surrogates of neurolsc can be saved, got {self.spike!r}.")
        return super().config() | {"spike": {"name": SURROGATES.name_of(type(self.spike))} | self.spike.config()}


def matrix_of(rows: Sequence[Sequence[Tensor | float]], like: Tensor) -> Tensor:
    """A matrix of neurons (P, V, V, n) from its entries, numbers or broadcast to `like` (P, n)."""
    entries = [e if isinstance(e, Tensor) else like.new_full((), e) for row in rows for e in row]
    return torch.stack([e.expand_as(like) for e in entries], 1).unflatten(1, (len(rows), len(rows)))


def spike_function(name: str, spike: Any) -> Spike:
    """The spike function that an argument of this name passed; TypeError if it is a class, or not callable."""
    if isinstance(spike, type) or not callable(spike):
        got = f"the class {spike.__name__}; write {spike.__name__}()" if isinstance(spike, type) else repr(spike)
        raise TypeError(f"{name} must be a surrogate or another callable of v - theta, got {got}.")
    return spike  # type: ignore[return-value]


# ---- LIF and ALIF

STEPS = 12  # products that bound the norm; from norms of about 0.95 on it takes more
CHANCE = 0.003  # a random start has less than this / sqrt(n) of an eigenvector with a probability of 0.8 times this


class SpikingStep(NeuronStep):
    r"""The derivative of a LIF (v) or an ALIF (v, theta), and what isolated neurons say about its radius.

    Spikes follow v - theta, and a current goes into v alone. Where leaks hold the radius no product is needed. Without
    the weights between neurons, each has a matrix of 2 x 2 for (v, theta); of a LIF the first entry counts, and the
    others are 0:

    .. math::
        D_i = \begin{pmatrix} d_i + o_i & e_i - o_i \\ \beta_i s_i & e^{-1/\tau_{\vartheta,i}} - \beta_i
        s_i \end{pmatrix}, \qquad o_i = (W_{rec,ii} - r_i) s_i,

    and its spikes follow a current of frequency μ with the gain :math:`g_i(\mu) = s_i (1, -1) (\mu - D_i)^{-1} (1,
    0)^T`. A μ that is no eigenvalue of D is one of the whole derivative only if the loop through the weights, :math:`W
    G(\mu)` with W without its diagonal, has the eigenvalue 1. It has none where :math:`\|\hat G^{1/2} W \hat G^{1/2}\|
    < 1` with :math:`\hat g_i \ge |g_i|`. As g falls off outside the circle around all eigenvalues of D, bounds on a
    circle are bounds outside it; if they hold on the circle larger by the tolerance, no eigenvalue lies beyond. That
    the norm is below 1 is shown by three to eight products, with an error probability of about 0.2 %: in a Krylov
    process from a random start x, an eigenvector of an eigenvalue of 1 or more has at most the share :math:`(\sum_k
    p_k(1)^2)^{-1/2}` of x, with the orthonormal polynomials p of the process.
    How far the loop moves the largest eigenvalue itself is estimated at second order: by the residue of g_i times the
    path to the neuron and back.
    """

    def eigenpair_hint(self, right: bool, tolerance: float) -> EigenpairHint:
        """The largest eigenvalue of D, and where it is the radius within a relative tolerance."""
        alone, n = IsolatedNeurons.of(self), len(self.w_rec)
        largest, which = alone.modulus.max(1, keepdim=True)
        gain, tiny = alone.gain((1 + tolerance) * largest), torch.finfo(alone.s.dtype).tiny
        w = self.w_rec - torch.diag(self.w_rec.diagonal())
        middle, root = alone.middle.gather(1, which), alone.root.gather(1, which)
        value = torch.where(middle < 0, middle - root, middle + root)
        # how far the loop moves the eigenvalue, at second order
        slow = (value - alone.decay.gather(1, which)).abs()
        residue = alone.s.abs().gather(1, which) * (slow / (2 * root).clamp(min=tiny))
        there, back = ((part[which.squeeze(1)].square() * gain).sum(1).sqrt() for part in (w, w.T))
        moved = residue.squeeze(1) * there * back
        exists = (largest > 0).squeeze(1) & alone.real.gather(1, which).squeeze(1) & gain.isfinite().all(1)
        exists &= moved <= tolerance / 2 * largest.squeeze(1)
        proven, some = torch.zeros_like(exists), exists.nonzero().squeeze(1)
        if len(some):
            proven[some] = norm_below_one(w, gain[some].sqrt())
        # the eigenvector: (D - value) x = 0, or its transpose, by the larger of two rows
        a, b, c, d = (entry.gather(1, which) for entry in alone.entries)
        b, c = (b, c) if right else (c, b)
        first = (a - value).abs() + b.abs() >= c.abs() + (d - value).abs()
        v, theta = torch.where(first, b, d - value), torch.where(first, value - a, -c)
        size = torch.hypot(v, theta)
        v, theta = torch.where(size > 0, v / size, 1), torch.where(size > 0, theta / size, 0)
        vector = torch.zeros_like(gain[:, :1]).expand(-1, self.columns).scatter(1, which, v)
        if self.columns > n:
            vector = vector.scatter(1, which + n, theta)
        kind = vector.dtype.to_complex()
        return EigenpairHint(value.squeeze(1).to(kind), vector.to(kind), exists, proven)

    def factors(self, shift: Tensor) -> Factors | None:
        r"""A factorisation of an n x n matrix, also where the state has 2 n variables.

        The threshold rows are diagonal: with :math:`u = v - \vartheta` they read :math:`\beta s\,u +
        (e^{-1/\tau_\vartheta} - \lambda)\,\vartheta = b`, so (u, theta) of a neuron is one unknown w times a unit
        vector (p, q) that solves them for b = 0, and what is left is an n x n system in w.
        """
        s, k, coupling = self.slopes[0, 0].detach(), self.whole[0].detach(), self.w_rec.detach().to(shift.dtype)
        if len(k) == 1:
            return lu_factors(coupling * s + torch.diag(k[0, 0] - shift))
        feedback, decay = k[1, 0], k[1, 0] + k[1, 1]
        slow = decay - shift
        norm = (slow.abs().square() + feedback.square()).sqrt().clamp(min=torch.finfo(s.dtype).tiny ** 0.5)
        p, q = slow / norm, -feedback / norm
        fast, cross = k[0, 0] - feedback - shift, k[0, 0] + k[0, 1] - decay
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


class IsolatedNeurons(NamedTuple):
    """The matrices D of all neurons at P points and their two eigenvalues; all (P, N), real."""

    s: Tensor  # derivative of the spikes by the voltage
    decay: Tensor  # retention of the threshold, 0 without one
    entries: tuple[Tensor, Tensor, Tensor, Tensor]  # of D, by rows
    middle: Tensor  # mean of the two eigenvalues
    root: Tensor  # half of their distance, or its imaginary part
    real: Tensor  # bool: True where they are real
    modulus: Tensor  # of the larger one

    @classmethod
    def of(cls, step: SpikingStep) -> "IsolatedNeurons":
        s, k, own = step.slopes[:, 0], step.whole, step.w_rec.diagonal() * step.slopes[:, 0]
        a, b, c, d = k[:, 0, 0] + own, *[torch.zeros_like(own)] * 3
        if k.shape[1] == 2:
            b, c, d = k[:, 0, 1] - own, k[:, 1, 0], k[:, 1, 1]
        middle, square = (a + d) / 2, ((a - d) / 2).square() + b * c
        root, real = square.abs().sqrt(), square >= 0
        modulus = torch.where(real, middle.abs() + root, torch.hypot(middle, root))
        return cls(s, c + d, (a, b, c, d), middle, root, real, modulus)

    def gain(self, radius: Tensor) -> Tensor:
        r"""The largest \|g\| (P, N) on and outside circles (P, 1) that hold all eigenvalues of D.

        On a circle \|g\|² is s² times a number linear in the cosine of the angle by a quadratic one, so that it is
        largest at one of the ends or at a root of a quadratic equation.
        """
        r, decay, total = radius.double(), self.decay.double(), 2 * self.middle.double()
        square = self.root.double().square()
        product = self.middle.double().square() - torch.where(self.real, square, -square)
        # (above - slope c) / (const + linear c + 4 product r^2 c^2)
        above, slope = r.square() + decay.square(), 2 * r * decay
        const = (r.square() - product).square() + (total * r).square()
        linear, quadratic = -2 * total * r * (r.square() + product), 4 * product * r.square()
        half, rest = above * quadratic, slope * const + above * linear
        root = (half.square() + slope * quadratic * rest).clamp(min=0).sqrt()
        far = half + torch.where(half < 0, -root, root)
        one, largest = torch.ones_like(far), torch.zeros_like(far)
        for cosine in (one, -one, far / (slope * quadratic), -rest / far):
            c = cosine.nan_to_num(1).clamp(-1, 1)
            along = (2 * c.square() - 1) * r.square() - c * total * r + product
            across = (1 - c.square()) * (2 * c * r - total).square() * r.square()
            largest = torch.maximum(largest, (above - slope * c) / (along.square() + across))
        return self.s.abs() * largest.sqrt().to(self.s)


def norm_below_one(w: Tensor, root: Tensor) -> Tensor:
    """True where norms of diag(root) w diag(root), root (P, N), are shown to be below 1 (P,)."""
    n, shown = len(w), torch.zeros(len(root), dtype=torch.bool, device=w.device)
    left, generator = torch.arange(len(root), device=w.device), torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=generator, dtype=torch.float64).to(w)
    x = (x / x.norm()).expand(len(root), -1)
    y, tiny = torch.zeros_like(x), torch.finfo(w.dtype).tiny
    back = last = off = x.new_zeros(len(x))  # off the diagonals of the two bidiagonal halves
    phi = total = torch.ones_like(last)
    for _ in range(STEPS):
        y = root * ((root * x) @ w.T) - back.unsqueeze(1) * y
        ahead = y.norm(dim=1)
        y = y / ahead.clamp(min=tiny).unsqueeze(1)
        z = root * ((root * y) @ w) - ahead.unsqueeze(1) * x
        new = z.norm(dim=1)
        # orthonormal polynomials of A^T A at 1, by its tridiagonal matrix
        value = (1 - ahead.square() - back.square()) * phi - off * last
        off = ahead * new
        last, phi = phi, value / off.clamp(min=tiny)
        total = total + phi.square()
        x, back = z / new.clamp(min=tiny).unsqueeze(1), new
        done, out = CHANCE**2 * total >= n, value <= 0  # a sign changes: some eigenvalue is above 1
        shown[left[done & ~out]] = True
        stay = (~done & ~out).nonzero().squeeze(1)
        if not len(stay):
            break
        left, root, x, y = left[stay], root[stay], x[stay], y[stay]
        back, last, phi, total, off = back[stay], last[stay], phi[stay], total[stay], off[stay]
    return shown
