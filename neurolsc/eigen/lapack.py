"""Dense eigenvalues, also of matrices on which LAPACK does not converge."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

R = TypeVar("R")


def eigenvalues(m: Tensor) -> Tensor:
    """All eigenvalues of matrices (..., N, N)."""
    return _converged(torch.linalg.eigvals, m)


def eigenpairs(m: Tensor) -> tuple[Tensor, Tensor]:
    """All eigenvalues, and the right eigenvectors as columns."""
    return _converged(lambda n: tuple(torch.linalg.eig(n)), m)


def _converged(solve: Callable[[Tensor], R], m: Tensor) -> R:
    """A solution; where there is none, that of matrices as near as LAPACK's own error is.

    QR iteration gets stuck on some matrices of equal rows, of which it finds another as easily.
    """
    try:
        return solve(m)
    except RuntimeError:  # torch has no public name for the error of linear algebra
        noise = torch.randn(m.shape, generator=torch.Generator().manual_seed(0), dtype=m.dtype).to(m.device)
        size = torch.linalg.matrix_norm(m, keepdim=True) / m.shape[-1]
        return solve(m + torch.finfo(m.dtype).eps * size * noise)
