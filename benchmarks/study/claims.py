"""The central claims of the paper with its own pre-training and training (registration.md, sections 13 and 21).

    python benchmarks/study/claims.py ROOT --part a [--hours 3] [--dry-run] [--work runs/claims]

ROOT has the folders real_digits and mnist. Parts: a, two layers of ALIF+ on spoken digits; b, five;
c, LSTM and GRU, two and five layers; d, ALIF+ on all digits of spike-latency MNIST. An arm runs seeds 0 to 3 at three
learning rates, halves or doubles the rate while the best one is at an edge and learns, then runs seeds
4 to 7 at the best; part d runs seeds 4 to 7 at the paper's rate. Appends a row for each finished trial to
results/study_claims.csv and passes over those that are there. After so many hours no trial begins.
A trial that was stopped goes on from its last epoch, in the folder --work, which also keeps
pre-trained networks: they serve all learning rates. --dry-run counts trials, and core hours by the
rows that are there.
"""

import argparse
import csv
import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from headline import CHANCE, CHOOSING, RATES, append, doubled, listed

from neurolsc.experiment import Experiment
from neurolsc.init import LSC, named
from neurolsc.io import load, read_tree, save, write_tree
from neurolsc.network import Network
from neurolsc.stability import radius_profile
from neurolsc.training import PAPER, evaluate, train

RESULTS = Path(__file__).parents[1] / "results" / "study_claims.csv"
REPORTED = range(4, 8)
MOST = 200  # steps of a pre-training

# ---- the arms

INITS = {
    "none": "Default()",
    "radius 1": f"LSC(1.0, loop='paper', max_steps={MOST})",
    "rate-matched": "FiringRate(0.15)",
    "radius 0.5": f"LSC(0.5, loop='paper', max_steps={MOST})",
    "balanced": f"LSC('balanced', loop='paper', max_steps={MOST})",
}
SPEECH = {"data": "shd", "dt": 0.02, "channels": 140, "repeat": 1, "batch_size": 100}
DIGITS = {"data": "sl-mnist", "batch_size": 256}
TRAINING = PAPER | {"epochs": 200, "patience": 10}
WIDTHS = {"ALIFPlus": 128, "LSTM": 94, "GRU": 117}
FOLDERS = {"shd": "real_digits", "sl-mnist": "mnist"}


class Arm(NamedTuple):
    part: str
    cell: str
    layers: int
    init: str  # one of INITS


class Trial(NamedTuple):
    arm: Arm
    lr: float
    seed: int


SPIKING = tuple(INITS)
GATED = ("none", "radius 0.5", "radius 1", "balanced")
PARTS = {
    "a": [Arm("a", "ALIFPlus", 2, init) for init in SPIKING],
    "b": [Arm("b", "ALIFPlus", 5, init) for init in SPIKING],
    "c": [Arm("c", cell, layers, init) for cell, layers, init in product(("LSTM", "GRU"), (2, 5), GATED)],
    "d": [Arm("d", "ALIFPlus", 2, init) for init in ("none", "radius 1")],
}
# Core seconds of a trial and of a pre-training before any row is there: of part a from one trial with seed 100, of the
# others guessed from widths, layers and samples.
PILOT = {"a": (240, 200), "b": (600, 500), "c": (300, 200), "d": (5000, 300)}


def experiment_of(trial: Trial, root: Path) -> Experiment:
    arm = trial.arm
    data = DIGITS if arm.part == "d" else SPEECH
    settings: dict[str, Any] = TRAINING | data | {"root": str(root / FOLDERS[str(data["data"])])}
    settings |= {"cell": arm.cell, "layers": arm.layers, "width": WIDTHS[arm.cell]}
    settings |= {"layer_delay": 1, "readout_bias": True, "init": INITS[arm.init]}
    if arm.cell == "ALIFPlus":
        settings["tau_theta"] = 100.0 if arm.part == "d" else 250.0
    return Experiment.from_settings(settings | {"lr": trial.lr, "seed": trial.seed})


# ---- a trial


def initialised(trial: Trial, experiment: Experiment, work: Path) -> tuple[Network, dict[str, Any]]:
    """The network before training, and facts about it; both are kept, as no learning rate changes them."""
    arm = trial.arm
    name = f"{name_of(arm)}-{trial.seed}"
    network_file, facts_file = work / f"{name}.safetensors", work / f"{name}.facts"
    if facts_file.exists():
        return load(network_file), read_tree(facts_file)
    network = experiment.build()
    init = named(INITS[arm.init])
    inputs = experiment.input_batches()
    began = time.process_time()
    facts: dict[str, Any] = {"reached": "", "steps": "", "pooled": "", "radii": ""}
    if isinstance(init, LSC):
        try:
            result = init.run(network, inputs, seed=trial.seed, checkpoint=work / f"{name}.pretraining")
            radii = result.history[-1]["time"] + result.history[-1]["depth"]
            facts = {"reached": result.converged, "steps": result.steps}
            facts |= {"pooled": round(fmean(radii), 4), "radii": listed(radii)}
        except FloatingPointError:  # the network is as it was drawn
            facts["reached"] = "NaN"
    else:
        init.apply(network, inputs, seed=trial.seed)
    facts["init_seconds"] = round(time.process_time() - began)
    profile = radius_profile(network, experiment.first_inputs("train", 8), steps=8, seed=trial.seed, progress=False)
    facts["time_radius"] = listed(profile.time_mean.tolist())
    facts["depth_radius"] = listed(profile.depth_mean.tolist())
    facts["firing_rate"] = listed(profile.firing_rate.tolist())
    save(network, network_file)
    write_tree(facts_file, facts)  # last: until then the initialisation is not done
    return network, facts


def run(trial: Trial, root: Path, work: Path) -> dict[str, Any]:
    """Train a network and score it on the test set; its row."""
    experiment = experiment_of(trial, root)
    work.mkdir(parents=True, exist_ok=True)
    network, facts = initialised(trial, experiment, work)
    arm = trial.arm
    settings = vars(experiment.training) | {"checkpoint": checkpoint_of(trial, work), "progress": False}
    row: dict[str, Any] = arm._asdict() | {"lr": trial.lr, "seed": trial.seed, "error": ""}
    began = time.process_time()
    try:
        data = [experiment.data.load(split) for split in ("train", "validation", "test")]
        result = train(network, *data[:2], seed=trial.seed, **settings)
        best = result.history[result.best_epoch - 1]
        row |= {"validation": best["validation_mode_accuracy"], "best_epoch": result.best_epoch}
        row |= {"epochs": len(result.history), "stopped_early": result.stopped_early}
        row |= {"test": evaluate(network, data[2], batch_size=256).mode_accuracy}
        row |= {"end_rates": listed(best["firing_rate"]), "seconds": round(sum(e["seconds"] for e in result.history))}
    except FloatingPointError as error:
        row |= {"error": str(error), "validation": CHANCE, "best_epoch": "", "epochs": "", "stopped_early": ""}
        row |= {"test": CHANCE, "end_rates": "", "seconds": ""}
    row["core_seconds"] = round(time.process_time() - began)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    row |= facts | {"commit": commit.stdout.strip(), "date": datetime.now(UTC).date().isoformat()}
    return row


def checkpoint_of(trial: Trial, work: Path) -> Path:
    return work / f"{name_of(trial.arm)}-{trial.lr:g}-{trial.seed}.training"


def name_of(arm: Arm) -> str:
    return f"{arm.part}-{arm.cell}-{arm.layers}-{arm.init}".replace(" ", "-")


# ---- which trials are left


def trial_of(row: dict[str, str]) -> Trial:
    arm = Arm(row["part"], row["cell"], int(row["layers"]), row["init"])
    return Trial(arm, float(row["lr"]), int(row["seed"]))


def left(arm: Arm, validation: dict[Trial, float]) -> list[Trial]:
    """The trials of an arm that can run now, as far as the validation scores of finished ones say."""
    if arm.part == "d":
        return [trial for seed in REPORTED if (trial := Trial(arm, PAPER["lr"], seed)) not in validation]
    rates = sorted({trial.lr for trial in validation if trial.arm == arm} | set(RATES))
    if todo := [t for lr, seed in product(rates, CHOOSING) if (t := Trial(arm, lr, seed)) not in validation]:
        return todo
    means = {lr: fmean(validation[Trial(arm, lr, seed)] for seed in CHOOSING) for lr in rates}
    best = max(rates, key=means.__getitem__)  # the lowest of equals
    learns = means[best] > 2 * CHANCE  # an arm at chance has no best rate: the search would not end
    if best in (rates[0], rates[-1]) and learns:
        return [Trial(arm, doubled(best, best == rates[-1]), seed) for seed in CHOOSING]
    return [trial for seed in REPORTED if (trial := Trial(arm, best, seed)) not in validation]


def estimate(arms: Iterable[Arm], rows: Sequence[dict[str, str]]) -> tuple[int, float]:
    """How many trials are left if no arm needs a further learning rate, and their core hours."""
    count, seconds = 0, 0.0
    for arm in arms:
        mine = [row for row in rows if trial_of(row).arm == arm]
        alike = [float(row["core_seconds"]) for row in rows if row["part"] == arm.part and row["cell"] == arm.cell]
        training, pretraining = PILOT[arm.part]
        mean = fmean(alike) if alike else training
        total = len(REPORTED) + (0 if arm.part == "d" else len(RATES) * len(CHOOSING))
        trials = max(total - len(mine), len(left(arm, {trial_of(r): float(r["validation"]) for r in mine})))
        seeds = len(REPORTED) + (0 if arm.part == "d" else len(CHOOSING))
        networks = 0 if arm.init in ("none", "rate-matched") else max(0, seeds - len({row["seed"] for row in mine}))
        count += trials
        seconds += trials * mean + networks * pretraining
    return count, seconds / 3600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument("--hours", type=float, default=1e9)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--work", type=Path, default=Path("runs/claims"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    arms = PARTS[args.part]
    rows = list(csv.DictReader(args.out.open())) if args.out.exists() else []
    if args.dry_run:
        count, hours = estimate(arms, rows)
        print(f"part {args.part}: {count} trials are left, about {hours:.1f} core hours")
        return
    end = time.monotonic() + 3600 * args.hours
    validation = {trial_of(row): float(row["validation"]) for row in rows}
    for arm in arms:
        while (trials := left(arm, validation)) and time.monotonic() < end:
            trial = trials[0]
            row = run(trial, args.root, args.work)
            append(args.out, row)
            checkpoint_of(trial, args.work).unlink(missing_ok=True)
            validation[trial] = row["validation"]
            print(f"{trial.arm}, {trial.lr:g}, seed {trial.seed}: validation {row['validation']:.3f}", flush=True)


if __name__ == "__main__":
    main()
