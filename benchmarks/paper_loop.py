"""Do GRU and LSTM reach their radii by the loop that the paper prints, and by that of its released code?

    python benchmarks/paper_loop.py [--root FOLDER] [--minutes 60] [--seeds 2]

Two layers at the widths of Table S1, with the paper's rule and batches: spike-latency MNIST (FOLDER/mnist,
else the sample in the package) and spoken digits in SHD's layout (FOLDER/real_digits, else the
sample). Appends to results/paper_loop.csv a row for each run, and to results/paper_loop_steps.csv
one for each of its steps; runs that are there are passed over. After so many minutes none begins.
Draws docs/pictures/paper_loop.png. A minute of one core by the printed loop, five with SHD's widths,
up to half an hour by the released one.
"""

import argparse
import csv
import os
import time
from collections.abc import Callable, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib.pyplot as plt
import torch

from neurolsc import GRU, LSTM, Cell, Criteria, Network, pretrain
from neurolsc.datasets import SHD, SpikeLatencyMNIST
from neurolsc.datasets.batches import BatchDataset, InputBatches
from neurolsc.stability.rules import LoopName

RESULTS = Path(__file__).parent / "results"
RUNS, STEPS = (RESULTS / f"paper_loop{end}.csv" for end in ("", "_steps"))
PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "paper_loop.png"
MOST = 120  # steps of the printed loop, which has no last one


class Task(NamedTuple):
    """A data set with the batch and the widths of Table S1."""

    folder: str
    data: Callable[..., BatchDataset]
    batch: int
    widths: dict[str, int]


TASKS = {
    "sl-mnist": Task("mnist", SpikeLatencyMNIST, 256, {"GRU": 53, "LSTM": 42}),
    "shd": Task("real_digits", SHD, 100, {"GRU": 117, "LSTM": 94}),
}
CELLS: dict[str, type[Cell]] = {"GRU": GRU, "LSTM": LSTM}


class Run(NamedTuple):
    data: str
    cell: str
    loop: LoopName
    each: bool  # the printed loop, but with a criterion for each layer and direction, as ours has it
    target: float
    seed: int


def runs(seeds: int) -> list[Run]:
    """The printed loop, with a criterion for each too, and the released one; only digits with further seeds."""
    found = [
        Run("sl-mnist", cell, "paper", False, target, seed)
        for target, cell, seed in product((0.5, 1.0), CELLS, range(seeds))
    ]
    found += [Run("sl-mnist", "GRU", "paper", True, 0.5, 0)]
    found += [Run("shd", cell, "paper", False, target, 0) for target, cell in product((0.5, 1.0), CELLS)]
    found += [Run("sl-mnist", "GRU", "released", False, 0.5, 0)]
    found += [Run("sl-mnist", "LSTM", "paper", True, 0.5, 0)]
    return [*found, Run("sl-mnist", "LSTM", "released", False, 0.5, 0)]


def measure(run: Run, root: str | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Pre-train; the row of the run, and those of its steps."""
    task = TASKS[run.data]
    data = task.data(f"{root}/{task.folder}", "train") if root else task.data.embedded("train")  # type: ignore[attr-defined]
    width = task.widths[run.cell]
    torch.manual_seed(run.seed)
    cells = [CELLS[run.cell](n_in, width) for n_in in (data.n_in, width)]
    network = Network(cells, data.n_classes, readout_bias=True)
    most = MOST if run.loop == "paper" else None
    batches = InputBatches(data, task.batch, seed=run.seed)
    criteria = Criteria() if run.each else None
    how: dict[str, Any] = {"loop": run.loop, "criteria": criteria, "max_steps": most, "seed": run.seed}
    result = pretrain(network, batches, target=run.target, progress=False, **how)
    steps = []
    for row in result.history:
        radii = row["time"] + row["depth"]
        step = run._asdict() | {"step": row["step"], "pooled": round(fmean(radii), 4)}
        step |= {"deviation": round(row["deviation"], 4), "smoothed": round(row["smoothed_deviation"], 4)}
        steps.append(step | {"time": listed(row["time"]), "depth": listed(row["depth"])})
    profile = result.profile
    after = profile.time_mean.tolist() + profile.depth_mean.tolist()
    last = steps[-1]
    found = run._asdict() | {"width": width, "batch": task.batch, "reached": result.converged, "steps": result.steps}
    found |= {"pooled": last["pooled"], "time": last["time"], "depth": last["depth"]}
    found |= {"pooled_after": round(fmean(after), 4)}
    found |= {"time_after": listed(profile.time_mean.tolist()), "depth_after": listed(profile.depth_mean.tolist())}
    found |= {"rates_after": listed(profile.firing_rate.tolist()), "samples": len(data)}
    return found | {"seconds": round(result.seconds), "date": date.today().isoformat()}, steps


def listed(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3g}" for value in values)


def append(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows to a file of results, with a head if it is new."""
    new = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def key(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in Run._fields)


def draw() -> None:
    """Radii over the steps of seed 0 to 0.5: a panel for each loop, data set and cell."""
    rows = [row for row in csv.DictReader(STEPS.open()) if (row["seed"], row["target"]) == ("0", "0.5")]
    groups = list(dict.fromkeys(key(row) for row in rows))
    columns = 3
    lines = -(-len(groups) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(12, 2.6 * lines), layout="constrained", squeeze=False)
    for ax in axes.flat[len(groups) :]:
        ax.set_axis_off()
    for ax, group in zip(axes.flat, groups, strict=False):
        data, cell, loop, each, target, _ = group
        steps = [row for row in rows if key(row) == group]
        for way, color in (("time", "#0072b2"), ("depth", "#d55e00")):
            layers = zip(*([float(radius) for radius in row[way].split()] for row in steps), strict=True)
            for layer, style, radii in zip((1, 2), ("-", "--"), layers, strict=True):
                ax.plot(radii, style, color=color, linewidth=1.2, label=f"{way}, layer {layer}")
        ax.plot([float(row["pooled"]) for row in steps], color="black", linewidth=1.6, label="pooled mean")
        ax.axhline(float(target), color="black", linewidth=0.6, linestyle=":")
        how = f"{loop} loop" + (", a criterion for each" if each == "True" else "")
        ax.set(title=f"{cell}, {data}, {how}", xlabel="step", ylabel="radius")
        ax.set_ylim(0, 2 * float(target))
    axes.flat[0].legend(frameon=False, fontsize="x-small")
    figure.savefig(PICTURE, dpi=110)


def main() -> None:
    data = os.environ.get("NEUROLSC_DATA")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=data, help="folder of the data sets' folders")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--seeds", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    end = time.monotonic() + 60 * args.minutes
    done = set(map(key, csv.DictReader(RUNS.open()))) if RUNS.exists() else set()
    for run in runs(args.seeds):
        if tuple(map(str, run)) in done:
            continue
        if time.monotonic() > end:
            break
        found, steps = measure(run, args.root)
        append(STEPS, steps)
        append(RUNS, [found])
        print(found, flush=True)
    draw()


if __name__ == "__main__":
    main()
