"""What every figure of the paper has: a claim, trials or none, a picture, and a reading."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from examples.paper.asked import Asked
from examples.paper.reading import Judgement
from neurolsc.experiment import Grid
from neurolsc.experiment.table import Row

PICTURE = "figure.png"
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """The trials of a grid that are over.

    Attributes:
        grid: the grid.
        rows: its table, a row a trial.
        folder: of the sweep.
    """

    grid: Grid
    rows: tuple[Row, ...]
    folder: Path


class Figure(ABC, Generic[T]):
    """A figure or a table of the paper."""

    name: ClassVar[str]
    """what the command calls it"""
    title: ClassVar[str]
    """what the paper calls it"""
    claim: ClassVar[str]
    """what the paper says with it, in a sentence of ours"""

    def grids(self, asked: Asked) -> tuple[Grid, ...]:
        """What has to be trained: a grid for each data set; none if nothing has to."""
        return ()

    def datasets(self, asked: Asked) -> set[str]:
        """The data sets that are looked at, by what the setting ``data`` calls them."""
        return {grid.trials[0].experiment.data.data for grid in self.grids(asked)}

    @abstractmethod
    def measure(self, asked: Asked, results: Sequence[Result]) -> T:
        """What is shown and judged, from the trials that are over, or without any."""

    @abstractmethod
    def draw(self, found: T, out: Path) -> None:
        """Write the picture, or the table, into a folder."""

    @abstractmethod
    def judge(self, found: T) -> list[Judgement]:
        """What of the claim was found."""

    def notes(self, asked: Asked) -> list[str]:
        """How it differs from the paper's, whatever the size."""
        return []
