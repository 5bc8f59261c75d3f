"""Make figures of the paper again: ``python -m examples.paper 2 --out runs/figure-2``."""

import json
import os
import platform
from datetime import date
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch

import neurolsc
from examples.paper import FIGURES, Scale, find, refuse_missing, reproduce, trials_of
from neurolsc.experiment import Processes

CLAIMS = Path(__file__).parents[2] / "benchmarks" / "results" / "claims.json"


@click.command(epilog=f"FIGURE is one of {', '.join(FIGURES)}, or all.")
@click.argument("figure")
@click.option("--size", type=click.Choice(["small", "paper"]), default="small", help="Minutes, or the paper's grid.")
@click.option("--root", default="", help="Folder with a folder for every data set. [default: samples in the package]")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/paper"), show_default=True)
@click.option("--epochs", type=click.IntRange(1), help="Most epochs of a training. [default: that of the size]")
@click.option("--seeds", type=click.IntRange(1), help="Seeds of every arm. [default: one, or the paper's four]")
@click.option(
    "--workers", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="Processes of trials."
)
@click.option("--dry-run", is_flag=True, help="List the trials and run none.")
def main(
    figure: str,
    size: str,
    root: str,
    out: Path,
    epochs: int | None,
    seeds: int | None,
    workers: int,
    dry_run: bool,
) -> None:
    """Train what a figure needs, draw it, and say in one line what of the claim was found.

    Every training is a trial that is kept in the folder "trials", under a name with its settings:
    a stopped command passes over those that are there. With "all" every figure is made, and the
    claims are written to benchmarks/results/claims.json as well.
    """
    scale = Scale(size, root, epochs, seeds)  # type: ignore[arg-type]
    try:
        chosen = list(FIGURES.values()) if figure == "all" else [find(figure)]
        for one in chosen:
            if not dry_run or (root and one.any_of):  # a dry run needs no data, but for what they decide
                refuse_missing(one, scale)
    except (ValueError, FileNotFoundError) as error:
        raise click.UsageError(str(error)) from error
    about = {
        "date": date.today().isoformat(),
        "neurolsc": neurolsc.__version__,
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "seeds": seeds or 1,
        "size": size,
    }
    claims = {}
    for one in chosen:
        if dry_run:
            trials = trials_of(one, scale)
            click.echo("\n".join([*(t.name for t in trials), f"{one.title}, size {size}: {len(trials)} trials"]))
            continue
        folder = out / one.name
        try:
            click.echo(reproduce(one, folder, scale, Processes(workers)))
        except OSError as error:  # a file is missing, or could not be downloaded
            raise click.ClickException(str(error)) from error
        found = json.loads((folder / "reading.json").read_text(encoding="utf-8"))
        claims[found["figure"]] = found["judged"]
        if figure == "all":
            CLAIMS.write_text(json.dumps(about | {"figures": claims}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
