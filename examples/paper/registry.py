"""All figures and tables by the name that the command takes."""

from typing import Any

from examples.paper.covariance import CovarianceFigure, PretrainedCovariance
from examples.paper.feedforward import FeedForwardFigure
from examples.paper.figure import Figure
from examples.paper.lru import LRUCurves, LRUTable
from examples.paper.parameters import ParametersTable
from examples.paper.pascal import PascalFigure
from examples.paper.paths import GridFigure, PathsFigure
from examples.paper.rates import RatesFigure
from examples.paper.recurrent import RecurrentFigure
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
