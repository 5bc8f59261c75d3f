"""Measures of data sets: exact whatever the batches, whichever way is better."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neurolsc import LIF, Network, evaluate, train
from neurolsc.datasets import JSBChorales, collate
from neurolsc.metrics import SHARE, BatchMetric, MetricSpec
from neurolsc.plots import plot_learning_curves
from neurolsc.tasks import BinaryPerStep, Classification, ClassPerStep, metric_spec

NUMBERS = st.floats(1.0, 1e3)
PARTS = st.lists(st.builds(BatchMetric, NUMBERS, st.integers(1, 9), st.integers(1, 99)), min_size=1)


@given(PARTS)
def test_means_are_weighted_by_samples_or_by_steps(parts: list[BatchMetric]):
    samples, steps = (sum(p[i] for p in parts) for i in (1, 2))
    assert SHARE.mean(parts) == pytest.approx(sum(p.value * p.samples for p in parts) / samples)
    assert MetricSpec(of_steps=True).mean(parts) == pytest.approx(sum(p.value * p.steps for p in parts) / steps)
    product = math.exp(sum(math.log(p.value) * p.steps for p in parts) / steps)
    assert MetricSpec(of_steps=True, geometric=True).mean(parts) == pytest.approx(product)


def test_which_is_better_and_what_reaches_a_bound():
    low, high = MetricSpec(lower_is_better=True, share=False), MetricSpec()
    assert low.better(1.0, 2.0) and high.better(2.0, 1.0)
    assert not low.better(1.0, 1.0) and not high.better(1.0, 1.0)
    assert low.reaches(1.0, 1.0) and low.reaches(0.5, 1.0) and not low.reaches(1.5, 1.0)
    assert high.reaches(1.0, 1.0) and high.reaches(1.5, 1.0) and not high.reaches(0.5, 1.0)
    assert (low.text(8.90312), high.text(0.5)) == ("8.903", "50.0%")


def test_a_measure_that_a_task_does_not_name_is_a_share():
    class Own:
        score = "mine"

    assert metric_spec(Own(), "mine") == SHARE  # type: ignore[arg-type]
    assert metric_spec(Classification(), "mode_accuracy") == SHARE
    assert metric_spec(BinaryPerStep(), "nll").lower_is_better


class Unequal:
    """Samples of three lengths, with a target for every step."""

    def __init__(self, binary: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        self.items = []
        for steps in (3, 11, 5, 7, 2, 9, 4):
            x = (torch.rand(steps, 4, generator=generator) < 0.5).to(torch.uint8)
            y = (torch.rand(steps, 3, generator=generator) < 0.3).to(torch.uint8)
            self.items.append((x, y if binary else y.sum(1).clamp(max=2).long()))

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int, /) -> tuple[torch.Tensor, torch.Tensor]:
        return self.items[i]

    def __getitems__(self, indices: list[int]) -> object:
        from neurolsc.datasets import Batch, collate_padded

        return Batch(*collate_padded([self.items[i] for i in indices]))


def network(scale: float = 1.0) -> Network:
    torch.manual_seed(0)
    made = Network([LIF(4, 20, tau_v=3.0, threshold=0.3)], 3, readout_bias=True).double()
    with torch.no_grad():
        made.readout.weight *= scale
    return made


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_nll_and_perplexity_are_means_over_all_steps_whatever_the_batches(batch_size: int):
    chords, classes, given = Unequal(binary=True), Unequal(binary=False), network()
    outputs = [given(x.unsqueeze(1))[:, 0] for x, _ in chords.items]
    nll = [
        -math.log(p if on else 1 - p)
        for o, (_, y) in zip(outputs, chords.items, strict=True)
        for p, on in zip(o.sigmoid().flatten().tolist(), y.flatten().tolist(), strict=True)
    ]
    steps = sum(len(x) for x, _ in chords.items)
    scores = evaluate(given, chords, task=BinaryPerStep(), batch_size=batch_size)
    assert scores.nll == pytest.approx(sum(nll) / steps, rel=1e-12)
    assert scores.loss != pytest.approx(scores.nll, rel=1e-3)  # the loss takes pieces as equal
    of_words = [
        -o.log_softmax(-1)[t, y[t]].item()
        for o, (_, y) in zip(outputs, classes.items, strict=True)
        for t in range(len(y))
    ]
    scores = evaluate(given, classes, task=ClassPerStep(), batch_size=batch_size)
    assert scores.perplexity == pytest.approx(math.exp(sum(of_words) / steps), rel=1e-12)


def test_training_notes_the_same_mean_over_steps():
    data = Unequal(binary=True)
    for batch_size in (1, 7):
        result = train(
            given := network(),
            data,
            data,
            task=BinaryPerStep(),
            epochs=1,
            batch_size=batch_size,
            lr=1e-12,
            progress=False,
        )
        row = result.history[0]
        whole = evaluate(given, data, task=BinaryPerStep()).nll
        assert row["train_nll"] == pytest.approx(whole, rel=1e-6)  # the weights hardly moved
        assert row["validation_nll"] == pytest.approx(whole, rel=1e-6)
    assert result.score == "nll"
    assert result.measure.lower_is_better
    assert f"{row['validation_nll']:.4g}" in str(result)
    assert "%" not in str(result).split("no vote")[0].split("\n")[2]


def test_a_perplexity_without_bound_is_a_weight_that_diverged():
    with pytest.raises(FloatingPointError, match=r"the perplexity is inf in an evaluation: .* lower lr"):
        evaluate(network(scale=1e5), Unequal(binary=False), task=ClassPerStep())


def test_scores_show_numbers_as_numbers_and_shares_as_shares():
    scores = evaluate(network(), Unequal(binary=True), task=BinaryPerStep())
    shown = str(scores).splitlines()[1].split()
    assert shown[0] == f"{scores.nll:.4g}"
    assert shown[1] == f"{scores.step_overlap:.1%}"
    assert "kinds" not in scores.to_dict()
    with pytest.raises(AttributeError, match=r"there is no score 'perplexity'; there are loss, .*nll"):
        _ = scores.perplexity


def test_the_axis_of_a_number_is_not_that_of_a_share():
    data = Unequal(binary=True)
    result = train(network(), data, data, task=BinaryPerStep(), epochs=2, batch_size=7, progress=False)
    axis = result.plot().axes[1]
    assert axis.get_ylim()[1] > result.best["validation_nll"] > 1
    assert axis.get_title(loc="left") == "Validation nll"
    assert axis.get_yscale() == "log"
    assert plot_learning_curves({"": result.history}, score="step_overlap").axes[1].get_yscale() == "linear"


def test_a_batch_of_chorales_is_what_the_task_wants():
    chorales = JSBChorales.embedded("validation")
    x, y, mask = collate(chorales.__getitems__(range(3)))
    logits = torch.zeros(*y.shape)
    assert BinaryPerStep().measures(logits, y, mask)["nll"] == pytest.approx(88 * math.log(2))
    assert x.shape == y.shape == (*mask.shape, 88)
