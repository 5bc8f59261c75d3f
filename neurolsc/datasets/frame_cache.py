"""The frames of an HDF5 file on disk: binned once, then copied."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from os import PathLike
from typing import NamedTuple

import numpy as np
import torch

from neurolsc.datasets.binning import Binning, Frames
from neurolsc.datasets.cache import Cache
from neurolsc.datasets.events import EventFile, Events
from neurolsc.datasets.store import Building, Rows, opened

__all__ = ["FrameCache"]

HELD = 64_000_000
"""bytes of frames up to which they are held in memory"""


class _Opened(NamedTuple):
    left_out: np.ndarray
    frames: Rows | np.ndarray
    """on disk, or if they are few in memory (n, bins, channels)"""


class FrameCache(Cache[_Opened, Frames]):
    """The frames of all utterances of an :class:`EventFile` on one grid, each frame once.

    The fastest way to a dense batch, for n bins N bytes on disk: 1.4 GB for the training file of
    SHD at 4 ms and 700 channels, 57 MB at 20 ms and 140. The folder is named by the file's sha256
    and the settings, and appears whole or not at all; of several processes that want it at once one
    makes it and the others wait. Its space is reserved first: a full disk is told before the work.

    Every utterance has a checksum. A cache of up to 64 MB is read into memory when it is opened,
    and checked there; forked processes share it. Of a larger one each utterance is checked when it
    is first read. A cache that is damaged, also one that is cut short while it is read, is made
    anew, with a warning.

    Args:
        file: where the spikes come from.
        folder: holds the caches of any number of files; made if need be.
        binning: the grid, with a window.

    Attributes:
        path: folder of this cache.

    Raises:
        ValueError: if the grid has no window, an utterance of the file is damaged (as
            :meth:`EventFile.read`), or a bin holds more than 255 spikes; nothing is left
            half-written.
        OSError: if the folder cannot be written, or has too little space.
    """

    def __init__(self, file: EventFile, folder: str | PathLike[str], binning: Binning) -> None:
        if binning.window is None:
            raise ValueError("frames of unequal length are not cached: give a window, or cache the spikes.")
        self.binning, self._once = binning, replace(binning, repeat=1)
        grid = json.dumps(asdict(self._once), sort_keys=True)
        super().__init__(file, folder, {"grid": grid}, f"-{hashlib.sha256(grid.encode()).hexdigest()[:8]}")

    @property
    def left_out(self) -> np.ndarray:
        """Spikes of each utterance at the end of the window or later (n,), int64."""
        return self._opened().left_out

    @property
    def _shape(self) -> tuple[int, int, int]:
        """Utterances, bins and channels."""
        assert self._once.steps is not None
        return len(self), self._once.steps, self._once.channels

    def _look(self) -> _Opened:
        n, bins, channels = self._shape
        places = np.arange(n + 1) * (bins * channels)
        tables, rows = opened(self.path, self._about, {"left_out": ("<i8", n)}, lambda _: places)
        frames = rows.all().reshape(self._shape) if places[-1] <= HELD else rows
        return _Opened(tables["left_out"], frames)

    def _take(self, opened: _Opened, indices: np.ndarray) -> Frames:
        """As :meth:`Binning.dense` makes them."""
        repeat = self.binning.repeat
        if isinstance(opened.frames, Rows):
            x = self._read(opened.frames, indices.tolist())
        else:
            x = opened.frames[indices]
            x = x if repeat == 1 else x.repeat(repeat, axis=1)
        return Frames(torch.from_numpy(x).transpose(0, 1), None, torch.from_numpy(opened.left_out[indices]))

    def _read(self, rows: Rows, indices: list[int]) -> np.ndarray:
        """Frames from the disk (B, T, channels)."""
        (_, bins, channels), repeat = self._shape, self.binning.repeat
        x = np.empty((len(indices), bins, repeat, channels), np.uint8)
        once = np.empty((bins, channels), np.uint8)  # small enough to stay in the processor's cache
        for item, i in zip(x, indices, strict=True):
            place = item if repeat == 1 else once
            rows.read(i, place)
            if place is once:
                item[:] = once[:, None]
        return x.reshape(len(indices), bins * repeat, channels)

    def _fill(self, building: Building, parts: Iterator[tuple[range, Events]]) -> dict[str, np.ndarray]:
        n, bins, channels = self._shape
        left_out = np.zeros(n, np.int64)
        building.reserve(n * bins * channels)
        for part, events in parts:
            made = self._once.dense(events)
            for frames in made.x.transpose(0, 1).numpy():
                building.add(frames)
            left_out[part.start : part.stop] = made.left_out.numpy()
        return {"left_out": left_out}
