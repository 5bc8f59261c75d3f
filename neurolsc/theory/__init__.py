"""The paper's theory: what it counts, what it bounds, and what of it can be measured.

- paths: gradient paths in the grid of time and depth; the sums of Theorem 1, 3 and Lemma 2
- pascal: the PascalRNN, with every derivative in closed form
- radii: expected radii of random matrices (Lemma 1, Corollary 1)
- measured: a small change forward and a gradient back in any network (App. E); covariance of the
  sizes of derivatives at distant steps (App. A and I)

Counts and bounds are logarithms: they pass the largest float at 520 steps and layers. Which of the
two wirings they are for has no default: eq. 1 of the paper is ``layer_delay=1``, its Lemma 2 and
Fig. 1 are ``layer_delay=0``.
"""

from neurolsc.theory.measured import CovarianceDecay, Growth, covariance_decay, perturbation_growth
from neurolsc.theory.pascal import PascalRNN, PascalState, input_paths, log_input_derivatives
from neurolsc.theory.paths import (
    log_bound_at_half,
    log_bound_at_one,
    log_derivative,
    log_mean_power,
    log_path_sums,
    log_paths,
    paths,
)
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
