"""How long does it take to bring 2 x 128 ALIF+ to radius 0.5?

    python benchmarks/pretraining_time.py

Spike-latency MNIST from the package, both methods, three seeds, all threads that torch takes by
default. Beside each time stand the radii that were reached and the firing rates. Time grows with
steps x samples x the cube of the state's size (256 here). Writes results/pretraining_time.json.
"""

import json
import time
from pathlib import Path

import torch

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches


def main() -> None:
    """Pre-train and write the times."""
    inputs = input_batches(SpikeLatencyMNIST.embedded("train"), 32)
    rows = []
    for method in ("gradient", "scale"):
        for seed in range(3):
            torch.manual_seed(seed)
            network = neurolsc.Network([neurolsc.ALIFPlus(784, 128), neurolsc.ALIFPlus(128, 128)], 10)
            if method == "gradient":
                result = neurolsc.pretrain(network, inputs, target=0.5, seed=seed, progress=False)
            else:
                result = neurolsc.scale_to_radius(network, inputs[0], target=0.5, seed=seed, progress=False)
            profile = result.profile
            row = {"method": method, "seed": seed, "seconds": round(result.seconds, 1), "steps": result.steps}
            row |= {"points": result.points, "standard_error": max(result.time_error + result.depth_error)}
            row |= {
                "converged": result.converged,
                "time": profile.time_mean.tolist(),
                "depth": profile.depth_mean.tolist(),
            }
            row |= {"firing_rate": profile.firing_rate.tolist()}
            rows.append(row)
            print(row)
    about = {"threads": torch.get_num_threads(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    path = Path(__file__).parent / "results" / "pretraining_time.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"about": about, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
