"""The spikes of utterances."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neurolsc.plots.style import COLORS, STYLE, Where, finish, panels

Spikes = tuple[np.ndarray, np.ndarray]
"""Times (n,), in seconds, and units (n,) of the spikes of an utterance."""


def plot_utterances(
    utterances: Sequence[Spikes], titles: Sequence[str], path: Where = None, *, units: int, title: str = ""
) -> Figure:
    """Draw the spikes of utterances, and beside each how often every unit fires.

    Args:
        utterances: their spikes.
        titles: one for each utterance.
        path: the picture; None: it is not written.
        units: how many there are.
        title: of the whole.

    Returns:
        The figure.
    """
    n = len(utterances)
    with mpl.rc_context(STYLE):
        figure, axes = panels(
            n,
            2,
            figsize=(10, 2.6 * n),
            width_ratios=(4, 1),
            sharey=True,
            sharex="col",
        )
        for (left, right), what, spikes in zip(axes, titles, utterances, strict=True):
            event_raster(left, spikes, what, units)
            counts = np.bincount(spikes[1], minlength=units)
            right.plot(counts, np.arange(units), color=COLORS[1], linewidth=0.8)
        axes[-1, 0].set_xlabel("time (s)")
        axes[-1, 1].set_xlabel("spikes of the unit")
        axes[0, 0].invert_yaxis()
        return finish(figure, path, title)


def event_raster(ax: Axes, spikes: Spikes, title: str, units: int) -> None:
    """Dots for the spikes of one utterance."""
    times, at = spikes
    ax.scatter(times.astype(np.float64), at, s=0.4, color=COLORS[0], linewidths=0)
    ax.set_title(f"{title}: {len(times)} spikes", parse_math=False)  # it may be a name from a file
    ax.set(ylabel="unit", xlim=(0, None), ylim=(0, units))
