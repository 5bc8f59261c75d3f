from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neurolsc import metrics


@st.composite
def small_logits(draw: st.DrawFn) -> Tensor:
    t, b, c = (draw(st.integers(1, 5)) for _ in range(3))
    # few values, so that ties are common
    values = draw(st.lists(st.integers(-1, 1), min_size=t * b * c, max_size=t * b * c))
    return torch.tensor(values, dtype=torch.float64).view(t, b, c)


def vote_by_hand(sample: list[list[float]]) -> tuple[int, int]:
    """Mode and number of steps without vote, counted in plain Python."""
    cast = [step.index(max(step)) for step in sample if step.count(max(step)) == 1]
    counts = Counter(cast)
    most = max(counts.values(), default=0)
    return min((c for c in counts if counts[c] == most), default=-1), len(sample) - len(cast)


@given(small_logits())
def test_mode_vote_counts_what_a_loop_over_steps_counts(logits: Tensor):
    by_hand = [vote_by_hand(logits[:, b].tolist()) for b in range(logits.shape[1])]
    assert metrics.mode_vote(logits).tolist() == [mode for mode, _ in by_hand]
    no_vote = sum(missing for _, missing in by_hand) / (logits.shape[0] * logits.shape[1])
    assert metrics.share_without_vote(logits) == pytest.approx(no_vote, abs=1e-12)


def steps(*votes: int, classes: int = 3) -> Tensor:
    """Logits (T, 1, classes) of one sample whose steps vote so; -1: all logits equal."""
    return torch.stack([torch.eye(classes)[v] if v >= 0 else torch.zeros(classes) for v in votes]).unsqueeze(1)


@pytest.mark.parametrize(
    ("votes", "mode"),
    [
        ((2, 2, 1), 2),
        ((2, 1, 1, 2), 1),  # a tie between modes takes the lowest class
        ((-1, -1, -1, 2), 2),  # steps without a vote do not outvote others
        ((-1, -1), -1),
    ],
)
def test_mode_vote_of_one_sample(votes: tuple[int, ...], mode: int):
    vote = metrics.mode_vote(steps(*votes))
    assert vote.tolist() == [mode]
    assert vote.dtype == torch.int64


def test_a_tie_of_the_largest_logits_votes_for_nobody_but_one_of_others_does():
    assert metrics.mode_vote(torch.tensor([[[1.0, 1.0, 0.0]]])).tolist() == [-1]
    assert metrics.mode_vote(torch.tensor([[[0.0, 0.0, 1.0]]])).tolist() == [2]


def test_a_silent_network_scores_nothing_and_not_the_share_of_class_0():
    logits, labels = torch.zeros(7, 4, 10), torch.zeros(4, dtype=torch.int64)
    assert metrics.mode_accuracy(logits, labels) == 0.0
    assert metrics.mean_accuracy(logits, labels) == 0.0
    assert metrics.share_without_vote(logits) == 1.0


def test_mode_and_mean_accuracy_differ_where_one_step_is_loud():
    logits = torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]], [[9.0, 0.0]]])
    assert metrics.mode_accuracy(logits, torch.tensor([1])) == 1.0
    assert metrics.mean_accuracy(logits, torch.tensor([1])) == 0.0
    assert metrics.mean_accuracy(logits, torch.tensor([0])) == 1.0


def test_accuracies_are_shares_of_samples():
    logits = torch.cat([steps(0, 0), steps(1, 1), steps(2, 2), steps(-1, -1)], dim=1)
    labels = torch.tensor([0, 1, 0, 2])
    assert metrics.mode_accuracy(logits, labels) == 0.5
    assert metrics.mean_accuracy(logits, labels) == 0.5


def test_integer_logits_are_averaged_without_rounding():
    logits = torch.tensor([[[1, 0]], [[0, 0]], [[0, 0]]])
    assert metrics.mean_accuracy(logits, torch.tensor([0])) == 1.0


# 3 steps, 2 samples, 3 neurons: 4 spikes of 18; sample 1 is silent in step 0, both are in step 2
SPIKES = torch.tensor([[[1, 1, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 1]], [[0, 0, 0], [0, 0, 0]]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8, torch.bool])
def test_measures_of_spikes_counted_by_hand(dtype: torch.dtype):
    spikes = SPIKES.to(dtype)
    assert metrics.firing_rate(spikes) == pytest.approx(4 / 18)
    assert metrics.sparsity(spikes) == pytest.approx(14 / 18)
    assert metrics.silent_steps(spikes) == 0.5
    assert metrics.synops(spikes, fan_out=10) == 20.0  # 4 spikes, 10 synapses each, 2 samples


def test_a_firing_rate_is_exact_where_float32_would_not_count_on():
    spikes = torch.zeros(1, 1, 2**24 + 3, dtype=torch.uint8).fill_(1)
    assert metrics.firing_rate(spikes) == 1.0
    assert metrics.synops(spikes, 1) == 2**24 + 3


OF_SPIKES: list[Callable[[Tensor], float]] = [
    metrics.firing_rate,
    metrics.silent_steps,
    metrics.sparsity,
    lambda spikes: metrics.synops(spikes, 3),
]
OF_LOGITS: list[Callable[[Tensor], object]] = [
    metrics.mode_vote,
    metrics.share_without_vote,
    lambda logits: metrics.mode_accuracy(logits, torch.zeros(2, dtype=torch.int64)),
    lambda logits: metrics.mean_accuracy(logits, torch.zeros(2, dtype=torch.int64)),
]


@pytest.mark.parametrize("metric", OF_SPIKES)
@pytest.mark.parametrize("value", [0.5, 2.0, -1.0, float("nan")])
def test_what_is_not_a_spike_is_refused_and_named(metric: Callable[[Tensor], float], value: float):
    spikes = SPIKES.double()
    spikes[1, 0, 2] = value
    with pytest.raises(ValueError, match=f"0 or 1, got {value:g}"):
        metric(spikes)


@pytest.mark.parametrize("metric", OF_SPIKES)
@pytest.mark.parametrize("shape", [(4, 3), (0, 2, 3), (2, 0, 3), (2, 2, 0)])
def test_spikes_of_another_shape_are_refused(metric: Callable[[Tensor], float], shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"\(T, B, N\)"):
        metric(torch.zeros(shape))


@pytest.mark.parametrize("metric", OF_LOGITS)
@pytest.mark.parametrize("shape", [(4, 3), (0, 2, 3), (2, 0, 3), (2, 2, 0)])
def test_logits_of_another_shape_are_refused(metric: Callable[[Tensor], object], shape: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"\(T, B, C\)"):
        metric(torch.zeros(shape))


@pytest.mark.parametrize("metric", OF_LOGITS)
def test_nan_logits_are_refused(metric: Callable[[Tensor], object]):
    logits = torch.zeros(3, 2, 4)
    logits[1, 1, 1] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        metric(logits)


@pytest.mark.parametrize("accuracy", [metrics.mode_accuracy, metrics.mean_accuracy])
@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (torch.tensor([0, 4]), ValueError, r"0 \.\.\. 3.*got 4"),
        (torch.tensor([-1, 0]), ValueError, "got -1"),
        (torch.tensor([0]), ValueError, r"\(2,\).*got \(1,\)"),
        (torch.tensor([[0, 1]]), ValueError, r"got \(1, 2\)"),
        (torch.tensor([0.0, 1.0]), TypeError, "float32"),
        (torch.tensor([True, False]), TypeError, "bool"),
    ],
)
def test_labels_that_do_not_fit_are_refused(
    accuracy: Callable[[Tensor, Tensor], float], labels: Tensor, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        accuracy(torch.zeros(5, 2, 4), labels)


@pytest.mark.parametrize(("fan_out", "error"), [(0, ValueError), (1.5, TypeError)])
def test_synops_refuses_a_fan_out_that_is_no_count(fan_out: int, error: type[Exception]):
    with pytest.raises(error, match="fan_out"):
        metrics.synops(SPIKES, fan_out)


# samples of unequal length


def test_with_a_mask_shares_are_means_over_the_own_steps_of_each_sample():
    torch.manual_seed(0)
    lengths = [3, 7, 5]
    mask = torch.arange(7)[:, None] < torch.tensor(lengths)
    logits = torch.randint(3, (7, 3, 4)).double() * mask[..., None]
    spikes = (torch.rand(7, 3, 5) < 0.2).double() * mask[..., None]
    alone = [(logits[:n, b : b + 1], spikes[:n, b : b + 1]) for b, n in enumerate(lengths)]
    for metric, which in (
        (metrics.share_without_vote, 0),
        (metrics.firing_rate, 1),
        (metrics.silent_steps, 1),
        (metrics.sparsity, 1),
    ):
        each = [metric(pair[which]) for pair in alone]
        assert len(set(each)) > 1
        got = metric((logits, spikes)[which], mask)
        assert got == pytest.approx(sum(each) / 3)
        assert got != pytest.approx(metric((logits, spikes)[which]))
    labels = torch.tensor([0, 1, 2])
    for metric in (metrics.mode_accuracy, metrics.mean_accuracy):  # zeros behind a sample vote for nobody
        each = [metric(one, labels[b : b + 1]) for b, (one, _) in enumerate(alone)]
        assert metric(logits, labels) == pytest.approx(sum(each) / 3)


@pytest.mark.parametrize(
    "mask",
    [torch.ones(4, 2), torch.ones(3, 2, dtype=torch.bool), torch.tensor([[True, False]] * 4)],
    ids=["dtype", "shape", "a sample without a step"],
)
def test_a_mask_that_does_not_fit_is_refused(mask: torch.Tensor):
    with pytest.raises(ValueError, match=r"mask must be bool \(4, 2\) with a step for every sample"):
        metrics.silent_steps(torch.zeros(4, 2, 3), mask)
