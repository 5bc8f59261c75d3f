"""How well do 3 x 64 ALIF+ learn a few spiking digits from an initialisation of ours? Takes 40 s on a CPU."""

import sys

import torch

from neurolsc import ALIFPlus, Network, evaluate, initialize, radius_profile, train
from neurolsc.datasets import SpikeLatencyMNIST, collate

WIDTH, EPOCHS, SEED = 64, 12, 0

train_set, validation, test_set = (SpikeLatencyMNIST.embedded(split) for split in ("train", "validation", "test"))
torch.manual_seed(SEED)
layers = [ALIFPlus(784, WIDTH), ALIFPlus(WIDTH, WIDTH), ALIFPlus(WIDTH, WIDTH)]
network = Network(layers, n_out=10, layer_delay=0)

x, _ = collate([train_set[i] for i in range(64)])
print(initialize(network, x, seed=SEED))
print(radius_profile(network, x[:, :4], steps=16))

result = train(
    network, train_set, validation, epochs=EPOCHS, seed=SEED, progress=False,
    on_epoch=lambda history: print(
        f"epoch {history[-1]['epoch']}: validation loss {history[-1]['validation_loss']:.3f}, "
        f"mode accuracy {history[-1]['validation_mode_accuracy']:.1%}"
    ),
)  # fmt: skip

scores = evaluate(network, test_set)
print(
    f"test ({len(test_set)} digits): mode accuracy {scores.mode_accuracy:.1%}, mean accuracy {scores.mean_accuracy:.1%}"
)
print(f"the last layer fires {scores.firing_rate[-1]:.2f} a step; steps without a vote {scores.share_without_vote:.0%}")

assert scores.mode_accuracy > 0.6, "chance is 0.1"

title = f"3 x {WIDTH} ALIFPlus, initialised, spike-latency MNIST, seed {SEED}"
result.plot(*sys.argv[1:], chance=0.1, title=title)
