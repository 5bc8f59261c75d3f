"""The exported file: Lava's NetX layout (HDF5), and one group more for what it has no word for."""

import io
import json
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neurolsc.export.loihi.atrlif import AtrlifLayer
from neurolsc.export.loihi.cuba import CubaLayer
from neurolsc.export.loihi.fixed_point import UNIT, IntegerLayer
from neurolsc.export.loihi.quantize import QuantizedNetwork
from neurolsc.files import atomic_write

__all__ = ["content", "parse", "read_netx", "write_netx"]

FORMAT = 1
KINDS: dict[str, type[IntegerLayer]] = {layer.kind: layer for layer in (CubaLayer, AtrlifLayer)}
"""what a file calls its neurons -> the layer"""


def write_netx(quantized: QuantizedNetwork, path: str | PathLike[str], *, steps: int = 1) -> None:
    """Write integers as a NetX file, whole or not at all.

    Args:
        quantized: the integers.
        path: the file, usually ``*.net``.
        steps: length of a sample, blank steps left out; a note for readers that ask for it.

    Raises:
        OSError: if the file cannot be written.
    """
    data = content(quantized, steps)
    atomic_write(path, lambda file: file.write(data))


def content(quantized: QuantizedNetwork, steps: int, report: str | None = None) -> bytes:
    """What :func:`write_netx` writes, with a report as JSON."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        layers = file.create_group("layer")
        _write(layers, 0, {"type": _words("input"), "shape": np.array([quantized.n_in])})
        for i, layer in enumerate(quantized.layers, start=1):
            _write(layers, i, _of_layer(layer))
        _write(layers, len(quantized.layers) + 1, _of_matrix(quantized.readout))
        file["simulation/Ts"] = 1
        file["simulation/tSample"] = steps + quantized.blank_steps
        own = file.create_group("neurolsc")
        own.attrs["format"] = FORMAT
        own.attrs["blank_steps"] = quantized.blank_steps
        own.attrs["bias_neurons"] = np.array(quantized.bias_neurons)
        own.attrs["readout_scale"] = quantized.readout_scale
        own.attrs["remarks"] = json.dumps(quantized.remarks)
        if report is not None:
            own["report"] = report
        for i, layer in enumerate(quantized.layers, start=1):
            own[f"scale_{i}"] = (layer.unit / UNIT).detach().numpy()
    return buffer.getvalue()


def read_netx(path: str | PathLike[str]) -> QuantizedNetwork:
    """Read a file that :func:`write_netx` wrote.

    Args:
        path: the file.

    Returns:
        The integers.

    Raises:
        ValueError: if it is no such file, or a size or number in it does not fit; the message names
            file and place.
        OSError: if it cannot be read.

    Example:
        >>> import tempfile
        >>> from neurolsc import LIF, Network
        >>> from neurolsc.export import quantize
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_netx(quantize(Network([LIF(3, 2)], n_out=2)), f"{folder}/a.net")
        ...     read_netx(f"{folder}/a.net").layers[0].weight.shape
        torch.Size([2, 3])
    """
    return parse(Path(path).read_bytes(), fspath(path))


def parse(data: bytes, name: str) -> QuantizedNetwork:
    """What :func:`read_netx` reads from a file of that name."""
    import h5py

    if not data.startswith(b"\x89HDF"):
        raise ValueError(f"{name} is not an HDF5 file.")
    try:
        with h5py.File(io.BytesIO(data), "r") as opened:
            file: Any = opened
            if "neurolsc" not in file:
                raise ValueError("there is no group 'neurolsc': another program wrote it.")
            own = file["neurolsc"]
            if own.attrs["format"] != FORMAT:
                raise ValueError(f"format {own.attrs['format']}, this version reads {FORMAT}.")
            reader = _Reader(file)
            count = len(file["layer"]) - 2
            width = int(file["layer/0/shape"][()][0])
            layers = []
            for i in range(1, count + 1):
                layers.append(reader.layer(i, width, own[f"scale_{i}"][()]))
                width = layers[-1].size
            return QuantizedNetwork(
                tuple(layers),
                reader.numbers(f"layer/{count + 1}/weight", (None, width)),
                float(own.attrs["readout_scale"]),
                tuple(int(n) for n in own.attrs["bias_neurons"]),
                int(own.attrs["blank_steps"]),
                tuple(json.loads(own.attrs["remarks"])),
            )
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, OSError) as error:
        raise ValueError(f"{name} is not a network of this version: {error}") from error


class _Reader:
    """Reads integers from an open file and checks their sizes."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def numbers(self, name: str, shape: tuple[int | None, ...], low: int = -(2**31), high: int = 2**31) -> Tensor:
        """A dataset, filled up to the shape if it is a scalar; None stands for any size."""
        values = np.asarray(self.file[name][()], dtype=np.float64)
        if not values.shape:
            values = np.broadcast_to(values, [n or 1 for n in shape])
        if len(values.shape) != len(shape) or any(n not in (None, m) for n, m in zip(shape, values.shape, strict=True)):
            raise ValueError(f"{name} has shape {values.shape}, but {shape} fits the rest of the file.")
        if (values != np.rint(values)).any() or (values < low).any() or (values > high).any():
            raise ValueError(f"{name} must hold integers from {low} to {high}.")
        return torch.from_numpy(values.copy())

    def layer(self, i: int, n: int, scale: Any) -> IntegerLayer:
        """Layer i, which reads n neurons."""
        at = f"layer/{i}"
        (m,) = (int(k) for k in self.file[f"{at}/shape"][()])
        kind = self.file[f"{at}/neuron/type"][()].decode()
        if kind not in KINDS:
            raise ValueError(f"{at}/neuron/type is {kind!r}, known are {', '.join(map(repr, KINDS))}.")

        def vector(name: str, low: int, high: int) -> Tensor:
            return self.numbers(f"{at}/{name}", (m,), low, high)

        def number(name: str) -> int:
            return int(self.numbers(f"{at}/{name}", (), 0, 23))

        has = self.file[at].keys()
        shared = {
            "weight": self.numbers(f"{at}/weight", (m, n), -256, 255),
            "weight_rec": self.numbers(f"{at}/weight_rec", (m, m), -256, 255) if "weight_rec" in has else None,
            "bias": vector("bias", -4096, 4095) if "bias" in has else torch.zeros(m, dtype=torch.float64),
            "v_decay": vector("neuron/vDecay", 0, 4095),
            "threshold": vector("neuron/vThMant", 1, 2**17 - 1),
            "unit": UNIT * torch.from_numpy(np.array(np.broadcast_to(scale, (m,)), dtype=np.float64)),
        }
        return KINDS[kind].from_entries(vector, number, shared)


def _of_layer(layer: IntegerLayer) -> dict[str, Any]:
    entries = _of_matrix(layer.weight, layer.weight_rec)
    if layer.bias.any():
        entries["bias"] = layer.bias.detach().numpy().astype(np.int32)
    own = {name: value if isinstance(value, int) else _short(value) for name, value in layer.entries().items()}
    entries |= {name: value for name, value in own.items() if "/" not in name}
    entries |= {
        "neuron/type": np.bytes_(layer.kind),
        "neuron/vDecay": _short(layer.v_decay),
        "neuron/vThMant": _short(layer.threshold),
        "neuron/refDelay": 1,
        "neuron/gradedSpike": False,
    }
    return entries | own


def _of_matrix(weight: Tensor, weight_rec: Tensor | None = None) -> dict[str, Any]:
    m, n = weight.shape
    entries: dict[str, Any] = {
        "type": _words("dense" if weight_rec is None else "dense_rec"),
        "shape": np.array([m]),
        "inFeatures": n,
        "outFeatures": m,
        "weight": weight.detach().numpy().astype(np.float32),
    }
    return entries if weight_rec is None else entries | {"weight_rec": weight_rec.detach().numpy().astype(np.float32)}


def _short(values: Tensor) -> Any:
    """One number where all are equal, else an array."""
    whole = values.detach().numpy().astype(np.int32)
    return int(whole[0]) if (whole == whole[0]).all() else whole


def _words(text: str) -> Any:
    return np.array([text.encode()], dtype="S10")


def _write(layers: Any, i: int, entries: dict[str, Any]) -> None:
    for name, value in entries.items():
        layers[f"{i}/{name}"] = value
