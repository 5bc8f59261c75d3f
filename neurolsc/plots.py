"""All pictures: from arrays, numbers, names and colours to a matplotlib figure.

With a path the figure is also written, whole or not at all, in the format of the suffix. The figures are not pyplot's:
there is nothing to close, and a notebook shows each once.
"""

import io
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from neurolsc.io import atomic_write

__all__ = [
    "COLORS",
    "plot_bands",
    "plot_diagnosis",
    "plot_learning_curves",
    "plot_monitor",
    "plot_pretraining",
    "plot_profile",
    "plot_raster",
    "plot_scores",
    "plot_stable_region",
    "plot_surrogates",
]

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
"""Okabe and Ito's palette, whose colours colour-blind readers can distinguish."""

Where = str | PathLike[str] | None  # a file, in the format of its suffix; None: the picture is not written
Styles = Mapping[str, dict[str, Any]]  # colour and dashes of every arm, by its name

STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "text.usetex": False,
    "figure.dpi": 110,
    "savefig.dpi": 115,
}
styled = mpl.rc_context(STYLE)
"""Decorator: the function draws in our style, and matplotlib's settings are restored afterwards."""


def color(number: int) -> str:
    """Return a colour of the palette, which repeats after its end."""
    return COLORS[number % len(COLORS)]


def line_style(number: int) -> dict[str, str]:
    """Return a colour of the palette, with other dashes each time that the palette repeats."""
    return {"color": color(number), "linestyle": ("-", "--", ":", "-.")[number // len(COLORS) % 4]}


def arm_styles(curves: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, Any]]:
    """Return a line style for every arm, the same in all panels.

    Args:
        curves: for each panel its arms, by name; the values of the arms are not read.
    """
    names = dict.fromkeys(name for arms in curves.values() for name in arms)
    return {name: line_style(number) for number, name in enumerate(names)}


def legend_below(figure: Figure, styles: Styles, columns: int, *, linewidth: float = 1.7) -> None:
    """Add a legend of all arms below the panels."""
    handles = [Line2D([], [], linewidth=linewidth, **style) for style in styles.values()]
    figure.legend(handles, list(styles), loc="outside lower center", ncols=columns, fontsize="small")


class Picture(Figure):
    """A figure that pyplot does not know: there is none to close, and a notebook shows it once."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", bbox_inches="tight")
        return file.getvalue()


def panels(rows: int, columns: int, *, figsize: tuple[float, float], **settings: Any) -> tuple[Figure, np.ndarray]:
    """Make a figure with a grid of panels.

    Args:
        rows: panels from top to bottom.
        columns: panels from left to right.
        figsize: width and height, in inches.
        **settings: settings of matplotlib's ``subplots``.

    Returns:
        The figure, and its axes, an array (rows, columns).
    """
    figure = Picture(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **settings)


def finish(figure: Figure, path: Where, title: str) -> Figure:
    """Give a figure its title, if there is one, write it if there is a path, and return it."""
    if title:
        lines = textwrap.fill(title, round(10 * figure.get_figwidth()))
        figure.suptitle(lines, x=0.01, ha="left", fontsize="large", parse_math=False)
    if path is not None:
        kind = os.path.splitext(path)[1].removeprefix(".") or None
        atomic_write(path, lambda file: figure.savefig(file, format=kind, bbox_inches="tight"))
    return figure


# ---- networks: radii, a diagnosis, spikes, surrogates

_ACROSS = 3  # panels, or layers of a legend, in a row
Series = Mapping[str, Sequence[float]]  # of each name a number per layer; NaN where there is none


@styled
def plot_profile(
    path: Where = None,
    *,
    steps: ArrayLike,
    time: ArrayLike,
    depth: ArrayLike,
    contributions: Sequence[Mapping[str, float]],
    colors: Mapping[str, str],
    firing_rate: Sequence[float],
    target: tuple[float | None, float | None] | None = None,
    starred: Sequence[bool] = (),
    notes: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Draw the radii of each layer over time, through time and through depth, and the terms of those through time.

    Args:
        steps: the steps (K,).
        time: radii through time (L, K, B).
        depth: radii through depth (L, K, B); those of row 0 are between the input and the first layer.
        contributions: for each layer the contribution of each term to the mean radius through time, by name.
        colors: colours of terms, in the order in which they are drawn; other terms follow in colours of the palette.
        firing_rate: spikes per neuron and step of each layer; NaN for a layer without spikes.
        target: target radii (time, depth); None: that radius was left as it was.
        starred: for each row of depth, True to mark it with a star in the legend.
        notes: sentences below the picture.
    """
    count = len(contributions)
    rows = math.ceil((count + 1) / _ACROSS)  # of the legend, which has the layers and a target
    figure, ((*axes,),) = panels(1, 3, figsize=(13, 3.6 + 0.2 * rows), width_ratios=(1, 1, 0.28))
    titles = (
        "through time, $\\partial h_{t,l}/\\partial h_{t-1,l}$",
        "through depth, $\\partial h_{l}/\\partial h_{l-1}$",
    )
    for direction, (ax, radii, what) in enumerate(zip(axes, (time, depth), titles, strict=False)):  # 0: time, 1: depth
        for layer, radius in enumerate(np.asarray(radii)):
            name = f"layer {layer + 1}"
            if direction and layer == 0:
                name += " (from the input)"
            if direction and layer < len(starred) and starred[layer]:
                name += "*"
            ax.fill_between(steps, radius.min(1), radius.max(1), color=color(layer), alpha=0.15, linewidth=0)
            ax.plot(
                steps, radius.mean(1), **line_style(layer), label=f"{name}: mean {radius.mean():.2f}", linewidth=1.6
            )
        if target is not None and (aim := target[direction]) is not None:
            ax.axhline(aim, color="black", linestyle="--", linewidth=1, label=f"target {aim:.3g}")
        ax.set(xlabel="time step", title=f"Radius {what}")
        ax.set_ylim(bottom=0)
        # the legend goes below the panel, as lines may run anywhere in it
        ax.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=_ACROSS, columnspacing=1)
    axes[0].set_ylabel("spectral radius")

    # The terms of the radius through time: each positive one as its share of the sum of all positive ones.
    ax = axes[2]
    left = np.zeros(count)  # where the next bar of each layer begins
    others = dict.fromkeys(name for shares in contributions for name in shares if name not in colors)
    free = [shade for shade in COLORS if shade not in colors.values()] or COLORS  # colours for the other terms
    positive = [{term: max(value, 0.0) for term, value in terms.items()} for terms in contributions]
    shades = dict(colors) | {name: free[i % len(free)] for i, name in enumerate(others)}
    for name, shade in shades.items():
        shares = np.array([terms.get(name, 0.0) / (sum(terms.values()) or 1) for terms in positive])
        if shares.any():
            ax.barh(range(count), shares, left=left, color=shade, label=name, height=0.5)
            left += shares
    for layer in range(count):
        if not contributions[layer]:
            ax.text(0.5, layer, "not known", ha="center", va="center", fontsize="small")
    names = []
    for i, rate in enumerate(firing_rate, start=1):
        names.append(f"layer {i}" if math.isnan(rate) else f"layer {i}: {rate:.2g} spikes")
    ax.set_yticks(range(count), names, fontsize="small")
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), xlabel="share")
    ax.set_title("Radius through time, by term", loc="right")
    if any(contributions):
        ax.legend(ncols=2, fontsize="small", loc="upper right", bbox_to_anchor=(1.05, -0.16), columnspacing=1)
    about_lines = "Line: mean over samples. Band: smallest to largest."
    notes = [about_lines, "Right: spikes per neuron and step, shares of what adds to the mean radius.", *notes]
    figure.supxlabel("   ".join(notes), x=0.04, ha="left", fontsize="small")
    return finish(figure, path, title)


@styled
def plot_diagnosis(
    path: Where = None,
    *,
    activity: Series,
    stretch: Series,
    back: np.ndarray | None,
    gradient: Sequence[float] | None,
    findings: Sequence[str],
    title: str = "",
) -> Figure:
    """Draw the activity of the layers, the growth of gradients, and the findings.

    Args:
        activity: shares of neurons or steps for each layer, by name.
        stretch: factors by which one step multiplies a gradient, for each layer, by name.
        back: norms (L, T) of the gradient of the last step's loss by the state of each layer so many steps back; None
            without targets.
        gradient: norm of the gradient of the loss by the parameters of each layer; None without targets.
        findings: sentences below the picture.
    """
    lines = [line for finding in findings for line in textwrap.wrap(finding, 140, subsequent_indent="    ")]
    figure, axes = panels(2, 2, figsize=(10, 6.6 + 0.19 * len(lines)))
    (activity_ax, factor_ax), (course_ax, norm_ax) = axes
    for ax, series in ((activity_ax, activity), (factor_ax, stretch)):
        for number, (name, values) in enumerate(series.items()):
            layers = range(1, len(values) + 1)
            ax.plot(layers, values, color=color(number), marker="o", markersize=4, linewidth=1.2, label=name)
        low, high = ax.get_ylim()
        ax.set_ylim(min(0, low), max(1.05, high))
        ax.legend(fontsize="small")
    activity_ax.set(title="What the neurons do", ylabel="share")
    factor_ax.set(title="What a step multiplies", ylabel="factor")
    factor_ax.axhline(1, color="black", linestyle="--", linewidth=1)
    course_ax.set(title="Gradient of the last step's loss, by the state", xlabel="steps back", ylabel="norm")
    norm_ax.set(title="Gradient of the loss by the weights", ylabel="norm")
    count = len(next(iter(activity.values())))  # of layers
    for ax in (activity_ax, factor_ax, norm_ax):
        ax.set_xlim(0.5, count + 0.5)
        ax.set_xticks(range(1, count + 1), [f"layer {i}" for i in range(1, count + 1)])
    if back is None or gradient is None:
        for ax in (course_ax, norm_ax):
            ax.text(0.5, 0.5, "needs targets", ha="center", va="center", transform=ax.transAxes, fontsize="small")
    else:
        for layer, (norms, whole) in enumerate(zip(back, gradient, strict=True)):
            # a logarithmic axis has no place for 0: NaN is not drawn
            shown = np.where(norms > 0, norms, np.nan)
            course_ax.plot(range(len(norms)), shown, color=color(layer), linewidth=1.4, label=f"layer {layer + 1}")
            norm_ax.plot(layer + 1, whole if whole > 0 else np.nan, color=color(layer), marker="o", markersize=7)
        for ax, values in ((course_ax, back), (norm_ax, np.array(gradient))):
            if (values > 0).any():
                ax.set_yscale("log")
        course_ax.legend(fontsize="small")
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize="small", parse_math=False)
    return finish(figure, path, title)


@styled
def plot_monitor(
    path: Where = None,
    *,
    updates: Sequence[float],
    loss: Mapping[str, Sequence[float]],
    findings: Sequence[tuple[int, int | None, str]],
    title: str = "",
    **layers: Sequence[Sequence[float]],
) -> Figure:
    """Draw what was measured of each layer over the updates of a training, a panel for each question.

    Args:
        updates: the updates (K,) at which was measured.
        loss: losses (K,), by name; at most two.
        findings: for each finding its update, its layer (from 1; None: of no single layer) and a sentence. It becomes a
            vertical line with a number, and the sentences stand below the panels with their numbers.
        layers: for each layer K numbers, NaN where there is none: rate, dead, saturated, similarity, active, gradient,
            radius_time, radius_depth and step; threshold, weights and recurrent over their first values.
    """
    numbered = [f"{number}  {text}" for number, (_, _, text) in enumerate(findings, start=1)]
    lines = [line for text in numbered for line in textwrap.wrap(text, 190, subsequent_indent="    ")]
    figure, axes = panels(3, 3, figsize=(12, 8.4 + 0.19 * len(lines)), sharex=True)
    questions: dict[str, tuple[str, tuple[str, ...]]] = {
        "Do the layers fire?": ("spikes per step", ("rate",)),
        "Are neurons dead, or saturated (- -)?": ("share", ("dead", "saturated")),
        "Do they keep the input apart?": ("similarity", ("similarity",)),
        "Does the gradient arrive?": ("norm", ("gradient",)),
        "Is the surrogate active?": ("share", ("active",)),
        "Do gradients grow, time, depth (- -)?": ("radius", ("radius_time", "radius_depth")),
        "How far does an update move voltages?": ("thresholds", ("step",)),
        "Do thresholds, weights (- -), recurrence (: :) grow?": (
            "times the first",
            ("threshold", "weights", "recurrent"),
        ),
    }
    for ax, (question, (label, names)) in zip(axes.flat, questions.items(), strict=False):
        for name, dashes in zip(names, ("-", "--", ":"), strict=False):
            for number, values in enumerate(layers[name]):
                ax.plot(updates, values, color=color(number), linestyle=dashes, linewidth=1.4)
        ax.set(title=question, ylabel=label)
        if label == "share" or names == ("similarity",):  # from 0 to 1
            ax.set_ylim(-0.03, 1.03)
        every = np.concatenate([np.ravel(layers[name]) for name in names])
        if names[0] in ("gradient", "step", "threshold") and (every > 0).any():
            ax.set_yscale("log")
        if names[0] == "threshold":  # the axis holds 0.5 to 2 at least, so that small changes look small
            low, high = ax.get_ylim()
            ax.set_ylim(min(low, 0.5), max(high, 2))
    axes[1, 2].axhline(1, color="black", linestyle=":", linewidth=1)  # a radius of 1
    loss_ax = axes[2, 2]
    for number, (name, values) in enumerate(loss.items()):
        loss_ax.plot(updates, values, color="black", linestyle=("-", "--")[number], linewidth=1.4, label=name)
    loss_ax.set(title="Does it learn?", ylabel="loss")
    loss_ax.legend(fontsize="small")
    for update in dict.fromkeys(update for update, _, _ in findings):
        here = [number for number, (at, _, _) in enumerate(findings) if at == update]  # findings of this update
        layers_here = {findings[number][1] for number in here}
        layer = layers_here.pop()
        shade = "black"  # for findings of several layers, or of none
        if layer is not None and not layers_here:
            shade = color(layer - 1)
        for ax in axes.flat:
            ax.axvline(update, color=shade, linestyle=":", linewidth=1.1)
        numbers = ", ".join(str(number + 1) for number in here)
        top = axes[0, 0].get_xaxis_transform()
        axes[0, 0].text(update, 1, f"{numbers} ", transform=top, va="top", ha="right", fontsize="small")
    for ax in axes[-1]:
        ax.set_xlabel("update")
    handles = [Line2D([], [], color=color(number)) for number in range(len(layers["rate"]))]
    axes[0, 0].legend(handles, [f"layer {number + 1}" for number in range(len(handles))], fontsize="small")
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize="small", parse_math=False)
    return finish(figure, path, title)


@styled
def plot_raster(
    spikes: Mapping[str, ArrayLike],
    path: Where = None,
    *,
    label: str = "",
    title: str = "",
) -> Figure:
    """Draw the spikes of one sample, a panel for the input and each layer.

    Args:
        spikes: spikes of the input and of each layer (T, N), by the title of the panel.
        label: class of the sample.
    """
    layers = {name: np.asarray(layer) for name, layer in spikes.items()}
    figure, axes = panels(len(layers), 1, figsize=(9, 1.9 * len(layers)), sharex=True)
    for number, (ax, (name, layer)) in enumerate(zip(axes[:, 0], layers.items(), strict=True)):
        step, neuron = layer.nonzero()
        ax.scatter(step, neuron, s=3, color=color(number - 1) if number else "black", linewidths=0)  # 0: the input
        if np.array_equal(layer, np.rint(layer)):  # whole numbers are counts of spikes in a bin
            rate = layer.sum() / layer.size
        else:  # graded spikes, whose height is no count
            rate = np.count_nonzero(layer) / layer.size
        ax.set(title=f"{name}: {rate:.4f} spikes per neuron and step", ylim=(-1, layer.shape[1]))
        ax.set_ylabel("neuron")
    axes[-1, 0].set(xlabel="time step", xlim=(-1, max(map(len, layers.values()))))
    parts = [f"label {label}"] if label else []
    if title:
        parts.append(title)
    return finish(figure, path, "; ".join(parts))


@styled
def plot_stable_region(
    neurons: Mapping[str, tuple[ArrayLike, ArrayLike]],
    path: Where = None,
    *,
    outside: Mapping[str, float],
    title: str = "",
) -> Figure:
    """Draw neurons of two variables by trace and determinant, and the triangle in which they are stable.

    Above the parabola eigenvalues are complex, and neurons oscillate.

    Args:
        neurons: for each layer, by name, traces (n,) and determinants (n,) of the matrices (2, 2) by which a step below
            threshold multiplies the states of the neurons shown.
        path: where to write the picture; None: nowhere.
        outside: for each layer the share of unstable neurons, those that are not shown included.
        title: of the figure.
    """
    figure, ((ax,),) = panels(1, 1, figsize=(6.4, 4.4))
    ax.fill([-2, 2, 0], [1, 1, -1], color="#eeeeee", linewidth=0, label="stable")
    trace = np.linspace(-2, 2, 201)
    ax.plot(trace, trace**2 / 4, color="black", linestyle="--", linewidth=1, label="above: oscillating")
    for number, (name, (traces, determinants)) in enumerate(neurons.items()):
        label = f"{outside[name]:.1%} outside"
        if name:
            label = f"{name}: {label}"
        ax.scatter(traces, determinants, s=7, color=color(number), linewidths=0, alpha=0.6, label=label)
    points = np.concatenate([np.stack([np.ravel(t), np.ravel(d)], 1) for t, d in neurons.values()])
    # the view holds all neurons, and the corner (2, 1) of the triangle, near which slow neurons lie
    left, bottom = np.minimum(points.min(0), (1.9, 0.9))
    right, top = np.maximum(points.max(0), (2, 1))
    ax.set_xlim(left - 0.1 * (right - left), right + 0.1 * (right - left))
    ax.set_ylim(bottom - 0.1 * (top - bottom), top + 0.1 * (top - bottom))
    ax.set(xlabel="trace", ylabel="determinant", title="A step below threshold, neuron by neuron")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    return finish(figure, path, title)


@styled
def plot_surrogates(
    v: ArrayLike, curves: Mapping[str, tuple[ArrayLike, ArrayLike]], path: Where = None, *, title: str = ""
) -> Figure:
    """Draw the derivative of each surrogate, and the smooth step that has this derivative.

    Args:
        v: distances from the threshold (n,).
        curves: derivative (n,) and primitive (n,) of each surrogate, by name.
    """
    rows = (len(curves) + 3) // 4
    figure, axes = panels(rows, 4, figsize=(12, 2.5 * rows), sharex=True, sharey=True)
    for ax in axes.flat[len(curves) :]:
        ax.remove()
    for ax, (name, (derivative, primitive)) in zip(axes.flat, curves.items(), strict=False):
        ax.axvline(0, color="#cccccc", linewidth=1)
        ax.plot(v, derivative, color=COLORS[0], label="derivative given to the spike")
        ax.plot(v, primitive, color=COLORS[1], linestyle="--", label="smooth step it belongs to")
        ax.set_title(name)
    for ax in axes[-1]:
        ax.set_xlabel("$v - \\vartheta$")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), ncols=2, loc="outside lower center")
    return finish(figure, path, title)


# ---- curves: pre-training over steps, trainings over epochs, arms of a sweep over a setting


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
        history: one row per step: step, and time, depth and firing_rate with a number per layer. Rows without depth are
            left out, and so is the panel of rates if all rates are None.
        target: target radii (time, depth); None: that radius was left as it was.

    Raises:
        ValueError: if no row has a depth.
    """
    rows = [row for row in history if "depth" in row]
    if not rows:
        raise ValueError("only the history of pretrain can be drawn over steps.")
    titles = {"time": "Mean radius through time", "depth": "Mean radius through depth"}
    titles["firing_rate"] = "Spikes per neuron and step"
    steps = [row["step"] for row in rows]
    aims = {}
    if target is not None:
        aims = dict(zip(titles, target, strict=False))  # time and depth; a firing rate has none
    courses = {key: np.array([row[key] for row in rows], dtype=float) for key in titles}  # None is NaN
    drawn = {key: what for key, what in titles.items() if not np.isnan(courses[key]).all()}
    figure, ((*axes,),) = panels(1, len(drawn), figsize=(4.3 * len(drawn) + 0.1, 3.4))
    for ax, (key, what) in zip(axes, drawn.items(), strict=True):
        for layer, values in enumerate(courses[key].T):
            ax.plot(steps, values, **line_style(layer), label=f"layer {layer + 1}", linewidth=1.6)
        if (aim := aims.get(key)) is not None:
            ax.axhline(aim, color="black", linestyle="--", linewidth=1, label="target")
        ax.set(xlabel="pre-training step", title=what)
        ax.set_ylim(bottom=0)
        ax.locator_params(axis="x", integer=True)
    lines = {line.get_label(): line for ax in axes for line in ax.lines}  # each label once
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
        histories: for each training, by name ("" for a single one), a row per epoch: epoch, validation_loss,
            validation_<score>, and firing_rate with a number per layer.
        chance: the score of a guess, drawn as a line; None: no line.
        score: name of the task's score.
        share: True if the score lies between 0 and 1; otherwise its axis is logarithmic if all scores are positive.
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
            ax.plot(epochs, values, **line_style(number), label=name, marker=".", linewidth=1.6)
    for ax, panel in zip(axes, drawn.values(), strict=True):
        ax.set(xlabel="epoch", title=panel)
        ax.locator_params(axis="x", integer=True)
    if share:
        axes[1].set_ylim(0, 1)
    elif axes[1].dataLim.y0 > 0:  # a perplexity falls fast at first, then slowly
        axes[1].set_yscale("log")
    axes[2].set_ylim(bottom=0)
    if chance is not None:
        axes[1].axhline(chance, color="black", linestyle=":", linewidth=1, label="chance")
    # below the panels: curves may run anywhere in them
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7), fontsize="small")
    return finish(figure, path, title)


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
    """Draw scores over epochs: for each arm the mean of its runs, and a band from the lowest to the highest.

    Args:
        curves: runs of every arm, by title of the panel and name of the arm; a run has a score for every epoch. A run
            that ended early is drawn on at its last score.
        score: label of the y axis.
        share: True if scores lie between 0 and 1.
        log: True for a logarithmic y axis.
        limits: lower and upper end of the y axis; None: all curves fit.
    """
    styles = arm_styles(curves)
    rows = math.ceil(len(curves) / _ACROSS)
    columns = min(len(curves), _ACROSS)
    size = (4.4 * columns + 0.4, 3.6 * rows + 0.3 * math.ceil(len(styles) / columns))
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
        ax.locator_params(axis="x", integer=True)
        for arm, runs in arms.items():
            longest = max(map(len, runs))
            values = np.array([[*run, *[run[-1]] * (longest - len(run))] for run in runs])  # (runs, epochs)
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
    """Draw scores over a setting: for each arm the mean over its runs, and every run as a dot.

    Args:
        arms: scores of runs, by name of the arm and value of the setting. If all values are numbers, they are on the x
            axis, in order and evenly spaced, with a line through the means; if one is a word, every value has a row,
            with a stroke at the mean.
        path: where to write the picture; None: nowhere.
        over: name of the setting.
        score: label of the scores.
        share: True if scores are shares: their axis goes from 0 to 1.
        title: of the figure.
    """
    styles = arm_styles({"": arms})  # one panel, without a name
    values = list(dict.fromkeys(value for runs in arms.values() for value in runs))
    words = any(isinstance(value, str) for value in values)
    if not words:
        values = sorted(values)
    places = {value: place for place, value in enumerate(values)}
    height = 1.4 + 0.45 * len(places) if words else 4
    figure, ((ax,),) = panels(1, 1, figsize=(8.5 if words else 6.5, height + 0.25 * len(styles)))
    for number, (name, runs) in enumerate(arms.items()):
        style = styles[name]
        shade = style["color"]
        # arms are set side by side, since they would hide each other
        shift = (0.5 if words else 0.1) / len(arms) * (number - (len(arms) - 1) / 2)
        ordered = sorted(runs, key=lambda value: places[value])
        at = [places[value] + shift for value in ordered]
        means = [np.mean(runs[value]) for value in ordered]
        if words:
            ax.plot(means, at, "|", markersize=14, markeredgewidth=2.2, color=shade)
        else:
            ax.plot(at, means, linewidth=1.7, **style)
        for place, value in zip(at, ordered, strict=True):
            scores = runs[value]
            of_setting = [place] * len(scores)
            if words:
                coordinates = (scores, of_setting)
            else:
                coordinates = (of_setting, scores)
            ax.plot(*coordinates, ".", markersize=7, alpha=0.6, color=shade)
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
