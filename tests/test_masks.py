"""Samples of unequal length, through scores and training: the padding has no effect."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from neurolsc import LIF, Network, evaluate, train
from neurolsc.datasets import Batch, collate
from tests.patterns import N, Patterns, same_bits, small_network, weights

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


class Counted(LIF):
    """Notes over how many steps it ran."""

    def run(self, x: Tensor, state: Any, **more: Any) -> Any:
        self.ran = len(x)
        return super().run(x, state, **more)


def test_a_network_runs_no_further_than_its_longest_sample():
    network, (x, _, mask) = Network([Counted(N, 8, threshold=0.2)], 3), collate(Unequal().items)
    more = torch.zeros(20, x.shape[1], dtype=torch.bool)
    run = network.run(torch.cat([x, torch.ones(20, *x.shape[1:], dtype=x.dtype)]), mask=torch.cat([mask, more]))
    assert network.cells[0].ran == max(LENGTHS)
    assert len(run.logits) == len(run.spikes[0]) == max(LENGTHS) + 20
    assert run.spikes[0].any()
    assert not run.spikes[0][max(LENGTHS) :].any()
