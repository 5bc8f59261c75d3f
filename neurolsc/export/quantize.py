"""Networks in Loihi's integers: quantised, run, back in floats, trained through rounding."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from neurolsc.display import shapes
from neurolsc.export.fixed_point import (
    LIMIT,
    UNIT,
    AtrlifLayer,
    Extremes,
    IntegerLayer,
    IntegratorLayer,
    integer_steps,
)
from neurolsc.export.neurons import W_MAX, check_matrix, even, integers, largest
from neurolsc.export.wrapped import delayed, from_wrapped, integrates
from neurolsc.io import check_finite
from neurolsc.metrics import is_binary
from neurolsc.network import Network, NetworkState, Run
from neurolsc.neurons import LIF
from neurolsc.validation import set_value

__all__ = ["IntegerRun", "QuantizationAware", "QuantizedNetwork", "dequantize", "fitted", "quantize"]


@dataclass(frozen=True)
class IntegerRun:
    """What :meth:`QuantizedNetwork.run` returns."""

    logits: Tensor  # integer readout at every step (T, B, C), in units of the readout's scale
    spikes: tuple[Tensor, ...]  # (T, B, M) by layer, without bias neurons; voltages of an integrator
    extremes: tuple[Extremes, ...]  # by layer, and of a linear readout, whose v is the sum of its logits over time

    def __repr__(self) -> str:
        return f"IntegerRun({shapes('TB', logits=self.logits, spikes=self.spikes)})"


@dataclass(frozen=True)
class QuantizedNetwork:
    """A network in integers; its last layer's spikes go to a readout, or it is an integrator."""

    layers: tuple[IntegerLayer, ...]
    readout: Tensor  # integer weights (C, M of the last layer); (0, M) after an integrator: logits are its voltages
    readout_scale: float  # integer units per float unit of the readout
    bias_neurons: tuple[int, ...]  # how many neurons at the end of each layer fire at every step to stand for biases
    # steps without input after the last one: 0, or of a network with layer_delay=0 the number of
    # its layers, as layer l spikes l steps later than there; `run` takes that back
    latency: int = 0

    def __repr__(self) -> str:
        out = () if self.integrates else (len(self.readout),)
        sizes = " -> ".join(map(str, (self.n_in, *(layer.size for layer in self.layers), *out)))
        return f"QuantizedNetwork({sizes})"

    @property
    def integrates(self) -> bool:
        """True if the last layer is an integrator."""
        return isinstance(self.layers[-1], IntegratorLayer)

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.layers[0].weight.shape[1]

    def run(self, x: Tensor) -> IntegerRun:
        """Run over time.

        Args:
            x: input spikes (T, B, n_in), 0 or 1, any dtype.

        Raises:
            ValueError: if x has another shape or other values: a graded spike has no counterpart.
        """
        out: list[tuple[Tensor, ...]] = []
        extremes = [Extremes()] * len(self.layers)
        with torch.no_grad():
            for step in integer_steps(self.layers, self.padded(x)):
                out.append(step.spikes)
                extremes = [so_far | Extremes.of(now) for so_far, now in zip(extremes, step.values, strict=True)]
            spikes = [torch.stack(layer) for layer in zip(*out, strict=True)]
            logits = self.logits(spikes[-1])
        if not self.integrates:
            total = UNIT * logits.cumsum(0).abs()
            extremes.append(Extremes(v=int(total.max()), wraps=int((total >= LIMIT).sum())))
        return IntegerRun(self.on_time(logits, self.latency), self.cropped(spikes), tuple(extremes))

    def padded(self, x: Tensor) -> Tensor:
        """The input of :meth:`run` as the layers read it: float64, dense, with blank steps after it."""
        if x.ndim != 3 or x.shape[2] != self.n_in or 0 in x.shape:
            raise ValueError(f"input spikes must have shape (T, B, {self.n_in}) with T, B >= 1, got {tuple(x.shape)}.")
        if not is_binary(x):
            other = x[(x != 0) & (x != 1)][0].item()
            raise ValueError(f"input spikes must be 0 or 1, got {other:g}: graded spikes are not supported.")
        return pad(x.to(self.readout).double(), (0, 0, 0, 0, 0, self.latency))

    def logits(self, last: Tensor) -> Tensor:
        """Logits (T, B, C) of the last layer's spikes or voltages (T, B, M)."""
        return last if self.integrates else last @ self.readout.T

    def on_time(self, values: Tensor, late: int) -> Tensor:
        """The steps of (T, ...) that belong to the input, of values `late` steps late."""
        return values[late : len(values) + late - self.latency]

    def cropped(self, spikes: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Spikes (T, B, M) on time, without bias neurons."""
        return tuple(
            self.on_time(layer, i if self.latency else 0)[:, :, : layer.shape[2] - extra]
            for i, (layer, extra) in enumerate(zip(spikes, self.bias_neurons, strict=True), start=1)
        )


def quantize(network: Network, calibration: Tensor | None = None, *, force: bool = False) -> QuantizedNetwork:
    """Turn a network into integers.

    Args:
        network: LIF, CubaLIF and ALIF layers and at the end a Linear readout or an LI, or the same of
            :func:`neurolsc.wrap`. With ``layer_delay=1`` the readout has no bias; with 0 the layers get a delay, as in
            :func:`neurolsc.export.delayed`.
        calibration: samples (T, B, n_in), 0 or 1. With them the units of an ALIF, an LI and the readout are halved
            until half of their bits are enough for the states, and what still overflows is refused. Thresholds get
            coarser by that, weights of an ALIF do not.
        force: accept fewer than 62 weight units per threshold.

    Returns:
        The integers; without calibration data with a gradient to the network's parameters.

    Raises:
        TypeError: if a layer cannot be exported, or the readout is neither linear nor an LI.
        ValueError: if something cannot be expressed, an integer overflows, or the samples do not fit; the message names
            the layer and the number.

    Example:
        >>> from neurolsc import LIF
        >>> quantized = quantize(Network([LIF(3, 2, reset="zero")], n_out=2))
        >>> bool(quantized.layers[0].weight.abs().max() <= 254)
        True
    """
    if calibration is None:
        return rounded(network, force=force)
    found = fitted(network, calibration, force=force)
    for i, e in enumerate(found.run.extremes[: len(found.network.layers)], start=1):
        if e.large_inputs + e.wraps + e.saturations:
            raise ValueError(
                f"layer {i}: on the calibration data {e.large_inputs} inputs of a step exceed 32767 units (up to {e.drive}), "
                f"{e.wraps} currents leave 24 bits (up to {e.u}) and {e.saturations} voltages or thresholds (up to "
                f"{max(e.v, e.theta)}): train with smaller weights or fewer spikes."
            )
    sums = found.run.extremes[-1]
    if not found.network.integrates and sums.wraps:
        scale = found.network.readout_scale * LIMIT / 2 / sums.v
        return rounded(network, force=force, halvings=found.halvings, readout_scale=scale)
    return found.network


def rounded(
    network: Network,
    *,
    force: bool = False,
    halvings: Sequence[int] | None = None,
    readout_scale: float = math.inf,
) -> QuantizedNetwork:
    """The integers of a network whose layers have so many halvings of their units, and whose readout this scale."""
    own = from_wrapped(network)
    network = delayed(own)
    leaky = integrates(network)
    if getattr(network.readout, "bias", None) is not None:
        raise ValueError("the readout has a bias, which a sum of spikes cannot hold: train with readout_bias=False.")
    check_finite(network.state_dict())
    halvings = halvings or [0] * len(network.cells)
    layers = [
        integers(f"layer {i}", cell, force, halved)
        for i, (cell, halved) in enumerate(zip(network.cells, halvings, strict=True), start=1)
    ]
    if leaky:
        scale, readout = layers[-1].unit[0].item(), layers[-1].weight.new_zeros(0, network.n_out)
    else:
        w = network.readout.get_parameter("weight").double()
        scale = min(readout_scale, W_MAX / largest("the readout", w))
        readout = even(w * scale)
        check_matrix("the readout", readout)
    bias_neurons = tuple(layer.size - cell.n_hidden for layer, cell in zip(layers, own.cells, strict=True))
    latency = 0 if own.layer_delay else len(layers)
    return QuantizedNetwork(tuple(layers), readout, scale, bias_neurons, latency)


class Fitted(NamedTuple):
    network: QuantizedNetwork
    run: IntegerRun  # on the calibration data
    halvings: tuple[int, ...]  # of the units of each layer; only an ALIF or LI has a choice


@torch.no_grad()
def fitted(network: Network, calibration: Tensor, *, force: bool = False) -> Fitted:
    """The integers whose units are halved until half of the bits are enough, or nothing is left to halve."""
    halvings = (0,) * len(network.cells)
    quantized = rounded(network, force=force)
    while True:
        run = quantized.run(calibration)
        reaches = [max(e.reach, 0.5) for e in run.extremes[: len(halvings)]]
        trial = tuple(h + math.ceil(math.log2(2 * r)) for h, r in zip(halvings, reaches, strict=True))
        coarser = rounded(network, force=force, halvings=trial)
        changed = [not torch.equal(a.unit, b.unit) for a, b in zip(quantized.layers, coarser.layers, strict=True)]
        if not any(changed):
            return Fitted(quantized, run, halvings)
        halvings = tuple(t if c else h for h, t, c in zip(halvings, trial, changed, strict=True))
        quantized = coarser


@torch.no_grad()
def dequantize(network: Network, quantized: QuantizedNetwork) -> Network:
    """The float network with the integers' parameters, in float64; only the rounding of states is left out.

    Its radii are those of the exported network.

    Args:
        network: what was quantised.
        quantized: its integers.

    Example:
        >>> from neurolsc import LIF
        >>> network = Network([LIF(3, 2, reset="zero")], n_out=2)
        >>> rounded = dequantize(network, quantize(network))
        >>> bool((rounded.cells[0].w_in - network.cells[0].w_in).abs().max() < 0.01)
        True
    """

    def time_constant(decay: Tensor) -> Tensor:  # in steps; 0.05 (e^-20 is left after one) for 4096
        return -1 / (1 - decay / 4096).clamp(min=2e-9).log()

    made = copy.deepcopy(delayed(from_wrapped(network))).double()
    cell: Any
    layer: Any
    for cell, layer in zip(made.cells, quantized.layers, strict=True):
        rec = layer.weight_rec
        scale = layer.unit / UNIT
        rows = scale.unsqueeze(1)
        in_current = isinstance(cell, LIF) and cell.reset.name != "zero"  # the voltage is CUBA's current
        cell.tau_v = time_constant(layer.i_decay if in_current else layer.v_decay)
        cell.w_in.copy_(layer.weight * 2**layer.weight_exp / rows)
        if rec is not None:
            cell.w_rec.copy_(rec * 2**layer.weight_rec_exp / rows)
        if isinstance(layer, AtrlifLayer):
            cell.b_v.copy_(layer.bias * 2**layer.bias_exp / layer.unit)
            cell.tau_theta = time_constant(layer.theta_decay)
            cell.theta_rest = layer.threshold / scale
            set_value(cell, "adaptation", layer.theta_step * (1 - layer.theta_decay / 4096) / scale)
            continue
        cell.b_v.copy_(layer.bias / scale)
        if hasattr(cell, "tau_i"):
            cell.tau_i = time_constant(layer.i_decay)
        if isinstance(cell, LIF):
            cell.theta.copy_(layer.threshold / scale)
        if in_current and rec is not None:
            cell.w_rec.add_(torch.diag(cell.theta))
    if not quantized.integrates:
        made.readout.get_parameter("weight").copy_(quantized.readout / quantized.readout_scale)
    return made


class QuantizationAware(Network):
    """A network that runs in Loihi's integers and is trained in floats.

    It shares cells and readout with the original network, and ``neurolsc.train`` and ``neurolsc.evaluate`` take it as
    any other. Every run quantises the parameters anew and steps the integer equations; gradients pass through rounding
    (straight through), and spikes have the cells' surrogate gradient. The reset is detached, except that by subtraction
    of LIF, which is one of the recurrent weights. A few epochs win back most of what rounding costs.

    Args:
        network: what :func:`quantize` accepts, with ``layer_delay=1``.
        calibration: samples (T, B, n_in), which choose the units of the layers as in :func:`quantize`.
        force: accept fewer than 62 weight units per threshold.

    Raises:
        ValueError: as :func:`quantize`; also when training has moved a parameter out of what can be expressed.
        TypeError: likewise.

    Example:
        >>> from neurolsc import LIF
        >>> network = Network([LIF(3, 2, reset="zero")], n_out=2)
        >>> QuantizationAware(network)(torch.ones(5, 1, 3)).sum().backward()
        >>> network.cells[0].w_in.grad.shape
        torch.Size([2, 3])
    """

    def __init__(self, network: Network, calibration: Tensor | None = None, *, force: bool = False) -> None:
        if network.layer_delay != 1:
            raise ValueError(
                "the network has layer_delay=0, and its form for the chip is a copy: train QuantizationAware(delayed("
                "from_wrapped(network))), both of neurolsc.export."
            )
        nn.Module.__init__(self)
        self.cells, self.readout, self.layer_delay = network.cells, network.readout, network.layer_delay
        self.n_out = network.n_out
        self.force = force
        rounded(network, force=force)  # refuses what cannot be expressed
        self.halvings = None if calibration is None else fitted(network, calibration, force=force).halvings

    def run(self, x: Tensor, states: NetworkState | None = None, *, mask: Tensor | None = None) -> Run:
        """Run over time in integers, from rest.

        Args:
            x: input spikes (T, B, n_in), 0 or 1.
            states: must be None.
            mask: must be None.

        Returns:
            Logits in float units, spikes without bias neurons, and the state at rest.

        Raises:
            ValueError: if x is not 0 or 1, or there is a state or mask.
        """
        if states is not None or mask is not None:
            raise ValueError("an integer run starts at rest and has no mask.")
        quantized = rounded(self, force=self.force, halvings=self.halvings)
        surrogates = [getattr(cell, "spike", torch.zeros_like) for cell in self.cells]  # an LI has none
        steps = integer_steps(quantized.layers, quantized.padded(x), surrogates)
        spikes = [torch.stack(layer) for layer in zip(*(step.spikes for step in steps), strict=True)]
        logits = quantized.on_time(quantized.logits(spikes[-1]) / quantized.readout_scale, quantized.latency)
        return Run(logits, quantized.cropped(spikes), self.initial_states(x.shape[1]))
