"""Augmentations of spoken words, on events before they are binned. All are off unless asked for."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from neurolsc.datasets.events import UNITS, Events
from neurolsc.validation import positive


class Augmentation(Protocol):
    """What changes the events of a batch at random."""

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        """Changed events of the same utterances; the given ones stay as they are."""
        ...


_SEED: ContextVar[int | None] = ContextVar("_SEED", default=None)
"""Of this thread, or of what it was handed to: no other thread sees or moves it."""


_EPOCH: ContextVar[int | None] = ContextVar("_EPOCH", default=None)
"""Likewise."""


@contextmanager
def drawn_from(seed: int, epoch: int | None = None) -> Iterator[None]:
    """Let augmentations draw from a seed and the items asked for, and from nothing else.

    Args:
        seed: where they draw from.
        epoch: of the training that asks, from 1; None: no training does.
    """
    tokens = _SEED.set(seed), _EPOCH.set(epoch)
    try:
        yield
    finally:
        _SEED.reset(tokens[0])
        _EPOCH.reset(tokens[1])


def epoch_of_training() -> int | None:
    """The epoch of the training that asks for items, from 1; None outside of one."""
    return _EPOCH.get()


def generator(indices: Sequence[int]) -> np.random.Generator:
    """Where the augmentations of some items draw from.

    Inside of :func:`drawn_from`, as in :func:`neurolsc.train`, that follows from the seed and the
    indices; else from torch's random numbers, so that ``torch.manual_seed`` repeats it.
    """
    seed = _SEED.get()
    if seed is None:
        return np.random.default_rng(int(torch.randint(2**62, ())))
    return np.random.default_rng([seed, *(int(index) % 2**64 for index in indices)])


@dataclass(frozen=True)
class ChannelJitter:
    r"""Move each spike to a neighbouring unit.

    .. math:: u' = \mathrm{round}(u + \sigma \xi), \quad \xi \sim N(0, 1) \text{ for every spike}

    A spike moved beyond units 0 to 699 is dropped.

    Attributes:
        sigma: deviation, in units.

    Raises:
        ValueError: if sigma is negative or not finite.

    Source: Cramer et al., IEEE TNNLS 33 (2022) (noise on the index of the unit).
    """

    sigma: float = 20.0

    def __post_init__(self) -> None:
        """Refuse a negative deviation."""
        positive("sigma", self.sigma, zero_allowed=True)

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        """Draw one normal number for every spike."""
        units = np.rint(events.units + self.sigma * random.standard_normal(len(events.units), np.float32))
        keep = (units >= 0) & (units < UNITS)
        return _keep(events._replace(units=units.clip(0, UNITS - 1).astype(np.uint16)), keep)


@dataclass(frozen=True)
class TimeStretch:
    r"""Speak faster or slower.

    .. math:: t' = a\, t, \quad a \sim U(\mathrm{low}, \mathrm{high}) \text{ for every utterance}

    tonic calls it ``TimeSkew(coefficient=(low, high))``.

    Attributes:
        low: smallest factor.
        high: largest factor.

    Raises:
        ValueError: if the factors are not positive, or low is above high.

    Source: T. Nowotny, J. P. Turner, J. C. Knight, "Loss shaping enhances exact gradient learning
    with Eventprop in spiking neural networks", Neuromorphic Computing and Engineering 5 (2025), for
    SHD, with a drawn uniformly in its logarithm; of the sound itself, as speed perturbation: T. Ko
    et al., "Audio augmentation for speech recognition", Interspeech 2015, with three fixed factors.
    """

    low: float = 0.8
    high: float = 1.2

    def __post_init__(self) -> None:
        """Refuse factors out of order."""
        positive("low", self.low)
        if not self.low <= float(positive("high", self.high)):
            raise ValueError(f"low must not be above high, got {self.low} and {self.high}.")

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        """Draw one factor for every utterance."""
        factors = random.uniform(self.low, self.high, len(events.offsets) - 1).astype(np.float32)
        return events._replace(times=events.times.astype(np.float32) * np.repeat(factors, events.counts))


@dataclass(frozen=True)
class SpikeDrop:
    r"""Leave spikes out.

    .. math:: P(\text{a spike stays}) = 1 - p, \text{ independently for every spike}

    tonic's ``DropEvent(p)`` drops exactly round(p n) of the n spikes of an utterance; the mean is
    the same.

    Attributes:
        p: probability that a spike is dropped.

    Raises:
        ValueError: if p is not in [0, 1).

    Source: Gu et al., "EventDrop: Data Augmentation for Event-based Learning", IJCAI 2021 (random
    drop).
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        """Refuse what is no probability."""
        if not 0 <= self.p < 1:
            raise ValueError(f"p must be a probability in [0, 1), got {self.p}.")

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        """Draw one uniform number for every spike."""
        return _keep(events, random.random(len(events.times), np.float32) >= self.p)


def _keep(events: Events, keep: np.ndarray) -> Events:
    """Only some of the spikes; the utterances stay, an emptied one too."""
    kept = np.concatenate([[0], np.cumsum(keep)])
    return Events(events.times[keep], events.units[keep], kept[events.offsets])
