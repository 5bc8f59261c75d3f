"""Spikes of utterances, and a reader that checks HDF5 files in SHD's layout."""

import io
import lzma
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

UNITS = 700
"""Input units of the layout, 0 to 699."""
CLASSES = 20
"""Classes of a file that does not name them: those of SHD."""
XZ_MAGIC = b"\xfd7zXZ\x00"


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


class EventFile:
    """An HDF5 file in SHD's layout, plain or packed by xz (told by its first bytes).

    The layout: ``spikes/times`` (n,), variable-length floats in seconds, ascending;
    ``spikes/units`` (n,), variable-length integers from 0 to 699; ``labels`` (n,) and
    ``extra/speaker`` (n,), integers; ``extra/keys``, the name of each class, which may be missing:
    there are 20 classes then.

    Nothing is kept of the spikes but what a call returns. Every process opens the file for itself,
    so an object may be sent to the workers of a ``DataLoader``, forked or spawned.

    Args:
        path: the file.

    Attributes:
        path: the file.
        labels: class of each utterance (n,), int64.
        speakers: speaker of each utterance (n,), int64.
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
        self._open: tuple[int, Any] | None = None
        file = self._file()
        lengths = {}
        for name in ("spikes/times", "spikes/units", "labels", "extra/speaker"):
            if not isinstance(file.get(name), h5py.Dataset):
                raise ValueError(f"{path}: a file in SHD's layout has a data set {name}, this one has none.")
            if file[name].ndim != 1:
                raise ValueError(f"{path}: {name} must have one entry for each utterance, got {file[name].shape}.")
            lengths[name] = len(file[name])
        if len(set(lengths.values())) != 1 or lengths["labels"] == 0:
            told = ", ".join(f"{length} in {name}" for name, length in lengths.items())
            raise ValueError(f"{path}: all parts must have as many entries as there are utterances, got {told}.")
        for name, kind, word in (("spikes/times", "f", "floats"), ("spikes/units", "iu", "integers")):
            inside = h5py.check_vlen_dtype(file[name].dtype)
            if inside is None or inside.kind not in kind:
                raise ValueError(f"{path}: {name} must hold {word} of variable length, got {file[name].dtype}.")
        self.times_dtype: np.dtype = h5py.check_vlen_dtype(file["spikes/times"].dtype)  # type: ignore[assignment]
        self.labels, self.speakers = self._integers("labels"), self._integers("extra/speaker")
        self.names = self._names()
        wrong = (self.labels < 0) | (self.labels >= len(self.names))
        if wrong.any():
            i = int(wrong.argmax())
            raise ValueError(
                f"{path}: labels must lie in 0 ... {len(self.names) - 1}, got {self.labels[i]} for utterance {i}."
            )

    def __len__(self) -> int:
        """Number of utterances."""
        return len(self.labels)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: everything but the open file."""
        return self.__dict__ | {"_open": None}

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
        wanted, places = np.unique(indices, return_inverse=True)
        first, last = int(wanted[0]), int(wanted[-1])
        # neighbours are read several times as fast as scattered utterances
        selection = slice(first, last + 1) if last - first + 1 == len(wanted) else wanted
        file = self._file()
        try:
            times, units = (file[f"spikes/{name}"][selection][places] for name in ("times", "units"))
        except OSError as error:
            raise ValueError(f"{self.path}: the spikes cannot be read, the file is damaged ({error}).") from error
        counts = [np.fromiter(map(len, parts), np.int64, len(parts)) for parts in (times, units)]
        for bad, told in (
            (counts[0] != counts[1], "{0} times in spikes/times and {1} units in spikes/units"),
            (counts[0] == 0, "no spike in spikes/times"),
        ):
            if bad.any():
                i = int(bad.argmax())
                raise ValueError(
                    f"{self.path}: utterance {indices[i]} has {told.format(counts[0][i], counts[1][i])}; "
                    "each needs spikes, and a unit for every time."
                )
        offsets = np.concatenate([[0], np.cumsum(counts[0])])
        flat_times = _checked_times(np.concatenate(times), offsets, indices, self.path)
        return Events(flat_times, _checked_units(np.concatenate(units), offsets, indices, self.path), offsets)

    def _file(self) -> Any:
        """The open file of this process."""
        if _stamp(self.path) != self._stamp:
            raise ValueError(f"{self.path}: the file has changed since it was opened; make the data set anew.")
        if self._open is None or self._open[0] != os.getpid():
            try:
                with self.path.open("rb") as file:
                    packed = file.read(len(XZ_MAGIC)) == XZ_MAGIC
                content = io.BytesIO(lzma.decompress(self.path.read_bytes())) if packed else self.path
                self._open = os.getpid(), h5py.File(content, "r")
            except (OSError, lzma.LZMAError, EOFError) as error:
                raise ValueError(f"{self.path}: not a whole HDF5 file ({error}).") from error
        return self._open[1]

    def _integers(self, name: str) -> np.ndarray:
        try:
            values = self._file()[name][()]
        except OSError as error:
            raise ValueError(f"{self.path}: {name} cannot be read, the file is damaged ({error}).") from error
        if values.dtype.kind not in "iu":
            raise ValueError(f"{self.path}: {name} must hold integers, got {values.dtype}.")
        return values.astype(np.int64)

    def _names(self) -> list[str]:
        keys = self._file().get("extra/keys")
        if keys is None:
            return [str(label) for label in range(CLASSES)]
        return [key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key) for key in keys[()]]


def _stamp(path: Path) -> tuple[int, int]:
    """Changes when the file does."""
    about = path.stat()
    return about.st_size, about.st_mtime_ns


def _checked_times(times: np.ndarray, offsets: np.ndarray, indices: np.ndarray, path: Path) -> np.ndarray:
    """The times, if they are numbers from 0 on that ascend within every utterance."""

    def refuse(spike: int, told: str) -> None:
        owner = int(np.searchsorted(offsets, spike, "right")) - 1
        raise ValueError(
            f"{path}: spikes/times must be finite, not negative and ascending, got {told} at spike "
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


def _checked_units(units: np.ndarray, offsets: np.ndarray, indices: np.ndarray, path: Path) -> np.ndarray:
    """The units as uint16, if they are from 0 to 699."""
    if units.min() < 0 or units.max() >= UNITS:
        spike = int(((units < 0) | (units >= UNITS)).argmax())
        owner = int(np.searchsorted(offsets, spike, "right")) - 1
        raise ValueError(
            f"{path}: spikes/units must lie in 0 ... {UNITS - 1}, got {units[spike]} at spike "
            f"{spike - offsets[owner]} of utterance {indices[owner]}."
        )
    return units.astype(np.uint16, copy=False)
