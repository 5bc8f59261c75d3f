"""Fig. 2: feed-forward networks of 30 layers, over learning rates."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from examples.paper.asked import Asked
from examples.paper.figure import PICTURE, Figure, Result
from examples.paper.pictures import plot_rates
from examples.paper.reading import Count, Judgement
from examples.paper.trials import PAPER, RATES, best_rate, finite, scores, trained
from neurolsc.experiment import Grid, make_grid

STARTS = {"Default": "Glorot", "He": "He", "LSC": "Glorot, then LSC 1"}
ACTIVATIONS = ("relu", "sine", "cosine")
_Rates = dict[float, list[float]]


@dataclass(frozen=True)
class Curves:
    """Scores of an activation on a data set.

    Attributes:
        data: the data set.
        activation: the activation.
        validation: of every start by learning rate, over seeds; infinite where training diverged.
        test: likewise.
    """

    data: str
    activation: str
    validation: dict[str, _Rates]
    test: dict[str, _Rates]
    result: Result

    def best(self, start: str) -> tuple[float, float] | None:
        """The learning rate that is best on validation, and the mean test score there."""
        measure = self.result.grid.measure
        rate = best_rate(self.validation.get(start, {}), measure)
        found = finite(self.test.get(start, {}).get(rate, [])) if rate is not None else []
        return (rate, mean(found)) if rate is not None and found else None


class FeedForwardFigure(Figure[list[Curves]]):
    """Fig. 2."""

    name, title = "2", "Fig. 2"
    claim = "Thirty feed-forward layers learn better from an LSC of 1 than from Glorot and mostly than from He."

    def grids(self, asked: Asked) -> tuple[Grid, ...]:
        """One for every data set."""
        sets = ("mnist", "cifar10", "cifar100") if asked.whole else ("mnist",)
        lsc = "rule='paper'" if asked.whole else "method='scale'"
        fixed = PAPER | {"cell": "FeedForward", "layers": 30, "width": 128, "layer_delay": 0, "batch_size": 32}
        fixed |= {"epochs": asked.epochs or (1000 if asked.whole else 4), "readout_bias": True}
        grid = {
            "activation": list(ACTIVATIONS),
            "start": ["Default", "He", f"LSC(1.0, {lsc}, direction='depth')"],
            "lr": list(RATES) if asked.whole else [1e-3, 3.16e-4, 1e-4],
            "seed": asked.seed,
        }
        return tuple(
            make_grid({"name": f"figure-2-{data}", "fixed": fixed | asked.data(data), "grid": grid, "test": True})
            for data in sets
        )

    def measure(self, asked: Asked, results: Sequence[Result]) -> list[Curves]:
        """Scores by data set, activation, start and learning rate."""
        found = []
        for result in results:
            tables = {split: scores(result, split, "activation", "start", "lr") for split in ("validation", "test")}
            for activation in ACTIVATIONS:
                parts: dict[str, dict[str, _Rates]] = {}
                for split, table in tables.items():
                    parts[split] = {}
                    for (of, start, lr), values in table.items():
                        if of == activation:
                            parts[split].setdefault(start.partition("(")[0], {})[lr] = values
                data = result.grid.trials[0].experiment.data
                found.append(Curves(data.title, activation, parts["validation"], parts["test"], result))
        return found

    def draw(self, found: list[Curves], out: Path) -> None:
        """A panel for every activation and data set."""
        panels = {
            f"{c.activation}, {c.data}": {
                STARTS[start]: {rate: finite(values) for rate, values in rates.items()}
                for start, rates in c.test.items()
            }
            for c in found
        }
        first = found[0].result.grid
        title = f"{self.title}: {first.fixed['layers']} layers of {first.fixed['width']}, {trained(_results(found))}"
        plot_rates(panels, out / PICTURE, score="test accuracy", columns=len(ACTIVATIONS), share=True, title=title)

    def judge(self, found: list[Curves]) -> list[Judgement]:
        """Each start at the learning rate that is best for it on validation."""
        best = [{start: c.best(start) for start in STARTS} for c in found]
        glorot = _won(best, "LSC", ("Default",))
        others = _won(best, "LSC", ("Default", "He"))
        return [
            Judgement("LSC always beats the Glorot start that it began from", glorot.yes == glorot.total, str(glorot))
            if glorot.total
            else Judgement("LSC always beats the Glorot start that it began from", None, "no pair"),
            Judgement("LSC is the best of three in most panels", others.above(0.5), str(others)),
            _relu([c for c in found if c.activation == "relu"]),
        ]


def _results(found: list[Curves]) -> list[Result]:
    return list({id(c.result): c.result for c in found}.values())


def _won(best: Sequence[dict[str, tuple[float, float] | None]], start: str, others: tuple[str, ...]) -> Count:
    """In how many panels a start did better than all others; one without a score loses."""
    told = [panel for panel in best if any(panel.values())]
    yes = 0
    for panel in told:
        mine, theirs = panel[start], [panel[other] for other in others]
        yes += mine is not None and all(other is None or mine[1] > other[1] for other in theirs)
    return Count(yes, len(told))


def _relu(found: list[Curves]) -> Judgement:
    pairs = [(a, b) for c in found if (a := c.best("LSC")) and (b := c.best("He"))]
    claim = "with ReLU, LSC takes a higher learning rate than He"
    told = ", ".join(f"{a[0]:g} against {b[0]:g}, test {a[1]:.1%} against {b[1]:.1%}" for a, b in pairs)
    return Judgement(claim, all(a[0] > b[0] for a, b in pairs) if pairs else None, told or "no pair")
