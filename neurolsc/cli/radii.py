"""The command ``neurolsc radii``."""

import dataclasses
from pathlib import Path

import click
from click.core import ParameterSource

from neurolsc.cli import options
from neurolsc.config import DataSettings, NetworkSettings, StartSettings
from neurolsc.diagnosis import diagnose
from neurolsc.experiment import Experiment, write_profile
from neurolsc.runs import NETWORK, SETTINGS, read_settings, run_folder
from neurolsc.stability import radius_profile

KINDS = (NetworkSettings, DataSettings, StartSettings)


def _use_saved(ctx: click.Context, _: click.Parameter, saved: Path | None) -> Path | None:
    """Take the settings of a run where no flag is given; return the file of the network."""
    if saved is not None and saved.is_dir():
        read_settings(saved)  # refuses what is no finished run
        options.use_file(ctx, saved / SETTINGS, KINDS)
        return saved / NETWORK
    return saved


@click.command(cls=options.Command)
@click.argument(
    "saved", metavar="[RUN]", required=False, type=click.Path(path_type=Path), is_eager=True, callback=_use_saved
)
@options.settings(*KINDS)
@options.device
@click.option("--samples", default=4, show_default=True, help="Samples measured.")
@click.option("--times", default=24, show_default=True, help="Time steps measured, drawn at random.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for profile.json and profile.png; must not exist.")
def radii(
    network: NetworkSettings,
    data: DataSettings,
    start: StartSettings,
    saved: Path | None,
    device: str,
    samples: int,
    times: int,
    out: Path | None,
) -> None:
    """Measure the radii of a new network, a run or a saved network.

    RUN is the folder of a finished run, a file of neurolsc.save, or the name of a trained network
    in the package. Without it the network is a new one of the settings, as its weights are drawn,
    or as --start leaves it.

    A radius is what is left of a gradient after one step back in time, or one layer down. One row
    per layer: the mean radius through time and through depth, how much the layer fires, and which
    term holds the radius through time; of the cells in the package the leaks exp(-1/tau), the
    reset, the feedback of a spike on the threshold, or the recurrent weights.
    """
    source = click.get_current_context().get_parameter_source
    if saved is not None:
        own = [f.name for f in dataclasses.fields(network) if f.name not in ("cell", "seed")]  # cell: its module
        flags = [f"--{name.replace('_', '-')}" for name in own if source(name) is ParameterSource.COMMANDLINE]
        if flags:
            raise click.UsageError(f"{saved} is a whole network; leave out {', '.join(flags)}.")
        network = dataclasses.replace(network, weights=str(saved), weights_sha256="")
    started = source("start") is ParameterSource.COMMANDLINE or (saved is None and start.start)
    start = start if started else StartSettings("Default")  # a saved network has had the start of its settings
    experiment = Experiment(network, data, start=start, device=device)
    net, findings = experiment.begin()
    for finding in findings:
        click.echo(finding)
    x = experiment.first_inputs("train", samples)
    profile = radius_profile(net, x, steps=min(times, x.shape[0]), seed=network.seed, progress=True)
    click.echo(profile)
    for finding in diagnose(net, x, seed=network.seed):
        click.echo(finding)
    if out is not None:
        with run_folder(out, experiment.settings()) as folder:
            write_profile(profile, folder / "profile", experiment.title)
