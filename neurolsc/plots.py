"""Every picture. Functions take what they show and a path, and write a file whole."""

import math
import os
from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from neurolsc.files import atomic_write
from neurolsc.surrogate import Surrogate

if TYPE_CHECKING:
    from neurolsc.stability.profile import RadiusProfile

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
"""Okabe and Ito's palette, told apart by colour-blind readers."""

_SOURCE_COLORS = {"leak": COLORS[0], "reset": COLORS[3], "feedback": COLORS[1], "recurrence": COLORS[2]}
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": "medium",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.dpi": 115,
}


def plot_profile(profile: "RadiusProfile", path: str | PathLike[str]) -> None:
    """Draw a radius profile: radii of each layer over time in both directions, and what holds those through time."""
    steps = profile.steps.numpy()
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained", width_ratios=(1, 1, 0.8))
        titles = (
            "through time, $\\partial h_{t,l}/\\partial h_{t-1,l}$",
            "through depth, $\\partial h_{l}/\\partial h_{l-1}$",
        )
        for direction, (ax, radii, title) in enumerate(zip(axes, (profile.time, profile.depth), titles, strict=False)):
            for layer, radius in enumerate(radii):
                name = f"layer {layer + 1}" + (" (from the input)" if direction and not layer else "")
                star = "*" if direction and profile.non_square[layer] else ""
                color = COLORS[layer % len(COLORS)]
                mean = radius.mean(1).numpy()
                ax.fill_between(
                    steps, radius.amin(1).numpy(), radius.amax(1).numpy(), color=color, alpha=0.15, linewidth=0
                )
                ax.plot(steps, mean, color=color, label=f"{name}{star}: mean {radius.mean():.2f}", linewidth=1.6)
            if profile.target is not None:
                wanted = profile.target[direction]
                ax.axhline(wanted, color="black", linestyle="--", linewidth=1, label=f"target {wanted:.3g}")
            ax.set(xlabel="time step", title=f"Radius {title}")
            _from_zero(ax)
            ax.legend(fontsize="small", loc="lower right")
        axes[0].set_ylabel("spectral radius")
        _plot_sources(axes[2], profile)
        notes = ["Line: mean over samples. Band: smallest to largest. Spikes: per neuron and step."]
        treated = {t for t in profile.non_square if t}
        if treated:
            words = {"submatrix": "radius of a random square sub-matrix", "singular": "largest singular value"}
            notes.append("* Between unequal widths: " + ", ".join(words[t] for t in sorted(treated)) + ".")
        figure.supxlabel("   ".join(notes), x=0.04, ha="left", fontsize="small")
        save_figure(figure, path)


def _plot_sources(ax: Axes, profile: "RadiusProfile") -> None:
    layers = range(len(profile.sources))
    left = [0.0] * len(profile.sources)
    for name, color in _SOURCE_COLORS.items():
        shares = [profile.sources[layer].get(name, 0.0) for layer in layers]
        if any(shares):
            ax.barh(list(layers), shares, left=left, color=color, label=name, height=0.6)
            left = [a + b for a, b in zip(left, shares, strict=True)]
    for layer in layers:
        if not profile.sources[layer]:
            ax.text(0.5, layer, "no closed form", ha="center", va="center", fontsize="small")
    rates = enumerate(profile.firing_rate.tolist(), start=1)
    names = [f"layer {i}" if math.isnan(rate) else f"layer {i}\n{rate:.2g} spikes" for i, rate in rates]
    ax.set_yticks(list(layers), names)
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), xlabel="share of steps and samples", title="What holds the radius through time")
    if any(profile.sources):
        ax.legend(ncols=4, fontsize="small", loc="upper center", bbox_to_anchor=(0.45, -0.18), columnspacing=1)


def _from_zero(ax: Axes) -> None:
    """Start the upward axis at zero, with room above the highest line."""
    ax.set_ylim(0, 1.08 * ax.dataLim.y1 or None)


def plot_pretraining(
    history: Sequence[dict[str, Any]], target: tuple[float, float] | None, path: str | PathLike[str]
) -> None:
    """Draw the mean radii and the firing rates of every layer over the pre-training steps."""
    rows = [row for row in history if "depth" in row]
    if not rows:
        raise ValueError("only the history of pretrain can be drawn over steps.")
    steps = [row["step"] for row in rows]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(13, 3.4), layout="constrained")
        for ax, key, title in zip(
            axes,
            ("time", "depth", "firing_rate"),
            ("Mean radius through time", "Mean radius through depth", "Spikes per neuron and step"),
            strict=True,
        ):
            for layer in range(len(rows[0][key])):
                values = [row[key][layer] for row in rows]
                ax.plot(steps, values, color=COLORS[layer % len(COLORS)], label=f"layer {layer + 1}", linewidth=1.6)
            if target is not None and key != "firing_rate":
                ax.axhline(
                    target[0 if key == "time" else 1], color="black", linestyle="--", linewidth=1, label="target"
                )
            ax.set(xlabel="pre-training step", title=title)
            _from_zero(ax)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[0].legend(fontsize="small")
        save_figure(figure, path)


def plot_learning_curves(
    histories: dict[str, Sequence[dict[str, Any]]], path: str | PathLike[str], *, chance: float | None = None
) -> None:
    """Draw validation loss, mode accuracy and the last layer's firing rate of one or more trainings over epochs."""
    panels = (
        ("validation_loss", "Validation loss (mean over all steps)"),
        ("validation_mode_accuracy", "Validation mode accuracy"),
        ("firing_rate", "Spikes per neuron and step, last layer"),
    )
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(1, 3, figsize=(13, 3.9), layout="constrained")
        for color, (name, history) in zip(COLORS * len(histories), histories.items(), strict=False):
            for ax, (key, _) in zip(axes, panels, strict=True):
                values = [row[key][-1] if isinstance(row[key], list) else row[key] for row in history]
                ax.plot([row["epoch"] for row in history], values, color=color, label=name, marker=".", linewidth=1.6)
        for ax, (_, title) in zip(axes, panels, strict=True):
            ax.set(xlabel="epoch", title=title)
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes[1].set_ylim(0, 1)
        axes[2].set_ylim(0, None)
        if chance is not None:
            axes[1].axhline(chance, color="black", linestyle=":", linewidth=1, label="chance")
        # below the panels: curves may run anywhere in them
        handles, labels = axes[1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 7), fontsize="small")
        save_figure(figure, path)


def plot_raster(spikes: Sequence[torch.Tensor], labels: Sequence[str], path: str | PathLike[str]) -> None:
    """Draw the spikes of one sample, one panel per layer: each (T, N)."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(spikes), 1, figsize=(9, 1.9 * len(spikes)), layout="constrained", sharex=True, squeeze=False
        )
        for ax, layer, label in zip(axes[:, 0], spikes, labels, strict=True):
            step, neuron = layer.nonzero(as_tuple=True)
            ax.scatter(step.numpy(), neuron.numpy(), s=3, color=COLORS[0], linewidths=0)
            rate = layer.ne(0).float().mean()
            ax.set(title=f"{label}: {rate:.4f} spikes per neuron and step", ylim=(-1, layer.shape[1]))
            ax.set_ylabel("neuron")
        axes[-1, 0].set(xlabel="time step", xlim=(-1, spikes[0].shape[0]))
        save_figure(figure, path)


def plot_surrogates(surrogates: Sequence[Surrogate], path: str | PathLike[str]) -> None:
    """Draw the derivative of each surrogate, and the smooth step behind it."""
    v = torch.linspace(-3, 3, 601)
    with plt.rc_context(STYLE), torch.no_grad():
        rows = (len(surrogates) + 3) // 4
        figure, axes = plt.subplots(
            rows, 4, figsize=(12, 2.5 * rows), layout="constrained", sharex=True, sharey=True, squeeze=False
        )
        for ax in axes.flat[len(surrogates) :]:
            ax.remove()
        for ax, spike in zip(axes.flat, surrogates, strict=False):
            ax.axvline(0, color="#cccccc", linewidth=1)
            ax.plot(v, spike.derivative(v), color=COLORS[0], label="derivative given to the spike")
            ax.plot(v, spike.primitive(v), color=COLORS[1], linestyle="--", label="smooth step it belongs to")
            ax.set_title(type(spike).__name__)
        for ax in axes[-1]:
            ax.set_xlabel("$v - \\vartheta$")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), ncols=2, loc="outside upper center")
        save_figure(figure, path)


def save_figure(figure: Figure, path: str | PathLike[str]) -> None:
    """Write a figure whole or not at all, and close it."""
    kind = os.path.splitext(path)[1].removeprefix(".") or None
    try:
        atomic_write(path, lambda file: figure.savefig(file, format=kind, bbox_inches="tight"))
    finally:
        plt.close(figure)
