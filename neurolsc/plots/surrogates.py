"""Surrogate gradients beside each other."""

from collections.abc import Mapping
from os import PathLike

import matplotlib.pyplot as plt
from numpy.typing import ArrayLike

from neurolsc.plots.style import COLORS, STYLE, save_figure


def plot_surrogates(v: ArrayLike, curves: Mapping[str, tuple[ArrayLike, ArrayLike]], path: str | PathLike[str]) -> None:
    """Draw the derivative of each surrogate, and the smooth step behind it.

    Args:
        v: distances to the threshold (n,).
        curves: derivative (n,) and primitive (n,) of each surrogate, by its name.
        path: the picture.
    """
    rows = (len(curves) + 3) // 4
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            rows, 4, figsize=(12, 2.5 * rows), layout="constrained", sharex=True, sharey=True, squeeze=False
        )
        for ax in axes.flat[len(curves) :]:
            ax.remove()
        for ax, (name, (derivative, primitive)) in zip(axes.flat, curves.items(), strict=False):
            ax.axvline(0, color="#cccccc", linewidth=1)
            ax.plot(v, derivative, color=COLORS[0], label="derivative given to the spike")
            ax.plot(v, primitive, color=COLORS[1], linestyle="--", label="smooth step it belongs to")
            ax.set_title(name)
        for ax in axes[-1]:
            ax.set_xlabel("$v - \\vartheta$")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), ncols=2, loc="outside upper center")
        save_figure(figure, path)
