"""What an export cost, on one page."""

from collections.abc import Collection, Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neurolsc.plots.style import COLORS, STYLE, Where, finish, panels

Series = Mapping[str, Sequence[float]]
"""Of each name a number per layer."""


def plot_export(
    path: Where = None,
    *,
    errors: Series,
    rates: Series,
    used: Series,
    decisions: Mapping[str, float],
    alike: Collection[str],
    note: str,
    title: str = "",
) -> Figure:
    """Draw errors, what the neurons did, how far the states went, and who decided what.

    Args:
        path: the picture; None: it is not written.
        errors: of rounding, in thresholds.
        rates: spikes per neuron and step.
        used: how much of the bits is used, 1 for all.
        decisions: mode accuracies, and shares of samples that are decided as in floats.
        alike: the names of the latter.
        note: a sentence below the picture.
        title: of the whole.

    Returns:
        The figure.
    """
    with mpl.rc_context(STYLE):
        figure, axes = panels(2, 2, figsize=(10, 6.4))
        _bars(axes[0, 0], errors, ".1e")
        axes[0, 0].set(title="Errors of rounding, in thresholds")
        _bars(axes[0, 1], rates, ".3f")
        axes[0, 1].set(title="Spikes per neuron and step")
        _bars(axes[1, 0], used, ".0%")
        axes[1, 0].set(title="How much of the bits is used", ylim=(0, 1.15))
        axes[1, 0].axhline(1, color="black", linestyle="--", linewidth=1)
        _decisions(axes[1, 1], decisions, alike)
        figure.supxlabel(note, x=0.04, ha="left", fontsize="small")
        return finish(figure, path, title)


def _decisions(ax: Axes, known: Mapping[str, float], alike: Collection[str]) -> None:
    colors = [COLORS[2] if name in alike else COLORS[0] for name in known]
    bars = ax.barh(range(len(known)), list(known.values()), color=colors, height=0.6)
    ax.bar_label(bars, fmt="{:.1%}", fontsize="small", padding=2)
    ax.set_yticks(range(len(known)), list(known), fontsize="small")
    ax.invert_yaxis()
    ax.set(title="Mode accuracy, and decisions as in floats", xlim=(0, 1.15))


def _bars(ax: Axes, series: Series, form: str) -> None:
    """Bars side by side, one group per layer, with their values written above."""
    width = 0.8 / len(series)
    layers = range(max(map(len, series.values())))
    for k, (label, values) in enumerate(series.items()):
        at = [i + (k - (len(series) - 1) / 2) * width for i in layers]
        bars = ax.bar(at, values, width=width, color=COLORS[k], label=label)
        ax.bar_label(bars, fmt=f"{{:{form}}}", fontsize="x-small", padding=1)
    ax.set_xticks(layers, [f"layer {i + 1}" for i in layers])
    ax.margins(y=0.15)
    ax.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=len(series))
