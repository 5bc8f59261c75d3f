"""Fig. 3: recurrent networks of two and five layers, as they start and with their radii set."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.paper.asked import Asked
from examples.paper.figure import PICTURE, Figure, Result
from examples.paper.parameters import CELLS, SPIKING, TASKS, network
from examples.paper.pictures import plot_starts
from examples.paper.reading import Count, Judgement
from examples.paper.trials import PAPER, duel, finite, total, trained, value
from neurolsc.experiment import Grid, make_grid
from neurolsc.experiment.run import UNFINISHED
from neurolsc.experiment.table import Row

_SMALL: dict[str, dict[str, Any]] = {
    "RNN ReLU": {"width": 32, "lr": 1e-3},
    "GRU": {"width": 20, "lr": 1e-2},
    "ALIF+": {"width": 32, "lr": 1e-2},
}


@dataclass(frozen=True)
class Trained:
    """The trials of all tasks, and what their starts are called in the settings.

    Attributes:
        results: a task each.
        none: no pre-training.
        one: to radii of 1.
        half: to radii of 0.5.
    """

    results: tuple[Result, ...]
    none: str
    one: str
    half: str

    def count(self, first: str, second: str, *, spiking: bool, layers: int | None = None) -> Count:
        """How often a start beat another, of networks that spike or not, and so many layers."""

        def where(row: Row) -> bool:
            return (row["cell"] in SPIKING) is spiking and layers in (None, row["layers"])

        return total(duel(result, first, second, where=where) for result in self.results)

    @property
    def depths(self) -> list[int]:
        """Numbers of layers."""
        return sorted({trial.settings["layers"] for result in self.results for trial in result.grid.trials})

    def missed(self, *starts: str, spiking: bool) -> Count:
        """How often pre-training did not reach its radii, of networks that spike or not."""
        told = [
            json.loads(path.read_text(encoding="utf-8"))["findings"]
            for result in self.results
            for row in result.rows
            if (row["cell"] in SPIKING) is spiking and row["start"] in starts
            for folder in (result.folder / row["trial"], result.folder / f"{row['trial']}{UNFINISHED}")
            if (path := folder / "start.json").exists()
        ]
        return Count(sum(map(bool, told)), len(told))


class RecurrentFigure(Figure[Trained]):
    """Fig. 3."""

    name, title = "3", "Fig. 3"
    claim = "Radii of 0.5 do better than 1 and, in deeper networks, than none; spiking ones take 1."

    def starts(self, asked: Asked) -> tuple[str, str, str]:
        """None, 1, and 0.5."""
        how = "rule='paper'" + ("" if asked.whole else ", max_steps=100, samples=2, steps=4")
        return "Default", f"LSC(1.0, {how})", f"LSC(0.5, {how})"

    def grids(self, asked: Asked) -> tuple[Grid, ...]:
        """One for every task."""
        found = []
        for task in TASKS if asked.whole else ("sl-mnist",):
            fixed = PAPER | TASKS[task] | asked.data(task) | {"epochs": asked.epochs or (1000 if asked.whole else 5)}
            if not asked.whole:
                fixed["batch_size"] = 64
            cells = {
                name: network(name, task) | ({} if asked.whole else _SMALL[name])
                for name in CELLS
                if asked.whole or name in _SMALL
            }
            grid = {
                "layers": [2, 5] if asked.whole else [2],
                "start": list(self.starts(asked)),
                "seed": asked.seed,
            }
            given = {"name": f"figure-3-{task}", "fixed": fixed, "grid": grid, "test": True}
            found.append(make_grid(given | {"either": {"cell": list(cells.values())}}))
        return tuple(found)

    def measure(self, asked: Asked, results: Sequence[Result]) -> Trained:
        """All trials, whose starts are compared."""
        return Trained(tuple(results), *self.starts(asked))

    def draw(self, found: Trained, out: Path) -> None:
        """A panel for every task and depth."""
        names = {found.none: "none", found.one: "LSC 1", found.half: "LSC 0.5"}
        panels: dict[str, dict[str, dict[str, list[float]]]] = {}
        told, shares = [], []
        for result in found.results:
            grid = result.grid
            data = grid.trials[0].experiment.data
            for layers in found.depths:
                cells: dict[str, dict[str, list[float]]] = {}
                for row in result.rows:
                    score = value(row, f"test_{grid.score}", grid.measure)
                    if row["layers"] == layers and score is not None:
                        of = cells.setdefault(_called(row), {}).setdefault(names[row["start"]], [])
                        of += finite([score])
                panels[f"{data.title}, {layers} layers"] = cells
                told.append(f"test {grid.score.replace('_', ' ')}")
                shares.append(grid.measure.share)
        title = f"{self.title}: {trained(found.results)}"
        plot_starts(panels, out / PICTURE, scores=told, shares=shares, title=title)

    def judge(self, found: Trained) -> list[Judgement]:
        """Counted over all pairs of trials that differ by their start alone, on the test set."""
        judged = []
        for layers in found.depths:
            counted = found.count(found.half, found.one, spiking=False, layers=layers)
            judged.append(_often(f"0.5 beats 1 more than 63 % of the times, {layers} layers", counted, 0.63))
        deep = found.count(found.half, found.none, spiking=False, layers=5)
        judged.append(_often("0.5 beats no pre-training at least 70 % of the times, 5 layers", deep, 0.70 - 1e-9))
        either = [found.count(start, found.none, spiking=False) for start in (found.one, found.half)]
        judged.append(_often("pre-training beats none in most scenarios", total(either), 0.5))
        spiking = found.count(found.one, found.none, spiking=True)
        judged.append(_often("spiking networks gain by 1", spiking, 0.5))
        judged.append(_often("spiking networks often miss 0.5", found.missed(found.half, spiking=True), 0.5))
        missed = found.missed(found.one, found.half, spiking=False)
        reached = Count(missed.total - missed.yes, missed.total)
        judged.append(_often("differentiable networks reach their radii", reached, 1 - 1e-9))
        return judged


def _often(claim: str, counted: Count, share: float) -> Judgement:
    return Judgement(claim, counted.above(share), str(counted) if counted.total else "no such pair")


def _called(row: Row) -> str:
    """The cell as the paper calls it."""
    activation = "relu" if row["activation"] == "swish" else row["activation"]
    for name, given in CELLS.items():
        if row["cell"] == given["cell"] and given.get("activation", activation) == activation:
            return name.replace("ReLU", "swish") if row["activation"] == "swish" else name
    raise ValueError(f"there is no {row['cell']} with {row['activation']} in Fig. 3.")
