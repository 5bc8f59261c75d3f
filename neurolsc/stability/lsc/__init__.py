"""LSC: local stability set by pre-training.

A *target* (`targets`) says what the radii are to become, *criteria* when they have become it.
`pretrain` is the paper's loop (`loop`): a `look` at some points of an input (`inputs`), one
optimizer step on the `loss` (with the terms of a `lower` bound, if asked), the multipliers `kappa`,
which a *rule* (`rules`) turns into parameters, and a `shuffle`; its settings are one object
(`options`). `scale` does without gradients, by root finding. Both end in a `result`, which a
checkpoint keeps (`kept`).
`released` has the settings of the paper's released code, which differ from its text.
`rates` makes a control: thresholds scaled until a network fires as often as another.
"""

from neurolsc.stability.lsc.criteria import Criteria
from neurolsc.stability.lsc.options import Options
from neurolsc.stability.lsc.pretrain import pretrain
from neurolsc.stability.lsc.rates import match_firing_rates
from neurolsc.stability.lsc.released import RELEASED
from neurolsc.stability.lsc.result import PretrainResult
from neurolsc.stability.lsc.rules import PaperRule, Rule, TransitionRule
from neurolsc.stability.lsc.scale import scale_to_radius
from neurolsc.stability.lsc.targets import Aim, Aiming, Balanced, Equal, Target

__all__ = [
    "RELEASED",
    "Aim",
    "Aiming",
    "Balanced",
    "Criteria",
    "Equal",
    "Options",
    "PaperRule",
    "PretrainResult",
    "Rule",
    "Target",
    "TransitionRule",
    "match_firing_rates",
    "pretrain",
    "scale_to_radius",
]
