"""A figure or table of the paper: how large it is made, its trials, and what of its claims was found."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, Generic, Literal, TypeVar

from scipy.stats import binomtest

from examples.paper.trials import Trial, run_trials
from neurolsc.experiment import Experiment, Grid, run_sweep
from neurolsc.experiment.config import WITHOUT_SAMPLE
from neurolsc.experiment.sweep import Pool
from neurolsc.experiment.table import Row
from neurolsc.io import write_csv, write_json, write_text
from neurolsc.metrics import MetricSpec

PICTURE = "figure.png"
DIVERGED = "FloatingPointError"  # what the error of a training begins with whose loss became no number
PAPER: dict[str, Any] = {  # the paper's training, as settings
    "optimizer": "adabelief-lookahead",
    "schedule": "constant",
    "by_gain": False,
    "clip_gradient": 0.0,
    "centralize": False,
    "patience": 10,
}
RATES = (1e-2, 3.16e-3, 1e-3, 3.16e-4, 1e-4, 3.16e-5, 1e-5)  # the paper's grid of learning rates
T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """How large a figure is made, and of which data."""

    size: Literal["small", "paper"] = "small"  # minutes on a CPU, or the paper's own grid
    root: str = (
        ""  # a folder with a folder for each data set, what it lacks is downloaded; empty: samples in the package
    )
    epochs: int | None = None  # most epochs of a training; None: those of the size
    seeds: int | None = None  # of every arm; None: one, or the paper's four

    @property
    def full(self) -> bool:
        return self.size == "paper"

    @property
    def seed(self) -> list[int]:
        """The seeds, as a grid has them."""
        return list(range(self.seeds or (4 if self.full else 1)))

    def data(self, name: str) -> dict[str, Any]:
        """The settings of a data set; without a root the text in the package stands for words."""
        if self.root:
            return {"data": name, "root": str(Path(self.root) / name)}
        return {"data": "text" if name == "ptb" and not self.full else name}


# ---------------------------------------------------------------- claims


@dataclass(frozen=True)
class Judgement:
    """One claim of the paper."""

    claim: str
    holds: bool | None  # None: undecided at this size
    found: str  # the numbers that it was judged by

    def __str__(self) -> str:
        return f"{self.claim} ({self.found})"


PAIRS = 6  # fewer untied pairs decide nothing: of five even all have p = 0.06
ALWAYS = 1.0  # the share of what holds without exception


@dataclass(frozen=True)
class Count:
    """How often something was so, of how many times."""

    yes: int
    total: int
    least: int = 1  # fewer decide nothing

    def above(self, share: float) -> bool | None:
        """Whether it is so more often than in a share, by the exact 95 % interval of the share that was counted.

        True if the interval lies above one half, False if it lies below the share, else None. That is the rule of
        section 21 of benchmarks/study/registration.md. Of `ALWAYS` one exception decides. None of too few.
        """
        if self.total < self.least:
            return None
        if share == ALWAYS:
            return self.yes == self.total
        interval = binomtest(self.yes, self.total).proportion_ci(0.95, "exact")
        if interval.low > 0.5:
            return True
        return False if interval.high < share else None

    def judge(self, claim: str, share: float) -> Judgement:
        return Judgement(claim, self.above(share), str(self) if self.total else "no such pair")

    def __str__(self) -> str:
        return f"{self.yes} of {self.total}"


# ---------------------------------------------------------------- figures


@dataclass(frozen=True)
class Result:
    """The trials of a grid that are over."""

    grid: Grid
    rows: tuple[Row, ...]  # its table, a row for each trial
    folder: Path  # of the sweep

    @property
    def data_title(self) -> str:
        return self.grid.trials[0].data.title

    def score(self, row: Row, split: str) -> float | None:
        """The score of a trial: the worst if its training diverged, None if there is none."""
        measure = self.grid.measure
        if row["error"] is None:
            return row.get(f"{split}_{self.grid.score}")
        worst = math.inf if measure.lower_is_better else -math.inf
        return worst if row["error"].startswith(DIVERGED) else None

    def scores(self, split: str, *by: str) -> dict[tuple[Any, ...], list[float]]:
        """Scores of trials by settings, in the order of the grid; infinite if diverged."""
        found: dict[tuple[Any, ...], list[float]] = {}
        for row in self.rows:
            if (score := self.score(row, split)) is not None:
                found.setdefault(tuple(row[name] for name in by), []).append(score)
        return found

    def duel(self, first: str, second: str, where: Callable[[Row], bool]) -> Count:
        """How often one initialisation did better than another on the test set, all else equal; no ties."""
        measure = self.grid.measure
        rest = [name for name in self.grid.varied if name != "init"]
        sides: dict[str, dict[tuple[Any, ...], float]] = {first: {}, second: {}}
        for row in filter(where, self.rows):
            score = self.score(row, "test")
            if row["init"] in sides and score is not None:
                sides[row["init"]][tuple(row[name] for name in rest)] = score
        pairs = [(sides[first][key], sides[second][key]) for key in sides[first] if key in sides[second]]
        pairs = [(a, b) for a, b in pairs if a != b]
        return Count(sum(measure.better(a, b) for a, b in pairs), len(pairs), PAIRS)


class Figure(ABC, Generic[T]):
    """A figure or a table of the paper: what it measures, draws and finds of its claims."""

    name: ClassVar[str]  # what the command calls it
    title: ClassVar[str]  # what the paper calls it
    any_of: ClassVar[bool] = False  # what a root holds of its data sets decides what is trained; else it needs all

    def grids(self, scale: Scale) -> tuple[Grid, ...]:
        """What has to be trained as the command line trains: a grid for each data set; none if nothing has to."""
        return ()

    def trials(self, scale: Scale) -> list[Trial]:
        """What else takes long, above all trainings of another kind; none if nothing does."""
        return []

    def datasets(self, scale: Scale) -> set[str]:
        """Its data sets, by what the setting ``data`` calls them."""
        return {grid.trials[0].data.data for grid in self.grids(scale)}

    @abstractmethod
    def measure(self, scale: Scale, results: Sequence[Any]) -> T:
        """What is drawn and judged.

        Args:
            scale: how large the figure is made.
            results: a :class:`Result` of each grid, then the row of each of the other trials.
        """

    @abstractmethod
    def draw(self, found: T, out: Path) -> None:
        """Write the picture, or the table, into a folder."""

    @abstractmethod
    def judge(self, found: T) -> list[Judgement]:
        """What of the claims was found."""

    def notes(self) -> list[str]:
        """How it differs from the paper's, whatever the size."""
        return []


def trials_of(figure: Figure, scale: Scale) -> list[Experiment | Trial]:
    """The trials that a figure will have run in the end."""
    of_grids = [trial for grid in figure.grids(scale) for trial in grid.trials]
    return [*of_grids, *figure.trials(scale)]


def refuse_missing(figure: Figure, scale: Scale) -> None:
    """Refuse to make a figure whose data are neither in the package nor in the root.

    Raises:
        ValueError: if there is no root, and the package has no whole set, or no sample.
        FileNotFoundError: if the root has no folder for them.
    """
    names = sorted(figure.datasets(scale))
    if not scale.root:
        missing = names if scale.full else [name for name in names if name in WITHOUT_SAMPLE]
        if missing:
            raise ValueError(
                f"the package has no whole {', '.join(missing)}: name with --root a folder that holds a folder for each, "
                "into which they are downloaded if missing."
            )
        return
    missing = [name for name in names if not (Path(scale.root) / name).is_dir()]
    if figure.any_of and missing == names:
        but = ", but for atis" if "atis" in names else ""
        raise FileNotFoundError(
            f"{figure.title} needs at least one of the folders {', '.join(names)} in {scale.root}, which has none: make "
            f"one, and what it lacks is downloaded into it{but}."
        )
    if missing and not figure.any_of:
        raise FileNotFoundError(
            f"{figure.title} needs the folder {Path(scale.root) / missing[0]}: make it, and what it lacks is downloaded "
            "into it; without a root the samples in the package are taken."
        )


def reproduce(figure: Figure, out: Path, scale: Scale, pool: Pool, *, progress: bool = True) -> str:
    """Run what a figure has to train, draw it, and say in one line what of the paper was found.

    Written are ``figure.png``, or the tables ``table.csv`` and ``table.md``, and that line as ``reading.txt``, with its
    claims as ``reading.json``. Trials lie in ``trials``: a sweep for each data set, or a row for each other trial. A
    stopped call goes on. It begins with :func:`refuse_missing`.
    """
    refuse_missing(figure, scale)
    results = []
    out.mkdir(parents=True, exist_ok=True)
    for grid in figure.grids(scale):
        folder = out / "trials" / grid.name
        results.append(Result(grid, tuple(run_sweep(grid, folder, pool, progress=progress)), folder))
    rows: list[dict[str, Any]] = []
    if trials := figure.trials(scale):
        rows = run_trials(trials, out / "trials", pool, title=figure.title, progress=progress)
    found = figure.measure(scale, [*results, *rows])
    figure.draw(found, out)
    notes = figure.notes()
    if results:
        of_paper = "" if scale.full else f"; the paper's grid has {len(trials_of(figure, Scale('paper')))}"
        notes = [trained(results) + of_paper, *notes]
    judged, parts = figure.judge(found), []
    for words, holds in (("reproduced", True), ("not reproduced", False), ("undecided", None)):
        if same := [str(one) for one in judged if one.holds is holds]:
            parts.append(f"{words}: {', '.join(same)}")
    found_out = f"{figure.title}, size {scale.size}: {'; '.join(parts)}."
    line = " ".join([found_out, *(f"{note[0].upper()}{note[1:]}." for note in notes)])
    claims = [asdict(one) for one in judged]
    write_json(out / "reading.json", {"figure": figure.title, "size": scale.size, "judged": claims})
    write_text(out / "reading.txt", f"{line}\n")
    return line


# ---------------------------------------------------------------- numbers and tables


def finite(values: Iterable[float]) -> list[float]:
    return [v for v in values if math.isfinite(v)]


def total(counts: Iterable[Count]) -> Count:
    counts = list(counts)
    return Count(sum(c.yes for c in counts), sum(c.total for c in counts), max((c.least for c in counts), default=1))


def best_rate(by_rate: dict[float, list[float]], measure: MetricSpec) -> float | None:
    """The learning rate with the best mean score, the first of equals; None if all diverged."""
    means = {rate: mean(values) for rate, values in by_rate.items() if values}
    means = {rate: value for rate, value in means.items() if math.isfinite(value)}
    sign = -1 if measure.lower_is_better else 1
    return max(means, key=lambda rate: sign * means[rate], default=None)


def trained(results: Sequence[Result]) -> str:
    """How many trials there were, how many diverged, and what else failed, if anything did."""
    rows = [row for result in results for row in result.rows]
    errors = [row["error"] for row in rows if row["error"] is not None]
    others = [error for error in errors if not error.startswith(DIVERGED)]
    diverged = len(errors) - len(others)
    text = f"{len(rows)} trials" + (f", {diverged} of which diverged" if diverged else "")
    return text + (f", {len(others)} of which failed ({others[0].rstrip('.')})" if others else "")


def write_tables(rows: list[dict[str, Any]], out: Path) -> None:
    """Write rows, whose columns are those of the first, as table.csv and table.md."""

    def text(value: Any) -> str:
        return f"{value:,}" if isinstance(value, int) else str(value)

    write_csv(out / "table.csv", rows)
    titles = list(rows[0])
    lines = [titles, ["---"] * len(titles), *([text(row[title]) for title in titles] for row in rows)]
    write_text(out / "table.md", "".join(f"| {' | '.join(line)} |\n" for line in lines))
