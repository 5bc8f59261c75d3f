"""Curves: pre-training over steps, trainings over epochs, arms of a sweep over a setting."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from neurolsc.plots.style import (
    Where,
    arm_styles,
    color,
    finish,
    from_zero,
    legend_below,
    line_style,
    panels,
    styled,
    whole_steps,
)

PANELS = {
    "time": "Mean radius through time",
    "depth": "Mean radius through depth",
    "firing_rate": "Spikes per neuron and step",
}


@styled
def plot_pretraining(
    history: Sequence[dict[str, Any]],
    target: tuple[float | None, float | None] | None,
    path: Where = None,
    *,
    title: str = "",
) -> Figure:
    """Draw the mean radii and the firing rates of every layer over the pre-training steps.

    Args:
        history: one row per step: step, and time, depth and firing_rate with a number per layer.
            Rows without depth are left out, and the panel of rates where all are None.
        target: radii (time, depth) that were aimed at; None: that one was left as it was.

    Raises:
        ValueError: if no row has a depth.
    """
    rows = [row for row in history if "depth" in row]
    if not rows:
        raise ValueError("only the history of pretrain can be drawn over steps.")
    steps = [row["step"] for row in rows]
    aims = {} if target is None else dict(zip(PANELS, target, strict=False))
    courses = {key: np.array([row[key] for row in rows], dtype=float) for key in PANELS}  # None is NaN
    drawn = {key: what for key, what in PANELS.items() if not np.isnan(courses[key]).all()}
    figure, ((*axes,),) = panels(1, len(drawn), figsize=(4.3 * len(drawn) + 0.1, 3.4))
    for ax, (key, what) in zip(axes, drawn.items(), strict=True):
        for layer, values in enumerate(courses[key].T):
            ax.plot(steps, values, **line_style(layer), label=f"layer {layer + 1}", linewidth=1.6)
        if (aim := aims.get(key)) is not None:
            ax.axhline(aim, color="black", linestyle="--", linewidth=1, label="target")
        ax.set(xlabel="pre-training step", title=what)
        from_zero(ax)
        whole_steps(ax)
    lines = {line.get_label(): line for ax in axes for line in ax.lines}
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=min(len(lines), 8), fontsize="small")
    return finish(figure, path, title)


@styled
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
        chance: the score of a guess.
        score: what the task calls it.
        share: True if it lies between 0 and 1; else its axis is logarithmic, if it is positive.
    """
    drawn = {
        "validation_loss": "Validation loss (mean over all steps)",
        f"validation_{score}": f"Validation {score.replace('_', ' ')}",
        "firing_rate": "Spikes per neuron and step, last layer",
    }
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
    elif axes[1].dataLim.y0 > 0:  # a perplexity falls fast at first, then slowly
        axes[1].set_yscale("log")
    from_zero(axes[2])
    if chance is not None:
        axes[1].axhline(chance, color="black", linestyle=":", linewidth=1, label="chance")
    # below the panels: curves may run anywhere in them
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7), fontsize="small")
    return finish(figure, path, title)


_ACROSS = 3  # panels in a row


@styled
def plot_bands(
    curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    path: Where = None,
    *,
    score: str,
    share: bool = True,
    log: bool = False,
    limits: tuple[float, float] | None = None,
    title: str = "",
) -> Figure:
    """Draw scores over epochs: of every arm the mean of its runs, and a band, lowest to highest.

    Args:
        curves: by title of a panel, of every arm by name its runs; each has a score for every
            epoch. A run that ended before others stays at its last score.
        score: label of the upward axis.
        share: True if scores lie between 0 and 1.
        log: True for a logarithmic upward axis.
        limits: ends of the upward axis; None: around all curves.
    """
    styles = arm_styles(curves)
    rows, columns = -(-len(curves) // _ACROSS), min(len(curves), _ACROSS)
    size = (4.4 * columns + 0.4, 3.6 * rows + 0.3 * -(-len(styles) // columns))
    figure, grid = panels(rows, columns, figsize=size, sharex=True, sharey=True)
    axes = grid.flatten()
    for ax in axes[len(curves) :]:
        ax.set_visible(False)
    for ax, (name, arms) in zip(axes, curves.items(), strict=False):
        ax.set(title=name, xlabel="epoch")
        if share:
            ax.set_ylim(0, 1)
        if log:
            ax.set_yscale("log")
        if limits is not None:
            ax.set_ylim(*limits)
        ax.tick_params(labelbottom=True)
        whole_steps(ax)
        for arm, runs in arms.items():
            longest = max(map(len, runs))
            values = np.array([[*run, *[run[-1]] * (longest - len(run))] for run in runs])
            epochs = np.arange(1, longest + 1)
            ax.plot(epochs, values.mean(0), linewidth=1.7, **styles[arm])
            ax.fill_between(epochs, values.min(0), values.max(0), color=styles[arm]["color"], alpha=0.15, linewidth=0)
    for row in grid:
        row[0].set_ylabel(score)
    legend_below(figure, styles, columns)
    return finish(figure, path, title)


@styled
def plot_scores(
    arms: Mapping[str, Mapping[Any, Sequence[float]]],
    path: Where = None,
    *,
    over: str,
    score: str,
    share: bool = True,
    title: str = "",
) -> Figure:
    """Draw scores over a setting: of every arm the mean over its runs, and every run as a dot.

    Args:
        arms: by name, for every value of the setting the scores of its runs. Numbers stand side by side in their
            order, with means in a line; where there are words, every value has a row, with a stroke at the mean.
        over: name of the setting.
        score: label of the scores.
        share: True if scores lie between 0 and 1.
    """
    styles, values = arm_styles({"": arms}), list(dict.fromkeys(value for runs in arms.values() for value in runs))
    words = any(isinstance(value, str) for value in values)
    places = {value: place for place, value in enumerate(values if words else sorted(values))}
    height = 1.4 + 0.45 * len(places) if words else 4
    figure, ((ax,),) = panels(1, 1, figsize=(8.5 if words else 6.5, height + 0.25 * len(styles)))
    for number, (name, runs) in enumerate(arms.items()):
        style, shade = styles[name], styles[name]["color"]
        shift = (0.5 if words else 0.1) / len(arms) * (number - (len(arms) - 1) / 2)  # or arms would hide each other
        ordered = sorted(runs, key=lambda value: places[value])
        at, means = [places[value] + shift for value in ordered], [np.mean(runs[value]) for value in ordered]
        if words:
            ax.plot(means, at, "|", markersize=14, markeredgewidth=2.2, color=shade)
        else:
            ax.plot(at, means, linewidth=1.7, **style)
        for place, value in zip(at, ordered, strict=True):
            across, scores = [place] * len(runs[value]), runs[value]
            ax.plot(*((scores, across) if words else (across, scores)), ".", markersize=7, alpha=0.6, color=shade)
    names = [str(value) for value in places]
    if words:
        ax.set(xlabel=score, ylabel=over, xlim=(0, 1) if share else None)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.grid(axis="x", alpha=0.3)
    else:
        ax.set(xlabel=over, ylabel=score, ylim=(0, 1) if share else None)
        ax.set_xticks(range(len(names)), names)
    legend_below(figure, styles, 2)
    return finish(figure, path, title)
