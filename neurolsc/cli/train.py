"""The command ``neurolsc train``."""

from pathlib import Path

import click

from neurolsc.cli import options
from neurolsc.config import DataSettings, NetworkSettings, PretrainSettings, StartSettings, TrainSettings
from neurolsc.experiment import Experiment
from neurolsc.export import quantize
from neurolsc.tasks import measure_of


@click.command(cls=options.Command)
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
    """Train a network, after a start.

    First --start sets it, then its radii are set if a --target is given. The loss is that of the
    task (for labels cross-entropy at every time step); training stops early on the validation
    loss. The folder gets network.safetensors (the best epoch), history.csv
    and .json, and the learning curves. The test set is not opened: neurolsc evaluate does that. If
    this is stopped, the same command goes on where it was. If the loss becomes NaN, the network of
    the best epoch is left in the folder of the unfinished run.
    """
    experiment = Experiment(network, data, pretraining, training, start, device)
    if chip is not None:
        try:
            quantize(experiment.build(), force=True)  # whatever its weights become
        except (TypeError, ValueError) as error:
            raise click.UsageError(f"not for {chip}: {error}") from error
    result = experiment.run(out, say=click.echo).training
    assert result is not None
    for finding in result.findings:
        click.echo(finding)
    score, measure = data.task.score, measure_of(data.task, data.task.score)
    told = measure.text(result.best[f"validation_{score}"])
    click.echo(f"best epoch {result.best_epoch}: validation {score.replace('_', ' ')} {told}")
    click.echo(f"written to {out}")
