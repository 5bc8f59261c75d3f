"""The paper's theory: paths, the PascalRNN, growth forward and back, and decaying covariance."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from neurolsc.plots.style import STYLE, Where, color, finish, line_style, panels, target_line, whole_steps

_DECADES = 1 / np.log(10)
Curve = tuple[Any, Any]
"""places and natural logarithms (N,) of each"""


def plot_paths(
    curves: Mapping[str, Mapping[str, Curve]],
    path: Where = None,
    *,
    over: Sequence[str],
    counted: str = "gradient paths",
    shared: bool = False,
    title: str = "",
) -> Figure:
    """Draw numbers beyond all floats over the sides of the grid: straight is exponential.

    Args:
        curves: by title of a panel, of every curve by name its places and natural logarithms;
            ``-inf`` is left out. A panel with one curve has no legend.
        path: the picture; None: it is not written.
        over: what is along the axis of every panel.
        counted: what the logarithms are of.
        shared: whether all panels have the first one's upward axis.
        title: of the whole.

    Returns:
        The figure.
    """
    with mpl.rc_context(STYLE):
        figure, ((*axes,),) = panels(1, len(curves), figsize=(4.4 * len(curves) + 0.4, 3.4), sharey=shared)
        for ax, (name, drawn), label in zip(axes, curves.items(), over, strict=True):
            for number, (curve, (places, logs)) in enumerate(drawn.items()):
                width = 1.5 + 1.1 * (len(drawn) - 1 - number)  # where one hides another, both are seen
                ax.plot(places, _decades(logs), label=curve, linewidth=width, **line_style(number))
            _logarithmic(ax)
            whole_steps(ax)
            ax.set(title=name, xlabel=label)
            if len(drawn) > 1:
                ax.legend(fontsize="small")
        axes[0].set_ylabel(counted)
        return finish(figure, path, title)


def plot_pascal(
    curves: Mapping[str, tuple[Any, Any, Any]],
    path: Where = None,
    *,
    title: str = "",
) -> Figure:
    """Draw what PascalRNNs send, and the derivative by the input with its bound, over time.

    Args:
        curves: by name of a network its outputs (T, B), and the natural logarithms of the
            derivative of their sum by the input at each step (T,) and of its bound (T,).
        path: the picture; None: it is not written.
        title: of the whole.

    Returns:
        The figure.
    """
    with mpl.rc_context(STYLE):
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


def plot_growth(
    growths: Mapping[str, tuple[Any, Any, Any]],
    path: Where = None,
    *,
    title: str = "",
) -> Figure:
    """Draw a change on its way forward and a gradient on its way back, of one or more networks.

    Args:
        growths: by name of a network the norms of the difference of two runs, of its tangent and of
            the gradient, each (L, T, B); means over samples are drawn, but where they are 0.
        path: the picture; None: it is not written.
        title: of the whole.

    Returns:
        The figure.
    """
    with mpl.rc_context(STYLE):
        figure, axes = panels(len(growths), 2, figsize=(9.6, 2.5 * len(growths) + 0.5), sharex=True, sharey="col")
        low, high = 0.0, 0.0
        for (forward, back), (name, norms) in zip(axes, growths.items(), strict=True):
            difference, tangent, gradient = (_mean_logs(part) for part in norms)
            low, high = min(low, *_ends(tangent)), max(high, *_ends(tangent), *_ends(difference))
            for layer in range(len(tangent)):
                shade, steps = color(layer), np.arange(tangent.shape[1])
                forward.plot(steps, tangent[layer], color=shade, linewidth=1.7, label=f"layer {layer + 1}, tangent")
                forward.plot(steps, difference[layer], color=shade, linestyle=":", label=f"layer {layer + 1}, two runs")
                back.plot(steps, gradient[layer], color=shade, linewidth=1.7, label=f"layer {layer + 1}")
            forward.set(title=f"{name}: a change, forward")
            back.set(title=f"{name}: the gradient, back")
        for ax in axes.flat:
            _logarithmic(ax)
        # rounding, which two runs may differ by, would else make the axis
        axes[0, 0].set_ylim(low - 0.05 * (high - low) - 0.5, high + 0.05 * (high - low) + 0.5)
        for ax in axes[-1]:
            ax.set_xlabel("time step")
            whole_steps(ax)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), fontsize="small")
        return finish(figure, path, title)


def plot_covariance(
    curves: Mapping[str, tuple[Any, Any, Any]],
    path: Where = None,
    *,
    steps: Sequence[int],
    step: int = 0,
    samples: int,
    title: str = "",
) -> Figure:
    """Draw how a size at every step goes together with that at one step.

    Args:
        curves: by name covariance, correlation and p-value, each (K,); NaN is left out.
        path: the picture; None: it is not written.
        steps: the K steps.
        step: the one.
        samples: their number; correlations within 2 / sqrt(samples) of 0 are shaded.
        title: of the whole.

    Returns:
        The figure.
    """
    with mpl.rc_context(STYLE):
        figure, ((*axes,),) = panels(1, 3, figsize=(13, 3.6))
        for number, (name, curve) in enumerate(curves.items()):
            for ax, values in zip(axes, curve, strict=True):
                ax.plot(steps, np.asarray(values), label=name, linewidth=1.6, **line_style(number))
        noise = 2 / np.sqrt(samples)
        axes[1].axhspan(-noise, noise, color="black", alpha=0.1, linewidth=0)
        target_line(axes[2], 0.05, "0.05")
        axes[1].set_ylim(-1.05, 1.05)
        axes[2].set_ylim(0, 1)
        titles = (f"Covariance with step {step}", "Correlation (shaded: of chance)", "p-value (dashed: 0.05)")
        for ax, name in zip(axes, titles, strict=True):
            ax.set(title=name, xlabel="time step")
            whole_steps(ax)
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 5), fontsize="small")
        return finish(figure, path, title)


def _decades(logs: Any) -> np.ndarray:
    """Decimal logarithms of natural ones; what is no number leaves a gap."""
    values = np.asarray(logs, dtype=float) * _DECADES
    return np.where(np.isfinite(values), values, np.nan)


def _mean_logs(norms: Any) -> np.ndarray:
    """Decimal logarithms (L, T) of the means of norms (L, T, B) over samples; NaN where it is 0."""
    mean = np.asarray(norms, dtype=float).mean(-1)
    return np.log10(np.where(mean > 0, mean, np.nan))


def _ends(values: np.ndarray) -> tuple[float, float]:
    """The smallest and the largest number among them, 0 and 0 where there is none."""
    some = values[np.isfinite(values)]
    return (float(some.min()), float(some.max())) if some.size else (0.0, 0.0)


def _logarithmic(ax: Axes) -> None:
    """Name the places of an axis of decimal logarithms by what they are logarithms of."""
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"$10^{{{value:.0f}}}$"))
