"""Colours and styles of all pictures, and how a figure is saved."""

import io
import math
import os
import textwrap
from os import PathLike
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from neurolsc.io import atomic_write

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""

Where = str | PathLike[str] | None
"""Where a picture is written to, in the format of its suffix; None: it is not written."""
_LETTERS = 10
"""of a title in an inch"""
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
    """Start the upward axis at zero, with space above the highest line, if there is one."""
    top = 1.08 * ax.dataLim.y1
    ax.set_ylim(0, top if math.isfinite(top) and top else None)


def whole_steps(ax: Axes) -> None:
    """Whole numbers below the axis."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def target_line(ax: Axes, value: float, label: str) -> None:
    """A dashed line across, at what was aimed at."""
    ax.axhline(value, color="black", linestyle="--", linewidth=1, label=label)


class Picture(Figure):
    """A figure that pyplot does not know: there is none to close, and a notebook shows it once."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", bbox_inches="tight")
        return file.getvalue()


def panels(rows: int, columns: int, *, figsize: tuple[float, float], **settings: Any) -> tuple[Figure, np.ndarray]:
    """A figure, inches wide and high, and its axes (rows, columns); settings are matplotlib's."""
    figure = Picture(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **settings)


def finish(figure: Figure, path: Where, title: str) -> Figure:
    """Give a figure its title, and write it whole or not at all.

    Args:
        figure: the figure.
        path: the picture; None: it is not written.
        title: of the whole: network, data and seeds; none if empty.

    Raises:
        ValueError: if matplotlib does not know the format.
        OSError: if the file cannot be written.
    """
    if title:
        lines = textwrap.fill(title, round(_LETTERS * figure.get_figwidth()))
        figure.suptitle(lines, x=0.01, ha="left", fontsize="large", parse_math=False)
    if path is not None:
        kind = os.path.splitext(path)[1].removeprefix(".") or None
        atomic_write(path, lambda file: figure.savefig(file, format=kind, bbox_inches="tight"))
    return figure
