"""Table 1 and Fig. 1 and 4 of stable recurrent models (arXiv:1805.10369): its four tasks, and how they are trained.

Plain SGD, one recurrent layer, unconstrained or projected after every update, as in the source, which chooses learning
rates for the unconstrained model alone. Its appendix is not in our copy: widths, rates and batches are ours.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from examples.paper.figure import ALWAYS, PICTURE, Count, Figure, Judgement, Scale, write_tables
from examples.paper.pictures import plot_lines
from examples.paper.trials import Row, Trial
from neurolsc import LSTM, RNN, Cell, Embedding, FeedForward, Network, evaluate, train
from neurolsc.datasets import ATIS, Text, collate
from neurolsc.datasets.batches import BatchDataset
from neurolsc.experiment.config import DataSettings
from neurolsc.metrics import span_f1
from neurolsc.stability import certificate, project, truncated_states
from neurolsc.tasks import BinaryPerStep, ClassPerStep, Task

KINDS = ("RNN", "LSTM")
Parts = Mapping[str, Any]  # data by split
CLASSES = ClassPerStep()


@dataclass(frozen=True)
class Benchmark:
    """A row of Table 1."""

    title: str
    measure: str
    printed: dict[str, tuple[float, float]]  # of RNN and LSTM, unconstrained and projected
    rates: dict[str, float]  # of SGD, the best of the unconstrained models on validation
    task: Task = CLASSES
    near: float = 0.05  # relative, within which two scores are alike
    higher: bool = False  # scores are the better, the higher


BENCHMARKS = {  # by folder
    "jsb": Benchmark(
        "JSB Chorales",
        "nll",
        {"RNN": (8.9, 8.9), "LSTM": (8.5, 8.5)},
        {"RNN": 0.1, "LSTM": 1.0},
        BinaryPerStep(),
        0.0117,
    ),
    "atis": Benchmark(
        "ATIS", "F1", {"RNN": (94.7, 94.7), "LSTM": (95.1, 94.6)}, {"RNN": 1.0, "LSTM": 3.0}, near=0.01, higher=True
    ),
    "wikitext-2": Benchmark(
        "WikiText-2", "perplexity", {"RNN": (146.7, 143.5), "LSTM": (95.7, 113.2)}, {"RNN": 1.0, "LSTM": 1.0}
    ),
    "ptb-characters": Benchmark(
        "Penn Treebank, characters", "bpc", {"RNN": (1.8, 1.9), "LSTM": (1.4, 1.9)}, {"RNN": 1.0, "LSTM": 10.0}
    ),
}


def available(scale: Scale) -> list[str]:
    """The rows whose data are at hand: with a root its folders, else the samples in the package."""
    if scale.root:
        return [name for name in BENCHMARKS if (Path(scale.root) / name).exists()]
    return [name for name in BENCHMARKS if name != "atis"]


def title_of(name: str, scale: Scale) -> str:
    """What a row is trained on."""
    of = BENCHMARKS[name].title
    if scale.root:
        return of
    return f"{of} (sample)" if name == "jsb" else f"sample text for {of}"


def data_of(name: str, root: str, *, steps: int = 35, carried: bool = True) -> dict[str, BatchDataset]:
    """The splits of a task, of the root's or of the samples in the package.

    Texts come in windows of so many steps, whose states are carried on or not.
    """
    found = {}
    streams = 20 if root else 8
    scale = Scale(root=root)
    for split in ("train", "validation", "test"):
        if name == "jsb":
            found[split] = DataSettings(**scale.data("jsb")).load(split)  # type: ignore[arg-type]
        elif name == "atis":
            found[split] = ATIS(Path(root) / "atis", split)  # type: ignore[arg-type]
        elif root:
            windows = {"words": steps, "streams": streams if carried else 0, "repeat": 1}
            found[split] = DataSettings(**scale.data(name), **windows).load(split)  # type: ignore[arg-type]
        else:
            how: dict[str, Any] = {"steps": steps, "streams": streams if carried else None, "repeat": 1}
            found[split] = Text.embedded(split, characters=name == "ptb-characters", **how)  # type: ignore[arg-type]
    return found


def drawn(kind: str, width: int, seed: int, data: Any = None) -> tuple[Network, Cell]:
    """An untrained network, for chorales or for other data, and its recurrent cell.

    Words are read and predicted by the same vectors; those of queries are read by a linear layer.
    """
    torch.manual_seed(seed)
    n_in = 88 if data is None or data.n_in == 88 else width
    cell = RNN(n_in, width, activation="tanh") if kind == "RNN" else LSTM(n_in, width)
    if n_in == 88:
        return Network([cell], 88, layer_delay=0, readout_bias=True), cell
    if isinstance(data, ATIS):
        words = FeedForward(data.n_in, width, activation="linear")
        return Network([words, cell], data.n_classes, layer_delay=0, readout_bias=True), cell
    return Network([cell], embedding=Embedding(data.n_words, width), layer_delay=0), cell


def input_bound(network: Network, kind: str) -> float:
    """The largest 2-norm of an input of an RNN, or the largest entry of one of an LSTM, at the present vectors."""
    if network.embedding is not None:
        vectors = network.embedding.weight.detach()
    elif len(network.cells) > 1:
        first: Any = network.cells[0]
        vectors = (first.w_in.T + first.bias).detach()
    else:
        return 88**0.5 if kind == "RNN" else 1.0  # 88 keys, 0 or 1
    return (vectors.norm(dim=1) if kind == "RNN" else vectors.abs()).max().item()


class Fitted(NamedTuple):
    """A network of one recurrent layer after its training."""

    network: Network
    cell: Cell
    losses: list[float]  # on validation after every epoch


def size_of(scale: Scale) -> dict[str, Any]:
    """How wide networks are, how long they are trained, and on the data of which root: settings of every trial."""
    epochs = scale.epochs or (50 if scale.full else 4)
    return {"width": 128 if scale.full else 16, "epochs": epochs, "root": scale.root}


def trained(
    kind: str,
    parts: Parts,
    *,
    width: int,
    epochs: int,
    of: str = "jsb",
    stable: bool = False,
    seed: int = 0,
    batch_size: int = 8,
) -> Fitted:
    """Train by plain SGD, projected after every update or not."""
    network, cell = drawn(kind, width, seed, parts["train"] if of != "jsb" else None)

    def optimizer(parameters: Any, lr: float) -> Optimizer:
        sgd = SGD(parameters, lr)
        if stable:
            project(cell, input_bound(network, kind))
            sgd.register_step_post_hook(lambda *_: project(cell, input_bound(network, kind)))
        return sgd

    how: dict[str, Any] = {"by_gain": False, "schedule": "constant", "centralize": False, "clip_gradient": 5.0}
    how |= {"epochs": epochs, "lr": BENCHMARKS[of].rates[kind]}
    how |= {"optimizer": optimizer, "batch_size": batch_size, "seed": seed, "progress": False}
    found = train(network, parts["train"], parts["validation"], task=BENCHMARKS[of].task, **how)
    return Fitted(network, cell, [row["validation_loss"] for row in found.history])


def score(name: str, network: Network, data: Any) -> float:
    """The measure of Table 1."""
    if name == "atis":
        return 100 * slot_f1(network, data)
    measures = evaluate(network, data, task=BENCHMARKS[name].task).measures
    if name == "jsb":
        return measures["nll"]
    return math.log2(measures["perplexity"]) if name == "ptb-characters" else measures["perplexity"]


def slot_f1(network: Network, data: ATIS) -> float:
    """The F1 score of the slots that a network finds."""
    guessed, true = [], []
    for i in range(len(data)):
        x, y = data[i]
        with torch.no_grad():
            numbers = network(x.unsqueeze(1).float()).argmax(-1)[:, 0]
        guessed.append(data.tags.decode(numbers))
        true.append(data.tags.decode(y))  # type: ignore[arg-type]
    return span_f1(guessed, true)


# ---------------------------------------------------------------- Table 1, Fig. 1


def scored(kind: str, of: str, stable: bool, seed: int, *, width: int, epochs: int, root: str) -> Row:
    """Train a model of the table: its score on the test set, certified rate, and validation losses."""
    parts = data_of(of, root)
    fitted = trained(kind, parts, of=of, stable=stable, seed=seed, width=width, epochs=epochs)
    value = score(of, fitted.network, parts["test"])
    rate = certificate(fitted.cell, input_bound(fitted.network, kind)).rate
    return {"score": value, "rate": rate, "losses": fitted.losses}


@dataclass(frozen=True)
class Scores:
    """A line of the table."""

    name: str
    title: str
    kind: str
    stable: bool
    values: tuple[float, ...]  # on the test set, of every seed
    rate: float  # certified, the largest of the seeds
    losses: list[float]  # on validation after every epoch, of the first seed


class StableTable(Figure[list[Scores]]):
    """Table 1, and Fig. 1 of the same trainings."""

    name, title = "stable-1", "Stable models, Table 1"
    any_of = True

    def datasets(self, scale: Scale) -> set[str]:
        return set(BENCHMARKS) if scale.root else {"jsb"}

    def trials(self, scale: Scale) -> list[Trial]:
        return [
            Trial(scored, {"of": of, "kind": kind, "stable": stable, "seed": seed} | size_of(scale))
            for of in available(scale)
            for kind in KINDS
            for stable in (False, True)
            for seed in scale.seed
        ]

    def measure(self, scale: Scale, results: Sequence[Row]) -> list[Scores]:
        lines: dict[tuple[str, str, bool], list[Row]] = {}
        for row in results:
            lines.setdefault((row["of"], row["kind"], row["stable"]), []).append(row)
        found = []
        for (name, kind, stable), rows in lines.items():
            values = tuple(row["score"] for row in rows)
            rate = max(row["rate"] for row in rows)
            found.append(Scores(name, title_of(name, scale), kind, stable, values, rate, rows[0]["losses"]))
        return found

    def draw(self, found: list[Scores], out: Path) -> None:
        rows, lines = [], {}
        for s in found:
            benchmark = BENCHMARKS[s.name]
            spread = f" ± {stdev(s.values):.2f}" if len(s.values) > 1 else ""
            sort = "stable" if s.stable else "unstable"
            row = {"data": s.title, "measure": benchmark.measure, "model": s.kind, "": sort}
            row |= {"score": f"{mean(s.values):.2f}{spread}", "paper": benchmark.printed[s.kind][s.stable]}
            rows.append(row | {"seeds": len(s.values), "certified rate": f"{s.rate:.3g}"})
            epochs = range(1, len(s.losses) + 1)
            lines.setdefault(s.title, {})[f"{s.kind}, {sort}"] = (epochs, s.losses)
        write_tables(rows, out)
        axes = [{"xlabel": "epochs", "ylabel": "validation loss", "title": title} for title in lines]
        plot_lines(list(lines.values()), out / PICTURE, axes=axes, title="Stable models, Fig. 1: learning curves")

    def judge(self, found: list[Scores]) -> list[Judgement]:
        """Stable models are as good if their score is at most so much worse, relatively, as the task says."""
        means = {(s.name, s.kind, s.stable): mean(s.values) for s in found}
        judged = []
        for name in dict.fromkeys(s.name for s in found):
            b = BENCHMARKS[name]
            for kind, printed in b.printed.items():
                free, stable = means[name, kind, False], means[name, kind, True]
                worse = (free - stable) / free if b.higher else (stable - free) / free
                shown = f"{b.measure} {free:.2f} and {stable:.2f}, printed {printed[0]} and {printed[1]}"
                if b.task == CLASSES and kind == "LSTM" and not b.higher:
                    judged.append(Judgement(f"{name}, LSTM: the stable one is worse", worse > 0, shown))
                else:
                    claim = f"{name}, {kind}: a stable model is as good, to {b.near:.1%}"
                    judged.append(Judgement(claim, worse < b.near, shown))
        sure = [s.rate < 1 for s in found if s.stable]
        return [*judged, Count(sum(sure), len(sure)).judge("projected models are certified", ALWAYS)]

    def notes(self) -> list[str]:
        return ["without data of one's own language is that of the sample in the package, which is no WikiText-2"]


# ---------------------------------------------------------------- Fig. 4


def stretches(data: BatchDataset, steps: int) -> list[tuple[Tensor, Tensor]]:
    pairs = map(data.__getitem__, range(len(data)))
    return [(x[i : i + steps], y[i : i + steps]) for x, y in pairs for i in range(0, len(x), steps)]  # type: ignore[index]


WORDS = 2000  # of a test text, on which truncated models are scored


def truncated(kind: str, k: int, of: str, *, width: int, epochs: int, root: str) -> tuple[float, Cell]:
    """The test score of a model that is trained and run on the last k inputs alone, and its cell."""
    if of == "jsb":
        whole = data_of(of, root)
        # of every piece the stretches of k steps, each from rest, as many steps in an update as ever
        parts: Parts = {s: stretches(whole[s], k) for s in ("train", "validation")}
        x, y, *mask = collate([whole["test"][i] for i in range(len(whole["test"]))])
    else:
        parts = data_of(of, root, steps=k, carried=False)
        text = parts["test"].text[: WORDS + 1]
        x, y, mask = text[:-1, None, None], text[1:, None], []
    fitted = trained(kind, parts, of=of, batch_size=max(1, 8 * 60 // k), width=width, epochs=epochs)
    with torch.no_grad():
        states = truncated_states(fitted.cell, fitted.network.embedded(x) if of != "jsb" else x.float(), k)
        logits = fitted.network.readout(states[..., : fitted.cell.n_hidden])
        return BENCHMARKS[of].task.measures(logits, y, *mask)["nll" if of == "jsb" else "perplexity"], fitted.cell


def truncated_score(kind: str, k: int, of: str, **size: Any) -> Row:
    """Train a truncated model: its test score."""
    value, _ = truncated(kind, k, of, **size)
    return {"score": value}


class TruncationFigure(Figure[dict[str, dict[str, dict[int, float]]]]):
    """Fig. 4: unconstrained models by the inputs that they read."""

    name, title = "stable-4", "Stable models, Fig. 4"
    any_of = True

    def datasets(self, scale: Scale) -> set[str]:
        return {"wikitext-2", "jsb"} if scale.root else {"jsb"}

    def trials(self, scale: Scale) -> list[Trial]:
        contexts = (1, 2, 4, 8, 16, 32, 64) if scale.full else (1, 4, 16)
        return [
            Trial(truncated_score, {"of": of, "kind": kind, "k": k} | size_of(scale))
            for of in ("wikitext-2", "jsb")
            if of in available(scale)
            for kind in KINDS
            for k in contexts
        ]

    def measure(self, scale: Scale, results: Sequence[Row]) -> dict[str, dict[str, dict[int, float]]]:
        found: dict[str, dict[str, dict[int, float]]] = {}
        for row in results:
            found.setdefault(row["of"], {}).setdefault(row["kind"], {})[row["k"]] = row["score"]
        return found

    def draw(self, found: dict[str, dict[str, dict[int, float]]], out: Path) -> None:
        lines = [{kind: (list(by), list(by.values())) for kind, by in kinds.items()} for kinds in found.values()]
        axes = [
            {"xlabel": "inputs read", "ylabel": BENCHMARKS[n].measure, "xscale": "log", "title": BENCHMARKS[n].title}
            for n in found
        ]
        plot_lines(lines, out / PICTURE, axes=axes, title=f"{self.title}: truncated models")

    def judge(self, found: dict[str, dict[str, dict[int, float]]]) -> list[Judgement]:
        judged = []
        for name, kinds in found.items():
            for kind, by in kinds.items():
                steps = [before - after for before, after in pairwise(by.values())]
                shown = ", ".join(f"{value:.4g} at {k}" for k, value in by.items())
                judged.append(Judgement(f"{name}, {kind}: more inputs gain less and less", steps[-1] < steps[0], shown))
        return judged
