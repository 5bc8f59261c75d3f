"""The command ``neurolsc demo``: what setting the radii does, beside a control, with a report."""

import copy
import re
import time
from pathlib import Path
from typing import NamedTuple

import click
import torch
from torch import Tensor

from neurolsc import checkpoint
from neurolsc.config import DataSettings, NetworkSettings, PretrainSettings, TrainSettings
from neurolsc.datasets import collate, input_batches
from neurolsc.evaluation import Scores, evaluate
from neurolsc.experiment import Experiment
from neurolsc.network import Network
from neurolsc.plots import plot_learning_curves, plot_pretraining, plot_raster
from neurolsc.runs import run_folder, write_json, write_text
from neurolsc.stability import PretrainResult, RadiusProfile, match_firing_rates, radius_profile
from neurolsc.training import TrainResult

WIDTH, TARGET, BATCH = 64, 0.5, 64
RATE = 1e-2  # ten times the paper's: two hundred updates have to do
PRETRAINED = {
    f"pre-trained to {TARGET}": PretrainSettings(str(TARGET), rule="transition"),
    f"pre-trained to {TARGET}, thresholds held": PretrainSettings(str(TARGET), rule="hold-threshold"),
}


@click.command()
@click.option("--out", default=Path("runs/demo"), show_default=True, type=click.Path(path_type=Path))
@click.option("--epochs", default=8, show_default=True)
@click.option("--seed", default=0, show_default=True)
def demo(out: Path, epochs: int, seed: int) -> None:
    """Show what pre-training does, on the digits in the package.

    A table, pictures and a report, in a few minutes. If this is stopped, the same command goes on
    where it was.
    """
    show(out, epochs=epochs, seed=seed)


def show(out: Path, *, epochs: int, seed: int) -> None:
    """Measure, pre-train and train 2 x 64 ALIF+ on the digits in the package, and report.

    Four networks start from the same weights and get the same budget and batches: the paper's
    default; the default with its thresholds scaled so that it fires like the first pre-trained one;
    that one; and one whose resting thresholds were held while it was pre-trained, so that it starts
    as silent as the default. The second is a control: if it does as well as the third, waking the
    network helped and not its radius.

    Args:
        out: folder for the results; must not exist.
        epochs: epochs of training, the same for all.
        seed: of weights, batches and draws.

    Raises:
        FileExistsError: if the folder exists.
    """
    started = time.perf_counter()
    training = TrainSettings(epochs, BATCH, RATE, patience=epochs)
    experiment = Experiment(NetworkSettings(width=WIDTH, seed=seed), DataSettings(), None, training)
    data = {split: experiment.data.load(split) for split in ("train", "validation", "test")}
    with run_folder(out, {"epochs": epochs, "seed": seed}) as folder:
        networks, notes = prepare(experiment, folder)
        results, scores = {}, {}
        for name, network in networks.items():
            click.echo(f"training: {name}")
            where = folder / f"{_slug(name)}.checkpoint"
            results[name] = training.run(network, data["train"], data["validation"], seed=seed, checkpoint=where)
            scores[name] = evaluate(network, data["test"], batch_size=BATCH)
            checkpoint.save(network, folder / f"{_slug(name)}.safetensors")
        plot_learning_curves({n: r.history for n, r in results.items()}, folder / "learning.png", chance=0.1)
        one, (digit,) = collate([data["test"][0]])
        best = max(scores, key=lambda name: scores[name].mode_accuracy)
        layers = [f"layer {i}, {best}" for i in (1, 2)]
        spikes = dict(zip(layers, (layer[:, 0].detach() for layer in networks[best].run(one).spikes), strict=True))
        plot_raster({f"input, a digit {digit}": one[:, 0]} | spikes, folder / "raster.png")
        table = results_table(scores, notes.start)
        seconds = time.perf_counter() - started
        write_json(folder / "scores.json", {name: s.to_dict() for name, s in scores.items()})
        write_text(folder / "report.md", report(table, notes, results, epochs, seconds))
    click.echo("\n" + table)
    click.echo(f"\n{seconds:.0f} s. The report with its pictures: {out / 'report.md'}")


class Notes(NamedTuple):
    """What was seen while the networks were made."""

    before: RadiusProfile
    after: dict[str, PretrainResult]
    start: dict[str, str]
    """firing rates, time constants and resting thresholds before training"""


def prepare(experiment: Experiment, folder: Path) -> tuple[dict[str, Network], Notes]:
    """The networks before training, and what was seen while making them."""
    default, seed = experiment.build(), experiment.network.seed
    x = input_batches(experiment.data.load("train"), 32, seed=seed)
    before = radius_profile(default, x[0][:, :4], steps=32)
    before.plot(folder / "radii_before.png")
    click.echo(f"before\n{before}\n")

    after, pretrained = {}, {}
    for number, (name, settings) in enumerate(PRETRAINED.items(), start=1):
        pretrained[name] = copy.deepcopy(default)
        where = folder / f"pretraining-{number}.checkpoint"
        result = after[name] = settings.run(pretrained[name], x, seed=seed, checkpoint=where)
        result.profile.plot(folder / f"radii_after_{number}.png")
        plot_pretraining(result.history, result.profile.target, folder / f"pretraining_{number}.png")
        click.echo(f"\n{name}: {result}\n")

    awake = copy.deepcopy(default)
    match_firing_rates(awake, x[0], _rates(next(iter(pretrained.values())), x[0]))
    networks = {"default": default, "thresholds scaled": awake} | pretrained
    return networks, Notes(before, after, {name: _start(network, x[0]) for name, network in networks.items()})


def results_table(scores: dict[str, Scores], start: dict[str, str]) -> str:
    """The table: scores on the test set; rates and thresholds before training."""
    lines = [
        "| network | mode accuracy | mean accuracy | no vote | silent last layer | spikes/neuron/step | synops/sample "
        "| before training: spikes/neuron/step; tau_theta; resting threshold |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, s in scores.items():
        rates = ", ".join(f"{rate:.3f}" for rate in s.firing_rate)
        lines.append(
            f"| {name} | {s.mode_accuracy:.1%} | {s.mean_accuracy:.1%} | {s.share_without_vote:.0%} | {s.silent_steps:.0%} "
            f"| {rates} | {s.synops:,.0f} | {start[name]} |"
        )
    return "\n".join(lines)


def report(table: str, notes: Notes, results: dict[str, TrainResult], epochs: int, seconds: float) -> str:
    """The report, as Markdown."""
    best = ", ".join(f"{name}: epoch {r.best_epoch}" for name, r in results.items())
    pretraining = "\n".join(
        f"## {name.capitalize()}\n\n![course of pre-training](pretraining_{number}.png)\n\n"
        f"![radii after](radii_after_{number}.png)\n\n```\n{result}\n```\n"
        for number, (name, result) in enumerate(notes.after.items(), start=1)
    )
    return f"""# neurolsc demo

2 x {WIDTH} ALIF+ on 1,800 spike-latency MNIST digits, {epochs} epochs each with the same batches at a learning
rate of {RATE:g}; scores on 500 test digits. Made in {seconds:.0f} s.

{table}

*Mode accuracy*: every time step votes for its largest logit, the class with most votes is the answer; *no vote* is the share of
steps that tie, above all because the last layer is silent. *Thresholds scaled* is a control: the default with thresholds
scaled until each layer fires as often as the one pre-trained to {TARGET} does before training; what it reaches too is not owed
to the radius. With *thresholds held* pre-training leaves the resting thresholds where they were, so that the network
starts about as silent as the default. Best epoch on validation: {best}.

## Radii before

![radii before](radii_before.png)

```
{notes.before}
```

{pretraining}
## Training

![learning curves](learning.png)

![spikes of one sample](raster.png)
"""


def _slug(name: str) -> str:
    """The name of a network as that of a file."""
    return re.sub("[^a-z0-9.]+", "-", name)


def _start(network: Network, x: Tensor) -> str:
    rates = ", ".join(f"{rate:.2g}" for rate in _rates(network, x))
    taus, rests = (
        ", ".join(f"{getattr(cell, quantity).mean().item():.3g}" for cell in network.cells)
        for quantity in ("tau_theta", "theta_rest")
    )
    return f"{rates}; {taus} steps; {rests}"


@torch.no_grad()
def _rates(network: Network, x: Tensor) -> list[float]:
    return [layer.mean().item() for layer in network.run(x).spikes]
