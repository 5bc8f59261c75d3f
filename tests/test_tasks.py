"""Tasks: losses by hand, learning, samples of unequal length, and states carried over batches."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from neurolsc import LIF, ALIFPlus, Network, evaluate, train
from neurolsc.datasets import collate
from neurolsc.tasks import BinaryPerStep, Classification, ClassPerStep, Task, cross_entropy
from neurolsc.training import PAPER
from tests.patterns import weights

LENGTHS = (2, 4, 3)
MASK = torch.arange(4)[:, None] < torch.tensor(LENGTHS)


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """Logits (4, 3, 5), classes per step (4, 3) and binary targets (4, 3, 5)."""
    torch.manual_seed(0)
    return torch.randn(4, 3, 5, dtype=torch.float64), torch.randint(5, (4, 3)), torch.randint(2, (4, 3, 5))


@pytest.mark.parametrize("task", [ClassPerStep(), BinaryPerStep()], ids=repr)
def test_loss_and_gradient_of_targets_per_step(task: Task):
    logits, classes, binary = drawn()
    logits.requires_grad_()
    if task == ClassPerStep():
        targets, p = classes, logits.softmax(-1)
        wanted, losses = (
            p - torch.nn.functional.one_hot(classes, 5),
            -p.gather(2, classes.unsqueeze(2)).log().squeeze(2),
        )
    else:
        targets, p = binary, 1 / (1 + torch.exp(-logits))
        wanted, losses = p - binary, -torch.where(binary == 1, p, 1 - p).log().sum(2)
    loss = task.loss(logits, targets)
    torch.testing.assert_close(loss, losses.mean())
    torch.testing.assert_close(torch.autograd.grad(loss, logits)[0], wanted.detach() / 12)
    own = [losses[:n, b].mean() for b, n in enumerate(LENGTHS)]  # over samples of the mean over their own steps
    torch.testing.assert_close(task.loss(logits, targets, MASK), torch.stack(own).mean())
    assert task.loss(logits, targets, MASK).item() != pytest.approx(loss.item())


def test_a_label_for_all_steps_costs_as_much_as_at_every_step():
    logits, labels = drawn()[0], torch.tensor([4, 0, 2])
    for mask in (None, MASK):
        assert cross_entropy(logits, labels, mask) == ClassPerStep().loss(logits, labels.expand(4, 3), mask)
        assert Classification().loss(logits, labels, mask) == cross_entropy(logits, labels, mask)
    keys = torch.rand(7, 2, 88) < 0.1  # a silent readout of 88 keys costs 88 bits a step
    assert BinaryPerStep().loss(torch.zeros(7, 2, 88), keys).item() == pytest.approx(88 * math.log(2))


CHANNELS, LATE = 4, 2


class Echo:
    """Random spikes on four channels; targets are those of two steps before, or a class of them."""

    def __init__(self, size: int, seed: int, *, binary: bool, steps: int = 20) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = (torch.rand(size, steps, CHANNELS, generator=generator) < 0.4).to(torch.uint8)
        late = torch.zeros_like(self.x)
        late[:, LATE:] = self.x[:, :-LATE]
        self.targets = late if binary else (late[..., 0] + 2 * late[..., 1]).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int, /) -> tuple[Tensor, Tensor]:
        return self.x[i], self.targets[i]


# samples of unequal length


def unequal(binary: bool) -> list[tuple[Tensor, Tensor]]:
    """Samples of several lengths, with a target for every step."""
    generator, items = torch.Generator().manual_seed(0), []
    for steps in (3, 11, 5, 7, 2, 9, 4):
        x, y = ((torch.rand(steps, n, generator=generator) < p).to(torch.uint8) for n, p in ((4, 0.5), (3, 0.3)))
        items.append((x, y if binary else y.sum(1).clamp(max=2).long()))
    return items


def small(scale: float = 1.0) -> Network:
    torch.manual_seed(0)
    made = Network([LIF(4, 20, tau_v=3.0, threshold=0.3)], 3, readout_bias=True).double()
    with torch.no_grad():
        made.readout.weight *= scale
    return made


@pytest.mark.parametrize("task", [ClassPerStep(), BinaryPerStep()], ids=repr)
def test_nll_and_perplexity_are_means_over_all_steps_whatever_the_batches(task: Task):
    batch_size, binary, network = 3, isinstance(task, BinaryPerStep), small()
    data, losses = unequal(binary), []
    for x, y in data:
        o = network(x.unsqueeze(1))[:, 0]
        p = torch.where(y == 1, o.sigmoid(), 1 - o.sigmoid()) if binary else o.softmax(-1)[range(len(y)), y]
        losses += (-p.log()).view(len(y), -1).sum(1).tolist()
    mean = sum(losses) / len(losses)
    scores = evaluate(network, data, task=task, batch_size=batch_size)
    assert scores.measures[task.score] == pytest.approx(mean if binary else math.exp(mean), rel=1e-12)
    assert scores.loss != pytest.approx(mean, rel=1e-4)  # the loss counts samples equally
    row = train(network, data, data, task=task, epochs=1, batch_size=batch_size, lr=1e-12, progress=False).history[0]
    for part in ("train", "validation"):  # the weights hardly moved
        assert row[f"{part}_{task.score}"] == pytest.approx(scores.measures[task.score], rel=1e-6)


def test_a_perplexity_without_bound_is_a_divergence():
    with pytest.raises(FloatingPointError, match=r"the perplexity is inf in an evaluation"):
        evaluate(small(scale=1e5), unequal(binary=False), task=ClassPerStep())


# a state that goes on from batch to batch


class Streams:
    """Long sequences cut into pieces: item i + streams continues item i."""

    def __init__(self, whole: Echo, pieces: int) -> None:
        self.streams = len(whole)
        x, y = (torch.cat(t.chunk(pieces, dim=1)) for t in (whole.x, whole.targets))
        self.items = list(zip(x, y, strict=True))
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int, /) -> tuple[Tensor, Tensor]:
        self.asked.append(i)
        return self.items[i]


def echo_network(layer_delay: Any = 1) -> Network:
    torch.manual_seed(0)
    cells = [ALIFPlus(CHANNELS, 16, tau_v=3.0, adaptation=0.2), LIF(16, 16, threshold=0.2)]
    return Network(cells, 4, readout_bias=True, layer_delay=layer_delay)


@pytest.mark.parametrize("layer_delay", [0, 1])
def test_sequences_in_pieces_score_as_they_do_whole(layer_delay: int):
    network, whole = echo_network(layer_delay).double(), Echo(5, 0, binary=True)
    scores = evaluate(network, whole, task=BinaryPerStep())
    assert min(rate or 0 for rate in scores.firing_rate) > 0.02
    pieces = Streams(whole, 4)
    again = evaluate(network, pieces, task=BinaryPerStep(), batch_size=3)
    assert pieces.asked == list(range(20))
    for name, value in scores.to_dict().items():
        wanted = value if name != "synops" else value / 4  # a piece is a sample
        assert again.to_dict()[name] == pytest.approx(wanted), name
    del pieces.streams
    assert evaluate(network, pieces, task=BinaryPerStep()).loss != pytest.approx(scores.loss, rel=1e-3)
    pieces.streams = 3
    with pytest.raises(ValueError, match="dataset must have equally long streams, got 20 items of 3 streams"):
        evaluate(network, pieces, task=BinaryPerStep())


def test_training_carries_values_and_no_gradient_over_the_cuts():
    """One epoch of plain SGD on two pieces, by hand."""
    sgd: dict[str, Any] = PAPER | {"optimizer": torch.optim.SGD, "lr": 0.5, "epochs": 1, "progress": False}
    data, task = Streams(Echo(5, 0, binary=False), 2), ClassPerStep()
    network, twin = echo_network(), echo_network()
    result = train(network, data, data, task=task, seed=1, **sgd)
    assert data.asked == list(range(10)) * 2  # in order: trained, then scored
    states, losses = None, []
    for start in (0, 5):
        x, targets = collate(data.items[start : start + 5])
        run = twin.run(x, states)
        states = run.states.detach()
        loss = task.loss(run.logits, targets)
        twin.zero_grad()
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter -= 0.5 * parameter.grad  # type: ignore[operator]
    torch.testing.assert_close(weights(network), weights(twin))
    assert result.history[0]["train_loss"] == pytest.approx(sum(losses) / 2)
