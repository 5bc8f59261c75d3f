"""Pictures of the paper that no other file draws: the grid of gradients, scores of many arms."""

import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from neurolsc.plots.style import STYLE, Where, color, finish, line_style, panels, whole_steps

Rates = Mapping[float, Sequence[float]]
"""by learning rate the scores of several seeds"""


def plot_grid(
    paths: Mapping[str, Sequence[tuple[int, int]]],
    path: Where = None,
    *,
    steps: int,
    layers: int,
    title: str = "",
) -> Figure:
    """Draw a network as a grid of steps and layers, and gradients on their way back through it.

    Args:
        paths: by name the points (step, layer) of each, from the last step and layer downwards.
        path: the picture; None: it is not written.
        steps: last time step of the grid, whose first is 0.
        layers: last layer, likewise.
        title: of the whole.

    Returns:
        The figure.
    """
    with mpl.rc_context(STYLE):
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
        whole_steps(ax)
        figure.legend(loc="outside lower center", ncols=len(paths), fontsize="small")
        return finish(figure, path, title)


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
    """Draw scores over learning rates: of every arm the mean, and each seed as a dot.

    Args:
        curves: by title of a panel, of every arm by name the scores of its seeds at each rate; a
            rate without any leaves a gap.
        path: the picture; None: it is not written.
        score: what is drawn.
        columns: panels in a row.
        share: it lies between 0 and 1, and so does its axis.
        log: the upward axis is logarithmic.
        title: of the whole.

    Returns:
        The figure.
    """
    styles = _styles(curves)
    rows, columns = -(-len(curves) // columns), min(columns, len(curves))
    with mpl.rc_context(STYLE):
        figure, grid = panels(rows, columns, figsize=(3.9 * columns + 0.6, 3.1 * rows + 0.9), sharex=True)
        for ax in grid.flat[len(curves) :]:
            ax.set_visible(False)
        for ax, (name, arms) in zip(grid.flat, curves.items(), strict=False):
            for arm, rates in arms.items():
                told = {rate: list(rates[rate]) for rate in sorted(rates) if len(rates[rate])}
                ax.plot(list(told), [np.mean(v) for v in told.values()], linewidth=1.7, **styles[arm])
                for rate, values in told.items():
                    ax.plot([rate] * len(values), values, ".", markersize=7, alpha=0.6, color=styles[arm]["color"])
            ax.set(title=name, xscale="log", xlabel="learning rate")
            ax.tick_params(labelbottom=True)
            if share:
                ax.set_ylim(0, 1)
            if log:
                ax.set_yscale("log")
        for row in grid:
            row[0].set_ylabel(score)
        _legend(figure, styles)
        return finish(figure, path, title)


def plot_starts(
    arms: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]],
    path: Where = None,
    *,
    scores: Sequence[str],
    shares: Sequence[bool],
    title: str = "",
) -> Figure:
    """Draw scores of cells, side by side for every start: bars of means, seeds as dots.

    Args:
        arms: by title of a panel, by cell, by start the scores of its seeds; none leaves a gap.
        path: the picture; None: it is not written.
        scores: what is drawn, a name for each panel.
        shares: whether it lies between 0 and 1, for each panel; else its axis is logarithmic.
        title: of the whole.

    Returns:
        The figure.
    """
    starts = list(dict.fromkeys(start for cells in arms.values() for of in cells.values() for start in of))
    styles = {start: {"color": color(number)} for number, start in enumerate(starts)}
    widest = max(map(len, arms.values()))
    columns = min(2, len(arms))
    rows = -(-len(arms) // columns)
    with mpl.rc_context(STYLE):
        size = ((1.2 * widest + 1.2) * columns + 0.6, 3.2 * rows + 0.9)
        figure, grid = panels(rows, columns, figsize=(max(size[0], 6), size[1]))
        for ax in grid.flat[len(arms) :]:
            ax.set_visible(False)
        for ax, (name, cells), score, share in zip(grid.flat, arms.items(), scores, shares, strict=False):
            _bars(ax, cells, styles)
            ax.set(title=name, ylabel=score)
            if share:
                ax.set_ylim(0, 1)
            else:
                ax.set_yscale("log")
        _legend(figure, styles, thick=6)
        return finish(figure, path, title)


def plot_covariances(
    curves: Mapping[str, Mapping[str, tuple[int, tuple[Any, Any, Any]]]],
    path: Where = None,
    *,
    samples: int,
    title: str = "",
) -> Figure:
    """Draw how sizes at every step go together with that at one step, a row for every data set.

    Args:
        curves: by data set, by name the one step, and covariance, correlation and p-value with it,
            each (T,); NaN is left out.
        path: the picture; None: it is not written.
        samples: their number; correlations within 2 / sqrt(samples) of 0 are shaded.
        title: of the whole.

    Returns:
        The figure.
    """
    heads = ("covariance", "correlation (shaded: of chance)", "p-value (dashed: 0.05)")
    with mpl.rc_context(STYLE):
        figure, grid = panels(len(curves), 3, figsize=(12, 2.7 * len(curves) + 0.5))
        for row, (name, drawn) in zip(grid, curves.items(), strict=True):
            for number, (curve, (_, parts)) in enumerate(drawn.items()):
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
                whole_steps(ax)
        return finish(figure, path, title)


def _bars(ax: Axes, cells: Mapping[str, Mapping[str, Sequence[float]]], styles: dict[str, dict[str, Any]]) -> None:
    wide = 0.8 / len(styles)
    for place, of in enumerate(cells.values()):
        for number, (start, style) in enumerate(styles.items()):
            if len(values := list(of.get(start, ()))):
                at = place + (number - (len(styles) - 1) / 2) * wide
                ax.bar(at, np.mean(values), width=0.92 * wide, alpha=0.75, **style)
                ax.plot([at] * len(values), values, ".", markersize=5, color="black", alpha=0.6)
    ax.set_xticks(range(len(cells)), list(cells), fontsize="small")


def _styles(curves: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, Any]]:
    names = dict.fromkeys(name for arms in curves.values() for name in arms)
    return {name: line_style(number) for number, name in enumerate(names)}


def _legend(figure: Figure, styles: dict[str, dict[str, Any]], thick: float = 1.7) -> None:
    handles = [Line2D([], [], linewidth=thick, **style) for style in styles.values()]
    figure.legend(handles, list(styles), loc="outside lower center", ncols=min(4, len(styles)), fontsize="small")
