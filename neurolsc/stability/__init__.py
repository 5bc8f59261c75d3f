"""One step of a network, differentiated: its radii, other indicators, and how to set radii before training.

`transitions` has the derivatives along a run, as matrices and as products; `eigen` the radii of matrices, `arnoldi` of
products, `isolated` of neurons that do not read each other; `profile` the radii over layers, steps and samples, and the
terms that they are due to, at points that `sampling` draws; `indicators` measures more than radii. `pretrain` is the
paper's algorithm; `loops` has its loops, `rules` their targets, criteria, rules and options. `scale` sets radii and
firing rates by scales alone. `conditions` is about single cells: their faults, time constants and stability below
threshold. `determinants` has the lower bound. `contraction` certifies, enforces and measures the rate at which a
state is forgotten, and `truncation` says how much context a model and its gradient then need.
"""

from neurolsc.stability.conditions import (
    Finding,
    NeuronStability,
    TimeConstant,
    at_threshold,
    below_threshold,
    neurons_below_threshold,
    plot_neurons,
    time_constants,
)
from neurolsc.stability.contraction import (
    Certificate,
    RowBalls,
    SpectralBall,
    backward_norms,
    certificate,
    measured_rate,
    parametrise,
    project,
    stable_sets,
    surrogate_rate,
)
from neurolsc.stability.determinants import DeterminantProfile, log_determinant_profile
from neurolsc.stability.eigen import spectral_radius
from neurolsc.stability.indicators import (
    Activity,
    active_surrogate_fraction,
    activity,
    exponent_loss,
    lyapunov_exponents,
    parameter_gradients,
    signal_to_noise,
    similarity_to_input,
    singular_values,
    state_gradients,
)
from neurolsc.stability.pretrain import PretrainResult, pretrain
from neurolsc.stability.profile import RadiusProfile, radius_profile
from neurolsc.stability.rules import (
    Criteria,
    PaperRule,
    PretrainOptions,
    RadiusTarget,
    Rule,
    TransitionRule,
)
from neurolsc.stability.scale import match_firing_rates, scale_to_radius
from neurolsc.stability.truncation import (
    GradientBounds,
    TruncationErrors,
    gradient_bounds,
    truncated_states,
    truncation_errors,
)

__all__ = [
    "Activity",
    "Certificate",
    "Criteria",
    "DeterminantProfile",
    "Finding",
    "GradientBounds",
    "NeuronStability",
    "PaperRule",
    "PretrainOptions",
    "PretrainResult",
    "RadiusProfile",
    "RadiusTarget",
    "RowBalls",
    "Rule",
    "SpectralBall",
    "TimeConstant",
    "TransitionRule",
    "TruncationErrors",
    "active_surrogate_fraction",
    "activity",
    "at_threshold",
    "backward_norms",
    "below_threshold",
    "certificate",
    "exponent_loss",
    "gradient_bounds",
    "log_determinant_profile",
    "lyapunov_exponents",
    "match_firing_rates",
    "measured_rate",
    "neurons_below_threshold",
    "parameter_gradients",
    "parametrise",
    "plot_neurons",
    "pretrain",
    "project",
    "radius_profile",
    "scale_to_radius",
    "signal_to_noise",
    "similarity_to_input",
    "singular_values",
    "spectral_radius",
    "stable_sets",
    "state_gradients",
    "surrogate_rate",
    "time_constants",
    "truncated_states",
    "truncation_errors",
]
