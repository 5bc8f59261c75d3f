"""The command ``neurolsc train``."""

from pathlib import Path

import click

from neurolsc.cli import options
from neurolsc.config import DataSettings, NetworkSettings, PretrainSettings, StartSettings, TrainSettings
from neurolsc.experiment import Experiment
from neurolsc.export import quantize
from neurolsc.network import Network
from neurolsc.neurons import SpikingCell
from neurolsc.tasks import measure_of


@click.command()
@options.settings(NetworkSettings, DataSettings, StartSettings, PretrainSettings, TrainSettings)
@options.chip
@options.device
@options.out
def train(
    network: NetworkSettings,
    data: DataSettings,
    start: StartSettings,
    pretraining: PretrainSettings,
    training: TrainSettings,
    chip: str | None,
    device: str,
    out: Path,
) -> None:
    """Train a network, after a --start, and after setting its radii if a --target is given.

    Cross-entropy at every time step, early stopping on the validation loss.
    The folder gets network.safetensors (the best epoch), history.csv and .json, and the learning
    curves. The test set is not opened: neurolsc evaluate does that. If this is stopped, the same
    command goes on where it was. If the loss becomes NaN, the network of the best epoch is left in
    the folder of the unfinished run.
    """
    experiment = Experiment(network, data, pretraining, training, start, device)
    if chip is not None and (reason := _why_not(experiment.build())):
        raise click.UsageError(f"not for {chip}: {reason}")
    result = experiment.run(out, say=click.echo, look=lambda started, _: _tell(started)).training
    assert result is not None
    for finding in result.findings:
        click.echo(finding)
    score, measure = data.task.score, measure_of(data.task, data.task.score)
    told = measure.text(result.best[f"validation_{score}"])
    click.echo(f"best epoch {result.best_epoch}: validation {score.replace('_', ' ')} {told}")
    click.echo(f"written to {out}")


def _why_not(network: Network) -> str:
    """Why a network cannot be exported, whatever its weights become; empty if it can be."""
    try:
        quantize(network, force=True)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _tell(network: Network) -> None:
    """Say before anything is trained that a network of spikes cannot be exported."""
    if all(isinstance(cell, SpikingCell) for cell in network.cells) and (reason := _why_not(network)):
        click.echo(f"not for a chip: {reason} With --for netx it would be.")
