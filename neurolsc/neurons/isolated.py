r"""Where leaks hold the radius: eigenvalues of isolated neurons, and a bound on the whole layer.

Without the weights between neurons, each has a matrix of 2 x 2 for (v, theta), or a number,

.. math::
    D_i = \begin{pmatrix} d_i + o_i & e_i - o_i \\ \beta_i s_i & e^{-1/\tau_{\vartheta,i}} - \beta_i
    s_i \end{pmatrix}, \qquad o_i = (W_{rec,ii} - r_i) s_i,

and its spikes follow a current of frequency μ with the gain :math:`g_i(\mu) = s_i (1, -1) (\mu - D_i)^{-1} (1, 0)^T`. A
μ that is no eigenvalue of D is one of the whole derivative only if the loop through the weights, :math:`W G(\mu)` with
W without its diagonal, has the eigenvalue 1. It has none where :math:`\|\hat G^{1/2} W \hat G^{1/2}\| < 1` with
:math:`\hat g_i \ge |g_i|`. As g falls off outside the circle around all eigenvalues of D, bounds on a circle are bounds
outside it; taken on the circle larger by the tolerance they prove that no eigenvalue lies beyond. That the norm is
below 1 is shown by a Krylov process from a random start, whose orthonormal polynomials at 1 bound the part of the start
in eigenvectors beyond: three to eight products do.

How far the loop moves the largest eigenvalue itself is estimated at second order: by the residue of g_i times the path
to the neuron and back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from neurolsc.neurons.derivatives import SpikingStep

STEPS = 12  # products that bound the norm; from norms of about 0.95 on it takes more
CHANCE = 0.003  # that a random start has so small a part in an eigenvector


class Known(NamedTuple):
    """An eigenpair of each of P matrices, and what of it is certain within the tolerance."""

    value: Tensor  # (P,) complex
    vector: Tensor  # (P, n) complex, of norm 1; a right or a left eigenvector
    exists: Tensor  # (P,) bool: the matrix has such an eigenvalue, within half the tolerance
    largest: Tensor  # (P,) bool: and has none that is larger by the tolerance


class IsolatedNeurons(NamedTuple):
    """The matrices D of all neurons at P points, by their two eigenvalues; all (P, N), real."""

    middle: Tensor  # mean of the two eigenvalues
    root: Tensor  # half of their distance, or its imaginary part
    real: Tensor  # bool: True where they are real
    modulus: Tensor  # of the larger one

    @classmethod
    def of(cls, step: SpikingStep) -> IsolatedNeurons:
        a, b, c, d = _entries(step)
        if step.decay_theta is None:
            return cls(a, torch.zeros_like(a), torch.ones_like(a, dtype=torch.bool), a.abs())
        middle, square = (a + d) / 2, ((a - d) / 2).square() + b * c
        root, real = square.abs().sqrt(), square >= 0
        return cls(middle, root, real, torch.where(real, middle.abs() + root, torch.hypot(middle, root)))

    def leading(self, which: Tensor) -> Tensor:
        """The larger eigenvalue of some neurons (P, 1), where it is real."""
        middle, root = self.middle.gather(1, which), self.root.gather(1, which)
        return torch.where(middle < 0, middle - root, middle + root)

    def gain(self, step: SpikingStep, radius: Tensor) -> Tensor:
        r"""The largest \|g\| (P, N) on and outside circles (P, 1) that hold all eigenvalues of D.

        On a circle \|g\|² is s² times a number linear in the cosine of the angle by a quadratic one, so that it is
        largest at one of the ends or at a root of a quadratic equation.
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
        one, largest = torch.ones_like(far), torch.zeros_like(far)
        for cosine in (one, -one, far / (slope * quadratic), -rest / far):
            c = cosine.nan_to_num(1).clamp(-1, 1)
            along = (2 * c.square() - 1) * r.square() - c * total * r + product
            across = (1 - c.square()) * (2 * c * r - total).square() * r.square()
            largest = torch.maximum(largest, (above - slope * c) / (along.square() + across))
        return s * largest.sqrt().to(s)


def _entries(step: SpikingStep) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    # of D (P, N), by rows; of a LIF the first, and zeros
    own = (step.w_rec.diagonal() - step.r) * step.s
    if step.adaptation is None or step.decay_theta is None:
        zero = torch.zeros_like(own)
        return step.d + own, zero, zero, zero
    feedback = step.adaptation * step.s
    return step.d + own, step.e - own, feedback, step.decay_theta - feedback


def isolated_radius(step: SpikingStep, right: bool, tolerance: float) -> Known:
    """The largest eigenvalue of D, and where it is the radius within a relative tolerance; right or left vectors."""
    alone = IsolatedNeurons.of(step)
    largest, which = alone.modulus.max(1, keepdim=True)
    gain = alone.gain(step, (1 + tolerance) * largest)
    w = step.w_rec - torch.diag(step.w_rec.diagonal())
    # how far the loop moves the eigenvalue, at second order
    value = alone.leading(which)
    residue = step.s.abs().gather(1, which)
    if step.decay_theta is not None:
        apart = (2 * alone.root.gather(1, which)).clamp(min=torch.finfo(gain.dtype).tiny)
        residue = residue * ((value - step.decay_theta[which]).abs() / apart)
    there, back = ((part[which.squeeze(1)].square() * gain).sum(1).sqrt() for part in (w, w.T))
    moved = residue.squeeze(1) * there * back

    exists = (largest > 0).squeeze(1) & alone.real.gather(1, which).squeeze(1) & gain.isfinite().all(1)
    exists &= moved <= tolerance / 2 * largest.squeeze(1)
    proven, some = torch.zeros_like(exists), exists.nonzero().squeeze(1)
    if len(some):
        proven[some] = _norm_below_one(w, gain[some].sqrt())
    vector = _eigenvectors(step, which, value, right)
    kind = vector.dtype.to_complex()
    return Known(value.squeeze(1).to(kind), vector.to(kind), exists, proven)


def _eigenvectors(step: SpikingStep, which: Tensor, value: Tensor, right: bool) -> Tensor:
    """The eigenvectors (P, S) of the values (P, 1) of some neurons."""
    zeros = torch.zeros_like(step.s)
    if step.decay_theta is None:
        return zeros.scatter(1, which, 1)
    a, b, c, d = _entries(step)
    a, b, c, d = (part.gather(1, which) for part in ((a, b, c, d) if right else (a, c, b, d)))
    # (D - value) x = 0 by the larger of its rows
    first = (a - value).abs() + b.abs() >= c.abs() + (d - value).abs()
    v, theta = torch.where(first, b, d - value), torch.where(first, value - a, -c)
    size = torch.hypot(v, theta)
    v, theta = torch.where(size > 0, v / size, 1), torch.where(size > 0, theta / size, 0)
    return torch.cat((zeros.scatter(1, which, v), zeros.scatter(1, which, theta)), 1)


def _norm_below_one(w: Tensor, root: Tensor) -> Tensor:
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
