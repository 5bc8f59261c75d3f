"""Stable recurrent models (arXiv:1805.10369): its Fig. 2, 3 and 5 on chorales, Lemma 1, and spikes.

Models are trained as those of Table 1 (`stable_tasks`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD

from examples.paper.figure import ALWAYS, PICTURE, Count, Figure, Judgement, Result, Scale, write_tables
from examples.paper.pictures import plot_lines
from examples.paper.stable_tasks import KINDS, data_of, drawn, size_of, trained, truncated
from examples.paper.trials import Row, Trial, of_row
from neurolsc import LRU, LSTM, RNN, Network, load
from neurolsc.datasets import collate
from neurolsc.datasets.batches import BatchDataset
from neurolsc.experiment.config import DataSettings, NetworkSettings
from neurolsc.init import named
from neurolsc.plots import color, finish, panels, styled
from neurolsc.stability import (
    backward_norms,
    certificate,
    measured_rate,
    project,
    truncated_states,
    truncation_errors,
)
from neurolsc.tasks import BinaryPerStep, Classification

TASK = BinaryPerStep()


def batch_of(data: BatchDataset, count: int, steps: int) -> tuple[Tensor, Tensor]:
    """The first so many steps of pieces that have as many."""
    pieces = [(x[:steps], y[:steps]) for x, y in map(data.__getitem__, range(len(data))) if len(x) >= steps]
    return collate(pieces[:count])[:2]


# ---------------------------------------------------------------- Fig. 2


ITERATED = (1, 2, 4, 8, 16, 32)  # how many steps r of a model one step of the iterated model takes


def iterated_rates(kind: str, *, width: int, epochs: int, root: str, **ascent: int) -> Row:
    """Train a model: its measured rates on chorales over r steps, for every r."""
    parts = data_of("jsb", root)
    x, _ = batch_of(parts["test"], 8, 40)
    cell = trained(kind, parts, width=width, epochs=epochs).cell
    return {"rates": [measured_rate(cell, x.float(), steps=r, **ascent) for r in ITERATED]}


def rate_by_context(context: int, *, width: int, epochs: int, root: str, **ascent: int) -> Row:
    """Train an RNN on so many inputs: its test score, and its measured rate of one step."""
    x, _ = batch_of(data_of("jsb", root)["test"], 8, 40)
    score, cell = truncated("RNN", context, "jsb", width=width, epochs=epochs, root=root)
    return {"score": score, "rate": measured_rate(cell, x.float(), **ascent)}


@dataclass(frozen=True)
class Price:
    """Rates of iterated models, and what unconstrained ones gain by short contexts."""

    iterated: dict[str, dict[int, float]]  # by model, r and the measured rate of r steps
    by_context: dict[int, tuple[float, float]]  # by k the test score and the measured rate of one step


class PriceFigure(Figure[Price]):
    """Fig. 2: (a) the iterated models on data, (b) the price of stability against k."""

    name, title = "stable-2", "Stable models, Fig. 2"
    context: tuple[int, ...] = (2, 4, 8, 16, 32)

    def datasets(self, scale: Scale) -> set[str]:
        return {"jsb"}

    def trials(self, scale: Scale) -> list[Trial]:
        how = size_of(scale) | ({"ascent": 300, "pairs": 32} if scale.full else {"ascent": 40, "pairs": 8})
        iterated = [Trial(iterated_rates, {"kind": kind} | how) for kind in KINDS]
        return [*iterated, *(Trial(rate_by_context, {"context": k} | how) for k in self.context)]

    def measure(self, scale: Scale, results: Sequence[Row]) -> Price:
        iterated, by_context = results[: len(KINDS)], results[len(KINDS) :]
        return Price(
            {row["kind"]: dict(zip(ITERATED, row["rates"], strict=True)) for row in iterated},
            {row["context"]: (row["score"], row["rate"]) for row in by_context},
        )

    def draw(self, found: Price, out: Path) -> None:
        rates = {kind: (list(rate), list(rate.values())) for kind, rate in found.iterated.items()}
        k = list(found.by_context)
        score, rate = zip(*found.by_context.values(), strict=True)
        log = {"xscale": "log"}
        plot_lines(
            [rates, {"test": (k, score)}, {"one step": (k, rate)}],
            out / PICTURE,
            axes=[
                log
                | {
                    "title": "a) iterated, on data",
                    "xlabel": "steps r",
                    "ylabel": "measured rate",
                    "yscale": "log",
                    "ylim": (1e-6, None),
                },
                log | {"title": "b) truncated RNNs", "xlabel": "context k", "ylabel": "nll"},
                log | {"title": "their rate on data", "xlabel": "context k", "ylabel": "measured rate"},
            ],
            title=f"{self.title}: the price of stability on chorales",
        )

    def judge(self, found: Price) -> list[Judgement]:
        judged = []
        for kind, rates in found.iterated.items():
            first = next((r for r, rate in rates.items() if rate < 1), None)
            shown = f"{rates[1]:.2f} at r = 1, {rates[32]:.2g} at 32; below 1 from r = {first}"
            judged.append(Judgement(f"the iterated {kind} is stable on data", rates[32] < 1, shown))
        (short, far), (long, near) = found.by_context[self.context[0]], found.by_context[self.context[-1]]
        scores, rates = (
            f"{a:.2f} at {self.context[0]}, {b:.2f} at {self.context[-1]}" for a, b in ((short, long), (far, near))
        )
        return [
            *judged,
            Judgement("the rate falls as the context grows", near < far, rates),
            Judgement("short contexts do better", short < long, scores),
        ]

    def notes(self) -> list[str]:
        return ["(a) is of chorales, the paper's of characters"]


# ---------------------------------------------------------------- Fig. 3


def decay(kind: str, sort: str, *, width: int, epochs: int, root: str) -> Row:
    """How gradients of a network, as drawn, trained, or trained and projected, fade with distance."""
    parts = data_of("jsb", root)
    x, y = batch_of(parts["test"], 8, 40)
    if sort == "drawn":
        network, _ = drawn(kind, width, 0)
    else:
        network = trained(kind, parts, stable=sort == "stable", width=width, epochs=epochs).network
    return {"decay": truncation_errors(network, x, lambda o: TASK.loss(o, y)).decay.tolist()}


class DecayFigure(Figure[dict[str, Tensor]]):
    """Fig. 3: gradients by inputs at a distance, as drawn and trained."""

    name, title = "stable-3", "Stable models, Fig. 3"

    def datasets(self, scale: Scale) -> set[str]:
        return {"jsb"}

    def trials(self, scale: Scale) -> list[Trial]:
        sorts = ("drawn", "trained", "stable")
        return [Trial(decay, {"kind": kind, "sort": sort} | size_of(scale)) for kind in KINDS for sort in sorts]

    def measure(self, scale: Scale, results: Sequence[Row]) -> dict[str, Tensor]:
        return {f"{row['kind']}, {row['sort']}": torch.tensor(row["decay"]) for row in results}

    def draw(self, found: dict[str, Tensor], out: Path) -> None:
        lines = [
            {name: (range(len(d)), d / d[0]) for name, d in found.items() if name.startswith(kind)} for kind in KINDS
        ]
        axes = [{"xlabel": "steps between input and loss", "yscale": "log", "title": kind} for kind in KINDS]
        axes[0]["ylabel"] = "gradient by the input"
        plot_lines(lines, out / PICTURE, axes=axes, title=f"{self.title}: gradients fade with distance, chorales")

    def judge(self, found: dict[str, Tensor]) -> list[Judgement]:
        after = {name: float(d[10] / d[0]) for name, d in found.items()}
        shown = ", ".join(f"{name} {share:.1e}" for name, share in after.items())
        free = [share < 0.1 for name, share in after.items() if not name.endswith("stable")]
        slower = after["LSTM, trained"] > after["RNN, trained"]
        return [
            Judgement("gradients of unstable models vanish, to a tenth after 10 steps", all(free), shown),
            Judgement("those of the LSTM more slowly", slower, "trained, as above"),
        ]


# ---------------------------------------------------------------- Fig. 5


def distances(context: int, *, width: int, steps: int, updates: int, pieces: int, root: str) -> Row:
    """How far recurrent weights are from those of full training after every update of truncated training."""
    x, y = batch_of(data_of("jsb", root)["train"], pieces, steps)
    courses = []
    for k in (context, steps):
        network, cell = drawn("RNN", width, 0)
        optimizer, course = SGD(network.parameters(), 0.01), []
        for _ in range(updates):
            optimizer.zero_grad()
            TASK.loss(network.readout(truncated_states(cell, x.float(), k)), y).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            course.append(cell.w_rec.detach().clone())
        courses.append(course)
    return {"distances": [(a - b).norm().item() for a, b in zip(*courses, strict=True)]}


class ProximityFigure(Figure[dict[int, list[float]]]):
    """Fig. 5: how far truncated and full training part."""

    name, title = "stable-5", "Stable models, Fig. 5"
    contexts = (1, 2, 5, 10, 20)

    def datasets(self, scale: Scale) -> set[str]:
        return {"jsb"}

    def trials(self, scale: Scale) -> list[Trial]:
        how: dict[str, Any] = {"width": 8, "steps": 24, "updates": 8, "pieces": 2, "root": scale.root}
        if scale.full:
            how |= {"width": 64, "steps": 40, "updates": 60, "pieces": 8}
        return [Trial(distances, {"context": k} | how) for k in self.contexts]

    def measure(self, scale: Scale, results: Sequence[Row]) -> dict[int, list[float]]:
        return {row["context"]: row["distances"] for row in results}

    def draw(self, found: dict[int, list[float]], out: Path) -> None:
        lines = {f"k = {k}": (range(1, len(d) + 1), d) for k, d in found.items()}
        axes = [{"xlabel": "updates", "ylabel": "distance of recurrent weights", "yscale": "log"}]
        plot_lines([lines], out / PICTURE, axes=axes, title=f"{self.title}: full and truncated training of an RNN")

    def judge(self, found: dict[int, list[float]]) -> list[Judgement]:
        ends = [d[-1] for d in found.values()]
        shown = ", ".join(f"{end:.2g} at k = {k}" for k, end in zip(found, ends, strict=True))
        falls = all(a > b for a, b in pairwise(ends))
        return [Judgement("the longer the context, the nearer the weights", falls, shown)]


# ---------------------------------------------------------------- Lemma 1


@dataclass(frozen=True)
class Truncated:
    """The error of truncation of one cell, and the bound on it, by context."""

    kind: str
    rate: float
    error: list[float]
    bound: list[float]


class LemmaFigure(Figure[list[Truncated]]):
    """Lemma 1 in a grid of 20 cells."""

    name, title = "stable-lemma", "Stable models, Lemma 1"
    contexts = (1, 2, 4, 8, 16, 32)

    def measure(self, scale: Scale, results: Sequence[Result]) -> list[Truncated]:
        found, width = [], 64 if scale.full else 8
        for kind in ("linear", "tanh", "relu", "LSTM", "LRU"):
            for rate in (0.5, 0.7, 0.9, 0.97):
                torch.manual_seed(len(found))
                cell: Any = LRU(4, width) if kind == "LRU" else LSTM(4, width)
                if kind == "LRU":
                    cell.modulus = cell.modulus.clamp(max=rate)
                else:
                    cell = cell if kind == "LSTM" else RNN(4, width, activation=kind)
                    project(cell, 1.0, rate=max(rate, 0.66) if kind == "LSTM" else rate)
                cell = cell.double().eval()
                x = torch.randn(64, 8, 4, dtype=torch.float64)
                x = x / (x.abs().amax(2, keepdim=True) if kind == "LSTM" else x.norm(dim=2, keepdim=True))
                sure, full = certificate(cell, 1.0), truncated_states(cell, x, len(x))
                errors = [
                    (full - truncated_states(cell, x, k)).norm(p=sure.norm, dim=2).max().item() for k in self.contexts
                ]
                found.append(Truncated(kind, sure.rate, errors, [sure.truncation_error(k) for k in self.contexts]))
        return found

    def draw(self, found: list[Truncated], out: Path) -> None:
        _plot_bounds(found, out / PICTURE, f"{self.title}: error of the state from the last inputs alone, 20 cells")

    def judge(self, found: list[Truncated]) -> list[Judgement]:
        right = Count(sum(all(e <= b for e, b in zip(t.error, t.bound, strict=True)) for t in found), len(found))
        shares = sorted(e / b for t in found for e, b in zip(t.error, t.bound, strict=True) if b)
        shown = f"{right}; error over bound {shares[0]:.1e} to {shares[-1]:.2g}, median {shares[len(shares) // 2]:.1e}"
        return [Judgement("no cell exceeds the bound", right.above(ALWAYS), shown)]


@styled
def _plot_bounds(found: list[Truncated], path: Path, title: str) -> None:
    figure, ((ax,),) = panels(1, 1, figsize=(5.6, 4.6))
    for number, kind in enumerate(dict.fromkeys(t.kind for t in found)):
        for i, t in enumerate(one for one in found if one.kind == kind):
            ax.plot(t.bound, t.error, ".-", color=color(number), linewidth=0.8, label=None if i else kind)
    bounds = [b for t in found for b in t.bound]
    ends = [min(bounds), max(bounds)]
    ax.plot(ends, ends, color="black", linewidth=1, label="error = bound")
    ax.set(xscale="log", yscale="log", xlabel="bound", ylabel="error")
    ax.legend(fontsize="small")
    finish(figure, path, title)


# ---------------------------------------------------------------- spikes


@dataclass(frozen=True)
class Reach:
    """How far back the gradients of a spiking network have to go."""

    name: str  # cell, and how it was initialised
    tau: float | None  # its time constants in steps; None of a trained network
    steps: list[int | None]  # windows for a gradient within 1 %, by layer
    chunks: list[int | None]
    total: int  # steps of the run
    norm: float  # the largest of a product of 10 transition derivatives
    rate: float  # spikes per neuron and step


INITIALISERS = {"rate-matched": "FiringRate(0.1)", "radius 0.5": "LSC(0.5, method='scale')"}


def reach(name: str, tau: float | None, network: Network, data: BatchDataset) -> Row:
    """Measure a network on four spoken digits, and return the :class:`Reach`."""
    x, labels, *_ = collate([data[i] for i in range(4)])
    errors = truncation_errors(network, x, lambda o: Classification().loss(o, labels))
    with torch.no_grad():
        rate = mean(z.mean().item() for z in network.run(x).spikes)
    norm = backward_norms(network, x, steps=10).max().item()
    return asdict(Reach(name, tau, errors.needed(), errors.needed(chunks=True), len(x), norm, rate))


def reach_as_initialised(cell: str, initialiser: str, tau: float, *, width: int, dt: float) -> Row:
    """Initialise two layers with these time constants, in steps of dt seconds, and measure their reach."""
    data = DataSettings("shd", dt=dt, channels=140, repeat=1).load("train")
    slow: dict[str, Any] = {"tau_theta": 2 * tau, "b_theta": 0.5 / tau} if cell == "ALIFPlus" else {}
    settings = NetworkSettings(cell=cell, width=width, layers=2, tau_v=tau, **slow)
    network = settings.build(data.n_in, data.n_classes)
    batches = [collate([data[i] for i in range(16)])[0]]
    named(INITIALISERS[initialiser]).apply(network, batches, seed=0)
    return reach(f"{cell}, {initialiser}", tau, network, data)


def reach_as_trained(file: str) -> Row:
    """Measure the reach of a network of the package."""
    data = DataSettings("shd", dt=0.02, channels=140, repeat=1, binary=True).load("train")
    return reach(f"{file}, trained", None, load(file), data)


class SpikesFigure(Figure[list[Reach]]):
    """How many steps of truncated backpropagation a spiking network needs, by time constant and initialiser; ours."""

    name, title = "stable-spikes", "Truncation of spiking networks"

    def trials(self, scale: Scale) -> list[Trial]:
        size = {"width": 64, "dt": 0.01} if scale.full else {"width": 12, "dt": 0.02}
        trials = [
            Trial(reach_as_initialised, {"cell": cell, "initialiser": initialiser, "tau": tau} | size)
            for cell in ("LIF", "ALIFPlus")
            for initialiser in INITIALISERS
            for tau in ((2.0, 5.0, 10.0, 20.0, 50.0) if scale.full else (2.0, 20.0))
        ]
        return [*trials, Trial(reach_as_trained, {"file": "spoken-digits-alif"})]

    def measure(self, scale: Scale, results: Sequence[Row]) -> list[Reach]:
        return [of_row(Reach, row) for row in results]

    def draw(self, found: list[Reach], out: Path) -> None:
        rows = [
            {
                "network": r.name,
                "tau": r.tau or "-",
                "steps back for 1 %": shown(r.steps),
                "chunks for 1 %": shown(r.chunks),
                "of": r.total,
                "norm of 10 steps": f"{r.norm:.2g}",
                "spikes/step": f"{r.rate:.3f}",
            }
            for r in found
        ]
        write_tables(rows, out)
        names = dict.fromkeys(r.name for r in found if r.tau)
        lines = {
            n: ([r.tau for r in found if r.name == n], [max(k or 0 for k in r.steps) for r in found if r.name == n])
            for n in names
        }
        top = max(r.total for r in found)
        axes = [{"xscale": "log", "xlabel": "time constant in steps", "ylabel": "steps back for 1 %", "ylim": (0, top)}]
        plot_lines([lines], out / PICTURE, axes=axes, title=f"{self.title} of {top} steps, spoken digits")

    def judge(self, found: list[Reach]) -> list[Judgement]:
        longest = {(r.name, r.tau): max(k or 0 for k in r.steps) for r in found}
        taus = [r.tau for r in found if r.tau]
        low, high = min(taus), max(taus)
        judged = []
        for cell in ("LIF", "ALIFPlus"):
            ends = {s: (longest[f"{cell}, {s}", low], longest[f"{cell}, {s}", high]) for s in INITIALISERS}
            text = ", ".join(f"{s} {a} and {b}" for s, (a, b) in ends.items())
            grows = all(a < b for a, b in ends.values())
            claim = f"{cell}: time constants of {high:g} steps need a longer window than of {low:g}"
            judged.append(Judgement(claim, grows, text))
            fewer = Count(
                sum(
                    longest[f"{cell}, radius 0.5", t] < longest[f"{cell}, rate-matched", t] for t in dict.fromkeys(taus)
                ),
                len(dict.fromkeys(taus)),
            )
            judged.append(fewer.judge(f"{cell}: at a radius of 0.5 the window is shorter", ALWAYS))
        last = found[-1]
        text = f"{shown(last.steps)} of {last.total} steps, chunks of {shown(last.chunks)}"
        return [
            *judged,
            Judgement("a trained network could be truncated", max(k or 0 for k in last.steps) < last.total / 2, text),
        ]

    def notes(self) -> list[str]:
        return [
            "not of the paper: steps are back from each loss, one a step; a radius of 0.5 shortens time constants, too"
        ]


def shown(steps: Sequence[int | None]) -> str:
    return ", ".join("-" if k is None else str(k) for k in steps)
