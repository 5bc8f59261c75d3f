"""The paper's theory: what it counts, what it bounds, and what of it can be measured.

Map: `paths` counts gradient paths in the grid of time and depth; `bounds` adds them up to what
Theorem 1 and Lemma 2 bound; `pascal` is the PascalRNN, of which all that is exact; `radii` has the
expected radius of random matrices (Lemma 1, Corollary 1); `growth` follows a small change forward
and a gradient backward through any network (App. E); `covariance` tells how sizes of derivatives
at distant steps go together (App. A and I).

Counts and bounds are logarithms: they pass the largest float at 520 steps and layers. Which of the
two wirings they are for has no default: eq. 1 of the paper is ``layer_delay=1``, its Lemma 2 and
Fig. 1 are ``layer_delay=0``.
"""

from neurolsc.theory.bounds import log_bound_at_half, log_bound_at_one, log_mean_power, log_path_sums
from neurolsc.theory.covariance import CovarianceDecay, covariance_decay
from neurolsc.theory.growth import Growth, perturbation_growth
from neurolsc.theory.pascal import PascalRNN, PascalState, input_paths, log_input_derivatives
from neurolsc.theory.paths import log_derivative, log_paths, paths
from neurolsc.theory.radii import (
    MeanRadius,
    chi_mean,
    expected_radius,
    gaussian,
    ginibre_modulus,
    ginibre_radius,
    glorot,
    he_relu,
    orthogonal,
)

__all__ = [
    "CovarianceDecay",
    "Growth",
    "MeanRadius",
    "PascalRNN",
    "PascalState",
    "chi_mean",
    "covariance_decay",
    "expected_radius",
    "gaussian",
    "ginibre_modulus",
    "ginibre_radius",
    "glorot",
    "he_relu",
    "input_paths",
    "log_bound_at_half",
    "log_bound_at_one",
    "log_derivative",
    "log_input_derivatives",
    "log_mean_power",
    "log_path_sums",
    "log_paths",
    "orthogonal",
    "paths",
    "perturbation_growth",
]
