"""Do radii set by pre-training hold on inputs that it never saw?  python benchmarks/fresh_radii.py

Networks of LIF, ALIF+ and ALIF± of 2 and 5 layers, 48 to 128 wide, on the digits and the spoken
digits in the package, brought to 0.5 with the default settings and re-measured on 32 samples of the
test split at 50 steps. One row per run; the largest distance of any layer and direction from the
target counts. One thread a worker. Writes results/fresh_radii.json and .md.
"""

import argparse
import itertools
import json
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import neurolsc
from neurolsc.datasets import SHD, SpikeLatencyMNIST, input_batches

TARGET, WITHIN, SAMPLES, STEPS = 0.5, 0.03, 32, 50
CELLS = {
    "ALIF+": (neurolsc.ALIFPlus, {}),
    "ALIF±": (neurolsc.ALIFPlusMinus, {}),
    # at a threshold of 1 no LIF layer fires at these radii
    "LIF": (neurolsc.LIF, {"tau_v": 3.0, "threshold": 0.1}),
}
RESULTS = Path(__file__).parent / "results"


def settings() -> list[dict]:
    """Every run: cells, depths and data, two widths each of its own seed; LIF of two layers."""
    runs = []
    widths = itertools.cycle((48, 64, 96, 128))
    for data, cell, layers, seed in itertools.product(("digits", "speech"), CELLS, (2, 5), range(4)):
        if cell == "LIF" and (layers == 5 or seed > 1):
            continue
        runs.append({"data": data, "cell": cell, "layers": layers, "width": next(widths), "seed": seed})
    return runs


def run(setting: dict) -> dict:
    """Pre-train one network and measure it again on other inputs."""
    torch.set_num_threads(1)
    dataset = {"digits": SpikeLatencyMNIST, "speech": SHD}[setting["data"]]
    training = dataset.embedded("train")
    make, options = CELLS[setting["cell"]]
    torch.manual_seed(setting["seed"])
    widths = [training.n_in, *[setting["width"]] * setting["layers"]]
    network = neurolsc.Network([make(n, setting["width"], **options) for n in widths[:-1]], 10)
    inputs = input_batches(training, 32, seed=setting["seed"])
    started = time.process_time()
    result = neurolsc.pretrain(network, inputs, target=TARGET, seed=setting["seed"], progress=False)
    seconds = time.process_time() - started
    fresh = input_batches(dataset.embedded("test"), SAMPLES, count=1, seed=100 + setting["seed"])[0]
    again = neurolsc.radius_profile(network, fresh, steps=min(STEPS, len(fresh)), seed=100)
    profile = result.profile
    row = setting | {"converged": result.converged, "steps": result.steps, "cpu_seconds": seconds}
    for name, found in (("said", profile), ("fresh", again)):
        row[f"{name}_time"], row[f"{name}_depth"] = found.time_mean.tolist(), found.depth_mean.tolist()
        row[f"{name}_points"] = [found.time.shape[1], found.time.shape[2]]
    # how far the means of single samples lie apart
    row["between_samples"] = [r.mean(1).std(-1).tolist() for r in (again.time, again.depth)]
    row["firing_rate"] = again.firing_rate.tolist()
    row["furthest"] = max(abs(r - TARGET) for r in row["fresh_time"] + row["fresh_depth"])
    return row


def table(rows: list[dict]) -> str:
    """A line for each run, and the share of all that hold."""
    lines = [
        "| data | cell | layers | width | seed | converged | steps | cpu s | points said on | furthest said | furthest fresh |",
        "| --- " * 11 + "|",
    ]
    for r in rows:
        said = max(abs(m - TARGET) for m in r["said_time"] + r["said_depth"])
        lines.append(
            f"| {r['data']} | {r['cell']} | {r['layers']} | {r['width']} | {r['seed']} | {r['converged']} | {r['steps']} "
            f"| {r['cpu_seconds']:.1f} | {r['said_points'][0]} x {r['said_points'][1]} | {said:.3f} | {r['furthest']:.3f} |"
        )
    done = [r for r in rows if r["converged"]]
    held = sum(r["furthest"] <= WITHIN for r in done)
    lines.append("")
    lines.append(
        f"{len(done)} of {len(rows)} runs converged; of those {held} ({held / max(1, len(done)):.0%}) have every layer and "
        f"direction within {WITHIN} of {TARGET} on fresh inputs. {sum(r['cpu_seconds'] for r in rows):.0f} s of one core."
    )
    return "\n".join(lines)


def main() -> None:
    """Run all settings and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = []
    with ProcessPoolExecutor(args.workers) as pool:
        for row in pool.map(run, settings()):
            rows.append(row)
            print(json.dumps(row), flush=True)
    about = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "fresh_radii.json").write_text(json.dumps({"about": about, "runs": rows}, indent=1) + "\n")
    (args.out / "fresh_radii.md").write_text(table(rows) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
