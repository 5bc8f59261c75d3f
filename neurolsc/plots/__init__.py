"""Every picture: arrays, numbers, names and colours in, a matplotlib figure out.

With a path the figure is also written, whole or not at all, in the format of the suffix. pyplot does not know a figure:
there is nothing to close, and a notebook shows it once. `networks` draws radii, a diagnosis, spikes and surrogates,
`curves` pre-training, training and sweeps; `style` has the colours, and how a figure is saved.
"""

from neurolsc.plots.curves import plot_bands, plot_learning_curves, plot_pretraining, plot_scores
from neurolsc.plots.networks import (
    plot_diagnosis,
    plot_profile,
    plot_raster,
    plot_surrogates,
)
from neurolsc.plots.style import COLORS

__all__ = [
    "COLORS",
    "plot_bands",
    "plot_diagnosis",
    "plot_learning_curves",
    "plot_pretraining",
    "plot_profile",
    "plot_raster",
    "plot_scores",
    "plot_surrogates",
]
