"""Items into a batch."""

import operator
from collections.abc import Sequence
from typing import TypeVar, overload

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from neurolsc.display import shapes

Item = tuple[Tensor, int | Tensor]
"""An input x (T, N) with the label of the whole, or with targets (T, ...), one for every step."""

ItemT = TypeVar("ItemT", bound=Item)


class Batch(Sequence[Item]):
    """Items that already lie side by side in one tensor, which :func:`collate` need not copy.

    To whoever asks for an item it is a list of pairs (x (T, N), label). A data set returns one from
    ``__getitems__``, which a ``DataLoader`` calls with the indices of a batch.

    Args:
        x: inputs (T, B, N).
        labels: classes (B,), int64; or targets for every step (T, B, ...).
        mask: (T, B), bool, True while an item lasts, first its steps and then the padding; None:
            all last for T steps.

    Raises:
        ValueError: if x is not (T, B, N) with as many samples as there are labels.
    """

    def __init__(self, x: Tensor, labels: Tensor, mask: Tensor | None = None) -> None:
        wanted = labels.shape[:1] if labels.ndim == 1 else labels.shape[1:2]
        if x.ndim != 3 or x.shape[1:2] != wanted:
            turned = x.ndim == 3 and (x.shape[:1] if labels.ndim == 1 else x.shape[1::-1]) == labels.shape[:2]
            hint = "; x looks batch-first: x.transpose(0, 1)" if turned else ""
            raise ValueError(
                f"a batch must be x (T, B, N) with labels (B,) or targets (T, B, ...), got {tuple(x.shape)} "
                f"and {tuple(labels.shape)}{hint}."
            )
        self.x, self.labels, self.mask = x, labels, mask

    def __repr__(self) -> str:
        return f"Batch({shapes('TB', x=self.x, mask=self.mask)})"

    def __len__(self) -> int:
        """Number of items."""
        return self.x.shape[1]

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        """One item, without its padding."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        steps = slice(None) if self.mask is None else slice(int(self.mask[:, index].sum()))
        target = int(self.labels[index]) if self.labels.ndim == 1 else self.labels[:, index][steps]
        return self.x[:, index][steps], target


def collate(items: Sequence[ItemT]) -> tuple[Tensor, ...]:
    """Stack items along the second axis into a batch: the ``collate_fn`` of a ``DataLoader``.

    Args:
        items: pairs (x, label), every x of the same shape (T, N) and dtype, the label an int, or a
            tensor (T, ...) of targets, one for every step; or a :class:`Batch`, which is taken
            apart without a copy.

    Returns:
        x of shape (T, B, N), in the items' dtype, and labels of shape (B,), int64, or targets
        (T, B, ...) in the items' dtype; of a :class:`Batch` with a mask this is the third.

    Raises:
        ValueError: if there is no item, or one differs from the first in shape or dtype; the
            message says which.
        TypeError: if a label is neither an integer nor a tensor of targets.

    Example:
        >>> x, labels = collate([(torch.zeros(100, 784), 3), (torch.zeros(100, 784), 7)])
        >>> x.shape, labels
        (torch.Size([100, 2, 784]), tensor([3, 7]))
    """
    if isinstance(items, Batch):
        return (items.x, items.labels) if items.mask is None else (items.x, items.labels, items.mask)
    first = _first(items)
    for i, (x, _) in enumerate(items):
        if x.shape != first.shape or x.dtype != first.dtype:
            raise ValueError(
                f"all items of a batch must agree, got {tuple(x.shape)} {x.dtype} in item {i} "
                f"and {tuple(first.shape)} {first.dtype} in item 0; collate_padded takes unequal lengths."
            )
    return torch.stack([x for x, _ in items], dim=1), _targets(items)


def collate_padded(items: Sequence[ItemT]) -> tuple[Tensor, Tensor, Tensor]:
    """Stack items of unequal length into a batch as long as the longest, with zeros behind others.

    Args:
        items: pairs (x, label), every x of shape (T, N) with the same N and dtype; labels as in
            :func:`collate`.

    Returns:
        x (T, B, N), labels (B,), int64, or targets (T, B, ...), and a mask (T, B), bool, True while
        an item lasts, as :meth:`neurolsc.Network.run` takes it.

    Raises:
        ValueError: if there is no item, or one differs from the first in N or dtype.
        TypeError: as :func:`collate`.

    Example:
        >>> x, labels, mask = collate_padded([(torch.ones(1, 700), 3), (torch.ones(2, 700), 7)])
        >>> x.shape, mask.int().tolist()
        (torch.Size([2, 2, 700]), [[1, 1], [0, 1]])
    """
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
    return pad_sequence([x for x, _ in items]), _targets(items), mask


def together(items: Sequence[ItemT]) -> tuple[Tensor, ...]:
    """What :func:`collate` gives of items of equal length, and :func:`collate_padded` of others."""
    equal = isinstance(items, Batch) or len({len(x) for x, _ in items if isinstance(x, Tensor)}) <= 1
    return collate(items) if equal else collate_padded(items)


def _first(items: Sequence[Item]) -> Tensor:
    if len(items) == 0:
        raise ValueError("a batch needs at least one item (x (T, N), label), got none.")
    first = items[0][0]
    if not isinstance(first, Tensor):
        cure = ": give (torch.from_numpy(x), label)" if type(first).__module__ == "numpy" else ""
        raise TypeError(f"items must be pairs (x, label) with a tensor x (T, N), got a {type(first).__name__}{cure}.")
    if first.ndim != 2:
        raise ValueError(f"items must have the shape (T, N), got {tuple(first.shape)} in item 0.")
    return first


def _targets(items: Sequence[Item]) -> Tensor:
    """Labels (B,), or targets for every step (T, B, ...)."""
    targets = [target for _, target in items]
    if isinstance(targets[0], Tensor) and targets[0].ndim:
        for i, (x, target) in enumerate(items):
            if not isinstance(target, Tensor) or len(target) != len(x) or target.dtype != targets[0].dtype:
                raise ValueError(
                    f"targets must be a tensor with one for each of the {len(x)} steps, {targets[0].dtype} as in item 0, "
                    f"got {target!r} in item {i}."
                )
        return pad_sequence([torch.as_tensor(target) for target in targets])
    return torch.tensor([_label(i, target) for i, target in enumerate(targets)])


def _label(i: int, label: int | Tensor) -> int:
    try:
        return operator.index(label)
    except TypeError as error:
        raise TypeError(f"a label must be an integer, got {label!r} in item {i}.") from error
