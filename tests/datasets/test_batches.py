"""Items into batches, inputs for pre-training without padding, and parts of a data set."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils.data import Dataset

from neurolsc.datasets import Batch, SpikeLatencyMNIST, collate, from_tonic, hold_out, input_batches
from neurolsc.datasets.batches import InputBatches, carve

LENGTHS = [3, 9, 4, 4, 7, 12, 5]
SPEAKERS = np.repeat(np.arange(10), [5, 7, 9, 11, 13, 15, 17, 19, 21, 23])


def test_items_stand_on_the_second_axis_with_their_values_and_dtype():
    items = [(torch.randint(2, (5, 3), dtype=torch.uint8), 10 - i) for i in range(4)]
    x, labels = collate(items)
    assert x.shape == (5, 4, 3)
    for i, (item, _) in enumerate(items):
        assert_close(x[:, i], item)
    assert_close(labels, torch.tensor([10, 9, 8, 7]))


def test_sparse_items_are_those_of_dense_ones():
    items = [(torch.eye(4), 1), (torch.eye(4).flip(0), 0)]
    sparse = [(x.to_sparse(), label) for x, label in items]
    assert all(map(torch.equal, collate(sparse), collate(items)))


def test_items_of_unequal_length_are_padded_with_a_mask():
    parts = [(torch.full((n, 2), float(i + 1)), torch.arange(n) + 1) for i, n in enumerate((2, 3, 1))]
    x, targets, mask = collate(parts)
    assert mask.T.tolist() == [[True, True, False], [True, True, True], [True, False, False]]
    assert_close(x, mask[:, :, None] * torch.tensor([1.0, 2.0, 3.0])[:, None].expand(3, 3, 2))
    assert targets.tolist() == [[1, 1, 1], [2, 2, 0], [0, 3, 0]]
    for (piece, target), (own, wanted) in zip(Batch(x, targets, mask), parts, strict=True):
        assert_close(piece, own)
        assert_close(target, wanted)
    assert collate([(piece, 7 + i) for i, (piece, _) in enumerate(parts)])[1].tolist() == [7, 8, 9]


def test_a_slice_of_a_data_set_is_a_part_of_it_and_other_indices_are_refused():
    digits = SpikeLatencyMNIST.embedded("train")
    some = digits[:10:3]
    assert len(some) == 4
    assert_close(some[1][0], digits[3][0])
    assert_close(collate(some.__getitems__([0, 3]))[1], digits.labels[[0, 9]])
    assert len(digits[-3:]) == 3
    assert digits[torch.tensor(2)][1] == digits[np.int64(2)][1] == digits[2][1]
    for index, kind in (("a", "str"), ([1, 2], "list"), (1.0, "float")):
        with pytest.raises(TypeError, match=f"an index must be an int or a slice, got {kind}"):
            digits[index]
    fields = [("t", int), ("x", int), ("p", int)]
    events = [(np.array([(time, 1, 0)], fields), 0) for time in range(5)]
    frames = from_tonic(events, dt=1e-3, window=0.01, sensor_size=(3, 1, 1), classes=["a"])
    assert len(frames[1:3]) == 2
    with pytest.raises(IndexError, match="items run from 0 to 4, got 5"):
        frames[5]
    assert [len(x) for x, _ in frames] == 5 * [10]
    batch = digits.__getitems__([0, 1, 2])
    assert [label for _, label in batch[1:]] == digits.labels[1:3].tolist()
    assert [len(y) for _, y in InputBatches(digits, 4)[:2]] == [4, 4]


@pytest.mark.parametrize("item", [1, (1,), (torch.zeros(2, 3), 1, 2)])
def test_what_is_no_pair_is_refused(item):
    with pytest.raises(TypeError, match=r"items must be pairs \(x, label\) with a tensor x \(T, N\), got"):
        collate([item, item])


X = torch.zeros(5, 3)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "at least one item"),
        ([([[0.0, 1.0]], 0)], "a tensor x .*got a list"),
        ([(X, 0), (X[:, :2], 1)], r"got .* = \[\(3, torch\.float32\), \(2, torch\.float32\)\]"),
        ([(X, 0.5)], "a label must be an integer, .* got a float, 0.5"),
        ([(X, torch.tensor(0.5))], "a label must be an integer, .* got a Tensor, 0.5"),
        ([(X, torch.zeros(5)), (X, torch.zeros(4))], r"one for each of 5 steps, got \(4,\)"),
    ],
)
def test_items_that_do_not_fit_are_refused(items, message):
    with pytest.raises((TypeError, ValueError), match=message):
        collate(items)


@pytest.mark.parametrize("sizes", [((4, 9, 6), (4,)), ((4, 9), (4,)), ((9, 4, 6), (9, 5))], ids=str)
def test_a_batch_whose_axes_do_not_fit_is_refused(sizes):
    with pytest.raises(ValueError, match=r"x \(T, B, N\) with labels \(B,\)"):
        Batch(*map(torch.zeros, sizes))


@pytest.mark.parametrize("mask", [True, False])
def test_a_batch_is_a_list_of_its_items_and_taken_apart_without_a_copy(mask):
    x = torch.arange(5 * 3 * 2).view(5, 3, 2)
    lasts = torch.arange(5)[:, None] < torch.tensor([5, 2, 4]) if mask else None
    made = Batch(x, torch.tensor([7, 8, 9]), lasts)
    for i, (steps, (item, label)) in enumerate(zip([5, 2, 4] if mask else [5, 5, 5], made, strict=True)):
        assert_close(item, x[:steps, i])
        assert label == 7 + i and type(label) is int
    assert_close(made[-1][0], made[2][0])
    parts = collate(made)
    assert parts[0] is x and parts[1] is made.labels
    assert len(parts) == 2 + mask and (not mask or parts[2] is lasts)


# Inputs for pre-training


class Pieces(Dataset):
    """Pieces of unequal length; every frame of the i-th is 1, i + 1."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([1.0, index + 1.0]).expand(self.lengths[index], 2), index


@pytest.mark.parametrize("size", [2, 7])
def test_inputs_have_no_padding_and_hold_the_longer_half_of_the_pieces(size: int):
    batches = input_batches(Pieces(LENGTHS), size)
    assert {x.shape[0] for x in batches} == {5}  # the middle one of 3 4 4 5 7 9 12
    assert [x.shape[1] for x in batches] == ([2, 2] if size == 2 else [4])
    assert sorted(int(n) - 1 for x in batches for n in x[0, :, 1]) == [1, 4, 5, 6]
    assert all(x[:, :, 0].all() for x in batches)


def test_pieces_of_equal_length_all_come_once_in_the_order_of_the_seed():
    batches = input_batches(Pieces([6] * 10), 4, seed=3)
    assert [tuple(x.shape) for x in batches] == [(6, 4, 2), (6, 4, 2), (6, 2, 2)]
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3)).tolist()
    assert [int(n) - 1 for x in batches for n in x[0, :, 1]] == order


# Parts


@pytest.mark.parametrize("by", ["random", "speaker"])
@pytest.mark.parametrize(("share", "speakers"), [(0.2, 2), (0.5, 5)])
def test_the_parts_are_disjoint_complete_and_the_same_for_the_same_seed(by, share: float, speakers: int):
    parts, again, other = (hold_out(SPEAKERS, by, share=share, seed=seed) for seed in (0, 0, 1))
    assert sorted([*parts[0], *parts[1]]) == list(range(len(SPEAKERS)))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert parts[1].tolist() == again[1].tolist() != other[1].tolist()
    held_out = set(SPEAKERS[parts[1]])
    assert by == "random" or (len(held_out) == speakers and not held_out & set(SPEAKERS[parts[0]]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "random", "share": 1.0}, "share must be between 0 and 1, got 1.0"),
        ({"by": "speaker", "share": 0.99}, "holding out 10 of 10 .speaker. leaves nothing"),
        ({"by": "speaker", "speakers": np.full(20, -1)}, "needs extra/speaker in the file"),
    ],
)
def test_a_part_that_cannot_be_held_out_is_refused(arguments, message: str):
    with pytest.raises(ValueError, match=message):
        hold_out(**{"speakers": SPEAKERS} | arguments)


def test_carved_parts_are_the_frozen_permutation_cut_one_after_another():
    parts, permutation = carve(20, {"validation": 4, "train": 10}, 3), np.random.RandomState(3).permutation(20)
    assert torch.cat([parts["validation"], parts["train"]]).tolist() == permutation[:14].tolist()
    sizes = {"validation": 5_000, "train": 45_000}  # the same in every release
    assert carve(60_000, sizes, 0)["validation"][:6].tolist() == [3048, 19563, 58303, 8870, 40228, 31488]
