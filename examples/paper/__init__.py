"""The figures and tables of the paper and of its neighbours, small on the data in the package, or as printed.

``python -m examples.paper 2 --out runs/figure-2`` from the repository makes Fig. 2.

`figure` is what all have: how large it is made, trials or none, numbers, a picture, and what of the claims was found.
Its trials are those of a sweep, or functions whose results `trials` keeps. Then come `paths` (Fig. 1), `rates` (Fig. 2
and S1), `recurrent` (Fig. 3 and Table S1), `lru` (Fig. 4 and Table I), `covariance` (Fig. S2 and S3), and their
`pictures`.

Those of the curse of memory (arXiv:2405.21064), named ``memory-1`` and so on, are in `landscapes` (Fig. 1, 2, 6, 7, 8
and 10), `students` of a linear `teacher` (Fig. 3, 4, 9, 10 d and 11) and `propagation` (Fig. 5, 14 and 15).
`time_constants` carries them to spiking neurons, ``memory-spikes``.

Those of stable recurrent models (arXiv:1805.10369), named ``stable-1`` and so on, are in `stable_tasks` (Table 1,
Fig. 1 and 4) and `stable` (Fig. 2, 3 and 5, Lemma 1, and the truncation of spiking networks).
"""

from typing import Any

from examples.paper.covariance import CovarianceFigure, PretrainedCovariance
from examples.paper.figure import Count, Figure, Judgement, Result, Scale, refuse_missing, reproduce, trials_of
from examples.paper.landscapes import (
    AngleFigure,
    ConcentrationFigure,
    LandscapeFigure,
    NormalisationFigure,
    ParametrisationFigure,
    SimilarityFigure,
)
from examples.paper.lru import LRUCurves, LRUTable
from examples.paper.paths import GridFigure, PascalFigure, PathsFigure
from examples.paper.propagation import GatedTheoryFigure, GatesFigure, PropagationFigure
from examples.paper.rates import FeedForwardFigure, RatesFigure
from examples.paper.recurrent import ParametersTable, RecurrentFigure
from examples.paper.stable import (
    DecayFigure,
    LemmaFigure,
    PriceFigure,
    ProximityFigure,
    SpikesFigure,
)
from examples.paper.stable_tasks import StableTable, TruncationFigure
from examples.paper.students import AnglesFigure, FormsFigure, HeadsFigure, HessianFigure, StudentsFigure
from examples.paper.time_constants import TimeConstantsFigure
from neurolsc.validation import meant

__all__ = [
    "FIGURES",
    "Count",
    "Figure",
    "Judgement",
    "Result",
    "Scale",
    "find",
    "refuse_missing",
    "reproduce",
    "trials_of",
]

_ALL: tuple[Figure[Any], ...] = (
    GridFigure(),
    PathsFigure(),
    PascalFigure(),
    FeedForwardFigure(),
    RecurrentFigure(),
    LRUCurves(),
    LRUTable(),
    RatesFigure(),
    CovarianceFigure(),
    PretrainedCovariance(),
    ParametersTable(),
    LandscapeFigure(),
    NormalisationFigure(),
    StudentsFigure(),
    HessianFigure(),
    PropagationFigure(),
    ParametrisationFigure(),
    AngleFigure(),
    SimilarityFigure(),
    FormsFigure(),
    ConcentrationFigure(),
    AnglesFigure(),
    HeadsFigure(),
    GatesFigure(),
    GatedTheoryFigure(),
    StableTable(),
    PriceFigure(),
    DecayFigure(),
    TruncationFigure(),
    ProximityFigure(),
    LemmaFigure(),
    SpikesFigure(),
    TimeConstantsFigure(),
)
FIGURES: dict[str, Figure[Any]] = {figure.name: figure for figure in _ALL}


def find(name: str) -> Figure[Any]:
    """The figure of a name, in capitals or not."""
    for known, figure in FIGURES.items():
        if known.lower() == name.strip().lower():
            return figure
    raise ValueError(f"the paper has no figure {name!r} here; known are {', '.join(FIGURES)}{meant(FIGURES, name)}")
