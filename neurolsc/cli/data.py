"""The commands ``neurolsc data``."""

import os
from pathlib import Path
from typing import Any

import click

from neurolsc.cli import options
from neurolsc.config import DataSettings
from neurolsc.datasets import EventFile
from neurolsc.datasets.splits import who_is_where
from neurolsc.datasets.summary import summarize


@click.group()
def data() -> None:
    """Say what the data hold."""


@data.command(cls=options.Command)
@options.settings(DataSettings)
def splits(settings: DataSettings) -> None:
    """Show the training and validation data of the settings, and the task.

    The files are read and checked as `neurolsc train` does. The test set is not opened.
    """
    click.echo(f"{settings.title}: {settings.task}, scored by {settings.task.score.replace('_', ' ')}")
    parts: list[Any] = [settings.load("train"), settings.load("validation")]
    for part in parts:
        click.echo(part)
    if settings.split_by == "speaker":
        click.echo(who_is_where(*parts))


@data.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The picture, a new file. [default: <name>.png, here]",
)
@click.option("--utterance", default=0, show_default=True, help="Which utterance to draw.")
def info(file: Path, picture: Path | None, utterance: int) -> None:
    """Say what is in a file of spoken words in SHD's layout, and draw it.

    Every utterance is read and checked: a damaged one is told by its number. The table has a line
    for every class and speaker; the picture has the spikes and lengths of the utterances, the
    activity of the units, and one utterance. A file that is there already is never written over.
    """
    picture = picture or Path((file.name.split(".")[0] or file.name) + ".png")
    if os.path.lexists(picture):
        raise click.UsageError(f"{picture} exists already; name another file by --picture, or remove it.")
    events = EventFile(file)
    if not 0 <= utterance < len(events):
        raise click.UsageError(f"--utterance must lie in 0 ... {len(events) - 1}, got {utterance}.")
    summary = summarize(events)
    who = f"by speaker {speaker}" if (speaker := events.speakers[utterance]) >= 0 else "by nobody named"
    word = f'utterance {utterance}, "{events.names[events.labels[utterance]]}" {who}'
    summary.plot(picture, example=events.read([utterance]), example_title=word)
    click.echo(summary)
    click.echo(f"\ndrawn in {picture}")
