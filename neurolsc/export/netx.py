"""Networks as NetX files (HDF5) of Lava: to_netx quantises, reports what that changed, and writes; read_netx reads.

Golden samples in a file are inputs, with the outputs of every layer and of the readout; `neurolsc.export.verify`
replays them without a simulator. Layout: docs/export.md.
"""

import copy
import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor, nn

from neurolsc import metrics
from neurolsc.display import Displayed, Table
from neurolsc.export.fixed_point import (
    FULL_DECAY,
    NEVER,
    UNIT,
    AtrlifLayer,
    CubaLayer,
    Extremes,
    IntegerLayer,
    integer_steps,
)
from neurolsc.export.quantize import COARSE, COARSE_ALIF, QuantizedNetwork, dequantize, quantize
from neurolsc.export.wrapped import delayed, exported_kind, from_wrapped
from neurolsc.hdf5 import HDF5
from neurolsc.interop.prepared import AS_READ, network_of, prepare
from neurolsc.interop.wrapped import WrappedCell
from neurolsc.io import atomic_write, refusing
from neurolsc.network import Network
from neurolsc.neurons import ALIF, LI, LIF, CubaLIF
from neurolsc.surroundings import eval_mode
from neurolsc.tasks import Classification

# What a core of Loihi holds.
CORE_NEURONS = 1024
CORE_AXONS = 4096
CORE_BITS = 2**20  # of synapses

GOLDEN_SAMPLES = 4  # calibration samples of which a file holds input and spikes
BECOMES = {  # what a cell and its reset become on the chip, in words
    (LIF, "zero"): "LIF, reset to zero: CUBA",
    (LIF, "subtract"): "LIF, reset by subtraction: CUBA, voltage in u",
    (LIF, "static"): "LIF, reset by subtraction: CUBA, voltage in u",
    (CubaLIF, "zero"): "CubaLIF, reset to zero: CUBA, current in u and voltage in v",
    (ALIF, "static"): "ALIF, static reset: ALIF (ATRLIF)",
    (LI, "none"): "LI: CUBA that never fires, its voltage is read",
}


@dataclass(frozen=True)
class LayerReport:
    """A layer's integers against its floats, and its resources."""

    neuron: str  # what it was and what it became
    neurons: int  # on the chip, with those that stand for biases
    threshold: tuple[int, int]  # smallest and largest at rest, weight units
    weight_error_max: float  # of input and recurrent weights, in thresholds of their neuron (for an LI in float units)
    weight_error_rms: float  # the same weights, root mean square
    rounded_to_zero: float  # share of weights that were not zero and are now
    threshold_error: float  # largest, as a share of the threshold
    decay_error: float  # largest change in the share of the voltage, current or threshold that a step retains
    synapse_bits: int
    cores: int  # on Loihi, by CORE_NEURONS, CORE_AXONS and CORE_BITS


@dataclass(frozen=True)
class LayerActivity:
    """Spikes of a layer on the calibration data, in integers and in floats."""

    rate_float: float  # spikes per neuron and step
    rate_integer: float
    agreement: float  # share of equal spikes; no criterion of success, as one flipped spike changes those after it
    extremes: Extremes


@dataclass(frozen=True)
class Decisions:
    """Decisions by mode vote, over the steps that count in the task, on the calibration data.

    Accuracies are None without labels.
    """

    samples: int  # number of samples
    same_as_float: float  # share of samples on which the integers decide as the floats do
    accuracy_float: float | None
    accuracy_integer: float | None


@dataclass(frozen=True, repr=False)
class ExportReport(Displayed):
    """What :func:`neurolsc.export.to_netx` returns."""

    layers: tuple[LayerReport, ...]
    readout_scale: float  # integer units per unit of the float readout
    activity: tuple[LayerActivity, ...] | None = None  # None without calibration data
    readout: Extremes | None = None  # of the readout's sums, or its voltages
    decisions: Decisions | None = None
    remarks: tuple[str, ...] = ()
    layout: str = AS_READ  # where time and batch were found in the x that was given

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # tuples become lists

    def parts(self) -> list[str | Table]:
        """Return a table of the layers, and lines of text on activity, readout and decisions."""
        head = ("layer", "neurons", "cores", "synapse kB", "units/threshold", "weight error max, rms", "rounded to 0")
        rows = []
        for i, layer in enumerate(self.layers, start=1):
            low, high = layer.threshold
            if low == high:
                units = str(low)
            else:
                units = f"{low} to {high}"
            if low == NEVER:  # an integrator
                units = "none"
            cells = (
                i,
                layer.neurons,
                layer.cores,
                f"{layer.synapse_bits / 8192:.0f}",  # 1024 bytes of 8 bits
                units,
                f"{layer.weight_error_max:.4f}, {layer.weight_error_rms:.5f}",
                f"{layer.rounded_to_zero:.1%}",
                f"{layer.threshold_error:.4f}, {layer.decay_error:.5f}",
            )
            rows.append([str(cell) for cell in cells])
        lines: list[str | Table] = []
        if self.layout != AS_READ:
            lines.append(f"x: {self.layout}")
        lines.append(Table((*head, "threshold, decay error"), rows))
        lines += [f"layer {i}: {layer.neuron}" for i, layer in enumerate(self.layers, start=1)]
        lines += [
            f"layer {i}: rate {a.rate_float:.4f} float, {a.rate_integer:.4f} integer; {a.agreement:.2%} of spikes equal; "
            f"at most {a.extremes.reach:.0%} of the bits used, {a.extremes.ties} ties"
            for i, a in enumerate(self.activity or (), start=1)
        ]
        if self.readout is not None:
            lines.append(f"readout: at most {self.readout.reach:.0%} of the bits used")
        found = self.decisions
        if found is not None:
            scores = ""
            if found.accuracy_float is not None:
                scores = f"; mode accuracy float {found.accuracy_float:.1%}, integer {found.accuracy_integer:.1%}"
            lines.append(f"calibration: {found.same_as_float:.1%} of {found.samples} decided as in floats{scores}")
        return [*lines, *self.remarks]


def to_netx(
    net: nn.Module,
    path: str | PathLike[str],
    x: Any = None,
    *,
    labels: Tensor | None = None,
    task: Classification = Classification(),
    force: bool = False,
) -> ExportReport:
    """Export a network to Lava: quantise it, check it on data, and write a NetX file.

    For :func:`neurolsc.export.verify` the file holds golden samples: the first four samples of x with their spikes, or,
    without x, 50 steps of random spikes.

    The network runs in evaluation mode, and its own mode is restored.

    Args:
        net: what :func:`neurolsc.export.quantize` accepts, or a module of snnTorch, norse or spikingjelly.
        path: the file, usually ``*.net``. Lava leaves an open file open: give each export a new path.
        x: calibration samples, 0 or 1: (T, B, n_in) of a network, or what the module takes, as
            :func:`neurolsc.interop.prepared.prepare` reads it. Without them overflows are not found.
        labels: classes of the samples (B,), for accuracies in the report; left out if x holds them.
        task: says which steps decide, as in :func:`neurolsc.evaluate`; by default all.
        force: accept fewer weight units per threshold, as in :func:`neurolsc.export.quantize`.

    Returns:
        The report: errors, rates, ranges, resources.

    Raises:
        ValueError: if something cannot be expressed or an integer overflows on the calibration data; the message names
            the layer and the number.
        TypeError: if a layer or the readout cannot be exported, or path or task is of another kind.
        OSError: if the file cannot be written.
    """
    if not isinstance(path, str | PathLike):
        raise TypeError(f"path must be that of a file, got a {type(path).__name__}: call to_netx(net, path, x).")
    if not isinstance(task, Classification):
        raise TypeError(f"task must be a neurolsc.tasks.Classification, got {task!r}.")
    layout = AS_READ
    if x is None:
        network = network_of(net)
    else:
        network, x, targets, _, layout, _ = prepare(net, x, labels)
        x = x.detach().cpu()
        labels = targets
    own = copy.deepcopy(from_wrapped(network)).cpu().eval()
    quantized = quantize(own, x, force=force)
    report = make_report(own, quantized, x, None if labels is None else labels.cpu(), task)
    if x is None:
        # a golden sample of 50 steps, in each of which about a fifth of the inputs spike
        x = torch.rand(50, 1, quantized.n_in, generator=torch.Generator().manual_seed(0)) < 0.2
    elif any(isinstance(cell, WrappedCell) for cell in network.cells):
        # the report also says how many spikes the conversion into our cells keeps, before any rounding
        with torch.no_grad(), eval_mode(network):
            theirs = network.run(x.to(**network.dtype_and_device)).spikes
            ours = own.run(x).spikes
        pairs = [(theirs[i].cpu(), ours[i]) for i in network.spiking]
        shares = ", ".join(f"{(a == b).double().mean():.4%} of {int(a.sum())}" for a, b in pairs)
        remark = f"wrapped network against our cells, before rounding: spikes equal in {shares}."
        report = dataclasses.replace(report, remarks=(*report.remarks, remark))
    write_netx(quantized, path, golden=x[:, :GOLDEN_SAMPLES])
    return dataclasses.replace(report, layout=layout)


@torch.no_grad()
def make_report(
    network: Network,
    quantized: QuantizedNetwork,
    calibration: Tensor | None,
    labels: Tensor | None,
    task: Classification = Classification(),
) -> ExportReport:
    """Compare a network with its integers: weights, thresholds and decays of each layer, and activity on samples.

    Args:
        network: the network, in cells that can be exported.
        quantized: its integers.
        calibration: samples (T, B, n_in); None: the report has no activity and no decisions.
        labels: their classes (B,); None: the report has no accuracies.
        task: says which steps decide.
    """
    layers = []
    remarks = []
    cell: Any
    near: Any  # the float cell with the parameters of the integers
    # delayed: each layer reads the one below a step later, and neurons that always fire stand for biases
    cells = (delayed(network).cells, dequantize(network, quantized).cells)
    for i, (cell, near, layer) in enumerate(zip(*cells, quantized.layers, strict=True), start=1):
        kind: Any = exported_kind(cell)
        name = "theta_rest" if kind is ALIF else "theta"  # an LI has no threshold: 1 stands for it
        theta = getattr(cell, name, torch.ones(layer.size)).double()
        rounded = getattr(near, name, torch.ones(layer.size)).double()
        decays = [d for d in ("decay_v", "decay_i", "decay_theta") if hasattr(cell, d)]
        matrices = [w for w in ("w_in", "w_rec") if hasattr(cell, w)]
        exact = torch.cat([getattr(cell, w).double() for w in matrices], 1)
        integer = torch.cat([getattr(near, w) for w in matrices], 1)
        error = (integer - exact) / theta.unsqueeze(1)
        # a LIF that subtracts resets itself by a synapse of -threshold, which `dequantize` takes out: 1e-16 may be left
        lost = (exact != 0) & (integer.abs() < 1e-12)
        m, n = layer.weight.shape  # neurons, inputs
        fan_in = n if layer.weight_rec is None else n + m
        bits = fan_in * m * 9  # 8 bits and a sign for each weight
        layers.append(
            LayerReport(
                neuron=BECOMES[kind, "none" if kind is LI else cell.reset.name],
                neurons=m,
                threshold=(int(layer.threshold.min()), int(layer.threshold.max())),
                weight_error_max=error.abs().max().item(),
                weight_error_rms=error.square().mean().sqrt().item(),
                rounded_to_zero=lost.double().mean().item(),
                threshold_error=(rounded / theta - 1).abs().max().item(),
                decay_error=max((getattr(near, d) - getattr(cell, d)).abs().max().item() for d in decays),
                synapse_bits=bits,
                cores=max(math.ceil(m / CORE_NEURONS), math.ceil(fan_in / CORE_AXONS), math.ceil(bits / CORE_BITS)),
            )
        )
        fewest = COARSE_ALIF if kind is ALIF else COARSE
        if layer.threshold.min() < fewest:  # by force, or halved until states fit
            remarks.append(
                f"layer {i}: a threshold has {int(layer.threshold.min())} weight units, where {fewest} or more are wanted: "
                f"rounding moves thresholds by up to {layers[-1].threshold_error:.0%}."
            )
    report = ExportReport(tuple(layers), quantized.readout_scale, remarks=tuple(remarks))
    if calibration is None:
        return report
    floats = network.run(calibration)
    run = quantized.run(calibration)
    activity = []
    for i in network.spiking:
        z_integer = run.spikes[i]
        z = floats.spikes[i][:, :, : z_integer.shape[2]]  # without bias neurons, if the network is a delayed one
        activity.append(
            LayerActivity(
                rate_float=z.double().mean().item(),
                rate_integer=z_integer.double().mean().item(),
                agreement=(z == z_integer).double().mean().item(),
                extremes=run.extremes[i],
            )
        )
    last = task.last or len(calibration)
    votes = metrics.mode_vote(floats.logits[-last:])
    same = (votes == metrics.mode_vote(run.logits[-last:])).double().mean().item()
    decisions = Decisions(len(votes), same, None, None)
    if labels is not None:
        scores = (task.measures(logits, labels)["mode_accuracy"] for logits in (floats.logits, run.logits))
        decisions = Decisions(len(votes), same, *scores)
    return dataclasses.replace(report, activity=tuple(activity), readout=run.extremes[-1], decisions=decisions)


# ---- files

FORMAT = 3

# entries of a layer's group in a file: path -> name of the layer's field (a str), or a constant (an int or bool)
ENTRIES = {"neuron/refDelay": 1, "neuron/gradedSpike": False, "neuron/vDecay": "v_decay", "neuron/vThMant": "threshold"}
KINDS: dict[str, tuple[type[IntegerLayer], dict[str, str | int]]] = {
    "CUBA": (CubaLayer, ENTRIES | {"neuron/iDecay": "i_decay"}),
    "ALIF": (
        AtrlifLayer,
        ENTRIES
        | {"weightExp": "weight_exp", "weightRecExp": "weight_rec_exp", "biasExp": "bias_exp"}
        | {"neuron/iDecay": FULL_DECAY, "neuron/refDecay": FULL_DECAY, "neuron/thDecay": "theta_decay"}
        | {"neuron/vThStep": "theta_step", "neuron/resetMant": "reset", "neuron/resetExp": "reset_exp"},
    ),
}


@torch.no_grad()
def replay(layers: Sequence[IntegerLayer], x: Tensor) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Run layers on input spikes x (T, B, N), each layer on the spikes of the one below.

    Yields:
        For each layer its spikes, or an integrator's voltages, and its states by name, all (T, B, M).
    """
    steps = list(integer_steps(layers, x))
    for i, layer in enumerate(layers):
        states = {name: torch.stack([getattr(s.states[i], name) for s in steps]) for name in layer.variables}
        yield torch.stack([step.spikes[i] for step in steps]), states


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
    samples: dict[str, np.ndarray] = {}
    if golden is not None:
        x = quantized.padded(golden)
        z = x
        spikes = [x]
        for i, (z, states) in enumerate(replay(quantized.layers, x), start=1):
            spikes.append(z)
            # sums over states and neurons (T, B): enough to see that one of them differs
            samples[f"states_{i}"] = torch.stack([*states.values()]).sum((0, 3)).numpy().astype(np.int64)
        samples["readout"] = quantized.logits(z).numpy().astype(np.int32)
        for i, z in enumerate(spikes[: len(spikes) - quantized.integrates]):  # an integrator sends no spikes
            samples[f"spikes_{i}"] = np.packbits(z.numpy().astype(np.uint8), axis=2)
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["layer/0/type"] = np.array([b"input"], "S10")
        file["layer/0/shape"] = np.array([quantized.n_in])
        # the layers, and None for the readout after them; an integrator is its own readout
        for i, layer in enumerate((*quantized.layers, *(() if quantized.integrates else (None,))), start=1):
            group = file.create_group(f"layer/{i}")
            if layer is None:
                weight = quantized.readout
            else:
                weight = layer.weight
            weight_rec = None
            if layer is not None:
                weight_rec = layer.weight_rec
            group["type"] = np.array([b"dense" if weight_rec is None else b"dense_rec"], "S10")
            group["shape"] = np.array([len(weight)])
            group["outFeatures"], group["inFeatures"] = weight.shape
            group["weight"] = weight.numpy().astype(np.float32)
            if weight_rec is not None:
                group["weight_rec"] = weight_rec.numpy().astype(np.float32)
            if layer is None:  # the readout, which has no neurons
                continue
            if layer.bias.any():
                group["bias"] = layer.bias.numpy().astype(np.int32)
            group["neuron/type"] = np.bytes_(layer.kind)
            for name, entry in KINDS[layer.kind][1].items():
                if isinstance(entry, str):
                    whole = np.asarray(getattr(layer, entry)).astype(np.int32)
                    # Lava's documented form is one number for all neurons
                    group[name] = int(whole.flat[0]) if (whole == whole.flat[0]).all() else whole
                else:
                    group[name] = entry
            file[f"neurolsc/scale_{i}"] = (layer.unit / UNIT).numpy()
        file["simulation/Ts"] = 1  # time is counted in steps
        # steps of a sample: of the golden ones, blank steps included, else of an input of one step
        file["simulation/tSample"] = len(samples["readout"]) if samples else 1 + quantized.latency
        notes = {"format": FORMAT} | {k: getattr(quantized, k) for k in ("latency", "bias_neurons", "readout_scale")}
        file["neurolsc"].attrs.update(notes)
        for name, values in samples.items():
            file.create_dataset(f"neurolsc/golden/{name}", data=values, compression="gzip", shuffle=True)
    with HDF5(buffer.getvalue()) as content:
        digests = layer_digests(content)
    with h5py.File(buffer, "r+") as file:  # an attribute of our own group, which other readers leave alone
        file["neurolsc"].attrs["sha256"] = np.array(digests, "S64")
    atomic_write(path, lambda file: file.write(buffer.getvalue()))


def layer_digests(file: HDF5) -> list[bytes]:
    """Return the SHA-256 of each layer in a file, the input first: of the names and values of all its entries."""

    def add(digest: Any, name: str, entry: Any) -> None:
        """Add a value, or a group of values, to a digest."""
        if isinstance(entry, dict):
            for key in sorted(entry):
                add(digest, f"{name}/{key}", entry[key])
            return
        values = np.asarray(entry)
        digest.update(f"{name} {values.shape} ".encode())
        if values.dtype.kind in "biuf":
            digest.update(values.astype("<f8").tobytes())  # the same bytes on every machine
        else:
            digest.update(str(values.tolist()).encode())

    digests = []
    for i in range(len(file.group("layer"))):
        digest = hashlib.sha256()
        add(digest, "", file.tree(f"layer/{i}"))
        digests.append(digest.hexdigest().encode())
    return digests


def changed_layers(path: str | PathLike[str]) -> tuple[int, ...]:
    """Return which layers of a file, 0 for its input, are not as :func:`write_netx` wrote them, by their digests.

    Files of earlier versions have no digests: of them nothing is found.
    """
    with refusing(fspath(path), "not a NetX file of this version"), HDF5(Path(path).read_bytes()) as file:
        stored = file.file["neurolsc"].attrs.get("sha256")
        if stored is None:
            return ()
        pairs = zip_longest(np.asarray(stored).ravel().tolist(), layer_digests(file))
        return tuple(i for i, (wanted, found) in enumerate(pairs) if wanted != found)


def read_netx(path: str | PathLike[str]) -> QuantizedNetwork:
    """Read a file that :func:`write_netx` wrote, or one of lava-dl's own with dense CUBA layers.

    Layers of lava-dl fire as Lava runs them, each one step after the layer below, and keep the integer units of their
    file. A Dense without neurons at the end becomes the readout; without it the logits are the last layer's spikes.

    Raises:
        ValueError: if the file is neither, or a size or number in it does not fit; the message names file and place.
        OSError: if the file cannot be read.
    """
    data = Path(path).read_bytes()
    with refusing(fspath(path), "not a NetX file of this version"), HDF5(data) as file:
        if not file.has("neurolsc"):
            return of_lava_dl(file)
    quantized, _ = read_with_golden(path)
    return quantized


def integers(file: HDF5, place: str, *shape: int | None) -> Tensor:
    """Read integers from a place in a file, as float64.

    Args:
        file: the file.
        place: path of the data set.
        shape: the wanted shape; None fits any size. Where a vector is wanted, the file may hold one number for all.

    Raises:
        ValueError: if the shape is another, or a number is not whole.
    """
    found = np.asarray(file.values(place, kinds="iuf"), dtype=np.float64)
    if not found.shape and len(shape) == 1:
        found = np.full(shape[0] or 1, found)
    fits = [wanted in (size, None) for size, wanted in zip(found.shape, shape, strict=False)]
    if len(found.shape) != len(shape) or not all(fits) or not (found == np.rint(found)).all():
        raise ValueError(f"{place} must hold integers of shape {shape}, got the shape {found.shape}.")
    return torch.from_numpy(found)


def of_lava_dl(file: HDF5) -> QuantizedNetwork:
    """Read a file that lava-dl wrote: Dense layers with CUBA neurons; the last one may have no neurons.

    Raises:
        ValueError: if the file holds other layers or neurons; the message names the place.
    """
    layers: list[IntegerLayer] = []
    readout: Tensor | None = None
    n_in: int | None = None  # outputs of the layer before; None fits any number, if the file has no input layer
    for i in range(len(file.group("layer"))):
        at = f"layer/{i}"
        if readout is not None:
            raise ValueError(f"{at} comes after a layer without neurons: only the last layer may have none.")
        entries = file.group(at)
        kind = file.values(f"{at}/type", 1, "SO")[0].decode()
        if kind == "input" and "neuron" not in entries:
            n_in = int(integers(file, f"{at}/shape", None).prod())
            continue
        if kind not in ("dense", "dense_rec") or "delay" in entries:
            if "delay" in entries:
                what = f"{kind!r} with delays"
            else:
                what = repr(kind)
            raise ValueError(f"{at} is {what}: of lava-dl's layers 'dense' and 'dense_rec' without delays are read.")
        weight = integers(file, f"{at}/weight", None, n_in)
        n_in = len(weight)
        if "neuron" not in entries:
            readout = weight
            continue
        neuron = file.values(f"{at}/neuron/type", 0, "SO").decode()
        if neuron not in ("CUBA", "LOIHI"):
            raise ValueError(f"{at} has {neuron} neurons: of lava-dl's neurons CUBA ones are read.")
        if "gradedSpike" in file.group(f"{at}/neuron") and file.values(f"{at}/neuron/gradedSpike", 0):
            raise ValueError(f"{at} sends graded spikes, which are not supported.")
        if "bias" in entries:
            bias = integers(file, f"{at}/bias", n_in)
        else:
            bias = torch.zeros(n_in, dtype=torch.float64)
        layers.append(
            CubaLayer(
                weight=weight,
                weight_rec=integers(file, f"{at}/weight_rec", n_in, n_in) if kind == "dense_rec" else None,
                bias=bias,
                v_decay=integers(file, f"{at}/neuron/vDecay", n_in),
                i_decay=integers(file, f"{at}/neuron/iDecay", n_in),
                threshold=integers(file, f"{at}/neuron/vThMant", n_in),
                unit=torch.full((n_in,), float(UNIT), dtype=torch.float64),
            )
        )
    if not layers or n_in is None:
        raise ValueError("it has no layer of neurons.")
    if readout is None:  # the logits are the spikes of the last layer
        readout = torch.eye(n_in, dtype=torch.float64)
    return QuantizedNetwork(tuple(layers), readout, readout_scale=1.0, bias_neurons=(0,) * len(layers))


def read_with_golden(path: str | PathLike[str]) -> tuple[QuantizedNetwork, dict[str, Tensor]]:
    """Read a file that :func:`write_netx` wrote.

    Returns:
        The integers, and the golden samples by name, empty if the file holds none: ``spikes_0``, the input, and
        ``spikes_i`` of layer i from 1 (T, B, M); ``states_i``, sums over the states of all neurons (T, B); ``readout``
        (T, B, C).

    Raises:
        ValueError: if another program or version wrote it, or it is damaged; the message names file and place.
        OSError: if it cannot be read.
    """
    data = Path(path).read_bytes()
    with refusing(fspath(path), "not a NetX file of this version"), HDF5(data) as file:
        if not file.has("neurolsc"):
            raise ValueError("there is no group 'neurolsc' with golden samples: another program wrote it.")
        notes = dict(file.file["neurolsc"].attrs)
        if notes["format"] != FORMAT:
            raise ValueError(f"format {notes['format']}, this version reads {FORMAT}.")

        numbers = partial(integers, file)
        count = len(file.group("layer")) - 1  # without the input
        # the last entry is a readout, without neurons, or an integrator
        integrates = count > 1 and "neuron" in file.group(f"layer/{count}")
        count -= not integrates  # without the readout
        if count < 1:
            raise ValueError("it has no layer of neurons.")
        sizes = [int(numbers("layer/0/shape", 1)[0])]  # of the input and of each layer
        layers: list[IntegerLayer] = []
        for i in range(1, count + 1):
            at = f"layer/{i}"
            stored = file.group(f"layer/{i}")
            kind, entries = KINDS[file.values(f"{at}/neuron/type", 0, "SO").decode()]
            weight = numbers(f"{at}/weight", None, sizes[-1])
            m = len(weight)
            read: dict[str, Any] = {}
            for name, field in entries.items():
                if not isinstance(field, str):  # a constant, which no field holds
                    continue
                if field.endswith("exp"):  # an exponent, one int for all neurons
                    read[field] = int(numbers(f"{at}/{name}"))
                else:
                    read[field] = numbers(f"{at}/{name}", m)
            scale = np.broadcast_to(file.values(f"neurolsc/scale_{i}", kinds="f"), (m,))
            if integrates and i == count:
                read["integrates"] = True
            layers.append(
                kind(
                    weight=weight,
                    weight_rec=numbers(f"{at}/weight_rec", m, m) if "weight_rec" in stored else None,
                    bias=numbers(f"{at}/bias", m) if "bias" in stored else torch.zeros(m, dtype=torch.float64),
                    unit=UNIT * torch.from_numpy(scale.astype(np.float64)),
                    **read,
                )
            )
            sizes.append(m)
        n = sizes[-1]
        quantized = QuantizedNetwork(
            tuple(layers),
            readout=torch.zeros(0, n).double() if integrates else numbers(f"layer/{count + 1}/weight", None, n),
            readout_scale=float(notes["readout_scale"]),
            bias_neurons=tuple(np.broadcast_to(notes["bias_neurons"], (count,)).tolist()),
            latency=count if notes["latency"] else 0,
        )
        at = "neurolsc/golden"
        golden = {}
        if file.has(at):
            steps, samples = file.dataset(f"{at}/spikes_0", 3).shape[:2]
            for i, m in enumerate(sizes[: len(sizes) - integrates]):
                packed = file.values(f"{at}/spikes_{i}", 3, "u")
                wanted = (steps, samples, -(-m // 8))  # 8 neurons in a byte, rounded up
                if packed.dtype != np.uint8 or packed.shape != wanted or 0 in wanted:
                    raise ValueError(f"{at}/spikes_{i} has shape {packed.shape}, wanted bytes {wanted}.")
                golden[f"spikes_{i}"] = torch.from_numpy(np.unpackbits(packed, axis=2, count=m))
            for i in range(1, count + 1):
                golden[f"states_{i}"] = numbers(f"{at}/states_{i}", steps, samples)
            golden["readout"] = numbers(f"{at}/readout", steps, samples, n if integrates else len(quantized.readout))
        return quantized, golden
