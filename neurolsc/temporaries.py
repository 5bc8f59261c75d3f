"""Temporary files that take the place of others, and the removal of those whose writer died.

A temporary lies beside the file that it will replace, under a name that nobody can guess, made by
its writer alone. As long as the writer lives it holds a lock of the operating system on it, which
dies with its process. So whoever finds a temporary that is not locked may remove it.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from os import PathLike
from types import ModuleType
from typing import BinaryIO

try:
    import fcntl as _fcntl
except ImportError:  # on Windows, where nobody can remove a file that its writer has open
    _fcntl = None
fcntl: ModuleType | None = _fcntl

__all__ = ["remove_dead", "replacing"]

_NAME = re.compile(r"\.(.*)\.[0-9a-f]{16}\.neurolsc-tmp", re.S)
_KEPT = 40
"""characters of the other file's name that a temporary's has: names end at 255 bytes"""


@contextlib.contextmanager
def replacing(target: str) -> Iterator[BinaryIO]:
    """Give an open file that takes the place of another one in one instant, if all goes well.

    Its content is on the disk before that. Rights are those that the umask gives.

    Args:
        target: the file; what is there, file or link, is replaced.

    Raises:
        OSError: if the file cannot be written; the old one is then untouched.
    """
    folder, name = os.path.split(target)
    file, temporary = _create(folder, name)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:
                file.close()
            os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def remove_dead(folder: str | PathLike[str], name: str | None = None) -> None:
    """Remove the temporaries in a folder whose writer is dead, and nothing else.

    Args:
        folder: where to look; not in folders below.
        name: only those that were to replace the file of this name.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match and (name is None or match[1] == name[:_KEPT]) and entry.is_file(follow_symlinks=False):
                _remove_if_dead(entry.path)


def _create(folder: str, name: str) -> tuple[BinaryIO, str]:
    while True:
        remove_dead(folder, name)
        path = os.path.join(folder, f".{name[:_KEPT]}.{secrets.token_hex(8)}.neurolsc-tmp")
        file = open(path, "xb")  # noqa: SIM115  the caller closes it
        if fcntl is None or (_locked(file.fileno()) is not False and os.fstat(file.fileno()).st_nlink):
            return file, path
        file.close()  # between the two lines somebody took it for one of the dead


def _remove_if_dead(path: str) -> None:
    with contextlib.suppress(OSError):
        if fcntl is None:
            os.unlink(path)
            return
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if _locked(descriptor):
                os.unlink(path)
        finally:
            os.close(descriptor)


def _locked(descriptor: int) -> bool | None:
    """Whether the lock is ours now; None where the disk has no locks."""
    assert fcntl is not None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
