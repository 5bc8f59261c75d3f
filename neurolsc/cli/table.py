"""The command ``neurolsc table``."""

from pathlib import Path

import click

from neurolsc.cli import options
from neurolsc.runs import write_text
from neurolsc.sweeps import read_sweep
from neurolsc.sweeps.summary import groups, markdown


@click.command()
@options.sweep
@click.option("--by", multiple=True, help="A setting that makes an arm; more than once for more. [default: all varied]")
def table(sweep: Path, by: tuple[str, ...]) -> None:
    """Print a sweep as a table, and write it as table.md.

    A line for each combination of settings but the seed: mean ± deviation over seeds.

    Of a grid with [choose] the chosen trials are counted alone. While the sweep goes on the table
    is that of the trials that are over.
    """
    grid, rows = read_sweep(sweep)
    text = markdown(grid, groups(grid, rows, by))
    write_text(sweep / "table.md", text)
    click.echo(text, nl=False)
    if failed := sum(row["error"] is not None for row in rows):
        click.echo(f"\n{failed} trials came to an error: the column error of table.csv says which.")
    if (left := grid.total - len(rows)) > 0:
        click.echo(f"\n{left} of {grid.total} trials are not over.")
