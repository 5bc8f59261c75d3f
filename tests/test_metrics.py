"""Metrics, counted by hand."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neurolsc import metrics
from neurolsc.metrics import SHARE, BatchMetric, MetricSpec


@st.composite
def small_logits(draw: st.DrawFn) -> Tensor:
    t, b, c = (draw(st.integers(1, 5)) for _ in range(3))
    # few values, so that ties are common
    values = draw(st.lists(st.integers(-1, 1), min_size=t * b * c, max_size=t * b * c))
    return torch.tensor(values, dtype=torch.float64).view(t, b, c)


@given(small_logits())
def test_mode_vote_counts_what_a_loop_over_steps_counts(logits: Tensor):
    modes, missing = [], 0
    for sample in logits.transpose(0, 1).tolist():
        votes = [step.index(max(step)) for step in sample if step.count(max(step)) == 1]
        counts = Counter(votes)
        modes.append(min((c for c in counts if counts[c] == max(counts.values())), default=-1))
        missing += len(sample) - len(votes)
    assert metrics.mode_vote(logits).tolist() == modes
    assert metrics.share_without_vote(logits) == pytest.approx(missing / logits[..., 0].numel(), abs=1e-12)


def steps(*votes: int) -> Tensor:
    """Logits (T, 1, 3) of one sample with these votes; -1: all logits equal."""
    return torch.stack([torch.eye(3)[v] if v >= 0 else torch.zeros(3) for v in votes]).unsqueeze(1)


def test_accuracies_are_shares_of_samples():
    logits, labels = torch.cat([steps(0, 0), steps(1, 1), steps(2, 2), steps(-1, -1)], 1), torch.tensor([0, 1, 0, 2])
    assert metrics.mode_accuracy(logits, labels) == metrics.mean_accuracy(logits, labels) == 0.5
    loud = torch.tensor([[[0, 1]], [[0, 1]], [[9, 0]]])  # integers are averaged without rounding
    assert metrics.mode_accuracy(loud, torch.tensor([1])) == metrics.mean_accuracy(loud, torch.tensor([0])) == 1.0


def test_a_silent_network_scores_0_and_not_the_share_of_class_0():
    logits, labels = torch.zeros(7, 4, 10), torch.zeros(4, dtype=torch.int64)
    assert metrics.mode_accuracy(logits, labels) == metrics.mean_accuracy(logits, labels) == 0.0
    assert metrics.share_without_vote(logits) == 1.0


def test_accuracy_and_perplexity_of_steps():
    #                     right            tie: no vote     wrong            right
    logits = torch.tensor([[[0.0, 2.0]], [[1.0, 1.0]], [[3.0, 1.0]], [[3.0, 1.0]]])
    targets = torch.tensor([[1], [0], [1], [0]])
    assert metrics.step_accuracy(logits, targets) == 0.5
    assert metrics.step_accuracy(logits, targets, torch.tensor([[True], [False], [False], [False]])) == 1.0
    costs = [math.log(1 + math.exp(d)) for d in (-2, 0, 2, -2)]
    assert metrics.perplexity(logits, targets) == pytest.approx(math.exp(sum(costs) / 4))


def test_overlap_of_predictions_and_targets():
    # predicted 1 and 2, true 2 and 3; none and none; none predicted, one true; 0 predicts nothing
    logits = torch.tensor([[[-1.0, 2, 0.1, -1]], [[-1, -1, -1, -1]], [[-1, -2, -1, 0]], [[0, -1, -1, 1]]])
    true = torch.tensor([[[0, 0, 1, 1]], [[0, 0, 0, 0]], [[1, 0, 0, 0]], [[0, 0, 0, 1]]])
    assert metrics.step_overlap(logits, true) == pytest.approx((1 / 3 + 1 + 0 + 1) / 4)
    mask = torch.tensor([[True, True], [False, True], [False, False], [False, False]])
    overlap = metrics.step_overlap(logits.repeat(1, 2, 1), true.repeat(1, 2, 1), mask)
    assert overlap == pytest.approx((1 / 3 + (1 / 3 + 1) / 2) / 2)


# 3 steps, 2 samples, 3 neurons: 4 spikes of 18; sample 1 is silent in step 0, both are in step 2
SPIKES = torch.tensor([[[1, 1, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 1]], [[0, 0, 0], [0, 0, 0]]])


def test_measures_of_spikes():
    spikes = SPIKES.bool()
    assert metrics.firing_rate(spikes) == pytest.approx(4 / 18)
    assert metrics.silent_steps(spikes) == 0.5
    assert metrics.synops(spikes, fan_out=10) == 20.0  # 4 spikes, 10 synapses each, 2 samples
    many = torch.ones(1, 1, 2**24 + 3, dtype=torch.uint8)  # float32 would lose count
    assert metrics.synops(many, 1) == 2**24 + 3


def test_with_a_mask_shares_are_means_over_the_own_steps_of_each_sample():
    lengths, labels = [3, 7, 5], torch.tensor([0, 1, 2])
    mask = torch.arange(7)[:, None] < torch.tensor(lengths)
    logits = torch.randint(3, (7, 3, 4)).double() * mask[..., None]
    spikes = (torch.rand(7, 3, 5) < 0.2).double() * mask[..., None]
    for metric, x in (
        (metrics.share_without_vote, logits),
        (metrics.firing_rate, spikes),
        (metrics.silent_steps, spikes),
    ):
        each = [metric(x[:n, b : b + 1]) for b, n in enumerate(lengths)]
        assert len(set(each)) > 1
        assert metric(x, mask) == pytest.approx(sum(each) / 3)
        assert metric(x, mask) != pytest.approx(metric(x))
    for metric in (metrics.mode_accuracy, metrics.mean_accuracy):  # zeros behind a sample do not vote
        each = [metric(logits[:n, b : b + 1], labels[b : b + 1]) for b, n in enumerate(lengths)]
        assert metric(logits, labels) == pytest.approx(sum(each) / 3)


LABELS = torch.zeros(2, dtype=torch.int64)
OF_SPIKES: list[Callable[[Tensor], Any]] = [metrics.firing_rate, metrics.silent_steps, lambda z: metrics.synops(z, 3)]
OF_LOGITS: list[Callable[[Tensor], Any]] = [
    metrics.mode_vote,
    metrics.share_without_vote,
    lambda logits: metrics.mode_accuracy(logits, LABELS),
    lambda logits: metrics.mean_accuracy(logits, LABELS),
]


@pytest.mark.parametrize("metric", [*OF_SPIKES, *OF_LOGITS])
def test_other_shapes_are_refused(metric: Callable[[Tensor], Any]):
    with pytest.raises(ValueError, match=r"\(T, B, [NC]\)"):
        metric(torch.zeros(0, 2, 3))


@pytest.mark.parametrize("value", [0.5, math.nan])
def test_spikes_that_are_not_binary_and_logits_with_nan_are_refused(value: float):
    spikes = SPIKES.double()
    spikes[1, 0, 2] = value
    for metric in OF_SPIKES:
        with pytest.raises(ValueError, match=f"0 or 1, got {value:g}"):
            metric(spikes)
    for metric in OF_LOGITS if math.isnan(value) else ():
        with pytest.raises(ValueError, match="NaN"):
            metric(spikes)


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.tensor([0, 4]), ValueError, r"0 \.\.\. 3.*got 4"),
        (torch.tensor([[0, 1]]), ValueError, r"\(2,\).*got \(1, 2\)"),
        (torch.zeros(5, dtype=torch.long), ValueError, r"got \(5,\); x looks batch first: give x\.transpose"),
        (torch.tensor([0.0, 1.0]), TypeError, "float32"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: Tensor, error: type[Exception], message: str):
    for accuracy in (metrics.mode_accuracy, metrics.mean_accuracy):
        with pytest.raises(error, match=message):
            accuracy(torch.zeros(5, 2, 4), labels)


@given(st.lists(st.builds(BatchMetric, st.floats(1.0, 1e3), st.integers(1, 9), st.integers(1, 99)), min_size=1))
def test_means_of_batches_are_weighted_by_samples_or_by_steps(batches: list[BatchMetric]):
    samples, total = sum(b.samples for b in batches), sum(b.steps for b in batches)
    assert SHARE.mean(batches) == pytest.approx(sum(b.value * b.samples for b in batches) / samples)
    assert MetricSpec(of_steps=True).mean(batches) == pytest.approx(sum(b.value * b.steps for b in batches) / total)
    product = math.exp(sum(math.log(b.value) * b.steps for b in batches) / total)
    assert MetricSpec(of_steps=True, geometric=True).mean(batches) == pytest.approx(product)


def test_which_value_is_better():
    low, high = MetricSpec(lower_is_better=True, share=False), MetricSpec()
    assert low.better(1.0, 2.0) and high.better(2.0, 1.0)
    assert not low.better(1.0, 1.0) and not high.better(1.0, 1.0)
    assert (low.text(8.90312), high.text(0.5)) == ("8.903", "50.0%")
