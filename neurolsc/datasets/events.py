"""Spikes of utterances: a reader of SHD's layout, a cache, and random changes."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from filelock import FileLock

from neurolsc.datasets.download import read_unpacked
from neurolsc.hdf5 import HDF5
from neurolsc.io import clean, refusing, sha256_of
from neurolsc.validation import positive

UNITS = 700  # input units of the layout, 0 to 699
CLASSES = 20  # of a file that does not name them: those of SHD
CHUNK = 256  # utterances read at once in a pass over a file, which bounds its memory


class Events(NamedTuple):
    """Spikes of B utterances, one utterance after the other.

    Attributes:
        times: time of each spike, in seconds (S,), floating point, ascending within an utterance.
        units: unit of each spike (S,), uint16, below 700.
        offsets: the spikes of utterance i stand from offsets[i] to offsets[i + 1]; (B + 1,), int64.
    """

    times: np.ndarray
    units: np.ndarray
    offsets: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """Spikes of each utterance (B,)."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """Utterance of each spike (S,), int64."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts)

    def __repr__(self) -> str:
        return f"Events(utterances={len(self.offsets) - 1}, spikes={len(self.times)})"


class EventFile:
    """An HDF5 file in SHD's layout, plain or packed by xz.

    The layout: ``spikes/times`` (n,), variable-length floats in seconds, ascending;
    ``spikes/units`` (n,), variable-length integers from 0 to 699; ``labels`` (n,), integers from 0
    on. These may be missing: ``extra/speaker`` (n,), integers from 0 on; ``extra/keys``, the name
    of each class (else there are 20 classes).

    The file is mapped into memory and read when spikes are. An object may be sent to the
    workers of a ``DataLoader``, forked or spawned.

    Args:
        path: the file.

    Attributes:
        path: the file.
        labels: class of each utterance (n,), int64.
        speakers: speaker of each utterance (n,), int64; -1 where the file does not say.
        names: name of each class.
        counts: spikes of each utterance (n,), int64.
        times_dtype: of the spike times.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not an HDF5 file, is cut off, or its parts do not fit the layout or
            each other.

    Source: B. Cramer, Y. Stradmann, J. Schemmel, F. Zenke, "The Heidelberg Spiking Data Sets for
    the Systematic Evaluation of Spiking Neural Networks", IEEE TNNLS 33 (2022).
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        with self.path.open("rb") as opened:
            plain = opened.read(8).startswith(b"\x89HDF")
        source = self.path if plain else read_unpacked(self.path)
        with refusing(self.path, "not a whole HDF5 file"), HDF5(source) as file:
            spoken = file.has("extra/speaker")
            parts = {
                n: file.dataset(n) for n in ("spikes/times", "spikes/units", "labels", *["extra/speaker"] * spoken)
            }
            shapes = {part.shape for part in parts.values()}
            if len(shapes) != 1 or len(shape := shapes.pop()) != 1 or shape[0] == 0:
                raise ValueError(
                    "all parts must have one entry for each utterance, got "
                    + ", ".join(f"{part.shape} in {name}" for name, part in parts.items())
                )
            for name, kinds, word in (("spikes/times", "f", "floats"), ("spikes/units", "iu", "integers")):
                inside = h5py.check_vlen_dtype(parts[name].dtype)
                if inside is None or inside.kind not in kinds or inside.itemsize > 8:
                    raise ValueError(f"{name} must hold {word} of variable length, got {parts[name].dtype}.")
            self._times, self._units = file.lists("spikes/times"), file.lists("spikes/units")
            self.times_dtype, self.counts = self._times.dtype.newbyteorder("="), self._times.lengths
            keys = file.values("extra/keys", 1, "SO") if file.has("extra/keys") else np.arange(CLASSES).astype("S")
            self.names = [clean(key.decode("utf-8", "replace")) for key in keys]

            def integers(name: str, end: int) -> np.ndarray:
                values = file.values(name, 1, "iu")
                if (wrong := (values < 0) | (values >= end)).any():
                    i = int(wrong.argmax())
                    raise ValueError(f"{name} must lie in 0 ... {end - 1}, got {values[i]} for utterance {i}.")
                return values.astype(np.int64)

            self.labels = integers("labels", len(self.names))
            self.speakers = integers("extra/speaker", 2**31) if spoken else np.full(len(self.labels), -1)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        speakers = len(np.unique(self.speakers[self.speakers >= 0]))
        name = clean(self.path.name)
        return f"EventFile({name}, {len(self)} utterances, {len(self.names)} classes, {speakers} speakers)"

    def __reduce__(self) -> tuple[Any, ...]:
        return EventFile, (self.path,)

    def read(self, indices: Sequence[int] | np.ndarray) -> Events:
        """The spikes of some utterances, checked.

        Args:
            indices: which utterances, in any order, repetitions allowed, from 0 to n - 1.

        Returns:
            Their spikes in that order; times in the file's own dtype.

        Raises:
            IndexError: if there is no such utterance.
            ValueError: if an utterance is empty, has unlike numbers of times and units, a unit
                outside 0 to 699, or a time that is negative, NaN, infinite or earlier than the one
                before; the message names file, part and utterance.
        """
        indices = _checked_indices(self.path, indices, len(self))
        with refusing(self.path, "the spikes cannot be read, the file is damaged"):
            counts = self.counts[indices]
            other = self._units.lengths[indices]
            if (bad := (counts != other) | (counts == 0)).any():
                i = int(bad.argmax())
                raise ValueError(
                    f"utterance {indices[i]} has {counts[i]} times in spikes/times and {other[i]} units in spikes/units; "
                    "each needs spikes, and a unit for every time."
                )
            order, offsets = indices.tolist(), np.concatenate([[0], np.cumsum(counts)])
            times = np.concatenate([self._times[i] for i in order]).astype(self.times_dtype, copy=False)
            units = np.concatenate([self._units[i] for i in order])

            def refuse(spike: int, wanted: str, got: object) -> None:
                owner = int(np.searchsorted(offsets, spike, "right")) - 1
                place = f"at spike {spike - offsets[owner]} of utterance {indices[owner]}"
                raise ValueError(f"{wanted}, got {got} {place}.")

            if units.min() < 0 or units.max() >= UNITS:
                spike = int(((units < 0) | (units >= UNITS)).argmax())
                refuse(spike, f"spikes/units must lie in 0 ... {UNITS - 1}", units[spike])
            # Floats that are not negative have the order of their bits, then infinity, then NaN: as
            # integers, half-precision numbers are compared several times as fast.
            bits, wanted = times.view(f"u{times.itemsize}"), "spikes/times must be finite, not negative and ascending"
            if bits.max() >= np.array(np.inf, times.dtype).view(bits.dtype):
                if (bad := ~((times >= 0) & (times < np.inf))).any():
                    refuse(int(bad.argmax()), wanted, f"{times[bad][0]} s")
                times = np.abs(times)  # only -0.0 was left
                bits = times.view(bits.dtype)
            falls = bits[1:] < bits[:-1]
            falls[offsets[1:-1] - 1] = False
            if falls.any():
                spike = int(falls.argmax()) + 1
                refuse(spike, wanted, f"{times[spike]} s after {times[spike - 1]} s")
            return Events(times, units.astype(np.uint16, copy=False), offsets)

    def chunks(self) -> Iterator[Events]:
        """All utterances in order, some at once."""
        return (self.read(range(start, min(start + CHUNK, len(self)))) for start in range(0, len(self), CHUNK))


class EventCache:
    """The spikes of an :class:`EventFile` as NumPy arrays on disk, read without HDF5.

    The folder is named by the file's sha256, so that a changed file has another cache; it appears
    whole or not at all, and is made anew if it is not readable. It holds spikes and not frames: one
    cache serves every grid and augmentation, and takes 4 bytes a spike.

    Args:
        file: where the spikes come from.
        folder: holds the caches of any number of files; made if need be.

    Attributes:
        path: folder of this cache.

    Raises:
        ValueError: if an utterance of the file is damaged (as :meth:`EventFile.read`).
        OSError: if the folder cannot be written.
    """

    def __init__(self, file: EventFile, folder: str | PathLike[str]) -> None:
        folder = Path(folder)
        self.path = folder / f"{file.path.name.split('.')[0]}-{sha256_of(file.path)[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):  # one process makes it, others wait
            try:
                self._load()
            except (OSError, ValueError, EOFError):  # not there, or damaged
                for old in (self.path, making := self.path.with_suffix(".making")):
                    shutil.rmtree(old, ignore_errors=True)
                self._build(file, making)
                making.rename(self.path)
                self._load()

    @staticmethod
    def _build(file: EventFile, folder: Path) -> None:
        folder.mkdir()
        offsets = np.concatenate([[0], np.cumsum(file.counts)])
        np.save(folder / "offsets.npy", offsets)
        arrays = {"times": file.times_dtype, "units": np.dtype(np.uint16)}
        times, units = (
            np.lib.format.open_memmap(folder / f"{name}.npy", "w+", dtype, (int(offsets[-1]),))
            for name, dtype in arrays.items()
        )
        at = 0
        for part in file.chunks():
            times[at : at + len(part.times)], units[at : at + len(part.times)] = part.times, part.units
            at += len(part.times)

    def _load(self) -> None:
        times, units, self._offsets = (
            np.load(self.path / f"{name}.npy", mmap_mode="r") for name in ("times", "units", "offsets")
        )
        self._times, self._units = np.asarray(times), np.asarray(units)  # plain arrays are sliced faster
        if not len(times) == len(units) == self._offsets[-1]:
            raise ValueError(f"{self.path}: the cache is damaged.")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path = state["path"]
        self._load()

    def read(self, indices: Sequence[int] | np.ndarray) -> Events:
        """The spikes of some utterances, in the order of the indices.

        Raises:
            IndexError: if there is no such utterance.
        """
        indices = _checked_indices(self.path, indices, len(self))
        starts, ends = self._offsets[indices], self._offsets[indices + 1]
        places = [slice(a, b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        times, units = (np.concatenate([values[p] for p in places]) for values in (self._times, self._units))
        return Events(times, units, np.concatenate([[0], np.cumsum(ends - starts)]))


def _checked_indices(path: Path, indices: Sequence[int] | np.ndarray, n: int) -> np.ndarray:
    indices = np.asarray(indices, dtype=np.int64).reshape(-1)
    if len(indices) == 0 or indices.min() < 0 or indices.max() >= n:
        raise IndexError(f"{path}: utterances run from 0 to {n - 1}, got {indices.tolist()}.")
    return indices


# Augmentations


Augmentation = Callable[[Events, np.random.Generator], Events]  # changed events of the same utterances


@dataclass(frozen=True)
class ChannelJitter:
    r"""Move each spike to a neighbouring unit.

    .. math:: u' = \mathrm{round}(u + \sigma \xi), \quad \xi \sim N(0, 1) \text{ for every spike}

    A spike moved beyond units 0 to 699 is dropped.

    Args:
        sigma: deviation, in units.

    Raises:
        ValueError: if sigma is negative or not finite.

    Source: Cramer et al., IEEE TNNLS 33 (2022) (noise on the index of the unit).
    """

    sigma: float = 20.0

    def __post_init__(self) -> None:
        positive("sigma", self.sigma, zero_allowed=True)

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        """Draw one normal number for every spike."""
        units = np.rint(events.units + self.sigma * random.standard_normal(len(events.units), np.float32))
        keep = (units >= 0) & (units < UNITS)
        return _subset(events._replace(units=units.clip(0, UNITS - 1).astype(np.uint16)), keep)


@dataclass(frozen=True)
class TimeStretch:
    r"""Speak faster or slower.

    .. math:: t' = a\, t, \quad a \sim U(\mathrm{low}, \mathrm{high}) \text{ for every utterance}

    tonic calls it ``TimeSkew(coefficient=(low, high))``.

    Args:
        low: smallest factor.
        high: largest factor.

    Raises:
        ValueError: if the factors are not positive, or low is above high.

    Source: T. Nowotny, J. P. Turner, J. C. Knight, Neuromorphic Computing and Engineering 5 (2025),
    for SHD, with a uniform in its logarithm; of the sound itself: T. Ko et al., "Audio augmentation
    for speech recognition", Interspeech 2015.
    """

    low: float = 0.8
    high: float = 1.2

    def __post_init__(self) -> None:
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

    Args:
        p: probability that a spike is dropped.

    Raises:
        ValueError: if p is not in [0, 1).

    Source: Gu et al., "EventDrop: Data Augmentation for Event-based Learning", IJCAI 2021.
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.p < 1:
            raise ValueError(f"p must be a probability in [0, 1), got {self.p}.")

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        """Draw one uniform number for every spike."""
        return _subset(events, random.random(len(events.times), np.float32) >= self.p)


def _subset(events: Events, keep: np.ndarray) -> Events:
    """Some of the spikes; an utterance without spikes stays."""
    before = np.concatenate([[0], np.cumsum(keep)])
    return Events(events.times[keep], events.units[keep], before[events.offsets])
