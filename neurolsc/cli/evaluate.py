"""The command ``neurolsc evaluate``."""

from pathlib import Path
from typing import Literal

import click

from neurolsc.cli import options
from neurolsc.evaluation import Scores
from neurolsc.experiment import score


@click.command()
@options.run
@click.option("--split", type=click.Choice(["test", "validation"]), default="test", show_default=True)
@click.option("--batch-size", default=256, show_default=True)
def evaluate(run: Path, split: Literal["test", "validation"], batch_size: int) -> None:
    """Score a finished run, by default on the test set, and write the scores into its folder.

    Mode accuracy is the paper's: every step votes for its largest logit, and the class with most
    votes is the answer. A step whose largest logits tie does not vote.
    """
    click.echo(table(str(run), score(run, split, batch_size=batch_size)))


def table(name: str, s: Scores) -> str:
    """Scores as text, a line below their names."""
    head = "  mode acc.  mean acc.  loss   no vote  silent last layer  spikes/neuron/step    synops/sample"
    rates = " ".join(_number(rate, ".4f") for rate in s.firing_rate)
    return (
        f"{'':{len(name)}}{head}\n"
        f"{name}  {s.mode_accuracy:>8.1%}  {s.mean_accuracy:>8.1%}  {s.loss:.3f}  {s.share_without_vote:>6.1%}"
        f"  {_number(s.silent_steps, '.1%'):>17}  {rates:<20}  {_number(s.synops, ',.0f'):>13}"
    )


def _number(value: float | None, form: str) -> str:
    """A number, or a dash where there is none: of layers that do not spike."""
    return "-" if value is None else format(value, form)
