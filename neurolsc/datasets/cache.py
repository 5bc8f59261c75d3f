"""The spikes of an HDF5 file as flat arrays on disk, mapped into memory: read only once."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from neurolsc.datasets.events import EventFile, Events
from neurolsc.files import atomic_write

FORMAT = 1
CHUNK = 256
"""Utterances read at once while a cache is made; bounds its memory."""


class EventCache:
    """A copy of the spikes of an :class:`EventFile` that is read without HDF5.

    It holds times, units and offsets as three flat arrays in a folder named by the file's sha256,
    and knows nothing of bins: one cache serves every bin width, window and grouping, with and
    without augmentation, and takes 4 bytes a spike where frames of 4 ms (:class:`FrameCache`) take
    25. Nothing is stale: a file with other content has another cache. The folder appears whole or
    not at all; of two processes that make it at once, one puts its own in place and the other uses
    that.

    Args:
        file: where the spikes come from.
        folder: holds the caches of any number of files; made if need be.

    Attributes:
        path: folder of this cache.

    Raises:
        ValueError: if an utterance is damaged (as :meth:`EventFile.read`), or an existing cache is;
            nothing is left half-written.
        OSError: if the folder cannot be written.
    """

    def __init__(self, file: EventFile, folder: str | PathLike[str]) -> None:
        digest = digest_of(file.path, Path(folder))
        self.path = Path(folder) / f"{file.path.name.split('.')[0]}-{digest[:16]}"
        if not self.path.exists():
            _build(file, digest, self.path)
        self._arrays: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
        self._map()

    def __len__(self) -> int:
        """Number of utterances."""
        return len(self._map()[2]) - 1

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: the path, not the content of the maps."""
        return self.__dict__ | {"_arrays": None}

    def read(self, indices: Sequence[int] | np.ndarray) -> Events:
        """The spikes of some utterances, in the order of the indices.

        Raises:
            IndexError: if there is no such utterance.
        """
        times, units, offsets = self._map()
        indices = np.asarray(indices, dtype=np.int64).reshape(-1)
        if len(indices) == 0 or indices.min() < 0 or indices.max() >= len(offsets) - 1:
            raise IndexError(f"{self.path}: utterances run from 0 to {len(self) - 1}, asked for {indices.tolist()}.")
        parts = [slice(a, b) for a, b in zip(offsets[indices].tolist(), offsets[indices + 1].tolist(), strict=True)]
        counts = offsets[indices + 1] - offsets[indices]
        return Events(
            np.concatenate([times[part] for part in parts]),
            np.concatenate([units[part] for part in parts]),
            np.concatenate([[0], np.cumsum(counts)]),
        )

    def _map(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The arrays, mapped by this process."""
        if self._arrays is None:
            try:
                about = json.loads((self.path / "about.json").read_text())
                names = ("times", "units", "offsets")
                sizes = (about["spikes"], about["spikes"], about["utterances"] + 1)
                for name, size in zip(names, sizes, strict=True):
                    wanted = size * np.dtype(about[name]).itemsize
                    got = (self.path / name).stat().st_size
                    if got != wanted:
                        raise ValueError(f"{name} has {got} bytes instead of {wanted}")
                # plain arrays over the maps: slicing a memmap object takes ten times as long
                maps = [np.asarray(np.memmap(self.path / name, about[name], "r")) for name in names]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path}: the cache is damaged ({error}); remove this folder.") from error
            self._arrays = maps[0], maps[1], maps[2]
        return self._arrays


def _build(file: EventFile, digest: str, path: Path) -> None:
    """Copy the spikes into flat arrays."""
    with whole_folder(path) as building:
        total, offsets = 0, [np.zeros(1, np.int64)]
        with (building / "times").open("wb") as times, (building / "units").open("wb") as units:
            for start in range(0, len(file), CHUNK):
                events = file.read(range(start, min(start + CHUNK, len(file))))
                events.times.tofile(times)
                events.units.tofile(units)
                offsets.append(total + events.offsets[1:])
                total += len(events.times)
        np.concatenate(offsets).tofile(building / "offsets")
        check_unchanged(file.path, digest)
        about = {"format": FORMAT, "file": file.path.name, "sha256": digest, "utterances": len(file), "spikes": total}
        about |= {"times": file.times_dtype.str, "units": "<u2", "offsets": "<i8"}
        (building / "about.json").write_text(json.dumps(about, indent=1))


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that is named `path` at the end, unless another was first or it failed."""
    building = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    building.mkdir()
    try:
        yield building
        try:
            building.rename(path)
        except OSError:
            if not path.exists():  # else another process was first, with the same content
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


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
    note = folder / f".{hashlib.sha256(os.fspath(path.resolve()).encode()).hexdigest()[:16]}.json"
    try:
        known = json.loads(note.read_text())
        if known["stamp"] == stamp:
            return known["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # not seen yet, or the note is damaged: the file itself decides
    digest = _hash(path)
    content = json.dumps({"stamp": stamp, "sha256": digest}).encode()
    atomic_write(note, lambda file: file.write(content))
    return digest


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
