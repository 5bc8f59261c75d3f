"""What the score benchmarks share: the same networks from the same weights, set up in six ways, trained and scored alike.

Two ways are controls: *thresholds scaled* is the default with thresholds scaled until it fires like the network pre-trained to 0.5,
and *0.5, threshold held* reaches the radius while the resting threshold stays. Every arm sees the same batches for the same number
of epochs; the epoch with the lowest validation loss is scored on the test set. One thread a worker. Finished runs are kept
in results/<name>/ and not repeated, unfinished ones go on from their checkpoint.
"""

import argparse
import copy
import dataclasses
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from tqdm import tqdm

import neurolsc
from neurolsc.datasets import input_batches
from neurolsc.plots import plot_learning_curves

HELD = neurolsc.TransitionRule(hold_threshold=True)
ARMS = {
    "default": None,
    "radius 0.5": (0.5, neurolsc.TransitionRule()),
    "thresholds scaled": "control",
    "0.5, threshold held": (0.5, HELD),
    "balanced": ("balanced", neurolsc.PaperRule()),
    "radius 1": (1.0, HELD),
}
RESULTS = Path(__file__).parent / "results"


def no_groups(test: Any) -> dict[str, Any]:
    """No parts of the test set."""
    return {}


@dataclasses.dataclass(frozen=True)
class Task:
    """Data, network and training of a benchmark; the functions are module-level, so that workers can be sent a task."""

    name: str
    about: str
    load: Callable[[Any, str], Any]
    """(where, split) -> data set"""
    build: Callable[[Any, Any], neurolsc.Network]
    """(where, data set) -> network, drawn from torch's seed"""
    where: Any
    epochs: int
    batch: int
    lr: float
    chance: float
    groups: Callable[[Any], dict[str, Any]] = no_groups
    """parts of the test set to be scored apart"""


def prepare(
    task: Task, arm: str, seed: int, training: Any, inputs: list[torch.Tensor]
) -> tuple[neurolsc.Network, dict]:
    """The network of an arm before training, and what pre-training did."""
    torch.manual_seed(seed)
    network = task.build(task.where, training)
    about: dict = {}
    if ARMS[arm] == "control":
        awake, _ = prepare(task, "radius 0.5", seed, training, inputs)
        with torch.no_grad():
            wanted = [layer.mean().item() for layer in awake.run(inputs[0]).spikes]
        reached = neurolsc.match_firing_rates(network, inputs[0], wanted, tolerance=float("inf"))
        about = {"wanted_rates": wanted, "reached_rates": reached}
    elif ARMS[arm] is not None:
        target, rule = ARMS[arm]
        result = neurolsc.pretrain(
            network, inputs, target=target, rule=rule, seed=seed, samples=2, max_steps=100, progress=False
        )
        about = {"converged": result.converged, "steps": result.steps, "seconds": result.seconds}
        about["findings"] = [str(finding) for finding in result.findings]
    return network, about


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


def run(task: Task, arm: str, seed: int, out: Path) -> dict:
    """Prepare, train and score one network; or read what an earlier call found."""
    torch.set_num_threads(1)
    name = f"{arm.replace(' ', '-').replace(',', '').replace('.', '_')}-{seed}"
    finished = out / f"{name}.json"
    if finished.exists():
        return json.loads(finished.read_text())
    data = {split: task.load(task.where, split) for split in ("train", "validation", "test")}
    inputs = input_batches(data["train"], 32, seed=seed)
    network, about = prepare(task, arm, seed, data["train"], inputs)
    row = {"arm": arm, "seed": seed, "pretraining": about, "before": look(network, inputs[0])}
    started = time.perf_counter()
    result = neurolsc.train(
        network,
        data["train"],
        data["validation"],
        epochs=task.epochs,
        batch_size=task.batch,
        lr=task.lr,
        seed=seed,
        checkpoint=out / f"{name}.checkpoint",
        progress=False,
    )
    row |= {"history": result.history, "best_epoch": result.best_epoch, "seconds": time.perf_counter() - started}
    row |= {"after": look(network, inputs[0])}
    for group, part in ({"test": data["test"]} | task.groups(data["test"])).items():
        row[group] = dataclasses.asdict(neurolsc.evaluate(network, part))
    finished.write_text(json.dumps(row, indent=1))
    (out / f"{name}.checkpoint").unlink(missing_ok=True)
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


def main(task: Task, args: argparse.Namespace) -> None:
    """Run all arms and seeds and write the results, after every run anew."""
    kept = args.out / task.name
    kept.mkdir(parents=True, exist_ok=True)
    groups = list(task.groups(task.load(task.where, "test")))
    rows: list[dict] = []
    jobs = [(arm, seed) for seed in range(args.seeds) for arm in args.arms]
    with ProcessPoolExecutor(args.workers) as pool:
        waiting = [pool.submit(run, task, arm, seed, kept) for arm, seed in jobs]
        for done in tqdm(as_completed(waiting), total=len(waiting), unit="run"):
            rows.append(done.result())
            rows.sort(key=lambda row: (row["seed"], list(ARMS).index(row["arm"])))
            write(task, rows, groups, args.out)
    print(table(rows, groups))


def write(task: Task, rows: list[dict], groups: list[str], out: Path) -> None:
    """Results so far."""
    about = {
        "data": task.about,
        "epochs": task.epochs,
        "core_seconds": sum(row["seconds"] + row["pretraining"].get("seconds", 0) for row in rows),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    (out / f"{task.name}.json").write_text(json.dumps({"about": about, "runs": rows}, indent=1))
    (out / f"{task.name}.md").write_text(table(rows, groups) + "\n")
    curves = {
        arm: [copy.copy(r) for row in rows if row["arm"] == arm for r in [*row["history"], _gap()]] for arm in ARMS
    }
    plot_learning_curves({a: c for a, c in curves.items() if c}, out / f"{task.name}.png", chance=task.chance)


def _gap() -> dict:
    """A row that breaks the line between two seeds."""
    nan = float("nan")
    return {"epoch": nan, "validation_loss": nan, "validation_mode_accuracy": nan, "firing_rate": [nan]}
