"""A folder of arrays that is believed only as far as its checksums go.

A folder appears whole or not at all, is made by one process at a time, and says in ``about.json``
what it was made from. *Tables* hold a number for each utterance; they are checked when the folder
is opened and kept in memory. The file ``rows`` holds what is long, one utterance behind the other;
a row is read when it is asked for, and checked when it is first read. It is read, not mapped into
memory: a mapped file that somebody else cuts short ends the process. Nothing waits for the disk:
what a loss of power left unwritten is found by the checksums.
"""

import contextlib
import json
import mmap
import os
import shutil
import uuid
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from neurolsc.io import clean
from neurolsc.untrusted.places import Bytes

__all__ = ["ROWS", "Building", "Rows", "opened", "remove_leftovers", "replaced"]

FORMAT = 3
ABOUT = "about.json"
ROWS = "rows"
LONGEST = 2**16
"""bytes of about.json"""


class Building:
    """A folder that is being filled, one utterance after the other.

    Args:
        folder: where the files go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checks: list[int] = []

    def __enter__(self) -> "Building":
        self.file = (self.folder / ROWS).open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def reserve(self, size: int) -> None:
        """Take the space of the rows now, so that a full disk is told before the work is done.

        Raises:
            OSError: if there is not as much; the message says how much it takes.
        """
        if hasattr(os, "posix_fallocate") and size:
            try:
                os.posix_fallocate(self.file.fileno(), 0, size)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror}; it takes {size / 1e6:.0f} MB") from error

    def add(self, *parts: np.ndarray) -> None:
        """Append the row of an utterance, in contiguous parts."""
        check = 0
        for part in parts:
            self.file.write(part.data)
            check = zlib.crc32(part.data, check)
        self.checks.append(check)

    def finish(self, told: dict[str, Any], tables: dict[str, np.ndarray]) -> None:
        """Write the tables, and what the folder is made of."""
        tables = tables | {"checks": np.array(self.checks, "<u4")}
        about: dict[str, Any] = {"format": FORMAT} | told
        about |= {f"{name}.crc32": zlib.crc32(np.ascontiguousarray(table).data) for name, table in tables.items()}
        for name, table in tables.items():
            (self.folder / name).write_bytes(np.ascontiguousarray(table).data)
        (self.folder / ABOUT).write_text(json.dumps(about | {"crc32": _crc(about)}, indent=1))


class Rows:
    """The file of rows: each is checked when it is first read.

    Args:
        path: the file.
        places: where each row starts, and where the last one ends (n + 1,), in bytes.
        checks: the checksum of each row (n,).

    Raises:
        ValueError: if the file does not end with the last row.
    """

    def __init__(self, path: Path, places: np.ndarray, checks: np.ndarray) -> None:
        self.file, self.places, self.checks = Bytes(path), places.tolist(), checks
        self.seen = mmap.mmap(-1, len(checks))  # shared by forked processes: a row that one has checked is checked
        if self.file.length != self.places[-1]:
            raise ValueError(f"{path.name} has {self.file.length} bytes instead of {self.places[-1]}.")

    def read(self, i: int, *parts: np.ndarray) -> None:
        """Fill contiguous arrays with the row of utterance i.

        Raises:
            ValueError: if the file was cut short, or the row is read for the first time and is not
                what was written.
        """
        self.file.into(self.places[i], *parts)
        if not self.seen[i]:
            self._check(i, *parts)
            self.seen[i] = 1

    def all(self) -> np.ndarray:
        """All rows, checked (bytes,), uint8.

        Raises:
            ValueError: as :meth:`read`.
        """
        found = np.empty(self.places[-1], np.uint8)
        self.file.into(0, found)
        for i, (a, b) in enumerate(pairwise(self.places)):
            self._check(i, found[a:b])
        return found

    def _check(self, i: int, *parts: np.ndarray) -> None:
        check = 0
        for part in parts:
            check = zlib.crc32(part.data, check)
        if check != self.checks[i]:
            raise ValueError(f"the row of utterance {i} is not what was written.")


def opened(
    path: Path,
    told: dict[str, Any],
    tables: dict[str, tuple[str, int]],
    places: Callable[[dict[str, np.ndarray]], np.ndarray],
) -> tuple[dict[str, np.ndarray], Rows]:
    """Open a folder and check all but its rows.

    Args:
        path: the folder.
        told: what ``about.json`` must say besides the format and the checksums.
        tables: dtype and number of entries of each table.
        places: says of the tables where the rows are (:class:`Rows`), or raises ValueError.

    Returns:
        The tables by name, and the rows.

    Raises:
        ValueError: if anything is not as it was written; the message says what.
    """
    text = (path / ABOUT).read_bytes()[: LONGEST + 1]
    about = _parsed(text) if len(text) <= LONGEST else None
    names = {*tables, "checks"}
    if not isinstance(about, dict) or about.keys() != {"format", "crc32", *told, *(f"{n}.crc32" for n in names)}:
        raise ValueError(f"{ABOUT} does not have the entries of format {FORMAT}.")
    for name, value in ({"format": FORMAT} | told).items():
        if about[name] != value or type(about[name]) is not type(value):
            raise ValueError(f"{ABOUT} says {name} = {clean(about[name])}, wanted {clean(value)}.")
    if about.pop("crc32") != _crc(about):
        raise ValueError(f"{ABOUT} is not what was written.")
    found = {}
    for name, (dtype, size) in (tables | {"checks": ("<u4", told["utterances"])}).items():
        if (path / name).stat().st_size != size * np.dtype(dtype).itemsize:
            raise ValueError(f"{name} has not {size} entries.")
        found[name] = np.fromfile(path / name, dtype)
        if len(found[name]) != size or zlib.crc32(found[name].data) != about[f"{name}.crc32"]:
            raise ValueError(f"{name} is not what was written.")
    return found, Rows(path / ROWS, places(found), found.pop("checks"))


def _parsed(text: bytes) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)


def replaced(path: Path, build: Callable[[Path], None]) -> None:
    """Give a name to a folder that is filled under another one, so that it is there whole or not.

    A folder of that name makes way, and can be read on by who has it open.
    """
    building, old = (path.with_name(f".{path.name}.{uuid.uuid4().hex}") for _ in range(2))
    building.mkdir()
    try:
        build(building)
        if path.exists():
            path.rename(old)
        with contextlib.suppress(FileExistsError):  # without a lock another was first
            building.rename(path)
    finally:
        for left in (building, old):
            shutil.rmtree(left, ignore_errors=True)


def remove_leftovers(path: Path) -> None:
    """Remove what builders of a folder left behind: nobody else builds while we hold the lock."""
    for left in path.parent.iterdir():
        if left.name.startswith(f".{path.name}.") and left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)


def _crc(about: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())
