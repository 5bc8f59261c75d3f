"""Parts of a data set: drawn at random, or by speaker."""

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neurolsc.validation import one_of, whole

By = Literal["random", "speaker"]
WAYS = ("random", "speaker")


class Parts(NamedTuple):
    """A training set cut in two."""

    train: np.ndarray
    """indices, ascending, int64"""
    validation: np.ndarray
    """the others, ascending, int64"""


def hold_out(speakers: np.ndarray, by: By, *, share: float = 0.1, seed: int = 0) -> Parts:
    """Cut a training set in two, at random or between speakers.

    Utterances drawn at random are of voices that training hears as well. Whole speakers are new
    voices, as some are in SHD's test set; there are then as many as come closest to the share of
    all speakers, at least one.

    Args:
        speakers: speaker of each utterance (n,), integers; negative where it is not known.
        by: what is drawn, utterances (``"random"``) or speakers (``"speaker"``).
        share: of the utterances or speakers held out, between 0 and 1.
        seed: of the draw; the generator is NumPy's ``RandomState``, whose stream is frozen (NEP
            19).

    Returns:
        Two parts, neither of them empty.

    Raises:
        TypeError: if the seed is not an int.
        ValueError: if ``by`` is unknown, the share is not between 0 and 1, the seed is negative, or
            a part would be empty, or speakers that are not known are to be held out.

    Example:
        >>> parts = hold_out(np.array([0, 0, 1, 1, 2, 2]), "speaker", share=0.4, seed=0)
        >>> parts.validation
        array([4, 5])
    """
    one_of("by", by, WAYS)
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}.")
    if by == "speaker" and (speakers < 0).any():
        raise ValueError(
            "validation by speaker needs to know who speaks, and the data do not say (extra/speaker of SHD's layout): "
            "draw it at random."
        )
    things = np.arange(len(speakers)) if by == "random" else np.unique(speakers)
    size = max(1, round(share * len(things)))
    if size >= len(things):
        raise ValueError(f"holding out {size} of {len(things)} ({by}) leaves nothing to train on.")
    order = np.random.RandomState(whole("seed", seed, at_least=0)).permutation(len(things))
    drawn = things[order[:size]]
    out = np.isin(np.arange(len(speakers)) if by == "random" else speakers, drawn)
    return Parts(np.flatnonzero(~out), np.flatnonzero(out))


def who_is_where(training: Any, validation: Any) -> str:
    """Which speakers two parts of a data set hold, in one line."""
    told = []
    for name, part in (("trained on", training), ("held out for validation", validation)):
        speakers = part.speakers.unique().tolist()
        word = "speaker" if len(speakers) == 1 else "speakers"
        told.append(f"{name}: {word} {', '.join(map(str, speakers))} ({len(part)} utterances)")
    return "; ".join(told)


def carve(n: int, sizes: dict[str, int], seed: int) -> dict[str, Tensor]:
    """Draw disjoint parts of n items: the first sizes of a random permutation, one after another.

    The permutation is that of NumPy's ``RandomState``, whose stream is frozen (NEP 19): a seed
    names the same parts in every release.

    Args:
        n: number of items.
        sizes: how many items each part gets, in total at most n.
        seed: seed of the permutation.

    Returns:
        The indices of each part, int64.

    Raises:
        TypeError: if the seed is not an int.
        ValueError: if the seed is negative or the parts are larger than the whole.
    """
    if sum(sizes.values()) > n:
        raise ValueError(f"parts of {sizes} items in all need {sum(sizes.values())} items, got {n}.")
    permutation = torch.from_numpy(np.random.RandomState(whole("seed", seed, at_least=0)).permutation(n))
    return dict(zip(sizes, permutation.split([*sizes.values(), n - sum(sizes.values())]), strict=False))
