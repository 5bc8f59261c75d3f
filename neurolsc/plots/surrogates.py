"""Surrogate gradients beside each other."""

from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from neurolsc.plots.style import COLORS, STYLE, Where, finish, panels


def plot_surrogates(
    v: ArrayLike, curves: Mapping[str, tuple[ArrayLike, ArrayLike]], path: Where = None, *, title: str = ""
) -> Figure:
    """Draw the derivative of each surrogate, and the smooth step behind it.

    Args:
        v: distances to the threshold (n,).
        curves: derivative (n,) and primitive (n,) of each surrogate, by its name.
        path: the picture; None: it is not written.
        title: of the whole.

    Returns:
        The figure.
    """
    rows = (len(curves) + 3) // 4
    with mpl.rc_context(STYLE):
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
