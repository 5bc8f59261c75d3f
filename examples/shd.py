"""How well do 2 x 64 ALIF+ tell spoken digits apart after hearing 64 of them, radii set first? Takes 40 s on a CPU."""

import torch

from neurolsc import ALIFPlus, Network, evaluate, pretrain, train
from neurolsc.datasets import SHD, ChannelJitter, input_batches

WIDTH, TARGET, EPOCHS, BATCH, LR, SEED = 64, 0.5, 25, 8, 1e-2, 0
FORM = {"dt": 0.02, "window": 1.0, "channels": 140, "repeat": 1}

# Synthetic spoken digits in SHD's layout, from the package. For SHD itself: SHD(folder, split, **FORM).
train_set = SHD.embedded("train", **FORM, augment=(ChannelJitter(10.0),))
validation, test_set = (SHD.embedded(split, **FORM) for split in ("validation", "test"))
print(train_set)

torch.manual_seed(SEED)
network = Network([ALIFPlus(train_set.n_in, WIDTH), ALIFPlus(WIDTH, WIDTH)], train_set.n_classes)
before = pretrain(network, input_batches(train_set, 32, seed=SEED), target=TARGET, seed=SEED, progress=False)
print(before)

result = train(
    network, train_set, validation, epochs=EPOCHS, batch_size=BATCH, lr=LR, patience=EPOCHS, seed=SEED, progress=False,
    on_epoch=lambda history: len(history) % 5 == 0 and print(
        f"epoch {history[-1]['epoch']}: training {history[-1]['train_mode_accuracy']:.0%}, "
        f"validation {history[-1]['validation_mode_accuracy']:.0%}"
    ),
)  # fmt: skip

scores = evaluate(network, test_set)
rates = ", ".join(f"{rate:.3f}" for rate in scores.firing_rate)
print(
    f"test ({len(test_set)} utterances, half of them in voices never heard): mode accuracy {scores.mode_accuracy:.0%}"
)
print(f"spikes per neuron and step {rates}; the validation loss was lowest in epoch {result.best_epoch}")

assert min(scores.firing_rate) > 0
assert scores.mode_accuracy > 0.2, "chance is 0.05"
