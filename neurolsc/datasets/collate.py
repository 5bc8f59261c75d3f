"""Items into a batch."""

from collections.abc import Sequence

import torch
from torch import Tensor


def collate(items: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Stack items along the second axis into a batch: the ``collate_fn`` of a ``DataLoader``.

    Args:
        items: pairs (x, label), every x of the same shape (T, N) and dtype.

    Returns:
        x of shape (T, B, N), in the items' dtype, and labels of shape (B,), int64.

    Raises:
        ValueError: if there is no item, or one differs from the first in shape or dtype; the message says
            which.

    Example:
        >>> x, labels = collate([(torch.zeros(100, 784), 3), (torch.zeros(100, 784), 7)])
        >>> x.shape, labels
        (torch.Size([100, 2, 784]), tensor([3, 7]))
    """
    if len(items) == 0:
        raise ValueError("a batch needs at least one item (x (T, N), label), got none.")
    first = items[0][0]
    if first.ndim != 2:
        raise ValueError(f"items must have the shape (T, N), got {tuple(first.shape)} in item 0.")
    for i, (x, _) in enumerate(items):
        if x.shape != first.shape or x.dtype != first.dtype:
            raise ValueError(
                f"all items of a batch must agree, got {tuple(x.shape)} {x.dtype} in item {i} "
                f"and {tuple(first.shape)} {first.dtype} in item 0."
            )
    return torch.stack([x for x, _ in items], dim=1), torch.tensor([int(label) for _, label in items])
