r"""Largest eigenvalues of matrices: the spectral radius, and its gradient.

The gradient of the radius comes from the left and right eigenvectors y, x of the largest eigenvalue,

.. math:: \frac{\partial \rho}{\partial M} = \mathrm{Re}\Big(\frac{\bar\lambda}{|\lambda|}\,
          \frac{\bar y x^\top}{y^H x}\Big), \qquad \rho = |\lambda|,

found by inverse iteration from one LU factorisation of :math:`M - \lambda(1 + 4\epsilon) I`. As the radius is
homogeneous, :math:`\langle \partial\rho/\partial M, M\rangle = \rho` (Euler): the terms of a sum M = A + B + ...
share the radius among them. M = 0 has gradient 0.

These run in float64 on the CPU: an eigenvalue of LAPACK is off by about eps times the norm of M times the eigenvalue's
condition number :math:`1 / |y^H x|`, in float32 by 1 % from a condition number of 1e5 on.

Many small matrices (:func:`dominant_pairs`) and larger ones (:func:`bounded_radius`) go faster by squaring:
:math:`H^{2^k}` turns any vector into the eigenvectors of the eigenvalue of largest modulus, and its trace and norm
bound the radius from both sides.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.neurons.derivatives import lu_factors

# Squarings in two rounds: after 9 an eigenvalue that is 1.4 % smaller has left a thousandth of itself.
SQUARINGS = (9, 9)
SMALLEST_MISS = 1e-3  # relative residual times condition number of the pairs by squaring
FIRST_BOUND, LAST_BOUND = 8, 12  # numbers of squarings between which bounds are compared
SINGLE_ERROR = 2**-9  # more than the error of products in float32, or TF32 on a GPU, of factors of norm 1


class Dominant(NamedTuple):
    """Eigenpairs of largest modulus of P matrices."""

    value: Tensor  # (P,) complex
    vector: Tensor  # (P, n) complex, of norm 1
    settled: Tensor  # (P,) bool: found within the tolerance


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
    """The eigenvalue of largest modulus of a matrix M (N, N), with its right and left eigenvectors x, y (N,).

    They are scaled to y^H x = 1; where M is nearly defective, as if y^H x of unit vectors were at least sqrt(eps). Of
    M = 0 they are zeros. A value that is given is taken as that eigenvalue.
    """
    m = m.detach().cpu().double()
    value = _largest_eigenvalue(m) if value is None else value
    if value == 0:
        return value, torch.zeros_like(m[0], dtype=value.dtype), torch.zeros_like(m[0], dtype=value.dtype)
    # the vectors do not depend on the scale, and at scale 1 nothing over- or underflows
    scaled, phase, eps = m / value.abs(), value / value.abs(), torch.finfo(m.dtype).eps
    factors = lu_factors(scaled.to(value.dtype) - phase * (1 + 4 * eps) * torch.eye(len(m), dtype=value.dtype))
    x = y = start(len(m), value)
    for _ in range(2):
        x, y = unit(factors.solve(x)), unit(factors.solve_adjoint(y))
    overlap = torch.vdot(y, x)
    if overlap.abs() < eps**0.5:
        overlap = eps**0.5 * (overlap / overlap.abs() if overlap != 0 else torch.ones_like(overlap))
    return value, x, y / overlap.conj()


class _SpectralRadius(torch.autograd.Function):
    @staticmethod
    def forward(ctx, m: Tensor) -> Tensor:  # type: ignore[override]
        value = _largest_eigenvalue(m)
        if not ctx.needs_input_grad[0]:
            return value.abs().to(m)
        flat, gradient = m.detach().cpu().double().reshape(-1, *m.shape[-2:]), []
        for matrix, one in zip(flat, value.reshape(-1), strict=True):
            _, x, y = leading_pair(matrix, one)  # its gradient is capped at eps^(-1/2)
            gradient.append((one.conj() / one.abs() * torch.outer(y.conj(), x)).real if one != 0 else 0 * matrix)
        ctx.save_for_backward(torch.stack(gradient).reshape(m.shape).to(m))
        return value.abs().to(m)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        return grad[..., None, None] * gradient


def _largest_eigenvalue(m: Tensor) -> Tensor:
    m = m.detach().cpu().double()
    m = torch.where(m.abs() < torch.finfo(m.dtype).tiny, 0, m)  # LAPACK may not converge with subnormal numbers
    values = _by_lapack(torch.linalg.eigvals, m)
    return values.gather(-1, values.abs().argmax(-1, keepdim=True)).squeeze(-1)


def _by_lapack(solve: Callable[[Tensor], Any], m: Tensor) -> Any:
    try:
        return solve(m)
    except RuntimeError:  # QR iteration gets stuck on some matrices of equal rows
        noise = torch.randn(m.shape, generator=torch.Generator().manual_seed(0), dtype=m.dtype).to(m.device)
        size = torch.linalg.matrix_norm(m, keepdim=True) / m.shape[-1]
        return solve(m + torch.finfo(m.dtype).eps * size * noise)


# ---- by squaring


def dominant_pairs(h: Tensor, miss: float = SMALLEST_MISS) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues of largest modulus of many small real matrices (P, m, m), by squaring: ten times as fast as LAPACK.

    Where more than two eigenvalues share the modulus, or powers vanish, LAPACK finds them. `miss` is the largest
    relative residual times condition number of pairs by squaring.

    Returns:
        The values (P,), vectors (P, m) of norm 1, and condition numbers 1 / |y^H x| (P,).
    """

    def condition(x: Tensor, y: Tensor) -> Tensor:
        overlap = (x * y).sum(1).abs().clamp(min=torch.finfo(x.dtype).tiny)
        return torch.where(x.any(1) & y.any(1), 1 / overlap, 1)

    value = h.new_zeros(len(h), dtype=h.dtype.to_complex())
    vector, sensitive = h.new_zeros(h.shape[:2], dtype=value.dtype), h.new_ones(len(h))
    left, power = torch.arange(len(h), device=h.device), h
    for squarings in SQUARINGS:
        for i in range(squarings):
            if i % 3 == 0:
                size = torch.linalg.matrix_norm(power)[:, None, None]
                power = power / size.clamp(min=torch.finfo(power.dtype).tiny)
            power = power @ power
        value[left], vector[left], residual = pairs_of(h, power)
        sensitive[left] = condition(vector[left], pairs_of(h.mT, power.mT, value[left])[1])
        stay = (~(residual * sensitive[left] <= miss * value[left].abs()) | (value[left] == 0)).nonzero().squeeze(1)
        left, h, power = left[stay], h[stay], power[stay]
        if not len(left):
            return value, vector, sensitive
    values, vectors = _by_lapack(torch.linalg.eig, h.cpu())
    largest = values.abs().argmax(1, keepdim=True)
    found, x = values.gather(1, largest), vectors.take_along_dim(largest[:, None], 2).squeeze(2)
    values, vectors = _by_lapack(torch.linalg.eig, h.mT.cpu())
    nearest = (values - found).abs().argmin(1, keepdim=True)
    y = vectors.take_along_dim(nearest[:, None], 2).squeeze(2)
    value[left], vector[left] = found.squeeze(1).to(h.device), x.to(h.device)
    sensitive[left] = condition(x, y).to(h.device)
    return value, vector, sensitive


def pairs_of(h: Tensor, power: Tensor, near: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenpairs of matrices (P, m, m) from high powers of them, and the norms of their residuals.

    A power leaves of a random start one direction, or two for a complex pair or a pair of both signs, in which a
    projection finds the eigenvalues: the larger one, or the one nearer to `near` (P,).
    """

    def times(x: Tensor) -> Tensor:
        # a row times a matrix: ten times as fast in torch as a matrix times a column
        if x.is_complex():
            return torch.complex(*(torch.stack((x.real, x.imag), 1) @ h.mT).unbind(1))
        return (x.unsqueeze(1) @ h.mT).squeeze(1)

    x = unit(power @ start(h.shape[1], h))
    h_x = times(x)
    along = (x * h_x).sum(1)
    rest = h_x - along[:, None] * x
    y = unit(rest)
    h_y = times(y)
    # on the plane of x and y, orthonormal, h is [[along, back], [out, across]]
    back, out, across = (x * h_y).sum(1), norm(rest), (y * h_y).sum(1)
    middle, half = (along + across) / 2, (along - across) / 2
    root = (half.square() + back * out).to(h.dtype.to_complex()).sqrt()
    other = middle < 0 if near is None else (middle - root - near).abs() < (middle + root - near).abs()
    pair = middle + torch.where(other, -root, root)
    vector = unit((pair - across)[:, None] * x + out[:, None] * y)
    miss = norm(times(vector) - pair[:, None] * vector)
    single = out <= miss  # one direction is left, and y is noise
    value = torch.where(single, along, pair)
    return value, torch.where(single[:, None], x, vector), torch.where(single, out, miss)


def bounded_radius(m: Tensor, tolerance: float) -> Dominant:
    r"""Radii of real matrices (P, N, N) between two bounds, settled where these meet to a relative tolerance.

    For k = 2, 4, 8, ... any matrix has

    .. math:: \Big(\frac{|\mathrm{tr}\, M^k|}{N}\Big)^{1/k} \le \rho(M) \le \|M^k\|_F^{1/k},

    so hundreds of eigenvalues near the largest do no harm: after ten squarings a factor of 10,000 between trace and
    norm is 0.9 % of the radius. Where the trace is lost, as that of a cycle through all neurons, or the digits, as
    those of powers of a Jordan block, the bounds do not meet. Rounding is followed, with :math:`\|M^k\|_F` scaled to
    1, A the computed power, D its error and :math:`c = \|A^2\|_F`, in float64:

    .. math:: \|D'\|_F \le (2 \|A\|_2 \|D\|_F + \|D\|_F^2 + N \epsilon) / c, \qquad
              \|A\|_2^2 \le \|A A^\top\|_F.

    Vectors are what the power makes of a start. Takes a fifth to a half of the time of LAPACK.

    Source: I. M. Gelfand 1941, for the norms; N. J. Higham, Accuracy and Stability of Numerical Algorithms (2002),
    ch. 3, for the rounding of a product.
    """
    like, n, width = m.double(), m.shape[1], math.log1p(tolerance)
    vector = torch.zeros_like(like[:, 0], dtype=torch.complex128)
    found = Dominant(vector[:, 0].clone(), vector, torch.zeros(len(m), dtype=torch.bool, device=m.device))
    left, size = torch.arange(len(m), device=m.device), torch.linalg.matrix_norm(like)
    power, log = like / size[:, None, None], size.log()  # of the norm of M^k, its k-th root
    error = torch.zeros_like(log)
    for i in range(1, LAST_BOUND + 1):
        half = power.float()
        stretch = (torch.linalg.matrix_norm(half @ half.mT) + SINGLE_ERROR).sqrt()
        power = power @ power
        size = torch.linalg.matrix_norm(power)
        power, log = power / size[:, None, None], log + size.log() / 2**i
        error = (2 * stretch * error + error.square() + n * torch.finfo(error.dtype).eps) / size
        if i < FIRST_BOUND:
            continue
        trace = power.diagonal(dim1=1, dim2=2).sum(1).abs()
        upper = log + error.log1p() / 2**i
        lower = log + ((trace - n**0.5 * error) / n).log() / 2**i  # NaN where the trace is lost
        near = torch.minimum(log + trace.log() / 2**i, upper).exp()  # where one eigenvalue is left, this one
        met = upper - lower <= width
        where = left[met]
        value, found.vector[where], _ = pairs_of(like[where], power[met])
        found.value[where], found.settled[where] = torch.polar(near[met], value.angle()), True
        # the distance between them halves at best
        more = (~met & (upper - lower <= 2 ** (LAST_BOUND - i) * width)).nonzero().squeeze(1)
        left, power, log, error = left[more], power[more], log[more], error[more]
        if not len(left):
            break
    return found


# ---- vectors


def norm(x: Tensor) -> Tensor:
    """Norms of vectors (..., n), real or complex."""
    parts = torch.view_as_real(x).flatten(-2) if x.is_complex() else x  # torch's own takes fifty times as long
    return torch.linalg.vector_norm(parts, dim=-1)


def unit(x: Tensor) -> Tensor:
    """Vectors (..., n) of any size scaled to norm 1; zeros stay zeros."""
    tiny, parts = torch.finfo(x.dtype).tiny, torch.view_as_real(x).flatten(-2) if x.is_complex() else x
    x = x / parts.abs().amax(-1, keepdim=True).clamp(min=tiny)  # the square of 1e20 is infinite in float32
    return x / norm(x).unsqueeze(-1).clamp(min=tiny)


def start(n: int, like: Tensor) -> Tensor:
    """A vector (n,) drawn at random from a fixed seed, of a tensor's dtype and device."""
    dtype = torch.complex128 if like.is_complex() else torch.float64
    return torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=dtype).to(like)
