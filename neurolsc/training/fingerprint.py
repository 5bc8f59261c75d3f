"""What a run depends on, as names and values: a checkpoint goes on only where these are equal."""

import contextlib
import hashlib
import re
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from neurolsc.network import Network
from neurolsc.neurons.cell import Cell

__all__ = ["data_fingerprint", "differences", "digest", "network_fingerprint"]


def network_fingerprint(network: Network) -> dict[str, Any]:
    """What a network is besides its weights: cells, resets, surrogates, shapes and dtypes."""
    found: dict[str, Any] = {"layer_delay": network.layer_delay}
    for i, cell in enumerate(network.cells, start=1):
        config: dict[str, Any] = {"cell": _repr(cell)}
        if type(cell).config is not Cell.config:
            with contextlib.suppress(TypeError, ValueError):  # else a file cannot describe it
                config = {"cell": type(cell).__name__} | cell.config()
        spike = config.get("spike")
        if isinstance(spike, dict) and spike.get("learnable"):  # its numbers are weights
            config["spike"] = {name: value for name, value in spike.items() if name not in ("dampening", "sharpness")}
        found |= {f"{name} of layer {i}": value for name, value in config.items()}
    if not isinstance(network.readout, nn.Linear):
        found["readout"] = _repr(network.readout)
    return found | {name: f"{tuple(value.shape)} {value.dtype}" for name, value in network.state_dict().items()}


def data_fingerprint(name: str, data: object) -> dict[str, Any]:
    """Length and public attributes of data: texts, numbers, dataclasses, and digests of arrays; no item is read."""
    found: dict[str, Any] = {}
    if isinstance(data, DataLoader):
        found |= {f"{name}.{key}": getattr(data, key) for key in ("batch_size", "drop_last")}
        found[f"{name}.sampler"] = type(data.sampler).__name__
        return found | data_fingerprint(name, data.dataset)
    if not hasattr(data, "__getitem__"):
        return found
    if hasattr(data, "__len__"):
        found[f"length of {name}"] = len(data)  # type: ignore[arg-type]
    if isinstance(data, Subset):
        found[f"{name}.indices"] = digest(list(data.indices))
        return found | data_fingerprint(f"{name}.dataset", data.dataset)
    if isinstance(data, list | tuple):
        return found | {f"items of {name}": digest(data)}
    for key, value in getattr(data, "__dict__", {}).items():
        parts = value if isinstance(value, tuple) else (value,)
        if key.startswith("_"):
            continue
        if isinstance(value, str | int | float):
            found[f"{name}.{key}"] = value
        elif all(is_dataclass(part) for part in parts):
            found[f"{name}.{key}"] = _repr(value)
        elif all(isinstance(part, Tensor | np.ndarray) for part in parts):
            found[f"{name}.{key}"] = digest(value)
    return found


def digest(value: Any) -> str:
    """Shape and dtype, or length, and a hash of the content."""
    sha = hashlib.sha256()

    def take(value: Any) -> None:
        if isinstance(value, Tensor):
            sha.update(f"{tuple(value.shape)} {value.dtype}".encode())
            sha.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            sha.update(np.ascontiguousarray(value).data)
        elif isinstance(value, list | tuple) and not all(isinstance(v, int) for v in value):
            for item in value:
                take(item)
        else:
            sha.update(repr(value.tolist() if isinstance(value, np.ndarray) else value).encode())

    take(value)
    about = f"{len(value)} items" if isinstance(value, list | tuple) else f"{tuple(value.shape)} {value.dtype}"
    return f"{about}, sha256 {sha.hexdigest()[:12]}"


def differences(
    before: dict[str, Any], now: dict[str, Any], form: str = "{name} was {before!r}, is now {now!r}"
) -> str:
    """The first four entries that differ, by name with both values, and how many more."""
    names = [name for name in now | before if before.get(name) != now.get(name)]
    parts = [form.format(name=name, before=before.get(name), now=now.get(name)) for name in names[:4]]
    return "; ".join(parts + ([f"and {len(names) - 4} more"] if len(names) > 4 else []))


def _repr(value: object) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))  # addresses differ in every process
