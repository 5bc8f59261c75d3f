"""Files: networks and checkpoints, whole-or-nothing writing, locks, one kind of error.

A network is a safetensors file with one JSON text that says what its tensors belong to; reading it builds registered
classes only.
"""

import contextlib
import csv
import errno
import glob
import hashlib
import io
import json
import os
import re
import secrets
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Subset

from neurolsc.network import Embedding, Network, Tied, as_network
from neurolsc.neurons.cell import CELLS, SURROGATES, Cell
from neurolsc.surroundings import without_inference_mode

FORMAT = 3
TRAINED = Path(__file__).parent / "trained"
# functions by which `save` turns cells of another library into ours; other cells stay. `neurolsc.export` adds one.
CONVERTERS: list[Callable[[Network], Network]] = []

# networks


def save(network: Network, path: str | PathLike[str]) -> None:
    """Write a network; see :func:`neurolsc.save`."""
    network = as_network(network)
    for convert in CONVERTERS:
        network = convert(network)
    if len(list(network.parameters())) != len(list(network.named_parameters(remove_duplicate=False))):
        raise ValueError("two parts of the network share a parameter, which a file cannot describe; make copies.")
    if not isinstance(network.readout, nn.Linear | Tied):
        raise TypeError(f"only a linear readout can be described in a file, got {type(network.readout).__name__}.")
    config = {
        "n_out": network.n_out,
        "layer_delay": network.layer_delay,
        "readout_bias": getattr(network.readout, "bias", None) is not None,
        "cells": [{"class": CELLS.name_of(type(cell))} | cell.config() for cell in network.cells],
    }
    if network.embedding is not None:
        config["embedding"] = network.embedding.config()
    config["frozen"] = [name for name, parameter in network.named_parameters() if not parameter.requires_grad]
    tensors = network.state_dict()
    check_storable(tensors)
    # a network that could not be read again is refused now: what config() leaves out would be lost
    shapes = {name: value.shape for name, value in tensors.items()}
    rebuilt = {name: value.shape for name, value in _build(config, tensors).state_dict().items()}
    if differing := sorted(name for name in shapes | rebuilt if shapes.get(name) != rebuilt.get(name)):
        raise ValueError(f"the network could not be built again from its layout: {', '.join(differing)} would differ.")
    write_tensors(path, tensors, "network", config)


@without_inference_mode()
def load(path: str | PathLike[str]) -> Network:
    """Read a network; see :func:`neurolsc.load`."""
    if not os.path.exists(path):
        if os.fspath(path) not in trained():
            wanted = f"neither a file nor one of the trained networks in the package ({', '.join(trained())})"
            raise FileNotFoundError(errno.ENOENT, wanted, os.fspath(path))
        path = TRAINED / f"{os.fspath(path)}.safetensors"
    if os.path.isdir(path):
        raise IsADirectoryError(
            errno.EISDIR, "a folder: give the file in it, of a run network.safetensors", os.fspath(path)
        )
    tensors, config = read_tensors(path, "network")
    with refusing(path, "does not describe a network of this version"):
        network = _build(config, tensors)
        # load_state_dict compares names and shapes; with assign it takes any dtype
        for name, built in network.state_dict().items():
            if name in tensors and built.is_floating_point() != tensors[name].is_floating_point():
                raise ValueError(f"{clean(name)} is {tensors[name].dtype}, its layout needs {built.dtype}.")
        network.load_state_dict(tensors, assign=True)
        for name in config["frozen"]:
            network.get_parameter(name).requires_grad_(False)
    return network


def check_storable(tensors: Mapping[str, Tensor]) -> None:
    """Raise a ``TypeError`` for a tensor that no file of :func:`write_tensors` can hold."""
    for name, value in tensors.items():
        if value.layout != torch.strided or value.dtype == torch.complex128:
            raise TypeError(f"{name} cannot be stored: {value.dtype}, {value.layout}; wanted dense, at most 64 bit.")


def write_tensors(path: str | PathLike[str], tensors: Mapping[str, Tensor], kind: str, content: dict[str, Any]) -> None:
    """Write tensors as a safetensors file, whole or not at all.

    Args:
        path: path of the file.
        tensors: the tensors, by name.
        kind: what the file holds, such as "network"; :func:`read_tensors` asks for it.
        content: JSON values that are written with the tensors.

    Raises:
        TypeError: for a tensor that such a file cannot hold.
        OSError: if the file could not be written.
    """
    from neurolsc import __version__  # the package imports this file before it knows its version

    check_storable(tensors)
    copies = {n: value.detach().cpu().clone(memory_format=torch.contiguous_format) for n, value in tensors.items()}
    header = {"kind": kind, "format": FORMAT, "version": __version__, "content": content}
    header["digest"] = _digest_of_file(copies, content)
    # all metadata in one entry: the order of several is random, and equal networks make equal files
    data = safetensors.torch.save(copies, {"neurolsc": json.dumps(header)})
    atomic_write(path, lambda file: file.write(data))


def read_tensors(path: str | PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors, by name, and the content of a file that :func:`write_tensors` wrote.

    Raises:
        ValueError: if the file is damaged, of another kind or format, or holds NaN or infinity.
    """
    data = Path(path).read_bytes()  # not mapped into memory: if a mapped file is cut short, the process dies
    with refusing(path, "damaged or not a safetensors file"):
        tensors = safetensors.torch.load(data)
        length = int.from_bytes(data[:8], "little")  # of the header, which safetensors.torch.load does not return
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        if "neurolsc" not in metadata:
            raise ValueError(f"not a {kind} of this version of neurolsc.")
        header = json.loads(metadata["neurolsc"])
        if header["kind"] != kind or header["format"] != FORMAT:
            got = clean(f"a {header['kind']} in format {header['format']}, by neurolsc {header['version']}")
            cure = {"module": ": give load(path, net) a new module of its classes", "network": ": give load(path)"}
            raise ValueError(f"wanted a {kind} in format {FORMAT}, got {got}{cure.get(header['kind'], '')}.")
        # earlier versions wrote no digest
        if "digest" in header and header["digest"] != _digest_of_file(tensors, header["content"]):
            raise ValueError("damaged: its content is not what was written.")
        check_finite(tensors)
    return tensors, header["content"]


def _digest_of_file(tensors: Mapping[str, Tensor], content: dict[str, Any]) -> str:
    """Return a digest of what :func:`write_tensors` writes, the same before and after; the tensors in any order."""
    return _digest([json.dumps(content), *sorted(tensors.items(), key=lambda item: item[0])])


def trained() -> list[str]:
    """Return the names of the trained networks in the package."""
    return sorted(file.stem for file in TRAINED.glob("*.safetensors"))


def _build(config: dict[str, Any], tensors: dict[str, Tensor]) -> Network:
    """Build a network of the layout that :func:`save` writes, without the values of the tensors.

    Args:
        config: the layout.
        tensors: the tensors of the file, which limit how large the network may be.
    """
    if len(config["cells"]) > len(tensors):
        raise ValueError(f"it has {len(config['cells'])} cells and only {len(tensors)} tensors.")
    # most entries of a tensor: a constructor may make larger tensors than it keeps, hence 4 times and a million more
    largest = 2**20 + 4 * max((value.numel() for value in tensors.values()), default=0)
    with torch.random.fork_rng(devices=[]), _Limited(largest):
        cells = []
        for entry in config["cells"]:
            cell = dict(entry)
            if "spike" in cell:
                spike = dict(cell["spike"])
                cell["spike"] = SURROGATES.known(spike.pop("name"))(**spike)
            cells.append(CELLS.known(cell.pop("class"))(**cell))
        options = {name: config[name] for name in ("layer_delay", "readout_bias")}
        if embedding := config.get("embedding"):
            return Network(cells, embedding=Embedding(embedding["words"], embedding["width"]), **options)
        return Network(cells, config["n_out"], **options)


class _Limited(TorchFunctionMode):
    """Refuse tensors with more than `most` entries, as a damaged layout may ask for any size; draw no matrices."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "uniform_" and args and args[0].ndim > 1:
            return args[0]  # drawing takes most of the time, and the values are replaced
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.numel() > self.most:
            raise ValueError(f"its layout needs {made.numel()} numbers at once, its tensors allow {self.most}.")
        return made


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise a ``ValueError`` for NaN and infinity, with the tensor's name."""
    for name, value in tensors.items():
        if not value.isfinite().all():
            raise ValueError(f"{clean(name)} must be finite, got {value[~value.isfinite()][0].item()}.")


# checkpoints: nested dicts and lists, such as the state of an optimizer, and what a run depends on, by name


def write_tree(path: str | PathLike[str], tree: object) -> None:
    """Write nested dicts, lists and tuples of tensors, numbers, strings and None, exactly."""
    buffer = io.BytesIO()
    torch.save(tree, buffer)
    atomic_write(path, lambda file: file.write(buffer.getbuffer()))


def read_tree(path: str | PathLike[str]) -> Any:
    """Read the nested dicts and lists that :func:`write_tree` wrote, with all tensors on the CPU.

    No code in the file is executed.

    Raises:
        ValueError: if the file is damaged or not a checkpoint.
        OSError: if it cannot be read.
    """
    data = Path(path).read_bytes()  # outside the block: an error of the disk is no damage
    with refusing(path, "damaged or not a checkpoint"):
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            damaged = packed.testzip()  # torch.load does not compare a part with its checksum
        if damaged is not None:
            raise ValueError(f"damaged: {clean(damaged)} in it is not what was written.")
        try:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except ValueError as error:  # refusing would show its text alone, which does not say that the file is damaged
            raise RuntimeError(error) from error


def network_fingerprint(network: Network) -> dict[str, Any]:
    """Describe a network without its weights, by name: cells, resets, surrogates, shapes and dtypes.

    Two networks with equal fingerprints can go on from the same checkpoint.
    """
    entries: dict[str, Any] = {"layer_delay": network.layer_delay}
    for i, cell in enumerate(network.cells, start=1):
        config: dict[str, Any] = {"cell": stable_repr(cell)}
        if type(cell).config is not Cell.config:  # the cell describes itself
            with contextlib.suppress(TypeError, ValueError):  # raised if no file can describe the cell
                config = {"cell": type(cell).__name__} | cell.config()
        spike = config.get("spike")
        if isinstance(spike, dict) and spike.get("learnable"):  # then dampening and sharpness are weights
            config["spike"] = {name: value for name, value in spike.items() if name not in ("dampening", "sharpness")}
        entries |= {f"{name} of layer {i}": value for name, value in config.items()}
    if not isinstance(network.readout, nn.Linear):  # a linear readout is described by the shapes below
        entries["readout"] = stable_repr(network.readout)
    return entries | {name: f"{tuple(value.shape)} {value.dtype}" for name, value in network.state_dict().items()}


def data_fingerprint(name: str, data: Any) -> dict[str, Any]:
    """Return what two data sets must have in common to be the same, by name: length and public attributes.

    These are the attributes that are text, numbers, dataclasses, or arrays, of which a digest is taken; others are left
    out. No sample is read, but for a list or tuple all items are. Subset and DataLoader are followed to their data.

    Args:
        name: name of the data set, of which the names of the entries are made.
        data: the data set, or a loader of it.
    """
    entries: dict[str, Any] = {}
    if isinstance(data, DataLoader):
        entries |= {f"{name}.{key}": getattr(data, key) for key in ("batch_size", "drop_last")}
        entries[f"{name}.sampler"] = type(data.sampler).__name__
        return entries | data_fingerprint(name, data.dataset)
    if not hasattr(data, "__getitem__"):  # an IterableDataset, of which nothing is known
        return entries
    if isinstance(data, list | tuple):
        return {f"items of {name}": _digest(data)}
    if hasattr(data, "__len__"):
        entries[f"length of {name}"] = len(data)
    if isinstance(data, Subset):
        entries[f"{name}.indices"] = _digest([int(index) for index in data.indices])
        return entries | data_fingerprint(f"{name}.dataset", data.dataset)
    for key, value in getattr(data, "__dict__", {}).items():
        if key.startswith("_"):
            continue
        if isinstance(value, tuple):
            parts = value
        else:
            parts = (value,)
        if isinstance(value, str | int | float):
            entries[f"{name}.{key}"] = value
        elif all(is_dataclass(part) for part in parts):
            entries[f"{name}.{key}"] = stable_repr(value)
        elif all(isinstance(part, Tensor | np.ndarray) for part in parts):
            entries[f"{name}.{key}"] = _digest(value)
    return entries


def _digest(value: Any) -> str:
    """Describe a tensor or array by shape and dtype, a list or tuple by length, and each by a hash of its content."""
    sha = hashlib.sha256()

    def update(value: Any) -> None:
        """Add a value, and all that is in it, to the hash."""
        if isinstance(value, Tensor):
            sha.update(f"{tuple(value.shape)} {value.dtype}".encode())
            sha.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            sha.update(f"{value.shape} {value.dtype}".encode())
            sha.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        elif isinstance(value, np.ndarray | np.generic):  # an array of objects, or a number of NumPy's
            update(value.tolist())
        elif isinstance(value, list | tuple) and not all(isinstance(v, int) for v in value):
            sha.update(f"{len(value)} items".encode())  # without it, [["a", "b"]] and [["a"], "b"] would hash alike
            for item in value:
                update(item)
                sha.update(b",")
        elif isinstance(value, dict):
            update(list(value.items()))
        elif is_dataclass(value) and not isinstance(value, type):
            update([type(value).__name__, *(getattr(value, field.name) for field in fields(value))])
        else:  # a number or text; a list of integers, which may be long, in one piece; or an object of another class
            sha.update(stable_repr(value).encode())

    update(value)
    if isinstance(value, list | tuple):
        about = f"{len(value)} items"
    else:
        about = f"{tuple(value.shape)} {value.dtype}"
    return f"{about}, sha256 {sha.hexdigest()[:12]}"


def stable_repr(value: object) -> str:
    """Return the ``repr`` of a value without addresses in memory, which differ in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def read_checkpoint(
    path: str | PathLike[str], keys: Iterable[str], settings: dict[str, Any], of: str
) -> dict[str, Any] | None:
    """Return the content of a checkpoint, or None if there is no file.

    Args:
        path: path of the checkpoint.
        keys: all keys that its content must have, but "settings".
        settings: settings of the present run.
        of: what it is a checkpoint of, training or pre-training, for messages.

    Raises:
        ValueError: if it is damaged, has other keys, or was written under other settings.
    """
    if not Path(path).exists():
        return None
    state = read_tree(path)
    if not isinstance(state, dict) or state.keys() != {*keys, "settings"}:
        raise ValueError(f"{path} is not the checkpoint of a {of}.")
    if changed := differences(state["settings"], settings):
        raise ValueError(
            f"{path} is of a {of} with other settings ({changed}). Use the same settings, another checkpoint, or remove it."
        )
    return state


def differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Name the first four settings that differ, with both values, and say how many more do; empty if none does."""
    names = [name for name in now | before if before.get(name) != now.get(name)]
    parts = [f"{name} was {before.get(name)!r}, is now {now.get(name)!r}" for name in names[:4]]
    if len(names) > 4:
        parts.append(f"and {len(names) - 4} more")
    return "; ".join(parts)


# whole-or-nothing writing, and the lock of a path

TEMPORARY = ".neurolsc-tmp"


def atomic_write(path: str | PathLike[str], write: Callable[[BinaryIO], object]) -> None:
    """Write a file whole or not at all: a temporary file is written and then renamed. A link is followed.

    Args:
        path: path of the file.
        write: writes the content into an open binary file.

    Raises:
        OSError: if the file could not be written.
    """
    target = os.path.realpath(path)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:40]}.{secrets.token_hex(8)}{TEMPORARY}")
    try:
        if os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target):
            raise OSError(errno.EINVAL, "it is neither a file nor a folder")  # such as /dev/null
        try:
            with open(temporary, "xb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:  # Ctrl-C as well leaves no temporary file
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise OSError(error.errno, f"could not write the file ({error.strerror})", os.fspath(path)) from error


def write_text(path: str | PathLike[str], content: str) -> None:
    """Write text in UTF-8, whole or not at all."""
    atomic_write(path, lambda file: file.write(content.encode()))


def write_json(path: str | PathLike[str], content: object) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def spread(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table in which each item of a list has a column of its own: name_1, name_2, ..."""
    columns = {}
    for name, value in row.items():
        if isinstance(value, list):
            columns |= {f"{name}_{i}": item for i, item in enumerate(value, start=1)}
        else:
            columns[name] = value
    return columns


def write_csv(path: str | PathLike[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV, whole or not at all; a column that a row lacks is empty, a list gets numbered columns."""
    rows = [spread(row) for row in rows]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


def remove_temporaries(folder: Path, name: str = "") -> None:
    """Remove temporary files that killed writers left in a folder; nobody else may be writing to it.

    Args:
        folder: the folder.
        name: the file that was written; empty: any.
    """
    for path in folder.glob(f".{glob.escape(name[:40]) or '*'}.*{TEMPORARY}"):
        path.unlink(missing_ok=True)


def lock_file(path: Path) -> Path:
    """Return the file that is locked for a path: hidden, in the same folder."""
    return path.with_name(f".{path.name}.lock")


@contextlib.contextmanager
def locked(path: str | PathLike[str] | None) -> Iterator[None]:
    """Lock a path against all other processes and threads; BlockingIOError if one of them has locked it; None: no lock.

    The lock ends with its process. Between machines it holds if the shared disk carries locks (NFS 4, Lustre with
    ``flock``, GPFS).
    """
    if path is None:
        yield
        return
    target = Path(os.path.realpath(path))
    if not target.parent.exists():  # FileLock would make it
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist", os.fspath(path))
    lock = FileLock(lock_file(target))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise BlockingIOError(
            f"{os.fspath(path)} is in use by another process or thread: wait until that ends, or choose another path."
        ) from None
    try:
        remove_temporaries(target.parent, target.name)
        yield
    finally:
        with contextlib.suppress(OSError):
            lock_file(target).unlink()  # FileLock notices a lock file that was removed, and opens a new one
        lock.release()


# files of others


@contextlib.contextmanager
def refusing(path: str | PathLike[str], what: str) -> Iterator[None]:
    """Turn any error inside the block into a ``ValueError`` that names the file.

    A ``ValueError`` keeps its text. The text of any other error, or of a decoder's, does not say what is wrong with the
    file: it comes after `what`, which does.
    """
    try:
        with np.errstate(all="ignore"):
            yield
    except Exception as error:  # libraries raise whatever they like at content that they did not expect
        text = clean(error, most=600)
        if not isinstance(error, ValueError) or isinstance(
            error, UnicodeError | json.JSONDecodeError | tomllib.TOMLDecodeError
        ):
            text = f"{what} ({type(error).__name__}: {text})."
        raise ValueError(f"{os.fspath(path)}: {text}") from error


def clean(text: object, most: int = 80) -> str:
    """Return a text from a file for a message: on one line, without control characters, cut to `most` characters."""
    start = str(text)[: most + 1]  # the text may be long; one character more shows that it was cut
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in start)
    if len(shown) > most:
        return shown[: most - 1] + "…"
    return shown


def read_toml(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a TOML file; ``ValueError`` with its name if it is something else."""
    data = Path(path).read_bytes()
    with refusing(path, "not a TOML file"):
        return tomllib.loads(data.decode())
