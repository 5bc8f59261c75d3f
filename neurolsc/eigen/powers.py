r"""The dominant eigenpair of many small matrices at once, by squaring each of them again and again.

A vector times :math:`H^{2^k}` turns into the eigenvectors of the eigenvalue of largest modulus: a
part that belongs to an eigenvalue q times as large has shrunk by :math:`q^{2^k}`. What is left is
one direction, or two for a complex pair or a pair :math:`\pm\lambda`, in which the eigenvalue is
found by a projection. Matrices whose residual is still large are squared further. Where more than
two eigenvalues share the modulus, or powers vanish, that does not help, and LAPACK is asked.

Only products of matrices are made, which are as fast on a GPU, and on a CPU ten times as fast as
eigenvalues by LAPACK (``benchmarks/radii.py``).
"""

import torch
from torch import Tensor

from neurolsc.eigen.lapack import eigenpairs
from neurolsc.eigen.vectors import norm, start, unit

SQUARINGS = (9, 9)
"""in the first round and the second; after 9 an eigenvalue that is 1.4 % smaller has left a
thousandth of itself"""
ENOUGH = 1e-3
"""relative residual times condition number of the pairs that are returned, but those by LAPACK"""


def dominant_pairs(h: Tensor, enough: float = ENOUGH) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues of largest modulus of real matrices, their vectors, and condition numbers.

    The last say how sensitive they are.

    Args:
        h: the matrices.
        enough: relative residual times condition number of the pairs that are returned, but those
            by LAPACK.

    Returns:
        The values (P,), the vectors (P, m) of norm 1, and the condition numbers of the values (P,),
        1 over the modulus of y^H x with left vectors y of norm 1.
    """
    value = h.new_zeros(len(h), dtype=h.dtype.to_complex())
    vector, condition = h.new_zeros(h.shape[:2], dtype=value.dtype), h.new_ones(len(h))
    left, power = torch.arange(len(h), device=h.device), h
    for squarings in SQUARINGS:
        power = _squared(power, squarings)
        value[left], vector[left], miss = pairs_of(h, power)
        condition[left] = _condition(vector[left], pairs_of(h.mT, power.mT, value[left])[1])
        stay = (~(miss * condition[left] <= enough * value[left].abs()) | (value[left] == 0)).nonzero().squeeze(1)
        left, h, power = left[stay], h[stay], power[stay]
        if not len(left):
            return value, vector, condition
    value[left], vector[left], condition[left] = (found.to(h.device) for found in _by_lapack(h.cpu()))
    return value, vector, condition


def _condition(x: Tensor, y: Tensor) -> Tensor:
    """1 / |y^T x| of vectors (P, m) of norm 1, or 1 where one is 0."""
    overlap = (x * y).sum(1).abs().clamp(min=torch.finfo(x.dtype).tiny)
    return torch.where(x.any(1) & y.any(1), 1 / overlap, 1)


def _squared(power: Tensor, times: int) -> Tensor:
    for i in range(times):
        if i % 3 == 0:
            size = torch.linalg.matrix_norm(power)[:, None, None]
            power = power / size.clamp(min=torch.finfo(power.dtype).tiny)
        power = power @ power
    return power


def pairs_of(h: Tensor, power: Tensor, near: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Pairs of the matrices, and norms of their residuals.

    They come from powers of the matrices, applied to a vector at random.

    Of two values that are left it is the larger one, or the one that is nearer to one given.
    """
    x = unit(power @ start(h.shape[1], h))
    h_x = _times(h, x)
    along = (x * h_x).sum(1)
    rest = h_x - along[:, None] * x
    y = unit(rest)
    h_y = _times(h, y)
    # on the plane of x and y, orthonormal, h is [[along, back], [out, across]]
    back, out, across = (x * h_y).sum(1), norm(rest), (y * h_y).sum(1)
    middle, half = (along + across) / 2, (along - across) / 2
    root = (half.square() + back * out).to(h.dtype.to_complex()).sqrt()
    other = middle < 0 if near is None else (middle - root - near).abs() < (middle + root - near).abs()
    pair = middle + torch.where(other, -root, root)
    vector = unit((pair - across)[:, None] * x + out[:, None] * y)
    miss = norm(_times(h, vector) - pair[:, None] * vector)
    single = out <= miss  # one direction is left, and y is noise
    value = torch.where(single, along, pair)
    return value, torch.where(single[:, None], x, vector), torch.where(single, out, miss)


def _by_lapack(h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, vectors = eigenpairs(h)
    largest = values.abs().argmax(1, keepdim=True)
    value, x = values.gather(1, largest), vectors.take_along_dim(largest[:, None], 2).squeeze(2)
    values, vectors = eigenpairs(h.mT)
    nearest = (values - value).abs().argmin(1, keepdim=True)
    return value.squeeze(1), x, _condition(x, vectors.take_along_dim(nearest[:, None], 2).squeeze(2))


def _times(h: Tensor, x: Tensor) -> Tensor:
    # a row times a matrix: ten times as fast in torch as a matrix times a column
    if x.is_complex():
        return torch.complex(*(torch.stack((x.real, x.imag), 1) @ h.mT).unbind(1))
    return (x.unsqueeze(1) @ h.mT).squeeze(1)
