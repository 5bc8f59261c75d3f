"""Files that are whole or not there, and trees of tensors and numbers as safetensors.

A file holds tensors and one JSON text that says what they belong to. Reading one runs nothing that
the file brings along. Every write goes to a temporary file in the same folder, which then takes the
place of the old one, so that a crash or a full disk leaves the old file as it was. Equal content
gives equal bytes.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable
from os import PathLike
from typing import Any, BinaryIO

import torch
from torch import Tensor

from neurolsc.temporaries import replacing
from neurolsc.untrusted.refusal import refusing
from neurolsc.untrusted.tensors import Sealed, sealed
from neurolsc.untrusted.words import clean

__all__ = ["atomic_write", "plain", "read", "read_tree", "sha256_of", "write", "write_tree"]

FORMAT = 2


def write_tree(path: str | PathLike[str], tree: object) -> None:
    """Write nested dicts, lists, tuples, tensors, numbers, strings, booleans and None.

    Numbers and tensors are kept bit by bit. Keys may be anything of these but tensors. Subclasses
    (an ordered dict, a named tuple) come back as plain dicts and tuples.

    Args:
        path: the file to write.
        tree: the structure, such as an optimizer's ``state_dict()``.

    Raises:
        TypeError: if the tree holds anything else; the message says where.
        OSError: if the file cannot be written; the message names it.
    """
    tensors: dict[str, Tensor] = {}
    write(path, "tree", _encode(tree, tensors, "tree"), tensors)


def read_tree(path: str | PathLike[str]) -> Any:
    """Read a structure that :func:`write_tree` wrote.

    Tensors come onto the CPU, each with its own memory.

    Raises:
        ValueError: if the file is damaged or holds something else.
        OSError: if it cannot be read.
    """
    structure, tensors = read(path, "tree")
    with refusing(path, "damaged: its structure does not fit its tensors"):
        return _decode(structure, tensors)


def atomic_write(path: str | PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a file whole or not at all.

    Args:
        path: the file; an old one is replaced in one instant, a link is followed.
        write: writes the content into the open binary file that it is given.

    Any number of threads and processes may write one file: the last one stays, and a reader finds
    one or the other, always whole. What a writer left behind when it was killed is removed by the
    next one.

    Raises:
        OSError: if the file cannot be written (its subclass tells why); the old file is then
            untouched.
    """
    target = os.path.realpath(path)
    try:
        if os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target):
            raise OSError(errno.EINVAL, "it is neither a file nor a folder")  # such as /dev/null
        with replacing(target) as file:
            write(file)
    except OSError as error:
        raise OSError(error.errno, f"could not write the file ({error.strerror})", os.fspath(path)) from error


def sha256_of(path: str | PathLike[str]) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits.

    Raises:
        OSError: if it cannot be read.
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _encode(node: object, tensors: dict[str, Tensor], where: str) -> object:
    """The structure as JSON values; what JSON has not is an object with one key, its kind."""
    match node:
        case None | bool() | int() | float() | str():
            return node
        case Tensor():
            name = str(len(tensors))
            tensors[name] = plain(where, node)
            return {"tensor": name}
        case dict():
            pairs = [[_encode_key(k, where), _encode(v, tensors, f"{where}[{k!r}]")] for k, v in node.items()]
            return {"dict": pairs}
        case list() | tuple():
            kind = "list" if isinstance(node, list) else "tuple"
            return {kind: [_encode(v, tensors, f"{where}[{i}]") for i, v in enumerate(node)]}
    kind = type(node).__name__
    raise TypeError(f"{where} cannot be stored: wanted dicts, lists, tuples, tensors, plain values, got {kind}.")


def _encode_key(key: object, where: str) -> object:
    tensors: dict[str, Tensor] = {}
    encoded = _encode(key, tensors, f"a key of {where}")
    if tensors:
        raise TypeError(f"a key of {where} cannot be stored: it is or holds a tensor.")
    return encoded


def _decode(node: Any, tensors: dict[str, Tensor]) -> Any:
    match node:
        case {"tensor": name}:
            return tensors[name]
        case {"dict": pairs}:
            return {_decode(key, tensors): _decode(value, tensors) for key, value in pairs}
        case {"list": items}:
            return [_decode(item, tensors) for item in items]
        case {"tuple": items}:
            return tuple(_decode(item, tensors) for item in items)
        case dict() | list():
            raise ValueError("damaged: its structure does not fit its tensors (an unknown node).")
    return node


def write(path: str | PathLike[str], kind: str, content: object, tensors: dict[str, Tensor]) -> None:
    """Write a file of a kind: tensors, and JSON values that say what they belong to."""
    from neurolsc import __version__  # the package imports this file before it knows its version

    header = {"neurolsc": kind, "format": str(FORMAT), "version": __version__, "content": json.dumps(content)}
    pieces = sealed(tensors, header)
    atomic_write(path, lambda file: file.writelines(pieces))


def read(path: str | PathLike[str], kind: str) -> tuple[Any, dict[str, Tensor]]:
    """Read the content and the tensors of a file of a kind.

    Raises:
        ValueError: if the file is damaged, or holds something else.
        OSError: if it cannot be read.
    """
    # read, not mapped into memory: a file cut short meanwhile would end the process
    with open(path, "rb") as file, refusing(path, "damaged or not a safetensors file"):
        opened = Sealed(file)
        header = opened.metadata
        if (found := header.get("neurolsc")) != kind:
            said = f"a {clean(found)}" if found else "something else"
            raise ValueError(f"does not hold a {kind} of neurolsc, but {said}.")
        if header.get("format") != str(FORMAT):
            version = clean(header.get("version"))
            raise ValueError(
                f"has format {clean(header.get('format'))}, written by neurolsc {version}; "
                f"this version reads format {FORMAT}."
            )
        tensors = opened.tensors()
        return json.loads(header["content"]), tensors


def plain(name: str, value: Tensor) -> Tensor:
    """A contiguous copy on the CPU."""
    if value.layout != torch.strided or value.dtype == torch.complex128:
        raise TypeError(f"{name} cannot be stored: {value.dtype}, {value.layout}; wanted dense, at most 64 bit.")
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)
