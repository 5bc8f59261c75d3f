"""Can a run be cut into pieces, and what does truncating its gradient cost? Takes 10 s on a CPU."""

import sys

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from neurolsc import ALIFPlus, Network, pretrain
from neurolsc.datasets import SpikeLatencyMNIST, collate, input_batches
from neurolsc.plots import plot_scores

WIDTH, SAMPLES, SEED = 64, 32, 0
PIECES = 50, 20, 10, 5

train_set = SpikeLatencyMNIST.embedded("train")
x, labels = collate([train_set[i] for i in range(SAMPLES)])
torch.manual_seed(SEED)
network = Network([ALIFPlus(784, WIDTH), ALIFPlus(WIDTH, WIDTH)], n_out=10)

# Two runs with the state handed over are one run, spike for spike.
whole = network.run(x)
first = network.run(x[:30])
second = network.run(x[30:], first.states)
assert torch.equal(torch.cat([first.spikes[-1], second.spikes[-1]]), whole.spikes[-1])


def gradient(piece: int) -> Tensor:
    """The gradient of the loss over all steps, backpropagated through `piece` steps at a time."""
    network.zero_grad(set_to_none=False)
    states = network.initial_states(SAMPLES)
    for part in x.split(piece):
        run = network.run(part, states)
        loss = cross_entropy(run.logits.flatten(0, 1), labels.repeat(len(part)), reduction="sum")
        (loss / (len(x) * SAMPLES)).backward()
        states = run.states.detach()
    grads = (torch.zeros_like(p) if p.grad is None else p.grad for p in network.parameters())
    return torch.cat([g.flatten() for g in grads])


similarity = {}
for name in ("untrained", "pre-trained to 0.5"):
    if name != "untrained":
        pretrain(network, input_batches(train_set, 32, seed=SEED), target=0.5, seed=SEED, progress=False)
    full = gradient(len(x))
    similarity[name] = {p: [cosine_similarity(full, gradient(p), dim=0).item()] for p in PIECES}
    row = "  ".join(f"{piece}: {s:.4f}" for piece, (s,) in similarity[name].items())
    print(f"{name:<19} cosine of truncated and full gradient, steps of backpropagation {row}")

# A gradient that halves at every step is gone after ten: nothing is lost by cutting there, and
# nothing further is learnt.
assert similarity["pre-trained to 0.5"][5][0] > 0.99 > similarity["untrained"][20][0]

title = f"2 x {WIDTH} ALIFPlus, {SAMPLES} digits, spike-latency MNIST, seed {SEED}"
plot_scores(similarity, *sys.argv[1:], over="steps of backpropagation", score="cosine with full gradient", title=title)
