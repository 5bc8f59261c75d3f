"""Fig. 2: feed-forward networks of 30 layers over learning rates; Fig. S1: LSTM and ALIF on every task."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from examples.paper.figure import (
    ALWAYS,
    DIVERGED,
    PAIRS,
    PAPER,
    PICTURE,
    RATES,
    Count,
    Figure,
    Judgement,
    Result,
    Scale,
    best_rate,
    finite,
    trained,
)
from examples.paper.pictures import plot_rates
from examples.paper.recurrent import TASKS, network
from neurolsc.experiment import Grid, make_grid
from neurolsc.metrics import MetricSpec

INITIALISERS = {"Default": "Glorot", "He": "He", "LSC": "Glorot, then LSC 1"}
ACTIVATIONS = ("relu", "sine", "cosine")
_Rates = dict[float, list[float]]  # scores over seeds by learning rate; infinite where training diverged


@dataclass(frozen=True)
class Curves:
    """Scores of an activation on a data set, by initialisation and learning rate."""

    data: str
    activation: str
    validation: dict[str, _Rates]
    test: dict[str, _Rates]
    result: Result

    def best(self, initialiser: str) -> tuple[float, float] | None:
        """The learning rate that is best on validation, and the mean test score there."""
        measure = self.result.grid.measure
        rate = best_rate(self.validation.get(initialiser, {}), measure)
        found = finite(self.test.get(initialiser, {}).get(rate, [])) if rate is not None else []
        return (rate, mean(found)) if rate is not None and found else None


class FeedForwardFigure(Figure[list[Curves]]):
    """Fig. 2."""

    name, title = "2", "Fig. 2"

    def grids(self, scale: Scale) -> tuple[Grid, ...]:
        sets = ("mnist", "cifar10", "cifar100") if scale.full else ("mnist",)
        lsc = "loop='paper'" if scale.full else "method='scale'"
        fixed = PAPER | {"cell": "FeedForward", "layers": 30, "width": 128, "layer_delay": 0, "batch_size": 32}
        fixed |= {"epochs": scale.epochs or (1000 if scale.full else 4), "readout_bias": True}
        grid = {
            "activation": list(ACTIVATIONS),
            "init": ["Default", "He", f"LSC(1.0, {lsc}, direction='depth')"],
            "lr": list(RATES) if scale.full else [1e-3, 3.16e-4, 1e-4],
            "seed": scale.seed,
        }
        return tuple(
            make_grid({"name": f"figure-2-{data}", "fixed": fixed | scale.data(data), "grid": grid, "test": True})
            for data in sets
        )

    def measure(self, scale: Scale, results: Sequence[Result]) -> list[Curves]:
        found = []
        for result in results:
            tables = {split: result.scores(split, "activation", "init", "lr") for split in ("validation", "test")}
            for activation in ACTIVATIONS:
                parts: dict[str, dict[str, _Rates]] = {}
                for split, table in tables.items():
                    parts[split] = {}
                    for (of, initialiser, lr), values in table.items():
                        if of == activation:
                            parts[split].setdefault(initialiser.partition("(")[0], {})[lr] = values
                found.append(Curves(result.data_title, activation, parts["validation"], parts["test"], result))
        return found

    def draw(self, found: list[Curves], out: Path) -> None:
        panels = {
            f"{c.activation}, {c.data}": {
                INITIALISERS[initialiser]: {rate: finite(values) for rate, values in rates.items()}
                for initialiser, rates in c.test.items()
            }
            for c in found
        }
        results = list({id(c.result): c.result for c in found}.values())
        first = results[0].grid
        title = f"{self.title}: {first.fixed['layers']} layers of {first.fixed['width']}, {trained(results)}"
        plot_rates(panels, out / PICTURE, score="test accuracy", columns=len(ACTIVATIONS), share=True, title=title)

    def judge(self, found: list[Curves]) -> list[Judgement]:
        """Each initialisation at the learning rate that is best for it on validation."""
        best = [{initialiser: c.best(initialiser) for initialiser in INITIALISERS} for c in found]
        relu = [(a, b) for c in found if c.activation == "relu" and (a := c.best("LSC")) and (b := c.best("He"))]
        numbers = [f"{a[0]:g} against {b[0]:g}, test {a[1]:.1%} against {b[1]:.1%}" for a, b in relu]
        apart = [a[0] > b[0] for a, b in relu if a[0] != b[0]]
        higher = Count(sum(apart), len(apart), PAIRS).above(ALWAYS)
        return [
            _won(best, "Default").judge("LSC always beats the Glorot initialisation that it began from", ALWAYS),
            _won(best, "Default", "He").judge("LSC is the best of three in most panels", 0.5),
            Judgement("with ReLU, LSC takes a higher learning rate than He", higher, ", ".join(numbers) or "no pair"),
        ]


def _won(best: Sequence[dict[str, tuple[float, float] | None]], *others: str) -> Count:
    """In how many panels LSC did better than all others, ties left out; an initialisation without a score loses."""
    won = []
    for panel in filter(lambda panel: any(panel.values()), best):
        mine, theirs = (
            [of[1] for initialiser in initialisers if (of := panel[initialiser])] for initialisers in (["LSC"], others)
        )
        if not mine or not theirs or mine[0] != max(theirs):
            won.append(bool(mine) and (not theirs or mine[0] > max(theirs)))
    return Count(sum(won), len(won), PAIRS)


# ---------------------------------------------------------------- Fig. S1

_PERPLEXITY = MetricSpec(lower_is_better=True, share=False)


@dataclass(frozen=True)
class Searched:
    """Perplexities of a task."""

    task: str  # as the setting ``data`` calls the paper's
    result: Result
    by_rate: dict[str, _Rates]  # of every cell


class RatesFigure(Figure[list[Searched]]):
    """Fig. S1."""

    name, title = "S1", "Fig. S1"

    def grids(self, scale: Scale) -> tuple[Grid, ...]:
        found = []
        for task in TASKS if scale.full else ("sl-mnist", "ptb"):
            fixed = PAPER | TASKS[task] | scale.data(task)
            fixed |= {"init": "Default", "epochs": scale.epochs or (1000 if scale.full else 3)}
            cells = [network(name, task) for name in ("LSTM", "ALIF+")]
            if not scale.full:
                fixed |= {"batch_size": 64} if task == "sl-mnist" else {"embedding": 32, "words": 50}
                cells = [cell | {"width": 24} for cell in cells]
            grid = {"lr": list(RATES) if scale.full else [1e-2, 1e-3, 1e-4], "seed": scale.seed}
            cells = [{name: v for name, v in cell.items() if name != "lr"} for cell in cells]
            either = {"cell": cells}
            found.append(make_grid({"name": f"figure-S1-{task}", "fixed": fixed, "grid": grid, "either": either}))
        return tuple(found)

    def measure(self, scale: Scale, results: Sequence[Result]) -> list[Searched]:
        """The exponential of the validation loss, by cell and rate."""
        found = []
        for task, result in zip(TASKS if scale.full else ("sl-mnist", "ptb"), results, strict=True):
            by_rate: dict[str, _Rates] = {name: {} for name in ("LSTM", "ALIF+")}
            for row in result.rows:
                name = "LSTM" if row["cell"] == "LSTM" else "ALIF+"
                scores = by_rate[name].setdefault(row["lr"], [])
                if row["error"] is None:
                    loss = row["validation_loss"]
                    scores.append(math.exp(loss) if loss < 700 else math.inf)  # beyond all floats
                elif row["error"].startswith(DIVERGED):
                    scores.append(math.inf)
            found.append(Searched(task, result, by_rate))
        return found

    def draw(self, found: list[Searched], out: Path) -> None:
        panels = {
            s.result.data_title: {
                name: {rate: finite(values) for rate, values in rates.items()} for name, rates in s.by_rate.items()
            }
            for s in found
        }
        title = f"{self.title}: {trained([s.result for s in found])}"
        plot_rates(panels, out / PICTURE, score="validation perplexity", columns=3, log=True, title=title)

    def judge(self, found: list[Searched]) -> list[Judgement]:
        numbers, right = [], 0
        for s in found:
            for name, rates in s.by_rate.items():
                best, printed = best_rate(rates, _PERPLEXITY), network(name, s.task)["lr"]
                right += best == printed
                got = "none" if best is None else f"{best:g}"
                numbers.append(f"{name} on {s.task} {got}, Table S1 {printed:g}")
        found_out = f"{Count(right, len(numbers))}: {'; '.join(numbers)}"
        holds = right == len(numbers) if numbers and found[0].result.grid.fixed["epochs"] >= 1000 else None
        return [Judgement("the best rates are those of Table S1", holds, found_out)]
