"""Networks of other libraries, and exports."""

import csv
from statistics import mean, stdev

from docs.tables.results import RESULTS, MissingError, caption, ends, grouped, percent, read, rows, table


@table
def interop_reached() -> list[str]:
    """Radii that networks of other libraries reach."""
    found = read("interop")

    def side(values: list, form: str) -> str:
        return ", ".join("-" if value is None or value != value else f"{value:{form}}" for value in values)

    body = []
    for run in found["reached"]:
        line = [run["layer"], run["target"], "yes" if run["converged"] else "no", run["steps"], f"{run['seconds']:.0f}"]
        body.append([*line, side(run["time"], ".2f"), side(run["depth"], ".2f"), side(run["firing_rate"], ".4f")])
    head = ["layers", "target", "reached", "steps", "seconds", "time", "depth", "spikes per step"]
    return [*rows(head, body), *caption(found["about"])]


@table
def interop_trained() -> list[str]:
    """What they learn."""
    found = read("interop")
    body = []
    for (network, target), runs in grouped(found["trained"], "network", "target").items():
        line = [network, "as it is" if target is None else target, percent([run["test"] for run in runs])]
        rates = ends([{"now": run} for run in runs], "now", "firing_rate", ".2f")
        body.append([*line, percent([run["test_mean"] for run in runs]), rates])
    head = ["network", "radius", "test, mode accuracy", "test, mean of outputs", "rates after"]
    return [*rows(head, body), *caption(found["about"], "a value a seed")]


STARTS = ("built", "woken", "Relay()")


def starts(deep: str = "") -> list[str]:
    """Starts of other libraries' networks: test scores at the rate that validation chose.

    Args:
        deep: not empty: only those that make the point, four and eight layers with the two
            surrogates that snnTorch's users take.
    """
    path = RESULTS / "starts.csv"
    if not path.exists():
        raise MissingError("`python benchmarks/starts.py` makes this table.")
    with path.open() as file:
        found = list(csv.DictReader(file))
    body = []
    for (neuron, reset, surrogate, depth), runs in grouped(found, "neuron", "reset", "surrogate", "depth").items():
        usual = neuron in ("Leaky", "RLeaky") and surrogate in ("fast_sigmoid(25)", "atan") and reset == "subtract"
        if deep and not (usual and int(depth) > 2):
            continue
        arms = {start: _at_best_rate(arm) for (start,), arm in grouped(runs, "start").items()}
        rates = [float(rate) for run in runs if run["start"] == "built" for rate in run["rates"].split()]
        spikes = f"{min(rates):.3f} to {max(rates):.3f}" if rates else "-"
        body.append([f"{depth} {neuron}, {reset}, {surrogate}", spikes, *(arms.get(a, "-") for a in STARTS)])
    kinds = len(body)
    about = {
        "date": max(run["date"] for run in found),
        "data": f"{kinds} networks, 64 wide, 25 steps, 5 epochs, 3 seeds",
    }
    head = ["layers, reset, surrogate", "rates as built", "built", "woken", "`Relay()`"]
    return [*rows(head, body), *caption(about, "test, %, mean ± deviation; woken and relays fire 0.15")]


table(starts)
table(starts, "starts-deep", "deep")


def _at_best_rate(runs: list[dict]) -> str:
    by_rate = grouped(runs, "lr").values()
    best = max(by_rate, key=lambda some: mean(float(run["validation"]) for run in some))
    scores = [100 * float(run["test"]) for run in best]
    return f"{mean(scores):.0f} ± {stdev(scores):.0f}"


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
                line += [
                    f"{layer['state_agreement']:.4%}",
                    f"{score['readout_agreement']:.4%}",
                    f"{layer['floats']:.4%}",
                ]
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
