"""Initialisers: objects that set weights and thresholds before training, each with formula and source.

`base` has what all share, chains, and their texts; `identity` has the recommended one, :class:`Identity`, which
:func:`neurolsc.initialize` applies. `weights` initialises by variance and the statistics of spikes (Default, Glorot,
He, IKUN, LSUV, FluctuationDriven, ActivityPropagation, FourConditions); `spectral` by radii, exponents and singular
values (LSC and its relatives, Orthogonal); `relay` at a firing rate (FiringRate, LayerwiseScaling, Relay).
"""

from neurolsc.init.base import Chain, Initialiser, InitReport, LayerReport, named, register
from neurolsc.init.identity import Identity
from neurolsc.init.relay import FiringRate, LayerwiseScaling, Relay
from neurolsc.init.spectral import LSC, LSCLyapunov, LSCSingular, Orthogonal
from neurolsc.init.weights import (
    IKUN,
    LSUV,
    ActivityPropagation,
    Default,
    FluctuationDriven,
    FourConditions,
    Glorot,
    He,
)

__all__ = [
    "IKUN",
    "LSC",
    "LSUV",
    "ActivityPropagation",
    "Chain",
    "Default",
    "FiringRate",
    "FluctuationDriven",
    "FourConditions",
    "Glorot",
    "He",
    "Identity",
    "InitReport",
    "Initialiser",
    "LSCLyapunov",
    "LSCSingular",
    "LayerReport",
    "LayerwiseScaling",
    "Orthogonal",
    "Relay",
    "named",
    "register",
]
