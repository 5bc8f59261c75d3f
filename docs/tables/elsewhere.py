"""Networks of other libraries, and exports."""

import csv
from statistics import mean, stdev

from docs.tables.results import RESULTS, caption, grouped, read, rows, table
from docs.tables.study import Comparison, Trials, compared_rows, family_of, new_seeds, read_rows

INITIALISERS = ("built", "rate-matched", "Relay()")


@table
def initialisations() -> list[str]:
    """Initialisations of other libraries' networks: test scores at the rate that validation chose."""
    with (RESULTS / "initialisations.csv").open() as file:
        found = list(csv.DictReader(file))
    body = []
    for (neuron, reset, surrogate, depth), runs in grouped(found, "neuron", "reset", "surrogate", "depth").items():
        arms = {initialiser: _at_best_rate(arm) for (initialiser,), arm in grouped(runs, "init").items()}
        body.append([f"{depth} {neuron}, {reset}, {surrogate}", *(arms.get(a, "-") for a in INITIALISERS)])
    kinds = len(body)
    about = {
        "date": max(run["date"] for run in found),
        "data": f"{kinds} networks, 64 wide, 25 steps, 5 epochs, 3 seeds",
    }
    head = ["layers, reset, surrogate", "as built", "rate-matched", "`Relay()`"]
    return [*rows(head, body), *caption(about, "test, %, mean±deviation; rate-matched and `Relay()` fire 0.15")]


def _libraries() -> Trials:
    """Networks of snnTorch (registration.md, sections 19, 20)."""
    return new_seeds(
        {
            "cell": f"{row['neuron']}, {row['surrogate']}",
            "layers": row["depth"],
            **{name: row[name] for name in ("init", "seed", "test", "end_rates")},
        }
        for row in read_rows("libraries")
    )


def libraries() -> list[Comparison]:
    """Initialisations of snnTorch's networks, compared as registered."""
    scores = _libraries().scores
    networks = [(cell, n) for n in ("4", "8") for cell in dict.fromkeys(cell for cell, *_ in scores)]

    def compared(first: str, second: str, cells: str) -> dict:
        return {
            f"{n} {cell}, {first} - {second}": ((cell, n, first), (cell, n, second))
            for cell, n in networks
            if cell.startswith(cells)
        }

    families = [compared("identity", "rate-matched", ""), compared("rate-matched", "built", "")]
    for part in ("recurrence", "bounded"):
        families.append(compared(part, "identity", "RLeaky") | compared(part, "rate-matched", "RLeaky"))
    return [found for pairs in families for found in family_of(pairs, scores)]


@table
def study_libraries() -> list[str]:
    """The registered comparisons of snnTorch's networks whose trials are all over."""
    return compared_rows(libraries(), _libraries())


def _at_best_rate(runs: list[dict]) -> str:
    by_rate = grouped(runs, "lr").values()
    best = max(by_rate, key=lambda some: mean(float(run["validation"]) for run in some))
    scores = [100 * float(run["test"]) for run in best]
    return f"{mean(scores):.0f}±{stdev(scores):.0f}"


@table
def export_exact() -> list[str]:
    """Integers against the simulator."""
    found = read("export")
    body = [
        [run["network"], run["spikes"], *(f"{run[key]:.2%}" for key in ("simulator", "states", "readout", "floats"))]
        for run in found["exactness"]
    ]
    for name, network in found["networks"].items():
        for when, score in network["scores"].items():
            for i, layer in enumerate(score["layers"], 1):
                shares = layer["agreement"], layer["state_agreement"], score["readout_agreement"], layer["floats"]
                body.append([f"{name}, {when}, {i}", layer["spikes"], *(f"{share:.2%}" for share in shares)])
    return [*rows(["network", "spikes", "equal", "states", "readout", "to floats"], body), *_export_caption(found)]


@table
def export_scores() -> list[str]:
    """Accuracies of floats, integers and the simulator."""
    found = read("export")
    body = []
    for name, network in found["networks"].items():
        for when, score in network["scores"].items():
            accuracies = [f"{score[kind]['mode_accuracy']:.1%}" for kind in ("float", "integer")]
            simulated = f"{score['simulated']['accuracy_simulator']:.0%} of {score['simulated']['samples']}"
            body.append([f"`{name}`, {when}", score["samples"], *accuracies, simulated])
    return [*rows(["network", "samples", "float", "integer", "Lava"], body), *_export_caption(found)]


def _export_caption(found: dict) -> list[str]:
    one = next(iter(found["networks"].values()))
    return caption({"date": one["date"], "torch": one["torch"]}, ", ".join(one["tools"]))


@table
def one_half() -> list[str]:
    """What a radius of one half changes in a network, layer by layer."""
    found = read("one_half")
    rules = [run["rule"].partition(": ") for run in found["runs"]]
    body = [["ended after", *(steps or "-" for *_, steps in rules)]]
    for title, key, form in (
        ("radii through time", "time", ".2f"),
        ("through depth", "depth", ".2f"),
        ("`tau_theta`", "tau_theta", ".3g"),
        ("threshold at rest", "theta_rest", ".2g"),
        ("adaptation", "adaptation", ".2g"),
        ("rates", "firing_rate", ".2g"),
    ):
        body.append([title, *(", ".join(f"{value:{form}}" for value in run[key]) for run in found["runs"])])
    return [*rows(["", *(rule for rule, *_ in rules)], body), *caption(found["about"])]


@table
def speakers() -> list[str]:
    """The shipped speech network's training without one of the speakers, who is then the test."""
    found = read("speakers")
    body = [
        [run["speaker"], f"{run['new']:.1%}", f"{run['known']:.1%}", ", ".join(f"{r:.2f}" for r in run["firing_rate"])]
        for run in found["runs"]
    ]
    new, known = (mean(run[key] for run in found["runs"]) for key in ("new", "known"))
    body.append(["mean", f"{new:.1%}", f"{known:.1%}", ""])
    head = ["speaker left out", "that speaker", "validation, the other four", "spikes per neuron and step"]
    return [*rows(head, body), *caption(found["about"])]
