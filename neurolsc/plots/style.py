"""What the pictures share: colours, looks, and how a figure is saved."""

import os
from os import PathLike
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from neurolsc.files import atomic_write

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
"""Okabe and Ito's palette, told apart by colour-blind readers."""

_DASHES = ("-", "--", ":", "-.")

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


def color(number: int) -> str:
    """One of the palette, again from the start after its end."""
    return COLORS[number % len(COLORS)]


def line_style(number: int) -> dict[str, str]:
    """A colour of the palette, and dashes that tell the second and third round from the first."""
    return {"color": color(number), "linestyle": _DASHES[number // len(COLORS) % len(_DASHES)]}


def from_zero(ax: Axes) -> None:
    """Start the upward axis at zero, with room above the highest line."""
    ax.set_ylim(0, 1.08 * ax.dataLim.y1 or None)


def whole_steps(ax: Axes) -> None:
    """Whole numbers below the axis."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def target_line(ax: Axes, value: float, label: str) -> None:
    """A dashed line across, at what was aimed at."""
    ax.axhline(value, color="black", linestyle="--", linewidth=1, label=label)


def save_figure(figure: Figure, path: str | PathLike[str], title: str = "") -> None:
    """Write a figure whole or not at all, and close it; the suffix chooses the format.

    Args:
        figure: the figure.
        path: the picture.
        title: of the whole: network, data and seeds; none if empty.
    """
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize="large")
    kind = os.path.splitext(path)[1].removeprefix(".") or None
    try:
        atomic_write(path, lambda file: figure.savefig(file, format=kind, bbox_inches="tight"))
    finally:
        plt.close(figure)
