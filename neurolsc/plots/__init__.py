"""Every picture, one a file: arrays, numbers, names and colours in, a figure out.

The figure is also written, whole or not at all, where a path is given. pyplot does not know it:
there is none to close, and a notebook shows what a call returns once.

- style: colours, looks, and how a figure is saved: what the pictures share
- profile: radii over layers and time
- pretraining, learning: what happened over steps and epochs
- sweep: curves of many trainings with bands, and scores over a setting
- raster: spikes of one sample, layer by layer
- animation: one sample on its way through a network, as a film
- utterances, summary: spikes of utterances, and what is in a file of them
- diagnosis: what ails a network that does not learn
- surrogates: derivatives of spikes
- export: what an export cost
- theory: gradient paths, the PascalRNN, growth forward and back, decaying covariance
- reproduce: the grid of steps and layers, scores over learning rates, cells side by side, decaying
  covariance on several data sets
"""

from neurolsc.plots.animation import animate_sample
from neurolsc.plots.diagnosis import plot_diagnosis
from neurolsc.plots.export import plot_export
from neurolsc.plots.learning import plot_learning_curves
from neurolsc.plots.pretraining import plot_pretraining
from neurolsc.plots.profile import plot_profile
from neurolsc.plots.raster import plot_raster
from neurolsc.plots.reproduce import plot_covariances, plot_grid, plot_rates, plot_starts
from neurolsc.plots.style import COLORS
from neurolsc.plots.summary import plot_summary
from neurolsc.plots.surrogates import plot_surrogates
from neurolsc.plots.sweep import plot_bands, plot_scores
from neurolsc.plots.theory import plot_covariance, plot_growth, plot_pascal, plot_paths
from neurolsc.plots.utterances import plot_utterances

__all__ = [
    "COLORS",
    "animate_sample",
    "plot_bands",
    "plot_covariance",
    "plot_covariances",
    "plot_diagnosis",
    "plot_export",
    "plot_grid",
    "plot_growth",
    "plot_learning_curves",
    "plot_pascal",
    "plot_paths",
    "plot_pretraining",
    "plot_profile",
    "plot_raster",
    "plot_rates",
    "plot_scores",
    "plot_starts",
    "plot_summary",
    "plot_surrogates",
    "plot_utterances",
]
