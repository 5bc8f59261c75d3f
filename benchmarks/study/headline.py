"""Does an identity initialisation help? The registered comparisons (registration.md, sections 1 and 8), trial by trial.

    python benchmarks/study/headline.py FOLDER [--workers 1] [--minutes 100]

FOLDER holds real_digits' train.h5 and test.h5. Each arm runs seeds 0 to 3 at three learning rates,
halves or doubles the rate while the best one is at an edge, then runs seeds 4 to 11 at the best.
Arms that are compared run next to each other. Appends a row for each finished trial to
results/study_headline.csv and passes over those that are there, so that any machine goes on with
it; after so many minutes no new trial begins. Two to six minutes of one core a trial.
"""

import argparse
import csv
import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from tqdm import tqdm

from neurolsc.experiment import Experiment
from neurolsc.experiment.run import score
from neurolsc.experiment.table import best_so_far, statistics
from neurolsc.network import Network

RESULTS = Path(__file__).parents[1] / "results" / "study_headline.csv"
RATES, CHOOSING, NEW, CHANCE = (1e-3, 2e-3, 4e-3), range(4), range(4, 12), 0.1
SETTINGS = {"data": "shd", "dt": 0.02, "channels": 140, "repeat": 1, "width": 128, "layer_delay": 0}
SETTINGS |= {"channel_jitter": 10.0, "time_stretch": 0.1, "spike_drop": 0.1}
SETTINGS |= {"optimizer": "adam", "schedule": "cosine", "by_gain": True, "centralize": True, "clip_gradient": 1.0}
SETTINGS |= {"batch_size": 32, "epochs": 40, "patience": 40}
CELLS = {"ALIFPlusMinus": 0.15, "ALIFPlus": 0.15, "LIF": 0.1}  # and the rate of rate-matched networks
INITIALISERS = ("FiringRate({rate})", "Relay(rate={rate})")
DRAWN = ("Relay(rate={rate}, drawn=1)",)


class Arm(NamedTuple):
    layers: int
    cell: str
    init: str


class Trial(NamedTuple):
    arm: Arm
    lr: float
    seed: int


ARMS = [
    Arm(layers, cell, initialiser.format(rate=rate))
    for initialisers, depths in (
        (INITIALISERS, (5, 2)),
        (INITIALISERS[:1], (1,)),
        (INITIALISERS, (10,)),
        (DRAWN, (5, 2, 10)),
    )
    for layers in depths
    for cell, rate in sorted(CELLS.items(), key=lambda item: layers == 10 and item[0] != "ALIFPlus")
    for initialiser in initialisers
]


def run(trial: Trial, root: str, also: Callable[[Network, Experiment], dict] | None = None) -> dict:
    """Train a network and score it on the test set; its row, and what else is measured of the trained network."""
    torch.set_num_threads(1)
    arm = trial.arm
    settings: dict[str, Any] = SETTINGS | arm._asdict() | {"root": root, "lr": trial.lr, "seed": trial.seed}
    experiment = Experiment.from_settings(settings | ({"tau_v": 20.0} if arm.cell == "LIF" else {}))
    before: dict = {}

    def look(network: Network, _: Path) -> None:
        before.update(statistics(network, experiment))

    row = arm._asdict() | {"lr": trial.lr, "seed": trial.seed, "error": ""}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        try:
            trained = experiment.run(folder, before_training=look, progress=False).network
            history = json.loads((folder / "history.json").read_text())["history"]
            best = best_so_far(history)[-1]
            row |= {"validation": best["validation_mode_accuracy"], "best_epoch": best["epoch"]}
            row |= {"test": score(folder, "test").mode_accuracy, "seconds": sum(e["seconds"] for e in history)}
            row |= {"end_rates": listed(best["firing_rate"])} | (also(trained, experiment) if also else {})
        except FloatingPointError as error:
            row |= {"error": str(error), "validation": CHANCE, "test": CHANCE, "best_epoch": "", "seconds": ""}
            row["end_rates"] = ""
    for name in ("firing_rate", "time_radius", "depth_radius", "exponent", "similarity_to_input"):
        row[name] = listed(before.get(name) or [])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return row | {"commit": commit.stdout.strip(), "date": datetime.now(UTC).date().isoformat()}


def trial_of(row: dict) -> Trial:
    """The trial of a row of results."""
    return Trial(Arm(int(row["layers"]), row["cell"], row["init"]), float(row["lr"]), int(row["seed"]))


def listed(values: list) -> str:
    return " ".join("" if value is None else f"{value:.4g}" for value in values)


def doubled(lr: float, up: bool) -> float:
    """The learning rate that follows one at an edge."""
    return lr * 2 if up else lr / 2


def left(
    arm: Arm,
    validation: dict[Trial, float],
    rates: Iterable[float] = RATES,
    follows: Callable[[float, bool], float | None] = doubled,
) -> list[Trial]:
    """The trials of an arm that can run now, as far as the validation scores of finished ones say."""
    rates = sorted({trial.lr for trial in validation if trial.arm == arm} | set(rates))
    choosing = [Trial(arm, lr, seed) for lr in rates for seed in CHOOSING]
    if todo := [trial for trial in choosing if trial not in validation]:
        return todo
    means = {lr: fmean(validation[Trial(arm, lr, seed)] for seed in CHOOSING) for lr in rates}
    best = max(rates, key=means.__getitem__)  # the lowest of equals
    if best in (rates[0], rates[-1]) and (lr := follows(best, best == rates[-1])):
        return [Trial(arm, lr, seed) for seed in CHOOSING]
    return [trial for seed in NEW if (trial := Trial(arm, best, seed)) not in validation]


def append(out: Path, row: dict) -> None:
    """Append a row to a file of results, with a head if it is new."""
    new = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, row, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


def finish(out: Path, trials: Iterable, key: Callable[[dict], Any], run: Callable[[Any], dict], minutes: float) -> None:
    """Run the trials that a file of results lacks, until so many minutes are over; append a row for each."""
    torch.set_num_threads(1)
    end = time.monotonic() + 60 * minutes
    done = set(map(key, csv.DictReader(out.open()))) if out.exists() else set()
    for trial in tqdm([trial for trial in trials if trial not in done], unit="trial"):
        if time.monotonic() < end:
            append(out, run(trial))


def command_line(description: str | None, out: Path, *, folder: bool = True) -> argparse.ArgumentParser:
    """What the scripts of registered comparisons take."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    if folder:
        parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--out", type=Path, default=out)
    return parser


def main(arms: list[Arm], run: Callable[[Trial, str], dict], out: Path, description: str | None) -> None:
    """Run what is left of some arms, as the command line says."""
    parser = command_line(description, out)
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    rows = list(csv.DictReader(args.out.open())) if args.out.exists() else []
    validation = {trial_of(row): float(row["validation"]) for row in rows}
    at_work: dict[Future[dict], Trial] = {}
    bar = tqdm(total=len(arms) * (len(RATES) * len(CHOOSING) + len(NEW)), initial=len(rows), unit="trial")
    with bar, ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        while True:
            for trial in (trial for arm in arms for trial in left(arm, validation)):
                if len(at_work) < args.workers and time.monotonic() < end and trial not in at_work.values():
                    at_work[pool.submit(run, trial, str(args.folder))] = trial
            if not at_work:
                break
            for future in wait(at_work, return_when=FIRST_COMPLETED).done:
                trial, row = at_work.pop(future), future.result()
                validation[trial] = row["validation"]
                append(args.out, row)
                bar.update()
                bar.write(f"{trial.arm}, {trial.lr:g}, seed {trial.seed}: validation {row['validation']:.3f}")


if __name__ == "__main__":
    main(ARMS, run, RESULTS, __doc__)
