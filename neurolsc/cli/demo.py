"""The command ``neurolsc demo``: five starts compared, as a sweep with a report."""

import time
from pathlib import Path
from typing import Any

import click
import torch

from neurolsc.cli import options
from neurolsc.datasets import collate
from neurolsc.experiment import Processes, load_network, make_grid, markdown, run_sweep
from neurolsc.experiment.table import read_history
from neurolsc.io import write_text
from neurolsc.metrics import mode_vote

# The start varies, in the last arm neuron and images too. Learning rates are those that did best on
# validation among 2e-3, 5e-3 and 1e-2, of benchmarks/study/digits.toml.
GRID: dict[str, Any] = {
    "name": "demo",
    "test": True,
    "fixed": {"width": 64, "layer_delay": 0},
    "either": [
        {"start": "Default", "lr": 1e-2},
        {"start": "LSC(0.5, rule='hold-threshold', method='scale')", "lr": 1e-2},
        {"start": "RateMatching(0.15)", "lr": 5e-3},
        {"start": "Relay()", "lr": 1e-2},
        {"start": "Relay(recurrence=0, rate=0.1, drawn=1)", "lr": 2e-3, "cell": "LIF", "tau_v": 50.0, "shift": 1},
    ],
    "budgets": [3, 6],
}
REPORT = """# neurolsc demo

Two layers of {width} neurons on 1,800 spike-latency MNIST digits, {epochs} epochs with the same batches,
each at the learning rate that did best on validation among 0.002, 0.005 and 0.01; scores on 200
validation and 500 test digits, a standard error of 1.5 to 3 points. Made in {seconds:.0f} s.

{table}
*Default*: the paper's starting values, which hardly fire. *LSC*: radii through time and depth set to 0.5, thresholds
fixed. *RateMatching*: thresholds scaled until a layer fires 0.15 spikes per neuron and step; a control: the rate
changes, no radius is set. *Relay()*: the same rate, recurrent currents of a fifth of the input's; from the third layer
on, which is not here, it passes on every spike, and with `drawn=1` from the second. In the last arm, which starts so,
the neuron keeps its voltage for 50 steps and has no recurrence, and training images are moved by up to a pixel.

![learning curves](learning.png)

## Spikes of the best on one digit ({best})

![spikes of one sample](raster.png)
"""


@click.command()
@click.option(
    "--out",
    default=Path("runs/demo"),
    show_default=True,
    type=options.NEW_FOLDER,
    help="Folder for report, pictures and runs.",
)
@click.option("--epochs", type=click.IntRange(1), default=12, show_default=True, help="Epochs of every training.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of weights and order, the same for all."
)
@options.workers
def demo(out: Path, epochs: int, seed: int, workers: int) -> None:
    """Compare five starts on the digits in the package.

    Networks of two layers start in five ways and are trained alike, each at its best learning rate. A table, pictures
    and a report, in a minute or two. If this is stopped, the same command goes on where it was.
    """
    from neurolsc.plots import plot_learning_curves, plot_raster  # matplotlib is slow to import

    began = time.perf_counter()
    fixed = GRID["fixed"] | {"epochs": epochs, "patience": epochs, "seed": seed}
    grid = make_grid(GRID | {"fixed": fixed})
    click.echo(f"{grid.total} networks, trained with {workers} processes in {out}")
    rows = run_sweep(grid, out, Processes(workers))
    names = {}
    for trial in grid.trials:
        s = trial.settings
        names[trial.name] = s["start"] + (f", {s['cell']}, images moved" if s["shift"] else "")
    curves = {name: history for trial, name in names.items() if (history := read_history(out / trial))}
    title = (
        f"{len(rows)} starts of two layers of {fixed['width']} neurons, 1,800 spike-latency MNIST digits, seed {seed}"
    )
    plot_learning_curves(curves, out / "learning.png", chance=0.1, title=title)
    best_row = max((row for row in rows if row["error"] is None), key=lambda row: row["validation_mode_accuracy"])
    best = next(trial for trial in grid.trials if trial.name == best_row["trial"])
    about = names[best.name]

    x, (digit,) = collate([best.data.load("test")[0]])
    with torch.no_grad():
        run = load_network(out / best.name).run(x)
    layers = {"input": x[:, 0]} | {f"layer {i}": z[:, 0].numpy() for i, z in enumerate(run.spikes, start=1)}
    vote = int(mode_vote(run.logits))
    decision = "nothing" if vote < 0 else str(vote)
    words = {"label": str(int(digit)), "decision": decision, "title": f"{about}, after training, seed {seed}"}
    plot_raster(layers, out / "raster.png", **words)
    table, seconds = markdown(grid, rows), time.perf_counter() - began
    report = REPORT.format(width=fixed["width"], epochs=epochs, seconds=seconds, table=table, best=about)
    write_text(out / "report.md", report)
    click.echo(f"\n{table}\n{seconds:.0f} s. The report with its pictures: {out / 'report.md'}")
