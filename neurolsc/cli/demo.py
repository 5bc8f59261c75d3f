"""The command ``neurolsc demo``: five starts compared, as a sweep with a report."""

import time
from pathlib import Path
from typing import Any

import click

from neurolsc.cli import options
from neurolsc.experiment import Processes, make_grid, markdown, run_sweep
from neurolsc.experiment.table import read_history
from neurolsc.io import write_text

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
"""


@click.command()
@click.option("--out", default=Path("runs/demo"), show_default=True, type=options.NEW_FOLDER, help="Folder of all.")
@click.option("--epochs", type=click.IntRange(1), default=12, show_default=True, help="Epochs of every training.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of weights and order, for all.")
@options.workers
def demo(out: Path, epochs: int, seed: int, workers: int) -> None:
    """Compare five starts on the digits in the package.

    Networks of two layers start in five ways and are trained alike, each at its best learning rate. A table, learning
    curves and a report, in a minute or two. If this is stopped, the same command goes on where it was.
    """
    from neurolsc.plots import plot_learning_curves  # matplotlib is slow to import

    began = time.perf_counter()
    fixed = GRID["fixed"] | {"epochs": epochs, "patience": epochs, "seed": seed}
    grid = make_grid(GRID | {"fixed": fixed})
    click.echo(f"{grid.total} networks, trained with {workers} processes in {out}")
    rows = run_sweep(grid, out, Processes(workers))
    curves = {}
    for trial in grid.trials:
        s, history = trial.settings, read_history(out / trial.name)
        if history:
            curves[s["start"] + (f", {s['cell']}, images moved" if s["shift"] else "")] = history
    title = f"Starts of two layers of {fixed['width']} neurons, 1,800 spike-latency MNIST digits, seed {seed}"
    plot_learning_curves(curves, out / "learning.png", chance=0.1, title=title)
    table, seconds = markdown(grid, rows), time.perf_counter() - began
    write_text(out / "report.md", REPORT.format(width=fixed["width"], epochs=epochs, seconds=seconds, table=table))
    click.echo(f"\n{table}\n{seconds:.0f} s. The report with its picture: {out / 'report.md'}")
