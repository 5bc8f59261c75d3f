"""Runs: settings in, a folder with a finished run out; and sweeps over many settings.

- config: the settings, each declared once
- run: one experiment in a folder of its own
- grid, sweep: a grid of settings, run by processes or on a Ray cluster
- table: a row for each trial, arms over seeds, pictures
- former: names of earlier versions, turned into the current ones
"""

from neurolsc.experiment.config import (
    DataSettings,
    InitSettings,
    NetworkSettings,
    PretrainSettings,
    TrainSettings,
)
from neurolsc.experiment.grid import Grid, make_grid, read_grid
from neurolsc.experiment.run import Experiment, Outcome, Stopped, diagnose_run, load_network, score
from neurolsc.experiment.sweep import Processes, RayTasks, read_sweep, run_sweep
from neurolsc.experiment.table import arms, draw, markdown

__all__ = [
    "DataSettings",
    "Experiment",
    "Grid",
    "InitSettings",
    "NetworkSettings",
    "Outcome",
    "PretrainSettings",
    "Processes",
    "RayTasks",
    "Stopped",
    "TrainSettings",
    "arms",
    "diagnose_run",
    "draw",
    "load_network",
    "make_grid",
    "markdown",
    "read_grid",
    "read_sweep",
    "run_sweep",
    "score",
]
