"""How trainings went, side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from neurolsc.plots.style import STYLE, Where, color, finish, from_zero, panels, whole_steps


def plot_learning_curves(
    histories: Mapping[str, Sequence[dict[str, Any]]],
    path: Where = None,
    *,
    chance: float | None = None,
    score: str = "mode_accuracy",
    share: bool = True,
    title: str = "",
) -> Figure:
    """Draw validation loss, score and the last layer's firing rate of trainings over epochs.

    Args:
        histories: one row per epoch: epoch, validation_loss, validation_<score>, and firing_rate
            with a number per layer; by the names of the trainings, of which a single one may be "".
        path: the picture; None: it is not written.
        chance: the score of a guess.
        score: what the task calls it.
        share: it lies between 0 and 1, and so does its axis; else the axis goes by factors, if the
            score is positive.
        title: of the whole.

    Returns:
        The figure.
    """
    drawn = {
        "validation_loss": "Validation loss (mean over all steps)",
        f"validation_{score}": f"Validation {score.replace('_', ' ')}",
        "firing_rate": "Spikes per neuron and step, last layer",
    }
    with mpl.rc_context(STYLE):
        figure, ((*axes,),) = panels(1, 3, figsize=(13, 3.9))
        for number, (name, history) in enumerate(histories.items()):
            epochs = [row["epoch"] for row in history]
            for ax, key in zip(axes, drawn, strict=True):
                values = [row[key][-1] if isinstance(row[key], list) else row[key] for row in history]
                ax.plot(epochs, values, color=color(number), label=name, marker=".", linewidth=1.6)
        for ax, panel in zip(axes, drawn.values(), strict=True):
            ax.set(xlabel="epoch", title=panel)
            whole_steps(ax)
        if share:
            axes[1].set_ylim(0, 1)
        else:
            _by_factors(axes[1])
        from_zero(axes[2])
        if chance is not None:
            axes[1].axhline(chance, color="black", linestyle=":", linewidth=1, label="chance")
        # below the panels: curves may run anywhere in them
        handles, labels = axes[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7), fontsize="small")
        return finish(figure, path, title)


def _by_factors(ax: Axes) -> None:
    """Let the axis of positive numbers go by factors: a score falls fast at first, then slowly."""
    if ax.dataLim.y0 > 0:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(LogFormatter())
        ax.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
