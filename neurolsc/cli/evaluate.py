"""The command ``neurolsc evaluate``."""

from pathlib import Path
from typing import Literal

import click

from neurolsc.cli import options
from neurolsc.experiment import score


@click.command()
@options.run
@click.option(
    "--split",
    type=options.Choice(["test", "validation"]),
    default="test",
    show_default=True,
    help="Which samples; the test set is for the end.",
)
@click.option("--batch-size", default=256, show_default=True, help="Samples at a time; the scores do not depend on it.")
@options.device
def evaluate(run: Path, split: Literal["test", "validation"], batch_size: int, device: str) -> None:
    """Score a finished run, by default on the test set.

    The scores are written into its folder, as test.json or validation.json. Mode accuracy is the
    paper's: every step votes for its largest logit, and the class with most votes is the answer. A
    step whose largest logits tie does not vote.
    """
    click.echo(f"{run}, {split}\n{score(run, split, batch_size=batch_size, device=device)}")
