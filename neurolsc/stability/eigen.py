r"""Largest eigenvalues of matrices: the spectral radius, and its gradient.

The gradient of the radius comes from the left and right eigenvectors y, x of the largest eigenvalue,

.. math:: \frac{\partial \rho}{\partial M} = \mathrm{Re}\Big(\frac{\bar\lambda}{|\lambda|}\,
          \frac{\bar y x^\top}{y^H x}\Big), \qquad \rho = |\lambda|,

found by inverse iteration from one LU factorisation of :math:`M - \lambda(1 + 4\epsilon) I`. As the radius is
homogeneous, :math:`\langle \partial\rho/\partial M, M\rangle = \rho` (Euler): the terms of a sum M = A + B + ...
share the radius among them. M = 0 has gradient 0.

:func:`spectral_radius` and :func:`leading_pair` run in float64 on the CPU: an eigenvalue of LAPACK is off by about eps
times the norm of M times the eigenvalue's condition number :math:`1 / |y^H x|`, for unit vectors x and y. In float32
that is 1 % from a condition number of 1e5 on.

For many small matrices (:func:`dominant_pairs`) and for larger ones (:func:`bounded_radius`) squaring is faster:
:math:`H^{2^k}` turns any vector into the eigenvectors of the eigenvalue of largest modulus, and its trace and norm
bound the radius from both sides.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.neurons.derivatives import lu_factors
from neurolsc.surroundings import in_full_precision

# Squarings in each of two rounds: after 9, the share of an eigenvector whose eigenvalue is 1.4 % smaller has fallen to
# a thousandth.
SQUARINGS = (9, 9)
FEW = 16  # up to so many matrices are squared in one round: pairs between rounds take longer than nine squarings
SMALLEST_MISS = 1e-3  # largest relative residual times condition number of the pairs by squaring
FIRST_BOUND = 8  # number of squarings from which on bounds are compared
LAST_BOUND = 12  # largest number of squarings: each halves the distance of the bounds at best, and costs two products
SINGLE_ERROR = 2**-9  # more than the error of products in float32, or TF32 on a GPU, of factors of norm 1


class Dominant(NamedTuple):
    """Eigenpairs of largest modulus of P matrices."""

    value: Tensor  # (P,) complex
    vector: Tensor  # (P, n) complex, of norm 1
    settled: Tensor  # (P,) bool: found within the tolerance


@in_full_precision
def spectral_radius(m: Tensor) -> Tensor:
    r"""Return the largest eigenvalue modulus of square matrices, differentiable once.

    .. math:: \rho(M) = \max_i |\lambda_i(M)|

    Args:
        m: matrices (..., N, N), float32 or float64, finite.

    Returns:
        One radius per matrix, shape (...), real.

    Raises:
        ValueError: if m is not square, or holds NaN or infinity.

    Where several eigenvalues share the largest modulus, the gradient is that of one of them. Cost: one dense eigenvalue
    problem per matrix, O(N^3); its gradient adds one LU factorisation.

    Example:
        >>> round(spectral_radius(torch.tensor([[0.0, -2.0], [2.0, 0.0]])).item(), 3)
        2.0

    Source: arXiv:2308.12075, Sec. II-A.
    """
    if m.ndim < 2 or m.shape[-2] != m.shape[-1]:
        raise ValueError(f"a spectral radius needs square matrices (..., N, N), got {tuple(m.shape)}.")
    if not m.isfinite().all():
        raise ValueError(f"a spectral radius needs finite matrices, got NaN or infinity in {tuple(m.shape)}.")
    return _SpectralRadius.apply(m)


def leading_pair(m: Tensor, value: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the eigenvalue of largest modulus of M (N, N), its right and its left eigenvector x, y (N,).

    All are complex128, on the CPU. The vectors are scaled to y^H x = 1. Where M is nearly defective, |y^H x| of the
    unit vectors counts as at least sqrt(eps). If the eigenvalue is 0, so are the vectors. Pass `value` if it is
    known.
    """
    m = m.detach().cpu().double()
    if value is None:
        value = _largest_eigenvalue(m)
    if value == 0:
        zeros = torch.zeros_like(m[0], dtype=value.dtype)
        return value, zeros, zeros
    eps = torch.finfo(m.dtype).eps
    modulus = value.abs()
    # The shift is a few roundings away from the eigenvalue, since at the eigenvalue itself the matrix is singular. The
    # eigenvectors do not depend on the scale of M, and at modulus 1 nothing over- or underflows.
    shift = value / modulus * (1 + 4 * eps)
    factors = lu_factors(m / modulus - shift * torch.eye(len(m), dtype=value.dtype))
    x = y = start(len(m), value)
    for _ in range(2):  # the second solution removes what the first leaves of nearly equal eigenvalues
        x = unit(factors.solve(x))
        y = unit(factors.solve_adjoint(y))
    overlap = torch.vdot(y, x)
    if overlap.abs() < eps**0.5:  # nearly defective: cap the gradient y x^T / overlap, and keep its phase
        if overlap == 0:
            phase = torch.ones_like(overlap)
        else:
            phase = overlap / overlap.abs()
        overlap = eps**0.5 * phase
    return value, x, y / overlap.conj()


class _SpectralRadius(torch.autograd.Function):
    """The radii of matrices (..., N, N); the forward pass computes the gradient too, where it is wanted."""

    @staticmethod
    def forward(ctx, m: Tensor) -> Tensor:  # type: ignore[override]
        value = _largest_eigenvalue(m)
        radius = value.abs().to(m)
        if not ctx.needs_input_grad[0]:
            return radius
        matrices = m.detach().cpu().double().reshape(-1, *m.shape[-2:])
        tiny = torch.finfo(value.dtype).tiny
        gradients = []
        for matrix, eigenvalue in zip(matrices, value.reshape(-1), strict=True):
            _, x, y = leading_pair(matrix, eigenvalue)
            phase = eigenvalue.conj() / eigenvalue.abs().clamp(min=tiny)  # 0 for an eigenvalue 0
            gradients.append((phase * torch.outer(y.conj(), x)).real)
        ctx.save_for_backward(torch.stack(gradients).reshape(m.shape).to(m))
        return radius

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        return grad[..., None, None] * gradient


def _largest_eigenvalue(m: Tensor) -> Tensor:
    """The eigenvalues of largest modulus of matrices (..., N, N): (...), complex, in float64 on the CPU."""
    m = m.detach().cpu().double()
    m = torch.where(m.abs() < torch.finfo(m.dtype).tiny, 0, m)  # LAPACK may not converge with subnormal numbers
    values = _retried(torch.linalg.eigvals, m)
    largest = values.abs().argmax(-1, keepdim=True)
    return values.gather(-1, largest).squeeze(-1)


def _retried(solve: Callable[[Tensor], Any], m: Tensor) -> Any:
    """Return what LAPACK's `solve` returns for matrices m, with noise of rounding's size if it does not converge."""
    try:
        return solve(m)
    except RuntimeError:  # QR iteration gets stuck on some matrices of equal rows, and the noise frees it
        noise = torch.randn(m.shape, generator=torch.Generator().manual_seed(0), dtype=m.dtype).to(m.device)
        size = torch.linalg.matrix_norm(m, keepdim=True) / m.shape[-1]
        return solve(m + torch.finfo(m.dtype).eps * size * noise)


# ---- by squaring


def dominant_pairs(h: Tensor, miss: float = SMALLEST_MISS) -> tuple[Tensor, Tensor, Tensor]:
    """Return eigenpairs of largest modulus of many small real matrices (P, m, m), ten times as fast as LAPACK.

    They come from high powers of the matrices. Pairs whose relative residual times condition number is above `miss`, as
    where more than two eigenvalues share the modulus, and pairs of value 0 are left to LAPACK.

    Returns:
        The values (P,), vectors (P, m) of norm 1, and condition numbers 1 / |y^H x| (P,).
    """
    value = h.new_zeros(len(h), dtype=h.dtype.to_complex())
    vector = h.new_zeros(h.shape[:2], dtype=value.dtype)
    condition = h.new_ones(len(h))
    left = torch.arange(len(h), device=h.device)  # the matrices whose pair is still to be found
    power = h
    rounds = SQUARINGS
    if len(h) <= FEW:
        rounds = (sum(SQUARINGS),)
    for squarings in rounds:
        for i in range(squarings):
            # Three squarings take a radius of 1e-4 of the norm to 1e-32, which float32 still holds.
            if i % 3 == 0:
                size = torch.linalg.matrix_norm(power)[:, None, None]
                power = power / size.clamp(min=torch.finfo(power.dtype).tiny)
            power = power @ power
        value[left], vector[left], residual = pairs_of(h, power)
        _, left_vector, _ = pairs_of(h.mT, power.mT, value[left])  # of the transpose: the left one, conjugated
        condition[left] = _condition(vector[left], left_vector)
        accurate = residual * condition[left] <= miss * value[left].abs()  # False for NaN
        again = ~accurate | (value[left] == 0)  # 0 may come from a power that underflowed
        left = left[again]
        h = h[again]
        power = power[again]
        if not len(left):
            return value, vector, condition
    # what squaring has not found
    found, x = _pairs_by_lapack(h)
    _, y = _pairs_by_lapack(h.mT, found)
    value[left] = found.to(h.device)
    vector[left] = x.to(h.device)
    condition[left] = _condition(x, y).to(h.device)
    return value, vector, condition


def _condition(x: Tensor, y: Tensor) -> Tensor:
    """Condition numbers 1 / |y^H x| of eigenvalues (P,), from right unit vectors x and conjugated left ones y (P, m).

    They are 1 where a vector is 0.
    """
    overlap = (x * y).sum(1).abs().clamp(min=torch.finfo(x.dtype).tiny)
    return torch.where(x.any(1) & y.any(1), 1 / overlap, 1)


def _pairs_by_lapack(h: Tensor, near: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Eigenvalues of largest modulus (P,), or those nearest to `near` (P,), and their vectors (P, m), on the CPU."""
    values, vectors = _retried(torch.linalg.eig, h.cpu())
    if near is None:
        distance = -values.abs()  # the smallest is that of the largest modulus
    else:
        distance = (values - near.unsqueeze(1)).abs()
    chosen = distance.argmin(1, keepdim=True)
    return values.gather(1, chosen).squeeze(1), vectors.take_along_dim(chosen[:, None], 2).squeeze(2)


def pairs_of(h: Tensor, power: Tensor, near: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return eigenpairs of matrices (P, m, m) from high powers of them, and the norms of their residuals.

    A high power of h maps a random start x to the eigenvector of largest modulus. If two eigenvalues share the largest
    modulus, as a complex pair or +a and -a do, x ends in the plane of their eigenvectors. On the plane of x and its
    image h x the matrix has two eigenvalues. The one of larger modulus is returned, or the one nearer to `near` (P,).
    Where x alone has the smaller residual, x is returned with the value x^T h x.

    Returns:
        Values (P,), complex, right vectors of norm 1 (P, m), and norms of the residuals (P,).
    """
    x = unit(power @ start(h.shape[1], h))
    h_x = rows_times(x, h.mT)
    along = (x * h_x).sum(1)
    rest = h_x - along[:, None] * x
    y = unit(rest)
    h_y = rows_times(y, h.mT)
    # On the orthonormal x and y, h is [[along, back], [out, across]], with the eigenvalues middle - root and + root.
    back = (x * h_y).sum(1)
    out = norm(rest)
    across = (y * h_y).sum(1)
    middle = (along + across) / 2
    half = (along - across) / 2
    root = (half.square() + back * out).to(h.dtype.to_complex()).sqrt()
    if near is None:
        minus = middle < 0  # then middle - root is the larger one
    else:
        minus = (middle - root - near).abs() < (middle + root - near).abs()
    pair = middle + torch.where(minus, -root, root)
    vector = unit((pair - across)[:, None] * x + out[:, None] * y)
    miss = norm(rows_times(vector, h.mT) - pair[:, None] * vector)
    single = out <= miss  # x has the smaller residual: it is an eigenvector by itself, and y is noise
    value = torch.where(single, along, pair)
    return value, torch.where(single[:, None], x, vector), torch.where(single, out, miss)


def bounded_radius(m: Tensor, tolerance: float) -> Dominant:
    r"""Find the radii of real matrices (P, N, N) between two bounds, which repeated squaring brings together.

    For k = 2, 4, 8, ... the radius of any matrix is bounded by

    .. math:: \Big(\frac{|\mathrm{tr}\, M^k|}{N}\Big)^{1/k} \le \rho(M) \le \|M^k\|_F^{1/k},

    so hundreds of eigenvalues near the largest do no harm: after ten squarings a factor of 10,000 between trace and
    norm is 0.9 % of the radius. The bounds do not meet where the trace is 0, as for a cycle through all neurons, or
    where rounding takes the digits, as for powers of a Jordan block. The error of rounding has a bound, too. If D is
    the error of the computed power A, scaled to norm 1, and :math:`c = \|A^2\|_F`, the next power has the error D':

    .. math:: \|D'\|_F \le (2 \|A\|_2 \|D\|_F + \|D\|_F^2 + N \epsilon) / c, \qquad
              \|A\|_2^2 \le \|A A^\top\|_F.

    Powers are squared in float64; the bound of :math:`\|A\|_2` is computed in float32. All this takes a fifth to a half
    of the time of LAPACK.

    Args:
        m: the matrices.
        tolerance: largest relative distance of the two bounds at which a radius is settled.

    Returns:
        Eigenvalues whose modulus is the radius, and their right vectors, in complex128; ``settled`` is True where the
        bounds have met. Elsewhere values and vectors are 0.

    Source: I. M. Gelfand 1941, for the norms; N. J. Higham, Accuracy and Stability of Numerical Algorithms (2002),
    ch. 3, for the rounding of a product.
    """
    matrices = m.double()
    n = m.shape[1]
    width = math.log1p(tolerance)  # distance of the bounds' logarithms at which a radius is settled
    vector = torch.zeros_like(matrices[:, 0], dtype=torch.complex128)
    found = Dominant(vector[:, 0].clone(), vector, torch.zeros(len(m), dtype=torch.bool, device=m.device))
    left = torch.arange(len(m), device=m.device)  # the matrices that are not settled
    size = torch.linalg.matrix_norm(matrices)
    power = matrices / size[:, None, None]
    log = size.log()  # of the k-th root of the norm of M^k
    error = torch.zeros_like(log)  # bound of |D|
    for i in range(1, LAST_BOUND + 1):
        single = power.float()
        stretch = (torch.linalg.matrix_norm(single @ single.mT) + SINGLE_ERROR).sqrt()  # at least the 2-norm of A
        power = power @ power
        size = torch.linalg.matrix_norm(power)
        power = power / size[:, None, None]
        log = log + size.log() / 2**i
        error = (2 * stretch * error + error.square() + n * torch.finfo(error.dtype).eps) / size
        if i < FIRST_BOUND:
            continue
        trace = power.diagonal(dim1=1, dim2=2).sum(1).abs()
        upper = log + error.log1p() / 2**i
        lower = log + ((trace - n**0.5 * error) / n).log() / 2**i  # NaN where rounding may be larger than the trace
        near = torch.minimum(log + trace.log() / 2**i, upper).exp()  # exact where one eigenvalue is left
        distance = upper - lower
        met = distance <= width  # False for NaN
        where = left[met]
        value, found.vector[where], _ = pairs_of(matrices[where], power[met])
        found.value[where] = torch.polar(near[met], value.angle())
        found.settled[where] = True
        # A squaring halves the distance at best: go on only where those to come can close it.
        reachable = distance <= 2 ** (LAST_BOUND - i) * width
        more = (~met & reachable).nonzero().squeeze(1)
        left = left[more]
        power = power[more]
        log = log[more]
        error = error[more]
        if not len(left):
            break
    return found


# ---- vectors


def rows_times(x: Tensor, m: Tensor) -> Tensor:
    """Rows x (P, n), real or complex, times real matrices M (P, n, k); shape (P, k).

    A row times a matrix is ten times as fast in torch as a matrix times a column.
    """
    if x.is_complex():
        parts = torch.stack((x.real, x.imag), 1) @ m
        return torch.complex(*parts.unbind(1))
    return (x.unsqueeze(1) @ m).squeeze(1)


def norm(x: Tensor) -> Tensor:
    """The 2-norms of vectors (..., n), real or complex: (...)."""
    return torch.linalg.vector_norm(_as_reals(x), dim=-1)  # fifty times as fast as of complex numbers


def unit(x: Tensor) -> Tensor:
    """Vectors (..., n) of any size scaled to norm 1; zeros stay zeros."""
    tiny = torch.finfo(x.dtype).tiny
    # Scaled to a largest entry of 1 first: the square of 1e20 is infinite in float32.
    x = x / _as_reals(x).abs().amax(-1, keepdim=True).clamp(min=tiny)
    return x / norm(x).unsqueeze(-1).clamp(min=tiny)


def _as_reals(x: Tensor) -> Tensor:
    """Vectors (..., n) as real ones; complex ones as real and imaginary parts (..., 2 n)."""
    if x.is_complex():
        return torch.view_as_real(x).flatten(-2)
    return x


def start(n: int, like: Tensor) -> Tensor:
    """Draw a Gaussian vector (n,), the same at each call with this n, with the dtype and device of a tensor."""
    if like.is_complex():
        dtype = torch.complex128
    else:
        dtype = torch.float64
    return torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=dtype).to(like)
