"""Inputs that starts and pre-training look at: what is drawn; no step of them is padding."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from neurolsc.datasets import input_batches
from neurolsc.datasets.collate import Batch, collate_padded

LENGTHS = [3, 9, 4, 4, 7, 12, 5]


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


def test_what_is_no_tensor_is_told_as_by_collate():
    with pytest.raises(TypeError, match=r"items must be pairs .x, label. with a tensor x .T, N., got a list"):
        input_batches([([1, 2], 0)], 1)  # type: ignore[arg-type]
