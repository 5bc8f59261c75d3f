"""What do the layers of a deep network of identity layers do? The registered measures (registration.md, section 2).

    python benchmarks/study/layers.py FOLDER [--minutes 60]

FOLDER holds real_digits' train.h5 and test.h5. Trains `Relay()` of ALIF+ and ALIF± in 2, 5 and 10
layers, reads every layer by logistic regression before and after, and puts layers back to where they
began. Appends a row for each finished network to results/study_layers.csv and passes over those that
are there. Two to ten minutes of one core a network.
"""

import copy
import csv
import itertools
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from headline import SETTINGS, command_line, finish, listed
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from neurolsc.datasets import collate
from neurolsc.datasets.batches import fetch
from neurolsc.experiment import Experiment
from neurolsc.metrics import mode_accuracy
from neurolsc.network import Network

RESULTS = Path(__file__).parents[1] / "results"
OUT = RESULTS / "study_layers.csv"
CELLS = {"ALIFPlus": "depth", "ALIFPlusMinus": "cells"}  # and the sweep by which the rate is chosen
SEEDS, DEPTHS, SPLITS = range(4, 8), (2, 5, 10), ("train", "validation", "test")
Parts = dict[str, tuple[Tensor, Tensor]]  # x (T, B, n) and labels (B,) of each split


def chosen_rate(cell: str, layers: int) -> float:
    """The learning rate with the best mean validation score over all seeds of the old grid."""
    scores: dict[float, list[float]] = {}
    with (RESULTS / f"study_{CELLS[cell]}.csv").open() as file:
        for row in csv.DictReader(file):
            if (row["cell"], row["layers"], row["init"]) == (cell, str(layers), "Relay()"):
                scores.setdefault(float(row["lr"]), []).append(float(row["highest_validation_mode_accuracy"] or 0))
    return max(scores, key=lambda lr: sum(scores[lr]) / len(scores[lr]))


def counts(z: Tensor) -> Tensor:
    """Spikes in ten equal parts of time (B, 10 n)."""
    return torch.cat([part.sum(0) for part in z.float().tensor_split(10)], dim=1)


def probe(of_splits: dict[str, Tensor], parts: Parts) -> float:
    """Test accuracy of a logistic regression on features (B, k) of each split."""
    best, score = None, -1.0
    for strength in (1e-4, 1e-3, 1e-2, 1e-1):
        fit = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=500))
        fit.fit(of_splits["train"].numpy(), parts["train"][1].numpy())
        if (here := fit.score(of_splits["validation"].numpy(), parts["validation"][1].numpy())) > score:
            best, score = fit, here
    assert best is not None
    return best.score(of_splits["test"].numpy(), parts["test"][1].numpy())


@torch.no_grad()
def probes(network: Network, parts: Parts) -> tuple[list[float], list[float]]:
    """The probe of every layer, and how many spikes each fires per neuron and step."""
    network.eval()
    of_layers: list[dict[str, Tensor]] = [{} for _ in network.cells]
    rates: list[float] = []
    for split, (x, _) in parts.items():
        runs = [network.run(some).spikes for some in x.split(250, dim=1)]
        for of_layer, spikes in zip(of_layers, zip(*runs, strict=True), strict=True):
            of_layer[split] = torch.cat([counts(z) for z in spikes])
            if split == "test":
                rates.append(torch.cat(spikes, 1).mean().item())
    return [probe(of_layer, parts) for of_layer in of_layers], rates


@torch.no_grad()
def put_back(network: Network, first: Network, layers: range, test: tuple[Tensor, Tensor]) -> float:
    """Test score when some layers are as they were at first."""
    mixed = copy.deepcopy(network).eval()
    for i in layers:
        mixed.cells[i].load_state_dict(first.cells[i].state_dict())
    return float(mode_accuracy(mixed(test[0]), test[1]))


def run(cell: str, layers: int, seed: int, root: str) -> dict:
    """Train a network, take it apart; its row."""
    lr = chosen_rate(cell, layers)
    arm = {"cell": cell, "layers": layers, "lr": lr, "seed": seed, "init": "Relay()"}
    settings = SETTINGS | arm | {"root": root}
    experiment = Experiment.from_settings(settings)
    plain = Experiment.from_settings(settings | dict.fromkeys(("channel_jitter", "time_stretch", "spike_drop"), 0.0))
    parts: Parts = {}
    for split in SPLITS:
        data = plain.data.load(split)
        x, labels = collate(fetch(data, range(len(data))))[:2]
        parts[split] = x.float(), labels
    before: list[Network] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        network = experiment.run(
            Path(temporary) / "run", before_training=lambda n, _: before.append(copy.deepcopy(n)), progress=False
        ).network
    first, all_layers = before[0], range(layers)
    started, rates_before = probes(first, parts)
    trained, rates_after = probes(network, parts)
    with torch.no_grad():
        spikes = first.eval().run(parts["test"][0]).spikes
    both = 2 * (spikes[1] * spikes[-1]).sum() / (spikes[1] + spikes[-1]).sum()
    back = [put_back(network, first, range(i, i + 1), parts["test"]) for i in all_layers]
    upwards = [put_back(network, first, range(i, layers), parts["test"]) for i in all_layers]
    return arm | {
        "test": put_back(network, first, range(0), parts["test"]),
        "input_probe": f"{probe({split: counts(x) for split, (x, _) in parts.items()}, parts):.4f}",
        "probes_before": listed(started),
        "probes_after": listed(trained),
        "put_back": listed(back),
        "put_back_upwards": listed(upwards),
        "passed_on": f"{both.item():.4f}",
        "rates_before": listed(rates_before),
        "rates_after": listed(rates_after),
        "seconds": round(time.perf_counter() - began),
        "date": datetime.now(UTC).date().isoformat(),
    }


def main() -> None:
    args = command_line(__doc__, OUT).parse_args()
    trials = itertools.product(CELLS, SEEDS, DEPTHS)
    finish(
        args.out,
        trials,
        lambda row: (row["cell"], int(row["seed"]), int(row["layers"])),
        lambda trial: run(trial[0], trial[2], trial[1], str(args.folder)),
        args.minutes,
    )


if __name__ == "__main__":
    main()
