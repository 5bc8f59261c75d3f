"""The command ``neurolsc sweep``."""

from pathlib import Path

import click

from neurolsc.cli import options
from neurolsc.sweeps import Pool, Processes, read_grid, run_sweep
from neurolsc.sweeps.table import TABLE


@click.command()
@click.argument("grid", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the sweep. [default: runs/<name of the grid>]")
@options.workers
@options.device
@click.option(
    "--ray",
    is_flag=False,
    flag_value="",
    metavar="[ADDRESS]",
    help="Run on the Ray cluster at this address; without one on that of this machine, or a new one.",
)
@click.option("--retry", is_flag=True, help="Run those trials anew that came to an error.")
@click.option(
    "--known",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The table of an earlier sweep: trials that are finished there are taken from it.",
)
def sweep(
    grid: Path, out: Path | None, workers: int, device: str, ray: str | None, retry: bool, known: Path | None
) -> None:
    """Train a network for every trial of a grid file.

    A trial is a combination of settings. Each is a run with a folder of its own in the sweep's; all
    of them are rows of table.csv. Whatever stops the sweep, the same command goes on where it was:
    no finished trial is repeated.
    """
    read = read_grid(grid)
    out = Path("runs") / read.name if out is None else out
    pool = Processes(workers) if ray is None else _cluster(ray)
    rows = run_sweep(read, out, pool, retry=retry, known=known, device=device)
    for row in rows:
        if row["error"]:
            click.echo(f"{row['trial']}: {row['error']}", err=True)
    click.echo(f"{len(rows)} trials in {out / TABLE}")


def _cluster(address: str) -> Pool:
    from neurolsc.sweeps.ray_pool import RayTasks

    try:
        return RayTasks(address)
    except ImportError as error:
        raise click.ClickException(str(error)) from error
