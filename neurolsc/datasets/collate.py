"""Items into a batch."""

from collections.abc import Sequence
from typing import overload

import torch
from torch import Tensor


class Batch(Sequence[tuple[Tensor, int]]):
    """Items that already lie side by side in one tensor: :func:`collate` need not copy them.

    To whoever asks for an item it is a list of pairs (x (T, N), label). A data set returns one from
    ``__getitems__``, which a ``DataLoader`` calls with the indices of a batch.

    Args:
        x: inputs (T, B, N).
        labels: classes (B,), int64.
        mask: (T, B), bool, True while an item lasts, first its steps and then the padding; None:
            all last for T steps.
    """

    def __init__(self, x: Tensor, labels: Tensor, mask: Tensor | None = None) -> None:
        self.x, self.labels, self.mask = x, labels, mask

    def __len__(self) -> int:
        """Number of items."""
        return len(self.labels)

    @overload
    def __getitem__(self, index: int) -> tuple[Tensor, int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[Tensor, int]]: ...
    def __getitem__(self, index: int | slice) -> tuple[Tensor, int] | list[tuple[Tensor, int]]:
        """One item, without its padding."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        steps = slice(None) if self.mask is None else slice(int(self.mask[:, index].sum()))
        return self.x[:, index][steps], int(self.labels[index])


def collate(items: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, ...]:
    """Stack items along the second axis into a batch: the ``collate_fn`` of a ``DataLoader``.

    Args:
        items: pairs (x, label), every x of the same shape (T, N) and dtype; or a :class:`Batch`,
            which is taken apart without a copy.

    Returns:
        x of shape (T, B, N), in the items' dtype, and labels of shape (B,), int64; of a
        :class:`Batch` with a mask this is the third.

    Raises:
        ValueError: if there is no item, or one differs from the first in shape or dtype; the
            message says which.

    Example:
        >>> x, labels = collate([(torch.zeros(100, 784), 3), (torch.zeros(100, 784), 7)])
        >>> x.shape, labels
        (torch.Size([100, 2, 784]), tensor([3, 7]))
    """
    if len(items) == 0:
        raise ValueError("a batch needs at least one item (x (T, N), label), got none.")
    if isinstance(items, Batch):
        return (items.x, items.labels) if items.mask is None else (items.x, items.labels, items.mask)
    first = _first(items)
    for i, (x, _) in enumerate(items):
        if x.shape != first.shape or x.dtype != first.dtype:
            raise ValueError(
                f"all items of a batch must agree, got {tuple(x.shape)} {x.dtype} in item {i} "
                f"and {tuple(first.shape)} {first.dtype} in item 0; collate_padded takes unequal lengths."
            )
    return torch.stack([x for x, _ in items], dim=1), torch.tensor([int(label) for _, label in items])


def collate_padded(items: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Stack items of unequal length, with zeros behind those that are not the longest.

    Args:
        items: pairs (x, label), every x of shape (T, N) with the same N and dtype.

    Returns:
        x (T, B, N), labels (B,), int64, and a mask (T, B), bool, True while an item lasts, as
        :meth:`neurolsc.Network.run` takes it.

    Raises:
        ValueError: if there is no item, or one differs from the first in N or dtype.

    Example:
        >>> x, labels, mask = collate_padded([(torch.ones(1, 700), 3), (torch.ones(2, 700), 7)])
        >>> x.shape, mask.int().tolist()
        (torch.Size([2, 2, 700]), [[1, 1], [0, 1]])
    """
    if len(items) == 0:
        raise ValueError("a batch needs at least one item (x (T, N), label), got none.")
    if isinstance(items, Batch):
        mask = torch.ones(items.x.shape[:2], dtype=torch.bool) if items.mask is None else items.mask
        return items.x, items.labels, mask
    first = _first(items)
    for i, (x, _) in enumerate(items):
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            raise ValueError(
                f"all items of a batch must have the same inputs, got {tuple(x.shape)} {x.dtype} in item {i} "
                f"and {tuple(first.shape)} {first.dtype} in item 0."
            )
    lengths = torch.tensor([len(x) for x, _ in items])
    mask = torch.arange(int(lengths.max()))[:, None] < lengths
    x = torch.nn.utils.rnn.pad_sequence([x for x, _ in items])
    return x, torch.tensor([int(label) for _, label in items]), mask


def _first(items: Sequence[tuple[Tensor, int]]) -> Tensor:
    first = items[0][0]
    if first.ndim != 2:
        raise ValueError(f"items must have the shape (T, N), got {tuple(first.shape)} in item 0.")
    return first
