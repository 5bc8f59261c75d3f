"""Ways to start: objects that set a network before it is trained, each with formula and source.

Map: `initialiser` is what all have, and chains; `spec` reads and names them as texts; `cells` is
what several need of a cell. One method a file: `default`; `scaling` (Glorot, He); `orthogonal`;
`lsuv`; `fluctuation`; `propagation`; `ikun`; `conditions`; `rates` (thresholds for a rate); `lsc`,
and its relatives by `lyapunov` exponents and by `singular` values; `by_source` (radii by what
holds them, at a given rate); `relay` (layers between the ends hand on what they read).
"""

from neurolsc.initialisers.by_source import BySource
from neurolsc.initialisers.conditions import FourConditions
from neurolsc.initialisers.default import Default
from neurolsc.initialisers.fluctuation import FluctuationDriven
from neurolsc.initialisers.ikun import IKUN
from neurolsc.initialisers.initialiser import Chain, Initialiser, StartReport
from neurolsc.initialisers.lsc import LSC
from neurolsc.initialisers.lsuv import LSUV
from neurolsc.initialisers.lyapunov import LSCLyapunov
from neurolsc.initialisers.orthogonal import Orthogonal
from neurolsc.initialisers.propagation import ActivityPropagation
from neurolsc.initialisers.rates import RateMatching
from neurolsc.initialisers.relay import Relay
from neurolsc.initialisers.scaling import Glorot, He
from neurolsc.initialisers.singular import LSCSingular
from neurolsc.initialisers.spec import named, register

__all__ = [
    "IKUN",
    "LSC",
    "LSUV",
    "ActivityPropagation",
    "BySource",
    "Chain",
    "Default",
    "FluctuationDriven",
    "FourConditions",
    "Glorot",
    "He",
    "Initialiser",
    "LSCLyapunov",
    "LSCSingular",
    "Orthogonal",
    "RateMatching",
    "Relay",
    "StartReport",
    "named",
    "register",
]
