"""Pictures of the paper: paths, the PascalRNN, decaying covariance, scores of many arms."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from neurolsc.plots import (
    Where,
    arm_styles,
    color,
    finish,
    legend_below,
    line_style,
    panels,
    styled,
)

Rates = Mapping[float, Sequence[float]]  # by learning rate the scores of several seeds


@styled
def plot_grid(
    paths: Mapping[str, Sequence[tuple[int, int]]],
    path: Where = None,
    *,
    steps: int,
    layers: int,
    title: str = "",
) -> Figure:
    """Draw a grid of steps and layers, and paths of a gradient back through it: points (step, layer), by name."""
    figure, ((ax,),) = panels(1, 1, figsize=(1.1 * steps + 1.6, 1.1 * layers + 1.4))
    for step in range(steps + 1):
        for layer in range(layers + 1):
            for ahead in ((step + 1, layer), (step, layer + 1)):
                if ahead[0] <= steps and ahead[1] <= layers:
                    ax.plot(*zip((step, layer), ahead, strict=True), color="#cccccc", linewidth=1, zorder=0)
    for number, (name, points) in enumerate(paths.items()):
        shift = 0.07 * (number - (len(paths) - 1) / 2)
        moved = [(step + shift, layer + shift) for step, layer in points]
        for start, end in pairwise(moved):
            arrow = {"arrowstyle": "-|>", "color": color(number), "linewidth": 2, "shrinkA": 0, "shrinkB": 0}
            ax.annotate("", end, start, arrowprops=arrow)
        ax.plot([], [], color=color(number), linewidth=2, label=name)
    at = np.array([(step, layer) for step in range(steps + 1) for layer in range(layers + 1)])
    ax.plot(at[:, 0], at[:, 1], "o", markersize=9, color="white", markeredgecolor="black", zorder=1)
    ax.set(xlabel="time step", ylabel="layer", aspect="equal")
    ax.set_yticks(range(layers + 1))
    ax.locator_params(axis="x", integer=True)
    figure.legend(loc="outside lower center", ncols=len(paths), fontsize="small")
    return finish(figure, path, title)


@styled
def plot_rates(
    curves: Mapping[str, Mapping[str, Rates]],
    path: Where = None,
    *,
    score: str,
    columns: int = 3,
    share: bool = False,
    log: bool = False,
    title: str = "",
) -> Figure:
    """Draw scores over learning rates, a panel for each title: of every arm the mean, and each seed as a dot."""
    styles = arm_styles(curves)
    rows, columns = -(-len(curves) // columns), min(columns, len(curves))
    figure, grid = panels(rows, columns, figsize=(3.9 * columns + 0.6, 3.1 * rows + 0.9), sharex=True)
    for ax in grid.flat[len(curves) :]:
        ax.set_visible(False)
    for ax, (name, arms) in zip(grid.flat, curves.items(), strict=False):
        for arm, rates in arms.items():
            known = {rate: list(rates[rate]) for rate in sorted(rates) if len(rates[rate])}
            ax.plot(list(known), [np.mean(v) for v in known.values()], linewidth=1.7, **styles[arm])
            for rate, values in known.items():
                ax.plot([rate] * len(values), values, ".", markersize=7, alpha=0.6, color=styles[arm]["color"])
        ax.set(title=name, xscale="log", xlabel="learning rate")
        ax.tick_params(labelbottom=True)
        if share:
            ax.set_ylim(0, 1)
        if log:
            ax.set_yscale("log")
    for row in grid:
        row[0].set_ylabel(score)
    legend_below(figure, styles, min(4, len(styles)))
    return finish(figure, path, title)


@styled
def plot_initialisations(
    arms: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]],
    path: Where = None,
    *,
    scores: Sequence[str],
    shares: Sequence[bool],
    title: str = "",
) -> Figure:
    """Draw scores by panel, cell and initialisation: bars of means, seeds as dots; log axes unless shares."""
    initialisers = list(
        dict.fromkeys(initialiser for cells in arms.values() for of in cells.values() for initialiser in of)
    )
    styles = {initialiser: {"color": color(number)} for number, initialiser in enumerate(initialisers)}
    widest = max(map(len, arms.values()))
    columns = min(2, len(arms))
    rows, wide = -(-len(arms) // columns), 0.8 / len(styles)
    figure, grid = panels(rows, columns, figsize=(max((1.2 * widest + 1.2) * columns + 0.6, 6), 3.2 * rows + 0.9))
    for ax in grid.flat[len(arms) :]:
        ax.set_visible(False)
    for ax, (name, cells), score, share in zip(grid.flat, arms.items(), scores, shares, strict=False):
        for place, of in enumerate(cells.values()):
            for number, (initialiser, style) in enumerate(styles.items()):
                if len(values := list(of.get(initialiser, ()))):
                    at = place + (number - (len(styles) - 1) / 2) * wide
                    ax.bar(at, np.mean(values), width=0.92 * wide, alpha=0.75, **style)
                    ax.plot([at] * len(values), values, ".", markersize=5, color="black", alpha=0.6)
        ax.set_xticks(range(len(cells)), list(cells), fontsize="small")
        ax.set(title=name, ylabel=score)
        if share:
            ax.set_ylim(0, 1)
        else:
            ax.set_yscale("log")
    legend_below(figure, styles, min(4, len(styles)), linewidth=6)
    return finish(figure, path, title)


@styled
def plot_covariances(
    curves: Mapping[str, Mapping[str, tuple[Any, Any, Any]]],
    path: Where = None,
    *,
    samples: int,
    title: str = "",
) -> Figure:
    """Draw covariance, correlation and p-value (T,) of sizes with those at one step, a row for every data set.

    Correlations within 2 / sqrt(samples) of 0 are shaded.
    """
    heads = ("covariance", "correlation (shaded: of chance)", "p-value (dashed: 0.05)")
    figure, grid = panels(len(curves), 3, figsize=(12, 2.7 * len(curves) + 0.5))
    for row, (name, drawn) in zip(grid, curves.items(), strict=True):
        for number, (curve, parts) in enumerate(drawn.items()):
            for ax, values in zip(row, parts, strict=True):
                ax.plot(np.asarray(values), label=curve, linewidth=1.5, **line_style(number))
        noise = 2 / np.sqrt(samples)
        row[1].axhspan(-noise, noise, color="black", alpha=0.1, linewidth=0)
        row[1].set_ylim(-1.05, 1.05)
        row[2].axhline(0.05, color="black", linestyle="--", linewidth=1)
        row[2].set_ylim(0, 1)
        row[0].set_ylabel(textwrap.fill(name, 26))
        row[0].legend(fontsize="small")
        for ax, head in zip(row, heads, strict=True):
            ax.set(title=head, xlabel="time step")
            ax.locator_params(axis="x", integer=True)
    return finish(figure, path, title)


_DECADES = 1 / np.log(10)
Curve = tuple[Any, Any]  # places and natural logarithms (N,) of each


@styled
def plot_paths(
    curves: Mapping[str, Mapping[str, Curve]],
    path: Where = None,
    *,
    over: Sequence[str],
    counted: str = "gradient paths",
    shared: bool = False,
    title: str = "",
) -> Figure:
    """Draw numbers beyond all floats, by panel and name their places and natural logarithms.

    Args:
        over: label below each panel.
        counted: what the logarithms are of.
        shared: True for one upward axis.
    """
    figure, ((*axes,),) = panels(1, len(curves), figsize=(4.4 * len(curves) + 0.4, 3.4), sharey=shared)
    for ax, (name, drawn), label in zip(axes, curves.items(), over, strict=True):
        for number, (curve, (places, logs)) in enumerate(drawn.items()):
            width = 1.5 + 1.1 * (len(drawn) - 1 - number)  # where one hides another, both are seen
            ax.plot(places, _decades(logs), label=curve, linewidth=width, **line_style(number))
        _logarithmic(ax)
        ax.locator_params(axis="x", integer=True)
        ax.set(title=name, xlabel=label)
        ax.legend(fontsize="small")
    axes[0].set_ylabel(counted)
    return finish(figure, path, title)


@styled
def plot_pascal(
    curves: Mapping[str, tuple[Any, Any, Any]],
    path: Where = None,
    *,
    title: str = "",
) -> Figure:
    """Draw outputs (T, B) of networks, and the logarithms of the derivative by the input (T,) and its bound (T,)."""
    figure, axes = panels(2, len(curves), figsize=(4.8 * len(curves) + 0.4, 5.6), sharex="col")
    for column, (name, (outputs, derivative, bound)) in enumerate(curves.items()):
        above, below = axes[:, column]
        steps = np.arange(len(outputs))
        above.plot(steps, np.asarray(outputs), color=color(0), linewidth=0.8)
        above.set_title(name)
        below.plot(steps, _decades(bound), color=color(2), linewidth=4, alpha=0.4, label="bound")
        below.plot(steps, _decades(derivative), color=color(1), linewidth=1.7, label="derivative")
        _logarithmic(below)
        low, high = below.get_ylim()
        below.set_ylim(min(low, (low + high) / 2 - 1), max(high, (low + high) / 2 + 1))  # ticks are whole decades
        below.set_xlabel("time step of the input")
        below.legend(fontsize="small")
    axes[0, 0].set_ylabel("output, samples")
    axes[1, 0].set_ylabel("derivative of all outputs by the input")
    return finish(figure, path, title)


def _decades(logs: Any) -> np.ndarray:
    """Decimal logarithms of natural ones; what is no number leaves a gap."""
    values = np.asarray(logs, dtype=float) * _DECADES
    return np.where(np.isfinite(values), values, np.nan)


def _logarithmic(ax: Axes) -> None:
    """Name the places of an axis of decimal logarithms by what they are logarithms of."""
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"$10^{{{value:.0f}}}$"))


@styled
def plot_lines(
    lines: Sequence[Mapping[str, tuple[Any, Any]]], path: Where, *, axes: Sequence[dict[str, Any]], title: str
) -> None:
    """Draw panels of lines, by name x and y."""
    figure, ((*columns,),) = panels(1, len(lines), figsize=(4.8 * len(lines) + 0.6, 3.8))
    for ax, named_lines, settings in zip(columns, lines, axes, strict=True):
        for number, (name, (x, y)) in enumerate(named_lines.items()):
            ax.plot(np.asarray(x), np.asarray(y), marker=".", linewidth=1.7, label=name, **line_style(number))
        ax.set(**settings)
        if settings.get("xscale") == "log":
            ax.set_xticks(x := sorted({value for x, _ in named_lines.values() for value in x}), [f"{v:g}" for v in x])
            ax.minorticks_off()
        ax.legend(fontsize="small")
    finish(figure, path, title)
