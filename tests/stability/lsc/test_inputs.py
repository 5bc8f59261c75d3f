"""Inputs: checked, counted, again and again; fresh samples come from the batches that follow."""

import pytest
import torch
from torch import Tensor

from neurolsc.stability.lsc.inputs import Fresh, InputStream


def numbered(count: int, *, samples: int = 3, steps: int = 2, first: int = 0) -> list[Tensor]:
    """Batches whose samples are numbered throughout."""
    numbers = torch.arange(first, first + count * samples).float().view(count, 1, samples, 1)
    return list(numbers.expand(count, steps, samples, 4))


def numbers(x: Tensor) -> list[int]:
    return (x.to_dense() if x.is_sparse else x)[0, :, 0].int().tolist()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_inputs_come_again_and_again_and_are_counted():
    inputs = InputStream([(x, torch.zeros(3)) for x in numbered(2)])
    assert inputs.steps == 2
    assert [numbers(inputs.take())[0] for _ in range(5)] == [0, 3, 0, 3, 0]
    assert inputs.taken == 5
    again = InputStream(numbered(2))
    again.skip(5)
    assert torch.equal(again.take(), inputs.take())


def test_of_a_batch_with_a_mask_no_step_is_padding():
    lengths = torch.tensor([2, 6, 4, 3, 5])
    mask = torch.arange(6)[:, None] < lengths
    x = (torch.arange(5.0) + 1).expand(6, 5).unsqueeze(2) * mask.unsqueeze(2)
    taken = InputStream([(x, torch.zeros(5), mask)]).take()
    assert taken[:, :, 0].tolist() == [[2, 3, 5]] * 4
    mask[1, 1] = False  # what comes after a gap is not looked at
    assert InputStream([[x.to_sparse(), torch.zeros(5), mask]]).take().to_dense()[:, :, 0].tolist() == [[3, 4, 5]] * 3


@pytest.mark.parametrize(
    ("mask", "told"),
    [
        (torch.ones(6, 4, dtype=torch.bool), r"bool \(6, 5\), as x of batch 1, got torch.bool \(6, 4\)"),
        (torch.ones(6, 5), r"bool \(6, 5\), as x of batch 1, got torch.float32 \(6, 5\)"),
        ([6] * 5, r"bool \(6, 5\), as x of batch 1, got list"),
        (torch.zeros(6, 5, dtype=torch.bool), r"the mask of batch 1 leaves no sample a first step"),
    ],
    ids=["shape", "dtype", "list", "empty"],
)
def test_a_mask_that_is_none_is_refused(mask, told):
    with pytest.raises(ValueError, match=told):
        InputStream([(torch.ones(6, 5, 2), torch.zeros(5), mask)])


@pytest.mark.parametrize("taken", [0, 1, 2, 3])
@pytest.mark.parametrize("rounds", [0, 1])
def test_those_that_follow_come_once_each(taken, rounds):
    inputs = InputStream(numbered(3))
    inputs.skip(taken + 3 * rounds)
    follow = [numbers(x)[0] for x in inputs.following()]
    expected = [0, 3, 6]
    assert follow == expected[taken % 3 :] + expected[: taken % 3]
    assert numbers(inputs.take())[0] == expected[taken % 3], "and the stream goes on after them"
    assert inputs.taken == taken + 3 * rounds + 4


def test_an_iterator_ends():
    inputs = InputStream(iter(numbered(2)))
    assert numbers(inputs.take()) == [0, 1, 2]
    assert [numbers(x) for x in inputs.following()] == [[3, 4, 5]]
    with pytest.raises(ValueError, match=r"more than the 2 batches it got .an iterator can be used only once"):
        inputs.take()


def test_fresh_samples_are_those_of_the_batches_that_follow_each_once():
    inputs = InputStream(numbered(3))
    last = inputs.take()
    fresh = Fresh(inputs, last, generator())
    few = fresh.upto(2)
    assert set(numbers(few)) < {3, 4, 5}
    assert inputs.taken == 2, "no batch more than is needed"
    more = fresh.upto(5)
    assert numbers(more)[:2] == numbers(few)
    assert set(numbers(more)) < {3, 4, 5, 6, 7, 8}
    assert sorted(numbers(fresh.upto(100))) == list(range(9))
    assert numbers(fresh.upto(2)) == numbers(few)


def test_fresh_samples_are_the_last_ones_where_nothing_follows():
    inputs = InputStream(iter(numbered(1)))
    last = inputs.take()
    assert sorted(numbers(Fresh(inputs, last, generator()).upto(9))) == [0, 1, 2]


def test_inputs_of_another_length_are_passed_over():
    inputs = InputStream([*numbered(1), *numbered(1, steps=5, first=3), *numbered(1, first=6)])
    fresh = Fresh(inputs, inputs.take(), generator())
    assert sorted(numbers(fresh.upto(9))) == [3, 4, 5], "the first that follows sets the length"


def test_fresh_samples_of_sparse_inputs():
    dense, sparse = (InputStream([convert(x) for x in numbered(3)]) for convert in (Tensor.clone, Tensor.to_sparse))
    found = [numbers(Fresh(inputs, inputs.take(), generator()).upto(5)) for inputs in (dense, sparse)]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("batches", "kind", "message"),
    [
        (torch.zeros(5, 3, 4), TypeError, r"one tensor \(5, 3, 4\): give \[x\]"),
        (3, TypeError, "must be an iterable of inputs .* got int"),
        ({"x": 1}, TypeError, "got str as batch 1"),
        ([[]], TypeError, "got list as batch 1"),
        ([([1.0], 2)], TypeError, "got tuple of list as batch 1"),
        ([torch.zeros(5, 3)], ValueError, r"inputs must be \(T, B, n_in\), got \(5, 3\) in batch 1"),
        ([(torch.zeros(3, 5, 4), torch.zeros(3))], ValueError, r"3 labels and x \(3, 5, 4\), which is batch first"),
        ([], ValueError, "at least one batch of inputs, got none"),
        (iter([]), ValueError, "at least one batch of inputs, got none"),
    ],
    ids=["tensor", "number", "dict", "list", "tuple", "flat", "batch first", "nothing", "an empty iterator"],
)
def test_what_no_batches_are_is_refused_at_once(batches, kind, message):
    with pytest.raises(kind, match=message):
        InputStream(batches)


@pytest.mark.parametrize("labels", [torch.zeros(3), torch.zeros(5, 3), [1, 2, 3]], ids=["(B,)", "(T, B)", "list"])
def test_batches_that_are_time_first_or_cannot_be_told_pass(labels):
    assert InputStream([(torch.zeros(5, 3, 4), labels)]).take().shape == (5, 3, 4)
    assert InputStream([(torch.zeros(3, 3, 4), labels)]).take().shape == (3, 3, 4)
