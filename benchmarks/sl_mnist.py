"""Does setting the radius help ALIF+ learn spike-latency MNIST, and is it the radius that helps?

    python benchmarks/sl_mnist.py [--mnist FOLDER] [--epochs 4] [--seeds 2] [--workers 2]

2 x 128 ALIF+, 45,000 digits, batches of 256, the paper's optimizer at 1e-3; every arm starts from the same weights and sees the
same batches for the same number of epochs; the epoch with the lowest validation loss is scored on the 10,000 test digits. Two
arms are controls: *thresholds scaled* is the default with thresholds scaled until it fires like the network pre-trained to 0.5,
and *0.5, threshold held* reaches the radius while the resting threshold stays. One thread a worker. Runs that are finished are
kept in results/sl_mnist/ and not repeated; writes results/sl_mnist.json, .md and .png.
"""

import argparse
import copy
import dataclasses
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import mean, pstdev

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from tqdm import tqdm

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.plots import plot_learning_curves

WIDTH, BATCH = 128, 256
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


def prepare(arm: str, seed: int, inputs: list[torch.Tensor]) -> tuple[neurolsc.Network, dict]:
    """The network of an arm before training, and what pre-training did."""
    torch.manual_seed(seed)
    network = neurolsc.Network([neurolsc.ALIFPlus(784, WIDTH), neurolsc.ALIFPlus(WIDTH, WIDTH)], 10)
    about: dict = {}
    if ARMS[arm] == "control":
        awake, _ = prepare("radius 0.5", seed, inputs)
        with torch.no_grad():
            wanted = [layer.mean().item() for layer in awake.run(inputs[0]).spikes]
        reached = neurolsc.match_firing_rates(network, inputs[0], wanted)
        about = {"wanted_rates": wanted, "reached_rates": reached}
    elif ARMS[arm] is not None:
        target, rule = ARMS[arm]
        result = neurolsc.pretrain(network, inputs, target=target, rule=rule, seed=seed, progress=False, max_steps=100)
        about = {"converged": result.converged, "steps": result.steps, "seconds": result.seconds}
        about["findings"] = [str(finding) for finding in result.findings]
    return network, about


def look(network: neurolsc.Network, x: torch.Tensor) -> dict:
    """Radii, rates and thresholds of a network."""
    profile = neurolsc.radius_profile(network, x[:, :8], steps=16)
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


def run(arm: str, seed: int, mnist: str | None, epochs: int, out: Path) -> dict:
    """Prepare, train and score one network; or read what an earlier call found."""
    torch.set_num_threads(1)
    name = f"{arm.replace(' ', '-').replace(',', '').replace('.', '_')}-{seed}"
    finished = out / f"{name}.json"
    if finished.exists():
        return json.loads(finished.read_text())
    data = {
        split: SpikeLatencyMNIST(mnist, split) if mnist else SpikeLatencyMNIST.embedded(split)
        for split in ("train", "validation", "test")
    }
    inputs = input_batches(data["train"], 32, seed=seed)
    network, about = prepare(arm, seed, inputs)
    row = {"arm": arm, "seed": seed, "pretraining": about, "before": look(network, inputs[0])}
    started = time.perf_counter()
    result = neurolsc.train(
        network,
        data["train"],
        data["validation"],
        epochs=epochs,
        batch_size=BATCH,
        seed=seed,
        checkpoint=out / f"{name}.checkpoint",
        progress=False,
    )
    row |= {"history": result.history, "best_epoch": result.best_epoch, "seconds": time.perf_counter() - started}
    row |= {"after": look(network, inputs[0]), "test": dataclasses.asdict(neurolsc.evaluate(network, data["test"]))}
    finished.write_text(json.dumps(row, indent=1))
    (out / f"{name}.checkpoint").unlink(missing_ok=True)
    return row


def table(rows: list[dict]) -> str:
    """One line per arm, over its seeds."""
    head = (
        "arm | seeds | test mode accuracy | mean accuracy | no vote | silent last layer | rate per layer | pre-training"
    )
    head += " | before training: time radii | depth radii | rate per layer | silent last layer | tau_theta | resting threshold"
    lines = [f"| {head} |", "|" + " --- |" * 14]
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
        cells = [arm, str(len(group)), over("test", "mode_accuracy", ".1%"), over("test", "mean_accuracy", ".1%")]
        cells += [over("test", "share_without_vote", ".0%"), over("test", "silent_steps", ".0%")]
        cells += [over("test", "firing_rate", ".4f"), words, over("before", "time"), over("before", "depth")]
        cells += [over("before", "firing_rate", ".4f"), over("before", "silent_steps", ".0%")]
        cells += [over("before", "tau_theta", ".3g"), over("before", "theta_rest", ".3g")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run all arms and seeds and write the results, after every run anew."""
    data = os.environ.get("NEUROLSC_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", default=f"{data}/mnist" if data else None, help="folder of MNIST's IDX files")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    kept = args.out / "sl_mnist"
    kept.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    jobs = [(arm, seed) for seed in range(args.seeds) for arm in ARMS]
    with ProcessPoolExecutor(args.workers) as pool:
        waiting = [pool.submit(run, arm, seed, args.mnist, args.epochs, kept) for arm, seed in jobs]
        for done in tqdm(as_completed(waiting), total=len(waiting), unit="run"):
            rows.append(done.result())
            rows.sort(key=lambda row: (row["seed"], list(ARMS).index(row["arm"])))
            write(rows, args)
    print(table(rows))


def write(rows: list[dict], args: argparse.Namespace) -> None:
    """Results so far."""
    about = {
        "data": "MNIST" if args.mnist else "the embedded sample",
        "epochs": args.epochs,
        "core_seconds": sum(row["seconds"] + row["pretraining"].get("seconds", 0) for row in rows),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    (args.out / "sl_mnist.json").write_text(json.dumps({"about": about, "runs": rows}, indent=1))
    (args.out / "sl_mnist.md").write_text(table(rows) + "\n")
    curves = {
        arm: [copy.copy(r) for row in rows if row["arm"] == arm for r in [*row["history"], _gap()]] for arm in ARMS
    }
    plot_learning_curves({arm: c for arm, c in curves.items() if c}, args.out / "sl_mnist.png", chance=0.1)


def _gap() -> dict:
    """A row that breaks the line between two seeds."""
    nan = float("nan")
    return {"epoch": nan, "validation_loss": nan, "validation_mode_accuracy": nan, "firing_rate": [nan]}


if __name__ == "__main__":
    main()
