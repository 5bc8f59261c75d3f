"""The papers' theory: gradient paths and their sums, the PascalRNN, the curse of memory, and what can be measured.

`paths` has the sums of Theorem 1, 3 and Lemma 2; `measured` a small change forward and a gradient back (App. E), and
the covariance of the sizes of derivatives at distant steps (App. A and I); `memory` how sensitive integrators are to
their time constants (arXiv:2405.21064). Counts and sums of paths are logarithms: they pass the largest float at 520
steps and layers. ``layer_delay`` has no default: eq. 1 of the paper is 1, its Lemma 2 and Fig. 1 are 0.
"""

from neurolsc.theory.measured import CovarianceDecay, Growth, covariance_decay, perturbation_growth
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
from neurolsc.theory.paths import PascalRNN, PascalState, log_input_derivatives, log_path_sums, log_paths

__all__ = [
    "CovarianceDecay",
    "DoubleExponential",
    "Growth",
    "Level",
    "Magnitude",
    "PascalRNN",
    "PascalState",
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
    "perturbation_growth",
    "plain_time_constants",
    "sensitivity_covariance",
    "state_covariance",
    "time_constant_sensitivity",
]
