import pytest
import torch
from torch.testing import assert_close

from neurolsc.datasets import collate


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
