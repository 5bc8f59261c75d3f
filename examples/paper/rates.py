"""Fig. S1: perplexity over learning rates, of LSTM and ALIF on every task."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.paper.asked import Asked
from examples.paper.figure import PICTURE, Figure, Result
from examples.paper.parameters import TASKS, network
from examples.paper.pictures import plot_rates
from examples.paper.reading import Count, Judgement
from examples.paper.trials import DIVERGED, PAPER, RATES, best_rate, finite, trained
from neurolsc.experiment import Grid, make_grid
from neurolsc.metrics import MetricSpec

CELLS = ("LSTM", "ALIF+")
_PERPLEXITY = MetricSpec(lower_is_better=True, share=False)


@dataclass(frozen=True)
class Searched:
    """Perplexities of a task.

    Attributes:
        task: as the setting ``data`` calls the paper's task.
        result: the trials.
        by_rate: of every cell by learning rate, over seeds; infinite where training diverged.
    """

    task: str
    result: Result
    by_rate: dict[str, dict[float, list[float]]]


class RatesFigure(Figure[list[Searched]]):
    """Fig. S1."""

    name, title = "S1", "Fig. S1"
    claim = "LSTM and ALIF each have a learning rate that is best on a task, those of Table S1."

    def grids(self, asked: Asked) -> tuple[Grid, ...]:
        """One for every task."""
        found = []
        for task in TASKS if asked.whole else ("sl-mnist", "ptb"):
            fixed = PAPER | TASKS[task] | asked.data(task)
            fixed |= {"start": "Default", "epochs": asked.epochs or (1000 if asked.whole else 3)}
            cells = [network(name, task) for name in CELLS]
            if not asked.whole:
                fixed |= {"batch_size": 64} if task == "sl-mnist" else {"embedding": 32, "words": 50}
                cells = [cell | {"width": 24} for cell in cells]
            grid: dict[str, Any] = {
                "lr": list(RATES) if asked.whole else [1e-2, 1e-3, 1e-4],
                "seed": asked.seed,
            }
            cells = [{name: v for name, v in cell.items() if name != "lr"} for cell in cells]
            given = {"name": f"figure-S1-{task}", "fixed": fixed, "grid": grid, "either": {"cell": cells}}
            found.append(make_grid(given))
        return tuple(found)

    def measure(self, asked: Asked, results: Sequence[Result]) -> list[Searched]:
        """The exponential of the validation loss, by cell and rate."""
        found = []
        for task, result in zip(TASKS if asked.whole else ("sl-mnist", "ptb"), results, strict=True):
            by_rate: dict[str, dict[float, list[float]]] = {name: {} for name in CELLS}
            for row in result.rows:
                name = "LSTM" if row["cell"] == "LSTM" else "ALIF+"
                if row["error"] is None:
                    by_rate[name].setdefault(row["lr"], []).append(_exp(row["validation_loss"]))
                elif row["error"].startswith(DIVERGED):
                    by_rate[name].setdefault(row["lr"], []).append(math.inf)
            found.append(Searched(task, result, by_rate))
        return found

    def draw(self, found: list[Searched], out: Path) -> None:
        """A panel for every task."""
        panels = {
            s.result.grid.trials[0].experiment.data.title: {
                name: {rate: finite(values) for rate, values in rates.items()} for name, rates in s.by_rate.items()
            }
            for s in found
        }
        title = f"{self.title}: {trained([s.result for s in found])}"
        plot_rates(panels, out / PICTURE, score="validation perplexity", columns=3, log=True, title=title)

    def judge(self, found: list[Searched]) -> list[Judgement]:
        """The best rate of each, next to that of Table S1."""
        told, right = [], 0
        for s in found:
            for name, rates in s.by_rate.items():
                best, printed = best_rate(rates, _PERPLEXITY), network(name, s.task)["lr"]
                right += best == printed
                tried = sorted(rates, key=lambda rate: abs(math.log(rate / printed)))
                near = "" if printed in rates else f", nearest tried {tried[0]:g}" if tried else ""
                got = ("none, all diverged" if rates else "not found") if best is None else f"{best:g}"
                told.append(f"{name} on {s.result.grid.trials[0].settings['data']} {got}, Table S1 {printed:g}{near}")
        counted = Count(right, len(told))
        return [Judgement("the best rates are those of Table S1", right == len(told), f"{counted}: {'; '.join(told)}")]


def _exp(loss: float) -> float:
    """A perplexity; infinite where it is beyond all floats."""
    return math.exp(loss) if loss < 700 else math.inf
