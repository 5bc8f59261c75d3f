"""Scores of a network: means over samples, however they are cut into batches."""

import pickle
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, Network, evaluate, metrics, train
from neurolsc.datasets import Batch, collate
from neurolsc.tasks import cross_entropy
from tests.patterns import CLASSES, Leak, N, Patterns, same_bits, small_network, weights


@pytest.mark.parametrize("batch_size", [4, 100])
def test_scores_are_those_of_all_samples_at_once_however_they_are_cut(batch_size: int):
    data, network = Patterns(11), small_network(readout_bias=True).double()
    x, labels = collate([data[i] for i in range(11)])
    with torch.no_grad():
        run = network.run(x)
    assert all(layer.any() for layer in run.spikes)

    scores = evaluate(network, data, batch_size=batch_size)

    assert scores.loss == pytest.approx(cross_entropy(run.logits, labels).item(), rel=1e-12)
    assert scores.mode_accuracy == pytest.approx(metrics.mode_accuracy(run.logits, labels))
    assert scores.mean_accuracy == pytest.approx(metrics.mean_accuracy(run.logits, labels))
    assert scores.share_without_vote == pytest.approx(metrics.share_without_vote(run.logits))
    assert scores.firing_rate == pytest.approx([metrics.firing_rate(layer) for layer in run.spikes])
    assert scores.silent_steps == pytest.approx(metrics.silent_steps(run.spikes[-1]))
    # input -> 8; each of 8 -> its own 8 and the next 8; each of 8 -> its own 8 and 3 readouts
    spikes = [int(layer.sum()) for layer in (x, *run.spikes)]
    synops = (8 * spikes[0] + 16 * spikes[1] + 11 * spikes[2]) / 11
    assert scores.synops == pytest.approx(synops)


@pytest.mark.parametrize(
    ("readout", "synapses"),
    [
        (nn.Sequential(nn.Identity(), nn.Linear(8, CLASSES)), CLASSES),
        (nn.Identity(), 0),
        (nn.Sequential(nn.Linear(8, 4), nn.Linear(4, CLASSES)), None),
    ],
)
def test_synaptic_operations_count_the_synapses_of_the_readout(readout: nn.Module, synapses: int | None):
    network, data = Network([LIF(N, 8, threshold=0.1)], readout), Patterns(5)
    x, _ = collate([data[i] for i in range(5)])
    with torch.no_grad():
        spikes = int(network.run(x).spikes[0].sum())
    scores = evaluate(network, data)
    assert spikes > 0
    if synapses is None:
        assert scores.synops is None
    else:
        assert scores.synops == pytest.approx((8 * int(x.sum()) + (8 + synapses) * spikes) / 5)


def test_a_layer_that_does_not_spike_has_no_firing_rate_but_its_network_has_a_score():
    scores = evaluate(Network([LIF(N, 8, threshold=0.2), Leak(8, 4)], CLASSES), Patterns(5), batch_size=2)
    assert scores.firing_rate[0] is not None
    assert scores.firing_rate[0] > 0
    assert (scores.firing_rate[1], scores.silent_steps, scores.synops) == (None,) * 3


def test_evaluation_leaves_network_mode_and_random_numbers_alone():
    network = Network([Leak(N, 8, dropout=0.5)], CLASSES).train()
    rng = torch.random.get_rng_state()
    assert evaluate(network, Patterns(9)) == evaluate(network, Patterns(9))  # no dropout
    assert network.training and torch.equal(rng, torch.random.get_rng_state())


@pytest.mark.parametrize(
    ("network", "data", "error", "message"),
    [
        (small_network(), torch.zeros(3, 12, N), TypeError, r"dataset must be a data set .*got Tensor"),
        (Network([LIF(N, 4)], 2), Patterns(3), ValueError, r"0 \.\.\. 1.*got 2"),
        (Network([LIF(7, 4)], CLASSES), Patterns(3), ValueError, r"\(T, B, 7\)"),
    ],
)
def test_networks_and_data_that_do_not_fit_are_refused(network: Any, data: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        evaluate(network, data)


def test_a_measure_of_the_task_is_an_attribute_and_no_other_name_is():
    scores = evaluate(small_network(), Patterns(5))
    assert scores.mode_accuracy == scores.measures["mode_accuracy"] == scores.to_dict()["mode_accuracy"]
    assert list(scores.to_dict())[:4] == ["loss", "mode_accuracy", "mean_accuracy", "share_without_vote"]
    with pytest.raises(AttributeError, match=r"no score 'perplexity'; the measures are mode_accuracy, mean_accuracy"):
        _ = scores.perplexity
    assert pickle.loads(pickle.dumps(scores)) == scores


# ---- samples of unequal length: the padding has no effect


LENGTHS = (9, 4, 12, 11, 7, 6, 12)


class Unequal:
    """Patterns cut off at unequal lengths, with whatever padding."""

    def __init__(self, n: int = len(LENGTHS), padding: int = 0) -> None:
        whole = Patterns(n)
        self.items = [(whole[i][0][: LENGTHS[i]], whole[i][1]) for i in range(n)]
        self.padding = padding

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.items[i]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        x, labels, *masks = collate([self.items[i] for i in indices])
        mask = masks[0] if masks else torch.ones(x.shape[:2], dtype=torch.bool)
        more = torch.ones(self.padding, *x.shape[1:], dtype=x.dtype)  # even spikes there must not matter
        return Batch(
            torch.cat([x, more]), labels, torch.cat([mask, torch.zeros(self.padding, len(labels), dtype=torch.bool)])
        )


@pytest.mark.parametrize(("batch_size", "padding"), [(3, 0), (7, 5)])
def test_scores_are_those_of_every_sample_alone_at_its_own_length(batch_size: int, padding: int):
    network = small_network(readout_bias=True).double()
    scores = evaluate(network, Unequal(padding=padding), batch_size=batch_size)

    alone = [evaluate(network, [item]) for item in Unequal().items]
    assert any(one.firing_rate[-1] for one in alone)
    for name in ("loss", "mode_accuracy", "mean_accuracy", "share_without_vote", "silent_steps"):
        assert getattr(scores, name) == pytest.approx(sum(getattr(one, name) for one in alone) / 7), name
    for layer in (0, 1):
        assert scores.firing_rate[layer] == pytest.approx(sum(one.firing_rate[layer] for one in alone) / 7)  # type: ignore[misc]
    if not padding:  # synaptic operations count what the input sends, wherever it stands
        assert scores.synops == pytest.approx(sum(one.synops for one in alone) / 7)  # type: ignore[misc]


def test_training_does_not_see_the_padding():
    ends = []
    for padding in (0, 5):
        network = small_network().double()
        result = train(network, Unequal(padding=padding), Unequal(), epochs=2, batch_size=3, lr=0.01, progress=False)
        assert result.history[0]["firing_rate"][0] > 0
        ends.append(weights(network))
    torch.testing.assert_close(*ends)
    assert not same_bits(ends[0], weights(small_network().double()))
