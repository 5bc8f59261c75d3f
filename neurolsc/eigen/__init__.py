r"""Largest eigenvalues of many matrices at once, given whole or as products with vectors.

No network, no cell, no time.

How it fits together. `radius` has them of whole matrices: LAPACK, in float64. `maps` has matrices
as products, in cycles (`autograd`: of any function). `radii` takes a cycle: the small ones become
whole matrices; of others a `basis` follows the products of a random start, for some of the points
(`pieces`) at a time, and `krylov` looks at its largest eigenvalue (`powers`: found by squaring) at
sizes 24 to 108. A `guess`, where a cell has one, is put beside the basis at the first look and
stays there. What counts is for the `acceptance` to say; a point that meets it at no look goes the
whole way and is counted. `growth` tells it how fast what a value leaves out grows. `eigenpairs`
has the gradient.

What is promised. A radius is within `tolerance` (1 %) of float64 LAPACK or comes from it, and is
then counted as exact. Its gradient is that of an eigenvalue within the tolerance. A value counts
only if what it leaves out has been shown to grow no faster than where an eigenvalue larger by the
tolerance, with an average part in the random start, would have shown itself: an estimate, not a
proof. Where a map may fall into small blocks, in which a random start has hardly a part, it is not
made: all points go the whole way.

Where it ends. A matrix in float32 is known to 6e-8 of its norm, and its eigenvalues to that times
their condition number 1 / |y^H x|. From a condition number of 1e5 on LAPACK in float32 is more than
1 % off, which is why dense eigenvalues are computed in float64, and why a value whose residual
times condition number exceeds the tolerance does not count, nor one below 1 % of the norm. From 1e5
the promise is for the matrix as it stands in float32; from 1e13, as of long chains of neurons that
end nowhere, float64 fails too.
"""

from neurolsc.eigen.radius import (
    RadiusGradient,
    largest_singular_value,
    radius_and_gradient,
    random_submatrix,
    spectral_radius,
)

__all__ = ["RadiusGradient", "largest_singular_value", "radius_and_gradient", "random_submatrix", "spectral_radius"]
