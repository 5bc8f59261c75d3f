r"""Sizes of a matrix, each its own function: the spectral radius and the largest singular value.

The gradient of the radius comes from the left and right eigenvectors y, x of the largest
eigenvalue,

.. math:: \frac{\partial \rho}{\partial M} = \mathrm{Re}\Big(\frac{\bar\lambda}{|\lambda|}\,
          \frac{\bar y x^\top}{y^H x}\Big), \qquad \rho = |\lambda|,

found by inverse iteration from one LU factorisation of :math:`M - \lambda(1 + 4\epsilon) I`. Two
properties are used elsewhere: :math:`\langle \partial\rho/\partial M, M\rangle = \rho` (Euler, the
radius is homogeneous), so the terms of a sum M = A + B + ... share the radius among them; and the
radius of M = 0 has gradient 0.

All of it is done in float64, which takes no longer below 100 rows and twice as long at 500:
eigenvalues of LAPACK are off by about eps times the norm of M times their condition number, which
in float32 is 1 % from a condition number of 1e5 on. Eigenvalues of matrices on a GPU are computed
on the CPU: batched ``eig`` on CUDA is slow in several torch releases.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen.lapack import eigenvalues
from neurolsc.eigen.vectors import start, unit
from neurolsc.neurons.derivatives import lu_factors


class RadiusGradient(NamedTuple):
    """Radii of a batch of matrices with their gradients."""

    radius: Tensor
    """(...) largest eigenvalue modulus"""
    gradient: Tensor
    """(..., N, N) derivative of each radius by its own matrix"""
    capped: int
    """matrices whose y^H x lies below sqrt(eps), nearly defective: their gradient is capped"""


def spectral_radius(m: Tensor) -> Tensor:
    r"""Return the largest eigenvalue modulus of square matrices, differentiable once.

    .. math:: \rho(M) = \max_i |\lambda_i(M)|

    Args:
        m: matrices (..., N, N), float32 or float64, finite.

    Returns:
        One radius per matrix, shape (...), real.

    Raises:
        ValueError: if m is not square (between unequal widths: :func:`largest_singular_value` or
            :func:`random_submatrix`), or holds NaN or infinity.

    Where several eigenvalues share the largest modulus, the gradient is that of one of them; of a
    complex pair, either. Cost: one dense eigenvalue problem per matrix, O(N^3); its gradient adds
    one LU factorisation.

    Example:
        >>> round(spectral_radius(torch.tensor([[0.0, -2.0], [2.0, 0.0]])).item(), 3)
        2.0

    Source: arXiv:2308.12075, Sec. II-A.
    """
    _check_square(m)
    return _SpectralRadius.apply(m)


def radius_and_gradient(m: Tensor) -> RadiusGradient:
    """Return radii, their gradients, and how many gradients are capped.

    The argument is that of :func:`spectral_radius`.
    """
    _check_square(m)
    with torch.no_grad():
        largest = _largest_eigenvalue(m)
        flat, eigenvalues = m.detach().cpu().double().reshape(-1, *m.shape[-2:]), largest.reshape(-1)
        gradient, capped = torch.empty_like(flat), 0
        for i, (matrix, eigenvalue) in enumerate(zip(flat, eigenvalues, strict=True)):
            gradient[i], is_capped = _gradient_of_modulus(matrix, eigenvalue)
            capped += is_capped
    return RadiusGradient(largest.abs().to(m), gradient.reshape(m.shape).to(m), capped)


def largest_singular_value(m: Tensor) -> Tensor:
    r"""Return :math:`\sqrt{\rho(M M^\top)}`, which also exists between unequal widths.

    It is differentiable.

    Args:
        m: matrices (..., M, N).

    Returns:
        Shape (...). It is at least the radius, often far above it: never average the two together.
    """
    return torch.linalg.matrix_norm(m, ord=2)


def random_submatrix(m: Tensor, generator: torch.Generator) -> Tensor:
    """Return square sub-matrices of random rows or columns of the longer side.

    They come in random order, and are drawn for each matrix.

    Args:
        m: matrices (..., M, N).
        generator: source of the choices, on the CPU.

    Returns:
        Shape (..., k, k) with k = min(M, N); m itself where it is square.

    Source: the paper's released code, for derivatives between layers of unequal width; the text is
    silent.
    """
    rows, columns = m.shape[-2:]
    if rows == columns:
        return m
    if rows > columns:
        return random_submatrix(m.mT, generator).mT
    chosen = torch.rand(*m.shape[:-2], columns, generator=generator).argsort(-1)[..., :rows].to(m.device)
    return m.gather(-1, chosen.unsqueeze(-2).expand(*m.shape[:-1], rows))


class _SpectralRadius(torch.autograd.Function):
    @staticmethod
    def forward(ctx, m: Tensor) -> Tensor:  # type: ignore[override]
        if not ctx.needs_input_grad[0]:
            return _largest_eigenvalue(m).abs().to(m)
        radius, gradient, _ = radius_and_gradient(m)
        ctx.save_for_backward(gradient)
        return radius

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        return grad[..., None, None] * gradient


def _largest_eigenvalue(m: Tensor) -> Tensor:
    m = m.detach().cpu().double()
    m = torch.where(m.abs() < torch.finfo(m.dtype).tiny, 0, m)  # LAPACK may not converge with subnormal numbers
    values = eigenvalues(m)
    index = values.abs().argmax(-1, keepdim=True)
    return values.gather(-1, index).squeeze(-1)


def leading_pair(m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The eigenvalue of largest modulus of one matrix (N, N), and x, y (N,) with y^H x = 1.

    They are found in float64, on the CPU.

    Where it is nearly defective y^H x is held above sqrt(eps).
    """
    value = _largest_eigenvalue(m)
    x, y, overlap, _ = _eigenvectors(m.cpu().double(), value)
    return value, x, y / overlap.conj()


def _gradient_of_modulus(m: Tensor, eigenvalue: Tensor) -> tuple[Tensor, bool]:
    """Gradient of |eigenvalue| by one matrix (N, N), and whether it was capped."""
    if eigenvalue == 0:
        return torch.zeros_like(m), False
    x, y, overlap, capped = _eigenvectors(m, eigenvalue)
    return (eigenvalue.conj() / eigenvalue.abs() / overlap * torch.outer(y.conj(), x)).real, capped


def _eigenvectors(m: Tensor, eigenvalue: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
    """x, y (N,) of norm 1, y^H x held above sqrt(eps) in modulus, and whether it had to be.

    They are zeros for the eigenvalue 0.
    """
    n = m.shape[-1]
    if eigenvalue == 0:
        zero = m.new_zeros(n, dtype=eigenvalue.dtype)
        return zero, zero, torch.ones_like(eigenvalue), False
    # the gradient does not depend on the scale, and at scale 1 nothing over- or underflows
    m, eigenvalue = m / eigenvalue.abs(), eigenvalue / eigenvalue.abs()
    eps = torch.finfo(m.dtype).eps
    factors = lu_factors(m.to(eigenvalue.dtype) - eigenvalue * (1 + 4 * eps) * torch.eye(n, dtype=eigenvalue.dtype))
    x = y = start(n, eigenvalue)
    for _ in range(2):
        x = unit(factors.solve(x))
        y = unit(factors.solve_adjoint(y))
    overlap = torch.vdot(y, x)
    floor = eps**0.5
    capped = bool(overlap.abs() < floor)
    if capped:
        overlap = floor * (overlap / overlap.abs() if overlap != 0 else torch.ones_like(overlap))
    return x, y, overlap, capped


def _check_square(m: Tensor) -> None:
    if m.ndim < 2 or m.shape[-2] != m.shape[-1]:
        raise ValueError(
            f"a spectral radius needs square matrices (..., N, N), got {tuple(m.shape)}; between unequal widths use "
            "largest_singular_value or random_submatrix."
        )
    if not m.isfinite().all():
        raise ValueError(f"a spectral radius needs finite matrices, got NaN or infinity in {tuple(m.shape)}.")
