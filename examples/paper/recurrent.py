"""Fig. 3: recurrent networks of two and five layers, as built and with their radii set; Table S1: their sizes."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from examples.paper.figure import (
    ALWAYS,
    PAPER,
    PICTURE,
    Count,
    Figure,
    Judgement,
    Result,
    Scale,
    finite,
    total,
    trained,
    write_tables,
)
from examples.paper.pictures import plot_initialisations
from neurolsc.experiment import Grid, make_grid
from neurolsc.experiment.config import NetworkSettings, make
from neurolsc.experiment.run import UNFINISHED
from neurolsc.experiment.table import Row

CELLS: dict[str, dict[str, Any]] = {
    "RNN σ": {"cell": "RNN", "activation": "sigmoid"},
    "RNN ReLU": {"cell": "RNN", "activation": "relu"},
    "GRU": {"cell": "GRU"},
    "LSTM": {"cell": "LSTM"},
    "ALIF+": {"cell": "ALIFPlus"},
    "ALIF±": {"cell": "ALIFPlusMinus"},
}  # the networks of Fig. 3
SPIKING = ("ALIFPlus", "ALIFPlusMinus")
TASKS: dict[str, dict[str, Any]] = {
    "sl-mnist": {"batch_size": 256, "readout_bias": True},
    "shd": {"batch_size": 100, "readout_bias": True},
    "ptb": {"batch_size": 32, "embedding": 300, "layer_delay": 0},
}  # what all networks of a task share; five layers that read a step late miss the last words
_WIDTHS = {
    "LSTM": (42, 94, 500),
    "GRU": (53, 117, 625),
    "RNN": (128, 256, 1300),
    "ALIFPlus": (128, 256, 1300),
    "ALIFPlusMinus": (128, 256, 1300),
}
_SIZES = {"sl-mnist": (784, 10, None), "shd": (700, 20, None), "ptb": (1, 10_000, 10_000)}
_PRINTED = {
    "LSTM": (153_646, 371_884, 5_563_200),
    "GRU": (151_113, 372_665, 5_572_425),
    "RNN": (151_050, 381_460, 5_561_600),
    "ALIFPlus": (151_820, 382_998, 5_566_400),
    "ALIFPlusMinus": (151_820, 382_998, 5_566_400),
}
_RATES = {"differentiable": (1e-2, 1e-3, 3.16e-4), "spiking": (1e-3, 1e-3, 1e-3)}


def network(name: str, task: str) -> dict[str, Any]:
    """Settings of one of CELLS on one of TASKS."""
    settings, at = dict(CELLS[name]), list(TASKS).index(task)
    if settings.get("activation") == "relu" and task == "ptb":
        settings["activation"] = "swish"  # App. H
    spiking = settings["cell"] in SPIKING
    if spiking and task == "shd":
        settings["tau_theta"] = 250.0
    rate = _RATES["spiking" if spiking else "differentiable"][at]
    return settings | {"width": _WIDTHS[settings["cell"]][at], "lr": rate}


def of_network(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without those of a training."""
    return {name: value for name, value in settings.items() if name not in ("lr", "batch_size")}


_SMALL: dict[str, dict[str, Any]] = {
    "RNN ReLU": {"width": 32, "lr": 1e-3},
    "GRU": {"width": 20, "lr": 1e-2},
    "ALIF+": {"width": 32, "lr": 1e-2},
}


@dataclass(frozen=True)
class Trained:
    """The trials of all tasks, and what their initialisations are called in the settings."""

    results: tuple[Result, ...]  # of a task each
    none: str  # no pre-training
    one: str  # to radii of 1
    half: str  # to radii of 0.5
    capped: bool  # pre-training stops earlier than the paper's

    def count(self, first: str, second: str, *, spiking: bool, layers: int | None = None) -> Count:
        """How often an initialisation beat another, of networks that spike or not, and so many layers."""

        def where(row: Row) -> bool:
            return (row["cell"] in SPIKING) is spiking and layers in (None, row["layers"])

        return total(result.duel(first, second, where) for result in self.results)

    @property
    def depths(self) -> list[int]:
        """Numbers of layers."""
        return sorted({trial.settings["layers"] for result in self.results for trial in result.grid.trials})

    def missed(self, *initialisers: str, spiking: bool) -> Count:
        """How often pre-training did not reach its radii, of networks that spike or not."""
        findings = [
            json.loads(path.read_text(encoding="utf-8"))["findings"]
            for result in self.results
            for row in result.rows
            if (row["cell"] in SPIKING) is spiking and row["init"] in initialisers
            for folder in (result.folder / row["trial"], result.folder / f"{row['trial']}{UNFINISHED}")
            if (path := folder / "init.json").exists()
        ]
        return Count(sum(map(bool, findings)), len(findings))


class RecurrentFigure(Figure[Trained]):
    """Fig. 3."""

    name, title = "3", "Fig. 3"

    def initialisers(self, scale: Scale) -> tuple[str, str, str]:
        how = "loop='paper'" if scale.full else "rule='paper', max_steps=100, samples=2, steps=4"
        return "Default", f"LSC(1.0, {how})", f"LSC(0.5, {how})"

    def grids(self, scale: Scale) -> tuple[Grid, ...]:
        found = []
        for task in TASKS if scale.full else ("sl-mnist",):
            fixed = PAPER | TASKS[task] | scale.data(task) | {"epochs": scale.epochs or (1000 if scale.full else 5)}
            if not scale.full:
                fixed["batch_size"] = 64
            cells = {
                name: network(name, task) | ({} if scale.full else _SMALL[name])
                for name in CELLS
                if scale.full or name in _SMALL
            }
            grid = {"layers": [2, 5] if scale.full else [2], "init": list(self.initialisers(scale)), "seed": scale.seed}
            either = {"cell": list(cells.values())}
            found.append(
                make_grid({"name": f"figure-3-{task}", "fixed": fixed, "grid": grid, "test": True, "either": either})
            )
        return tuple(found)

    def measure(self, scale: Scale, results: Sequence[Result]) -> Trained:
        return Trained(tuple(results), *self.initialisers(scale), capped=not scale.full)

    def draw(self, found: Trained, out: Path) -> None:
        names = {found.none: "none", found.one: "LSC 1", found.half: "LSC 0.5"}
        panels: dict[str, dict[str, dict[str, list[float]]]] = {}
        scores, shares = [], []
        for result in found.results:
            grid = result.grid
            for layers in found.depths:
                cells: dict[str, dict[str, list[float]]] = {}
                for row in result.rows:
                    score = result.score(row, "test")
                    if row["layers"] == layers and score is not None:
                        of = cells.setdefault(_name(row), {}).setdefault(names[row["init"]], [])
                        of += finite([score])
                panels[f"{result.data_title}, {layers} layers"] = cells
                scores.append(f"test {grid.score.replace('_', ' ')}")
                shares.append(grid.measure.share)
        title = f"{self.title}: {trained(found.results)}"
        plot_initialisations(panels, out / PICTURE, scores=scores, shares=shares, title=title)

    def judge(self, found: Trained) -> list[Judgement]:
        """Counted over all pairs of trials that differ by their initialisation alone, on the test set.

        Fewer than six untied pairs decide nothing, and so does a pre-training that we stop early.
        """
        judged = []
        for layers in found.depths:
            counted = found.count(found.half, found.one, spiking=False, layers=layers)
            judged.append(counted.judge(f"0.5 beats 1 more than 63 % of the times, {layers} layers", 0.63))
        deep = found.count(found.half, found.none, spiking=False, layers=5)
        either = total(found.count(initialiser, found.none, spiking=False) for initialiser in (found.one, found.half))
        missed = found.missed(found.one, found.half, spiking=False)
        reached = Count(missed.total - missed.yes, missed.total).judge(
            "differentiable networks reach their radii", ALWAYS
        )
        often = found.missed(found.half, spiking=True).judge("spiking networks often miss 0.5", 0.5)
        if found.capped:
            reached, often = replace(reached, holds=reached.holds or None), replace(often, holds=None)
        return [
            *judged,
            deep.judge("0.5 beats no pre-training at least 70 % of the times, 5 layers", 0.70),
            either.judge("pre-training beats none in most scenarios", 0.5),
            found.count(found.one, found.none, spiking=True).judge("spiking networks gain by 1", 0.5),
            often,
            reached,
        ]


def _name(row: Row) -> str:
    """The cell as the paper calls it."""
    if row["cell"] == "RNN":
        return {"sigmoid": "RNN σ", "relu": "RNN ReLU", "swish": "RNN swish"}[row["activation"]]
    return {cell["cell"]: name for name, cell in CELLS.items()}[row["cell"]]


# ---------------------------------------------------------------- Table S1


@dataclass(frozen=True)
class Counted:
    """The parameters of two layers."""

    cell: str  # as the paper calls it
    task: str  # of which data set
    ours: int  # counted in the network
    printed: int  # what Table S1 says


class ParametersTable(Figure[list[Counted]]):
    """Table S1."""

    name, title = "table-S1", "Table S1"

    def measure(self, scale: Scale, results: Sequence[Result]) -> list[Counted]:
        """Build every network and count; of the GRU with one bias for each gate (eq. 48), and with two."""
        found, two = [], []
        for name, cell in CELLS.items():
            for task, printed in zip(TASKS, _PRINTED[cell["cell"]], strict=True):
                settings = {**network(name, task), **TASKS[task], "layers": 2}
                n_in, n_out, words = _SIZES[task]
                built = make(NetworkSettings, of_network(settings)).build(n_in, n_out, words)
                count = sum(p.numel() for p in built.parameters() if p.requires_grad)
                found.append(Counted(name, task, count, printed))
                if name == "GRU":  # as in PyTorch and Keras
                    more = 3 * (settings["width"] + settings.get("embedding", settings["width"]))
                    two.append(Counted("GRU, two biases a gate", task, count + more, printed))
        return found + two

    def draw(self, found: list[Counted], out: Path) -> None:
        rows = [
            {"cell": c.cell, "task": c.task, "ours": c.ours, "paper": c.printed, "difference": c.ours - c.printed}
            for c in found
        ]
        write_tables(rows, out)

    def judge(self, found: list[Counted]) -> list[Judgement]:
        same = Count(sum(c.ours == c.printed for c in found), len(found))
        apart = [f"{c.cell} on {c.task} {c.ours - c.printed:+,}" for c in found if c.ours != c.printed]
        of_task = [[c.ours for c in found if c.task == task] for task in TASKS]
        spread = max(max(counts) / min(counts) - 1 for counts in of_task)
        numbers = f"{same}" + (f"; {', '.join(apart)}" if apart else "")
        return [
            Judgement("all numbers are the printed ones", not apart, numbers),
            Judgement("comparable on each task", spread < 0.05, f"within {spread:.1%}"),
        ]
