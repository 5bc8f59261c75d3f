"""Draw the pictures of the documentation into docs/pictures. Takes a minute on a CPU: python docs/make_pictures.py."""

from pathlib import Path

import torch

from neurolsc import ALIFPlus, Network, PaperRule, TransitionRule, pretrain, radius_profile, surrogate
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.plots import plot_pretraining, plot_surrogates

WIDTH, TARGET, STEPS, SEED = 64, 0.5, 40, 0
FOLDER = Path(__file__).parent / "pictures"

FOLDER.mkdir(exist_ok=True)
plot_surrogates(
    [
        surrogate.FastSigmoid(),
        surrogate.MultiGaussian(),
        surrogate.Arctan(),
        surrogate.Logistic(),
        surrogate.Triangular(),
        surrogate.Rectangular(),
        surrogate.Gaussian(),
        surrogate.Exponential(),
    ],
    FOLDER / "surrogates.png",
)

batches = input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=SEED)
x = batches[0][:, :8]


def untrained() -> Network:
    torch.manual_seed(SEED)
    return Network([ALIFPlus(784, WIDTH), ALIFPlus(WIDTH, WIDTH)], n_out=10)


goal = (TARGET, TARGET)
radius_profile(untrained(), x, target=goal).plot(FOLDER / "radii_before.png")

network = untrained()
result = pretrain(network, batches, target=TARGET, rule=TransitionRule(), seed=SEED)
radius_profile(network, x, target=goal).plot(FOLDER / "radii_after.png")
plot_pretraining(result.history, goal, FOLDER / "pretraining.png")

result = pretrain(untrained(), batches, target=TARGET, rule=PaperRule(), seed=SEED, max_steps=STEPS)
plot_pretraining(result.history, goal, FOLDER / "pretraining_paper_rule.png")
