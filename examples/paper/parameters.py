"""Table S1: the settings of the recurrent networks, and how many parameters they have."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.paper.asked import Asked
from examples.paper.figure import Figure, Result
from examples.paper.reading import Count, Judgement
from examples.paper.tables import write_tables
from neurolsc.experiment.config import NetworkSettings, make

CELLS: dict[str, dict[str, Any]] = {
    "RNN σ": {"cell": "RNN", "activation": "sigmoid"},
    "RNN ReLU": {"cell": "RNN", "activation": "relu"},
    "GRU": {"cell": "GRU"},
    "LSTM": {"cell": "LSTM"},
    "ALIF+": {"cell": "ALIFPlus"},
    "ALIF±": {"cell": "ALIFPlusMinus"},
}
"""The networks of Fig. 3."""
SPIKING = ("ALIFPlus", "ALIFPlusMinus")
TASKS: dict[str, dict[str, Any]] = {
    "sl-mnist": {"batch_size": 256, "readout_bias": True},
    "shd": {"batch_size": 100, "readout_bias": True},
    "ptb": {"batch_size": 32, "embedding": 300, "layer_delay": 0},
}
"""What all networks of a task share; five layers that read a step late miss the last words."""
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
    """The settings of a cell on a task: cell, width, and the learning rate of its kind.

    Args:
        name: one of :data:`CELLS`.
        task: one of :data:`TASKS`.
    """
    given, at = dict(CELLS[name]), list(TASKS).index(task)
    if given.get("activation") == "relu" and task == "ptb":
        given["activation"] = "swish"  # App. H
    spiking = given["cell"] in SPIKING
    if spiking and task == "shd":
        given["tau_theta"] = 250.0
    rate = _RATES["spiking" if spiking else "differentiable"][at]
    return given | {"width": _WIDTHS[given["cell"]][at], "lr": rate}


@dataclass(frozen=True)
class Counted:
    """The parameters of two layers.

    Attributes:
        cell: as the paper calls it.
        task: of which data set.
        ours: counted in the network.
        printed: what Table S1 says.
    """

    cell: str
    task: str
    ours: int
    printed: int


class ParametersTable(Figure[list[Counted]]):
    """Table S1."""

    name, title = "table-S1", "Table S1"
    claim = "With these widths the cells have about as many parameters as each other on each task."

    def measure(self, asked: Asked, results: Sequence[Result]) -> list[Counted]:
        """Build every network and count; of the GRU with one bias a gate (eq. 48), and with two."""
        found = []
        for name, given in CELLS.items():
            for at, task in enumerate(TASKS):
                printed = _PRINTED[given["cell"]][at]
                found.append(Counted(name, task, _count(name, task), printed))
        gru = [
            Counted("GRU, two biases a gate", c.task, c.ours + _biases(c.task), c.printed)
            for c in found
            if c.cell == "GRU"
        ]
        return found + gru

    def draw(self, found: list[Counted], out: Path) -> None:
        """table.csv and table.md."""
        rows = [
            {"cell": c.cell, "task": c.task, "ours": c.ours, "paper": c.printed, "difference": c.ours - c.printed}
            for c in found
        ]
        write_tables(rows, out)

    def judge(self, found: list[Counted]) -> list[Judgement]:
        """Equal numbers, and comparable ones."""
        same = Count(sum(c.ours == c.printed for c in found), len(found))
        apart = [f"{c.cell} on {c.task} {c.ours - c.printed:+,}" for c in found if c.ours != c.printed]
        of_task = [[c.ours for c in found if c.task == task] for task in TASKS]
        spread = max(max(counts) / min(counts) - 1 for counts in of_task)
        told = f"{same}" + (f"; {', '.join(apart)}" if apart else "")
        return [
            Judgement("all numbers are the printed ones", same.yes == same.total, told),
            Judgement("comparable on each task", spread < 0.05, f"within {spread:.1%}"),
        ]


def _count(name: str, task: str, layers: int = 2) -> int:
    n_in, n_out, words = _SIZES[task]
    built = make(NetworkSettings, _of_network(network(name, task) | TASKS[task]) | {"layers": layers})
    made = built.build(n_in, n_out, words)
    return sum(p.numel() for p in made.parameters() if p.requires_grad)


def _of_network(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in ("lr", "batch_size")}


def _biases(task: str) -> int:
    """What a second bias for every gate of two layers of GRU adds, as in PyTorch and Keras."""
    width = network("GRU", task)["width"]
    return 3 * (width + (TASKS[task].get("embedding") or width))
