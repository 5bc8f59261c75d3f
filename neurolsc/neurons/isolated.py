r"""Where leaks hold the radius: eigenvalues of neurons alone, and a bound on what all do together.

Alone, when no neuron hears another, a neuron has a matrix of 2 x 2 for (v, theta), or a number,

.. math::
    D_i = \begin{pmatrix} d_i + o_i & e_i - o_i \\ \beta_i s_i & e^{-1/\tau_{\vartheta,i}} - \beta_i
    s_i \end{pmatrix}, \qquad o_i = (W_{rec,ii} - r_i) s_i,

and answers a current of frequency μ with :math:`g_i(\mu) = s_i (1, -1) (\mu - D_i)^{-1} (1, 0)^T`.
A μ that is no eigenvalue of D is one of the whole derivative only if the loop through the weights,
:math:`W G(\mu)` with W without its diagonal, has the eigenvalue 1. It has none where
:math:`\|\hat G^{1/2} W \hat G^{1/2}\| < 1` with :math:`\hat g_i \ge |g_i|`. As g falls off outside
the circle around all eigenvalues of D, bounds on a circle are bounds outside it; taken on the
circle larger by the tolerance they prove that no eigenvalue lies beyond. The norm is shown to be
below 1 as elsewhere by :math:`K_m(1)` of a process that starts at random
(:mod:`neurolsc.stability.arnoldi`), here of a symmetric matrix: three to eight products do.

How far the loop moves the largest eigenvalue itself is estimated at second order: by the residue of
g_i times the path to the neuron and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from neurolsc.neurons.derivatives import Linearised

STEPS = 12
"""of the process that bounds the norm; from norms of about 0.95 on it takes more"""
CHANCE = 0.003
"""that a start drawn at random has so small a part in an eigenvector"""


PARTNERS = 4.0
"""entries that a row is to have at least, for the matrix not to fall into small blocks"""


class Known(NamedTuple):
    """Of an eigenpair of each of P matrices, what is known within the tolerance asked for."""

    value: Tensor
    """(P,) complex"""
    vector: Tensor
    """(P, n) complex, of norm 1; right or left, as was asked for"""
    exists: Tensor
    """(P,) bool: the matrix has such an eigenvalue, within half the tolerance"""
    largest: Tensor
    """(P,) bool: and has none that is larger by the tolerance"""


def has_few(rows: Tensor) -> Tensor:
    r"""Whether rows (..., n) that have any entry have few.

    They have :math:`(\sum_j w_j^2)^2 / \sum_j w_j^4` of them.
    """
    square = rows.square()
    all_of_it, most_of_it = square.sum(-1).square(), square.square().sum(-1)
    return all_of_it < PARTNERS * most_of_it


def hears_few(w: Tensor) -> bool:
    """Whether a neuron that hears any other hears few; where w is square, not counting itself."""
    w = w.detach()
    return bool(has_few(w - torch.diag(w.diagonal()) if len(w) == w.shape[1] else w).any())


class Alone(NamedTuple):
    """The matrices D of all neurons at P points, by their eigenvalues; all (P, N), real."""

    middle: Tensor
    """mean of the two eigenvalues of a neuron"""
    root: Tensor
    """half of what is between them, or its imaginary part"""
    real: Tensor
    """bool: whether they are real"""
    modulus: Tensor
    """of the larger one"""

    @classmethod
    def of(cls, step: Linearised) -> Alone:
        """Those of a derivative."""
        a, b, c, d = entries(step)
        if d is None or b is None or c is None:
            return cls(a, torch.zeros_like(a), torch.ones_like(a, dtype=torch.bool), a.abs())
        middle, half = (a + d) / 2, (a - d) / 2
        square = half.square() + b * c
        root, real = square.abs().sqrt(), square >= 0
        return cls(middle, root, real, torch.where(real, middle.abs() + root, torch.hypot(middle, root)))

    def answer(self, step: Linearised, radius: Tensor) -> Tensor:
        r"""The largest \|g\| (P, N) on and outside circles (P, 1) that hold all eigenvalues of D.

        On a circle \|g\|² is s² times a number linear in the cosine of the angle by a quadratic
        one, so that it is largest at one of the ends or at a root of a quadratic equation.
        """
        s = step.s.abs()
        if step.decay_theta is None:
            return s / (radius - self.modulus)
        r, decay, total = radius.double(), step.decay_theta.double(), 2 * self.middle.double()
        square = self.root.double().square()
        product = self.middle.double().square() - torch.where(self.real, square, -square)
        # (above - slope c) / (const + linear c + 4 product r^2 c^2)
        above, slope = r.square() + decay.square(), 2 * r * decay
        const = (r.square() - product).square() + (total * r).square()
        linear, quadratic = -2 * total * r * (r.square() + product), 4 * product * r.square()
        half, rest = above * quadratic, slope * const + above * linear
        root = (half.square() + slope * quadratic * rest).clamp(min=0).sqrt()
        far = half + torch.where(half < 0, -root, root)
        one = torch.ones_like(far)
        largest = torch.zeros_like(far)
        for cosine in (one, -one, far / (slope * quadratic), -rest / far):
            c = cosine.nan_to_num(1).clamp(-1, 1)
            along = (2 * c.square() - 1) * r.square() - c * total * r + product
            across = (1 - c.square()) * (2 * c * r - total).square() * r.square()
            largest = torch.maximum(largest, (above - slope * c) / (along.square() + across))
        return s * largest.sqrt().to(s)


def entries(step: Linearised) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The entries of D (P, N), by rows; of a LIF only the first."""
    w_rec, s, d, e, r, adaptation, decay_theta = step
    own = (w_rec.diagonal() - r) * s
    if adaptation is None or decay_theta is None:
        return d + own, None, None, None
    feedback = adaptation * s
    return d + own, e - own, feedback, decay_theta - feedback


def held_alone(step: Linearised, right: bool, tolerance: float) -> Known:
    """The largest eigenvalue of D, and where it is the radius within the tolerance.

    Args:
        step: the derivative at P points.
        right: whether eigenvectors of D are asked for, or of its transpose.
        tolerance: relative.
    """
    alone = Alone.of(step)
    largest, which = alone.modulus.max(1, keepdim=True)
    value, vector = _leading(step, alone, which, right)
    radius = (1 + tolerance) * largest
    gain = alone.answer(step, radius)
    w = step.w_rec - torch.diag(step.w_rec.diagonal())
    exists = (largest > 0).squeeze(1) & alone.real.gather(1, which).squeeze(1) & gain.isfinite().all(1)
    exists &= _moved(step, alone, which, w, gain) <= tolerance / 2 * largest.squeeze(1)
    held, some = torch.zeros_like(exists), exists.nonzero().squeeze(1)
    if len(some):
        held[some] = _below_one(w, gain[some].sqrt())
    return Known(value, vector, exists, held)


def _leading(step: Linearised, alone: Alone, which: Tensor, right: bool) -> tuple[Tensor, Tensor]:
    """The eigenvalues of some neurons (P,), and their vectors (P, n)."""
    a, b, c, d = entries(step)
    middle, root = alone.middle.gather(1, which), alone.root.gather(1, which)
    value = torch.where(middle < 0, middle - root, middle + root)
    zeros = torch.zeros_like(a)
    if b is None or c is None or d is None:
        vector = zeros.scatter(1, which, 1)
    else:
        a, b, c, d = (part.gather(1, which) for part in ((a, b, c, d) if right else (a, c, b, d)))
        # (D - value) x = 0 by the larger of its rows
        first = (a - value).abs() + b.abs() >= c.abs() + (d - value).abs()
        v, theta = torch.where(first, b, d - value), torch.where(first, value - a, -c)
        size = torch.hypot(v, theta)
        v, theta = torch.where(size > 0, v / size, 1), torch.where(size > 0, theta / size, 0)
        vector = torch.cat((zeros.scatter(1, which, v), zeros.scatter(1, which, theta)), 1)
    kind = vector.dtype.to_complex()
    return value.squeeze(1).to(kind), vector.to(kind)


def _moved(step: Linearised, alone: Alone, which: Tensor, w: Tensor, gain: Tensor) -> Tensor:
    """How far the loop moves the eigenvalues of some neurons at most (P,), at second order."""
    residue = step.s.abs().gather(1, which).squeeze(1)
    if step.decay_theta is not None:
        middle, root = alone.middle.gather(1, which), alone.root.gather(1, which)
        value = torch.where(middle < 0, middle - root, middle + root)
        apart = (2 * root).clamp(min=torch.finfo(root.dtype).tiny)
        residue = residue * ((value - step.decay_theta[which]).abs() / apart).squeeze(1)
    which = which.squeeze(1)
    there, back = ((part.square() * gain).sum(1).sqrt() for part in (w[which], w.T[which]))
    return residue * there * back


def _below_one(w: Tensor, root: Tensor) -> Tensor:
    """Whether norms of diag(root) w diag(root), root (P, N), are shown to be below 1 (P,)."""
    n, shown = len(w), torch.zeros(len(root), dtype=torch.bool, device=w.device)
    left, x = torch.arange(len(root), device=w.device), _start(n, w).expand(len(root), -1)
    x = x / x.norm(dim=1, keepdim=True)
    y, tiny = torch.zeros_like(x), torch.finfo(w.dtype).tiny
    back = last = total = x.new_zeros(len(x))  # off the diagonals of the two bidiagonal halves
    phi = total = torch.ones_like(last)
    off = torch.zeros_like(last)
    for _ in range(STEPS):
        y = root * ((root * x) @ w.T) - back.unsqueeze(1) * y
        ahead = torch.linalg.vector_norm(y, dim=1)
        y = y / ahead.clamp(min=tiny).unsqueeze(1)
        z = root * ((root * y) @ w) - ahead.unsqueeze(1) * x
        new = torch.linalg.vector_norm(z, dim=1)
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


def _start(n: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, generator=generator, dtype=torch.float64).to(like)
