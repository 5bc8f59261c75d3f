"""How trainings went, side by side."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import matplotlib.pyplot as plt

from neurolsc.plots.style import STYLE, color, save_figure, whole_steps


def plot_learning_curves(
    histories: Mapping[str, Sequence[dict[str, Any]]],
    path: str | PathLike[str],
    *,
    chance: float | None = None,
    score: str = "mode_accuracy",
    title: str = "",
) -> None:
    """Draw validation loss, score and the last layer's firing rate of trainings over epochs.

    Args:
        histories: one row per epoch: epoch, validation_loss, validation_<score>, and firing_rate
            with a number per layer.
        path: the picture.
        chance: the score of a guess.
        score: what the task calls it, a share from 0 to 1.
        title: of the whole.
    """
    panels = {
        "validation_loss": "Validation loss (mean over all steps)",
        f"validation_{score}": f"Validation {score.replace('_', ' ')}",
        "firing_rate": "Spikes per neuron and step, last layer",
    }
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(13, 3.9), layout="constrained")
        for number, (name, history) in enumerate(histories.items()):
            epochs = [row["epoch"] for row in history]
            for ax, key in zip(axes, panels, strict=True):
                values = [row[key][-1] if isinstance(row[key], list) else row[key] for row in history]
                ax.plot(epochs, values, color=color(number), label=name, marker=".", linewidth=1.6)
        for ax, panel in zip(axes, panels.values(), strict=True):
            ax.set(xlabel="epoch", title=panel)
            whole_steps(ax)
        axes[1].set_ylim(0, 1)
        axes[2].set_ylim(0, None)
        if chance is not None:
            axes[1].axhline(chance, color="black", linestyle=":", linewidth=1, label="chance")
        # below the panels: curves may run anywhere in them
        handles, labels = axes[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7), fontsize="small")
        save_figure(figure, path, title)
