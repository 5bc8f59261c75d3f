"""Which radii are reached, how fast, and do they hold?"""

import csv
from typing import Any

from docs.tables.results import RESULTS, caption, ends, grouped, read, rows, table


@table
def convergence() -> list[str]:
    """Runs that converged with every layer firing, by target and rule."""
    found = read("convergence")
    plain = [run for run in found["runs"] if run["surrogate"] == "fast sigmoid" and not run["learnable"]]
    kinds = sorted(grouped(plain, "layers", "cell"))
    body = []
    for (target, rule), runs in sorted(grouped(plain, "target", "rule").items(), key=str):
        kind = grouped(runs, "layers", "cell")
        rate, rest = (min(min(run[key]) for run in runs) for key in ("firing_rate", "theta_rest"))
        taus = [tau for run in runs for tau in run["tau_theta"]]
        line = [target, rule, *(_reached(kind.get(k, [])) for k in kinds), f"{rate:.5f}", f"{rest:.2g}"]
        body.append([*line, " to ".join(f"{tau:.1f}" if tau < 100 else f"{tau:.0f}" for tau in (min(taus), max(taus)))])
    head = ["target", "rule", *(f"{layers} x {cell}" for layers, cell in kinds)]
    return [*rows([*head, "lowest rate", "lowest resting threshold", "`tau_theta`"], body), *caption(found["about"])]


def _reached(runs: list[dict]) -> str:
    done = [run for run in runs if run["converged"]]
    dead = sum(min(run["firing_rate"]) == 0 for run in done)
    return f"{len(done)} of {len(runs)}" + (f", {dead} with a silent layer" if dead else "")


@table
def convergence_surrogates() -> list[str]:
    """Runs to 0.5 by our rule, by surrogate."""
    found = read("convergence")
    runs = [run for run in found["runs"] if (run["target"], run["rule"], run["layers"]) == (0.5, "ours", 2)]
    body = []
    for (cell, surrogate, learnable), group in grouped(runs, "cell", "surrogate", "learnable").items():
        rate = min(min(run["firing_rate"]) for run in group)
        body.append([cell, surrogate, "learnable" if learnable else "fixed", _reached(group), f"{rate:.2f}"])
    return [
        *rows(["cell", "surrogate", "dampening, sharpness", "reached 0.5", "lowest rate"], body),
        *caption(found["about"]),
    ]


@table
def pretraining_time() -> list[str]:
    """Seconds to 0.5."""
    found = read("pretraining_time")
    body = []
    for (method,), runs in grouped(found["runs"], "method").items():
        done, rates = (
            sum(run["converged"] for run in runs),
            ends([{"now": run} for run in runs], "now", "firing_rate", ".2f"),
        )
        body.append([method, len(runs), ", ".join(str(run["seconds"]) for run in runs), done, rates])
    return [*rows(["method", "seeds", "seconds", "converged", "rates"], body), *caption(found["about"])]


@table
def other_cells() -> list[str]:
    """Radii of the cells that send numbers, before and after."""
    found = read("other_cells")
    body = []
    for (cell, target), runs in grouped(found["runs"], "cell", "target").items():
        done = sum(run["converged"] for run in runs)
        line = [cell, target, f"{done} of {len(runs)}", ", ".join(str(run["steps"]) for run in runs)]
        line.append(", ".join(str(run["seconds"]) for run in runs))
        for when in ("before", "after"):
            for direction in ("time", "depth"):
                radii = [radius for run in runs for radius in run[when][direction]]
                low, high = min(radii), max(radii)
                line.append(f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}")
        body.append(line)
    head = ["cell", "target", "converged", "steps", "seconds", "time before", "depth before", "time after"]
    return [*rows([*head, "depth after"], body), *caption(found["about"])]


@table
def released() -> list[str]:
    """The text's neuron and loop next to those of the paper's released code."""
    found = read("released")
    body = []
    for (target, neuron, loop), runs in grouped(found["runs"], "target", "neuron", "loop").items():
        done = sum(run["converged"] for run in runs)
        line = [neuron.split(", ")[-1], loop, f"{target:g}", f"{done}/{len(runs)}"]
        body.append([*line, *(_lowest_to_highest(runs, name) for name in ("time", "depth", "rates"))])
    head = ["neuron", "loop", "target", "reached", "time", "depth", "rates"]
    return [*rows(head, body), *caption(found["about"])]


def _lowest_to_highest(runs: list[dict[str, Any]], name: str) -> str:
    """Of all layers and seeds."""
    values = [value for run in runs for value in run[name]]
    return " to ".join(dict.fromkeys(f"{value:.2g}" for value in (min(values), max(values))))


@table
def fresh_radii() -> list[str]:
    """How far radii are from the target on inputs that pre-training never saw."""
    found = read("fresh_radii")
    body = []
    for (data, cell, layers), runs in grouped(found["runs"], "data", "cell", "layers").items():
        done = [run for run in runs if run["converged"]]
        within, far = sum(run["furthest"] <= 0.03 for run in done), max((run["furthest"] for run in done), default=0)
        rate = min(min(run["firing_rate"]) for run in runs)
        body.append([data, f"{layers} x {cell}", f"{len(done)} of {len(runs)}", within, f"{far:.3f}", f"{rate:.4f}"])
    head = ["data", "network", "converged", "of those within 0.03", "furthest", "lowest rate of a layer"]
    return [*rows(head, body), *caption(found["about"])]


_VERDICTS = {True: "Found", False: "Not found", None: "Undecided"}


def _number(one: dict[str, str]) -> str:
    return one["found"].split("; ")[0].split(": ")[0]


@table
def claims() -> list[str]:
    """A line for each figure and table of the paper."""
    results = read("claims")
    lines, counts, counted = [], dict.fromkeys(_VERDICTS, 0), {}
    for figure, judged in results["figures"].items():
        known = counted.setdefault(tuple(one["claim"] for one in judged), figure)
        parts = [] if known == figure else [f"The claims of {known}, not counted again"]
        for holds, word in _VERDICTS.items():
            some = [one for one in judged if one["holds"] is holds]
            counts[holds] += len(some) * (known == figure)
            if some:
                shown = (one["claim"] if holds else f"{one['claim']} ({_number(one)})" for one in some)
                parts.append(f"*{word}:* {'; '.join(shown)}")
        lines.append(f"- **{figure}**. {'. '.join(parts)}.")
    summary = ", ".join(f"{word.lower()} {counts[holds]}" for holds, word in _VERDICTS.items())
    return [*lines, *caption({key: value for key, value in results.items() if key != "figures"}, summary)]


@table
def paper_loop() -> list[str]:
    """What the printed loop and the released one reach."""
    with (RESULTS / "paper_loop.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    body = []
    for (data, cell, loop, each, target), runs in grouped(found, "data", "cell", "loop", "each", "target").items():
        done = sum(run["reached"] == "True" for run in runs)
        name = f"{loop}, each mean" if each == "True" else loop
        line = [f"2 x {runs[0]['width']} {cell}", data, name, f"{float(target):g}", f"{done} of {len(runs)}"]
        line += [", ".join(run[key] for run in runs) for key in ("steps", "pooled")]
        for way in ("time_after", "depth_after"):
            radii = [float(radius) for run in runs for radius in run[way].split()]
            line.append(f"{min(radii):.2f} to {max(radii):.2f}")
        body.append(line)
    head = ["network", "data", "loop", "target", "reached", "steps", "pooled", "time afterwards", "depth afterwards"]
    last = max(run["date"] for run in found)
    return [*rows(head, body), *caption({"date": last})]
