"""Pictures of data: spikes of utterances, and what is in a file of them."""

from collections.abc import Sequence
from os import PathLike

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from neurolsc.datasets.events import UNITS, Events
from neurolsc.datasets.summary import Summary
from neurolsc.plots import COLORS, STYLE, save_figure


def plot_utterances(events: Events, titles: Sequence[str], path: str | PathLike[str]) -> None:
    """Draw the spikes of some utterances one below the other, and beside each how often every unit fires.

    Args:
        events: their spikes.
        titles: one for each utterance.
        path: the picture.
    """
    n = len(events.offsets) - 1
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            n,
            2,
            figsize=(10, 2.6 * n),
            layout="constrained",
            width_ratios=(4, 1),
            sharey=True,
            sharex="col",
            squeeze=False,
        )
        for (left, right), title, a, b in zip(axes, titles, events.offsets[:-1], events.offsets[1:], strict=True):
            units = events.units[a:b]
            _raster(left, events.times[a:b], units, title)
            right.plot(np.bincount(units, minlength=UNITS), np.arange(UNITS), color=COLORS[1], linewidth=0.8)
        axes[-1, 0].set_xlabel("time (s)")
        axes[-1, 1].set_xlabel("spikes of the unit")
        axes[0, 0].invert_yaxis()
        save_figure(figure, path)


def plot_summary(summary: Summary, example: Events, title: str, path: str | PathLike[str]) -> None:
    """Draw what is in a file: spikes and length of its utterances, classes, speakers, units, and one utterance.

    Args:
        summary: the numbers.
        example: the spikes of one utterance.
        title: what the example is.
        path: the picture.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(13, 6.2), layout="constrained")
        for ax, values, label in (
            (axes[0, 0], summary.spikes, "spikes of an utterance"),
            (axes[0, 1], summary.duration, "its last spike (s)"),
        ):
            ax.hist(values, bins=40, color=COLORS[0])
            ax.set(title=f"{label}: mean {values.mean():.4g}", xlabel=label, ylabel="utterances")
        _raster(axes[0, 2], example.times, example.units, title)
        axes[0, 2].set_xlabel("time (s)")
        axes[0, 2].invert_yaxis()
        _bars(axes[1, 0], np.bincount(summary.labels, minlength=len(summary.names)), "class")
        _bars(axes[1, 1], np.bincount(summary.speakers), "speaker")
        axes[1, 2].plot(summary.activity, color=COLORS[1], linewidth=1)
        axes[1, 2].set(title="Activity of the units", xlabel="unit", ylabel="spikes per utterance", ylim=(0, None))
        figure.suptitle(summary.title, x=0.01, ha="left")
        save_figure(figure, path)


def _raster(ax: Axes, times: np.ndarray, units: np.ndarray, title: str) -> None:
    ax.scatter(times.astype(np.float64), units, s=0.4, color=COLORS[0], linewidths=0)
    ax.set(title=f"{title}: {len(times)} spikes", ylabel="unit", xlim=(0, None), ylim=(0, UNITS))


def _bars(ax: Axes, counts: np.ndarray, name: str) -> None:
    ax.bar(np.arange(len(counts)), counts, color=COLORS[2])
    ax.set(title=f"Utterances of each {name}", xlabel=name)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
