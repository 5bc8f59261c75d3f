"""Can scaling alone set radii? scale_to_radius beside pretrain. Takes 15 s on a CPU."""

import sys

import torch

from neurolsc import ALIFPlus, Network, pretrain, radius_profile, scale_to_radius
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.plots import plot_scores

WIDTH, TARGET, SEED = 48, 0.5, 0

batches = input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=SEED)
unseen = input_batches(SpikeLatencyMNIST.embedded("test"), 4, count=1, seed=SEED)[0]
METHODS = {
    "gradient": lambda network: pretrain(network, batches, target=TARGET, seed=SEED, samples=2, progress=False),
    "scale": lambda network: scale_to_radius(network, batches[0], target=TARGET, seed=SEED, progress=False),
}

radii, dots = {}, {}
for name, set_radii in METHODS.items():
    torch.manual_seed(SEED)
    network = Network([ALIFPlus(784, WIDTH), ALIFPlus(WIDTH, WIDTH)], n_out=10)
    drawn = network.cells[1].w_rec.detach().clone()
    result = set_radii(network)
    profile = radius_profile(network, unseen, steps=24)
    radii[name] = torch.stack([profile.time_mean, profile.depth_mean])
    ways = {"through time": profile.time, "through depth": profile.depth}
    dots[name] = {f"layer {i} {way}": of[i - 1].flatten().tolist() for way, of in ways.items() for i in (1, 2)}
    ratio = network.cells[1].w_rec / drawn
    print(
        f"{name:<8}  {result.steps} {'steps' if name == 'gradient' else 'measurements'}, {result.seconds:.1f} s, "
        f"radii on unseen digits {', '.join(f'{r:.3f}' for r in radii[name].flatten())}, "
        f"w_rec of layer 2 {'one number times the old one' if ratio.std() < 1e-4 else 'shuffled'}"
    )

assert (radii["scale"] - TARGET).abs().max() < 0.06

title = f"2 x {WIDTH} ALIFPlus, spike-latency MNIST, seed {SEED}; strokes: means, dots: steps of samples"
plot_scores(dots, *sys.argv[1:], over="", score="radius on unseen digits", title=title)
