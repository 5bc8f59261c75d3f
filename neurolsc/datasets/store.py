"""A folder of arrays that is believed only as far as its checksums go.

A folder appears whole or not at all, is made by one process at a time, and says in ``about.json``
what it was made from. Its arrays are of two kinds: *tables*, of a number or a few for each
utterance, checked when the folder is opened and kept in memory; and *rows*, long, of which an
utterance has a stretch, read when asked for and checked when first read. Rows are read, not mapped
into memory: a mapped file that somebody else cuts short ends the process. Nothing waits for the
disk: what a loss of power left unwritten is found by the checksums.
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
from typing import Any, BinaryIO

import filelock
import numpy as np

from neurolsc.untrusted.refusal import refusing
from neurolsc.untrusted.words import clean

__all__ = ["Building", "Store", "opened", "ready"]

FORMAT = 2
ABOUT = "about.json"
LONGEST = 2**16
"""bytes of about.json"""


class Building:
    """A folder that is being filled, one utterance after the other.

    Args:
        folder: where the files go.
        rows: dtype of every row array, by name.
    """

    def __init__(self, folder: Path, rows: dict[str, np.dtype]) -> None:
        self.folder, self.rows = folder, rows
        self.checks: list[int] = []
        self.files: dict[str, BinaryIO] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> "Building":
        self.files = {name: self._stack.enter_context((self.folder / name).open("wb")) for name in self.rows}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()  # all of them, also where one finds the disk full

    def reserve(self, name: str, size: int) -> None:
        """Take the space of an array now, so that a full disk is told before the work is done.

        Raises:
            OSError: if there is not as much; the message says how much it takes.
        """
        if hasattr(os, "posix_fallocate") and size:
            try:
                os.posix_fallocate(self.files[name].fileno(), 0, size)
            except OSError as error:
                raise OSError(error.errno, f"{error.strerror}; {name} takes {size / 1e6:.0f} MB") from error

    def add(self, **parts: np.ndarray) -> None:
        """Append what one utterance has of every row array."""
        check = 0
        for name, dtype in self.rows.items():
            data = np.ascontiguousarray(parts[name], dtype)
            self.files[name].write(data.data)
            check = zlib.crc32(data.data, check)
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
    """An opened folder. Its files stay open: what replaces them does not touch a reader.

    Attributes:
        path: the folder.
        tables: the arrays in memory, by name.
        rows: descriptor and dtype of each long array.
        seen: which utterances were checked already, shared by forked processes.
    """

    path: Path
    tables: dict[str, np.ndarray]
    rows: dict[str, tuple[int, np.dtype]]
    seen: np.ndarray

    def __post_init__(self) -> None:
        """Close the files with the last reader."""
        for file, _ in self.rows.values():
            weakref.finalize(self, os.close, file)

    def read(self, name: str, start: int, out: np.ndarray) -> None:
        """Fill an array with what a row array has from an element on.

        Raises:
            ValueError: if the file ends before.
        """
        file, dtype = self.rows[name]
        left, at = out.data.cast("B"), start * dtype.itemsize
        while left:
            got = os.preadv(file, [left], at)
            if got == 0:
                raise ValueError(f"{name} ends at byte {at}.")
            left, at = left[got:], at + got

    def check_sizes(self, sizes: dict[str, int]) -> None:
        """Compare the lengths of row arrays with the numbers of elements that they must have.

        Raises:
            ValueError: if one has another.
        """
        for name, (file, dtype) in self.rows.items():
            got, wanted = os.fstat(file).st_size, sizes[name] * dtype.itemsize
            if got != wanted:
                raise ValueError(f"{self.path}: the cache is damaged ({name} has {got} bytes instead of {wanted}).")

    def check(self, i: int, *parts: np.ndarray) -> None:
        """Compare what was read of utterance i, of all row arrays in turn, with its checksum.

        Raises:
            ValueError: if it is another one.
        """
        check = 0
        for part in parts:
            check = zlib.crc32(part.data, check)
        if check != self.tables["checks"][i]:
            raise ValueError(f"utterance {i} is not what was written.")


def opened(path: Path, told: dict[str, Any], tables: dict[str, tuple[str, int]], rows: dict[str, np.dtype]) -> Store:
    """Open a folder and check all but its rows.

    Args:
        path: the folder.
        told: what ``about.json`` must say besides the format and the checksums.
        tables: dtype and number of entries of each table.
        rows: dtype of each row array.

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
        seen = np.frombuffer(mmap.mmap(-1, told["utterances"]), np.uint8)
        files = {name: (os.open(path / name, os.O_RDONLY | os.O_CLOEXEC), dtype) for name, dtype in rows.items()}
    return Store(path, found, files, seen)


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
    except NotImplementedError:
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
