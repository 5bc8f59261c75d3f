"""Fig. 4 and Table I: the LRU on words, radii of 1, 0.5 and balanced, clipped or not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, pstdev
from typing import Any, ClassVar

from examples.paper.figure import (
    ALWAYS,
    PAIRS,
    PAPER,
    PICTURE,
    Count,
    Figure,
    Judgement,
    Result,
    Scale,
    finite,
    trained,
    write_tables,
)
from neurolsc.experiment import Grid, make_grid
from neurolsc.experiment.table import best_so_far, read_history
from neurolsc.plots import plot_bands

INITIALISERS = ("default", "LSC 1", "LSC 0.5", "LSC balanced")
_SHOWN = 8  # how far above the lowest perplexity the picture reaches
Arm = tuple[int, float, str]  # layers, clipping, initialisation
_PRINTED = {  # test perplexities of Table I, by depth and clipping, in the order of the initialisations
    (3, False): (110.95, 186.60, 103.18, 97.94),
    (3, True): (110.69, 295.01, 102.69, 104.89),
    (6, False): (97.59, 535.67, 103.17, 106.45),
    (6, True): (119.04, 602.50, 101.40, 105.48),
}


@dataclass(frozen=True)
class Perplexities:
    """Perplexities by arm, and the radii that networks begin with."""

    result: Result
    names: dict[str, str]  # of the initialisations, by what they are in the settings
    validation: dict[Arm, list[float]]  # over seeds; infinite where training diverged
    test: dict[Arm, list[float]]
    radii: tuple[float, float] | None  # mean radii of the default initialisation, through time and from layer to layer

    @property
    def groups(self) -> dict[tuple[int, bool], dict[str, float]]:
        """Mean test perplexities by initialisation, of every depth with and without clipping."""
        found: dict[tuple[int, bool], dict[str, float]] = {}
        for (layers, clip, initialiser), values in self.test.items():
            found.setdefault((layers, clip > 0), {})[initialiser] = mean(values)
        return found

    @property
    def complete(self) -> list[dict[str, float]]:
        """Test perplexities by initialisation, of every depth, with and without clipping, and seed that all have."""
        found = []
        for layers, clip in dict.fromkeys((layers, clip) for layers, clip, _ in self.test):
            arms = {initialiser: self.test.get((layers, clip, initialiser), []) for initialiser in INITIALISERS}
            found += [dict(zip(INITIALISERS, scores, strict=True)) for scores in zip(*arms.values(), strict=False)]
        return found


class _LRU(Figure[Perplexities]):
    """What both have."""

    depths: ClassVar[list[dict[str, Any]]] = [{"layers": 3}, {"layers": 6}]

    def initialisers(self, scale: Scale) -> dict[str, str]:
        how = "loop='paper'" if scale.full else "method='scale'"
        texts = "Default", f"LSC(1.0, {how})", f"LSC(0.5, {how})", f"LSC('balanced', {how})"
        return dict(zip(texts, INITIALISERS, strict=True))

    def fixed(self, scale: Scale) -> dict[str, Any]:
        paper = {name: v for name, v in PAPER.items() if name != "clip_gradient"}
        return paper | {"cell": "LRU", "layer_delay": 0, "repeat": 1} | scale.data("ptb")

    def grids(self, scale: Scale) -> tuple[Grid, ...]:
        grid = {"clip_gradient": [0.0, 1.0], "init": list(self.initialisers(scale)), "seed": scale.seed}
        name = f"{self.title.lower().replace('fig.', 'figure').replace(' ', '-')}"
        either = {"depth": self.depths}
        return (make_grid({"name": name, "fixed": self.fixed(scale), "grid": grid, "test": True, "either": either}),)

    def measure(self, scale: Scale, results: Sequence[Result]) -> Perplexities:
        (result,) = results
        names = self.initialisers(scale)
        tables = []
        for split in ("validation", "test"):
            table = result.scores(split, "layers", "clip_gradient", "init")
            tables.append(
                {(layers, clip, names[initialiser]): values for (layers, clip, initialiser), values in table.items()}
            )
        radii = [_radii(row) for row in result.rows if row["init"] == "Default"]
        radii = [pair for pair in radii if all(map(math.isfinite, pair))]
        sides = (mean(t for t, _ in radii), mean(d for _, d in radii)) if radii else None
        return Perplexities(result, names, tables[0], tables[1], sides)

    def judge(self, found: Perplexities) -> list[Judgement]:
        """By test perplexity of every depth and seed, with and without clipping."""
        runs = found.complete
        worst = Count(sum(max(run, key=lambda s: run[s]) == "LSC 1" for run in runs), len(runs), PAIRS)
        half = Count(sum(min(run, key=lambda s: run[s]) == "LSC 0.5" for run in runs), len(runs), PAIRS)
        beaten = Count(sum(run["LSC 0.5"] < run["LSC 1"] for run in runs), len(runs), PAIRS)
        radii, holds, numbers = found.radii, None, "it has not run"
        if radii is not None:
            middle = sum(radii) / 2
            holds = abs(middle - 0.525) < 0.05 and radii[0] > radii[1]
            numbers = f"{middle:.3f}: {radii[0]:.3f} through time, {radii[1]:.3f} from layer to layer; the paper 0.525"
        return [
            beaten.judge("0.5 beats 1", ALWAYS),
            worst.judge("1 is the worst initialisation", ALWAYS),
            half.judge("0.5 is usually the best initialisation", 0.5),
            _clipping(found.groups),
            Judgement("the default's mean radius is near 0.5, time above depth", holds, numbers),
        ]


class LRUCurves(_LRU):
    """Fig. 4."""

    name, title = "4", "Fig. 4"

    def fixed(self, scale: Scale) -> dict[str, Any]:
        """Width 128, a constant rate."""
        own = {"width": 128, "words": 100, "epochs": 1000} if scale.full else {"width": 32, "words": 50, "epochs": 20}
        own |= {"epochs": scale.epochs or own["epochs"], "lr": 1e-2, "batch_size": 32}
        return super().fixed(scale) | own

    def draw(self, found: Perplexities, out: Path) -> None:
        panels: dict[str, dict[str, list[list[float]]]] = {}
        for row in found.result.rows:
            if row["error"] is None:
                arm = found.names[row["init"]] + (", clipped" if row["clip_gradient"] else "")
                history = best_so_far(read_history(found.result.folder / row["trial"]))
                curve = [epoch["validation_perplexity"] for epoch in history]
                panels.setdefault(f"{row['layers']} layers", {}).setdefault(arm, []).append(curve)
        lowest = min(
            (score for arms in panels.values() for runs in arms.values() for run in runs for score in run), default=1
        )
        title = f"{self.title}: LRU on {found.result.data_title}, {trained([found.result])}"
        score = "validation perplexity\nof the best epoch so far"
        limits = 0.9 * lowest, _SHOWN * lowest
        plot_bands(panels, out / PICTURE, score=score, share=False, log=True, limits=limits, title=title)


class LRUTable(_LRU):
    """Table I."""

    name, title = "table-I", "Table I"
    depths: ClassVar[list[dict[str, Any]]] = [
        {"layers": 3, "exterior_dropout": 0.2},
        {"layers": 6, "exterior_dropout": 0.1},
    ]

    def fixed(self, scale: Scale) -> dict[str, Any]:
        """Width 256, a rate that falls to a tenth, words that are switched."""
        own = {"width": 256, "words": 300, "batch_size": 64, "epochs": 100, "lr": 3e-2}
        if not scale.full:
            own = {"width": 32, "words": 50, "batch_size": 32, "epochs": 20, "lr": 1e-2}
        own["epochs"] = scale.epochs or own["epochs"]
        if scale.full:  # weights are averaged (SWA), which early stopping would prevent
            own |= {"average": 0.5, "patience": own["epochs"]}
        own |= {"schedule": "cosine-to-tenth", "word_switch": 0.05, "word_switch_epochs": 3}
        return super().fixed(scale) | own

    def draw(self, found: Perplexities, out: Path) -> None:
        rows = []
        for (layers, clip), printed in _PRINTED.items():
            for initialiser, theirs in zip(INITIALISERS, printed, strict=True):
                row: dict[str, Any] = {"layers": layers, "init": initialiser, "clipped": "yes" if clip else "no"}
                arm = (layers, float(clip), initialiser)
                for split, means in (("validation", found.validation), ("test", found.test)):
                    row[f"{split} perplexity"] = _spread(means.get(arm, []))
                rows.append(row | {"paper, test": f"{theirs:.2f}"})
        write_tables(rows, out)

    def notes(self) -> list[str]:
        return [
            "at the paper's size weights are averaged over the second half of the epochs (SWA), at the small one not"
        ]


def _radii(row: dict[str, Any]) -> tuple[float, float]:
    """Means over all layers, of the radii through time and of those through depth, as the paper's mean is defined.

    The vectors of words that the first layer reads are short, and its norm makes them long, which counts.
    """
    sides = []
    for side in ("time", "depth"):
        values = [row.get(f"init_{side}_radius_{layer}") for layer in range(1, row["layers"] + 1)]
        known = [v for v in values if v is not None]
        sides.append(mean(known) if known else math.nan)
    return sides[0], sides[1]


def _clipping(groups: dict[tuple[int, bool], dict[str, float]]) -> Judgement:
    """What clipping does to a perplexity next to what the initialisation does, as mean factors."""
    clipped, initialised = [], []
    for (layers, clip), initialisers in groups.items():
        other = groups.get((layers, not clip), {})
        if not clip:
            clipped += [_factor(value, other[s]) for s, value in initialisers.items() if s in other and s != "LSC 1"]
        if {"LSC 1", "LSC 0.5"} <= initialisers.keys():
            initialised.append(_factor(initialisers["LSC 1"], initialisers["LSC 0.5"]))
    claim, a, b = "the initialisation matters more than clipping", finite(clipped), finite(initialised)
    if not a or not b:
        return Judgement(claim, None, "no pair without a diverged training")
    by_clipping, by_initialisation = math.exp(mean(a)), math.exp(mean(b))
    numbers = f"clipping changes the perplexity {by_clipping:.2f}-fold, 1 in place of 0.5 {by_initialisation:.3g}-fold"
    return Judgement(claim, by_initialisation > by_clipping, numbers)


def _factor(a: float, b: float) -> float:
    return abs(math.log(a) - math.log(b)) if math.isfinite(a) and math.isfinite(b) else math.inf


def _spread(values: Sequence[float]) -> str:
    """Mean ± deviation over seeds, divided by their number; how many diverged."""
    numbers = finite(values)
    if not numbers:
        return "diverged" if values else "-"
    text = f"{mean(numbers):.4g}" + (f" ± {pstdev(numbers):.3g}" if len(numbers) > 1 else "")
    return text + (f" ({len(values) - len(numbers)} diverged)" if len(numbers) < len(values) else "")
