"""Must back-propagation be truncated on psMNIST? The registered measures (registration.md, section 5).

    python benchmarks/study/psmnist.py [--train] [--minutes 70]

Measures gradients of ALIF and BRF with several initialisations on permuted sequential MNIST, in full and
truncated at 50 steps; --train then trains every arm, in four core hours and more. Appends a row for
each finished trial to results/study_psmnist.csv and passes over those that are there.
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

from neurolsc.datasets import SequentialMNIST, collate, input_batches
from neurolsc.datasets.batches import fetch
from neurolsc.init import named
from neurolsc.network import Network, NetworkState, Run
from neurolsc.neurons.cell import CELLS
from neurolsc.stability import lyapunov_exponents, radius_profile, signal_to_noise, state_gradients
from neurolsc.surrogate import MultiGaussian
from neurolsc.tasks import Classification
from neurolsc.training import train

OUT = Path(__file__).parents[1] / "results" / "study_psmnist.csv"
THEIRS = {"tau_v": 20.0, "tau_theta": 200.0, "b_theta": 0.001, "adaptation": 0.18, "reset_gradient": True}
CELL: dict[str, tuple[str, dict[str, Any]]] = {
    "ALIF+": ("ALIFPlus", {}),
    "ALIF as theirs": ("ALIFPlus", THEIRS),
    "BRF": ("BRF", {"omega_range": (15.0, 85.0), "damping_range": (0.1, 1.0)}),
}
BY_SCALE = "direction='time', method='scale', samples=2, steps=4"
INITIALISERS = ("Default()", "FiringRate(0.1)", "Relay(rate=0.1)", f"LSC(0.5, {BY_SCALE})", f"LSC(1.0, {BY_SCALE})")
INITIALISERS += ("FluctuationDriven()",)
SEEDS, TRUNCATED, LR, EPOCHS, BATCH, WIDTH, CHANCE = range(3), 50, (0.003, 0.01), 30, 25, 64, 0.1
BACK, PIECES = (0, 50, 100, 200, 400, 783), 4


class Trial(NamedTuple):
    neuron: str
    init: str
    seed: int
    truncated: int  # steps after which back-propagation ends in training; 0: none
    lr: float  # 0: gradients are measured, nothing is trained


ARMS = [("BRF", INITIALISERS[0]), *((neuron, initialiser) for neuron in list(CELL)[:2] for initialiser in INITIALISERS)]
MEASURED = [Trial(*arm, seed, 0, 0.0) for seed in SEEDS for arm in ARMS]
TRAINED = [
    Trial(neuron, initialiser, seed, truncated, lr)
    for neuron, initialiser in sorted(ARMS, key=lambda arm: ("ALIF as theirs", "ALIF+", "BRF").index(arm[0]))
    for truncated in ((0, TRUNCATED) if initialiser == INITIALISERS[0] and neuron != "BRF" else (0,))
    for lr in LR
    for seed in SEEDS
]


class Truncated(Network):
    """A network through whose states no gradient passes at every so many steps of training."""

    every = 0

    def run(self, x: Tensor, states: NetworkState | None = None, *, mask: Tensor | None = None) -> Run:
        if not (self.every and self.training):
            return super().run(x, states, mask=mask)
        logits, spikes = [], []
        for piece in x.split(self.every):
            part = super().run(piece, states)
            states = part.states.detach()
            logits.append(part.logits)
            spikes.append(part.spikes)
        assert states is not None
        return Run(torch.cat(logits), tuple(torch.cat(layer) for layer in zip(*spikes, strict=True)), states)


@cache
def data_of(split: str) -> SequentialMNIST:
    return SequentialMNIST.embedded(split, permutation=0)  # type: ignore[arg-type]


def weight_gradient(network: Truncated, every: int, x: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the task's loss by the input and recurrent weights of the layer, flat."""
    network.train().every = every
    weights = (network.cells[0].w_in, network.cells[0].w_rec)
    found = torch.autograd.grad(Classification().loss(network.run(x).logits, labels), weights)
    network.eval().every = 0
    return torch.cat([gradient.flatten() for gradient in found])


def measured(network: Truncated) -> dict[str, str]:
    """Rate, radius, exponent and gradients, in full and truncated, on four batches of training."""
    x, labels = collate(fetch(data_of("train"), range(PIECES * BATCH)))[:2]
    batches = list(zip(x.split(BATCH, 1), labels.split(BATCH), strict=True))
    few, few_labels = batches[0]
    at_end = (torch.arange(len(x)) == len(x) - 1).unsqueeze(1).expand(-1, BATCH)
    back = state_gradients(network, few, lambda logits: Classification().loss(logits, few_labels, at_end))[0].mean(1)
    full, short = (torch.stack([weight_gradient(network, n, *some) for some in batches]) for n in (0, TRUNCATED))
    with torch.no_grad():
        rate = network.eval().run(few).spikes[0].mean().item()
    return {
        "rate": f"{rate:.4f}",
        "radius": listed(radius_profile(network, few[:, :4], steps=8, progress=False).time_mean.tolist()),
        "exponent": f"{lyapunov_exponents(network, few[:, :4])[:, :, 0].mean().item():.4g}",
        "back": listed([(back[-1 - k] / back[-1]).item() for k in BACK]),
        "norm_full": f"{full.mean(0).norm().item():.4g}",
        "norm_truncated": f"{short.mean(0).norm().item():.4g}",
        "noise_full": f"{signal_to_noise(full):.4g}",
        "noise_truncated": f"{signal_to_noise(short):.4g}",
        "cosine": f"{torch.cosine_similarity(full.mean(0), short.mean(0), dim=0).item():.4f}",
    }


def run(trial: Trial) -> dict[str, Any]:
    """Set a network, and measure or train it; its row."""
    torch.manual_seed(trial.seed)
    kind, settings = CELL[trial.neuron]
    if settings is THEIRS:
        settings = settings | {"spike": MultiGaussian(0.025, 0.05)}
    network = Truncated([CELLS.find(kind)(1, WIDTH, **settings)], 10, layer_delay=0)
    names = ("rate", "radius", "exponent", "back", "norm_full", "norm_truncated")
    row = {**trial._asdict(), "error": ""} | dict.fromkeys((*names, "noise_full", "noise_truncated", "cosine"), "")
    row |= dict.fromkeys(("validation", "validation_loss"), "")
    began = time.process_time()
    try:
        named(trial.init).apply(network, input_batches(data_of("train"), 32, seed=trial.seed), seed=trial.seed)
        if not trial.lr:
            row |= measured(network)
        else:
            row["validation"], network.every = CHANCE, trial.truncated
            options: dict[str, Any] = {"epochs": EPOCHS, "batch_size": BATCH, "lr": trial.lr, "patience": EPOCHS}
            best = train(
                network, data_of("train"), data_of("validation"), seed=trial.seed, progress=False, **options
            ).best
            row |= {"validation": best["validation_mean_accuracy"], "rate": listed(best["firing_rate"])}
            row["validation_loss"] = f"{best['validation_loss']:.4f}"
    except (ValueError, FloatingPointError) as caught:  # an initialiser that does not suit the neuron, or divergence
        row["error"] = f"{type(caught).__name__}: {caught}"
    seconds = round(time.process_time() - began, 1)
    return row | {"core_seconds": seconds, "date": datetime.now(UTC).date().isoformat()}


def main() -> None:
    parser = command_line(__doc__, OUT, folder=False)
    parser.add_argument("--train", action="store_true")
    args = parser.parse_args()
    finish(
        args.out,
        MEASURED + TRAINED * args.train,
        lambda r: Trial(r["neuron"], r["init"], int(r["seed"]), int(r["truncated"]), float(r["lr"])),
        run,
        args.minutes,
    )


if __name__ == "__main__":
    main()
