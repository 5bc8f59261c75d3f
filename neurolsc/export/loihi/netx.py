"""The exported file: Lava's NetX layout (HDF5), and one group more for what it has no word for."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import fields
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch import Tensor

from neurolsc.export.loihi.atrlif import AtrlifLayer
from neurolsc.export.loihi.cuba import NEVER, CubaLayer, IntegratorLayer
from neurolsc.export.loihi.fixed_point import UNIT, IntegerLayer, moments
from neurolsc.export.loihi.quantize import QuantizedNetwork
from neurolsc.files import atomic_write
from neurolsc.untrusted.hdf5 import Content, text
from neurolsc.untrusted.refusal import refusing
from neurolsc.untrusted.words import clean

__all__ = ["GOLDEN_SAMPLES", "Golden", "content", "parse", "read_netx", "replay", "write_netx"]

FORMAT = 2
MOST_LAYERS = 1000
GOLDEN_SAMPLES = 4
"""calibration samples of which a file holds the input and the spikes"""
KINDS: dict[str, type[IntegerLayer]] = {layer.kind: layer for layer in (CubaLayer, AtrlifLayer)}
"""what a file calls its neurons -> the layer"""


class Golden(NamedTuple):
    """What integers did on a few samples, with blank steps and bias neurons.

    Layer by layer it holds what a layer read and what it fired, so that each can be replayed alone.
    """

    spikes: tuple[Tensor, ...]
    """of the input, then of every layer that fires, (T, B, N) each, uint8"""
    states: tuple[Tensor, ...]
    """sum of a layer's states (u and v, or v and theta) after each step, (T, B) each: it shows a
    changed weight that changes no spike"""
    readout: Tensor
    """integer sum of each class at every step, or voltage of an integrator, (T, B, C)"""

    @classmethod
    def of(cls, quantized: QuantizedNetwork, x: Tensor) -> "Golden":
        """Run integers on samples (T, B, n_in), 0 or 1."""
        with torch.no_grad():
            x = quantized.padded(x)
            spikes, states = replay(quantized.layers, x)
            readout = quantized.logits(spikes[-1])
            fired = spikes[: len(spikes) - quantized.integrates]
            return cls(tuple(z.to(torch.uint8) for z in (x, *fired)), tuple(states), readout)


def replay(layers: Sequence[IntegerLayer], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Spikes (T, B, M), of an integrator voltages, and sums of states (T, B), by layer."""
    run = list(moments(layers, x))
    spikes = [torch.stack(layer) for layer in zip(*(moment.spikes for moment in run), strict=True)]
    states = zip(*(moment.states for moment in run), strict=True)
    return spikes, [torch.stack([torch.stack(state).sum((0, 2)) for state in layer]) for layer in states]


def write_netx(
    quantized: QuantizedNetwork, path: str | PathLike[str], *, steps: int = 1, golden: Tensor | None = None
) -> None:
    """Write integers as a NetX file, whole or not at all.

    Args:
        quantized: the integers.
        path: the file, usually ``*.net``.
        steps: length of a sample, blank steps left out; a note for readers that ask for it.
        golden: samples (T, B, n_in), 0 or 1: the file holds them with the spikes that the integers
            fire on them, for :func:`neurolsc.export.verify`.

    Raises:
        ValueError: if the samples do not fit.
        OSError: if the file cannot be written.
    """
    data = content(quantized, steps, golden=None if golden is None else Golden.of(quantized, golden))
    atomic_write(path, lambda file: file.write(data))


def content(quantized: QuantizedNetwork, steps: int, report: str | None = None, golden: Golden | None = None) -> bytes:
    """What :func:`write_netx` writes, with a report as JSON."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        layers = file.create_group("layer")
        _write(layers, 0, {"type": _words("input"), "shape": np.array([quantized.n_in])})
        for i, layer in enumerate(quantized.layers, start=1):
            _write(layers, i, _of_layer(layer))
        if not quantized.integrates:
            _write(layers, len(quantized.layers) + 1, _of_matrix(quantized.readout))
        file["simulation/Ts"] = 1
        file["simulation/tSample"] = steps + quantized.blank_steps + quantized.latency
        own = file.create_group("neurolsc")
        own.attrs["format"] = FORMAT
        own.attrs["blank_steps"] = quantized.blank_steps
        own.attrs["latency"] = quantized.latency
        own.attrs["bias_neurons"] = np.array(quantized.bias_neurons)
        own.attrs["readout_scale"] = quantized.readout_scale
        own.attrs["remarks"] = np.bytes_(json.dumps(quantized.remarks))
        if report is not None:
            own["report"] = report
        for i, layer in enumerate(quantized.layers, start=1):
            own[f"scale_{i}"] = (layer.unit / UNIT).detach().numpy()
        if golden is not None:
            group = own.create_group("golden")
            for i, z in enumerate(golden.spikes):
                group.create_dataset(f"spikes_{i}", data=np.packbits(z.numpy(), axis=2), compression="gzip")
            sums = {f"states_{i}": (total, np.int64) for i, total in enumerate(golden.states, start=1)}
            for name, (values, kind) in (sums | {"readout": (golden.readout, np.int32)}).items():
                group.create_dataset(name, data=values.numpy().astype(kind), compression="gzip", shuffle=True)
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
    return parse(Path(path).read_bytes(), fspath(path))[0]


def parse(data: bytes, name: str) -> tuple[QuantizedNetwork, Golden | None]:
    """The integers in a file of that name, and its golden samples if it holds some."""
    with refusing(name, "not a network of this version"):
        if not data.startswith(b"\x89HDF"):
            raise ValueError("not an HDF5 file.")
        with Content(data) as file:
            return _parsed(file)


def _parsed(file: Content) -> tuple[QuantizedNetwork, Golden | None]:
    if not file.has("neurolsc"):
        raise ValueError("there is no group 'neurolsc': another program wrote it.")
    reader = _Reader(file)
    if (found := reader.whole("format")) != FORMAT:
        raise ValueError(f"format {found}, this version reads {FORMAT}.")
    count = len(file.group("layer")) - 1
    integrates = count > 1 and "neuron" in file.group(f"layer/{count}")
    count -= not integrates  # else the last one is a sum
    if not 1 <= count <= MOST_LAYERS:
        raise ValueError(f"it has {count} layers, 1 to {MOST_LAYERS} are read.")
    width = reader.width("layer/0/shape")
    layers = []
    for i in range(1, count + 1):
        layers.append(reader.layer(i, width))
        width = layers[-1].size
    if integrates:
        last = layers[-1]
        if type(last) is not CubaLayer or last.weight_rec is not None or (last.threshold != NEVER).any():
            raise ValueError(
                f"layer/{count} is the readout, which must be CUBA neurons without recurrence that never fire."
            )
        layers[-1] = IntegratorLayer(**{field.name: getattr(last, field.name) for field in fields(last)})
        readout = torch.zeros(0, width).double()
    else:
        readout = reader.numbers(f"layer/{count + 1}/weight", (None, width))
    bias_neurons = reader.attribute("bias_neurons")
    if bias_neurons.shape != (count,) or not np.isin(bias_neurons, range(4)).all():
        raise ValueError(f"neurolsc, bias_neurons must be 0 to 3 for each of {count} layers, got {bias_neurons}.")
    latency = reader.whole("latency") if "latency" in reader.notes else 0  # files from before it was noted
    if latency not in (0, count):
        raise ValueError(f"neurolsc, latency must be 0 or {count}, a step for each layer, got {latency}.")
    scale = float(reader.attribute("readout_scale"))
    if not (np.isfinite(scale) and scale > 0):
        raise ValueError(f"neurolsc, readout_scale must be positive and finite, got {scale}.")
    remarks: Any = json.loads(str(reader.attribute("remarks")))
    if not isinstance(remarks, list) or not all(isinstance(remark, str) for remark in remarks):
        raise ValueError("neurolsc, remarks must be a list of texts.")
    read = QuantizedNetwork(
        tuple(layers),
        readout,
        scale,
        tuple(bias_neurons.tolist()),
        reader.whole("blank_steps"),
        tuple(clean(r, 1000) for r in remarks),
        latency,
    )
    return read, reader.golden(read) if file.has("neurolsc/golden") else None


class _Reader:
    """Reads integers from an open file and checks their sizes."""

    def __init__(self, file: Content) -> None:
        self.file, self.notes = file, file.file["neurolsc"].attrs

    def attribute(self, name: str) -> Any:
        """What is noted beside our own group."""
        if name not in self.notes or self.notes.get_id(name).dtype.kind not in "iufS":
            raise ValueError(f"neurolsc has no note {name}, or it is neither a number nor a text of fixed length.")
        found = self.notes[name]
        if isinstance(found, h5py.Empty):
            raise ValueError(f"neurolsc, {name} is empty.")
        return found.decode() if isinstance(found, bytes) else found

    def whole(self, name: str) -> int:
        """A note that is a small whole number, 0 or more."""
        found = self.attribute(name)
        if not isinstance(found, np.integer) or not 0 <= found < 2**31:
            raise ValueError(f"neurolsc, {name} must be a whole number, got {clean(found)}.")
        return int(found)

    def width(self, name: str) -> int:
        """The number of neurons that a shape of one entry states."""
        found = self.numbers(name, (1,), 1)
        return int(found[0])

    def numbers(self, name: str, shape: tuple[int | None, ...], low: int = -(2**31), high: int = 2**31) -> Tensor:
        """A dataset, filled up to the shape if it is a scalar; None stands for any size."""
        values = np.asarray(self.file.values(name, kinds="iuf"), dtype=np.float64)
        if not values.shape:
            self.file.room.take(8 * math.prod(n or 1 for n in shape), name)
            values = np.broadcast_to(values, [n or 1 for n in shape])
        if len(values.shape) != len(shape) or any(n not in (None, m) for n, m in zip(shape, values.shape, strict=True)):
            raise ValueError(f"{name} has shape {values.shape}, but {shape} fits the rest of the file.")
        if not (values == np.rint(values)).all() or (values < low).any() or (values > high).any():
            raise ValueError(f"{name} must hold integers from {low} to {high}.")
        return torch.from_numpy(values.copy())

    def golden(self, quantized: QuantizedNetwork) -> Golden:
        """The golden samples of the network that was read."""
        spikes: list[np.ndarray] = []
        steps, samples = self.file.dataset("neurolsc/golden/spikes_0", 3).shape[:2]
        sizes = [quantized.n_in, *(layer.size for layer in quantized.layers)]
        classes = sizes.pop() if quantized.integrates else len(quantized.readout)
        for i, n in enumerate(sizes):
            name = f"neurolsc/golden/spikes_{i}"
            packed = self.file.values(name, 3, "u")
            if packed.dtype != np.uint8 or packed.shape != (steps, samples, -(-n // 8)) or 0 in packed.shape:
                raise ValueError(f"{name} has shape {packed.shape}, wanted bytes ({steps}, {samples}, {-(-n // 8)}).")
            self.file.room.take(8 * packed.size, name)
            spikes.append(np.unpackbits(packed, axis=2, count=n))
        names = [f"neurolsc/golden/states_{i}" for i in range(1, len(quantized.layers) + 1)]
        states = [self.numbers(name, (steps, samples), -(2**53), 2**53) for name in names]
        readout = self.numbers("neurolsc/golden/readout", (steps, samples, classes))
        return Golden(tuple(map(torch.from_numpy, spikes)), tuple(states), readout)

    def layer(self, i: int, n: int) -> IntegerLayer:
        """Layer i, which reads n neurons."""
        at = f"layer/{i}"
        m = self.width(f"{at}/shape")
        kind = text(self.file.values(f"{at}/neuron/type", 0, "SO"))
        if kind not in KINDS:
            raise ValueError(f"{at}/neuron/type is {kind!r}, known are {', '.join(map(repr, KINDS))}.")
        scale = self.file.values(f"neurolsc/scale_{i}", kinds="f")
        if np.shape(scale) not in ((), (m,)) or not (np.isfinite(scale) & (scale > 0)).all():
            raise ValueError(f"neurolsc/scale_{i} must be positive and finite, one number or {m}.")

        def vector(name: str, low: int, high: int) -> Tensor:
            return self.numbers(f"{at}/{name}", (m,), low, high)

        def number(name: str) -> int:
            return int(self.numbers(f"{at}/{name}", (), 0, 23))

        has = self.file.group(at)
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
