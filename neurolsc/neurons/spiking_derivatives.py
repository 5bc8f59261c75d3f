r"""Closed-form derivatives of a LIF or an ALIF, and what isolated neurons say about its radius.

Where leaks hold the radius no product is needed. Without the weights between neurons, each has a matrix of 2 x 2 for
(v, theta); of a LIF the first entry counts, and the others are 0:

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

from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.neurons.blocks import NeuronStep
from neurolsc.neurons.derivatives import Factors, Known, lu_factors

STEPS = 12  # products that bound the norm; from norms of about 0.95 on it takes more
CHANCE = 0.003  # that a random start has so small a part in an eigenvector


class SpikingStep(NeuronStep):
    """The derivative of a LIF (v) or an ALIF (v, theta): spikes follow v - theta, and a current goes into v alone."""

    def known(self, right: bool, tolerance: float) -> Known:
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
        return Known(value.squeeze(1).to(kind), vector.to(kind), exists, proven)

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
