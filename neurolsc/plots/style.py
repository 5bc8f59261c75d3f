"""Colours and styles of all pictures, and how a figure is saved."""

import functools
import io
import math
import os
import textwrap
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from neurolsc.io import atomic_write

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""

Where = str | PathLike[str] | None  # a file, in the format of its suffix; None: the picture is not written
_LETTERS = 10  # of a title in an inch
_DASHES = ("-", "--", ":", "-.")
Styles = Mapping[str, dict[str, Any]]  # colour and dashes of every arm
P = ParamSpec("P")

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


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """A function that draws in our style and leaves matplotlib's settings as they were."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def color(number: int) -> str:
    """One of the palette, again from the start after its end."""
    return COLORS[number % len(COLORS)]


def line_style(number: int) -> dict[str, str]:
    """A colour of the palette, with other dashes in its second and third round."""
    return {"color": color(number), "linestyle": _DASHES[number // len(COLORS) % len(_DASHES)]}


def from_zero(ax: Axes) -> None:
    """Start the upward axis at zero, with space above the highest line, if there is one."""
    top = 1.08 * ax.dataLim.y1
    ax.set_ylim(0, top if math.isfinite(top) and top else None)


def whole_steps(ax: Axes) -> None:
    """Whole numbers below the axis."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def arm_styles(curves: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, Any]]:
    """A style for every arm, the same in all panels that have it."""
    names = dict.fromkeys(name for arms in curves.values() for name in arms)
    return {name: line_style(number) for number, name in enumerate(names)}


def legend_below(figure: Figure, styles: Styles, columns: int, *, linewidth: float = 1.7) -> None:
    """The arms of all panels, below them."""
    handles = [Line2D([], [], linewidth=linewidth, **style) for style in styles.values()]
    figure.legend(handles, list(styles), loc="outside lower center", ncols=columns, fontsize="small")


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
    """Give a figure its title, and write it whole or not at all if there is a path."""
    if title:
        lines = textwrap.fill(title, round(_LETTERS * figure.get_figwidth()))
        figure.suptitle(lines, x=0.01, ha="left", fontsize="large", parse_math=False)
    if path is not None:
        kind = os.path.splitext(path)[1].removeprefix(".") or None
        atomic_write(path, lambda file: figure.savefig(file, format=kind, bbox_inches="tight"))
    return figure
