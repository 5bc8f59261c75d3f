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
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from neurolsc.locks import WITHOUT_LOCKS
from neurolsc.untrusted.refusal import refusing
from neurolsc.untrusted.words import clean

__all__ = ["ROWS", "Building", "Store", "check_size", "opened", "ready"]

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


@dataclass(frozen=True, eq=False)
class Store:
    """An opened folder. Its file of rows stays open: what replaces it does not touch a reader.

    Attributes:
        path: the folder.
        tables: the arrays in memory, by name.
        rows: descriptor of the file of rows.
        seen: a byte for each utterance, 1 if its row was checked; shared by forked processes.
    """

    path: Path
    tables: dict[str, np.ndarray]
    rows: int
    seen: mmap.mmap

    def __post_init__(self) -> None:
        """Close the file with the last reader."""
        weakref.finalize(self, os.close, self.rows)

    def read(self, i: int, at: int, *parts: Any) -> None:
        """Fill contiguous arrays with the row of utterance i, which starts at a byte.

        Raises:
            ValueError: if the file ends before, or the row is read for the first time and is not
                what was written.
        """
        got, size = os.preadv(self.rows, parts, at), sum(part.nbytes for part in parts)
        if got != size:  # cut short; only rows beyond 2 GB come in pieces
            raise ValueError(f"the row of utterance {i} has {got} bytes instead of {size}.")
        if not self.seen[i]:
            check = 0
            for part in parts:
                check = zlib.crc32(part, check)
            if check != self.tables["checks"][i]:
                raise ValueError(f"the row of utterance {i} is not what was written.")
            self.seen[i] = 1


def opened(path: Path, told: dict[str, Any], tables: dict[str, tuple[str, int]]) -> Store:
    """Open a folder and check all but its rows.

    Args:
        path: the folder.
        told: what ``about.json`` must say besides the format and the checksums.
        tables: dtype and number of entries of each table.

    Raises:
        ValueError: if anything is not as it was written; the message says what.
    """
    with refusing(path, "the cache is damaged"):
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
        rows = os.open(path / ROWS, os.O_RDONLY | os.O_CLOEXEC)
    return Store(path, found, rows, mmap.mmap(-1, told["utterances"]))


def check_size(store: Store, size: int) -> None:
    """Compare the length of the rows with the one that they must have.

    Raises:
        ValueError: if it is another.
    """
    got = os.fstat(store.rows).st_size
    if got != size:
        raise ValueError(f"{store.path}: the cache is damaged ({ROWS} has {got} bytes instead of {size}).")


def _parsed(text: bytes) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)


def ready(path: Path, opener: Callable[[], Store], build: Callable[[Path], None]) -> Store:
    """Open a folder; make it if it is not there, and anew if it is damaged.

    Args:
        path: the folder.
        opener: opens it, or raises ValueError.
        build: fills a temporary folder, which then takes the name.

    Raises:
        ValueError: if it cannot be made from its source.
        OSError: if it cannot be written.
    """
    if path.exists():
        try:
            return opener()
        except ValueError as error:
            warnings.warn(f"a damaged cache is made anew: {error}", RuntimeWarning, stacklevel=4)
    try:
        with _alone(path) as alone:
            with contextlib.suppress(ValueError):  # another process was first
                if path.exists():
                    return opener()
            if alone:
                _remove_leftovers(path)
            building = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            building.mkdir()
            try:
                build(building)
                _put(building, path)
            finally:
                shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        told = f"the cache cannot be made ({error.strerror or error})"
        raise OSError(error.errno, told, error.filename or str(path)) from error
    return opener()


def _put(building: Path, path: Path) -> None:
    """Give a folder its name; one that is there makes way, and can be read on by who has it."""
    old = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        if path.exists():
            path.rename(old)
        with contextlib.suppress(FileExistsError):  # without a lock another was first
            building.rename(path)
    finally:
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Hold the lock of a folder; a process that dies lets go of it.

    Yields:
        Whether there is one: some shared disks have none. Then several processes may build at once,
        and the last one stays.
    """
    lock = filelock.FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire()
    except OSError as error:
        if error.errno not in WITHOUT_LOCKS:
            raise
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


def _remove_leftovers(path: Path) -> None:
    """Remove what builders of the folder left behind: nobody else builds while we hold the lock."""
    for left in path.parent.iterdir():
        if left.name.startswith(f".{path.name}.") and left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)


def _crc(about: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())
