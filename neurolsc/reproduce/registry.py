"""All figures and tables by the name that the command takes."""

from typing import Any

from neurolsc.reproduce.covariance import CovarianceFigure, PretrainedCovariance
from neurolsc.reproduce.feedforward import FeedForwardFigure
from neurolsc.reproduce.figure import Figure
from neurolsc.reproduce.lru import LRUCurves, LRUTable
from neurolsc.reproduce.parameters import ParametersTable
from neurolsc.reproduce.pascal import PascalFigure
from neurolsc.reproduce.paths import GridFigure, PathsFigure
from neurolsc.reproduce.rates import RatesFigure
from neurolsc.reproduce.recurrent import RecurrentFigure
from neurolsc.validation import meant

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
)
FIGURES: dict[str, Figure[Any]] = {figure.name: figure for figure in _ALL}
"""The paper's figures and tables, in its order."""


def find(name: str) -> Figure[Any]:
    """The figure of a name, in capitals or not.

    Raises:
        ValueError: if there is none; the message lists the known ones.
    """
    for known, figure in FIGURES.items():
        if known.lower() == name.strip().lower():
            return figure
    raise ValueError(f"the paper has no figure {name!r} here; known are {', '.join(FIGURES)}{meant(FIGURES, name)}")
