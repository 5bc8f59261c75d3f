"""Pictures of a network: radii, a diagnosis, an export, spikes, surrogates."""

import math
import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from neurolsc.plots.style import (
    COLORS,
    Where,
    color,
    finish,
    from_zero,
    line_style,
    panels,
    styled,
)

_ACROSS = 3  # layers in a row of a legend
Shares = Sequence[Mapping[str, float]]  # of every layer, which share each term has
Series = Mapping[str, Sequence[float]]  # of each name a number per layer; NaN where there is none


@styled
def plot_profile(
    path: Where = None,
    *,
    steps: ArrayLike,
    time: ArrayLike,
    depth: ArrayLike,
    due_to: Shares,
    colors: Mapping[str, str],
    firing_rate: Sequence[float],
    target: tuple[float | None, float | None] | None = None,
    starred: Sequence[bool] = (),
    notes: Sequence[str] = (),
    title: str = "",
) -> Figure:
    """Draw radii of each layer over time in both directions, and what those through time are due to.

    Args:
        steps: the steps (K,).
        time: radii through time (L, K, B).
        depth: radii through depth (L, K, B); row 0 from the input.
        due_to: of every layer what each term contributes to the mean radius through time, by its name.
        colors: of the terms, in the order drawn; others follow, in colours of the palette.
        firing_rate: spikes per neuron and step of every layer; NaN where there are none.
        target: target radii (time, depth); None: that one was left as it was.
        starred: True for the depth rows with a star in the legend.
        notes: sentences below the picture.
    """
    count = len(due_to)
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
            ax.axhline(aim, color="black", linestyle="--", linewidth=1, label=f"target {aim:.3g}")
        ax.set(xlabel="time step", title=f"Radius {what}")
        from_zero(ax)
        # below: lines may run anywhere in the panel
        ax.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=_ACROSS, columnspacing=1)
    axes[0].set_ylabel("spectral radius")
    _plot_terms(axes[2], due_to, colors, firing_rate)
    lines = "Line: mean over samples. Band: smallest to largest."
    notes = [lines, "Right: spikes per neuron and step, shares of what adds to the mean radius.", *notes]
    figure.supxlabel("   ".join(notes), x=0.04, ha="left", fontsize="small")
    return finish(figure, path, title)


def _plot_terms(ax: Axes, due_to: Shares, colors: Mapping[str, str], firing_rate: Sequence[float]) -> None:
    layers = range(len(due_to))
    left = np.zeros(len(due_to))
    others = dict.fromkeys(name for shares in due_to for name in shares if name not in colors)
    free = [shade for shade in COLORS if shade not in colors.values()] or COLORS
    every = dict(colors) | {name: free[i % len(free)] for i, name in enumerate(others)}
    for name, its_color in every.items():
        added = [{term: max(value, 0.0) for term, value in terms.items()} for terms in due_to]
        shares = np.array([terms.get(name, 0.0) / (sum(terms.values()) or 1) for terms in added])
        if shares.any():
            ax.barh(layers, shares, left=left, color=its_color, label=name, height=0.5)
            left += shares
    for layer in layers:
        if not due_to[layer]:
            ax.text(0.5, layer, "not known", ha="center", va="center", fontsize="small")
    rates = enumerate(firing_rate, start=1)
    names = [f"layer {i}" if math.isnan(rate) else f"layer {i}: {rate:.2g} spikes" for i, rate in rates]
    ax.set_yticks(list(layers), names, fontsize="small")
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), xlabel="share")
    ax.set_title("Radius through time due to", loc="right")
    if any(due_to):
        ax.legend(ncols=2, fontsize="small", loc="upper right", bbox_to_anchor=(1.05, -0.16), columnspacing=1)


@styled
def plot_diagnosis(
    path: Where = None,
    *,
    activity: Series,
    stretch: Series,
    back: np.ndarray | None,
    gradient: Sequence[float] | None,
    findings: Sequence[str],
    title: str = "",
) -> Figure:
    """Draw what the layers do, what happens to gradients, and what was found.

    Args:
        activity: shares of neurons, or of steps, by name.
        stretch: factors by which a step multiplies gradients.
        back: norm of the last step's gradient, by layer and steps back (L, T); None without targets.
        gradient: its norm by the parameters of each layer; None without targets.
        findings: sentences below the picture.
    """
    lines = [line for finding in findings for line in textwrap.wrap(finding, 140, subsequent_indent="    ")]
    figure, axes = panels(2, 2, figsize=(10, 6.6 + 0.19 * len(lines)))
    (does, factor), (course, norm) = axes
    for ax, series in ((does, activity), (factor, stretch)):
        for number, (name, values) in enumerate(series.items()):
            layers = range(1, len(values) + 1)
            ax.plot(layers, values, color=color(number), marker="o", markersize=4, linewidth=1.2, label=name)
        low, high = ax.get_ylim()
        ax.set_ylim(min(0, low), max(1.05, high))
        ax.legend(fontsize="small")
    does.set(title="What the neurons do", ylabel="share")
    factor.set(title="What a step multiplies", ylabel="factor")
    factor.axhline(1, color="black", linestyle="--", linewidth=1)
    course.set(title="Gradient of the last step's loss, by the state", xlabel="steps back", ylabel="norm")
    norm.set(title="Gradient of the loss by the weights", ylabel="norm")
    count = len(next(iter(activity.values())))
    for ax in (does, factor, norm):
        ax.set_xlim(0.5, count + 0.5)
        ax.set_xticks(range(1, count + 1), [f"layer {i}" for i in range(1, count + 1)])
    if back is None or gradient is None:
        for ax in (course, norm):
            ax.text(0.5, 0.5, "needs targets", ha="center", va="center", transform=ax.transAxes, fontsize="small")
    else:
        for layer, (norms, whole) in enumerate(zip(back, gradient, strict=True)):
            shown = np.where(norms > 0, norms, np.nan)
            course.plot(range(len(norms)), shown, color=color(layer), linewidth=1.4, label=f"layer {layer + 1}")
            norm.plot(layer + 1, whole if whole > 0 else np.nan, color=color(layer), marker="o", markersize=7)
        for ax, known in ((course, back), (norm, np.array(gradient))):
            if (known > 0).any():
                ax.set_yscale("log")
        course.legend(fontsize="small")
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize="small", parse_math=False)
    return finish(figure, path, title)


@styled
def plot_raster(
    spikes: Mapping[str, ArrayLike],
    path: Where = None,
    *,
    label: str = "",
    decision: str = "",
    title: str = "",
) -> Figure:
    """Draw the spikes of one sample, one panel per layer, each in a colour of its own.

    Args:
        spikes: of the input and each layer (T, N), under what stands above its panel.
        label: what the sample is.
        decision: what the network takes it for.
    """
    layers = {name: np.asarray(layer) for name, layer in spikes.items()}
    figure, axes = panels(len(layers), 1, figsize=(9, 1.9 * len(layers)), sharex=True)
    for number, (ax, (name, layer)) in enumerate(zip(axes[:, 0], layers.items(), strict=True)):
        step, neuron = layer.nonzero()
        ax.scatter(step, neuron, s=3, color=color(number - 1) if number else "black", linewidths=0)
        rate = np.count_nonzero(layer) / layer.size
        ax.set(title=f"{name}: {rate:.4f} spikes per neuron and step", ylim=(-1, layer.shape[1]))
        ax.set_ylabel("neuron")
    axes[-1, 0].set(xlabel="time step", xlim=(-1, max(map(len, layers.values()))))
    sample = [f"label {label}" if label else "", f"the network says {decision}" if decision else ""]
    return finish(figure, path, "; ".join(filter(None, (", ".join(filter(None, sample)), title))))


@styled
def plot_surrogates(
    v: ArrayLike, curves: Mapping[str, tuple[ArrayLike, ArrayLike]], path: Where = None, *, title: str = ""
) -> Figure:
    """Draw the derivative of each surrogate, and the smooth step behind it.

    Args:
        v: distances to the threshold (n,).
        curves: derivative (n,) and primitive (n,) of each surrogate, by its name.
    """
    rows = (len(curves) + 3) // 4
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
