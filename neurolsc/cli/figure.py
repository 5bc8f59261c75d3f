"""The command ``neurolsc figure``."""

from pathlib import Path

import click

from neurolsc.cli import options
from neurolsc.sweeps import read_sweep
from neurolsc.sweeps.figures import draw


@click.command()
@options.sweep
@click.option(
    "--over", help="The setting along the axis, and of the panels. [default: layers, or the first that varies]"
)
def figure(sweep: Path, over: str | None) -> None:
    """Draw learning curves and scores of a sweep.

    A curve for each combination of settings but the seed. Bands and bars reach from the lowest to
    the highest seed. The pictures are learning.png and scores.png in the sweep's folder.
    """
    grid, rows = read_sweep(sweep)
    for path in draw(grid, rows, sweep, over):
        click.echo(f"drawn in {path}")
