"""Radii over layers and time, and what holds them."""

import math
from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from neurolsc.plots.style import COLORS, STYLE, Where, color, finish, from_zero, line_style, panels, target_line

_ACROSS = 3
"""layers in a row of a legend"""
Shares = Sequence[Mapping[str, float]]
"""Of every layer, which share each term has."""


def plot_profile(
    path: Where = None,
    *,
    steps: ArrayLike,
    time: ArrayLike,
    depth: ArrayLike,
    held_by: Shares,
    colors: Mapping[str, str],
    firing_rate: Sequence[float],
    target: tuple[float | None, float | None] | None = None,
    starred: Sequence[bool] = (),
    notes: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Draw radii of each layer over time in both directions, and what holds those through time.

    Args:
        path: the picture; None: it is not written.
        steps: the steps (K,).
        time: radii through time (L, K, B).
        depth: radii through depth (L, K, B); row 0 from the input.
        held_by: of every layer the share of points at which a term holds the radius, by its name.
        colors: of the terms, which are drawn in this order; one that is missing is drawn after
            them in a colour of the palette.
        firing_rate: spikes per neuron and step of every layer; NaN where there are none.
        target: radii (time, depth) that were aimed at; None: that one was left as it was.
        starred: which depth rows get a star in the legend; none by default.
        notes: sentences below the picture.
        title: of the whole.

    Returns:
        The figure.
    """
    with mpl.rc_context(STYLE):
        count = len(held_by)
        size = (13, 3.8 + 0.2 * max(0, -(-(count + 1) // _ACROSS) - 1))
        figure, ((*axes,),) = panels(1, 3, figsize=size, width_ratios=(1, 1, 0.28))
        titles = (
            "through time, $\\partial h_{t,l}/\\partial h_{t-1,l}$",
            "through depth, $\\partial h_{l}/\\partial h_{l-1}$",
        )
        for direction, (ax, radii, what) in enumerate(zip(axes, (time, depth), titles, strict=False)):
            for layer, radius in enumerate(np.asarray(radii)):
                name = f"layer {layer + 1}" + (" (from the input)" if direction and not layer else "")
                name += "*" if direction and any(starred[layer : layer + 1]) else ""
                ax.fill_between(steps, radius.min(1), radius.max(1), color=color(layer), alpha=0.15, linewidth=0)
                ax.plot(
                    steps, radius.mean(1), **line_style(layer), label=f"{name}: mean {radius.mean():.2f}", linewidth=1.6
                )
            if target is not None and (aim := target[direction]) is not None:
                target_line(ax, aim, f"target {aim:.3g}")
            ax.set(xlabel="time step", title=f"Radius {what}")
            from_zero(ax)
            # below: lines may run anywhere in the panel
            ax.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=_ACROSS, columnspacing=1)
        axes[0].set_ylabel("spectral radius")
        _plot_terms(axes[2], held_by, colors, firing_rate)
        lines = "Line: mean over samples. Band: smallest to largest."
        told = [lines, "Right: spikes per neuron and step, shares of steps and samples.", *notes]
        figure.supxlabel("   ".join(told), x=0.04, ha="left", fontsize="small")
        return finish(figure, path, title)


def _plot_terms(ax: Axes, held_by: Shares, colors: Mapping[str, str], firing_rate: Sequence[float]) -> None:
    layers = range(len(held_by))
    left = np.zeros(len(held_by))
    for name, its_color in _all_colors(held_by, colors).items():
        shares = np.array([held.get(name, 0.0) for held in held_by])
        if shares.any():
            ax.barh(layers, shares, left=left, color=its_color, label=name, height=0.5)
            left += shares
    for layer in layers:
        if not held_by[layer]:
            ax.text(0.5, layer, "no closed form", ha="center", va="center", fontsize="small")
    rates = enumerate(firing_rate, start=1)
    names = [f"layer {i}" if math.isnan(rate) else f"layer {i}: {rate:.2g} spikes" for i, rate in rates]
    ax.set_yticks(list(layers), names, fontsize="small")
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), xlabel="share")
    ax.set_title("Radius through time held by", loc="right")
    if any(held_by):
        ax.legend(ncols=2, fontsize="small", loc="upper right", bbox_to_anchor=(1.05, -0.16), columnspacing=1)


def _all_colors(held_by: Shares, colors: Mapping[str, str]) -> dict[str, str]:
    """The given colours, and for the other terms those of the palette that are left."""
    others = dict.fromkeys(name for held in held_by for name in held if name not in colors)
    left = [shade for shade in COLORS if shade not in colors.values()] or list(COLORS)
    return dict(colors) | {name: left[i % len(left)] for i, name in enumerate(others)}
