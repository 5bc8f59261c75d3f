r"""The largest eigenvalue of many matrices at once from their products with vectors: Arnoldi's method.

Each point has a basis of its own, orthogonalised twice; the products of all points are made side by side. A basis grows
until the Ritz value of largest modulus has settled: its residual :math:`\|M x - \lambda x\|` is small and it has hardly
moved since the last look. A basis is never restarted, so nothing that it has found is lost.

Source: Arnoldi 1951; Saad, Numerical Methods for Large Eigenvalue Problems (2011), ch. 6; two passes after Giraud et al. 2005.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

LOOKS = (16, 24, 32, 48, 72, 108)
"""sizes of the basis at which the Ritz values are looked at; it ends at the last, or at half the size of the matrix"""


class Dominant(NamedTuple):
    """The Ritz pairs of largest modulus."""

    value: Tensor
    """(P,) complex"""
    vector: Tensor
    """(P, n) complex, of norm 1"""
    residual: Tensor
    """(P,) norm of M x - value x, relative to the modulus of the value"""
    settled: Tensor
    """(P,) bool: the estimate of the error is within the tolerance"""


def dominant(
    apply: Callable[[Tensor, Tensor], Tensor],
    start: Tensor,
    *,
    residual: float,
    drift: float,
    looks: tuple[int, ...] = LOOKS,
) -> Dominant:
    """Find the eigenvalues of largest modulus.

    Args:
        apply: products of vectors (p, n) with the matrices at points (p,).
        start: where to start (P, n); without symmetry, so that it has a part in every eigenvector.
        residual: the relative residual at which a value has settled,
        drift: if it has moved relatively no more than this since the last look.
        looks: sizes of the basis at which to look, increasing.

    Returns:
        The pairs; where they have not settled at the last look, those of that look.
    """
    points, n = start.shape
    looks = tuple(m for m in looks if 2 * m <= n) or (min(n, looks[0]),)
    found = Dominant(
        torch.zeros(points, dtype=start.dtype.to_complex(), device=start.device),
        torch.zeros(points, n, dtype=start.dtype.to_complex(), device=start.device),
        torch.zeros_like(start[:, 0]),
        torch.zeros(points, dtype=torch.bool, device=start.device),
    )
    left = torch.arange(points, device=start.device)
    basis = torch.nn.functional.normalize(start).unsqueeze(1)
    h = start.new_zeros(points, 1, 0)
    last = start.new_full((points,), float("inf"))
    for before, now in pairwise((0, *looks)):
        basis, h = _grown(lambda x, left=left: apply(x, left), basis, h, before, now)
        values, vectors, misses = _ritz(h)
        moduli = values.abs()
        still = (moduli - last).abs() <= drift * moduli
        done = (misses <= residual) & still
        report = done if now < looks[-1] else torch.ones_like(done)
        at = left[report]
        found.value[at], found.residual[at], found.settled[at] = values[report], misses[report], done[report]
        found.vector[at] = (vectors[report].unsqueeze(1) @ basis[report, :now].to(vectors.dtype)).squeeze(1)
        if report.all():
            break
        left, basis, h, last = (kept[~report] for kept in (left, basis, h, moduli))
    return found


def _grown(apply: Callable[[Tensor], Tensor], basis: Tensor, h: Tensor, before: int, now: int) -> tuple[Tensor, Tensor]:
    """Bases of `before` + 1 vectors and their Hessenberg matrices, grown to `now` + 1."""
    points, n = basis.shape[0], basis.shape[2]
    grown = torch.cat((basis, basis.new_empty(points, now - before, n)), 1)
    h = torch.nn.functional.pad(h, (0, now - before, 0, now - before))
    tiny = 10 * torch.finfo(basis.dtype).eps
    for j in range(before, now):
        w = apply(grown[:, j])
        size = w.norm(dim=1)
        have = grown[:, : j + 1]
        for _ in range(2):  # once is not enough where M w lies nearly within the basis
            along = w.unsqueeze(1) @ have.mT  # a row times a matrix: ten times as fast in torch as the same as columns
            w = w - (along @ have).squeeze(1)
            h[:, : j + 1, j] += along.squeeze(1)
        rest = w.norm(dim=1)
        rest = torch.where(rest > tiny * size, rest, 0)  # breakdown: the basis holds all that this start reaches
        h[:, j + 1, j] = rest
        grown[:, j + 1] = torch.where(rest > 0, 1 / rest, 0).unsqueeze(1) * w
    return grown, h


def _ritz(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values of largest modulus of Hessenberg matrices (P, m+1, m), their vectors (P, m), relative residuals (P,)."""
    if not h.isfinite().all():
        raise FloatingPointError("a product with a derivative holds NaN or infinity.")
    m = h.shape[2]
    square, next_size = h[:, :m].cpu(), h[:, m, m - 1].cpu()
    values = torch.linalg.eigvals(square)
    value = values.gather(1, values.abs().argmax(1, keepdim=True)).squeeze(1)
    modulus, eps = value.abs(), torch.finfo(h.dtype).eps
    # inverse iteration, a third of the cost of all eigenvectors; the residual of the small problem is counted too
    shift = torch.where(value == 0, eps, value * (1 + 4 * eps))
    lu, pivots, _ = torch.linalg.lu_factor_ex(
        square.to(value.dtype) - shift[:, None, None] * torch.eye(m, dtype=value.dtype)
    )
    vector = torch.ones(len(h), m, 1, dtype=value.dtype)
    for _ in range(2):
        vector = torch.nn.functional.normalize(torch.linalg.lu_solve(lu, pivots, vector), dim=1)
    vector = vector.squeeze(2)
    small = ((vector.unsqueeze(1) @ square.mT.to(value.dtype)).squeeze(1) - value.unsqueeze(1) * vector).norm(dim=1)
    miss = next_size * vector[:, -1].abs() + small
    relative = torch.where(modulus > 0, miss / modulus, next_size)
    return value.to(h.device), vector.to(h.device), relative.to(h.device)
