"""Inputs for pre-training, which uses no labels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from neurolsc.datasets.collate import collate
from neurolsc.validation import whole


def input_batches(dataset: Dataset[Any], batch_size: int, *, count: int = 16, seed: int = 0) -> list[Tensor]:
    """Draw batches of inputs from a data set without repetition, the same for the same seed.

    Args:
        dataset: map-style, items (x (T, N), label).
        batch_size: samples in a batch.
        count: number of batches, fewer if the data set has too few items; the last may be smaller.
        seed: of the draw.

    Returns:
        Inputs, each (T, B, N); those of utterances of unequal length with zeros behind the shorter
        ones.

    Raises:
        ValueError: if the data set is empty, or batch_size or count is below 1.
    """
    whole("batch_size", batch_size)
    whole("count", count)
    total = len(dataset)  # type: ignore[arg-type]
    if total == 0:
        raise ValueError("input_batches needs a data set with items, got an empty one.")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    parts = order[: count * batch_size].split(batch_size)
    return [collate(fetch(dataset, part.tolist()))[0] for part in parts]


def fetch(dataset: Dataset[Any], indices: Sequence[int]) -> Sequence[tuple[Tensor, int]]:
    """Some items of a data set, asked for together where it can give them so."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)  # type: ignore[attr-defined]
    return [dataset[i] for i in indices]
