"""One step of a network, looked at: derivatives, radii, and how to set these before training.

Map: `transition` follows a run and has the derivatives of its steps, as matrices; `cycles` has them
as products; `measure` finds their radii, and which terms hold them; `recurrence` finds the radius
of what spikes do to their own layer; `one_layer` runs a layer alone while it is set, and `roots`
finds the value that sets it; `profile` shows radii over layers, steps and samples; `findings` are
what is wrong and what to change. `lsc/` sets radii: pre-training.

More than radii: `lyapunov` has growth over a whole run, `singular` the largest singular values,
`gradients` those of a loss by states and parameters, `noise` what batches do not share of them,
`usable` which spikes have a derivative at all, `survival` what is left of the input in a layer,
`activity` what its neurons do, `constants` whether its time constants can move.
"""

from neurolsc.eigen import (
    RadiusGradient,
    largest_singular_value,
    radius_and_gradient,
    random_submatrix,
    spectral_radius,
)
from neurolsc.stability.activity import Activity, activity
from neurolsc.stability.constants import TimeConstant, time_constants
from neurolsc.stability.findings import Finding
from neurolsc.stability.gradients import parameter_gradients, state_gradients
from neurolsc.stability.lsc import (
    Aim,
    Criteria,
    PaperRule,
    PretrainResult,
    Rule,
    TransitionRule,
    match_firing_rates,
    pretrain,
    scale_to_radius,
)
from neurolsc.stability.lyapunov import lyapunov_exponents
from neurolsc.stability.noise import signal_to_noise
from neurolsc.stability.profile import RadiusProfile, radius_profile
from neurolsc.stability.singular import singular_values
from neurolsc.stability.survival import surviving_share
from neurolsc.stability.usable import usable_share

__all__ = [
    "Activity",
    "Aim",
    "Criteria",
    "Finding",
    "PaperRule",
    "PretrainResult",
    "RadiusGradient",
    "RadiusProfile",
    "Rule",
    "TimeConstant",
    "TransitionRule",
    "activity",
    "largest_singular_value",
    "lyapunov_exponents",
    "match_firing_rates",
    "parameter_gradients",
    "pretrain",
    "radius_and_gradient",
    "radius_profile",
    "random_submatrix",
    "scale_to_radius",
    "signal_to_noise",
    "singular_values",
    "spectral_radius",
    "state_gradients",
    "surviving_share",
    "time_constants",
    "usable_share",
]
