"""The spikes of one sample."""

from collections.abc import Mapping
from os import PathLike

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import ArrayLike

from neurolsc.plots.style import COLORS, STYLE, save_figure


def plot_raster(spikes: Mapping[str, ArrayLike], path: str | PathLike[str], *, title: str = "") -> None:
    """Draw the spikes of one sample, one panel per layer.

    Args:
        spikes: of each layer (T, N), under what stands above its panel.
        path: the picture.
        title: of the whole.
    """
    layers = {label: np.asarray(layer) for label, layer in spikes.items()}
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(layers), 1, figsize=(9, 1.9 * len(layers)), layout="constrained", sharex=True, squeeze=False
        )
        for ax, (label, layer) in zip(axes[:, 0], layers.items(), strict=True):
            step, neuron = layer.nonzero()
            ax.scatter(step, neuron, s=3, color=COLORS[0], linewidths=0)
            rate = np.count_nonzero(layer) / layer.size
            ax.set(title=f"{label}: {rate:.4f} spikes per neuron and step", ylim=(-1, layer.shape[1]))
            ax.set_ylabel("neuron")
        axes[-1, 0].set(xlabel="time step", xlim=(-1, max(map(len, layers.values()))))
        save_figure(figure, path, title)
