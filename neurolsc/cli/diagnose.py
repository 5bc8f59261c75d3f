"""The command ``neurolsc diagnose``."""

from pathlib import Path

import click

from neurolsc.cli import options
from neurolsc.experiment import Experiment, diagnose_run, write_diagnosis
from neurolsc.runs import run_folder
from neurolsc.validation import whole


@click.command()
@options.run
@click.option("--try", "cures", is_flag=True, help="Try the cure of each finding on copies, for 20 updates.")
@click.option("--samples", default=64, show_default=True, help="Samples of the training split, drawn at random.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for diagnosis.json, .txt, .png; must not exist.")
def diagnose(run: Path, cures: bool, samples: int, out: Path | None) -> None:
    """Say what is wrong with a finished run, why, and what to try.

    A line per layer: what its neurons do, radii and Lyapunov exponents, singular values, usable
    derivatives, what is left of the input, and the gradient of the loss. Below it what was found:
    layers that are dead, saturated, synchronous or out of scale, gradients that explode or vanish,
    time constants that cannot move, missing classes, a learning rate that is too high. The run
    stays as it is.
    """
    whole("samples", samples)
    if out is None:
        click.echo(diagnose_run(run, samples=samples, cures=cures))
        return
    experiment = Experiment.of(run)
    with run_folder(out, experiment.settings()) as folder:
        diagnosis = diagnose_run(run, samples=samples, cures=cures)
        write_diagnosis(diagnosis, folder, f"{experiment.title}, as it ended")
    click.echo(diagnosis)
    click.echo(f"written to {out}")
