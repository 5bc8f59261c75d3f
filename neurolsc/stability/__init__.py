"""One step of a network, looked at: derivatives, radii, and how to set these before training.

Map: `transition` follows a run and has the derivatives of its steps, as matrices; `cycles` has them
as products; `measure` finds their radii, and which terms hold them; `recurrence` finds the radius
of what spikes do to their own layer; `profile` shows radii over layers, steps and samples;
`findings` says what is wrong and what to change. `lsc/` sets radii: pre-training.
"""

from neurolsc.eigen import (
    RadiusGradient,
    largest_singular_value,
    radius_and_gradient,
    random_submatrix,
    spectral_radius,
)
from neurolsc.stability.findings import Finding, diagnose
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
from neurolsc.stability.profile import RadiusProfile, radius_profile

__all__ = [
    "Aim",
    "Criteria",
    "Finding",
    "PaperRule",
    "PretrainResult",
    "RadiusGradient",
    "RadiusProfile",
    "Rule",
    "TransitionRule",
    "diagnose",
    "largest_singular_value",
    "match_firing_rates",
    "pretrain",
    "radius_and_gradient",
    "radius_profile",
    "random_submatrix",
    "scale_to_radius",
    "spectral_radius",
]
