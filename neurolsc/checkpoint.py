"""Networks, and trees of tensors and numbers, as safetensors files: whole or not at all, and no code in them.

A file holds tensors and one JSON text that says what they belong to. Reading one builds known classes only
and runs nothing that the file brings along. Every write goes to a temporary file in the same folder, which
then takes the place of the old one, so that a crash or a full disk leaves the old file as it was.
"""

import contextlib
import errno
import json
import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from neurolsc import surrogate
from neurolsc.network import Network
from neurolsc.neurons import LIF, ALIFPlus, ALIFPlusMinus, ALIFPositive, Cell

__all__ = ["atomic_write", "load", "read_tree", "save", "trained", "write_tree"]

T = TypeVar("T")

FORMAT = 1
TRAINED = Path(__file__).parent / "trained"
CELLS: dict[str, type[Cell]] = {cell.__name__: cell for cell in (LIF, ALIFPlus, ALIFPlusMinus, ALIFPositive)}
SURROGATES: dict[str, type[surrogate.Surrogate]] = {
    spike.__name__: spike
    for spike in (
        surrogate.Arctan,
        surrogate.Exponential,
        surrogate.FastSigmoid,
        surrogate.Gaussian,
        surrogate.Logistic,
        surrogate.MultiGaussian,
        surrogate.Rectangular,
        surrogate.Triangular,
    )
}


def save(network: Network, path: str | PathLike[str]) -> None:
    """Write a network: its parameters and buffers bit by bit, its layout, and which parameters are frozen.

    Args:
        network: cells and surrogates of this package; those of other libraries cannot be described in a file.
        path: the file to write, usually ``*.safetensors``.

    Raises:
        TypeError: if a surrogate or the readout is not one of ours, or a tensor has no form in a file (sparse, complex128).
        ValueError: if a cell is not one of ours, two share a parameter, or the network has tensors that its
            layout does not explain.
        OSError: if the file cannot be written; the message names it.

    Example:
        >>> import tempfile
        >>> network = Network([ALIFPlus(3, 2)], n_out=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(network, f"{folder}/network.safetensors")
        ...     again = load(f"{folder}/network.safetensors")
        >>> torch.equal(again.cells[0].tau_v, network.cells[0].tau_v)
        True
    """
    if len(list(network.parameters())) != len(list(network.named_parameters(remove_duplicate=False))):
        raise ValueError("two parts of the network share a parameter, which a file cannot tell; make copies.")
    if not isinstance(network.readout, torch.nn.Linear):
        raise TypeError(f"only a linear readout can be described in a file, got {type(network.readout).__name__}.")
    config = {
        "n_out": network.n_out,
        "layer_delay": network.layer_delay,
        "readout_bias": network.readout.bias is not None,
        "cells": [{"class": type(cell).__name__} | cell.config() for cell in network.cells],
        "frozen": [name for name, parameter in network.named_parameters() if not parameter.requires_grad],
    }
    tensors = {name: _plain(name, value) for name, value in network.state_dict().items()}
    shapes = {name: value.shape for name, value in tensors.items()}
    built = {name: value.shape for name, value in _build(config).state_dict().items()}
    if shapes != built:
        odd = sorted(name for name in shapes.keys() | built.keys() if shapes.get(name) != built.get(name))
        raise ValueError(f"the network could not be built again from its layout: {', '.join(odd)} would differ.")
    _write(path, "network", config, tensors)


def load(path: str | PathLike[str]) -> Network:
    """Read a network that :func:`save` wrote, onto the CPU, in the dtypes that it had.

    Args:
        path: the file, or the name of one of the trained networks in the package: ``"sl-mnist-alif"`` or
            ``"spoken-digits-alif"``. Their cards, with the commands that made them, lie beside them in neurolsc/trained.

    Returns:
        The network; the random number generator stays as it was.

    Raises:
        ValueError: if the file is damaged, holds something else, or names a class that is not known.
        FileNotFoundError: if there is neither a file nor a trained network of that name.
        OSError: if it cannot be read.

    Example:
        >>> load("sl-mnist-alif").n_in
        784
    """
    if not os.path.exists(path):
        name = os.fspath(path)
        if name not in trained():
            wanted = f"neither a file nor one of the trained networks in the package ({', '.join(trained())})"
            raise FileNotFoundError(errno.ENOENT, wanted, name)
        path = TRAINED / f"{name}.safetensors"
    config, tensors = _read(path, "network")
    try:
        network = _build(config)
        network.load_state_dict(tensors, assign=True)
        for name in config["frozen"]:
            network.get_parameter(name).requires_grad_(False)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{os.fspath(path)} does not describe a network of this version: {error}") from error
    return network


def trained() -> list[str]:
    """The names of the trained networks in the package, which :func:`load` takes."""
    return sorted(file.stem for file in TRAINED.glob("*.safetensors"))


def write_tree(path: str | PathLike[str], tree: object) -> None:
    """Write a nested structure of dicts, lists, tuples, tensors, numbers, strings, booleans and None.

    Numbers and tensors are kept bit by bit. Keys may be anything of these but tensors. Subclasses (an ordered
    dict, a named tuple) come back as plain dicts and tuples.

    Args:
        path: the file to write.
        tree: the structure, such as an optimizer's ``state_dict()``.

    Raises:
        TypeError: if the tree holds anything else; the message says where.
        OSError: if the file cannot be written; the message names it.
    """
    tensors: dict[str, Tensor] = {}
    _write(path, "tree", _encode(tree, tensors, "tree"), tensors)


def read_tree(path: str | PathLike[str]) -> Any:
    """Read a structure that :func:`write_tree` wrote; tensors come onto the CPU, each with its own memory.

    Raises:
        ValueError: if the file is damaged or holds something else.
        OSError: if it cannot be read.
    """
    structure, tensors = _read(path, "tree")
    try:
        return _decode(structure, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)} is damaged: its structure does not fit its tensors.") from error


def atomic_write(path: str | PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a file whole or not at all.

    Args:
        path: the file; an old one is replaced in one instant, a link is followed.
        write: writes the content into the open binary file that it is given.

    Raises:
        OSError: if the file cannot be written (its subclass tells why); the old file is then untouched.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise OSError(error.errno, f"could not write the file ({error.strerror})", os.fspath(path)) from error
    finally:
        with contextlib.suppress(OSError):  # after the replacement it is gone
            os.unlink(temporary)


def _build(config: dict[str, Any]) -> Network:
    """A network of the layout, with starting values that the caller replaces."""
    with torch.random.fork_rng(devices=[]):
        cells = [_build_cell(dict(cell)) for cell in config["cells"]]
        return Network(cells, config["n_out"], layer_delay=config["layer_delay"], readout_bias=config["readout_bias"])


def _build_cell(config: dict[str, Any]) -> Cell:
    if "spike" in config:
        spike = dict(config["spike"])
        config["spike"] = _known("surrogate", spike.pop("name"), SURROGATES)(**spike)
    return _known("cell", config.pop("class"), CELLS)(**config)


def _known(kind: str, name: str, classes: dict[str, type[T]]) -> type[T]:
    if name not in classes:
        raise ValueError(f"unknown {kind} {name!r}; known are {', '.join(sorted(classes))}.")
    return classes[name]


def _plain(name: str, value: Tensor) -> Tensor:
    """A contiguous copy on the CPU."""
    if value.layout != torch.strided or value.dtype == torch.complex128:
        raise TypeError(f"{name} cannot be stored: {value.dtype}, {value.layout}; wanted dense, at most 64 bit.")
    return value.detach().cpu().clone(memory_format=torch.contiguous_format)


def _encode(node: object, tensors: dict[str, Tensor], where: str) -> object:
    """The structure as JSON values; what is not a plain value is an object with one key, its kind."""
    match node:
        case None | bool() | int() | float() | str():
            return node
        case Tensor():
            name = str(len(tensors))
            tensors[name] = _plain(where, node)
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
            raise ValueError("unknown node")
    return node


def _write(path: str | PathLike[str], kind: str, content: object, tensors: dict[str, Tensor]) -> None:
    from neurolsc import __version__  # the package imports this file before it knows its version

    header = {"neurolsc": kind, "format": str(FORMAT), "version": __version__, "content": json.dumps(content)}
    data = safetensors.torch.save(tensors, header)
    atomic_write(path, lambda file: file.write(data))


def _read(path: str | PathLike[str], kind: str) -> tuple[Any, dict[str, Tensor]]:
    name = os.fspath(path)
    data = Path(path).read_bytes()  # not mapped into memory: a file cut short meanwhile would end the process
    try:  # clones, since memory that torch did not align may round differently
        tensors = {key: value.clone() for key, value in safetensors.torch.load(data).items()}
    except SafetensorError as error:
        raise ValueError(f"{name} is damaged or not a safetensors file: {error}") from error
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__", {})
    found = header.get("neurolsc")
    if found != kind:
        raise ValueError(
            f"{name} does not hold a {kind} of neurolsc, but {f'a {found}' if found else 'something else'}."
        )
    if header.get("format") != str(FORMAT):
        raise ValueError(
            f"{name} has format {header.get('format')}, written by neurolsc {header.get('version')}; "
            f"this version reads format {FORMAT}."
        )
    try:
        return json.loads(header["content"]), tensors
    except (KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{name} is damaged: its description cannot be read.") from error
