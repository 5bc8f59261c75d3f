"""One step of a network, differentiated: its radii, other indicators, and how to set radii before training.

`transitions` has the derivatives along a run, as matrices and as products; `eigen` the radii of matrices, `arnoldi` of
products (loops in `arnoldi_kernels`); `profile` radii over layers, steps and samples, and which terms they are due to;
`one_layer` measures and sets a layer by itself; `indicators` measures more than radii; `findings` are faults and what
to change. `pretrain` sets radii by the paper's algorithm: targets, criteria, multiplier rules and options are in
`rules`, inputs and measurements in `meter`; `scale` sets them by scales alone, and firing rates too.
"""

from neurolsc.stability.eigen import spectral_radius
from neurolsc.stability.findings import Finding, TimeConstant, time_constants
from neurolsc.stability.indicators import (
    Activity,
    activity,
    lyapunov_exponents,
    parameter_gradients,
    signal_to_noise,
    singular_values,
    state_gradients,
    surviving_share,
    usable_share,
)
from neurolsc.stability.pretrain import PretrainResult, pretrain
from neurolsc.stability.profile import RadiusProfile, radius_profile
from neurolsc.stability.rules import (
    RELEASED,
    Criteria,
    PaperRule,
    PretrainOptions,
    RadiusTarget,
    Rule,
    TransitionRule,
)
from neurolsc.stability.scale import match_firing_rates, scale_to_radius

__all__ = [
    "RELEASED",
    "Activity",
    "Criteria",
    "Finding",
    "PaperRule",
    "PretrainOptions",
    "PretrainResult",
    "RadiusProfile",
    "RadiusTarget",
    "Rule",
    "TimeConstant",
    "TransitionRule",
    "activity",
    "lyapunov_exponents",
    "match_firing_rates",
    "parameter_gradients",
    "pretrain",
    "radius_profile",
    "scale_to_radius",
    "signal_to_noise",
    "singular_values",
    "spectral_radius",
    "state_gradients",
    "surviving_share",
    "time_constants",
    "usable_share",
]
