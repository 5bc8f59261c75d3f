"""The frames of an HDF5 file on disk: binned once, then copied."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neurolsc.datasets.binning import Binning, Frames
from neurolsc.datasets.cache import CHUNK, check_unchanged, digest_of
from neurolsc.datasets.events import EventFile
from neurolsc.datasets.store import Building, Store, check_size, opened, ready
from neurolsc.untrusted.refusal import refusing


class FrameCache:
    """The frames of all utterances of an :class:`EventFile` on one grid, each frame once.

    The fastest way to a dense batch, for n bins N bytes on disk: 1.4 GB for the training file of
    SHD at 4 ms and 700 channels, 57 MB at 20 ms and 140. The folder is named by the file's sha256
    and the settings, and appears whole or not at all; of several processes that want it at once one
    makes it and the others wait. Its space is reserved first: a full disk is told before the work.

    Every utterance has a checksum, compared when it is first read. A cache that is damaged, also
    one that is cut short while it is read, is made anew, with a warning.

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
        self.binning, self._file = binning, file
        self._once = replace(binning, repeat=1)
        self._digest = digest_of(file.path, Path(folder))
        key = f"{self._digest[:16]}-{hashlib.sha256(self._grid().encode()).hexdigest()[:8]}"
        self.path = Path(folder) / f"{file.path.name.split('.')[0]}-{key}"
        self._store: Store | None = None
        self._opened()

    def __len__(self) -> int:
        """Number of utterances."""
        return len(self._file)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: the path, not what is open."""
        return self.__dict__ | {"_store": None}

    @property
    def left_out(self) -> np.ndarray:
        """Spikes of each utterance at the end of the window or later (n,), int64."""
        return self._opened().tables["left_out"]

    def read(self, indices: Sequence[int] | np.ndarray) -> Frames:
        """Frames of some utterances, in the order asked for, as :meth:`Binning.dense` makes them.

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

    def _read(self, store: Store, indices: np.ndarray) -> Frames:
        bins, channels = self._size
        x = np.empty((len(indices), bins, self.binning.repeat, channels), np.uint8)
        once = np.empty((bins, channels), np.uint8)  # small enough to stay in the processor's cache
        for item, i in zip(x, indices.tolist(), strict=True):
            place = item if self.binning.repeat == 1 else once
            store.read(i, i * once.size, place)
            if place is once:
                item[:] = once[:, None]
        x = torch.from_numpy(x).reshape(len(indices), -1, channels).transpose(0, 1)
        return Frames(x, None, torch.from_numpy(store.tables["left_out"][indices]))

    @property
    def _size(self) -> tuple[int, int]:
        """Bins and channels of an utterance."""
        assert self._once.steps is not None
        return self._once.steps, self._once.channels

    def _grid(self) -> str:
        return json.dumps(asdict(self._once), sort_keys=True)

    def _opened(self) -> Store:
        """The cache as this process has it open."""
        if self._store is None:
            self._store = ready(self.path, self._open, self._build)
        return self._store

    def _open(self, indices: Sequence[int] | np.ndarray = ()) -> Store:
        """Open the folder, and look at some utterances."""
        store = opened(self.path, self._told(), {"left_out": ("<i8", len(self))})
        bins, channels = self._size
        check_size(store, len(self) * bins * channels)
        if len(indices):
            with refusing(self.path, "the cache is damaged"):
                self._read(store, np.asarray(indices))
        return store

    def _told(self) -> dict[str, Any]:
        return {"source": self._digest, "utterances": len(self), "grid": self._grid()}

    def _build(self, folder: Path) -> None:
        bins, channels = self._size
        left_out = np.zeros(len(self), np.int64)
        with Building(folder) as building:
            building.reserve(len(self) * bins * channels)
            for start in range(0, len(self), CHUNK):
                part = range(start, min(start + CHUNK, len(self)))
                made = self._once.dense(self._file.read(part))
                for frames in made.x.transpose(0, 1).numpy():
                    building.add(frames)
                left_out[part.start : part.stop] = made.left_out.numpy()
            check_unchanged(self._file.path, self._digest)
            building.finish(self._told(), {"left_out": left_out})
