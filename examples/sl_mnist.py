"""How well do 2 x 64 ALIF+ learn a few spiking digits at radii of 0.5? Takes 40 s on a CPU."""

import torch

from neurolsc import ALIFPlus, Network, TransitionRule, evaluate, pretrain, train
from neurolsc.datasets import SpikeLatencyMNIST, input_batches

WIDTH, TARGET, EPOCHS, BATCH, LR, SEED = 64, 0.5, 6, 64, 1e-2, 0

train_set, validation, test_set = (SpikeLatencyMNIST.embedded(split) for split in ("train", "validation", "test"))
torch.manual_seed(SEED)
network = Network([ALIFPlus(784, WIDTH), ALIFPlus(WIDTH, WIDTH)], n_out=10)

# Radii first. Holding the resting thresholds keeps the layers as sparse as they were; without it
# they fire far more.
rule = TransitionRule(hold_threshold=True)
before = pretrain(network, input_batches(train_set, 32, seed=SEED), target=TARGET, rule=rule, seed=SEED, progress=False)
print(before)

result = train(
    network, train_set, validation, epochs=EPOCHS, batch_size=BATCH, lr=LR, seed=SEED, progress=False,
    on_epoch=lambda history: print(
        f"epoch {history[-1]['epoch']}: validation loss {history[-1]['validation_loss']:.3f}, "
        f"mode accuracy {history[-1]['validation_mode_accuracy']:.1%}"
    ),
)  # fmt: skip

scores = evaluate(network, test_set)
rates = ", ".join(f"{rate:.3f}" for rate in scores.firing_rate)
print(
    f"test ({len(test_set)} digits): mode accuracy {scores.mode_accuracy:.1%}, mean accuracy {scores.mean_accuracy:.1%}"
)
print(f"spikes per neuron and step {rates}; steps without a vote {scores.share_without_vote:.0%}")

assert before.converged
assert scores.mode_accuracy > 0.3, "chance is 0.1"
