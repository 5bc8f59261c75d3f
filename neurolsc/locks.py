"""One process at a time: a lock that ends with its owner, who is told by name to all others."""

import contextlib
import datetime
import errno
import os
import socket
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

__all__ = ["WITHOUT_LOCKS", "alone", "alone_if", "lock_of"]

WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP)
"""what a disk says that has no locks; of ENOSYS filelock itself knows"""


def lock_of(path: Path) -> Path:
    """The file that is locked for a path: hidden, beside it."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def alone(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Be the only one, of all processes and threads, who works on a path.

    The lock is the operating system's: it ends with its process, however that ends, so that nothing
    is ever stale. On a shared disk it holds between machines where the disk carries locks from one
    to the other (NFS 4, NFS 3 with its lock manager, Lustre with ``flock``, GPFS). Where a disk has
    no locks at all, the existence of the file stands for one; of an owner on the same machine that
    is dead it is taken over, one of another machine must be removed by hand.

    Args:
        path: what is worked on; its folder must be there.
        wait: for who is at it, instead of being refused. The file of the lock then stays. Where a
            disk has no locks nobody waits: for a dead owner that would be for ever.

    Yields:
        Whether there is a lock; always, unless one would wait.

    Raises:
        BlockingIOError: at once, if somebody else is at it; the message names the owner.
        OSError: if the lock cannot be made.
    """
    file = lock_of(path)
    lock = _acquired(file, path, wait)
    signed = lock is not None and not isinstance(lock, SoftFileLock)
    try:
        if signed:
            _sign(file)
        yield lock is not None
    finally:
        if signed and not wait:
            with contextlib.suppress(OSError):
                file.unlink()  # who has opened it meanwhile sees that it is gone, and opens a new one
        if lock is not None:
            lock.release()


def alone_if(path: str | PathLike[str] | None) -> contextlib.AbstractContextManager[object]:
    """Be alone with a file, by whatever link it is named; without one there is nothing to lock.

    Raises:
        FileNotFoundError: if its folder is not there.
        BlockingIOError, OSError: as :func:`alone`.
    """
    if path is None:
        return contextlib.nullcontext()
    file = Path(os.path.realpath(path))
    if not file.parent.exists():  # the lock would make it
        raise FileNotFoundError(errno.ENOENT, "its folder is not there", os.fspath(path))
    return alone(file)


def _acquired(file: Path, path: Path, wait: bool) -> BaseFileLock | None:
    while True:
        lock = FileLock(file)
        try:
            return _try(lock, wait)
        except Timeout:
            pass
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            file.unlink(missing_ok=True)
            if wait:
                return None
            lock = SoftFileLock(file.with_suffix(".softlock"))
            with contextlib.suppress(Timeout):
                return _try(lock)
        owner = _owner(Path(lock.lock_file))
        if owner is not None:  # else it has just gone
            soft = isinstance(lock, SoftFileLock)
            cure = f"or remove {lock.lock_file} if it is dead" if soft else "stop it, or choose another path"
            raise BlockingIOError(f"{path} is in use by process {owner}. Wait until that ends, {cure}.")


def _try(lock: BaseFileLock, wait: bool = False) -> BaseFileLock:
    lock.acquire(blocking=wait)
    return lock


def _sign(file: Path) -> None:
    """Write down who holds the lock."""
    now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
    descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0))
    with open(descriptor, "w", encoding="utf-8") as opened:
        opened.write(f"{os.getpid()} on {socket.gethostname()} since {now}")


def _owner(file: Path) -> str | None:
    """What the owner wrote; None if the lock is gone."""
    try:
        return " ".join(file.read_text(encoding="utf-8", errors="replace")[:200].split()) or "(unknown)"
    except FileNotFoundError:
        return None
    except OSError:
        return "(unknown)"
