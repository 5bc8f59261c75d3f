"""Spikes of utterances, and a reader that checks HDF5 files in SHD's layout."""

import io
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from neurolsc.io import clean, refusing
from neurolsc.untrusted.hdf5 import Content, Part, text
from neurolsc.untrusted.lists import Lists
from neurolsc.untrusted.packed import opened, read_most

UNITS = 700
"""Input units of the layout, 0 to 699."""
CLASSES = 20
"""Classes of a file that does not name them: those of SHD."""
MOST_CLASSES = 10_000
MOST_SPEAKERS = 100_000
SPEAKERS = "extra/speaker"
LAYOUT = ("spikes/times", "spikes/units", "labels", SPEAKERS)
NOT_WHOLE = "not a whole HDF5 file"


class Events(NamedTuple):
    """Spikes of B utterances, one utterance after the other."""

    times: np.ndarray
    """time of each spike, in seconds (S,), floating point, ascending within an utterance"""
    units: np.ndarray
    """unit of each spike (S,), uint16, below 700"""
    offsets: np.ndarray
    """the spikes of utterance i stand from offsets[i] to offsets[i + 1]; (B + 1,), int64, from 0 to
    S"""

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
    """An HDF5 file in SHD's layout, plain or packed by xz (told by its first bytes).

    The layout: ``spikes/times`` (n,), variable-length floats in seconds, ascending;
    ``spikes/units`` (n,), variable-length integers from 0 to 699; ``labels`` (n,),
    integers from 0 on. These may be missing: ``extra/speaker`` (n,), integers from 0 on (below
    100,000); ``extra/keys``, the name of each class (at most 10,000; else there are 20 classes).
    Names are cut at 80 characters, and what is not printable in them is shown as an escape.

    The file is taken for one that anybody may have made. What it states is compared with its length
    before memory is taken for it (packed by xz it may be 16 times its length and 64 MiB more), and
    links, external storage and virtual data sets, which lead to other files, are refused.

    Nothing is kept of the spikes but what a call returns. Every process opens the file for itself,
    so an object may be sent to the workers of a ``DataLoader``, forked or spawned.

    Args:
        path: the file.

    Attributes:
        path: the file.
        labels: class of each utterance (n,), int64.
        speakers: speaker of each utterance (n,), int64; -1 where the file does not say.
        names: name of each class.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not an HDF5 file, cut off, lacks a part of the layout, or its parts do
            not fit together; the message names file, part and utterance.

    Source: B. Cramer, Y. Stradmann, J. Schemmel, F. Zenke, "The Heidelberg Spiking Data Sets for
    the Systematic Evaluation of Spiking Neural Networks", IEEE TNNLS 33 (2022).
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        self._stamp = _stamp(self.path)
        self._open: tuple[int, Content] | None = None
        self._lists: tuple[Content, Lists, Lists] | None = None
        with refusing(self.path, NOT_WHOLE):
            self._check(self._file())

    def _check(self, content: Content) -> None:
        """Look at all of the layout but the spikes."""
        parts: dict[str, Part] = {}
        spoken = content.has(SPEAKERS)
        for name in LAYOUT if spoken else LAYOUT[:-1]:
            if not content.has(name):
                raise ValueError(f"a file in SHD's layout has a data set {name}, this one has none.")
            parts[name] = content.dataset(name)
            if len(parts[name].shape) != 1:
                raise ValueError(f"{name} must have one entry for each utterance, got {parts[name].shape}.")
        lengths = {name: part.size for name, part in parts.items()}
        if len(set(lengths.values())) != 1 or lengths["labels"] == 0:
            told = ", ".join(f"{length} in {name}" for name, length in lengths.items())
            raise ValueError(f"all parts must have as many entries as there are utterances, got {told}.")
        for name, kind, word in (("spikes/times", "f", "floats"), ("spikes/units", "iu", "integers")):
            whole = parts[name].dtype
            inside = h5py.check_vlen_dtype(whole)
            if inside is None or inside.kind not in kind or inside.itemsize > 8:
                raise ValueError(f"{name} must hold {word} of variable length, got {whole}.")
            if kind == "f":
                self.times_dtype: np.dtype = inside.newbyteorder("=")
        self.names = _names(content)
        self.labels = _integers(content, "labels", len(self.names))
        self.speakers = _integers(content, SPEAKERS, MOST_SPEAKERS) if spoken else np.full(len(self.labels), -1)

    def __len__(self) -> int:
        """Number of utterances."""
        return len(self.labels)

    def __repr__(self) -> str:
        speakers = len(np.unique(self.speakers[self.speakers >= 0]))
        name = clean(self.path.name)
        return f"EventFile({name}, {len(self)} utterances, {len(self.names)} classes, {speakers} speakers)"

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: everything but the open file."""
        return self.__dict__ | {"_open": None, "_lists": None}

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
                before; if the file is damaged or has changed since it was opened. The message names
                file, part and utterance.
        """
        indices = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(indices) == 0 or indices.min() < 0 or indices.max() >= len(self):
            raise IndexError(f"{self.path}: utterances run from 0 to {len(self) - 1}, asked for {indices.tolist()}.")
        with refusing(self.path, "the spikes cannot be read, the file is damaged"):
            content, times, units = self._spikes()
            offsets = _offsets(times, units, indices, content.length)
            parts = [np.empty(offsets[-1], lists.dtype) for lists in (times, units)]
            places = zip(indices.tolist(), offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
            for i, a, b in places:
                times.read(i, parts[0][a:b])
                units.read(i, parts[1][a:b])
            flat = checked_times(_native(parts[0]), offsets, indices)
            return Events(flat, checked_units(parts[1], offsets, indices), offsets)

    def _spikes(self) -> tuple[Content, Lists, Lists]:
        """The open file of this process, and where its spikes lie."""
        content = self._file()
        if self._lists is None or self._lists[0] is not content:
            times, units = (content.lists(content.dataset(name)) for name in LAYOUT[:2])
            self._lists = content, times, units
        return self._lists

    def _file(self) -> Content:
        """The open file of this process."""
        if _stamp(self.path) != self._stamp:
            raise ValueError("the file has changed since it was opened; make the data set anew.")
        if self._open is None or self._open[0] != os.getpid():
            source: Path | bytes = self.path
            with opened(self.path) as (unpacked, room):
                if not isinstance(unpacked, io.BufferedReader):
                    source = read_most(unpacked, room.left)
                    room.take(len(source), "its content")
            self._open = os.getpid(), Content(source)
        return self._open[1]


def _offsets(times: Lists, units: Lists, indices: np.ndarray, length: int) -> np.ndarray:
    """Where the spikes of each utterance start, if it has some, and a unit for every time."""
    counts = [lists.lengths[indices] for lists in (times, units)]
    for bad, told in (
        (counts[0] != counts[1], "{0} times in spikes/times and {1} units in spikes/units"),
        (counts[0] == 0, "no spike in spikes/times"),
    ):
        if bad.any():
            i = int(bad.argmax())
            raise ValueError(
                f"utterance {indices[i]} has {told.format(counts[0][i], counts[1][i])}; "
                "each needs spikes, and a unit for every time."
            )
    different = np.unique(indices)
    if sum(lists.lengths[different].sum() * lists.dtype.itemsize for lists in (times, units)) > length:
        raise ValueError("spikes: together the utterances are longer than the file.")
    return np.concatenate([[0], np.cumsum(counts[0])])


def _integers(content: Content, name: str, end: int) -> np.ndarray:
    values = content.values(name, 1, "iu")
    wrong = (values < 0) | (values >= end)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(f"{name} must lie in 0 ... {end - 1}, got {values[i]} for utterance {i}.")
    return values.astype(np.int64)


def _names(content: Content) -> list[str]:
    if not content.has("extra/keys"):
        return [str(label) for label in range(CLASSES)]
    keys = content.values("extra/keys", 1, "SO")
    if len(keys) > MOST_CLASSES:
        raise ValueError(f"extra/keys names {len(keys)} classes, at most {MOST_CLASSES} are read.")
    return [text(key) for key in keys]


def _stamp(path: Path) -> tuple[int, int]:
    """Changes when the file does."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _native(values: np.ndarray) -> np.ndarray:
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def checked_times(times: np.ndarray, offsets: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The times, if they are numbers from 0 on that ascend within every utterance."""

    def refuse(spike: int, told: str) -> None:
        owner = int(np.searchsorted(offsets, spike, "right")) - 1
        raise ValueError(
            f"spikes/times must be finite, not negative and ascending, got {told} at spike "
            f"{spike - offsets[owner]} of utterance {indices[owner]}."
        )

    # Floats that are not negative have the order of their bits, with infinity and then NaN at the
    # end. Compared as integers, they are checked several times as fast as half-precision numbers.
    integer = f"u{times.itemsize}"
    if times.view(integer).max() >= np.array(np.inf, times.dtype).view(integer):
        bad = ~((times >= 0) & (times < np.inf))
        if bad.any():
            spike = int(bad.argmax())
            refuse(spike, f"{times[spike]} s")
        times = np.abs(times)  # only -0.0 was left
    bits = times.view(integer)
    falls = bits[1:] < bits[:-1]
    falls[offsets[1:-1] - 1] = False
    if falls.any():
        spike = int(falls.argmax()) + 1
        refuse(spike, f"{times[spike]} s after {times[spike - 1]} s")
    return times


def checked_units(units: np.ndarray, offsets: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """The units as uint16, if they are from 0 to 699."""
    if units.min() < 0 or units.max() >= UNITS:
        spike = int(((units < 0) | (units >= UNITS)).argmax())
        owner = int(np.searchsorted(offsets, spike, "right")) - 1
        raise ValueError(
            f"spikes/units must lie in 0 ... {UNITS - 1}, got {units[spike]} at spike "
            f"{spike - offsets[owner]} of utterance {indices[owner]}."
        )
    return units.astype(np.uint16, copy=False)
