"""One step of a network, looked at: its derivatives, their radii, and how to set them before training."""

from neurolsc.eigen import (
    RadiusGradient,
    largest_singular_value,
    radius_and_gradient,
    random_submatrix,
    spectral_radius,
)
from neurolsc.stability.findings import Finding, diagnose
from neurolsc.stability.lsc.pretrain import PretrainResult, pretrain
from neurolsc.stability.lsc.rates import match_firing_rates
from neurolsc.stability.lsc.rules import PaperRule, Rule, TransitionRule
from neurolsc.stability.lsc.targets import Criteria
from neurolsc.stability.profile import RadiusProfile, radius_profile

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
