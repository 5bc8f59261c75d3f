"""The papers' theory: gradient paths and their sums, the PascalRNN, covariances, and the curse of memory.

`paths` has the sums of Theorems 1 and 3 and Lemma 2, and the covariance of the sizes of derivatives at distant steps
(Theorem 2, App. I); `memory` how sensitive integrators are to their time constants (arXiv:2405.21064). Counts and sums
of paths are logarithms: the numbers exceed the largest float at 520 steps and layers. ``layer_delay`` has no default:
eq. 1 of the paper is 1, its Lemma 2 and Fig. 1 are 0.
"""

from neurolsc.theory.memory import (
    DoubleExponential,
    Level,
    Magnitude,
    Polar,
    RootTime,
    Tanh,
    TimeConstantSensitivity,
    autocorrelation,
    eigenvalue_hessian,
    input_scale,
    level_time_constants,
    plain_time_constants,
    sensitivity_covariance,
    state_covariance,
    time_constant_sensitivity,
)
from neurolsc.theory.paths import (
    CovarianceDecay,
    PascalRNN,
    covariance_decay,
    log_input_derivatives,
    log_path_sums,
    log_paths,
)

__all__ = [
    "CovarianceDecay",
    "DoubleExponential",
    "Level",
    "Magnitude",
    "PascalRNN",
    "Polar",
    "RootTime",
    "Tanh",
    "TimeConstantSensitivity",
    "autocorrelation",
    "covariance_decay",
    "eigenvalue_hessian",
    "input_scale",
    "level_time_constants",
    "log_input_derivatives",
    "log_path_sums",
    "log_paths",
    "plain_time_constants",
    "sensitivity_covariance",
    "state_covariance",
    "time_constant_sensitivity",
]
