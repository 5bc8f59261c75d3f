"""The spikes of one sample."""

from collections.abc import Mapping

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from neurolsc.plots.style import STYLE, Where, finish, layer_color, panels, sample_title


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
        path: the picture; None: it is not written.
        label: what the sample is.
        decision: what the network takes it for.
        title: of the whole, behind label and decision.

    Returns:
        The figure.
    """
    layers = {name: np.asarray(layer) for name, layer in spikes.items()}
    with mpl.rc_context(STYLE):
        figure, axes = panels(len(layers), 1, figsize=(9, 1.9 * len(layers)), sharex=True)
        for number, (ax, (name, layer)) in enumerate(zip(axes[:, 0], layers.items(), strict=True)):
            step, neuron = layer.nonzero()
            ax.scatter(step, neuron, s=3, color=layer_color(number), linewidths=0)
            rate = np.count_nonzero(layer) / layer.size
            ax.set(title=f"{name}: {rate:.4f} spikes per neuron and step", ylim=(-1, layer.shape[1]))
            ax.set_ylabel("neuron")
        axes[-1, 0].set(xlabel="time step", xlim=(-1, max(map(len, layers.values()))))
        return finish(figure, path, sample_title(label, decision, title))
