"""The spikes of an HDF5 file as flat arrays on disk: read only once."""

from collections.abc import Iterator
from itertools import pairwise
from os import PathLike
from typing import NamedTuple

import numpy as np

from neurolsc.datasets.cache import Cache
from neurolsc.datasets.events import EventFile, Events, checked_times, checked_units
from neurolsc.datasets.store import Building, Rows, opened

__all__ = ["EventCache"]

UNITS = np.dtype("<u2")


class _Spikes(NamedTuple):
    offsets: np.ndarray
    rows: Rows


class EventCache(Cache[_Spikes, Events]):
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
        self._times = file.times_dtype.newbyteorder("<")
        super().__init__(file, folder, {"times": self._times.str})

    def _look(self) -> _Spikes:
        tables, rows = opened(self.path, self._about, {"offsets": ("<i8", len(self) + 1)}, self._places)
        return _Spikes(tables["offsets"], rows)

    def _places(self, tables: dict[str, np.ndarray]) -> np.ndarray:
        """Where the row of each utterance starts."""
        offsets = tables["offsets"]
        if offsets[0] != 0 or (np.diff(offsets) < 1).any():
            raise ValueError("offsets do not ascend from 0.")
        return offsets * (self._times.itemsize + UNITS.itemsize)

    def _take(self, opened: _Spikes, indices: np.ndarray) -> Events:
        counts = opened.offsets[indices + 1] - opened.offsets[indices]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        times, units = np.empty(offsets[-1], self._times), np.empty(offsets[-1], UNITS)
        rows, order = opened.rows, indices.tolist()
        new = not all(map(rows.seen.__getitem__, order))
        for i, (a, b) in zip(order, pairwise(offsets.tolist()), strict=True):
            rows.read(i, times[a:b], units[a:b])
        if new:
            checked_times(times, offsets, indices)
            checked_units(units, offsets, indices)
        return Events(times, units, offsets)

    def _fill(self, building: Building, parts: Iterator[tuple[range, Events]]) -> dict[str, np.ndarray]:
        """Of each utterance the times, then the units."""
        total, offsets = 0, [np.zeros(1, np.int64)]
        for _, events in parts:
            times, units = events.times.astype(self._times, copy=False), events.units.astype(UNITS, copy=False)
            for a, b in pairwise(events.offsets.tolist()):
                building.add(times[a:b], units[a:b])
            offsets.append(total + events.offsets[1:])
            total += len(events.times)
        return {"offsets": np.concatenate(offsets)}
