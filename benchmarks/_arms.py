"""What the score benchmarks share: networks set up in six ways, trained and scored alike.

Two ways are controls: *thresholds scaled* is the default with thresholds scaled until it fires like
the network pre-trained to 0.5, and *0.5, threshold held* reaches the radius while the resting
threshold stays. Every arm sees the same batches for the same number of epochs; the epoch with the
lowest validation loss is scored on the test set. All start from
the same weights. One thread a worker. Every run has a run folder in results/<name>/; finished ones
are not repeated, unfinished ones go on from their checkpoint.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from tqdm import tqdm

import neurolsc
from neurolsc.config import PretrainSettings, StartSettings, TrainSettings
from neurolsc.datasets import input_batches
from neurolsc.experiment import Experiment
from neurolsc.plots import plot_learning_curves
from neurolsc.runs import run_folder, write_json

NOTHING = PretrainSettings(pretrain_steps=100, pretrain_samples=2)
ARMS = {
    "default": NOTHING,
    "radius 0.5": replace(NOTHING, target="0.5", rule="transition"),
    "thresholds scaled": None,
    "0.5, threshold held": replace(NOTHING, target="0.5", rule="hold-threshold"),
    "balanced": replace(NOTHING, target="balanced", rule="paper"),
    "radius 1": replace(NOTHING, target="1", rule="hold-threshold"),
}
"""What is done before training; None: the control."""
LEFT = StartSettings("Default")
"""The start of all arms: weights as they are drawn."""
RESULTS = Path(__file__).parent / "results"


def as_the_paper(epochs: int, batch_size: int, lr: float) -> TrainSettings:
    """The paper's training, at some learning rate."""
    plain = {"by_gain": False, "centralize": False, "clip_gradient": 0.0}
    return TrainSettings(epochs, batch_size, lr, optimizer="adabelief-lookahead", schedule="constant", **plain)


def no_groups(test: Any) -> dict[str, Any]:
    """No parts of the test set."""
    return {}


@dataclass(frozen=True)
class Benchmark:
    """Data, network and training of a benchmark; module-level, so that workers can be sent one."""

    name: str
    about: str
    experiment: Experiment
    chance: float
    groups: Callable[[Any], dict[str, Any]] = no_groups
    """parts of the test set to be scored apart"""


def prepare(experiment: Experiment, arm: str, inputs: list[torch.Tensor]) -> tuple[neurolsc.Network, dict]:
    """The network of an arm before training, and what pre-training did."""
    network, seed = experiment.build(), experiment.network.seed
    settings = ARMS[arm]
    if settings is None:
        awake, _ = prepare(experiment, "radius 0.5", inputs)
        with torch.no_grad():
            wanted = [layer.mean().item() for layer in awake.run(inputs[0]).spikes]
        reached = neurolsc.match_firing_rates(network, inputs[0], wanted, tolerance=float("inf"))  # both are kept
        return network, {"wanted_rates": wanted, "reached_rates": reached}
    if settings.parsed_target() is None:
        return network, {}
    result = settings.run(network, inputs, seed=seed, progress=False)
    about = {"converged": result.converged, "steps": result.steps, "seconds": result.seconds}
    return network, about | {"findings": [str(finding) for finding in result.findings]}


def look(network: neurolsc.Network, x: torch.Tensor) -> dict:
    """Radii, rates and thresholds of a network."""
    profile = neurolsc.radius_profile(network, x[:, :4], steps=8)
    with torch.no_grad():
        logits, spikes, _ = network.run(x)
    return {
        "time": profile.time_mean.tolist(),
        "depth": profile.depth_mean.tolist(),
        "firing_rate": [layer.mean().item() for layer in spikes],
        "silent_steps": (~spikes[-1].ne(0).any(-1)).float().mean().item(),
        "without_vote": neurolsc.metrics.share_without_vote(logits),
        "tau_theta": [cell.tau_theta.mean().item() for cell in network.cells],
        "theta_rest": [cell.theta_rest.mean().item() for cell in network.cells],
    }


def run(benchmark: Benchmark, arm: str, seed: int, out: Path) -> dict:
    """Prepare, train and score one network; or read what an earlier call found."""
    torch.set_num_threads(1)
    finished = out / f"{arm.replace(' ', '-').replace(',', '').replace('.', '_')}-{seed}"
    if finished.exists():
        return json.loads((finished / "row.json").read_text())
    experiment = replace(benchmark.experiment, network=replace(benchmark.experiment.network, seed=seed))
    assert experiment.training is not None
    with run_folder(finished, experiment.settings() | {"arm": arm}) as folder:
        inputs = input_batches(experiment.data.load("train"), 32, seed=seed)
        network, about = prepare(experiment, arm, inputs)
        row = {"arm": arm, "seed": seed, "pretraining": about, "before": look(network, inputs[0])}
        started = time.perf_counter()
        result = experiment.train(network, experiment.training, folder, progress=False)
        seconds = time.perf_counter() - started
        row |= {"history": result.history, "best_epoch": result.best_epoch, "seconds": seconds}
        row |= {"after": look(network, inputs[0])}
        test = experiment.data.load("test")
        for group, part in ({"test": test} | benchmark.groups(test)).items():
            row[group] = neurolsc.evaluate(network, part).to_dict()
        neurolsc.save(network, folder / "network.safetensors")
        write_json(folder / "row.json", row)
    return row


def table(rows: list[dict], groups: list[str]) -> str:
    """One line per arm, over its seeds."""
    head = [
        "arm",
        "seeds",
        "test mode accuracy",
        *groups,
        "mean accuracy",
        "no vote",
        "silent last layer",
        "rate per layer",
    ]
    head += ["pre-training", "before training: time radii", "depth radii", "rate per layer", "silent last layer"]
    head += ["tau_theta", "resting threshold"]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for arm in ARMS:
        group = [row for row in rows if row["arm"] == arm]
        if not group:
            continue

        def over(where: str, key: str, form: str = ".3f", group: list[dict] = group) -> str:
            values = [row[where][key] for row in group]
            if isinstance(values[0], list):
                return ", ".join(format(mean(column), form) for column in zip(*values, strict=True))
            return f"{mean(values):{form}} ± {pstdev(values):{form}}"

        did = [row["pretraining"] for row in group]
        words = "none"
        if "converged" in did[0]:
            words = f"{sum(d['converged'] for d in did)}/{len(did)} in {mean(d['seconds'] for d in did):.0f} s"
        elif did[0]:
            words = "thresholds only"
        cells = [arm, str(len(group)), over("test", "mode_accuracy", ".1%")]
        cells += [over(part, "mode_accuracy", ".1%") for part in groups] + [over("test", "mean_accuracy", ".1%")]
        cells += [over("test", "share_without_vote", ".0%"), over("test", "silent_steps", ".0%")]
        cells += [over("test", "firing_rate", ".4f"), words, over("before", "time"), over("before", "depth")]
        cells += [over("before", "firing_rate", ".4f"), over("before", "silent_steps", ".0%")]
        cells += [over("before", "tau_theta", ".3g"), over("before", "theta_rest", ".3g")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def arguments(description: str, *, epochs: int, seeds: int, lr: float) -> argparse.ArgumentParser:
    """The options of every such benchmark."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--lr", type=float, default=lr, help="learning rate; another one has results of its own")
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser


def main(benchmark: Benchmark, args: argparse.Namespace) -> None:
    """Run all arms and seeds and write the results, after every run anew."""
    kept = args.out / benchmark.name
    kept.mkdir(parents=True, exist_ok=True)
    groups = list(benchmark.groups(benchmark.experiment.data.load("test")))
    rows: list[dict] = []
    jobs = [(arm, seed) for seed in range(args.seeds) for arm in args.arms]
    with ProcessPoolExecutor(args.workers) as pool:
        waiting = [pool.submit(run, benchmark, arm, seed, kept) for arm, seed in jobs]
        for done in tqdm(as_completed(waiting), total=len(waiting), unit="run"):
            rows.append(done.result())
            rows.sort(key=lambda row: (row["seed"], list(ARMS).index(row["arm"])))
            write(benchmark, rows, groups, args.out)
    print(table(rows, groups))


def write(benchmark: Benchmark, rows: list[dict], groups: list[str], out: Path) -> None:
    """Results so far."""
    assert benchmark.experiment.training is not None
    about = {
        "data": benchmark.about,
        "epochs": benchmark.experiment.training.epochs,
        "core_seconds": sum(row["seconds"] + row["pretraining"].get("seconds", 0) for row in rows),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    (out / f"{benchmark.name}.json").write_text(json.dumps({"about": about, "runs": rows}, indent=1))
    (out / f"{benchmark.name}.md").write_text(table(rows, groups) + "\n")
    curves = {arm: [r for row in rows if row["arm"] == arm for r in [*row["history"], _gap()]] for arm in ARMS}
    plot_learning_curves({a: c for a, c in curves.items() if c}, out / f"{benchmark.name}.png", chance=benchmark.chance)


def _gap() -> dict:
    """A row that breaks the line between two seeds."""
    nan = float("nan")
    return {"epoch": nan, "validation_loss": nan, "validation_mode_accuracy": nan, "firing_rate": [nan]}
