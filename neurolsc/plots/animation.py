"""One sample on its way through a network, as a film."""

import tempfile
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from neurolsc.files import atomic_write
from neurolsc.plots.style import COLORS, STYLE, finish, layer_color, panels, sample_title

_FRAMES_A_SECOND = 6
_WAIT = 6
"""frames for which the last one stays"""
_PAST = 0.3
"""shade of an input that fired before; one that fires now is black"""


def animate_sample(
    path: str | PathLike[str],
    *,
    image: ArrayLike,
    spikes: Mapping[str, ArrayLike],
    votes: ArrayLike,
    classes: Sequence[str],
    label: str = "",
    decision: str = "",
    title: str = "",
    frames: int = 25,
) -> None:
    """Draw input spikes as an image, spikes of layers and the votes so far, over time, as a GIF.

    Args:
        path: the GIF, which plays again and again.
        image: input spikes (T, height, width), at a place of the image for each neuron.
        spikes: of each layer (T, N), by its name.
        votes: the class that each step votes for (T,), counted from 0; -1: none.
        classes: names of all classes.
        label: what the sample is.
        decision: what the network takes it for.
        title: of the whole, behind label and decision.
        frames: how many, but for the wait at the end; no more than T.

    Raises:
        OSError: if the file cannot be written.
    """
    pixels, layers = np.asarray(image), {name: np.asarray(layer) for name, layer in spikes.items()}
    ends = np.linspace(0, len(pixels), min(frames, len(pixels)) + 1).astype(int)[1:]
    counts = np.eye(len(classes) + 1)[np.asarray(votes)][:, :-1].cumsum(0)  # row -1, no vote, counts for none
    with mpl.rc_context(STYLE), tempfile.TemporaryDirectory() as folder:
        figure, axes = panels(len(layers), 3, figsize=(9, 3.4), width_ratios=(1, 1.5, 0.8))
        grid = axes[0, 0].get_gridspec()
        for ax in (*axes[:, 0], *axes[:, 2]):
            ax.remove()
        shown = _input(figure.add_subplot(grid[:, 0]), pixels)
        covers = [
            _layer(ax, number, name, layer)
            for number, (ax, (name, layer)) in enumerate(zip(axes[:, 1], layers.items(), strict=True), start=1)
        ]
        axes[-1, 1].set_xlabel("time step")
        bars = _votes(figure.add_subplot(grid[:, 2]), counts, classes)
        finish(figure, None, sample_title(label, decision, title))
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # it would find the same places again, by drawing every frame twice
        film = Path(folder, "film.gif")
        writer = PillowWriter(fps=_FRAMES_A_SECOND)
        with writer.saving(figure, str(film), dpi=80):
            for begin, end in zip([0, *ends], ends, strict=False):
                shown.set_data(np.maximum(pixels[begin:end].any(0), _PAST * pixels[:end].any(0)))
                shown.axes.set_title(f"input spikes, step {end}")
                for cover in covers:
                    cover.set_x(end)
                for bar, count in zip(bars, counts[end - 1], strict=True):
                    bar.set(width=count, color=COLORS[2] if 0 < count == counts[end - 1].max() else COLORS[6])
                writer.grab_frame()
            for _ in range(_WAIT):
                writer.grab_frame()
        atomic_write(path, lambda file: file.write(film.read_bytes()))


def _input(ax: Axes, pixels: np.ndarray) -> AxesImage:
    """An empty image of the input."""
    ax.set_axis_off()
    return ax.imshow(np.zeros(pixels.shape[1:]), cmap="gray_r", vmin=0, vmax=1)


def _layer(ax: Axes, number: int, name: str, layer: np.ndarray) -> Rectangle:
    """All spikes of a layer, and what hides those that are yet to come."""
    step, neuron = layer.nonzero()
    ax.scatter(step, neuron, s=2, color=layer_color(number), linewidths=0)
    ax.set(title=name, xlim=(0, len(layer)), ylim=(-1, layer.shape[1]), ylabel="neuron")
    cover = Rectangle((0, -1), len(layer), layer.shape[1] + 1, color="white", zorder=2)
    ax.add_patch(cover)
    return cover


def _votes(ax: Axes, counts: np.ndarray, classes: Sequence[str]) -> BarContainer:
    """A bar for every class, long enough for all of its votes."""
    bars = ax.barh(classes, np.zeros(len(classes)))
    ax.invert_yaxis()
    ax.set(title="votes of the readout", xlim=(0, max(counts.max(), 1)), xlabel="steps")
    return bars
