"""Values to store and recall, and the task that asks for them at the end."""

import pytest
import torch

from neurolsc.datasets import StoreRecall, collate
from neurolsc.tasks import Classification, cross_entropy


@pytest.mark.parametrize("delay", [0, 100])
def test_groups_fire_when_they_are_on(delay: int):
    data = StoreRecall("train", delay=delay)
    x, labels = collate([data[i] for i in range(len(data))])
    assert x.shape == (40 + delay, 2000, 60) == (data.steps, len(data), data.n_in)
    rates = x.double().view(-1, 20, 2000, 6, 10).mean((1, 4))  # period, sample, group
    store, recall = rates[..., 4].mean(1), rates[..., 5].mean(1)
    assert store[0] == pytest.approx(0.2, abs=0.01) and store[1:].amax() < 0.02
    assert recall[-1] == pytest.approx(0.2, abs=0.01) and recall[:-1].amax() < 0.02
    shown = rates[..., :4]
    assert torch.equal(shown[0].argmax(1), labels)
    assert shown[:-1].amax(2).mean() == pytest.approx(0.2, abs=0.01)
    assert shown[:-1].sum(2).mean() == pytest.approx(0.23, abs=0.01)
    assert shown[-1].amax() < 0.1  # nothing but noise
    assert labels.bincount(minlength=4).min() > 400


def test_what_comes_between_tells_nothing_of_what_was_stored():
    data = StoreRecall("train")
    x, labels = collate([data[i] for i in range(len(data))])
    later = x[20:].double().view(6, 20, 2000, 6, 10).mean((1, 4))[..., :4].permute(1, 0, 2).flatten(1)
    later, wanted = later - later.mean(0), torch.nn.functional.one_hot(labels, 4).double()
    explained = later @ torch.linalg.lstsq(later, wanted - wanted.mean(0)).solution
    assert explained.var() / wanted.var() < 0.03


def test_splits_and_seeds_differ_and_repeat():
    sets = {
        (split, seed): StoreRecall(split, seed=seed) for split in ("train", "validation", "test") for seed in (0, 1)
    }
    assert [len(sets[split, 0]) for split in ("train", "validation", "test")] == [2000, 500, 1000]
    firsts = [torch.stack([data[i][0] for i in range(50)]) for data in sets.values()]
    assert not any(torch.equal(a, b) for i, a in enumerate(firsts) for b in firsts[:i])
    again = StoreRecall("test", seed=1)
    assert torch.equal(again[7][0], sets["test", 1][7][0]) and again[7][1] == sets["test", 1][7][1]
    batch = again.__getitems__([3, 7])
    assert torch.equal(batch.x[:, 1], again[7][0]) and batch.labels[1] == again[7][1]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"delay": 30}, "delay must be a multiple of the period of 20 steps, got 30"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused(given: dict, said: str):
    with pytest.raises(ValueError, match=said):
        StoreRecall("test", **given)
    with pytest.raises(ValueError, match="split must be one of"):
        StoreRecall("all")


def test_the_end_of_each_sample_is_asked_where_lengths_differ():
    lengths, labels = torch.tensor([9, 4, 2]), torch.tensor([0, 1, 2])
    mask = torch.arange(9).unsqueeze(1) < lengths
    logits = torch.randn(9, 3, 4) * mask.unsqueeze(-1)
    task = Classification(last=3)
    alone = [(logits[max(n - 3, 0) : n, i : i + 1], labels[i : i + 1]) for i, n in enumerate(lengths.tolist())]
    assert task.loss(logits, labels, mask).item() == pytest.approx(sum(cross_entropy(*one).item() for one in alone) / 3)
    found = task.measures(logits, labels, mask)
    for name in found:
        assert found[name] == pytest.approx(sum(Classification().measures(*one)[name] for one in alone) / 3)
