import pytest
import torch
from torch.testing import assert_close

from neurolsc.datasets import Batch, collate, collate_padded


def items(n, shape=(5, 3), dtype=torch.uint8):
    random = torch.Generator().manual_seed(0)
    return [(torch.randint(2, shape, generator=random).to(dtype), 10 - i) for i in range(n)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
def test_the_batch_stands_on_the_second_axis_and_keeps_values_and_dtype(dtype):
    batch = items(4, dtype=dtype)
    x, labels = collate(batch)
    assert x.shape == (5, 4, 3)
    for i, (item, _) in enumerate(batch):
        assert_close(x[:, i], item)
    assert_close(labels, torch.tensor([10, 9, 8, 7]))


def test_labels_may_be_tensors_of_one_number():
    _, labels = collate([(torch.zeros(2, 3), torch.tensor(4)), (torch.zeros(2, 3), torch.tensor(1))])  # type: ignore
    assert_close(labels, torch.tensor([4, 1]))


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="at least one item"):
        collate([])


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (torch.zeros(6, 3, dtype=torch.uint8), r"got \(6, 3\) torch\.uint8 in item 2 and \(5, 3\)"),
        (torch.zeros(5, 4, dtype=torch.uint8), r"got \(5, 4\) torch\.uint8 in item 2 and \(5, 3\)"),
        (torch.zeros(5, 3), r"got \(5, 3\) torch\.float32 in item 2 and \(5, 3\) torch\.uint8 in item 0"),
    ],
)
def test_an_item_unlike_the_first_is_named(odd, message):
    with pytest.raises(ValueError, match=message):
        collate([*items(2), (odd, 0), *items(1)])


def test_an_item_without_a_time_axis_is_refused():
    with pytest.raises(ValueError, match=r"shape \(T, N\), got \(3,\) in item 0"):
        collate(items(2, shape=(3,)))


@pytest.mark.parametrize("label", [1.5, 2.0, torch.tensor(1.5), 1j, "3", None], ids=repr)
@pytest.mark.parametrize("stack", [collate, collate_padded])
def test_a_label_that_is_no_integer_is_refused_with_its_place(stack, label):
    with pytest.raises(TypeError, match=r"a label must be an integer, got .* in item 1"):
        stack([(torch.zeros(2, 3), 0), (torch.zeros(2, 3), label)])


def test_items_that_are_no_tensors_are_refused():
    with pytest.raises(TypeError, match=r"a tensor x .*got a list"):
        collate([([[0.0, 1.0]], 0)])


# targets for every step


@pytest.mark.parametrize("shape", [(), (88,)])
def test_targets_per_step_stand_beside_their_steps(shape):
    torch.manual_seed(0)
    targets = [torch.randint(5, (4, *shape)) for _ in range(3)]
    x, together = collate([(torch.full((4, 2), float(i)), t) for i, t in enumerate(targets)])
    assert x.shape == (4, 3, 2)
    assert together.shape == (4, 3, *shape)
    assert together.dtype == torch.int64
    for i, one in enumerate(targets):
        assert torch.equal(together[:, i], one)
    for i, (piece, target) in enumerate(Batch(x, together)):
        assert torch.equal(piece, torch.full((4, 2), float(i)))
        assert torch.equal(target, targets[i])


def test_targets_per_step_of_unequal_items_are_padded_like_their_inputs():
    parts = [(torch.ones(n, 2), torch.arange(n) + 1) for n in (3, 1)]
    x, targets, mask = collate_padded(parts)
    assert targets.tolist() == [[1, 1], [2, 0], [3, 0]]
    assert mask.tolist() == [[True, True], [True, False], [True, False]]
    for (piece, target), (own, wanted) in zip(Batch(x, targets, mask), parts, strict=True):
        assert torch.equal(piece, own)
        assert torch.equal(target, wanted)


@pytest.mark.parametrize("odd", [torch.zeros(4).long(), torch.zeros(5), 3])
def test_targets_unlike_their_input_or_the_first_are_refused(odd):
    with pytest.raises(ValueError, match=r"one for each of the 5 steps, torch\.int64 as in item 0, got .* in item 1"):
        collate([(torch.zeros(5, 2), torch.zeros(5).long()), (torch.zeros(5, 2), odd)])


@pytest.mark.parametrize(
    ("x", "labels", "hint"),
    [
        (torch.zeros(4, 9, 6), torch.zeros(4), True),
        (torch.zeros(4, 9, 6), torch.zeros(5), False),
        (torch.zeros(4, 9), torch.zeros(4), False),
        (torch.zeros(9, 4, 6), torch.zeros(9, 5), False),
    ],
)
def test_a_batch_whose_axes_do_not_fit_is_refused_and_a_batch_first_one_told(x, labels, hint):
    with pytest.raises(ValueError, match=r"x \(T, B, N\) with labels \(B,\)") as told:
        Batch(x, labels)
    assert ("batch-first: x.transpose(0, 1)" in str(told.value)) is hint


def batch(mask: bool = True) -> tuple[Batch, torch.Tensor, torch.Tensor | None]:
    """Three items side by side, of 5, 2 and 4 steps where they have a mask."""
    x = torch.arange(5 * 3 * 2).view(5, 3, 2)
    lasts = torch.arange(5)[:, None] < torch.tensor([5, 2, 4]) if mask else None
    return Batch(x, torch.tensor([7, 8, 9]), lasts), x, lasts


@pytest.mark.parametrize("mask", [True, False])
def test_a_batch_is_a_list_of_its_items_without_their_padding(mask):
    made, x, _ = batch(mask)
    assert len(made) == 3
    wanted = [(x[:steps, i], 7 + i) for i, steps in enumerate([5, 2, 4] if mask else [5, 5, 5])]
    for (item, label), (theirs, number) in zip(made, wanted, strict=True):
        assert torch.equal(item, theirs)
        assert label == number and type(label) is int
    assert torch.equal(made[-1][0], wanted[-1][0])
    part = made[1:]
    assert [label for _, label in part] == [8, 9]
    assert all(torch.equal(item, theirs) for (item, _), (theirs, _) in zip(part, wanted[1:], strict=True))
    with pytest.raises(IndexError):
        made[3]


@pytest.mark.parametrize("mask", [True, False])
def test_a_batch_is_taken_apart_without_a_copy(mask):
    made, x, lasts = batch(mask)
    parts = collate(made)
    assert parts[0] is x and parts[1] is made.labels
    assert len(parts) == 2 + mask and (not mask or parts[2] is lasts)
    padded = collate_padded(made)
    assert padded[0] is x and padded[1] is made.labels
    assert padded[2].dtype == torch.bool
    assert torch.equal(padded[2], lasts if lasts is not None else torch.ones(5, 3, dtype=torch.bool))


def test_shorter_items_stand_before_zeros_and_the_mask_says_where_they_end():
    given = [(torch.full((steps, 2), float(i + 1)), i) for i, steps in enumerate([2, 4, 1])]
    x, labels, mask = collate_padded(given)
    assert x.shape == (4, 3, 2) and x.dtype == torch.float32
    assert mask.dtype == torch.bool
    assert mask.T.tolist() == [[True, True, False, False], [True] * 4, [True, False, False, False]]
    assert torch.equal(x, mask[:, :, None] * torch.tensor([1.0, 2.0, 3.0])[:, None].expand(4, 3, 2))
    assert labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "at least one item"),
        ([(torch.zeros(3), 0)], r"shape \(T, N\), got \(3,\) in item 0"),
        ([(torch.zeros(2, 3), 0), (torch.zeros(4, 5), 1)], r"got \(4, 5\) torch\.float32 in item 1 and \(2, 3\)"),
        ([(torch.zeros(2, 3), 0), (torch.zeros(4, 3).bool(), 1)], r"got \(4, 3\) torch\.bool in item 1 and \(2, 3\)"),
    ],
)
def test_items_that_cannot_be_padded_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        collate_padded(given)
