"""What a run rests on, as names and short values: compared where a run goes on."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from neurolsc.network import Network
from neurolsc.neurons.cell import Cell

_SHOWN = 4
_WHOLE = 64
"""rows of an array, or items of a list, that a digest takes in whole; of more, so many"""
_LARGE = 2**26
"""bytes above which it takes in only some rows"""


def of_network(network: Network) -> dict[str, Any]:
    """What makes a network besides its weights: cells, resets, surrogates, shapes, dtypes."""
    told: dict[str, Any] = {"layer_delay": network.layer_delay}
    for i, cell in enumerate(network.cells, start=1):
        told |= {f"{name} of layer {i}": value for name, value in _of_cell(cell).items()}
    if not isinstance(network.readout, torch.nn.Linear):
        told["readout"] = _repr(network.readout)
    return told | {name: f"{tuple(value.shape)} {value.dtype}" for name, value in network.state_dict().items()}


def _of_cell(cell: Cell) -> dict[str, Any]:
    if type(cell).config is Cell.config:
        return {"cell": _repr(cell)}  # it says nothing of itself, such as one of another library
    try:
        told = cell.config()
    except (TypeError, ValueError):  # a file cannot describe it
        return {"cell": _repr(cell)}
    told = {"cell": type(cell).__name__} | told
    spike = told.get("spike")
    if isinstance(spike, dict) and spike.get("learnable"):  # its numbers are weights
        told["spike"] = {name: value for name, value in spike.items() if name not in ("dampening", "sharpness")}
    return told


def _repr(value: object) -> str:
    """Its repr, without the addresses of functions, which are others in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def of_data(name: str, data: object) -> dict[str, Any]:
    """What tells one data set from another: its items, grid, split and augmentations.

    Only what lies in memory is looked at: no item is asked for. Told are the length, and of its
    public attributes texts, numbers, frozen dataclasses by their fields, and arrays by a digest; so
    a data set of your own is known by the arrays that it holds.

    Args:
        name: what the data are called; every name in the answer begins with it.
        data: a data set, one that wraps another, or a list of items.
    """
    if isinstance(data, DataLoader):
        told = {"batch_size": data.batch_size, "drop_last": data.drop_last, "sampler": type(data.sampler).__name__}
        return {f"{name}.{key}": value for key, value in told.items()} | of_data(name, data.dataset)
    told: dict[str, Any] = {f"number of {name} samples": len(data)} if hasattr(data, "__len__") else {}  # type: ignore[arg-type]
    if isinstance(data, Subset):
        return told | {f"{name}.indices": digest(list(data.indices))} | of_data(f"{name}.dataset", data.dataset)
    if isinstance(data, list | tuple):
        return told | {f"{name} samples": digest(data)}
    for key, value in getattr(data, "__dict__", {}).items():
        if not key.startswith("_"):
            told |= _of_attribute(f"{name}.{key}", value)
    return told


def of_inputs(batches: object) -> dict[str, Any]:
    """What tells the inputs of a pre-training from others; nothing of those yet to be drawn."""
    if isinstance(batches, DataLoader):
        return of_data("inputs", batches)
    if isinstance(batches, list | tuple) and batches:
        return {"number of inputs": len(batches), "first inputs": digest(batches[0])}
    return {}


def _of_attribute(name: str, value: object) -> dict[str, Any]:
    if isinstance(value, str | int | float):
        return {name: value}
    if isinstance(value, Tensor | np.ndarray) or (isinstance(value, tuple) and _all(value, Tensor)):
        return {name: digest(value)}
    if _is_frozen(value):
        return {f"{name}.{f.name}": repr(getattr(value, f.name)) for f in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, tuple) and all(map(_is_frozen, value)):
        return {name: repr(value)}
    return {}


def _is_frozen(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type) and value.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _all(values: tuple[object, ...], kind: type) -> bool:
    return bool(values) and all(isinstance(value, kind) for value in values)


def digest(value: object) -> str:
    """Shape and dtype, or length, and a digest of the content: of a large one, of some of it."""
    sha = hashlib.sha256()
    _take(value, sha.update)
    if isinstance(value, Tensor | np.ndarray):
        about = f"{tuple(value.shape)} {value.dtype}"
    else:
        about = f"{len(value)} items" if isinstance(value, Sequence) else type(value).__name__
    return f"{about}, sha256 {sha.hexdigest()[:12]}"


def _take(value: object, update: Any) -> None:
    if isinstance(value, Tensor):
        dense = value.detach().cpu().coalesce() if value.layout == torch.sparse_coo else value.detach().cpu()
        for part in (dense.indices(), dense.values()) if dense.is_sparse else (dense,):
            _take(part.contiguous().view(torch.uint8).numpy() if part.ndim else np.asarray(part.item()), update)
    elif isinstance(value, np.ndarray):
        update(f"{value.shape} {value.dtype}".encode())
        some = value if value.nbytes <= _LARGE else value[_spread(len(value))]
        update(repr(some.tolist()).encode() if some.dtype.hasobject else np.ascontiguousarray(some).data)
    elif isinstance(value, list | tuple):
        update(f"{len(value)} items".encode())
        if all(isinstance(v, int) for v in value):
            update(repr(value).encode())
            return
        for i in range(len(value)) if len(value) <= _WHOLE else _spread(len(value)).tolist():
            _take(value[i], update)
    else:
        update(repr(value).encode())


def _spread(length: int) -> np.ndarray:
    return np.linspace(0, length - 1, _WHOLE).astype(np.int64)


def differences(
    before: dict[str, Any], now: dict[str, Any], form: str = "{name} was {before!r}, is now {now!r}"
) -> str:
    """What differs, by name with both values: the first few, and how many more."""
    names = [name for name in now | before if before.get(name) != now.get(name)]
    told = [form.format(name=name, before=before.get(name), now=now.get(name)) for name in names[:_SHOWN]]
    more = len(names) - len(told)
    return "; ".join([*told, *([f"and {more} more"] if more else [])])
