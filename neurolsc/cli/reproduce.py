"""The command ``neurolsc reproduce``."""

from pathlib import Path

import click

from neurolsc.cli import options
from neurolsc.reproduce import FIGURES, Asked, find, reproduce, trials_of
from neurolsc.reproduce.asked import SIZES
from neurolsc.sweeps import Processes


@click.command(
    "reproduce",
    help=f"""Make a figure or a table of the paper again.

    FIGURE is one of {", ".join(FIGURES)}.

    What it trains are the trials of a sweep, in OUT/trials; whatever stops it, the same command goes
    on where it was. Then the picture is drawn, or the table written, and reading.txt says in one line
    what of the paper's claim was found. It follows from the results alone.
    """,
)
@click.argument("figure")
@click.option(
    "--size",
    type=options.Choice(SIZES),
    default="small",
    show_default=True,
    help="Minutes on a CPU, or the paper's own grid, which takes days.",
)
@click.option(
    "--root", default="", help="Folder that holds a folder for every data set. [default: the samples in the package]"
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the results. [default: runs/reproduce-FIGURE]")
@click.option("--epochs", type=click.IntRange(1), help="Most epochs of a training. [default: that of the size]")
@click.option("--seeds", type=click.IntRange(1), help="Seeds of every arm. [default: one, or the paper's four]")
@options.workers
@options.device
@click.option("--retry", is_flag=True, help="Run those trials anew that came to an error.")
@click.option("--dry-run", is_flag=True, help="List the trials, and run none.")
def reproduce_figure(
    figure: str,
    size: str,
    root: str,
    out: Path | None,
    epochs: int | None,
    seeds: int | None,
    workers: int,
    device: str,
    retry: bool,
    dry_run: bool,
) -> None:
    """Make a figure again; the text above is what --help shows."""
    chosen, asked = find(figure), Asked(size, root, epochs, seeds)  # type: ignore[arg-type]
    if dry_run:
        trials = trials_of(chosen, asked)
        for trial in trials:
            click.echo(trial.name)
        click.echo(f"{chosen.title}, size {size}: {len(trials)} trials")
        return
    out = Path("runs") / f"reproduce-{chosen.name}" if out is None else out
    click.echo(reproduce(chosen, out, asked, Processes(workers), retry=retry, device=device))
    click.echo(f"written to {out}")
