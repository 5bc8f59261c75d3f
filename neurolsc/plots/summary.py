"""What is in a file of utterances."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neurolsc.plots.style import COLORS, STYLE, Where, finish, panels, whole_steps
from neurolsc.plots.utterances import Spikes, event_raster


def plot_summary(
    path: Where = None,
    *,
    spikes: np.ndarray,
    duration: np.ndarray,
    classes: np.ndarray,
    speakers: tuple[np.ndarray, np.ndarray],
    activity: np.ndarray,
    example: Spikes | None = None,
    example_title: str = "",
    title: str = "",
) -> Figure:
    """Draw what is in a file: its utterances, classes, speakers and units, and one utterance.

    Args:
        path: the picture; None: it is not written.
        spikes: of every utterance (n,).
        duration: last spike of every utterance (n,), in seconds.
        classes: utterances of each class.
        speakers: the numbers of the speakers, and utterances of each.
        activity: spikes of each unit per utterance.
        example: the spikes of one utterance; None: none is drawn.
        example_title: what it is.
        title: of the whole.

    Returns:
        The figure.
    """
    with mpl.rc_context(STYLE):
        figure, axes = panels(2, 3, figsize=(13, 6.2))
        for ax, values, label in (
            (axes[0, 0], spikes, "spikes of an utterance"),
            (axes[0, 1], duration, "its last spike (s)"),
        ):
            ax.hist(values, bins=40, color=COLORS[0])
            ax.set(title=f"{label}: mean {values.mean():.4g}", xlabel=label, ylabel="utterances")
        if example is None:
            axes[0, 2].remove()
        else:
            event_raster(axes[0, 2], example, example_title, len(activity))
            axes[0, 2].set_xlabel("time (s)")
            axes[0, 2].invert_yaxis()
        _bars(axes[1, 0], np.arange(len(classes)), classes, "class")
        _bars(axes[1, 1], *speakers, "speaker")
        axes[1, 2].plot(activity, color=COLORS[1], linewidth=1)
        axes[1, 2].set(title="Activity of the units", xlabel="unit", ylabel="spikes per utterance", ylim=(0, None))
        return finish(figure, path, title)


def _bars(ax: Axes, places: np.ndarray, counts: np.ndarray, name: str) -> None:
    ax.bar(places, counts, color=COLORS[2])
    ax.set(title=f"Utterances of each {name}", xlabel=name)
    whole_steps(ax)
