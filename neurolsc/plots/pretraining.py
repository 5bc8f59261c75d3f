"""Radii and firing rates while a network is pre-trained."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from neurolsc.plots.style import STYLE, Where, finish, from_zero, line_style, panels, target_line, whole_steps

PANELS = {
    "time": "Mean radius through time",
    "depth": "Mean radius through depth",
    "firing_rate": "Spikes per neuron and step",
}


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
        path: the picture; None: it is not written.
        title: of the whole.

    Returns:
        The figure.

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
    with mpl.rc_context(STYLE):
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
