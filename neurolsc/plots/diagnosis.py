"""What was found of a network that does not learn, on one page."""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neurolsc.plots.style import STYLE, Where, color, finish, panels

Series = Mapping[str, Sequence[float]]
"""Of each name a number per layer; NaN where there is none."""


def plot_diagnosis(
    path: Where = None,
    *,
    activity: Series,
    stretch: Series,
    kept: Series,
    back: np.ndarray | None,
    gradient: Sequence[float] | None,
    noise: Sequence[float] | None,
    findings: Sequence[str],
    title: str = "",
) -> Figure:
    """Draw what the layers do, how they stretch and keep gradients, and what was found.

    Args:
        path: the picture; None: it is not written.
        activity: shares of what neurons do.
        stretch: factors by which a step multiplies gradients.
        kept: shares of what gets through.
        back: norm of the last step's gradient, by layer and steps back (L, T); None if not known.
        gradient: its norm by the parameters of each layer; None if not known.
        noise: its signal to noise; None if not known.
        findings: sentences below the picture.
        title: of the whole.

    Returns:
        The figure.
    """
    lines = [line for finding in findings for line in textwrap.wrap(finding, 180, subsequent_indent="    ")]
    with mpl.rc_context(STYLE):
        figure, axes = panels(2, 3, figsize=(13, 6.6 + 0.19 * len(lines)))
        _lines(axes[0, 0], activity, "What the neurons do", "share")
        _lines(axes[0, 1], stretch, "What a step multiplies", "factor")
        axes[0, 1].axhline(1, color="black", linestyle="--", linewidth=1)
        _lines(axes[0, 2], kept, "What gets through", "share")
        _back(axes[1, 0], back)
        _dots(axes[1, 1], gradient, "Gradient of the loss by the weights", "norm")
        _dots(axes[1, 2], noise, "Its signal to noise between batches", "|mean|² / variance")
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize="small", parse_math=False)
        return finish(figure, path, title)


def _lines(ax: Axes, series: Series, title: str, unit: str) -> None:
    """A line for each name over the layers."""
    for number, (name, values) in enumerate(series.items()):
        layers = range(1, len(values) + 1)
        ax.plot(layers, values, color=color(number), marker="o", markersize=4, linewidth=1.2, label=name)
    _layers(ax, len(next(iter(series.values()))))
    ax.set(title=title, ylabel=unit)
    low, high = ax.get_ylim()
    ax.set_ylim(min(0, low), max(1.05, high))
    ax.legend(fontsize="small", loc="best")


def _back(ax: Axes, back: np.ndarray | None) -> None:
    ax.set(title="Gradient of the last step's loss, by the state", xlabel="steps back", ylabel="norm")
    if back is None:
        _unknown(ax)
        return
    for layer, norms in enumerate(back):
        shown = np.where(norms > 0, norms, np.nan)
        ax.plot(range(len(norms)), shown, color=color(layer), linewidth=1.4, label=f"layer {layer + 1}")
    if (back > 0).any():
        ax.set_yscale("log")
    ax.legend(fontsize="small", loc="best")


def _dots(ax: Axes, values: Sequence[float] | None, title: str, unit: str) -> None:
    ax.set(title=title, ylabel=unit)
    if values is None:
        _unknown(ax)
        return
    for number, value in enumerate(values):
        ax.plot(number + 1, value if value > 0 else np.nan, color=color(number), marker="o", markersize=7)
    _layers(ax, len(values))
    if any(value > 0 for value in values):
        ax.set_yscale("log")


def _layers(ax: Axes, count: int) -> None:
    ax.set_xlim(0.5, count + 0.5)
    ax.set_xticks(range(1, count + 1), [f"layer {i}" for i in range(1, count + 1)])


def _unknown(ax: Axes) -> None:
    ax.text(0.5, 0.5, "needs targets", ha="center", va="center", transform=ax.transAxes, fontsize="small")
