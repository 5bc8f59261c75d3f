"""One step of a network, looked at: its derivatives, their radii, and how to set them before training."""

from neurolsc.stability.findings import Finding, diagnose
from neurolsc.stability.pretrain import PretrainResult, pretrain
from neurolsc.stability.profile import RadiusProfile, radius_profile
from neurolsc.stability.radius import (
    RadiusGradient,
    largest_singular_value,
    radius_and_gradient,
    random_submatrix,
    spectral_radius,
)
from neurolsc.stability.rates import match_firing_rates
from neurolsc.stability.rules import PaperRule, Rule, TransitionRule
from neurolsc.stability.targets import Criteria

__all__ = [
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
    "spectral_radius",
]
