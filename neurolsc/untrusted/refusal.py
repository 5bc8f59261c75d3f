"""One kind of error for a bad file."""

import csv
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike

import numpy as np

from neurolsc.untrusted.words import clean

__all__ = ["refusing"]

FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    csv.Error,
    lzma.LZMAError,
    struct.error,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
"""what readers, and the libraries that they call, raise at content that they did not expect"""
LONGEST = 600
"""characters of a message that a library made of a file's content"""


@contextmanager
def refusing(path: str | PathLike[str], what: str) -> Iterator[None]:
    """Turn what a bad file causes inside into a ``ValueError`` that names the file.

    A ``ValueError`` is taken to say what is wrong and where, and only gets the name in front;
    anything else is told with its type after `what`. The error itself stays as ``__cause__``, so
    that a mistake in the reader can still be found. Open the file before: that it is missing is
    no fault of its content. Numbers out of range are judged by what they become, without a warning
    of NumPy's.

    Args:
        path: the file.
        what: said of it where the error says too little, such as "the file is damaged".

    Raises:
        ValueError: if the block raises an error of :data:`FAULTS`.

    Example:
        >>> with refusing("a.h5", "the file is damaged"):
        ...     {}["labels"]
        Traceback (most recent call last):
        ValueError: a.h5: the file is damaged (KeyError: 'labels').
    """
    name = os.fspath(path)
    try:
        with np.errstate(all="ignore"):
            yield
    except FAULTS as error:
        if isinstance(error, ValueError) and not isinstance(error, UnicodeError):
            raise ValueError(f"{name}: {clean(error, LONGEST)}") from error
        raise ValueError(f"{name}: {what} ({type(error).__name__}: {clean(error, LONGEST)}).") from error
