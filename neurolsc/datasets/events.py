"""Spikes of utterances: a reader of SHD's layout, and random changes."""

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np

from neurolsc.datasets.download import read_unpacked
from neurolsc.hdf5 import HDF5
from neurolsc.io import clean, refusing
from neurolsc.validation import number, probability

UNITS = 700  # input units of the layout, 0 to 699
CLASSES = 20  # of a file that does not name them: those of SHD


class Events(NamedTuple):
    """Spikes of B utterances, one utterance after the other."""

    times: np.ndarray  # (S,), in seconds, floating point, ascending within an utterance
    units: np.ndarray  # (S,), uint16, below 700
    offsets: np.ndarray  # (B + 1,), int64: spikes offsets[i] to offsets[i + 1] belong to utterance i

    @property
    def counts(self) -> np.ndarray:
        """Spikes of each utterance (B,)."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """Utterance of each spike (S,), int64."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts)

    def take(self, indices: np.ndarray) -> "Events":
        """The spikes of some utterances (n,), int64, in the order of the indices."""
        starts, ends = self.offsets[indices], self.offsets[indices + 1]
        places = [slice(a, b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        times, units = (np.concatenate([values[place] for place in places]) for values in (self.times, self.units))
        return Events(times, units, np.concatenate([[0], np.cumsum(ends - starts)]))


class EventFile:
    """An HDF5 file in SHD's layout, plain or packed by xz, read whole and checked.

    The layout: ``spikes/times`` (n,), variable-length floats in seconds, ascending; ``spikes/units`` (n,),
    variable-length integers from 0 to 699; ``labels`` (n,), integers from 0 on. These may be missing:
    ``extra/speaker`` (n,), integers from 0 on; ``extra/keys``, the name of each class (else there are 20 classes).

    Args:
        path: the file.

    Attributes:
        path: the file.
        labels: class of each utterance (n,), int64.
        speakers: speaker of each utterance (n,), int64; -1 where the file does not say.
        names: name of each class.
        events: spikes of all utterances; times in the file's own dtype.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not an HDF5 file, is damaged, or does not fit the layout.

    Source: B. Cramer, Y. Stradmann, J. Schemmel, F. Zenke, "The Heidelberg Spiking Data Sets for the Systematic
    Evaluation of Spiking Neural Networks", IEEE TNNLS 33 (2022).
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        with self.path.open("rb") as opened:
            plain = opened.read(4) == b"\x89HDF"
        source = self.path if plain else read_unpacked(self.path)
        with refusing(self.path, "not a whole HDF5 file"), HDF5(source) as file:
            spoken = file.has("extra/speaker")
            names = ("spikes/times", "spikes/units", "labels", *["extra/speaker"] * spoken)
            parts = {name: file.dataset(name) for name in names}
            shapes = {part.shape for part in parts.values()}
            if len(shapes) != 1 or len(shape := shapes.pop()) != 1 or shape[0] == 0:
                got = ", ".join(f"{part.shape} in {name}" for name, part in parts.items())
                raise ValueError(f"all parts must have one entry for each utterance, got {got}")
            for name, kinds, word in (("spikes/times", "f", "floats"), ("spikes/units", "iu", "integers")):
                inside = h5py.check_vlen_dtype(parts[name].dtype)
                # h5py does not swap the bytes of another byte order
                if not isinstance(inside, np.dtype) or inside.kind not in kinds or not inside.isnative:
                    got = inside or parts[name].dtype
                    raise ValueError(f"{name} must hold {word} of variable length in native byte order, got {got}.")
            keys = file.values("extra/keys", 1, "SO") if file.has("extra/keys") else np.arange(CLASSES).astype("S")
            self.names = [clean(key.decode("utf-8", "replace")) for key in keys]
            found: dict[str, np.ndarray] = {}
            for name, end in zip(names[2:], (len(self.names), 2**31), strict=False):
                values = file.values(name, 1, "iu")
                if (wrong := (values < 0) | (values >= end)).any():
                    i = int(wrong.argmax())
                    raise ValueError(f"{name} must lie in 0 ... {end - 1}, got {values[i]} for utterance {i}.")
                found[name] = values.astype(np.int64)
            self.labels = found["labels"]
            self.speakers = found.get("extra/speaker", np.full(len(self.labels), -1))
            self.events = _checked(*(list(parts[name][()]) for name in names[:2]))

    def __len__(self) -> int:
        return len(self.labels)


def _checked(times_of: list[np.ndarray], units_of: list[np.ndarray]) -> Events:
    """The spikes of all utterances, one after the other."""
    counts, others = (np.array(list(map(len, part))) for part in (times_of, units_of))
    if (bad := (counts != others) | (counts == 0)).any():
        i = int(bad.argmax())
        raise ValueError(
            f"utterance {i} has {counts[i]} times in spikes/times and {others[i]} units in spikes/units; each needs "
            "spikes, and a unit for every time."
        )
    times, units, offsets = np.concatenate(times_of), np.concatenate(units_of), np.concatenate([[0], np.cumsum(counts)])
    # As integers, half-precision numbers are compared several times as fast: the bits of floats that are not negative
    # ascend as these do, then come infinity, NaN, and negative ones.
    bits = times.view(f"u{times.itemsize}")
    falls = np.zeros(len(times), bool)
    np.less(bits[1:], bits[:-1], out=falls[1:])
    falls[offsets[:-1]] = False
    for wrong, values, wanted in (
        ((units < 0) | (units >= UNITS), units, f"spikes/units must lie in 0 ... {UNITS - 1}"),
        (bits >= np.array(np.inf, times.dtype).view(bits.dtype), times, "spikes/times must be finite and not negative"),
        (falls, times, "spikes/times must ascend"),
    ):
        if wrong.any():
            spike = int(wrong.argmax())
            utterance = np.searchsorted(offsets, spike, "right") - 1
            raise ValueError(f"{wanted}, got {values[spike]} in utterance {utterance}.")
    return Events(times, units.astype(np.uint16, copy=False), offsets)


# Augmentations


Augmentation = Callable[[Events, np.random.Generator], Events]  # changed events of the same utterances


@dataclass(frozen=True)
class ChannelJitter:
    r"""Move each spike to a neighbouring unit; one moved beyond units 0 to 699 is dropped.

    .. math:: u' = \mathrm{round}(u + \sigma \xi), \quad \xi \sim N(0, 1) \text{ for every spike}

    Args:
        sigma: deviation, in units.

    Source: Cramer et al., IEEE TNNLS 33 (2022) (noise on the index of the unit).
    """

    sigma: float = 20.0

    def __post_init__(self) -> None:
        number("sigma", self.sigma, zero_allowed=True)

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        units = np.rint(events.units + self.sigma * random.standard_normal(len(events.units), np.float32))
        keep = (units >= 0) & (units < UNITS)
        return _subset(events._replace(units=units.clip(0, UNITS - 1).astype(np.uint16)), keep)


@dataclass(frozen=True)
class TimeStretch:
    r"""Speak faster or slower; tonic calls it ``TimeSkew(coefficient=(low, high))``.

    .. math:: t' = a\, t, \quad a \sim U(\mathrm{low}, \mathrm{high}) \text{ for every utterance}

    Args:
        low: smallest factor.
        high: largest factor.

    Source: T. Nowotny, J. P. Turner, J. C. Knight, Neuromorphic Computing and Engineering 5 (2025), for SHD, with a
    uniform in its logarithm.
    """

    low: float = 0.8
    high: float = 1.2

    def __post_init__(self) -> None:
        if number("low", self.low) > number("high", self.high):
            raise ValueError(f"low must not be above high, got {self.low} and {self.high}.")

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        factors = random.uniform(self.low, self.high, len(events.offsets) - 1).astype(np.float32)
        return events._replace(times=events.times.astype(np.float32) * np.repeat(factors, events.counts))


@dataclass(frozen=True)
class SpikeDrop:
    r"""Leave each spike out with probability p.

    tonic's ``DropEvent(p)`` drops exactly round(p n) of the n spikes of an utterance.

    Source: Gu et al., "EventDrop: Data Augmentation for Event-based Learning", IJCAI 2021.
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        probability("p", self.p)

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        return _subset(events, random.random(len(events.times), np.float32) >= self.p)


def _subset(events: Events, keep: np.ndarray) -> Events:
    """Some of the spikes; an utterance without spikes stays."""
    before = np.concatenate([[0], np.cumsum(keep)])
    return Events(events.times[keep], events.units[keep], before[events.offsets])
