"""The spikes of an HDF5 file as flat arrays on disk: read only once."""

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from neurolsc.datasets.events import EventFile, Events, checked_times, checked_units
from neurolsc.datasets.store import Building, Store, check_size, opened, ready
from neurolsc.files import atomic_write
from neurolsc.untrusted.refusal import refusing

LONGEST_NOTE = 1000
UNITS = np.dtype("<u2")
CHUNK = 256
"""Utterances read at once while a cache is made; bounds its memory."""


class EventCache:
    """A copy of the spikes of an :class:`EventFile` that is read without HDF5.

    It holds times and units of one utterance behind the other in a folder named by the file's
    sha256, and knows nothing of bins: one cache serves every bin width, window and grouping, with
    and without augmentation, and takes 4 bytes a spike where frames of 4 ms (:class:`FrameCache`)
    take 25. Nothing is stale: a file with other content has another cache. The folder appears whole
    or not at all; of several processes that want it at once one makes it and the others wait.

    Every utterance has a checksum, compared when it is first read. A cache that is damaged, also
    one that is cut short while it is read, is made anew, with a warning.

    Args:
        file: where the spikes come from.
        folder: holds the caches of any number of files; made if need be.

    Attributes:
        path: folder of this cache.

    Raises:
        ValueError: if an utterance of the file is damaged (as :meth:`EventFile.read`); nothing is
            left half-written.
        OSError: if the folder cannot be written, or has too little space.
    """

    def __init__(self, file: EventFile, folder: str | PathLike[str]) -> None:
        self._file, self._digest = file, digest_of(file.path, Path(folder))
        self.path = Path(folder) / f"{file.path.name.split('.')[0]}-{self._digest[:16]}"
        self._times = file.times_dtype.newbyteorder("<")
        self._store: Store | None = None
        self._opened()

    def __len__(self) -> int:
        """Number of utterances."""
        return len(self._file)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: the path, not what is open."""
        return self.__dict__ | {"_store": None}

    def read(self, indices: Sequence[int] | np.ndarray) -> Events:
        """The spikes of some utterances, in the order of the indices.

        Raises:
            IndexError: if there is no such utterance.
            ValueError, OSError: if the cache is damaged and cannot be made anew.
        """
        indices = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(indices) == 0 or indices.min() < 0 or indices.max() >= len(self):
            raise IndexError(f"{self.path}: utterances run from 0 to {len(self) - 1}, asked for {indices.tolist()}.")
        try:
            return self._read(self._opened(), indices)
        except ValueError:
            self._store = ready(self.path, lambda: self._open(indices), self._build)
            return self._read(self._store, indices)

    def _read(self, store: Store, indices: np.ndarray) -> Events:
        starts, ends = store.tables["offsets"][indices], store.tables["offsets"][indices + 1]
        offsets = np.concatenate([[0], np.cumsum(ends - starts)])
        times, units = np.empty(offsets[-1], self._times), np.empty(offsets[-1], UNITS)
        new = not all(store.seen[i] for i in indices.tolist())
        places = zip(indices.tolist(), (starts * self._spike).tolist(), pairwise(offsets.tolist()), strict=True)
        for i, at, (a, b) in places:
            store.read(i, at, times[a:b], units[a:b])
        if new:
            checked_times(times, offsets, indices)
            checked_units(units, offsets, indices)
        return Events(times, units, offsets)

    def _opened(self) -> Store:
        """The cache as this process has it open."""
        if self._store is None:
            self._store = ready(self.path, self._open, self._build)
        return self._store

    def _open(self, indices: Sequence[int] | np.ndarray = ()) -> Store:
        """Open the folder, and look at some utterances."""
        store = opened(self.path, self._told(), {"offsets": ("<i8", len(self) + 1)})
        offsets = store.tables["offsets"]
        if offsets[0] != 0 or (np.diff(offsets) < 1).any():
            raise ValueError(f"{self.path}: the cache is damaged (offsets do not ascend from 0).")
        check_size(store, int(offsets[-1]) * self._spike)
        if len(indices):
            with refusing(self.path, "the cache is damaged"):
                self._read(store, np.asarray(indices))
        return store

    @property
    def _spike(self) -> int:
        """Bytes of a spike."""
        return self._times.itemsize + UNITS.itemsize

    def _told(self) -> dict[str, Any]:
        return {"source": self._digest, "utterances": len(self), "times": self._times.str}

    def _build(self, folder: Path) -> None:
        """Copy the spikes: of each utterance the times, then the units."""
        total, offsets = 0, [np.zeros(1, np.int64)]
        with Building(folder) as building:
            for start in range(0, len(self), CHUNK):
                events = self._file.read(range(start, min(start + CHUNK, len(self))))
                times, units = events.times.astype(self._times, copy=False), events.units.astype(UNITS, copy=False)
                for a, b in pairwise(events.offsets.tolist()):
                    building.add(times[a:b], units[a:b])
                offsets.append(total + events.offsets[1:])
                total += len(events.times)
            check_unchanged(self._file.path, self._digest)
            building.finish(self._told(), {"offsets": np.concatenate(offsets)})


def check_unchanged(path: Path, digest: str) -> None:
    """Refuse a file that is not the one that was hashed.

    Raises:
        ValueError: if its sha256 is another one.
    """
    if _hash(path) != digest:
        raise ValueError(f"{path}: the file has changed while its cache was made; make the data set anew.")


def digest_of(path: Path, folder: Path) -> str:
    """The file's sha256, remembered in the folder of caches.

    It is made anew when the size or the time of change differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    about = path.stat()
    stamp = [about.st_size, about.st_mtime_ns]
    where = os.fspath(path.resolve())
    note = folder / f".{hashlib.sha256(where.encode()).hexdigest()[:16]}.json"
    try:
        known = json.loads(note.read_bytes()[:LONGEST_NOTE])
        if known["stamp"] == stamp and known["crc32"] == _crc(where, stamp, known["sha256"]):
            return known["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # not seen yet, or the note is damaged: the file itself decides
    digest = _hash(path)
    content = json.dumps({"stamp": stamp, "sha256": digest, "crc32": _crc(where, stamp, digest)}).encode()
    with suppress(OSError):  # a folder that cannot be written: it only saves time
        atomic_write(note, lambda file: file.write(content))
    return digest


def _crc(where: str, stamp: list[int], digest: str) -> int:
    return zlib.crc32(f"{where} {stamp} {digest}".encode())


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
