"""Can radii be set without gradients, by scaling alone? method="scale" beside "gradient". Takes 15 s on a CPU."""

import torch

from neurolsc import ALIFPlus, Network, pretrain, radius_profile
from neurolsc.datasets import SpikeLatencyMNIST, input_batches

WIDTH, TARGET, SEED = 48, 0.5, 0

train_set = SpikeLatencyMNIST.embedded("train")
batches = input_batches(train_set, 32, seed=SEED)
unseen = input_batches(SpikeLatencyMNIST.embedded("test"), 4, count=1, seed=SEED)[0]

radii = {}
for method in ("gradient", "scale"):
    torch.manual_seed(SEED)
    network = Network([ALIFPlus(784, WIDTH), ALIFPlus(WIDTH, WIDTH)], n_out=10)
    drawn = network.cells[1].w_rec.detach().clone()
    result = pretrain(network, batches, target=TARGET, method=method, seed=SEED, samples=2, progress=False)
    profile = radius_profile(network, unseen, steps=24)
    radii[method] = torch.stack([profile.time_mean, profile.depth_mean])
    ratio = network.cells[1].w_rec / drawn
    print(
        f"{method:<8}  {result.steps} {'steps' if method == 'gradient' else 'measurements'}, {result.seconds:.1f} s, "
        f"radii on unseen digits {', '.join(f'{r:.3f}' for r in radii[method].flatten())}, "
        f"w_rec of layer 2 {'one number times the old one' if ratio.std() < 1e-4 else 'shuffled'}"
    )

assert (radii["scale"] - TARGET).abs().max() < 0.06
