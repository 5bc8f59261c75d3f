"""Are the paper's other cells brought to their radii, by the same pre-training?

    python benchmarks/other_cells.py [--seeds 2]

Two layers of RNN, GRU and LSTM at the widths of Table S1 on spike-latency MNIST, three of the LRU
on words, whose input is never 0 as a layer norm needs it, and 30 feed-forward layers of 128 on
digits as pixels, through depth alone. Samples in the package; the default rule of each target.
Writes results/other_cells.json; takes a quarter of an hour.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from neurolsc import GRU, LRU, LSTM, RNN, Cell, Embedding, FeedForward, Network, pretrain, radius_profile
from neurolsc.datasets import MNISTPixels, SpikeLatencyMNIST, Text, input_batches
from neurolsc.stability.rules import Direction, Target

RESULTS = Path(__file__).parent / "results"
RECURRENT: dict[str, tuple[Callable[[int, int], Cell], int]] = {
    "RNN, relu": (RNN, 128),
    "RNN, sigmoid": (lambda n_in, n: RNN(n_in, n, activation="sigmoid"), 128),
    "GRU, eq. 48": (GRU, 53),
    "GRU, reset after": (lambda n_in, n: GRU(n_in, n, reset_after=True), 53),
    "LSTM": (LSTM, 42),
}
TARGETS: tuple[Target, ...] = (1.0, 0.5, "balanced")


def contestants() -> list[tuple[str, Callable[[], Network], Any, Target, Direction]]:
    """Name, network, inputs, target and direction of each."""
    digits = input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=0)
    words = Text.embedded("train", steps=50, repeat=1)
    text = input_batches(words, 32, seed=0)
    pixels = input_batches(MNISTPixels.embedded("train"), 32, seed=0)
    found: list[tuple[str, Callable[[], Network], Any, Target, Direction]] = []
    for name, (cell, n) in RECURRENT.items():

        def network(cell: Callable[[int, int], Cell] = cell, n: int = n) -> Network:
            return Network([cell(784, n), cell(n, n)], 10, readout_bias=True)

        found += [(f"{name}, 2 x {n}", network, digits, target, "both") for target in TARGETS]

    def lru() -> Network:
        return Network([LRU(64, 64) for _ in range(3)], embedding=Embedding(words.n_words, 64), layer_delay=0)

    found += [("LRU, 3 x 64", lru, text, target, "both") for target in TARGETS]
    for activation in ("relu", "sine", "cosine"):

        def feedforward(activation: str = activation) -> Network:
            widths = [784, *[128] * 30]
            cells = [FeedForward(below, n, activation=activation) for below, n in pairwise(widths)]
            return Network(cells, 10, layer_delay=0)

        found.append((f"feed-forward, {activation}, 30 x 128", feedforward, pixels, 1.0, "depth"))
    return found


def main() -> None:
    """Pre-train, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    about = {"date": date.today().isoformat(), "torch": torch.__version__, "threads": 1}
    rows: list[dict[str, Any]] = []
    for name, make, inputs, target, direction in contestants():
        for seed in range(seeds):
            torch.manual_seed(seed)
            network = make()
            x = inputs[0]
            before = radius_profile(network, x[:, :4], steps=min(8, len(x)), seed=seed)
            started = time.perf_counter()
            result = pretrain(network, inputs, target=target, direction=direction, seed=seed, progress=False)
            row: dict[str, Any] = {"cell": name, "target": target, "seed": seed}
            row |= {"seconds": round(time.perf_counter() - started, 1), "steps": result.steps}
            row |= {"converged": result.converged, "findings": [str(finding) for finding in result.findings]}
            for when, profile in (("before", before), ("after", result.profile)):
                row[when] = {"time": profile.time_mean.tolist(), "depth": profile.depth_mean.tolist()}
            rows.append(row)
            (RESULTS / "other_cells.json").write_text(
                json.dumps({"about": about, "runs": rows}, indent=1) + "\n", encoding="utf-8"
            )
            print({key: row[key] for key in ("cell", "target", "seed", "seconds", "steps", "converged")}, flush=True)


if __name__ == "__main__":
    main()
