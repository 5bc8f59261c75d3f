"""The study: what came of each arm, and which figure of the start goes with the score."""

import csv
from collections.abc import Callable, Mapping
from contextlib import suppress
from statistics import mean, pstdev

from scipy.stats import spearmanr

from docs.tables.results import RESULTS, MissingError, grouped, rows, table

_STATISTICS = {
    "time_radius": "radius through time",
    "depth_radius": "radius through depth",
    "recurrence_radius": "radius of the recurrence",
    "firing_rate": "spikes per neuron and step",
    "exponent": "Lyapunov exponent",
    "singular_time": "largest singular value through time",
    "singular_depth": "through depth",
    "usable": "share of usable derivatives",
    "survives": "share of the input that survives",
    "gradient": "norm of the gradient",
    "noise": "signal to noise of the gradient",
}
_TRAINED: dict[str, Callable[[dict[str, str]], str]] = {
    "by_gain": lambda row: "" if row["by_gain"] == "True" else "one rate for all",
    "centralize": lambda row: "" if row["centralize"] == "True" else "not centralized",
    "clip_gradient": lambda row: "" if float(row["clip_gradient"]) else "gradients not clipped",
    "clip_spectrum": lambda row: "recurrent weights clipped" if float(row["clip_spectrum"]) else "",
    "shift": lambda row: "" if row["shift"] == "0" else "images moved by a pixel",
}
"""what differs in the training of an arm from what the commands do; empty where nothing does"""
_ARM = ("cell", "tau_v", "dampening", "layer_delay", "layers", "start", *_TRAINED)
_SPEECH = ("depth", "speech", "starts", "starts-higher", "dampening", "ablation", "cells", "lif")
"""sweeps on spoken digits of people with the training as the commands do it"""
_ALL_BUT_ONE = "Relay(drawn=1)"
"""relays of all layers above the first"""
_DIVERGED = "FloatingPointError"
"""what the error of a trial begins with whose loss, or validation loss, is not finite"""
_LEAST = 8
"""trials below which no correlation is told"""


def _trials(name: str) -> list[dict[str, str]]:
    """The trials of a sweep of the study that are over, as its table.csv has them."""
    path = RESULTS / f"study_{name.replace('-', '_')}.csv"
    if not path.exists():
        raise MissingError(f"`neurolsc sweep benchmarks/study/{name}.toml` makes this table.")
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    if not found:
        raise MissingError(f"no trial of benchmarks/study/{name}.toml is over.")
    if other := [row["error"] for row in found if row["error"] and not row["error"].startswith(_DIVERGED)]:
        raise ValueError(f"{path.name}: a trial failed, and not since its loss diverged: {other[0]}")
    return found


def _whole(runs: list[dict[str, str]]) -> list[dict[str, str]]:
    """Those whose loss did not diverge."""
    return [row for row in runs if not row["error"]]


def layers_of(row: dict[str, str], name: str) -> list[float]:
    """A column with one entry a layer; those that are there."""
    named = (f"start_{name}_{i}" for i in range(1, int(row["layers"]) + 1))
    return [float(row[column]) for column in named if row.get(column)]


def _by_arm(found: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    """The chosen trials of each arm; of one that has none yet all, by learning rate."""
    arms = []
    for runs in grouped(found, *_ARM).values():
        chosen = [row for row in runs if row["chosen"] == "True"]
        arms += grouped(chosen or runs, "lr").values()
    return arms


def _spread(found: list[dict[str, str]], column: str) -> str:
    """Mean ± deviation of a score: of a share in per cent."""
    share = column.endswith("accuracy")
    values = [float(row[column]) * (100 if share else 1) for row in found if row.get(column)]
    if not values:
        return "-"
    form = ".1f" if share else ".2f"
    return f"{mean(values):{form}}" + (f" ± {pstdev(values):{form}}" if len(values) > 1 else "")


def _network(row: dict[str, str]) -> str:
    leak = f", tau_v {float(row['tau_v']):g}" if float(row["tau_v"]) > 1 else ""
    damped = f", dampening {row['dampening']}" if row["dampening"] != "0.5" else ""
    at_once = ", no delay" if row["layer_delay"] == "0" else ""
    return f"{row['layers']} x {row['width']} {row['cell']}{leak}{damped}{at_once}"


def _arms(name: str, score: str = "mode_accuracy", others: Mapping[str, tuple[str, ...]] | None = None) -> list[str]:
    """A row for each arm of a sweep, after those of some starts of other sweeps at its depths."""
    own = _trials(name)
    depths = {row["layers"] for row in own}
    more = [row for other, starts in (others or {}).items() for row in _trials(other) if row["start"] in starts]
    body = []
    for runs in _by_arm([row for row in more if row["layers"] in depths] + own):
        arm, whole = runs[0], _whole(runs)
        training = "".join(f", {words}" for tell in _TRAINED.values() if (words := tell(arm)))
        lr = arm["lr"] + (" (chosen)" if any(row["chosen"] == "True" for row in runs) else "")
        diverged = f" ({len(runs) - len(whole)} diverged)" if len(whole) < len(runs) else ""
        line = [_network(arm) + training, f"`{arm['start']}`", lr, f"{len(runs)}{diverged}"]
        body.append([*line, *(_spread(whole, f"{column}_{score}") for column in ("validation", "test"))])
    unit = "%" if score == "mode_accuracy" else score
    head = ["network", "start", "learning rate", "seeds", f"validation, {unit}", f"test, {unit}"]
    epochs = ", ".join(sorted({row["epochs"] for row in own}))
    about = f"{len(own)} trials, {epochs} epochs; more columns in benchmarks/results/study_{name.replace('-', '_')}.csv"
    return [*rows(head, body), "", f"*{about}. Mean ± deviation over seeds.*"]


STARTS = {
    "relays": ("Relay()", "Relay(rate=0.1)"),
    "from layer 2 on": (_ALL_BUT_ONE, "Relay(recurrence=0, rate=0.1, drawn=1)"),
    "radii by source": ("BySource()", "BySource(recurrence=0, rate=0.1)"),
    "woken": ("RateMatching(0.15)", "RateMatching(0.1)", "RateMatching(0.2)"),
    "LSC 0.5": ("LSC(0.5)",),
    "LSC 0.5, thresholds held": (
        "LSC(0.5, rule='hold-threshold', method='scale')",
        "LSC(0.5, rule='hold-threshold')",
    ),
    "LSC 1": ("LSC(1.0)",),
    "default": ("Default",),
}
"""starts that were tried on more than one task, by one name each"""
_ROWS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "speech of people, ALIF+, 2 layers": (("depth",), {"layers": "2"}),
    "5 layers": (("depth", "starts", "starts-higher"), {"layers": "5"}),
    "10 layers": (("depth",), {"layers": "10"}),
    "ALIF±, 2 layers": (("cells",), {"layers": "2"}),
    "ALIF±, 5 layers": (("cells",), {"layers": "5"}),
    "ALIF±, 10 layers": (("cells",), {"layers": "10"}),
    "LIF, 2 layers": (("lif",), {"layers": "2"}),
    "LIF, 5 layers": (("lif",), {"layers": "5"}),
    "LIF, 10 layers": (("lif",), {"layers": "10"}),
    "synthetic speech, ALIF+, 5 layers": (("synthetic",), {}),
    "1,800 digits, ALIF+, 2 layers": (("digits",), {"cell": "ALIFPlus", "shift": "0"}),
    "all of MNIST, ALIF+, 2 layers": (("sl-mnist",), {}),
    "store and recall, ALIF+, 2 layers": (("recall",), {}),
    "store and recall, 5 layers": (("recall-deep",), {}),
}
"""what a row of the summary is of: sweeps, and settings of their trials"""


@table
def study_summary() -> list[str]:
    """Test scores of the starts that were tried on more than one task."""
    body = [[title, *(_scored(name, *of) for name in STARTS)] for title, of in _ROWS.items()]
    return rows(["test, %", *STARTS], [line for line in body if set(line[1:]) != {"-"}])


def _scored(name: str, sweeps: tuple[str, ...], wanted: dict[str, str]) -> str:
    """The test score of the chosen trials of a start, and how many there are where not four."""
    chosen = [row for row in chosen_of(*sweeps) if row["start"] in STARTS[name] and wanted.items() <= row.items()]
    found = _whole(chosen)
    few = "" if len(found) in (0, 4) else f" ({len(found)})"
    diverged = f", {len(chosen) - len(found)} diverged" if len(found) < len(chosen) else ""
    return _spread(found, "test_mode_accuracy") + few + diverged


@table
def study_depth() -> list[str]:
    """The same start at two, five and ten layers that are read at once, and controls."""
    return _arms("depth")


@table
def study_starts() -> list[str]:
    """Published starts and LSC at five layers."""
    return _arms("starts")


@table
def study_ablation() -> list[str]:
    """LSC whole, without one of its parts, and other ways to the same radius."""
    return _arms("ablation", others={"starts": ("LSC(0.5)",)})


@table
def study_recall() -> list[str]:
    """Starts on a task that needs memory."""
    return _arms("recall")


@table
def study_music() -> list[str]:
    """The paper's cells and ALIF+ on the JSB Chorales, as they start and pre-trained."""
    return _arms("jsb", "nll")


@table
def study_radius() -> list[str]:
    """What the radius through time does at one firing rate."""
    return _arms("radius")


@table
def study_released() -> list[str]:
    """The neuron of the released code, from that code's loop and from other starts."""
    return _arms("released")


@table
def study_correlations() -> list[str]:
    """Which figure of the start goes with the score, over chosen trials with the whole training."""
    speech, of_one = chosen_of(*_SPEECH), speech_of_one()
    asked = [
        ("speech, ALIF+: mean over layers", of_one, mean),
        ("lowest of the layers", of_one, min),
        ("top layer", of_one, lambda layers: layers[-1]),
        ("five layers alone: mean", [row for row in of_one if row["layers"] == "5"], mean),
        ("speech, all neurons: mean", speech, mean),
        ("1,800 digits: mean", chosen_of("digits"), mean),
        ("all of MNIST: mean", chosen_of("sl-mnist"), mean),
        ("memory: mean", chosen_of("recall", "recall-deep"), mean),
    ]
    told = [(title, _whole(found), of) for title, found, of in asked if len(_whole(found)) >= _LEAST]
    body = [[words, *(rank_of(found, name, of) for _, found, of in told)] for name, words in _STATISTICS.items()]
    body.append(["trials", *(len(found) for _, found, _ in told)])
    return rows(["at the start", *(title for title, *_ in told)], body)


def speech_of_one() -> list[dict[str, str]]:
    """The chosen trials with ALIF+ on spoken digits of people that came to no error."""
    return _whole([row for row in chosen_of(*_SPEECH) if row["cell"] == "ALIFPlus"])


def chosen_of(*sweeps: str) -> list[dict[str, str]]:
    """The chosen trials of some sweeps that are over, with the training as the commands do it."""
    found = []
    for name in sweeps:
        with suppress(MissingError):
            found += _trials(name)
    whole = {"chosen": "True", "by_gain": "True", "centralize": "True", "shift": "0"}
    return [row for row in found if all(row[setting] == value for setting, value in whole.items())]


def rank_of(found: list[dict[str, str]], name: str, of: Callable[[list[float]], float]) -> str:
    """Spearman's rank correlation with the validation score; of what varies."""
    pairs = []
    for row in found:
        if layers := layers_of(row, name):
            pairs.append((of(layers), float(row["validation_mode_accuracy"])))
    if len({value for value, _ in pairs}) <= 2 or len(pairs) < _LEAST:
        return "-"
    return f"{spearmanr(*zip(*pairs, strict=True)).statistic:.2f}"
