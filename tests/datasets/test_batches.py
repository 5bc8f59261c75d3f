"""Items into batches, inputs for pre-training without padding, and parts of a data set."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import Dataset

from neurolsc.datasets import Batch, collate, collate_padded, hold_out, input_batches
from neurolsc.datasets.batches import carve

LENGTHS = [3, 9, 4, 4, 7, 12, 5]
SPEAKERS = np.repeat(np.arange(10), [5, 7, 9, 11, 13, 15, 17, 19, 21, 23])


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
        ([([[0.0, 1.0]], 0)], "a tensor x .*got a list"),
        ([(torch.zeros(2, 3), 1.5)], "a label must be an integer"),
        ([(torch.zeros(3), 0)], r"shape \(T, N\), got \(3,\) in item 0"),
        ([(torch.zeros(2, 3), 0), (torch.zeros(4, 5), 1)], r"got \(4, 5\) torch\.float32 in item 1 and \(2, 3\)"),
        ([(torch.zeros(2, 3), 0), (torch.zeros(4, 3).bool(), 1)], r"got \(4, 3\) torch\.bool in item 1 and \(2, 3\)"),
    ],
)
def test_items_that_cannot_be_padded_are_refused(given, message):
    with pytest.raises((TypeError, ValueError), match=message):
        collate_padded(given)


# Inputs for pre-training


class Pieces(Dataset):
    """Pieces of unequal length; every frame of the i-th is 1, i + 1."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([1.0, index + 1.0]).expand(self.lengths[index], 2), index


class Together(Pieces):
    """The same, padded together where several are asked for."""

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        x, labels, mask = collate_padded([self[i] for i in indices])
        return Batch(x, labels, mask)


class Sparse(Together):
    """The same, sparse."""

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        batch = super().__getitems__(indices)
        return Batch(batch.x.to_sparse(), batch.labels, batch.mask)


def pieces_of(batches: list[Tensor]) -> list[int]:
    return [int(n) - 1 for x in batches for n in (x.to_dense() if x.is_sparse else x)[0, :, 1]]


@pytest.mark.parametrize("kind", [Pieces, Together, Sparse])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_no_step_is_padding_and_half_of_the_pieces_are_there(kind: Callable[[list[int]], Pieces], size: int):
    batches = input_batches(kind(LENGTHS), size)
    assert {x.shape[0] for x in batches} == {5}  # the middle one of 3 4 4 5 7 9 12
    assert [x.shape[1] for x in batches[:-1]] == [size] * (len(batches) - 1) and 1 <= batches[-1].shape[1] <= size
    assert sorted(pieces_of(batches)) == [1, 4, 5, 6]
    for x in batches:
        assert x.is_sparse == (kind is Sparse)
        assert (x.to_dense() if x.is_sparse else x)[:, :, 0].all()


@pytest.mark.parametrize("kind", [Pieces, Together])
def test_pieces_of_equal_length_all_come_once_in_the_order_of_the_seed(kind: Callable[[list[int]], Pieces]):
    batches = input_batches(kind([6] * 10), 4, seed=3)
    assert [tuple(x.shape) for x in batches] == [(6, 4, 2), (6, 4, 2), (6, 2, 2)]
    assert pieces_of(batches) == torch.randperm(10, generator=torch.Generator().manual_seed(3)).tolist()


# Parts


@pytest.mark.parametrize("by", ["random", "speaker"])
def test_the_parts_are_disjoint_complete_and_the_same_for_the_same_seed(by):
    parts, again, other = (hold_out(SPEAKERS, by, share=0.2, seed=seed) for seed in (0, 0, 1))
    assert sorted([*parts.train, *parts.validation]) == list(range(len(SPEAKERS)))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert parts.validation.tolist() == again.validation.tolist() != other.validation.tolist()


@pytest.mark.parametrize(("share", "speakers"), [(0.2, 2), (0.1, 1), (0.01, 1), (0.5, 5)])
def test_held_out_speakers_are_in_one_part_only(share: float, speakers: int):
    parts = hold_out(SPEAKERS, "speaker", share=share)
    held = set(SPEAKERS[parts.validation])
    assert len(held) == speakers
    assert not held & set(SPEAKERS[parts.train])


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ({"by": "voice"}, ValueError, "by must be one of 'random', 'speaker', got 'voice'"),
        ({"by": "random", "share": 1.0}, ValueError, "share must be between 0 and 1, got 1.0"),
        ({"by": "random", "share": 0.0}, ValueError, "share must be between 0 and 1"),
        ({"by": "speaker", "share": 0.99}, ValueError, "holding out 10 of 10 .speaker. leaves nothing"),
        ({"by": "random", "seed": -1}, ValueError, "seed must be at least 0"),
        ({"by": "random", "seed": 0.5}, TypeError, "seed must be an int"),
    ],
)
def test_what_cannot_be_held_out_is_refused(arguments, kind, told: str):
    with pytest.raises(kind, match=told):
        hold_out(SPEAKERS, **arguments)


def test_unknown_speakers_are_not_held_out_but_their_utterances_are():
    nobody = np.full(20, -1)
    assert len(hold_out(nobody, "random", share=0.25).validation) == 5
    with pytest.raises(ValueError, match="the data do not say"):
        hold_out(nobody, "speaker", share=0.25)


def test_a_seed_names_the_same_parts_in_every_release():
    sizes = {"validation": 5_000, "train": 45_000}
    assert carve(60_000, sizes, 0)["validation"][:6].tolist() == [3048, 19563, 58303, 8870, 40228, 31488]


def test_carved_parts_are_the_permutation_cut_one_after_another():
    parts = carve(20, {"validation": 4, "train": 10}, 3)
    permutation = np.random.RandomState(3).permutation(20)
    assert list(parts) == ["validation", "train"]
    assert parts["validation"].tolist() == permutation[:4].tolist()
    assert parts["train"].tolist() == permutation[4:14].tolist()
    assert len(carve(20, {"all": 20}, 3)["all"]) == 20
