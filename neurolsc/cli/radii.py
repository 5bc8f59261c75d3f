"""The command ``neurolsc radii``."""

from pathlib import Path

import click

from neurolsc.cli import options
from neurolsc.config import DataSettings, NetworkSettings
from neurolsc.diagnosis import diagnose
from neurolsc.experiment import Experiment, write_profile
from neurolsc.runs import run_folder
from neurolsc.stability import radius_profile


@click.command()
@options.settings(NetworkSettings, DataSettings)
@options.device
@click.option("--samples", default=4, show_default=True, help="Samples measured.")
@click.option("--times", default=24, show_default=True, help="Time steps measured, drawn at random.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for profile.json and profile.png; must not exist.")
def radii(
    network: NetworkSettings, data: DataSettings, device: str, samples: int, times: int, out: Path | None
) -> None:
    """Measure the radii of a network's transition derivatives.

    One row per layer: the mean radius through time and through depth, how much the layer fires, and
    which term holds the radius through time; of the cells in the package the leaks exp(-1/tau), the
    reset, the feedback of a spike on the threshold, or the recurrent weights.
    """
    experiment = Experiment(network, data, device=device)
    net, x = experiment.build(), experiment.first_inputs("train", samples)
    profile = radius_profile(net, x, steps=min(times, x.shape[0]), seed=network.seed, progress=True)
    click.echo(profile)
    for finding in diagnose(net, x, seed=network.seed):
        click.echo(finding)
    if out is not None:
        with run_folder(out, experiment.settings()) as folder:
            write_profile(profile, folder / "profile", experiment.title)
