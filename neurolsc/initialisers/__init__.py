"""Ways to start: objects that set a network before it is trained, each with formula and source.

Map: `initialiser` is what all have, and chains; `spec` reads and names them as texts; `cells` is
what several need of a cell. One method a file: `default`; `scaling` (Glorot, He); `orthogonal`;
`lsuv`; `rates` (thresholds for a rate); `lsc`.
"""

from neurolsc.initialisers.default import Default
from neurolsc.initialisers.initialiser import Chain, Initialiser
from neurolsc.initialisers.lsc import LSC
from neurolsc.initialisers.lsuv import LSUV
from neurolsc.initialisers.orthogonal import Orthogonal
from neurolsc.initialisers.rates import RateMatching
from neurolsc.initialisers.scaling import Glorot, He
from neurolsc.initialisers.spec import named, register

__all__ = [
    "LSC",
    "LSUV",
    "Chain",
    "Default",
    "Glorot",
    "He",
    "Initialiser",
    "Orthogonal",
    "RateMatching",
    "named",
    "register",
]
