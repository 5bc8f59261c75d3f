r"""Eigenvectors of a dominant eigenvalue, left and right.

And with them the gradient of its modulus by the parameters.

With M x = λ x and y^H M = λ y^H held fixed,

.. math:: \rho = \mathrm{Re}\Big(\frac{\bar\lambda}{|\lambda|}\,\frac{y^H M x}{y^H x}\Big)

has the value and the gradient of the radius as a function of the parameters behind M, so that one
product with M, differentiated, gives the gradient of all of them. The pairs come from a start near
by two-sided Rayleigh quotient iteration, whose error is cubed at each step; one matrix of one point
is factorised at a time. Of matrices too large for that they come from two Arnoldi bases, of M and
of its transpose.

Source: Ostrowski 1959; Parlett, Math. Comp. 28 (1974).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.krylov import Dominant
from neurolsc.eigen.maps import Cycle
from neurolsc.eigen.vectors import start, unit

_STEPS = 6


class Pairs(NamedTuple):
    """An eigenvalue of each of P matrices with its eigenvectors, scaled so that y^H x = 1."""

    value: Tensor
    """(P,) complex"""
    right: Tensor
    """x (P, n) complex"""
    left: Tensor
    """y (P, n) complex"""
    found: Tensor
    """(P,) bool: whether the iteration has arrived"""


def pairs_near(cycle: Cycle, values: Tensor, lefts: Tensor) -> Pairs:
    """Eigenvalues near the given ones (P,), from approximate left eigenvectors (P, n).

    They are found one point after the other.
    """
    right, left, found, new = torch.zeros_like(lefts), lefts.clone(), [], values.clone()
    for i in range(cycle.points):
        one = _pair_near(cycle, i, values[i], lefts[i])
        found.append(one is not None)
        if one is not None:
            new[i], right[i], left[i] = one
    return Pairs(new, right, left, torch.tensor(found, device=values.device))


def matched(right: Dominant, left: Dominant, tolerance: float) -> Pairs:
    """Right and left vectors from two bases, as pairs.

    They are pairs where they have settled and agree on the eigenvalue.
    """
    value, y = right.value, left.vector
    swap = (left.value.conj() - value).abs() < (left.value - value).abs()  # the other of a complex pair
    other = torch.where(swap, left.value.conj(), left.value)
    y = torch.where(swap.unsqueeze(1), y.conj(), y)
    overlap = (right.vector.conj() * y).sum(1)
    found = right.settled & left.settled & ((other - value).abs() <= tolerance * value.abs())
    found &= (overlap.abs() > torch.finfo(y.dtype).eps ** 0.5) | (value == 0)
    return Pairs(value, right.vector, y / torch.where(overlap == 0, 1, overlap).unsqueeze(1), found)


def _pair_near(cycle: Cycle, point: int, value: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    if value == 0:
        return value, torch.zeros_like(y), torch.zeros_like(y)  # the gradient of a zero matrix is 0
    like = y.real
    if value.imag == 0:
        value, y = value.real, like / like.norm()
    one, eps = cycle.take(torch.tensor([point], device=y.device)), torch.finfo(like.dtype).eps
    x = start(len(y), y)
    enough, good = eps**0.75, eps**0.5
    miss = torch.full_like(x[0].real, torch.inf)
    for step in range(_STEPS):
        factors = cycle.factors(point, value * (1 + 4 * eps), like)
        x = unit(factors.solve(x))
        if step == 0:  # y comes near already
            x = unit(factors.solve(x))
        y = unit(factors.solve_adjoint(y))
        overlap = torch.vdot(y, x)
        if not overlap.abs() > good:  # nearly defective
            return None
        m_x, m_y = _product(one.matvec, x), _product(one.rmatvec, y)
        value = torch.vdot(y, m_x) / overlap
        miss = max((m_x - value * x).norm(), (m_y - value.conj() * y).norm()) / value.abs()
        if miss <= enough:
            break
    if not miss <= good:
        return None
    return value, x, y / torch.vdot(x, y)


def modulus(cycle: Cycle, pairs: Pairs) -> Tensor:
    """The moduli of the eigenvalues (P,), differentiable by the parameters behind the products."""
    x, y = pairs.right, pairs.left
    by_real, by_imaginary = cycle.rmatvec(y.real.contiguous()), cycle.rmatvec(y.imag.contiguous())
    real = (by_real * x.real + by_imaginary * x.imag).sum(1)
    imaginary = (by_real * x.imag - by_imaginary * x.real).sum(1)
    phase = torch.where(pairs.value == 0, 0, pairs.value / pairs.value.abs())
    return phase.real * real + phase.imag * imaginary


def _product(apply: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if not x.is_complex():
        return apply(x.unsqueeze(0)).squeeze(0)
    return torch.complex(apply(x.real.unsqueeze(0)), apply(x.imag.unsqueeze(0))).squeeze(0)
