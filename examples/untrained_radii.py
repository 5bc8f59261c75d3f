"""How far from 0.5 are the radii of an untrained ALIF, and what holds them? Takes 5 s on a CPU."""

import sys

import torch

from neurolsc import ALIFPlus, Network, radius_profile
from neurolsc.datasets import SpikeLatencyMNIST, input_batches

WIDTH, SAMPLES, STEPS, SEED = 64, 4, 24, 0
VARIANTS = {
    "as in the paper": {},
    "adaptation x 4": {"adaptation": 4 * 1.8},
    "tau_theta 1.4 steps instead of 100": {"tau_theta": 1.4},
    "both: tau_theta 1.4, adaptation / 4": {"tau_theta": 1.4, "adaptation": 1.8 / 4},
}

x = input_batches(SpikeLatencyMNIST.embedded("train"), SAMPLES, count=1)[0]
profiles = {}
for name, changed in VARIANTS.items():
    torch.manual_seed(SEED)
    network = Network([ALIFPlus(784, WIDTH, **changed), ALIFPlus(WIDTH, WIDTH, **changed)], n_out=10)
    profiles[name] = radius_profile(network, x, steps=STEPS, target=(0.5, 0.5))
    print(f"{name}\n{profiles[name]}\n")

paper = profiles["as in the paper"]
for layer, (time, depth) in enumerate(zip(paper.time_mean.tolist(), paper.depth_mean.tolist(), strict=True), start=1):
    print(f"layer {layer}: {time - 0.5:+.2f} from one half through time, {depth - 0.5:+.2f} through depth")

# At tau_theta = 100 steps the leak of the thresholds, exp(-1/100), holds the radius through time. A
# short tau_theta alone does not bring it to one half, because the feedback of a spike on its own
# threshold takes over: both have to shrink.
assert all(parts["leak"] > 0.9 for parts in paper.contributions)
assert all(parts["feedback"] > 0.1 for parts in profiles["tau_theta 1.4 steps instead of 100"].contributions)
assert profiles["both: tau_theta 1.4, adaptation / 4"].time_mean.max() < paper.time_mean.min()

paper.plot(*sys.argv[1:], title=f"2 x {WIDTH} ALIFPlus, untrained, spike-latency MNIST, seed {SEED}")
