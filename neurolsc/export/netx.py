"""Lava's NetX files (HDF5): a network quantised, checked and written, and files read.

Golden samples in a file are input, and what every layer and the readout made of it; `neurolsc.export.verify` replays
them without a simulator. Layout: docs/export.md.
"""

import copy
import io
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import torch
from torch import Tensor

from neurolsc.export.fixed_point import (
    UNIT,
    AtrlifLayer,
    CubaLayer,
    IntegerLayer,
    IntegratorLayer,
    integer_steps,
)
from neurolsc.export.quantize import QuantizedNetwork, quantize
from neurolsc.export.report import ExportReport, make_report
from neurolsc.export.wrapped import from_wrapped
from neurolsc.hdf5 import HDF5
from neurolsc.io import atomic_write, refusing
from neurolsc.network import Network

__all__ = ["Golden", "read_netx", "replay", "to_netx", "write_netx"]

FORMAT = 3
GOLDEN_SAMPLES = 4  # calibration samples of which a file holds input and spikes

# entries of a layer's group in a file: path -> field, and those that are constant
ENTRIES = {"neuron/vDecay": "v_decay", "neuron/vThMant": "threshold"}
CONSTANTS: dict[str, int] = {"neuron/refDelay": 1, "neuron/gradedSpike": False}
KINDS: dict[str, tuple[type[IntegerLayer], dict[str, str], dict[str, int]]] = {
    "CUBA": (CubaLayer, ENTRIES | {"neuron/iDecay": "i_decay"}, CONSTANTS),
    "ALIF": (
        AtrlifLayer,
        ENTRIES
        | {"weightExp": "weight_exp", "weightRecExp": "weight_rec_exp", "biasExp": "bias_exp"}
        | {"neuron/thDecay": "theta_decay", "neuron/vThStep": "theta_step"}
        | {"neuron/resetMant": "reset", "neuron/resetExp": "reset_exp"},
        CONSTANTS | {"neuron/iDecay": 4096, "neuron/refDecay": 4096},
    ),
}


class Golden(NamedTuple):
    """Integers' spikes and states on a few samples, with bias neurons and the blank steps of a latency.

    Each layer can be replayed alone, on the golden spikes of the layer below.
    """

    spikes: tuple[Tensor, ...]  # of the input, then of every layer that fires, (T, B, N) each, uint8
    states: tuple[Tensor, ...]  # sum of a layer's states after each step, (T, B): shows changes that change no spike
    readout: Tensor  # integer logits, or voltage of an integrator, (T, B, C)

    @classmethod
    def of(cls, quantized: QuantizedNetwork, x: Tensor) -> "Golden":
        """Run integers on samples (T, B, n_in), 0 or 1."""
        x = quantized.padded(x)
        spikes, states = replay(quantized.layers, x)
        fired = spikes[: len(spikes) - quantized.integrates]
        return cls(tuple(z.to(torch.uint8) for z in (x, *fired)), tuple(states), quantized.logits(spikes[-1]).detach())


def replay(layers: Sequence[IntegerLayer], x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Spikes (T, B, M), of an integrator voltages, and sums of states (T, B), by layer."""
    with torch.no_grad():
        run = list(integer_steps(layers, x))
    spikes = [torch.stack(layer) for layer in zip(*(step.spikes for step in run), strict=True)]
    states = zip(*(step.states for step in run), strict=True)
    return spikes, [torch.stack([torch.stack(state).sum((0, 2)) for state in layer]) for layer in states]


def to_netx(
    network: Network,
    path: str | PathLike[str],
    calibration: Tensor | None = None,
    *,
    labels: Tensor | None = None,
    force: bool = False,
) -> ExportReport:
    """Export a network to Lava: quantise it, check it on data, and write a NetX file.

    The file holds the first four samples with their spikes, or without calibration data 50 steps of random spikes, for
    :func:`neurolsc.export.verify`.

    Args:
        network: what :func:`neurolsc.export.quantize` accepts.
        path: the file, usually ``*.net``. Lava leaves an open file open: give each export a new path.
        calibration: samples (T, B, n_in), 0 or 1. Without them overflows are not found.
        labels: their classes (B,), for accuracies in the report.
        force: accept fewer than 62 weight units per threshold.

    Returns:
        The report: errors, rates, ranges, resources.

    Raises:
        ValueError: if something cannot be expressed or an integer overflows on the calibration data; the message names
            the layer and the number.
        TypeError: if a layer or the readout cannot be exported.
        OSError: if the file cannot be written.

    Example:
        >>> import tempfile
        >>> from neurolsc import LIF
        >>> network = Network([LIF(30, 8, reset="zero")], n_out=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = to_netx(network, f"{folder}/digits.net")
        >>> report.layers[0].cores
        1
    """
    original, own = network, from_wrapped(network)
    network, x, remarks = copy.deepcopy(own).cpu(), calibration, []
    if x is not None:
        x = x.cpu()
    quantized = quantize(network, x, force=force)
    report = make_report(network, quantized, x, None if labels is None else labels.cpu())
    if not network.layer_delay:
        layers = len(network.cells)
        remarks.append(
            f"latency: layer l spikes l steps later than in the original network, and the readout {layers}: in a simulator feed "
            f"{layers} blank steps after the input to see all of it."
        )
    if x is not None and own is not original:
        with torch.no_grad():
            theirs = original.run(x.to(**original.dtype_and_device)).spikes
            ours = network.run(x).spikes
        pairs = [(theirs[i].cpu(), ours[i]) for i in network.spiking]
        shares = [f"{(a == b).double().mean():.4%} of {int(a.sum())}" for a, b in pairs]
        remarks.append(f"wrapped network against our cells, before rounding: spikes equal in {', '.join(shares)}.")
    if x is None:
        x = torch.rand(50, 1, quantized.n_in, generator=torch.Generator().manual_seed(0)) < 0.2
    write_netx(quantized, path, golden=x[:, :GOLDEN_SAMPLES])
    return replace(report, remarks=tuple(remarks))


def write_netx(quantized: QuantizedNetwork, path: str | PathLike[str], *, golden: Tensor | None = None) -> None:
    """Write integers as a NetX file, whole or not at all.

    Args:
        quantized: the integers.
        path: the file, usually ``*.net``.
        golden: samples (T, B, n_in), 0 or 1: the file holds them with the integers' spikes, for
            :func:`neurolsc.export.verify`.

    Raises:
        ValueError: if the samples do not fit.
        OSError: if the file cannot be written.
    """

    def matrix(weight: Tensor, weight_rec: Tensor | None) -> dict[str, Any]:
        m, n = weight.shape
        word = b"dense" if weight_rec is None else b"dense_rec"
        entries = {"type": np.array([word], "S10"), "shape": np.array([m]), "inFeatures": n, "outFeatures": m}
        matrices = {"weight": weight} | ({} if weight_rec is None else {"weight_rec": weight_rec})
        return entries | {name: w.detach().numpy().astype(np.float32) for name, w in matrices.items()}

    def short(values: Tensor | int) -> Any:  # one number where all are equal
        whole = np.asarray(values.detach() if isinstance(values, Tensor) else values).astype(np.int32)
        return int(whole.flat[0]) if (whole == whole.flat[0]).all() else whole

    groups: list[dict[str, Any]] = [{"type": np.array([b"input"], "S10"), "shape": np.array([quantized.n_in])}]
    for layer in quantized.layers:
        _, entries, constants = KINDS[layer.kind]
        group = matrix(layer.weight, layer.weight_rec) | constants | {"neuron/type": np.bytes_(layer.kind)}
        group |= {name: short(getattr(layer, attribute)) for name, attribute in entries.items()}
        groups.append(group | ({"bias": layer.bias.detach().numpy().astype(np.int32)} if layer.bias.any() else {}))
    if not quantized.integrates:
        groups.append(matrix(quantized.readout, None))
    samples = None if golden is None else Golden.of(quantized, golden)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for i, group in enumerate(groups):
            for name, value in group.items():
                file[f"layer/{i}/{name}"] = value
        file["simulation/Ts"] = 1
        file["simulation/tSample"] = 1 + quantized.latency if samples is None else len(samples.readout)
        own = file.create_group("neurolsc")
        own.attrs["format"] = FORMAT
        for name in ("latency", "bias_neurons", "readout_scale"):
            own.attrs[name] = getattr(quantized, name)
        for i, layer in enumerate(quantized.layers, start=1):
            own[f"scale_{i}"] = (layer.unit / UNIT).detach().numpy()
        if samples is not None:
            inside = own.create_group("golden")
            for i, z in enumerate(samples.spikes):
                inside.create_dataset(f"spikes_{i}", data=np.packbits(z.numpy(), axis=2), compression="gzip")
            sums = {f"states_{i}": (total, np.int64) for i, total in enumerate(samples.states, start=1)}
            for name, (values, kind) in (sums | {"readout": (samples.readout, np.int32)}).items():
                inside.create_dataset(name, data=values.numpy().astype(kind), compression="gzip", shuffle=True)
    atomic_write(path, lambda file: file.write(buffer.getvalue()))


def read_netx(path: str | PathLike[str]) -> QuantizedNetwork:
    """Read a file that :func:`write_netx` wrote.

    Raises:
        ValueError: if it is no such file, or a size or number in it does not fit; the message names file and place.
        OSError: if it cannot be read.

    Example:
        >>> import tempfile
        >>> from neurolsc import LIF
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_netx(quantize(Network([LIF(3, 2)], n_out=2)), f"{folder}/a.net")
        ...     read_netx(f"{folder}/a.net").layers[0].weight.shape
        torch.Size([2, 3])
    """
    return read_with_golden(path)[0]


def read_with_golden(path: str | PathLike[str]) -> tuple[QuantizedNetwork, Golden | None]:
    """The integers in a file, and its golden samples if it holds some."""
    data = Path(path).read_bytes()
    with refusing(fspath(path), "not a NetX file of this version"), HDF5(data) as file:
        quantized = _integers(file)
        return quantized, _golden(file, quantized) if file.has("neurolsc/golden") else None


def _numbers(file: HDF5, place: str, shape: tuple[int | None, ...]) -> Tensor:
    """Integers of a data set; None stands for any size, one number for a vector."""
    found = np.asarray(file.values(place, kinds="iuf"), dtype=np.float64)
    if not found.shape and len(shape) == 1:
        found = np.full(shape[0] or 1, found)
    fits = len(found.shape) == len(shape) and all(m in (n, None) for n, m in zip(found.shape, shape, strict=True))
    if not fits or not (found == np.rint(found)).all():
        raise ValueError(f"{place} must hold integers of shape {shape}, got the shape {found.shape}.")
    return torch.from_numpy(found)


def _integers(file: HDF5) -> QuantizedNetwork:
    if not file.has("neurolsc"):
        raise ValueError("there is no group 'neurolsc': another program wrote it.")
    notes = dict(file.file["neurolsc"].attrs)
    if notes["format"] != FORMAT:
        raise ValueError(f"format {notes['format']}, this version reads {FORMAT}.")
    count = len(file.group("layer")) - 1
    leaky = count > 1 and "neuron" in file.group(f"layer/{count}")
    count -= not leaky  # else the last one is a sum
    if count < 1:
        raise ValueError("it has no layer of neurons.")
    n = int(_numbers(file, "layer/0/shape", (1,))[0])
    layers: list[IntegerLayer] = []
    for i in range(1, count + 1):
        at, has = f"layer/{i}", file.group(f"layer/{i}")
        layer, entries, _ = KINDS[file.values(f"{at}/neuron/type", 0, "SO").decode()]
        weight = _numbers(file, f"{at}/weight", (None, n))
        m = len(weight)
        read: dict[str, Any] = {}
        for name, attribute in entries.items():
            value = _numbers(file, f"{at}/{name}", () if attribute.endswith("exp") else (m,))
            read[attribute] = value if value.ndim else int(value)
        scale = np.broadcast_to(file.values(f"neurolsc/scale_{i}", kinds="f"), (m,))
        made = layer(
            weight=weight,
            weight_rec=_numbers(file, f"{at}/weight_rec", (m, m)) if "weight_rec" in has else None,
            bias=_numbers(file, f"{at}/bias", (m,)) if "bias" in has else torch.zeros(m, dtype=torch.float64),
            unit=UNIT * torch.from_numpy(scale.astype(np.float64)),
            **read,
        )
        layers.append(made)
        n = m
    if leaky:
        layers[-1] = IntegratorLayer(**vars(layers[-1]))
    return QuantizedNetwork(
        tuple(layers),
        torch.zeros(0, n).double() if leaky else _numbers(file, f"layer/{count + 1}/weight", (None, n)),
        float(notes["readout_scale"]),
        tuple(np.broadcast_to(notes["bias_neurons"], (count,)).tolist()),
        len(layers) if notes["latency"] else 0,
    )


def _golden(file: HDF5, quantized: QuantizedNetwork) -> Golden:
    sizes = [quantized.n_in, *(layer.size for layer in quantized.layers)]
    classes = sizes.pop() if quantized.integrates else len(quantized.readout)
    at = "neurolsc/golden"
    steps, samples = file.dataset(f"{at}/spikes_0", 3).shape[:2]
    spikes: list[Tensor] = []
    for i, n in enumerate(sizes):
        place, wanted = f"{at}/spikes_{i}", (steps, samples, -(-n // 8))
        packed = file.values(place, 3, "u")
        if packed.dtype != np.uint8 or packed.shape != wanted or 0 in wanted:
            raise ValueError(f"{place} has shape {packed.shape}, wanted bytes {wanted}.")
        spikes.append(torch.from_numpy(np.unpackbits(packed, axis=2, count=n)))
    count = len(quantized.layers)
    states = tuple(_numbers(file, f"{at}/states_{i}", (steps, samples)) for i in range(1, count + 1))
    return Golden(tuple(spikes), states, _numbers(file, f"{at}/readout", (steps, samples, classes)))
