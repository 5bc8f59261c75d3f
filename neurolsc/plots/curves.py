"""Curves: pre-training over steps, trainings over epochs, arms of a sweep over a setting."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from neurolsc.plots.style import (
    Styles,
    Where,
    arm_styles,
    color,
    finish,
    from_zero,
    legend_below,
    line_style,
    panels,
    styled,
    target_line,
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
            Rows without depth are left out, rates that are None, and their panel where all are.
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
            target_line(ax, aim, "target")
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
        share: it lies between 0 and 1, and so does its axis; else the axis goes by factors, if the
            score is positive.
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
        axes[1].yaxis.set_major_formatter(LogFormatter())
        axes[1].yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    from_zero(axes[2])
    if chance is not None:
        axes[1].axhline(chance, color="black", linestyle=":", linewidth=1, label="chance")
    # below the panels: curves may run anywhere in them
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7), fontsize="small")
    return finish(figure, path, title)


_Arms = Mapping[str, Mapping[float | str, Sequence[float]]]
_ACROSS = 3  # panels in a row
_FACTOR = 30  # between numbers that one axis shows well


@styled
def plot_bands(
    curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    path: Where = None,
    *,
    score: str,
    share: bool = True,
    log: bool = False,
    limits: tuple[float, float] | None = None,
    styles: Styles | None = None,
    title: str = "",
) -> Figure:
    """Draw scores over epochs: of every arm the mean of its runs, and a band, lowest to highest.

    Args:
        curves: by title of a panel, of every arm by name its runs; each has a score for every
            epoch. A run that ended before others stays at its last score. An arm has
            one style in all panels.
        score: what is drawn.
        share: it lies between 0 and 1, and so does its axis.
        log: the upward axis is logarithmic.
        limits: where it begins and ends; None: around all curves.
        styles: colour and dashes of every arm; None: one after the other.
    """
    styles = arm_styles(curves) if styles is None else styles
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
    arms: _Arms,
    path: Where = None,
    *,
    over: str,
    score: str,
    share: bool = True,
    title: str = "",
) -> Figure:
    """Draw scores over a setting: of every arm the mean over its runs, and every run as a dot.

    Args:
        arms: by name, for every value of the setting the scores of its runs. Numbers within a
            factor of 30 are placed as such, others side by side; where there are words, every value
            has a row.
        over: name of the setting.
        score: what is drawn.
        share: it lies between 0 and 1, and so does its axis.
    """
    styles = arm_styles({"": arms})
    values = list(dict.fromkeys(value for runs in arms.values() for value in runs))
    words = any(isinstance(value, str) for value in values)
    places = _places(values)
    size = (8.5, 1.4 + 0.45 * len(places) + 0.25 * len(styles)) if words else (6.5, 4 + 0.25 * len(styles))
    figure, ((ax,),) = panels(1, 1, figsize=size)
    (_draw_rows if words else _draw_lines)(ax, arms, places, styles)
    name_axis, name_scores, ticks = (
        (ax.set_ylabel, ax.set_xlabel, ax.set_yticks) if words else (ax.set_xlabel, ax.set_ylabel, ax.set_xticks)
    )
    name_axis(over)
    name_scores(score)
    if share:
        (ax.set_xlim if words else ax.set_ylim)(0, 1)
    ticks(list(places.values()), [str(value) for value in places])
    if words:
        ax.invert_yaxis()
        ax.grid(axis="x", alpha=0.3)
    legend_below(figure, styles, 2)
    return finish(figure, path, title)


def _draw_lines(ax: Axes, arms: _Arms, places: dict[float | str, float], styles: Styles) -> None:
    """Means in a line along the numbers, runs as dots."""
    spread = max(places.values()) - min(places.values()) or 1
    for number, (name, runs) in enumerate(arms.items()):
        # or runs of two arms would hide each other
        shift = min(0.012, 0.1 / len(arms)) * spread * (number - (len(arms) - 1) / 2)
        ordered = sorted(runs, key=lambda value: places[value])
        at = [places[value] + shift for value in ordered]
        ax.plot(at, [np.mean(runs[value]) for value in ordered], linewidth=1.7, **styles[name])
        for x, value in zip(at, ordered, strict=True):
            ax.plot([x] * len(runs[value]), runs[value], ".", markersize=6, alpha=0.6, color=styles[name]["color"])


def _draw_rows(ax: Axes, arms: _Arms, places: dict[float | str, float], styles: Styles) -> None:
    """A row for every word: a stroke at the mean, runs as dots; nothing lies between words."""
    for number, (name, runs) in enumerate(arms.items()):
        shift = 0.5 / len(arms) * (number - (len(arms) - 1) / 2)
        for value, scores in runs.items():
            y, color = places[value] + shift, styles[name]["color"]
            ax.plot([np.mean(scores)], [y], "|", markersize=14, markeredgewidth=2.2, color=color)
            ax.plot(scores, [y] * len(scores), ".", markersize=8, alpha=0.6, color=color)


def _places(values: Sequence[float | str]) -> dict[float | str, float]:
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        return {value: number for number, value in enumerate(values)}
    ordered = sorted(numbers)
    if ordered[0] > 0 and ordered[-1] / ordered[0] <= _FACTOR:
        return {value: float(value) for value in numbers}
    return {value: number for number, value in enumerate(ordered)}
