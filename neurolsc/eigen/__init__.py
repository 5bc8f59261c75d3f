"""Largest eigenvalues of many matrices at once, given whole or as products with vectors; no network, no cell, no time."""

from neurolsc.eigen.radius import (
    RadiusGradient,
    largest_singular_value,
    radius_and_gradient,
    random_submatrix,
    spectral_radius,
)

__all__ = ["RadiusGradient", "largest_singular_value", "radius_and_gradient", "random_submatrix", "spectral_radius"]
