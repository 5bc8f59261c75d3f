"""Which pre-training reaches which radius? ALIF on spike-latency MNIST, one row per setting.

    python benchmarks/convergence.py [--mnist FOLDER] [--workers 2]

At most 60 steps, two samples and eight time steps in each; a run counts as converged if the
criteria hold in a step and again on the batches that follow, at 32 time steps of so many samples as
the standard errors of the means need, and every layer fires. One thread a worker; eleven minutes of
one core. Writes results/convergence.json, .md and .png.
"""

import argparse
import itertools
import json
import os
import platform
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean, pstdev

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib.pyplot as plt
import torch
from tqdm import tqdm

import neurolsc
from neurolsc.surrogate import FastSigmoid, MultiGaussian

WIDTH, STEPS, SAMPLES, TIMES = 64, 60, 2, 8
CELLS = {"ALIF+": neurolsc.ALIFPlus, "ALIF±": neurolsc.ALIFPlusMinus}
RULES = {
    "paper": neurolsc.PaperRule(),
    "ours": neurolsc.TransitionRule(),
    "ours, threshold fixed": neurolsc.TransitionRule(hold_threshold=True),
}
SURROGATES = {"fast sigmoid": FastSigmoid, "multi-Gaussian": MultiGaussian}
RESULTS = Path(__file__).parent / "results"
_inputs: list[torch.Tensor] = []


def settings() -> list[dict]:
    """Every run: cells, depths, targets and rules with the fast sigmoid, then the surrogates."""
    runs = [
        {
            "cell": c,
            "layers": layers,
            "target": t,
            "rule": r,
            "surrogate": "fast sigmoid",
            "learnable": False,
            "seed": s,
        }
        for c, layers, t, r in itertools.product(CELLS, (2, 5), (1.0, 0.5, "balanced"), RULES)
        for s in range(4 if layers == 2 else 2)
    ]
    runs += [
        {"cell": "ALIF+", "layers": 2, "target": 0.5, "rule": "ours", "surrogate": g, "learnable": fit, "seed": s}
        for g, fit, s in itertools.product(SURROGATES, (False, True), range(4))
        if (g, fit) != ("fast sigmoid", False)  # among the runs above
    ]
    return runs


def run(setting: dict) -> dict:
    """Pre-train one network and say what came of it."""
    torch.manual_seed(setting["seed"])
    make, spike = CELLS[setting["cell"]], SURROGATES[setting["surrogate"]]
    cells = [
        make(784 if i == 0 else WIDTH, WIDTH, spike=spike(learnable=setting["learnable"]))
        for i in range(setting["layers"])
    ]
    network = neurolsc.Network(cells, 10)
    result = neurolsc.pretrain(
        network,
        _inputs,
        target=setting["target"],
        rule=RULES[setting["rule"]],
        seed=setting["seed"],
        max_steps=STEPS,
        samples=SAMPLES,
        steps=TIMES,
        progress=False,
    )
    profile = result.profile
    with torch.no_grad():
        spikes = network.run(_inputs[0]).spikes
    return setting | {
        "converged": result.converged,
        "points": result.points,
        "standard_error": max(result.time_error + result.depth_error),
        "steps": result.steps,
        "seconds": result.seconds,
        "time": profile.time_mean.tolist(),
        "time_std": profile.time.flatten(1).std(1).tolist(),
        "depth": profile.depth_mean.tolist(),
        "depth_std": profile.depth.flatten(1).std(1).tolist(),
        "goal": profile.target,
        "firing_rate": [layer.mean().item() for layer in spikes],
        "neurons_firing": [layer.ne(0).any(0).any(0).float().mean().item() for layer in spikes],
        "silent_steps": [(~layer.ne(0).any(-1)).float().mean().item() for layer in spikes],
        "tau_theta": [cell.tau_theta.mean().item() for cell in network.cells],
        "theta_rest": [cell.theta_rest.mean().item() for cell in network.cells],
        "contributions": list(profile.contributions),
        "findings": [str(finding) for finding in result.findings],
    }


def load_inputs(folder: str | None) -> None:
    """Give a worker its inputs: 16 batches of 32 digits."""
    torch.set_num_threads(1)
    digits = neurolsc.datasets.SpikeLatencyMNIST
    data = digits(folder, "train") if folder else digits.embedded("train")
    _inputs[:] = neurolsc.datasets.input_batches(data, 32)


def table(rows: list[dict]) -> str:
    """One line per setting, over its seeds."""
    groups = defaultdict(list)
    for row in rows:
        surrogate = row["surrogate"] + (", learnable" if row["learnable"] else "")
        groups[row["cell"], row["layers"], str(row["target"]), surrogate, row["rule"]].append(row)
    lines = [
        "| cell | layers | target | surrogate | rule | converged | all layers fire | steps | seconds | time radius | depth radius"
        " | lowest rate of a layer | neurons that fire | tau_theta | resting threshold |",
        "| --- " * 15 + "|",
    ]
    for key, group in sorted(groups.items(), key=lambda item: (item[0][3] != "fast sigmoid", item[0])):

        def over(name: str, group: list[dict] = group) -> str:
            values = [v for row in group for v in row[name]]
            return f"{mean(values):.3f} ± {pstdev(values):.3f}"

        fires = sum(min(row["firing_rate"]) > 0 for row in group)
        lines.append(
            "| "
            + " | ".join(map(str, key))
            + f" | {sum(r['converged'] for r in group)}/{len(group)} | {fires}/{len(group)} "
            f"| {mean(r['steps'] for r in group):.0f} | {mean(r['seconds'] for r in group):.1f} | {over('time')} | {over('depth')} "
            f"| {min(min(r['firing_rate']) for r in group):.5f} | {mean(v for r in group for v in r['neurons_firing']):.0%} "
            f"| {mean(v for r in group for v in r['tau_theta']):.3g} | {mean(v for r in group for v in r['theta_rest']):.3g} |"
        )
    return "\n".join(lines)


def picture(rows: list[dict], path: Path) -> None:
    """Reached radii against the target, a panel each; full marks converged, hollow ones did not."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
    colors = dict(zip(RULES, ("#0072b2", "#d55e00", "#009e73"), strict=True))
    for ax, target in zip(axes, (0.5, "balanced", 1.0), strict=True):
        chosen = [r for r in rows if r["target"] == target and r["surrogate"] == "fast sigmoid" and not r["learnable"]]
        for row in chosen:
            color, full = colors[row["rule"]], row["converged"]
            ax.scatter(
                row["time"], row["depth"], s=22, marker="o" if row["layers"] == 2 else "^",
                edgecolors=color, facecolors=color if full else "none", linewidths=1, alpha=0.8,
            )  # fmt: skip
        goal = chosen[0]["goal"]
        ax.scatter(*goal, marker="+", s=200, color="black", linewidths=1.5, zorder=3)
        ax.set(title=f"target {target}", xlabel="mean radius through time")
    axes[0].set_ylabel("mean radius through depth")
    for name, color in colors.items():
        axes[0].scatter([], [], color=color, label=name)
    axes[0].scatter([], [], color="black", marker="+", label="target")
    axes[0].scatter([], [], edgecolors="black", facecolors="none", label="not converged")
    axes[0].scatter([], [], color="black", marker="^", label="5 layers")
    axes[0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run all settings and write the results."""
    data = os.environ.get("NEUROLSC_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", default=f"{data}/mnist" if data else None, help="folder of MNIST's IDX files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    started = time.perf_counter()
    with ProcessPoolExecutor(args.workers, initializer=load_inputs, initargs=(args.mnist,)) as pool:
        rows = list(tqdm(pool.map(run, settings()), total=len(settings()), unit="run"))
    about = {
        "data": "MNIST" if args.mnist else "the embedded sample",
        "workers": args.workers,
        "wall_seconds": time.perf_counter() - started,
        "core_seconds": sum(row["seconds"] for row in rows),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "convergence.json").write_text(json.dumps({"about": about, "runs": rows}, indent=1))
    (args.out / "convergence.md").write_text(table(rows) + "\n")
    picture(rows, args.out / "convergence.png")
    print(table(rows))
    print(about)


if __name__ == "__main__":
    main()
