"""The demo: what setting the radii does to a small network on real digits, beside a control, with a report."""

import copy
import dataclasses
import time
from pathlib import Path
from typing import NamedTuple

import click
import torch

from neurolsc import checkpoint, runs
from neurolsc.datasets import SpikeLatencyMNIST, collate, input_batches
from neurolsc.network import Network
from neurolsc.neurons import ALIF, ALIFPlus
from neurolsc.plots import plot_learning_curves, plot_pretraining, plot_raster
from neurolsc.stability import PretrainResult, RadiusProfile, match_firing_rates, pretrain, radius_profile
from neurolsc.training import Scores, TrainResult, evaluate, train

WIDTH, TARGET, BATCH = 64, 0.5, 64


def demo(out: Path, *, epochs: int, seed: int) -> None:
    """Measure, pre-train and train 2 x 64 ALIF+ on the digits in the package; write table, pictures and report.

    Three networks start from the same weights and get the same budget and batches: the paper's default, the default with
    its thresholds scaled so that it fires like the pre-trained one, and the pre-trained one. The second is a control: if it
    does as well, waking the network helped and not its radius.

    Args:
        out: folder for the results; must not exist.
        epochs: epochs of training, the same for all three.
        seed: of weights, batches and draws.

    Raises:
        FileExistsError: if the folder exists.
    """
    started = time.perf_counter()
    data = {split: SpikeLatencyMNIST.embedded(split) for split in ("train", "validation", "test")}
    with runs.run_folder(out, {"epochs": epochs, "seed": seed}) as folder:
        networks, notes = prepare(data["train"], seed, folder)
        results, scores = {}, {}
        for name, network in networks.items():
            click.echo(f"training: {name}")
            results[name] = train(
                network, data["train"], data["validation"], epochs=epochs, batch_size=BATCH, patience=epochs, seed=seed
            )
            scores[name] = evaluate(network, data["test"], batch_size=BATCH)
            checkpoint.save(network, folder / f"{name.split()[0]}-{name.split()[-1]}.safetensors")
        plot_learning_curves({n: r.history for n, r in results.items()}, folder / "learning.png", chance=0.1)
        one = collate([data["test"][0]])[0]
        spikes = networks["pre-trained to 0.5"].run(one).spikes
        plot_raster(
            [one[:, 0], *(layer[:, 0].detach() for layer in spikes)],
            ["input, a digit 7", "layer 1, pre-trained and trained", "layer 2, pre-trained and trained"],
            folder / "raster.png",
        )
        table = results_table(scores, notes.thresholds)
        seconds = time.perf_counter() - started
        runs.write_json(folder / "scores.json", {name: dataclasses.asdict(s) for name, s in scores.items()})
        runs.write_text(folder / "report.md", report(table, notes, results, epochs, seconds))
    click.echo("\n" + table)
    click.echo(f"\n{seconds:.0f} s. The report with its pictures: {out / 'report.md'}")


class Notes(NamedTuple):
    """What was seen while the networks were made."""

    before: RadiusProfile
    after: PretrainResult
    thresholds: dict[str, str]


def prepare(training: SpikeLatencyMNIST, seed: int, folder: Path) -> tuple[dict[str, Network], Notes]:
    """The three networks before training, and what was seen while making them."""
    torch.manual_seed(seed)
    default = Network([ALIFPlus(training.n_in, WIDTH), ALIFPlus(WIDTH, WIDTH)], training.n_classes)
    x = input_batches(training, 32, seed=seed)
    before = radius_profile(default, x[0][:, :4], steps=32)
    before.plot(folder / "radii_before.png")
    click.echo(f"before\n{before}\n")

    pretrained = copy.deepcopy(default)
    result = pretrain(pretrained, x, target=TARGET, seed=seed)
    result.profile.plot(folder / "radii_after.png")
    plot_pretraining(result.history, result.profile.target, folder / "pretraining.png")
    click.echo(f"\nafter: {result}\n")

    awake = copy.deepcopy(default)
    rates = [layer.mean().item() for layer in pretrained.run(x[0]).spikes]
    match_firing_rates(awake, x[0], rates)
    networks = {"default": default, "thresholds scaled": awake, "pre-trained to 0.5": pretrained}
    return networks, Notes(before, result, {name: _thresholds(network) for name, network in networks.items()})


def results_table(scores: dict[str, Scores], thresholds: dict[str, str]) -> str:
    """The table of the demo: scores on the test set, with what the networks fire and their thresholds at the start."""
    lines = [
        "| network | mode accuracy | mean accuracy | no vote | silent last layer | spikes/neuron/step | synops/sample "
        "| before training: tau_theta, resting threshold |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, s in scores.items():
        rates = ", ".join(f"{rate:.3f}" for rate in s.firing_rate)
        lines.append(
            f"| {name} | {s.mode_accuracy:.1%} | {s.mean_accuracy:.1%} | {s.share_without_vote:.0%} | {s.silent_steps:.0%} "
            f"| {rates} | {s.synops:,.0f} | {thresholds[name]} |"
        )
    return "\n".join(lines)


def report(table: str, notes: Notes, results: dict[str, TrainResult], epochs: int, seconds: float) -> str:
    """The report, as Markdown."""
    best = ", ".join(f"{name}: epoch {r.best_epoch}" for name, r in results.items())
    return f"""# neurolsc demo

2 x {WIDTH} ALIF+ on 1,800 spike-latency MNIST digits, {epochs} epochs each with the same batches; scores on 500 test digits.
Made in {seconds:.0f} s.

{table}

*Mode accuracy*: every time step votes for its largest logit, the class with most votes is the answer; *no vote* is the share of
steps that tie, above all because the last layer is silent. *Thresholds scaled* is a control: the default with thresholds
scaled until each layer fires as often as the pre-trained one's does before training. What it reaches too is not owed to the
radius. Best epoch on validation: {best}.

## Radii before

![radii before](radii_before.png)

```
{notes.before}
```

## Pre-training to {TARGET}

![course of pre-training](pretraining.png)

## Radii after

![radii after](radii_after.png)

```
{notes.after}
```

## Training

![learning curves](learning.png)

![spikes of one sample](raster.png)
"""


def _thresholds(network: Network) -> str:
    cells = [cell for cell in network.cells if isinstance(cell, ALIF)]
    taus = ", ".join(f"{cell.tau_theta.mean().item():.3g}" for cell in cells)
    rests = ", ".join(f"{cell.theta_rest.mean().item():.3g}" for cell in cells)
    return f"{taus} steps; {rests}"
