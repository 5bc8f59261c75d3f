r"""Largest eigenvalues of many matrices at once, given whole or as products with vectors.

No network, no cell, no time.

How it fits together. `radius` has them of whole matrices: by `lapack`, in float64. `maps` has
matrices as products, in cycles (`autograd`: of any function). `radii` takes a cycle: the small ones
become whole matrices; of others a cell may know the radius (`known`) without any product. The rest
follow the products of a random start on a `basis`, for some of the points (`pieces`) at a time, by
`compiled` loops on a CPU (`compiled_kernels`). `krylov` looks at the largest eigenvalue (`powers`:
found by squaring) when enough of them are likely to be done. What counts is for the `acceptance` to
say, and that nothing larger is left out for `exclusion`. A point that meets it at no look, as where
hundreds of eigenvalues are about as large, becomes a whole matrix, whose radius `bounds` hold from
both sides; where these do not meet it goes the whole way and is counted. `eigenpairs` has the
gradient, `vectors` where to start.

What is promised. A radius is within `tolerance` (1 %) of float64 LAPACK or comes from it, and is
then counted as exact. Its gradient is that of an eigenvalue within the tolerance. Of bounds that is
proved, rounding included; of products it is shown as follows.

- Upwards it is shown, at some angles around the circle: an eigenvalue larger by the tolerance is
  excluded unless the random start holds less of it than one start in four hundred would
  (`exclusion`); where leaks hold the radius, by a bound on what all neurons do together
  (`neurolsc.neurons.isolated`).
- Downwards it is an estimate: a value is off by its residual times the condition number of an
  eigenvalue, which on a basis is found too low; so both together may use up a fifth of the
  tolerance. Chains and circles of a few neurons, whose eigenvalues hang on single weights, are told
  by rows with fewer than four entries, and are left to LAPACK; where a map does not tell, eight of
  its rows are looked at, up to 1024 variables.

Where it ends. A matrix in float32 is known to 6e-8 of its norm, and its eigenvalues to that times
their condition number 1 / |y^H x|. From a condition number of 1e5 on LAPACK in float32 is more than
1 % off, which is why dense eigenvalues are computed in float64. Products with a matrix tell only
values whose rounding, times their condition number, stays within the tolerance: not those of
nilpotent matrices, whose radius 0 they take for the k-th root of what is rounded. So nothing counts
below 1 % of the norm, nor where products fall below 7e-16, whose squares float32 cannot hold. From
1e5 the promise is for the matrix as it stands in float32; from 1e13, as of long chains of neurons
that end nowhere, float64 fails too. Errors of radii are relative to no less than 1e-4 of the norm.
"""

from neurolsc.eigen.radius import (
    RadiusGradient,
    largest_singular_value,
    radius_and_gradient,
    random_submatrix,
    spectral_radius,
)

__all__ = ["RadiusGradient", "largest_singular_value", "radius_and_gradient", "random_submatrix", "spectral_radius"]
