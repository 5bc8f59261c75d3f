"""Tables of measured figures, one function each: from a results file to lines of Markdown.

Every table ends in a caption with the date and the versions of its results. Results that are not
there, or are of an earlier form of their script, give a line that says so instead.
"""

import json
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
MENDED = "2026-11-22"
"""the day of the changes that the changelog lists under wrong numbers; older results say so"""

TABLES: dict[str, Callable[[], list[str]]] = {}
NOT_KEYS = ("date", "core_seconds", "wall_seconds", "machine", "device", "data")
NO_THRESHOLD = 1e-3
"""a mean resting threshold below which a layer has none left"""


class Missing(Exception):
    """There are no results, or none of this form."""


def table(make: Callable[..., list[str]], name: str = "", *arguments: str) -> Callable[..., list[str]]:
    """Enter a function, at given arguments, as the table of its name."""

    @wraps(make)
    def lines() -> list[str]:
        try:
            return make(*arguments)
        except Missing as missing:
            return [f"*Not measured yet: {missing}*"]

    TABLES[name or make.__name__.replace("_", "-")] = lines
    return make


def read(name: str, script: str = "", *, form: Callable[[Any], bool] = lambda _: True) -> Any:
    """The results of a script, if they are there in the form that it writes."""
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    if found is None or not form(found):
        raise Missing(f"`python benchmarks/{script or name + '.py'}` makes this table.")
    return found


def caption(about: dict[str, Any], *more: str) -> list[str]:
    """Date, versions and settings of results, and whether they are of older code."""
    said = [f"{key} {value}" for key, value in about.items() if key not in NOT_KEYS]
    first = [str(about[key]) for key in ("data", "device") if key in about]
    older = [f"by code from before the changes of {MENDED}"] if about["date"] < MENDED else []
    return ["", f"*{'; '.join([about['date'], *first, *said, *more, *older])}.*"]


def rows(head: Iterable[str], body: Iterable[Iterable[object]]) -> list[str]:
    """A table in Markdown."""
    head = list(head)
    lines = ([*map(str, row)] for row in body)
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *lines)]


def percent(values: list[float]) -> str:
    """Mean ± deviation over seeds with the extremes; the values themselves where they are one or two."""
    if len(values) < 3:
        return ", ".join(f"{100 * value:.1f}" for value in values) + " %"
    low, high = 100 * min(values), 100 * max(values)
    return f"{100 * mean(values):.1f} ± {100 * pstdev(values):.1f} % ({low:.1f} to {high:.1f})"


def ends(runs: list[dict], where: str, key: str, form: str) -> str:
    """Means over seeds of the first and the last layer."""
    layers = [mean(column) for column in zip(*(run[where][key] for run in runs), strict=True)]
    return ", ".join(f"{value:{form}}" for value in (layers[0], layers[-1]))


def grouped(runs: list[dict], *keys: str) -> dict[tuple, list[dict]]:
    """Rows of equal keys, in the order in which they come."""
    groups: dict[tuple, list[dict]] = {}
    for run in runs:
        groups.setdefault(tuple(run[key] for key in keys), []).append(run)
    return groups


# --- does it help to learn? ------------------------------------------------------------------------


def learning(name: str, script: str) -> list[str]:
    """Scores of the arms, with rates and thresholds beside."""
    found = read(name, script)
    voices = "new voices" in found["runs"][0]
    head = ["arm", "seeds", "test mode accuracy", *(["new voices"] if voices else [])]
    head += ["before training: rate", "time radius", "resting threshold", "after: rate", "target reached"]
    body = []
    for (arm,), runs in grouped(found["runs"], "arm").items():
        rests = [mean(column) for column in zip(*(run["before"]["theta_rest"] for run in runs), strict=True)]
        left = "" if min(rests) > NO_THRESHOLD else " (a layer has no threshold left: no control)"
        line = [arm + left, len(runs), percent([run["test"]["mode_accuracy"] for run in runs])]
        line += [percent([run["new voices"]["mode_accuracy"] for run in runs])] if voices else []
        line += [ends(runs, "before", "firing_rate", ".4f"), ends(runs, "before", "time", ".2f")]
        line += [ends(runs, "before", "theta_rest", ".2g"), ends(runs, "test", "firing_rate", ".2f")]
        reached = [run["pretraining"]["converged"] for run in runs if "converged" in run["pretraining"]]
        body.append([*line, f"{sum(reached)} of {len(reached)}" if reached else ""])
    epochs = found["about"]
    return [*rows(head, body), *caption(epochs, "rates, radii and thresholds of the first and the last layer")]


table(learning, "sl-mnist", "sl_mnist", "sl_mnist.py")
table(learning, "spoken-digits", "spoken_digits", "spoken_digits.py")
table(learning, "spoken-digits-alif-pm", "spoken_digits_ALIFPlusMinus", "spoken_digits.py")
table(learning, "spoken-digits-5", "spoken_digits_5", "spoken_digits.py")
table(learning, "spoken-digits-5-slow", "spoken_digits_5_0.003", "spoken_digits.py")


# --- which radii are reached? ----------------------------------------------------------------------


@table
def convergence() -> list[str]:
    """Runs that converged with every layer firing, by target and rule."""
    found = read("convergence")
    plain = [run for run in found["runs"] if run["surrogate"] == "fast sigmoid" and not run["learnable"]]
    kinds = sorted(grouped(plain, "layers", "cell"))
    body = []
    for (target, rule), runs in sorted(grouped(plain, "target", "rule").items(), key=str):
        kind = grouped(runs, "layers", "cell")
        rate, held = (min(min(run["firing_rate"]) for run in runs), grouped(runs, "target"))
        thresholds = [value for run in next(iter(held.values())) for value in run["theta_rest"]]
        body.append([target, rule, *(_reached(kind.get(k, [])) for k in kinds), f"{rate:.5f}", f"{min(thresholds):.2g}"])
    head = ["target", "rule", *(f"{layers} x {cell}" for layers, cell in kinds)]
    return [*rows([*head, "lowest rate of a layer", "lowest resting threshold"], body), *caption(found["about"])]


def _reached(runs: list[dict]) -> str:
    done = [run for run in runs if run["converged"]]
    dead = sum(min(run["firing_rate"]) == 0 for run in done)
    return f"{len(done)} of {len(runs)}" + (f", {dead} with a silent layer" if dead else "")


@table
def convergence_surrogates() -> list[str]:
    """Runs to 0.5 by our rule, by surrogate."""
    found = read("convergence")
    runs = [run for run in found["runs"] if (run["target"], run["rule"], run["layers"]) == (0.5, "ours", 2)]
    body = [
        [cell, surrogate, "learnable" if learnable else "fixed", _reached(group)]
        for (cell, surrogate, learnable), group in grouped(runs, "cell", "surrogate", "learnable").items()
    ]
    return [*rows(["cell", "surrogate", "dampening, sharpness", "reached 0.5"], body), *caption(found["about"])]


@table
def pretraining_time() -> list[str]:
    """Seconds to 0.5."""
    found = read("pretraining_time")
    body = [
        [method, len(runs), ", ".join(str(run["seconds"]) for run in runs), sum(run["converged"] for run in runs)]
        + [ends([{"now": run} for run in runs], "now", "firing_rate", ".2f")]
        for (method,), runs in grouped(found["runs"], "method").items()
    ]
    return [*rows(["method", "seeds", "seconds", "converged", "rates"], body), *caption(found["about"])]


@table
def fresh_radii() -> list[str]:
    """How far radii are from the target on inputs that pre-training never saw."""
    found = read("fresh_radii")
    body = []
    for (data, cell, layers), runs in grouped(found["runs"], "data", "cell", "layers").items():
        done = [run for run in runs if run["converged"]]
        held, far = sum(run["furthest"] <= 0.03 for run in done), max((run["furthest"] for run in done), default=0)
        rate = min(min(run["firing_rate"]) for run in runs)
        body.append([data, f"{layers} x {cell}", f"{len(done)} of {len(runs)}", held, f"{far:.3f}", f"{rate:.4f}"])
    head = ["data", "network", "converged", "of those within 0.03", "furthest", "lowest rate of a layer"]
    return [*rows(head, body), *caption(found["about"])]


# --- how fast? --------------------------------------------------------------------------------------

RIVALS = ("ARPACK within 1 %", "ARPACK as exact as ours", "power iteration within 1 %")
RIVALS += ("power iteration as exact as ours", "jacrev and eigvals")


def radii(name: str) -> list[str]:
    """Time of a radius next to others', by regime and width."""
    found = read(name, "radii.py" if name == "radii" else "radii.py --device cuda", form=_has_contestants)
    body = []
    for (regime, n, direction), runs in grouped(found["speed"], "regime", "n", "direction").items():
        by = {run["contestant"]: run for run in runs}
        ours = by["ours"]
        line = [regime, n, direction, f"{ours['ms']:.2f}", f"{ours['p99']:.3%}", f"{ours['max']:.3%}"]
        line += [f"{by[rival]['ratio']:.2g}" if rival in by else "" for rival in RIVALS]
        body.append([*line, f"{ours['dense']:.0%}", f"{ours['firing_rate']:.4f}"])
    head = ["regime", "N", "through", "ours, ms a point", "error, 99th percentile", "largest error"]
    head += [f"{rival}, times ours" for rival in RIVALS]
    return [*rows([*head, "went dense", "spikes per step"], body), *caption(found["about"])]


def _has_contestants(found: dict) -> bool:
    return bool(found["speed"]) and "contestant" in found["speed"][0]


table(radii, "radii", "radii")
table(radii, "radii-gpu", "radii_cuda")


@table
def radii_gradient() -> list[str]:
    """Time of a radius with its gradient."""
    found = read("radii", form=_has_contestants)
    body = [
        [run["regime"], run["n"], run["direction"], run["contestant"], f"{run['ms']:.2f}", f"{run['ratio']:.3g}"]
        for run in found["gradient"]
    ]
    return [*rows(["regime", "N", "through", "by", "ms a point", "times ours"], body), *caption(found["about"])]


def _is_setting(found: dict) -> bool:
    return "setting" in found["layers"][0]


def _title(setting: dict) -> str:
    return f"2 x {setting['width']}, T = {setting['steps']}, {setting['rate']:.0%} fire"


@table
def layers() -> list[str]:
    """The fastest other's time by ours."""
    found = read("layers", form=_is_setting)
    columns = list(found["layers"][0]["ratios"]["both"])
    body = []
    for run in found["layers"]:
        for key, what in (("both", "forward and backward"), ("forward", "forward alone")):
            ratios = [run["ratios"][key][column] for column in columns]
            cells = [f"{ratio['peer / ours']} ({ratio['best peer']})" for ratio in ratios]
            rate = mean(run["rates"]["neurolsc ALIF+"])
            body.append([f"{_title(run['setting'])}, input {run['setting']['density']:.0%}", what, *cells, f"{rate:.3f}"])
    head = ["setting", "", *(f"{column}: fastest other / ours" for column in columns), "our rate"]
    return [*rows(head, body), *caption(found["about"])]


@table
def layers_memory() -> list[str]:
    """Peak memory of a forward and backward pass."""
    found = read("layers", form=_is_setting)
    runs = [run for run in found["layers"] if "peak MB" in run]
    names = list(runs[0]["peak MB"])
    body = ([name, *(run["peak MB"][name] for run in runs)] for name in names)
    return [*rows(["peak MB", *(_title(run["setting"]) for run in runs)], body), *caption(found["about"])]


@table
def layers_digits() -> list[str]:
    """A training step of spike-latency MNIST."""
    found = read("layers", form=_is_setting)
    step = found["digits"]
    ours = step["ms"]["neurolsc ALIF+"]
    body = (
        [name, ms, f"{ms / ours:.2f}", ", ".join(f"{rate:.3f}" for rate in step["rates"][name])]
        for name, ms in step["ms"].items()
    )
    return [*rows(["", "ms", "times ours", "rates"], body), *caption(found["about"])]


@table
def layers_gpu() -> list[str]:
    """Times on a GPU."""
    found = read("layers_gpu")
    body = (
        [f"T = {run['steps']}", name, ms, ", ".join(map(str, run["rates"][name]))]
        for run in found["layers"]
        for name, ms in run["ms"].items()
    )
    return [*rows(["", "by", "ms", "rates"], body), *caption(found["about"])]


@table
def shd_loader() -> list[str]:
    """Time of a batch."""
    found = read("shd_loader")
    copy = found["cached"]["numpy copies the bytes"]
    twice = found["cached"]["numpy copies the bytes, every step twice"]
    body = [[f"cold HDF5 file: {name}", f"{ms:.1f}", ""] for name, ms in found["cold"].items()]
    for name, ms in found["cached"].items():
        if "copies" not in name:
            base = twice if "twice" in name else copy
            body.append([f"cache of {name}", f"{ms:.1f}", f"{ms / base:.1f}"])
    about = found["about"] if isinstance(found["about"], str) else ", ".join(map(str, found["about"].values()))
    head = ["a batch of " + str(found["batch"]), "ms", "copies of the same bytes by numpy"]
    older = f"; by code from before the changes of {MENDED}" if about[-10:] < MENDED else ""
    return [*rows(head, body), "", f"*{about}{older}.*"]


# --- other libraries, and chips ---------------------------------------------------------------------


@table
def interop_reached() -> list[str]:
    """Radii that networks of other libraries reach."""
    found = read("interop")

    def side(values: list, form: str) -> str:
        return ", ".join("-" if value is None or value != value else f"{value:{form}}" for value in values)

    body = (
        [run["layer"], run["target"], "yes" if run["converged"] else "no", run["steps"], f"{run['seconds']:.0f}"]
        + [side(run["time"], ".2f"), side(run["depth"], ".2f"), side(run["firing_rate"], ".4f")]
        for run in found["reached"]
    )
    head = ["layers", "target", "reached", "steps", "seconds", "time", "depth", "spikes per step"]
    return [*rows(head, body), *caption(found["about"])]


@table
def interop_trained() -> list[str]:
    """What they learn."""
    found = read("interop")
    body = [
        [network, "as it is" if target is None else target, percent([run["test"] for run in runs])]
        + [percent([run["test_mean"] for run in runs]), ends([{"now": r} for r in runs], "now", "firing_rate", ".2f")]
        for (network, target), runs in grouped(found["trained"], "network", "target").items()
    ]
    head = ["network", "radius", "test, mode accuracy", "test, mean of outputs", "rates after"]
    return [*rows(head, body), *caption(found["about"], "a value a seed")]


@table
def export_exact() -> list[str]:
    """Integers against the simulator."""
    found = read("export")
    body = [
        [run["network"], run["spikes"], *(f"{run[key]:.4%}" for key in ("simulator", "states", "readout", "floats"))]
        for run in found["exactness"]
    ]
    for name, network in found["networks"].items():
        for when, score in network["scores"].items():
            for i, layer in enumerate(score["layers"], 1):
                line = [f"{name}, {when}, layer {i}", layer["spikes"], f"{layer['agreement']:.4%}"]
                line += [f"{layer['state_agreement']:.4%}", f"{score['readout_agreement']:.4%}", f"{layer['floats']:.4%}"]
                body.append(line)
    head = ["network", "spikes", "equal in the simulator", "states", "readout", "spikes equal to the floats'"]
    return [*rows(head, body), *_export_caption(found)]


@table
def export_scores() -> list[str]:
    """Accuracies of floats and integers."""
    found = read("export")
    body = []
    for name, network in found["networks"].items():
        for when, score in network["scores"].items():
            both = [score["float"], score["integer"]]
            rates = [", ".join(f"{rate:.2f}" for rate in scored["firing_rate"]) for scored in both]
            accuracies = [f"{scored['mode_accuracy']:.1%}" for scored in both]
            body.append([f"`{name}`, {when}", score["samples"], *accuracies, *rates, score["simulated"]["samples"]])
            body[-1].append(f"{score['simulated']['accuracy_simulator']:.0%}")
    head = ["network", "test samples", "float", "integer", "rates, float", "rates, integer"]
    return [*rows([*head, "simulated samples", "simulator"], body), *_export_caption(found)]


def _export_caption(found: dict) -> list[str]:
    one = next(iter(found["networks"].values()))
    data = "; ".join(f"{name}: {network['data']}" for name, network in found["networks"].items())
    return caption({"date": one["date"], "torch": one["torch"]}, ", ".join(one["tools"]), data)


@table
def one_half() -> list[str]:
    """What a radius of one half changes in a network."""
    found = read("one_half", "../docs/make_pictures.py")
    head = ["rule", "radii through time", "through depth", "`tau_theta`", "resting threshold", "adaptation"]
    keys = ("time", "depth", "tau_theta", "theta_rest", "adaptation", "firing_rate")
    forms = (".2f", ".2f", ".3g", ".2g", ".2g", ".2g")
    body = (
        [run["rule"], *(", ".join(f"{v:{form}}" for v in run[key]) for key, form in zip(keys, forms, strict=True))]
        for run in found["runs"]
    )
    return [*rows([*head, "spikes per neuron and step"], body), *caption(found["about"])]
