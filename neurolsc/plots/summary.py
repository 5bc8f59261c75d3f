"""What is in a file of utterances."""

from os import PathLike

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from neurolsc.plots.style import COLORS, STYLE, save_figure, whole_steps
from neurolsc.plots.utterances import Spikes, event_raster


def plot_summary(
    path: str | PathLike[str],
    *,
    title: str,
    spikes: np.ndarray,
    duration: np.ndarray,
    classes: np.ndarray,
    speakers: tuple[np.ndarray, np.ndarray],
    activity: np.ndarray,
    example: Spikes,
    example_title: str,
) -> None:
    """Draw what is in a file: its utterances, classes, speakers and units, and one utterance.

    Args:
        path: the picture.
        title: of the whole.
        spikes: of every utterance (n,).
        duration: last spike of every utterance (n,), in seconds.
        classes: utterances of each class.
        speakers: the numbers of the speakers, and utterances of each.
        activity: spikes of each unit per utterance.
        example: the spikes of one utterance.
        example_title: what it is.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(2, 3, figsize=(13, 6.2), layout="constrained")
        for ax, values, label in (
            (axes[0, 0], spikes, "spikes of an utterance"),
            (axes[0, 1], duration, "its last spike (s)"),
        ):
            ax.hist(values, bins=40, color=COLORS[0])
            ax.set(title=f"{label}: mean {values.mean():.4g}", xlabel=label, ylabel="utterances")
        event_raster(axes[0, 2], example, example_title, len(activity))
        axes[0, 2].set_xlabel("time (s)")
        axes[0, 2].invert_yaxis()
        _bars(axes[1, 0], np.arange(len(classes)), classes, "class")
        _bars(axes[1, 1], *speakers, "speaker")
        axes[1, 2].plot(activity, color=COLORS[1], linewidth=1)
        axes[1, 2].set(title="Activity of the units", xlabel="unit", ylabel="spikes per utterance", ylim=(0, None))
        figure.suptitle(title, x=0.01, ha="left", parse_math=False)
        save_figure(figure, path)


def _bars(ax: Axes, places: np.ndarray, counts: np.ndarray, name: str) -> None:
    ax.bar(places, counts, color=COLORS[2])
    ax.set(title=f"Utterances of each {name}", xlabel=name)
    whole_steps(ax)
