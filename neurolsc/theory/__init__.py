"""The paper's theory: gradient paths and their sums, the PascalRNN, and what of it can be measured on any network.

`paths` has the sums of Theorem 1, 3 and Lemma 2; `measured` a small change forward and a gradient back (App. E), and
the covariance of the sizes of derivatives at distant steps (App. A and I). Counts and sums are logarithms: they pass
the largest float at 520 steps and layers. ``layer_delay`` has no default: eq. 1 of the paper is 1, its Lemma 2 and
Fig. 1 are 0.
"""

from neurolsc.theory.measured import CovarianceDecay, Growth, covariance_decay, perturbation_growth
from neurolsc.theory.paths import PascalRNN, PascalState, log_input_derivatives, log_path_sums, log_paths

__all__ = [
    "CovarianceDecay",
    "Growth",
    "PascalRNN",
    "PascalState",
    "covariance_decay",
    "log_input_derivatives",
    "log_path_sums",
    "log_paths",
    "perturbation_growth",
]
