"""The report of an export: errors of the integers, both networks on data, and who checked them."""

import dataclasses
import json
import math
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neurolsc import metrics
from neurolsc.display import Displayed, Table
from neurolsc.export.fixed_point import NEVER, UNIT, AtrlifLayer, Extremes, IntegerLayer
from neurolsc.export.quantize import IntegerRun, QuantizedNetwork, dequantize
from neurolsc.export.wrapped import delayed, from_wrapped
from neurolsc.io import atomic_write
from neurolsc.network import Network
from neurolsc.neurons import LI, CubaLIF
from neurolsc.stability import radius_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from neurolsc.export.verify import Verification

__all__ = ["Decisions", "ExportReport", "LayerActivity", "LayerReport", "make_report"]

RADIUS_STEPS, RADIUS_SAMPLES = 8, 4  # calibration data for the radii: as many eigenvalue problems as that


@dataclass(frozen=True)
class LayerReport:
    """A layer's integers against its floats, and its resources. Ranges are (smallest, largest)."""

    neuron: str  # what it was and what it became
    neurons: int  # on the chip, one that stands for a bias included
    fan_in: int  # inputs per neuron, recurrent ones included
    scale: tuple[float, float]  # weight units per unit of the float network
    threshold: tuple[int, int]  # weight units, at rest
    weight_error_max: float  # of input and recurrent weights, in thresholds
    weight_error_rms: float
    rounded_to_zero: float  # share of weights that were not zero and are now
    clipped: int  # weights further off than rounding explains; must be 0
    threshold_error: float  # largest, as a share of the threshold
    reset_error: float  # likewise, of what a spike subtracts from the voltage
    bias_error: float  # largest, in thresholds per step
    decay_error: float  # largest difference of the share of the voltage that a step retains
    tau_v: tuple[float, float]  # steps, of the float network
    tau_v_integer: tuple[float, float]  # steps, of the integers
    synapse_bits: int
    cores: int  # at 1024 neurons, 4096 axons and 2^20 bits each


@dataclass(frozen=True)
class LayerActivity:
    """A layer of the integer model on the calibration data, against the float one."""

    rate_float: float  # spikes per neuron and step
    rate_integer: float
    agreement: float  # share of equal spikes; never asserted, as one flipped spike changes those after it
    first_difference: int | None  # first step at which a spike differs, counted from 0
    extremes: Extremes


@dataclass(frozen=True)
class Decisions:
    """Mode votes on one set of samples; accuracies are None without labels."""

    samples: int
    same_as_float: float  # share of samples on which the integers decide as the floats do
    accuracy_float: float | None
    accuracy_integer: float | None
    accuracy_simulator: float | None  # None if the simulator did not run on these samples

    @classmethod
    def of(cls, exact: Tensor, integer: Tensor, labels: Tensor | None, simulated: Tensor | None = None) -> "Decisions":
        """Compare the mode votes of logits (T, B, C)."""

        def accuracy(logits: Tensor | None) -> float | None:
            return None if labels is None or logits is None else metrics.mode_accuracy(logits, labels)

        same = (metrics.mode_vote(exact) == metrics.mode_vote(integer)).double().mean().item()
        return cls(exact.shape[1], same, accuracy(exact), accuracy(integer), accuracy(simulated))

    def accuracies(self) -> dict[str, float]:
        """The known accuracies by name."""
        known = {"float": self.accuracy_float, "integer": self.accuracy_integer, "simulator": self.accuracy_simulator}
        return {name: value for name, value in known.items() if value is not None}

    def __str__(self) -> str:
        words = [f"{name} {value:.1%}" for name, value in self.accuracies().items()]
        scores = "; mode accuracy " + ", ".join(words) if words else ""
        return f"{self.same_as_float:.1%} of {self.samples} decided as in floats{scores}"


@dataclass(frozen=True, repr=False)
class ExportReport(Displayed):
    """What :func:`neurolsc.export.to_netx` returns."""

    layers: tuple[LayerReport, ...]
    readout_scale: float  # integer units per unit of the float readout
    remarks: tuple[str, ...]
    activity: tuple[LayerActivity, ...] | None = None  # None without calibration data
    readout: Extremes | None = None  # of the readout's sums, or its voltages
    # mean radii per layer: float_time, float_depth, integer_time, integer_depth; the integers' are
    # those of the float network with the rounded parameters
    radii: dict[str, list[float]] | None = None
    decisions: Decisions | None = None
    simulator: Decisions | None = None  # on the samples that the simulator ran
    verification: str = "not run"  # what was compared with what, and how much of it was equal
    tools: tuple[str, ...] = ()  # names and versions of the simulator that ran
    readout_error: float | None = None  # RMS error of an integrator's voltages, as a share of their RMS

    def with_simulator(
        self, network: Network, x: Tensor, found: "Verification", labels: Tensor | None = None
    ) -> "ExportReport":
        """The report with what :func:`neurolsc.export.verify` found.

        Args:
            network: the float network.
            x: the samples (T, B, n_in) that were verified.
            found: what was found.
            labels: classes (B,), for accuracies.
        """
        if not found.simulated:
            return replace(self, verification=str(found))
        with torch.no_grad():
            logits = from_wrapped(network).run(x).logits
        votes = Decisions.of(logits, found.expected_logits, labels, found.logits)
        return replace(self, simulator=votes, verification=str(found), tools=found.tools)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write all of it as JSON.

        Raises:
            OSError: if the file cannot be written.
        """
        text = json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"
        atomic_write(path, lambda file: file.write(text.encode()))

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw one page: errors, rates, ranges of the states, accuracies.

        Args:
            path: a file to write as well, whose suffix chooses the format.
            title: of the whole.

        Returns:
            The figure, which a notebook shows.
        """
        from neurolsc.plots import plot_export  # matplotlib is slow to import and few runs draw

        activity = self.activity or ()
        shares: dict[str, float] = {}
        alike = []
        for where, d in (("calibration", self.decisions), ("simulated", self.simulator)):
            if d is not None:
                shares |= {f"{where}: {name}": value for name, value in d.accuracies().items()}
                alike.append(f"{where}: as in floats")
                shares[alike[-1]] = d.same_as_float
        return plot_export(
            path,
            errors={
                "weights, RMS": [layer.weight_error_rms for layer in self.layers],
                "weights, largest": [layer.weight_error_max for layer in self.layers],
                "reset": [layer.reset_error for layer in self.layers],
            },
            rates={"float": [a.rate_float for a in activity], "integer": [a.rate_integer for a in activity]},
            used={
                "state, of 24 bits": [a.extremes.state_reach for a in activity],
                "input of a step, of 16 bits": [a.extremes.drive / 2**15 for a in activity],
            },
            decisions=shares,
            alike=alike,
            note=("" if activity else "No calibration data.   ") + "Simulator: " + (", ".join(self.tools) or "not run"),
            title=title,
        )

    def parts(self) -> list[str | Table]:
        """A table of the layers, and a line for each finding."""

        def span(pair: tuple[float, float], form: str) -> str:
            low, high = format(pair[0], form), format(pair[1], form)
            return low if low == high else f"{low} to {high}"

        head = ("layer", "neurons", "cores", "synapse kB", "units/threshold", "weight error max, rms", "rounded to 0")
        rows = [
            (
                str(i),
                str(layer.neurons),
                str(layer.cores),
                f"{layer.synapse_bits / 8192:.0f}",
                "none" if layer.threshold[0] == NEVER else span(layer.threshold, "d"),
                f"{layer.weight_error_max:.4f}, {layer.weight_error_rms:.5f}",
                f"{layer.rounded_to_zero:.1%}",
                f"{layer.threshold_error:.4f}, {layer.reset_error:.4f}, {layer.decay_error:.5f}",
            )
            for i, layer in enumerate(self.layers, start=1)
        ]
        lines: list[str | Table] = [Table((*head, "threshold, reset, decay error"), rows)]
        lines += [
            f"layer {i}: {layer.neuron}; tau_v {span(layer.tau_v, '.3g')} becomes {span(layer.tau_v_integer, '.3g')}"
            for i, layer in enumerate(self.layers, start=1)
        ]
        for i, a in enumerate(self.activity or (), start=1):
            e = a.extremes
            first = "never" if a.first_difference is None else f"at step {a.first_difference}"
            lines.append(
                f"layer {i}: rate {a.rate_float:.4f} float, {a.rate_integer:.4f} integer; {a.agreement:.2%} of spikes equal, "
                f"first differs {first}; largest input {e.drive} of 32767, state {e.state_reach:.0%} of 24 "
                f"bits, {e.wraps} wraps, {e.saturations} saturations, {e.ties} ties"
            )
        if self.readout_error is not None and self.readout is not None:
            lines.append(
                f"readout: voltages {self.readout_error:.2%} (RMS) off the floats'; state {self.readout.state_reach:.0%} of "
                "24 bits"
            )
        if self.radii is not None:
            for way in ("time", "depth"):
                both = (", ".join(f"{r:.2f}" for r in self.radii[f"{kind}_{way}"]) for kind in ("float", "integer"))
                lines.append("radii through {}: float {}, integer {}".format(way, *both))
        for name, d in (("calibration", self.decisions), ("simulated samples", self.simulator)):
            if d is not None:
                lines.append(f"{name}: {d}")
        return [*lines, *self.remarks, f"verified by: {self.verification}"]


def make_report(
    network: Network,
    quantized: QuantizedNetwork,
    calibration: Tensor | None = None,
    labels: Tensor | None = None,
    run: IntegerRun | None = None,
) -> ExportReport:
    """Compare a network with its integers.

    Args:
        network: what was quantised.
        quantized: its integers.
        calibration: samples (T, B, n_in) to run both on; without them only parameters are compared.
        labels: their classes (B,), for accuracies.
        run: the integers' run on them, if it was made before.

    Raises:
        ValueError: if samples or labels do not fit.
    """
    own = from_wrapped(network)
    network = delayed(own)
    rounded = dequantize(network, quantized)
    layers = tuple(map(_layer, network.cells, rounded.cells, quantized.layers))
    report = ExportReport(layers, quantized.readout_scale, quantized.remarks)
    if calibration is None:
        return report
    run = quantized.run(calibration) if run is None else run
    with torch.no_grad():
        exact = own.run(calibration)
    readout_error = None
    if quantized.integrates:
        off = run.logits / quantized.readout_scale - exact.logits
        readout_error = (off.square().mean() / exact.logits.double().square().mean()).sqrt().item()
    activity = []
    for i in network.spiking:
        a, b = exact.spikes[i], run.spikes[i]
        differs = (a != b).flatten(1).any(1).nonzero()
        agreement, first = (a == b).double().mean().item(), int(differs[0]) if len(differs) else None
        rates = a.double().mean().item(), b.double().mean().item()
        activity.append(LayerActivity(*rates, agreement, first, run.extremes[i]))
    x = calibration[:, :RADIUS_SAMPLES]
    radii = {}
    for name, net in (("float", network), ("integer", rounded)):
        profile = radius_profile(net, x.to(net.dtype_and_device["dtype"]), steps=min(RADIUS_STEPS, len(x)))
        radii |= {f"{name}_time": profile.time_mean.tolist(), f"{name}_depth": profile.depth_mean.tolist()}
    return replace(
        report,
        activity=tuple(activity),
        readout=run.extremes[-1],
        readout_error=readout_error,
        radii=radii,
        decisions=Decisions.of(exact.logits, run.logits, labels),
    )


@torch.no_grad()
def _layer(cell: Any, rounded: Any, layer: IntegerLayer) -> LayerReport:
    if isinstance(layer, AtrlifLayer):
        neuron, theta, theta_int = "ALIF, static reset: ALIF (ATRLIF)", cell.theta_rest.double(), rounded.theta_rest
    elif isinstance(cell, LI):
        neuron, theta = "LI: CUBA that never fires, its voltage is read", torch.ones_like(cell.b_v)
        theta_int = theta
    else:
        theta, theta_int = cell.theta.double(), rounded.theta
        in_voltage = cell.reset.name == "zero"
        neuron = "LIF, reset to zero: CUBA" if in_voltage else "LIF, reset by subtraction: CUBA, voltage in u"
        if isinstance(cell, CubaLIF):
            neuron = "CubaLIF, reset to zero: CUBA, current in u and voltage in v"
    m, n = layer.weight.shape
    scale = (layer.unit / UNIT)[: len(theta)].unsqueeze(1)
    matrices = [("w_in", layer.weight_exp), ("w_rec", layer.weight_rec_exp)]
    pairs = [(getattr(cell, w).double(), getattr(rounded, w), exp) for w, exp in matrices if hasattr(cell, w)]
    error = torch.cat([((b - a) / theta.unsqueeze(1)).flatten() for a, b, _ in pairs])
    lost = torch.cat([((a != 0) & (b.abs() < 1e-12)).flatten() for a, b, _ in pairs])
    reset_error = 0.0
    if isinstance(layer, AtrlifLayer):
        reset = layer.reset * 2**layer.reset_exp / scale.squeeze(1)
        reset_error = ((reset - theta) / theta).abs().max().item()

    def span(x: Tensor) -> tuple[float, float]:
        return x.min().item(), x.max().item()

    fan_in = n + (0 if layer.weight_rec is None else m)
    bits = fan_in * m * 9
    return LayerReport(
        neuron=neuron,
        neurons=m,
        fan_in=fan_in,
        scale=span(scale),
        threshold=(int(layer.threshold.min()), int(layer.threshold.max())),
        weight_error_max=error.abs().max().item(),
        weight_error_rms=error.square().mean().sqrt().item(),
        rounded_to_zero=lost.double().mean().item(),
        clipped=sum(int((((b - a) * scale).abs() / 2**exp > 1 + 1e-6).sum()) for a, b, exp in pairs),
        threshold_error=((theta_int - theta) / theta).abs().max().item(),
        reset_error=reset_error,
        bias_error=((rounded.b_v - cell.b_v) / theta).abs().max().item(),
        decay_error=(rounded.decay_v - cell.decay_v).abs().max().item(),
        tau_v=span(cell.tau_v),
        tau_v_integer=span(rounded.tau_v),
        synapse_bits=bits,
        cores=max(math.ceil(m / 1024), math.ceil(fan_in / 4096), math.ceil(bits / 2**20)),
    )
