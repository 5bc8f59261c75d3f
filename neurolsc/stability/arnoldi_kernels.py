"""The loops of `arnoldi` over the points of bases, compiled by Numba, whose import takes half a second.

The vectors of a point are read while they are in the cache, and a step is one call, not a dozen.
Numbers come in as the type of the vectors: mixed with others the compiler counts in double
precision.
"""

from typing import Any

import numpy as np
from numba import njit

from neurolsc.neurons.fast.cpu_kernels import compiled

Array = np.ndarray[Any, Any]
FAST = {"reassoc", "contract", "nsz", "arcp"}
"""what the compiler may do to sums; NaN and infinity stay what they are"""


_compiled = compiled(fastmath=FAST)


@njit(inline="always", fastmath=FAST)
def _pass(vectors: Array, column: Array, product: Array, along: Array, zero: float) -> tuple[float, float]:
    """Take off a product what lies in the vectors; norms of that and of the rest."""
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


@_compiled
def widen(
    vectors: Array, columns: Array, products: Array, m: int, again: float, eps: float, zero: float, one: float
) -> None:
    """Write the vector m (P, most + 1, n) and column m - 1 (P, most, most + 1) of a product (P, n)."""
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


@_compiled
def kernel(columns: Array, real: Array, imaginary: Array, size: Array) -> None:
    """Write K (P, m + 1, k) at numbers (P, k), by the columns of H (P, m, m + 1)."""
    points, steps, k = len(columns), columns.shape[1], real.shape[1]
    a = np.empty((steps + 1, k), columns.dtype)
    b = np.empty_like(a)
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
