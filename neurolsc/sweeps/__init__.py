"""Many experiments: a grid of settings, run by many workers, as one table.

- grid: the grid file, and how a setting is chosen for each arm
- trial: one experiment of a sweep, and where it is kept
- start: what is measured of a network before its training, and what it ran on
- work: what a worker does with a trial
- pools, ray_pool: workers that are processes, or tasks on a Ray cluster
- sweep: which trials are over, and which are next
- row, table: what is told of a trial, and of all
- known: trials that are taken from such a table, and not run
- summary, figures: the trials of an arm put together, as Markdown and as pictures
"""

from neurolsc.sweeps.grid import Choice, Figures, Grid, make_grid, read_grid
from neurolsc.sweeps.pools import Pool, Processes
from neurolsc.sweeps.sweep import read_sweep, run_sweep
from neurolsc.sweeps.trial import Trial

__all__ = [
    "Choice",
    "Figures",
    "Grid",
    "Pool",
    "Processes",
    "Trial",
    "make_grid",
    "read_grid",
    "read_sweep",
    "run_sweep",
]
