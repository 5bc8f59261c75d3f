"""What the caches of an HDF5 file share: made once, checked, and made anew if they are damaged."""

import hashlib
import json
import os
import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from neurolsc.datasets.events import EventFile, Events
from neurolsc.datasets.store import Building, remove_leftovers, replaced
from neurolsc.io import atomic_write, locked, refusing, sha256_of

__all__ = ["CHUNK", "Cache", "digest_of"]

LONGEST_NOTE = 1000
CHUNK = 256
"""Utterances read at once while a cache is made; bounds its memory."""

Opened = TypeVar("Opened")
"""a cache that this process has open"""
Given = TypeVar("Given")
"""what reading gives"""


class Cache(ABC, Generic[Opened, Given]):
    """A folder that is made from an :class:`EventFile`; see :class:`EventCache` and `FrameCache`.

    Args:
        file: where the spikes come from.
        folder: holds the caches of any number of files; made if need be.
        about: what it says of itself, besides its source and length.
        name: what its own name ends in.

    Attributes:
        path: folder of this cache.
    """

    def __init__(self, file: EventFile, folder: str | PathLike[str], about: dict[str, Any], name: str = "") -> None:
        digest = digest_of(file.path, Path(folder))
        self.path = Path(folder) / f"{file.path.name.split('.')[0]}-{digest[:16]}{name}"
        self._file, self._about = file, {"source": digest, "utterances": len(file)} | about
        self._open: Opened | None = None
        self._opened()

    @abstractmethod
    def _look(self) -> Opened:
        """Open the folder.

        Raises:
            ValueError: if it is damaged.
        """

    @abstractmethod
    def _take(self, opened: Opened, indices: np.ndarray) -> Given:
        """Read some utterances.

        Raises:
            ValueError: if it is damaged.
        """

    @abstractmethod
    def _fill(self, building: Building, parts: Iterator[tuple[range, Events]]) -> dict[str, np.ndarray]:
        """Add a row for each utterance, and give the tables."""

    def __len__(self) -> int:
        """Number of utterances."""
        return len(self._file)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: the path, not what is open."""
        return self.__dict__ | {"_open": None}

    def read(self, indices: Sequence[int] | np.ndarray) -> Given:
        """Some utterances, in the order of the indices.

        Raises:
            IndexError: if there is no such utterance.
            ValueError, OSError: if the cache is damaged and cannot be made anew.
        """
        indices = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(indices) == 0 or indices.min() < 0 or indices.max() >= len(self):
            raise IndexError(f"{self.path}: utterances run from 0 to {len(self) - 1}, asked for {indices.tolist()}.")
        try:
            return self._take(self._opened(), indices)
        except ValueError:
            self._open = self._ready(indices)
            return self._take(self._open, indices)

    def _opened(self) -> Opened:
        """The cache as this process has it open."""
        if self._open is None:
            self._open = self._ready(np.zeros(0, np.int64))
        return self._open

    def _ready(self, indices: np.ndarray) -> Opened:
        """Open the folder and look at some utterances; make it first, if need be."""
        if self.path.exists():
            try:
                return self._checked(indices)
            except ValueError as error:
                warnings.warn(f"a damaged cache is made anew: {error}", RuntimeWarning, stacklevel=4)
        try:
            with locked(self.path, wait=True):
                with suppress(ValueError):  # another process was first
                    if self.path.exists():
                        return self._checked(indices)
                remove_leftovers(self.path)
                replaced(self.path, self._build)
        except OSError as error:
            told = f"the cache cannot be made ({error.strerror or error})"
            raise OSError(error.errno, told, error.filename or str(self.path)) from error
        return self._checked(indices)

    def _checked(self, indices: np.ndarray) -> Opened:
        with refusing(self.path, "the cache is damaged"):
            opened = self._look()
            if len(indices):
                self._take(opened, indices)
            return opened

    def _build(self, folder: Path) -> None:
        with Building(folder) as building:
            tables = self._fill(building, self._parts())
            if sha256_of(self._file.path) != self._about["source"]:
                raise ValueError(
                    f"{self._file.path}: the file has changed while its cache was made; make the data set anew."
                )
            building.finish(self._about, tables)

    def _parts(self) -> Iterator[tuple[range, Events]]:
        """All spikes of the file, some utterances at once."""
        for start in range(0, len(self), CHUNK):
            part = range(start, min(start + CHUNK, len(self)))
            yield part, self._file.read(part)


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
    digest = sha256_of(path)
    content = json.dumps({"stamp": stamp, "sha256": digest, "crc32": _crc(where, stamp, digest)}).encode()
    with suppress(OSError):  # a folder that cannot be written: it only saves time
        atomic_write(note, lambda file: file.write(content))
    return digest


def _crc(where: str, stamp: list[int], digest: str) -> int:
    return zlib.crc32(f"{where} {stamp} {digest}".encode())
