"""What an export cost: errors of the integers, what they did on data, and who checked them."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neurolsc import metrics
from neurolsc.display import Displayed, Table
from neurolsc.export.loihi.cuba import NEVER
from neurolsc.export.loihi.extremes import Extremes
from neurolsc.export.simulators.agreement import Verification
from neurolsc.export.wrapped import from_wrapped
from neurolsc.files import atomic_write
from neurolsc.network import Network

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Decisions", "ExportReport", "LayerActivity", "LayerReport", "decisions"]


@dataclass(frozen=True)
class LayerReport:
    """A layer's integers beside its floats, and their room. Ranges are (smallest, largest)."""

    neuron: str
    """what it was and what it became"""
    neurons: int
    """those on the chip, one that stands for a bias included"""
    fan_in: int
    """inputs per neuron, recurrent ones included"""
    scale: tuple[float, float]
    """weight units per unit of the float network"""
    threshold: tuple[int, int]
    """weight units, at rest"""
    theta_step: int | None
    """what a spike adds to the threshold, weight units; None without adaptation"""
    weight_error_max: float
    """of input and recurrent weights, in thresholds"""
    weight_error_rms: float
    rounded_to_zero: float
    """share of weights that were not zero and are now"""
    clipped: int
    """weights further off than rounding explains; must be 0"""
    threshold_error: float
    """largest, as a share of the threshold"""
    reset_error: float
    """of what a spike takes from the voltage, likewise"""
    bias_error: float
    """largest, in thresholds per step"""
    decay_error: float
    """largest difference of the share of the voltage that is kept in a step"""
    tau_v: tuple[float, float]
    """steps, of the float network"""
    tau_v_integer: tuple[float, float]
    """steps, of the integers"""
    tau_theta: tuple[float, float] | None
    tau_theta_integer: tuple[float, float] | None
    decay_pairs: int
    """different pairs of decays (a core has 32)"""
    synapse_bits: int
    cores: int
    """at 1024 neurons, 4096 axons and 2^20 bits each"""


@dataclass(frozen=True)
class LayerActivity:
    """A layer of the integer model on the calibration data, beside the float one."""

    rate_float: float
    """spikes per neuron and step"""
    rate_integer: float
    rate_correlation: float | None
    """of the neurons' rates; None where they do not vary"""
    rate_difference: float
    """largest of a neuron"""
    agreement: float
    """share of equal spikes; reported, never asserted, as one flipped spike changes those after
    it"""
    first_difference: int | None
    """first step at which a spike differs, counted from 0"""
    extremes: Extremes


@dataclass(frozen=True)
class Decisions:
    """Mode votes on one set of samples; accuracies are None without labels."""

    samples: int
    same_as_float: float
    """share of samples on which the integers decide as the floats do"""
    accuracy_float: float | None
    accuracy_integer: float | None
    accuracy_simulator: float | None
    """None if the simulator did not run on these samples"""

    def accuracies(self) -> dict[str, float]:
        """Those that are known."""
        known = {"float": self.accuracy_float, "integer": self.accuracy_integer, "simulator": self.accuracy_simulator}
        return {name: value for name, value in known.items() if value is not None}

    def __str__(self) -> str:
        """One line."""
        words = [f"{name} {value:.1%}" for name, value in self.accuracies().items()]
        scores = "; mode accuracy " + ", ".join(words) if words else ""
        return f"{self.same_as_float:.1%} of {self.samples} decided as in floats{scores}"


@dataclass(frozen=True, repr=False)
class ExportReport(Displayed):
    """What :func:`neurolsc.export.to_netx` returns."""

    layers: tuple[LayerReport, ...]
    readout_scale: float
    """integer units per unit of the float readout"""
    remarks: tuple[str, ...]
    activity: tuple[LayerActivity, ...] | None
    """None without calibration data"""
    readout: Extremes | None
    """of the readout's sums, or its voltages"""
    radii: dict[str, list[float]] | None
    """mean radii per layer: float_time, float_depth, integer_time, integer_depth; the integers' are
    those of the float network that the rounded parameters describe"""
    decisions: Decisions | None
    simulator: Decisions | None = None
    """on the samples that the simulator ran"""
    verification: str = "not run"
    """what was compared with what, and how much of it was equal"""
    tools: tuple[str, ...] = ()
    """names and versions of the simulator that ran"""
    readout_error: float | None = None
    """RMS of what the voltages of an integrator are off the floats', as a share of their RMS"""

    def with_simulator(
        self, network: Network, x: Tensor, found: Verification, labels: Tensor | None = None
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
        votes = decisions(logits, found.expected_logits, labels, found.logits)
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
                "state, of 24 bits": [_share(a.extremes) for a in activity],
                "input of a step, of 16 bits": [max(map(abs, a.extremes.drive)) / 2**15 for a in activity],
            },
            decisions=shares,
            alike=alike,
            note=("" if activity else "No calibration data.   ") + "Simulator: " + (", ".join(self.tools) or "not run"),
            title=title,
        )

    def parts(self) -> list[str | Table]:
        """What is shown: a table of the layers, and a line for each thing that was found."""
        head = ("layer", "neurons", "cores", "synapse kB", "units/threshold", "weight error max, rms", "rounded to 0")
        rows = []
        for i, layer in enumerate(self.layers, start=1):
            low, high = layer.threshold
            cells = (
                str(i),
                str(layer.neurons),
                str(layer.cores),
                f"{layer.synapse_bits / 8192:.0f}",
                "none" if low == NEVER else f"{low}" if low == high else f"{low} to {high}",
                f"{layer.weight_error_max:.4f}, {layer.weight_error_rms:.5f}",
                f"{layer.rounded_to_zero:.1%}",
                f"{layer.threshold_error:.4f}, {layer.reset_error:.4f}, {layer.decay_error:.5f}",
            )
            rows.append(cells)
        lines: list[str | Table] = [Table((*head, "threshold, reset, decay error"), rows)]
        lines += [
            f"layer {i}: {layer.neuron}; tau_v {_steps(layer.tau_v)} becomes {_steps(layer.tau_v_integer)}"
            for i, layer in enumerate(self.layers, start=1)
        ]
        for i, a in enumerate(self.activity or (), start=1):
            e = a.extremes
            first = "never" if a.first_difference is None else f"at step {a.first_difference}"
            lines.append(
                f"layer {i}: rate {a.rate_float:.4f} float, {a.rate_integer:.4f} integer; {a.agreement:.2%} of spikes equal, "
                f"first differs {first}; largest input {max(map(abs, e.drive))} of 32767, state {_share(e):.0%} of 24 bits, "
                f"{e.wraps} wraps, {e.saturations} saturations, {e.ties} ties"
            )
        if self.readout_error is not None and self.readout is not None:
            lines.append(
                f"readout: voltages {self.readout_error:.2%} (RMS) off the floats'; state {_share(self.readout):.0%} of 24 bits"
            )
        if self.radii is not None:
            lines += [
                f"radii through {way}: float {_list(self.radii[f'float_{way}'])}, integer {_list(self.radii[f'integer_{way}'])}"
                for way in ("time", "depth")
            ]
        for name, d in (("calibration", self.decisions), ("simulated samples", self.simulator)):
            if d is not None:
                lines.append(f"{name}: {d}")
        lines += self.remarks
        lines.append(f"verified by: {self.verification}")
        return lines


def decisions(exact: Tensor, integer: Tensor, labels: Tensor | None, simulated: Tensor | None = None) -> Decisions:
    """Mode votes of logits (T, B, C) side by side."""

    def accuracy(logits: Tensor | None) -> float | None:
        return None if labels is None or logits is None else metrics.mode_accuracy(logits, labels)

    same = (metrics.mode_vote(exact) == metrics.mode_vote(integer)).double().mean().item()
    return Decisions(exact.shape[1], same, accuracy(exact), accuracy(integer), accuracy(simulated))


def _share(e: Extremes) -> float:
    return max(abs(value) for pair in (e.u, e.v, e.theta) for value in pair) / 2**23


def _steps(pair: tuple[float, float]) -> str:
    low, high = pair
    return f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} to {high:.3g}"


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)
