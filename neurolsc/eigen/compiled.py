"""Loops over the points that numba compiles, where it is installed: the same sums as in `basis` and `exclusion`.

A point's vectors are read while they are in the cache, and a step is one call, not a dozen.
"""

import numpy as np

try:
    from numba import njit
except ImportError:  # the plain path does it all
    njit = None

import torch
from torch import Tensor


def at_hand(like: Tensor) -> bool:
    """Whether compiled loops are at hand for tensors like this one."""
    return njit is not None and like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64)


if njit is not None:
    FAST = {"reassoc", "contract", "nsz", "arcp"}
    """what the compiler may do to sums; NaN and infinity stay what they are"""

    @njit(cache=True, fastmath=FAST, error_model="numpy")
    def _pass(vectors, column, product, along, zero):  # noqa: ANN001, ANN202
        m, n = len(along), len(product)
        whole = m // 4 * 4
        for i in range(0, whole, 4):
            a = b = c = d = zero
            v, w, x, y = vectors[i], vectors[i + 1], vectors[i + 2], vectors[i + 3]
            for k in range(n):
                a += v[k] * product[k]
                b += w[k] * product[k]
                c += x[k] * product[k]
                d += y[k] * product[k]
            along[i], along[i + 1], along[i + 2], along[i + 3] = a, b, c, d
        for i in range(whole, m):
            a, v = zero, vectors[i]
            for k in range(n):
                a += v[k] * product[k]
            along[i] = a
        for i in range(0, whole, 4):
            a, b, c, d = along[i], along[i + 1], along[i + 2], along[i + 3]
            v, w, x, y = vectors[i], vectors[i + 1], vectors[i + 2], vectors[i + 3]
            for k in range(n):
                product[k] -= a * v[k] + b * w[k] + c * x[k] + d * y[k]
        for i in range(whole, m):
            a, v = along[i], vectors[i]
            for k in range(n):
                product[k] -= a * v[k]
        size = rest = zero
        for i in range(m):
            column[i] += along[i]
            size += along[i] * along[i]
        for k in range(n):
            rest += product[k] * product[k]
        return np.sqrt(size), np.sqrt(rest)

    @njit(cache=True, fastmath=FAST, error_model="numpy")
    def _widen(vectors, columns, products, m, again, eps, zero, one):  # noqa: ANN001, ANN202
        points, n = products.shape
        product, along = np.empty(n, vectors.dtype), np.empty(m, vectors.dtype)
        for p in range(points):
            product[:] = products[p]
            basis, column = vectors[p], columns[p, m - 1]
            size, rest = _pass(basis, column, product, along, zero)
            whole = size
            if not rest > again * size:
                size, rest = _pass(basis, column, product, along, zero)
            new = rest > eps * whole
            share = one / rest if new else zero
            column[m] = rest if new else zero
            for k in range(n):
                basis[m, k] = product[k] * share

    @njit(cache=True, fastmath=FAST, error_model="numpy")
    def _kernel(columns, real, imaginary, size):  # noqa: ANN001, ANN202
        points, steps, k = len(columns), columns.shape[1], real.shape[1]
        a = np.empty((steps + 1, k), columns.dtype)
        b = np.empty((steps + 1, k), columns.dtype)
        for p in range(points):
            a[0], b[0], size[p, 0] = 1, 0, 1
            for j in range(steps):
                for i in range(k):
                    a[j + 1, i] = real[p, i] * a[j, i] - imaginary[p, i] * b[j, i]
                    b[j + 1, i] = real[p, i] * b[j, i] + imaginary[p, i] * a[j, i]
                for r in range(j + 1):
                    h = columns[p, j, r]
                    for i in range(k):
                        a[j + 1, i] -= h * a[r, i]
                        b[j + 1, i] -= h * b[r, i]
                h = columns[p, j, j + 1]
                for i in range(k):
                    a[j + 1, i] /= h
                    b[j + 1, i] /= h
                    size[p, j + 1, i] = size[p, j, i] + a[j + 1, i] ** 2 + b[j + 1, i] ** 2


def widen(vectors: Tensor, columns: Tensor, m: int, products: Tensor, again: float) -> None:
    """As :func:`neurolsc.eigen.basis.widen`, in place."""
    v, eps = vectors.numpy(), 10 * torch.finfo(vectors.dtype).eps
    # numbers of the same type as the vectors, or the compiler counts in double precision
    numbers = (v.dtype.type(x) for x in (again, eps, 0, 1))
    _widen(v, columns.numpy(), products.contiguous().numpy(), m, *numbers)


def kernel(columns: Tensor, at: Tensor) -> Tensor:
    """As :func:`neurolsc.eigen.exclusion.kernel`, given the columns of H (P, m, m + 1)."""
    size = columns.new_empty(len(columns), columns.shape[1] + 1, at.shape[1])
    _kernel(columns.numpy(), at.real.contiguous().numpy(), at.imag.contiguous().numpy(), size.numpy())
    return size
