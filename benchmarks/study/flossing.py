"""Do exponents near 0 while training help to remember? The registered comparison (registration.md, section 3).

    python benchmarks/study/flossing.py [--minutes 60]

Stores and recalls over 100, 200 and 400 steps: with flossing, without, and with clipped singular values.
Appends a row to results/study_flossing.csv for each finished trial and passes over those that are
there. Needs no data; 20 seconds to 2 minutes of one core a trial, 40 minutes in all.
"""

import itertools
import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import torch
from headline import command_line, finish, listed

from neurolsc.datasets import collate
from neurolsc.datasets.batches import fetch
from neurolsc.experiment import Experiment
from neurolsc.experiment.run import score
from neurolsc.io import load
from neurolsc.network import Network
from neurolsc.stability import lyapunov_exponents

OUT = Path(__file__).parents[1] / "results" / "study_flossing.csv"
SETTINGS = {"data": "store-recall", "cell": "LIF", "tau_v": 20.0, "layers": 1, "width": 64, "layer_delay": 0}
SETTINGS |= {"init": "FiringRate(0.15)", "batch_size": 32, "epochs": 12, "patience": 12}
ARMS: dict[str, dict] = {"without": {}, "flossing": {"floss": 100.0, "floss_every": 20}}
ARMS["clipping"] = {"clip_spectrum": 1.0}
DELAYS, RATES, SEEDS, CHANCE = (100, 200, 400), (5e-3, 1e-2), range(3), 0.25


def run(delay: int, arm: str, lr: float, seed: int) -> dict:
    """Train a network and score it on the test set; its row."""
    settings = SETTINGS | {"delay": delay, "lr": lr, "seed": seed, "split_seed": seed} | ARMS[arm]
    experiment = Experiment.from_settings(settings)
    data = experiment.data.load("validation")
    x = collate(fetch(data, range(64)))[0].float()
    before: list[str] = []

    def measured(network: Network) -> list[str]:
        with torch.no_grad():
            rates = [z.mean().item() for z in network.eval().run(x).spikes]
        return [listed(lyapunov_exponents(network, x).mean(1).flatten().tolist()), listed(rates)]

    row = {"delay": delay, "arm": arm, "lr": lr, "seed": seed, "error": ""}
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        try:
            experiment.run(folder, before_training=lambda n, _: before.extend(measured(n)), progress=False)
            result = json.loads((folder / "history.json").read_text())
            best = result["history"][result["best_epoch"] - 1]
            row |= {"validation": best["validation_mode_accuracy"], "best_epoch": best["epoch"]}
            row |= {"test": score(folder, "test").mode_accuracy}
            after = measured(load(folder / "network.safetensors"))
        except FloatingPointError as error:
            row |= {"error": str(error), "validation": CHANCE, "best_epoch": "", "test": CHANCE}
            after = ["", ""]
    row |= dict(zip(("exponent_before", "rate_before"), before, strict=True))
    row |= dict(zip(("exponent_after", "rate_after"), after, strict=True))
    return row | {"seconds": round(time.process_time() - began), "date": datetime.now(UTC).date().isoformat()}


def main() -> None:
    args = command_line(__doc__, OUT, folder=False).parse_args()
    finish(
        args.out,
        itertools.product(DELAYS, SEEDS, RATES, ARMS),
        lambda row: (int(row["delay"]), int(row["seed"]), float(row["lr"]), row["arm"]),
        lambda trial: run(trial[0], trial[3], trial[2], trial[1]),
        args.minutes,
    )


if __name__ == "__main__":
    main()
