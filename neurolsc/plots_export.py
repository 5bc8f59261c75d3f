"""The picture of an export."""

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from neurolsc.plots import COLORS, STYLE, save_figure

if TYPE_CHECKING:
    from neurolsc.export.loihi.report import ExportReport


def plot_export(report: "ExportReport", path: str | PathLike[str]) -> None:
    """Draw one page of an export report: errors, what the neurons did, how far the states went, who decided what."""
    layers = range(1, len(report.layers) + 1)
    names = [f"layer {i}" for i in layers]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 2, figsize=(10, 6.4), layout="constrained")
        errors, rates, ranges, decisions = axes.flat
        _bars(
            errors,
            names,
            {
                "weights, RMS": [layer.weight_error_rms for layer in report.layers],
                "weights, largest": [layer.weight_error_max for layer in report.layers],
                "reset": [layer.reset_error for layer in report.layers],
            },
            ".1e",
        )
        errors.set(title="Errors of rounding, in thresholds")
        activity = report.activity or ()
        shown = names[: len(activity)]
        _bars(
            rates,
            shown,
            {"float": [a.rate_float for a in activity], "integer": [a.rate_integer for a in activity]},
            ".3f",
        )
        rates.set(title="Spikes per neuron and step")
        extremes = [a.extremes for a in activity]
        reached = {
            "state, of 24 bits": [max(abs(v) for pair in (e.u, e.v, e.theta) for v in pair) / 2**23 for e in extremes],
            "input of a step, of 16 bits": [max(map(abs, e.drive)) / 2**15 for e in extremes],
        }
        _bars(ranges, shown, reached, ".0%")
        ranges.set(title="How much of the bits is used", ylim=(0, 1.15))
        ranges.axhline(1, color="black", linestyle="--", linewidth=1)
        known = {}
        for where, d in (("calibration", report.decisions), ("simulated", report.simulator)):
            if d is not None:
                who = {"float": d.accuracy_float, "integer": d.accuracy_integer, "simulator": d.accuracy_simulator}
                known |= {f"{where}: {name}": value for name, value in who.items() if value is not None}
                known[f"{where}: as in floats"] = d.same_as_float
        colors = [COLORS[2] if name.endswith("as in floats") else COLORS[0] for name in known]
        bars = decisions.barh(range(len(known)), list(known.values()), color=colors, height=0.6)
        decisions.bar_label(bars, fmt="{:.1%}", fontsize="small", padding=2)
        decisions.set_yticks(range(len(known)), list(known), fontsize="small")
        decisions.invert_yaxis()
        decisions.set(title="Mode accuracy, and decisions as in floats", xlim=(0, 1.15))
        said = "Simulator: " + (", ".join(report.tools) or "not run")
        if not activity:
            said = "No calibration data.   " + said
        figure.supxlabel(said, x=0.04, ha="left", fontsize="small")
        save_figure(figure, path)


def _bars(ax: Axes, names: Sequence[str], series: dict[str, list[float]], form: str) -> None:
    """Bars side by side, one group per name, with their values written above."""
    width = 0.8 / len(series)
    for k, (label, values) in enumerate(series.items()):
        at = [i + (k - (len(series) - 1) / 2) * width for i in range(len(names))]
        bars = ax.bar(at, values, width=width, color=COLORS[k], label=label)
        ax.bar_label(bars, fmt=f"{{:{form}}}", fontsize="x-small", padding=1)
    ax.set_xticks(range(len(names)), names)
    ax.margins(y=0.15)
    ax.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=len(series))
