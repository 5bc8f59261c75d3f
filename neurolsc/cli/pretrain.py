"""The command ``neurolsc pretrain``."""

from pathlib import Path

import click

from neurolsc.cli import options
from neurolsc.config import DataSettings, NetworkSettings, PretrainSettings, StartSettings
from neurolsc.experiment import Experiment


@click.command(cls=options.Command)
@options.settings(NetworkSettings, DataSettings, StartSettings, PretrainSettings)
@options.device
@options.out
def pretrain(
    network: NetworkSettings,
    data: DataSettings,
    start: StartSettings,
    pretraining: PretrainSettings,
    device: str,
    out: Path,
) -> None:
    """Set the radii of a network by pre-training, and save it.

    The folder gets network.safetensors, the radii before and after (JSON and pictures) and the
    course of pre-training. A target that is not reached is reported with the reason; the best
    network is saved all the same. If this is stopped, the same command goes on where it was.
    """
    if pretraining.parsed_target() is None:
        raise click.UsageError("pretrain needs a --target: a number such as 0.5, or balanced.")
    Experiment(network, data, pretraining, start=start, device=device).run(out, say=click.echo)
    click.echo(f"written to {out}")
