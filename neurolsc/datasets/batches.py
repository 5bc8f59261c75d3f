"""Inputs for pre-training, which uses no labels."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from neurolsc.datasets.collate import together
from neurolsc.frames import lasting
from neurolsc.validation import whole


def input_batches(dataset: Dataset[Any], batch_size: int, *, count: int = 16, seed: int = 0) -> list[Tensor]:
    """Draw batches of inputs from a data set without repetition, the same for the same seed.

    Args:
        dataset: map-style, items (x (T, N), label).
        batch_size: samples in a batch.
        count: number of batches, fewer if the data set has too few items; the last may be smaller.
        seed: of the draw.

    Returns:
        Inputs, each (T, B, N). Of items of unequal length those that last at least as long as the
        middle one, cut to its T steps, which are half of the items or more: every step is one of an
        item, none is padding, which would be counted in radii and rates.

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
    drawn = [_with_lengths(fetch(dataset, part.tolist())) for part in parts]
    lengths = torch.cat([each for _, each in drawn])
    steps = int(lengths.median())
    if (lengths == steps).all():
        return [x for x, _ in drawn]
    whole_ones = torch.cat([lasting(x, each, steps) for x, each in drawn if (each >= steps).any()], 1)
    return [whole_ones.index_select(1, some) for some in torch.arange(whole_ones.shape[1]).split(batch_size)]


def _with_lengths(items: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """The inputs of some items (T, B, N), and how long each lasts (B,)."""
    x, _, *mask = together(items)
    return x, mask[0].sum(0) if mask else torch.full((x.shape[1],), x.shape[0])


def fetch(dataset: Dataset[Any], indices: Sequence[int]) -> Sequence[tuple[Tensor, int]]:
    """Some items of a data set, asked for together where it can give them so."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)  # type: ignore[attr-defined]
    return [dataset[i] for i in indices]
