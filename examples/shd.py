"""What do 2 x 128 ALIF+ learn from 64 spoken digits, varied each time? Takes 20 s on a CPU."""

import torch

from neurolsc import ALIFPlus, Network, evaluate, train
from neurolsc.datasets import SHD, ChannelJitter, TimeStretch, input_batches
from neurolsc.initialisers import Relay

WIDTH, EPOCHS, BATCH, LR, SEED = 128, 40, 8, 5e-3, 0
FORM = {"dt": 0.02, "window": 1.0, "channels": 140, "repeat": 1}

# Synthetic spoken digits in SHD's layout, from the package. SHD itself: SHD(folder, split, **FORM).
train_set = SHD.embedded("train", **FORM, augment=(ChannelJitter(10.0), TimeStretch(0.9, 1.1)))
validation, test_set = (SHD.embedded(split, **FORM) for split in ("validation", "test"))
print(train_set)

torch.manual_seed(SEED)
network = Network([ALIFPlus(train_set.n_in, WIDTH), ALIFPlus(WIDTH, WIDTH)], train_set.n_classes, layer_delay=0)
Relay().apply(network, input_batches(train_set, 32, seed=SEED), seed=SEED)
result = train(
    network, train_set, validation, epochs=EPOCHS, batch_size=BATCH, lr=LR, patience=EPOCHS, seed=SEED, progress=False,
    on_epoch=lambda history: len(history) % 10 == 0 and print(
        f"epoch {history[-1]['epoch']}: training loss {history[-1]['train_loss']:.2f}, "
        f"mode accuracy {history[-1]['train_mode_accuracy']:.0%}, validation {history[-1]['validation_mode_accuracy']:.0%}"
    ),
)  # fmt: skip

# Three utterances of a word go a long way, one or two do not: validation took the others of those
# words, so it scores far below the test. More of both takes the full set.
scores = evaluate(network, test_set)
rates = ", ".join(f"{rate:.3f}" for rate in scores.firing_rate)
print(
    f"test ({len(test_set)} utterances, half of them in voices never heard): mode accuracy {scores.mode_accuracy:.0%}"
)
print(f"spikes per neuron and step {rates}; the validation loss was lowest in epoch {result.best_epoch}")

assert min(scores.firing_rate) > 0
assert scores.mode_accuracy > 0.4, "chance is 0.05"
