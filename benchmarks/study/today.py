"""What breaks first, a neuron below threshold or the whole step? The registered measures (registration.md, section 4).

    python benchmarks/study/today.py FOLDER [--minutes 45]

FOLDER holds real_digits' train.h5. Sets networks of each neuron by each initialiser, measures them, trains
them for a short while and measures them again. Appends a row for each finished trial to
results/study_today.csv and passes over those that are there. Four to 25 seconds of one core a trial.
"""

import os
import time
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from headline import command_line, finish, listed
from torch import Tensor
from torch.utils.data import Dataset

from neurolsc.datasets import collate, input_batches
from neurolsc.datasets.batches import fetch
from neurolsc.experiment.config import DataSettings
from neurolsc.init import named
from neurolsc.network import Network
from neurolsc.neurons.cell import CELLS
from neurolsc.stability import (
    lyapunov_exponents,
    neurons_below_threshold,
    parameter_gradients,
    radius_profile,
    state_gradients,
)
from neurolsc.tasks import Classification
from neurolsc.training import train

OUT = Path(__file__).parents[1] / "results" / "study_today.csv"
PSMNIST = {"omega_range": (15.0, 85.0), "damping_range": (0.1, 1.0)}
NEURONS: dict[str, tuple[str, dict[str, Any]]] = {
    "LIF": ("LIF", {"tau_v": 20.0}),
    "ALIF+": ("ALIFPlus", {}),
    "PLIF": ("PLIF", {}),
    "EF-adLIF": ("EFAdLIF", {}),
    "SE-adLIF": ("SEAdLIF", {}),
    "RadLIF, sparch": ("RadLIF", {}),
    "RadLIF, cadlif": ("RadLIF", {"parametrisation": "cadlif"}),
    "RadLIF, silif": ("RadLIF", {"parametrisation": "silif"}),
    "RF, SHD": ("RF", {}),
    "RF, psMNIST": ("RF", PSMNIST),
    "BRF": ("BRF", {}),
    "exact RF": ("ExactRF", {}),
    "TC-LIF": ("TCLIF", {}),
}
OWN, RATE_MATCHED, RELAYS = "Default()", "FiringRate(0.1)", "Relay(rate=0.1)"
LSC = "LSC(1.0, direction='time', method='scale', samples=2, steps=4)"
LONG = "long speech"  # measured, not trained
TASKS = {"speech": 0.04, LONG: 0.01}  # seconds a step: 25 and 100 steps
WIDTH, BATCH, LR, EPOCHS, CHANCE = 64, 64, 5e-3, 2, 0.1
SAMPLES, STEPS, PARTS = 4, 8, 4  # of radii; and parts of the sequence that gradients go back


class Trial(NamedTuple):
    task: str
    seed: int
    init: str
    neuron: str


BLOCKS = [("speech", 0, OWN), ("speech", 0, RATE_MATCHED), (LONG, 0, OWN), ("speech", 0, LSC), ("speech", 0, RELAYS)]
BLOCKS += [("speech", seed, initialiser) for seed in (1, 2) for initialiser in (OWN, RATE_MATCHED, LSC)]
TRIALS = [Trial(*block, neuron) for block in BLOCKS for neuron in NEURONS]


def measured(network: Network, x: Tensor, labels: Tensor) -> dict[str, str]:
    """Condition, full radius, exponent, rate and gradients of each layer on a batch."""
    few, task, last = x[:, :SAMPLES], Classification(), len(x) - 1
    alone = neurons_below_threshold(network).values()
    at_end = (torch.arange(len(x)) == last).unsqueeze(1).expand(-1, x.shape[1])
    back = state_gradients(network, x, lambda logits: task.loss(logits, labels, at_end)).mean(2) * x.shape[1]
    by_layer = parameter_gradients(network, x, lambda logits: task.loss(logits, labels))[:-1]
    with torch.no_grad():
        spikes = network.eval().run(x).spikes
    found = {
        "outside": [layer.outside for layer in alone],
        "below_threshold": [layer.radius.max().item() for layer in alone],
        "radius": radius_profile(network, few, steps=STEPS, progress=False).time_mean.tolist(),
        "exponent": lyapunov_exponents(network, few)[:, :, 0].mean(1).tolist(),
        "rate": [z.mean().item() for z in spikes],
        "gradient": [sum(g.square().sum().item() for g in layer.values()) ** 0.5 for layer in by_layer],
    }
    steps = [last - last * part // PARTS for part in range(PARTS + 1)]
    found |= {f"back_{i}": [layer[step].item() for step in steps] for i, layer in enumerate(back, 1)}
    return {name: listed(values) for name, values in found.items()}


@cache
def data_of(task: str, root: str) -> tuple[Dataset, Dataset]:
    """Training and validation set at the length of step of a task."""
    data = DataSettings(data="shd", root=root, dt=TASKS[task], channels=140, repeat=1)
    return data.load("train"), data.load("validation")


def run(trial: Trial, root: str) -> dict[str, Any]:
    """Set, measure, train and measure a network; its row."""
    torch.manual_seed(trial.seed)
    (of_train, of_validation), (cell, settings) = data_of(trial.task, root), NEURONS[trial.neuron]
    kind = CELLS.find(cell)
    network = Network([kind(140, WIDTH, **settings), kind(WIDTH, WIDTH, **settings)], 10, layer_delay=0)
    x, labels = collate(fetch(of_train, range(32)))[:2]
    names = ("outside", "below_threshold", "radius", "exponent", "rate", "gradient", "back_1", "back_2")
    before, after = dict.fromkeys(names, ""), dict.fromkeys(names, "")
    began, error, scores = time.process_time(), "", {"validation": "", "validation_loss": "", "train_loss": ""}
    try:
        named(trial.init).apply(network, input_batches(of_train, 32, seed=trial.seed), seed=trial.seed)
        before = measured(network, x.float(), labels)
        if trial.task != LONG:
            scores["validation"], settings = f"{CHANCE}", {"epochs": EPOCHS, "batch_size": BATCH, "lr": LR}
            result = train(network, of_train, of_validation, seed=trial.seed, progress=False, **settings)
            scores["validation"] = f"{result.best['validation_mode_accuracy']:.4f}"
            scores |= {name: f"{result.best[name]:.4f}" for name in ("validation_loss", "train_loss")}
            after = measured(network, x.float(), labels)
    except (ValueError, FloatingPointError) as caught:  # an initialiser that does not suit the neuron, or divergence
        error = f"{type(caught).__name__}: {caught}"
    row = {**trial._asdict(), "error": error, **scores, **before}
    row |= {f"{name}_after": values for name, values in after.items()}
    seconds = round(time.process_time() - began, 1)
    return row | {"core_seconds": seconds, "date": datetime.now(UTC).date().isoformat()}


def main() -> None:
    args = command_line(__doc__, OUT).parse_args()
    finish(
        args.out,
        TRIALS,
        lambda row: Trial(row["task"], int(row["seed"]), row["init"], row["neuron"]),
        lambda trial: run(trial, str(args.folder)),
        args.minutes,
    )


if __name__ == "__main__":
    main()
