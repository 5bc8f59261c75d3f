"""The report of an export: errors and resources of the integers, and both networks on data."""

import dataclasses
import json
import math
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from neurolsc import metrics
from neurolsc.display import Displayed, Table
from neurolsc.export.fixed_point import NEVER, Extremes
from neurolsc.export.quantize import QuantizedNetwork, dequantize
from neurolsc.export.wrapped import delayed, exported_kind
from neurolsc.io import write_json
from neurolsc.network import Network
from neurolsc.neurons import ALIF, LI, LIF, CubaLIF

__all__ = ["Decisions", "ExportReport", "LayerActivity", "LayerReport", "make_report"]

BECOMES = {
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
    neurons: int  # on the chip, one that stands for a bias included
    threshold: tuple[int, int]  # smallest and largest at rest, weight units
    weight_error_max: float  # of input and recurrent weights, in thresholds
    weight_error_rms: float
    rounded_to_zero: float  # share of weights that were not zero and are now
    threshold_error: float  # largest, as a share of the threshold
    decay_error: float  # largest difference of the share of the voltage that a step retains
    synapse_bits: int
    cores: int  # at 1024 neurons, 4096 axons and 2^20 bits each


@dataclass(frozen=True)
class LayerActivity:
    """A layer of the integer model on the calibration data, against the float one."""

    rate_float: float  # spikes per neuron and step
    rate_integer: float
    agreement: float  # share of equal spikes; never asserted, as one flipped spike changes those after it
    extremes: Extremes


@dataclass(frozen=True)
class Decisions:
    """Mode votes on the calibration data; accuracies are None without labels."""

    samples: int
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

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write all of it as JSON; an OSError if the file cannot be written."""
        write_json(path, self.to_dict())

    def parts(self) -> list[str | Table]:
        """A table of the layers, and a line for each finding."""
        head = ("layer", "neurons", "cores", "synapse kB", "units/threshold", "weight error max, rms", "rounded to 0")
        rows = []
        for i, layer in enumerate(self.layers, start=1):
            low, high = layer.threshold
            units = "none" if low == NEVER else str(low) if low == high else f"{low} to {high}"
            errors = f"{layer.weight_error_max:.4f}, {layer.weight_error_rms:.5f}", f"{layer.rounded_to_zero:.1%}"
            sizes = (str(i), str(layer.neurons), str(layer.cores), f"{layer.synapse_bits / 8192:.0f}")
            rows.append((*sizes, units, *errors, f"{layer.threshold_error:.4f}, {layer.decay_error:.5f}"))
        lines: list[str | Table] = [Table((*head, "threshold, decay error"), rows)]
        lines += [f"layer {i}: {layer.neuron}" for i, layer in enumerate(self.layers, start=1)]
        lines += [
            f"layer {i}: rate {a.rate_float:.4f} float, {a.rate_integer:.4f} integer; {a.agreement:.2%} of spikes equal; "
            f"at most {a.extremes.reach:.0%} of the bits used, {a.extremes.ties} ties"
            for i, a in enumerate(self.activity or (), start=1)
        ]
        if self.readout is not None:
            lines.append(f"readout: at most {self.readout.reach:.0%} of the bits used")
        if (d := self.decisions) is not None:
            scores = "" if d.accuracy_float is None else f"; mode accuracy float {d.accuracy_float:.1%}"
            scores += "" if d.accuracy_integer is None else f", integer {d.accuracy_integer:.1%}"
            lines.append(f"calibration: {d.same_as_float:.1%} of {d.samples} decided as in floats{scores}")
        return [*lines, *self.remarks]


@torch.no_grad()
def make_report(
    network: Network, quantized: QuantizedNetwork, calibration: Tensor | None, labels: Tensor | None
) -> ExportReport:
    """Compare a network with its integers, on samples (T, B, n_in) and their labels (B,) if there are any."""
    layers = []
    cell: Any
    near: Any
    cells = (delayed(network).cells, dequantize(network, quantized).cells)
    for cell, near, layer in zip(*cells, quantized.layers, strict=True):
        kind: Any = exported_kind(cell)
        name = "theta_rest" if kind is ALIF else "theta"  # of an LI neither
        theta, rounded = (getattr(c, name, torch.ones(layer.size)).double() for c in (cell, near))
        pairs = [(getattr(cell, w).double(), getattr(near, w)) for w in ("w_in", "w_rec") if hasattr(cell, w)]
        error = torch.cat([((b - a) / theta.unsqueeze(1)).flatten() for a, b in pairs])
        lost = torch.cat([((a != 0) & (b.abs() < 1e-12)).flatten() for a, b in pairs])
        m, n = layer.weight.shape
        fan_in = n + (0 if layer.weight_rec is None else m)
        bits = fan_in * m * 9
        layers.append(
            LayerReport(
                neuron=BECOMES[kind, "none" if kind is LI else cell.reset.name],
                neurons=m,
                threshold=(int(layer.threshold.min()), int(layer.threshold.max())),
                weight_error_max=error.abs().max().item(),
                weight_error_rms=error.square().mean().sqrt().item(),
                rounded_to_zero=lost.double().mean().item(),
                threshold_error=(rounded / theta - 1).abs().max().item(),
                decay_error=(near.decay_v - cell.decay_v).abs().max().item(),
                synapse_bits=bits,
                cores=max(math.ceil(m / 1024), math.ceil(fan_in / 4096), math.ceil(bits / 2**20)),
            )
        )
    report = ExportReport(tuple(layers), quantized.readout_scale)
    if calibration is None:
        return report
    exact, run, activity = network.run(calibration), quantized.run(calibration), []
    for i in network.spiking:
        a, b = exact.spikes[i], run.spikes[i]
        rates = a.double().mean().item(), b.double().mean().item()
        activity.append(LayerActivity(*rates, (a == b).double().mean().item(), run.extremes[i]))
    logits = (exact.logits, run.logits)
    votes, others = map(metrics.mode_vote, logits)
    scores = (None, None) if labels is None else (metrics.mode_accuracy(each, labels) for each in logits)
    decisions = Decisions(len(votes), (votes == others).double().mean().item(), *scores)
    return dataclasses.replace(report, activity=tuple(activity), readout=run.extremes[-1], decisions=decisions)
