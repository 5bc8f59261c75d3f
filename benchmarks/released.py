"""The text's neuron and loop beside those of the paper's released code: which pair reaches what?

    python benchmarks/released.py [--seeds 3]

Two layers of 64 neurons, read one step late, on the spike latencies in the package, to radii of 1
and 0.5 with the paper's rule. Rates are told, since a silent layer has the radius of its leak.
Writes results/released.json; takes ten minutes.
"""

import argparse
import json
import os
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import neurolsc
from neurolsc import ALIFLowPass, ALIFPlus, Network, pretrain
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.stability.rules import LoopName

RESULTS = Path(__file__).parent / "results" / "released.json"
NEURONS = {"text, ALIF+": ALIFPlus, "code, ALIFLowPass": ALIFLowPass}
LOOPS: dict[str, LoopName] = {"text": "paper", "code": "released"}
MOST = 300  # steps of the text's loop, which has no last one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    batches = input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=0)
    about = {"date": date.today().isoformat(), "neurolsc": neurolsc.__version__, "torch": torch.__version__}
    runs: list[dict[str, Any]] = []
    for target, (neuron, cell), (name, loop), seed in product((1.0, 0.5), NEURONS.items(), LOOPS.items(), range(seeds)):
        torch.manual_seed(seed)
        network = Network([cell(784, 64), cell(64, 64)], 10)
        most = MOST if loop == "paper" else None
        result = pretrain(network, batches, target=target, loop=loop, max_steps=most, seed=seed, progress=False)
        profile = result.profile
        run = {"neuron": neuron, "loop": name, "target": target, "seed": seed}
        run |= {"converged": result.converged, "steps": result.steps, "seconds": round(result.seconds, 1)}
        run |= {"time": profile.time_mean.tolist(), "depth": profile.depth_mean.tolist()}
        runs.append(run | {"rates": profile.firing_rate.tolist()})
        print(runs[-1], flush=True)
        RESULTS.write_text(json.dumps({"about": about, "runs": runs}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
