"""Tasks: losses and measures by hand, learning, and a state that goes on from batch to batch."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from neurolsc import LIF, ALIFPlus, Network, evaluate, metrics, train
from neurolsc.datasets import collate
from neurolsc.tasks import BinaryPerStep, Classification, ClassPerStep, Task, cross_entropy
from neurolsc.training import PAPER
from tests.patterns import same_bits, weights

LENGTHS = (2, 4, 3)
MASK = torch.arange(4)[:, None] < torch.tensor(LENGTHS)


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """Logits (4, 3, 5), classes per step (4, 3) and binary targets (4, 3, 5)."""
    torch.manual_seed(0)
    return torch.randn(4, 3, 5, dtype=torch.float64), torch.randint(5, (4, 3)), torch.randint(2, (4, 3, 5))


def class_losses() -> list[list[float]]:
    logits, classes, _ = drawn()
    return [[-math.log(logits[t, b].softmax(0)[classes[t, b]]) for t in range(4)] for b in range(3)]


def binary_losses() -> list[list[float]]:
    """-log of the probability of the five targets of a step, each 1 with 1 / (1 + exp(-o))."""
    logits, _, binary = drawn()
    p = 1 / (1 + torch.exp(-logits))
    return [
        [-sum(math.log(p[t, b, c] if binary[t, b, c] else 1 - p[t, b, c]) for c in range(5)) for t in range(4)]
        for b in range(3)
    ]


@pytest.mark.parametrize(
    ("task", "which", "by_hand"), [(ClassPerStep(), 1, class_losses), (BinaryPerStep(), 2, binary_losses)]
)
def test_the_loss_of_targets_per_step_is_the_mean_over_samples_of_the_mean_over_their_own_steps(task, which, by_hand):
    logits, targets = drawn()[0], drawn()[which]
    assert task.loss(logits, targets).item() == pytest.approx(sum(map(sum, by_hand())) / 12)
    own = [sum(steps[:n]) / n for n, steps in zip(LENGTHS, by_hand(), strict=True)]
    assert task.loss(logits, targets, MASK).item() == pytest.approx(sum(own) / 3)
    assert task.loss(logits, targets, MASK).item() != pytest.approx(task.loss(logits, targets).item())


def test_88_keys_under_a_silent_readout_cost_88_bits_a_step():
    torch.manual_seed(0)
    keys = torch.rand(7, 2, 88) < 0.1
    assert BinaryPerStep().loss(torch.zeros(7, 2, 88), keys).item() == pytest.approx(88 * math.log(2))


def test_the_gradients_of_the_losses_are_probability_minus_target():
    logits, classes, binary = drawn()
    logits.requires_grad_()
    wanted = logits.softmax(-1) - torch.nn.functional.one_hot(classes, 5)
    (got,) = torch.autograd.grad(ClassPerStep().loss(logits, classes), logits)
    torch.testing.assert_close(got, wanted.detach() / 12)
    (got,) = torch.autograd.grad(BinaryPerStep().loss(logits, binary), logits)
    torch.testing.assert_close(got, (logits.sigmoid() - binary).detach() / 12)


def test_a_label_for_all_steps_costs_what_it_costs_at_every_step():
    logits, labels = drawn()[0], torch.tensor([4, 0, 2])
    every = labels.expand(4, 3)
    for mask in (None, MASK):
        assert cross_entropy(logits, labels, mask) == ClassPerStep().loss(logits, every, mask)
        assert Classification().loss(logits, labels, mask) == cross_entropy(logits, labels, mask)


def test_measures_per_step_counted_by_hand():
    #                     right            tie: no vote     wrong            right
    logits = torch.tensor([[[0.0, 2.0]], [[1.0, 1.0]], [[3.0, 1.0]], [[3.0, 1.0]]])
    targets = torch.tensor([[1], [0], [1], [0]])
    assert metrics.step_accuracy(logits, targets) == 0.5
    costs = [math.log(1 + math.exp(d)) for d in (-2, 0, 2, -2)]
    perplexity = math.exp(sum(costs) / 4)
    assert ClassPerStep().measures(logits, targets) == {"perplexity": pytest.approx(perplexity), "step_accuracy": 0.5}
    assert metrics.step_accuracy(logits, targets, torch.tensor([[True], [False], [False], [False]])) == 1.0
    # told: 1 and 2, truth: 2 and 3; nothing and nothing; nothing told, one true; 0 is not told
    told = torch.tensor([[[-1.0, 2, 0.1, -1]], [[-1, -1, -1, -1]], [[-1, -2, -1, 0]], [[0, -1, -1, 1]]])
    true = torch.tensor([[[0, 0, 1, 1]], [[0, 0, 0, 0]], [[1, 0, 0, 0]], [[0, 0, 0, 1]]])
    assert metrics.step_overlap(told, true) == pytest.approx((1 / 3 + 1 + 0 + 1) / 4)
    assert BinaryPerStep().measures(told, true.bool())["step_overlap"] == pytest.approx(7 / 12)
    two = told.repeat(1, 2, 1), true.repeat(1, 2, 1)
    mask = torch.tensor([[True, True], [False, True], [False, False], [False, False]])
    assert metrics.step_overlap(*two, mask) == pytest.approx((1 / 3 + (1 / 3 + 1) / 2) / 2)


@pytest.mark.parametrize(
    ("task", "targets", "error", "message"),
    [
        (
            Classification(),
            torch.zeros(4, 3, dtype=torch.long),
            ValueError,
            r"labels must have shape \(3,\), one per sample",
        ),
        (
            ClassPerStep(),
            torch.zeros(3, dtype=torch.long),
            ValueError,
            r"\(4, 3\), one per sample and step, got \(3,\)",
        ),
        (ClassPerStep(), torch.zeros(3, 4, dtype=torch.long), ValueError, r"\(4, 3\).*got \(3, 4\)"),
        (ClassPerStep(), torch.full((4, 3), 5), ValueError, r"targets must lie in 0 \.\.\. 4.*got 5"),
        (ClassPerStep(), torch.full((4, 3), -1), ValueError, r"targets must lie in 0 \.\.\. 4.*got -1"),
        (ClassPerStep(), torch.zeros(4, 3), TypeError, r"targets must be integers, got torch\.float32"),
        (BinaryPerStep(), torch.zeros(4, 3), ValueError, r"shape \(4, 3, 5\), as logits have, got \(4, 3\)"),
        (BinaryPerStep(), torch.full((4, 3, 5), 0.25), ValueError, "targets must be 0 or 1, got 0.25"),
    ],
)
def test_targets_that_do_not_fit_the_task_are_refused(
    task: Task, targets: Tensor, error: type[Exception], message: str
):
    logits = drawn()[0]
    for ask in (task.loss, task.measures):
        with pytest.raises(error, match=message):
            ask(logits, targets)


# learning

CHANNELS, LATE = 4, 2


class Echo:
    """Random spikes on four channels; asked for are those of two steps before, or a class."""

    def __init__(self, size: int, seed: int, *, binary: bool, steps: int = 20) -> None:
        generator = torch.Generator().manual_seed(seed)
        keys = torch.rand(size, steps, CHANNELS, generator=generator) < 0.4
        self.x = keys.to(torch.uint8)
        late = torch.zeros_like(self.x)
        late[:, LATE:] = self.x[:, :-LATE]
        self.targets = late if binary else (late[..., 0] + 2 * late[..., 1]).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int, /) -> tuple[Tensor, Tensor]:
        return self.x[i], self.targets[i]


@pytest.mark.parametrize("task", [ClassPerStep(), BinaryPerStep()], ids=repr)
def test_a_small_alif_network_learns_what_came_two_steps_before(task: Task):
    binary = isinstance(task, BinaryPerStep)
    network = Network([ALIFPlus(CHANNELS, 64, tau_v=2.0, adaptation=0.2)], 4, readout_bias=True)
    sets = [Echo(n, seed, binary=binary) for seed, n in enumerate((200, 40, 100))]
    result = train(network, sets[0], sets[1], task=task, epochs=15, batch_size=20, lr=2e-2, progress=False)
    scores = evaluate(network, sets[2], task=task)
    p = torch.bincount(sets[0].targets.flatten()).double() / sets[0].targets.numel()
    baseline = -(p * p.log()).sum().item() * (CHANNELS if binary else 1)
    assert scores.firing_rate[0] is not None
    assert scores.firing_rate[0] > 0.02
    assert scores.loss < 0.6 * baseline
    accuracy = "step_overlap" if binary else "step_accuracy"
    assert scores.measures[accuracy] > 0.7
    assert result.best[f"validation_{accuracy}"] > 0.7
    all_alike = scores.loss if binary else math.exp(scores.loss)  # samples of equal length: both means are one
    assert scores.measures[task.score] == pytest.approx(all_alike, rel=1e-6)
    assert {"train_loss", f"train_{task.score}", "validation_loss", "firing_rate"} <= result.history[0].keys()


# a state that goes on from batch to batch


class Streams:
    """Long sequences cut into pieces: item i + streams goes on where item i ends."""

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
    assert same_bits(weights(network), weights(twin))
    assert result.history[0]["train_loss"] == pytest.approx(sum(losses) / 2)


@pytest.mark.slow
def test_in_pieces_shorter_than_what_is_asked_for_only_a_carried_state_learns():
    def go(carry: bool) -> float:
        training, validation = (Streams(Echo(50, seed, binary=False, steps=40), 20) for seed in (0, 1))
        if not carry:
            del training.streams, validation.streams
        torch.manual_seed(0)
        network = Network([ALIFPlus(CHANNELS, 64, tau_v=2.0, adaptation=0.2)], 4, readout_bias=True)
        train(network, training, validation, task=ClassPerStep(), epochs=15, batch_size=50, lr=2e-2, progress=False)
        return evaluate(network, validation, task=ClassPerStep(), batch_size=50).measures["step_accuracy"]

    carried, rested = go(True), go(False)
    assert rested < 0.45, "0.36 is the share of the commonest class"
    assert carried > rested + 0.1


def test_streams_of_unequal_length_are_refused():
    data = Streams(Echo(5, 0, binary=True), 2)
    data.streams = 4
    with pytest.raises(ValueError, match="dataset must have equally long streams, got 10 items of 4 streams"):
        evaluate(echo_network(), data, task=BinaryPerStep())


def test_a_training_goes_on_under_its_own_task_only(tmp_path):
    data = Echo(10, 0, binary=False)
    settings: dict[str, Any] = {"epochs": 1, "progress": False, "checkpoint": tmp_path / "c"}
    train(echo_network(), data, data, task=ClassPerStep(), **settings)
    with pytest.raises(ValueError, match=r"of a training with task = ClassPerStep\(\), now it is BinaryPerStep\(\)"):
        train(echo_network(), data, data, task=BinaryPerStep(), **settings)
