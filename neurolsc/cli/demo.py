"""The command ``neurolsc demo``: starts side by side, as a sweep with a report."""

import copy
import time
from pathlib import Path
from typing import Any

import click
import torch

from neurolsc.cli import options
from neurolsc.datasets import collate
from neurolsc.experiment import Experiment, load_network
from neurolsc.metrics import mode_vote
from neurolsc.plots import plot_learning_curves, plot_raster
from neurolsc.runs import write_text
from neurolsc.stability import radius_profile
from neurolsc.sweeps import Grid, Processes, Trial, make_grid, run_sweep
from neurolsc.sweeps.row import read_history
from neurolsc.sweeps.summary import groups, markdown

GIVEN: dict[str, Any] = {
    "name": "demo",
    "test": True,
    "fixed": {"width": 64, "layer_delay": 0, "epochs": 12, "patience": 12},
    "either": [
        {"start": "Default", "lr": 1e-2},
        {"start": "LSC(0.5, rule='hold-threshold', method='scale')", "lr": 1e-2},
        {"start": "RateMatching(0.15)", "lr": 5e-3},
        {"start": "Relay()", "lr": 1e-2},
        {"start": "Relay(recurrence=0, rate=0.1, drawn=1)", "lr": 2e-3, "cell": "LIF", "tau_v": 50.0, "shift": 1},
    ],
    "table": {"budgets": [3, 6]},
}
"""The grid: the start varies, in the last arm neuron and images too; learning rates are those that
did best on validation among 2e-3, 5e-3 and 1e-2, of benchmarks/study/digits.toml; else all is the
same."""


@click.command()
@click.option(
    "--out",
    default=Path("runs/demo"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder for report, pictures and runs.",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=GIVEN["fixed"]["epochs"],
    show_default=True,
    help="Most epochs of every training.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of weights and order, the same for all starts.",
)
@options.workers
def demo(out: Path, epochs: int, seed: int, workers: int) -> None:
    """Compare five starts on the digits in the package.

    Networks of two layers start in five ways and are trained alike, each at its best learning rate.
    A table, pictures and a report, in a minute or two. If this is stopped, the same command goes on
    where it was.
    """
    show(out, epochs=epochs, seed=seed, workers=workers)


def show(out: Path, *, epochs: int, seed: int, workers: int, given: dict[str, Any] = GIVEN) -> None:
    """Run the grid of the demo, and report.

    Args:
        out: folder of the sweep.
        epochs: epochs of training, the same for all.
        seed: of weights, batches and draws.
        workers: processes at work.
        given: the grid, without epochs and seed.
    """
    began, given = time.perf_counter(), copy.deepcopy(given)
    given["fixed"] |= {"epochs": epochs, "patience": epochs, "seed": seed}
    grid = make_grid(given)
    click.echo(f"{grid.total} networks, trained with {workers} processes in {out}")
    rows = run_sweep(grid, out, Processes(workers))
    table = markdown(grid, groups(grid, rows))
    _draw_learning(grid, out)
    row = max((row for row in rows if row["error"] is None), key=lambda row: row["validation_mode_accuracy"])
    best = next(trial for trial in grid.trials if trial.name == row["trial"])
    _draw_best(best, out)
    _draw_radii({"default": grid.trials[0], "best": best}, out)
    seconds = time.perf_counter() - began
    write_text(out / "report.md", _report(grid, table, _told(best), seconds))
    click.echo(f"\n{table}\n{seconds:.0f} s. The report with its pictures: {out / 'report.md'}")


def _draw_learning(grid: Grid, out: Path) -> None:
    """The learning curves of all networks in one picture."""
    histories = {_told(trial): read_history(trial.folder(out)) for trial in grid.trials}
    given = grid.trials[0].settings
    plot_learning_curves(
        {name: history for name, history in histories.items() if history},
        out / "learning.png",
        chance=0.1,
        title=f"{len(grid.trials)} starts of two layers of {given['width']} neurons, 1,800 spike-latency MNIST digits, "
        f"one seed each ({given['seed']})",
    )


def _draw_best(trial: Trial, out: Path) -> None:
    """The spikes of one test digit in a trained network, as a picture."""
    network, data = load_network(trial.folder(out)), trial.experiment.data.load("test")
    one, (digit,) = collate([data[0]])
    with torch.no_grad():
        run = network.run(one)
    named = {f"layer {i}": layer[:, 0].numpy() for i, layer in enumerate(run.spikes, start=1)}
    vote = int(mode_vote(run.logits))
    told: dict[str, Any] = {"label": str(int(digit)), "decision": "nothing" if vote < 0 else str(vote)}
    told["title"] = f"{_told(trial)}, after training, seed {trial.settings['seed']}"
    plot_raster({"input": one[:, 0]} | named, out / "raster.png", **told)


def _draw_radii(trials: dict[str, Trial], out: Path) -> None:
    """The radii of networks as their training finds them."""
    for name, trial in trials.items():
        experiment: Experiment = trial.experiment
        network, _ = experiment.begin()
        x = experiment.first_inputs("train", 4)
        profile = radius_profile(network, x, steps=min(32, len(x)), seed=experiment.network.seed)
        title = f"{_told(trial)}, before training, 4 digits, seed {experiment.network.seed}"
        profile.plot(out / f"radii_{name}.png", title=title)


def _told(trial: Trial) -> str:
    """What tells an arm from the others, in words."""
    given = trial.settings
    moved = ", images moved" if given["shift"] else ""
    return given["start"] + (f", {given['cell']}" if given["tau_v"] > 1 else "") + moved


def _report(grid: Grid, table: str, best: str, seconds: float) -> str:
    fixed = grid.fixed
    return f"""# neurolsc demo

Two layers of {fixed["width"]} neurons on 1,800 spike-latency MNIST digits, {fixed["epochs"]} epochs with the same batches,
each at the learning rate that did best on validation among 0.002, 0.005 and 0.01; scores on 200
validation and 500 test digits, a standard error of 1.5 to 3 points. Made in {seconds:.0f} s.

{table}
*Default*: the paper's starting values, which hardly fire. *LSC*: radii through time and depth brought to 0.5, thresholds
held. *RateMatching*: thresholds scaled until a layer fires 0.15 spikes per neuron and step; the control, since what
merely being awake does is not owed to a radius. *Relay()*: the same rate, recurrent currents of a fifth of the input's; from the
third layer on, which is not here, it hands on every spike, and with `drawn=1` from the second. In the last arm, which
is so started, the neuron keeps its voltage for 50 steps and has no recurrence, and training images are moved by up to
a pixel.

![learning curves](learning.png)

## Radii before the training, default and best ({best})

![radii of the default](radii_default.png)

![radii of the best](radii_best.png)

## Spikes of the best on one digit

![spikes of one sample](raster.png)
"""
