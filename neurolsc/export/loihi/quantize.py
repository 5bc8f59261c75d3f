"""From a trained float network to Loihi's integers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from neurolsc.display import shapes
from neurolsc.export.loihi.cuba import IntegratorLayer
from neurolsc.export.loihi.extremes import Extremes
from neurolsc.export.loihi.fixed_point import LIMIT, UNIT, IntegerLayer, moments
from neurolsc.export.loihi.rounding import W_MAX, check_matrix, even, largest
from neurolsc.export.loihi.table import integer_layer
from neurolsc.export.wrapped import delayed, from_wrapped, integrates
from neurolsc.metrics import is_binary
from neurolsc.network import Network

__all__ = ["IntegerRun", "QuantizedNetwork", "fit_scales", "quantize"]


@dataclass(frozen=True)
class IntegerRun:
    """What :meth:`QuantizedNetwork.run` returns."""

    logits: Tensor
    """integer readout at every step (T, B, C), in units of the readout's scale"""
    spikes: tuple[Tensor, ...]
    """of every layer (T, B, M), without bias neurons and blank steps; of an integrator the
    voltages"""
    extremes: tuple[Extremes, ...]
    """of every layer, and last of the readout: an integrator, which is a layer, or one whose v is
    the sum of its logits over time"""

    def __repr__(self) -> str:
        return f"IntegerRun({shapes('TB', logits=self.logits, spikes=self.spikes)})"


@dataclass(frozen=True)
class QuantizedNetwork:
    """A network in integers. The last layer's spikes go to a readout that adds them up.

    Or the last layer is an integrator, whose voltages are the logits.

    Attributes:
        layers: first layer first.
        readout: integer weights (C, M of the last layer); (0, M) after an integrator.
        readout_scale: integer units per float unit of the readout.
        bias_neurons: how many neurons at the end of each layer fire at every step to stand for
            biases.
        blank_steps: steps without input that come before the first one, for the bias neurons to
            start firing.
        latency: steps without input that come after the last one. 0, or of a network with
            ``layer_delay=0`` the number of its layers: layer l then spikes l steps later than
            there. :meth:`run` takes that back.
        remarks: what is worth knowing but no error, one sentence each.
    """

    layers: tuple[IntegerLayer, ...]
    readout: Tensor
    readout_scale: float
    bias_neurons: tuple[int, ...]
    blank_steps: int
    remarks: tuple[str, ...] = ()
    latency: int = 0

    def __repr__(self) -> str:
        out = () if self.integrates else (len(self.readout),)
        sizes = " -> ".join(map(str, (self.n_in, *(layer.size for layer in self.layers), *out)))
        return f"QuantizedNetwork({sizes}, {self.blank_steps} blank steps)"

    @property
    def integrates(self) -> bool:
        """Whether the last layer is an integrator."""
        return isinstance(self.layers[-1], IntegratorLayer)

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.layers[0].weight.shape[1]

    def run(self, x: Tensor) -> IntegerRun:
        """Run over time.

        Args:
            x: input spikes (T, B, n_in), 0 or 1, dense or sparse, any dtype.

        Returns:
            Logits, spikes, and how far the integers went.

        Raises:
            ValueError: if x has another shape or other values: a graded spike has no counterpart.
        """
        out: list[tuple[Tensor, ...]] = []
        extremes = [Extremes()] * len(self.layers)
        with torch.no_grad():
            for moment in moments(self.layers, self.padded(x)):
                out.append(moment.spikes)
                extremes = [so_far | Extremes.of(now) for so_far, now in zip(extremes, moment.seen, strict=True)]
            spikes = [torch.stack(layer) for layer in zip(*out, strict=True)]
            logits = self.logits(spikes[-1])
        if not self.integrates:
            total = UNIT * logits.cumsum(0)
            extremes.append(Extremes(v=(int(total.min()), int(total.max())), wraps=int((total.abs() >= LIMIT).sum())))
        return IntegerRun(self.on_time(logits, self.latency), self.cropped(spikes), tuple(extremes))

    def on_time(self, values: Tensor, late: int) -> Tensor:
        """The steps of (T, ...) that belong to the input, of what comes so many steps later."""
        first = self.blank_steps + late
        return values[first : len(values) + late - self.latency]

    def logits(self, last: Tensor) -> Tensor:
        """The readout of what the last layer sends (T, B, M), integers (T, B, C)."""
        return last if self.integrates else last @ self.readout.T

    def cropped(self, spikes: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Spikes (T, B, M) on time, without blank steps and the neurons that stand for a bias."""
        return tuple(
            self.on_time(layer, i if self.latency else 0)[:, :, : layer.shape[2] - extra]
            for i, (layer, extra) in enumerate(zip(spikes, self.bias_neurons, strict=True), start=1)
        )

    def padded(self, x: Tensor) -> Tensor:
        """The input of :meth:`run` as the layers read it: float64, dense, with blank steps."""
        x = x.to_dense() if x.is_sparse else x
        if x.ndim != 3 or x.shape[2] != self.n_in or 0 in x.shape:
            raise ValueError(f"input spikes must have shape (T, B, {self.n_in}) with T, B >= 1, got {tuple(x.shape)}.")
        if not is_binary(x):
            other = x[(x != 0) & (x != 1)][0].item()
            raise ValueError(f"input spikes must be 0 or 1, got {other:g}: graded spikes are not supported.")
        return torch.nn.functional.pad(x.to(self.readout).double(), (0, 0, 0, 0, self.blank_steps, self.latency))


def quantize(
    network: Network,
    *,
    force: bool = False,
    readout_scale: float | None = None,
    halvings: Sequence[int] | None = None,
) -> QuantizedNetwork:
    """Turn a network into integers.

    LIF with reset by subtraction keeps its voltage in the *current* of CUBA neurons, with -1 on the
    diagonal of the recurrence; with reset to zero in their voltage; ALIF needs ``reset="static"``.
    Rows are divided by their neuron's threshold (ALIF: by its step of adaptation), which changes
    nothing.

    Args:
        network: LIF, CubaLIF and ALIF layers and at the end a Linear readout or an LI, or those of
            :func:`neurolsc.wrap` that have the same step. With ``layer_delay=1`` the readout has no
            bias; with 0 the layers get a delay of one step, as in :func:`neurolsc.export.delayed`.
            Surrogates do not matter.
        force: accept fewer than 62 weight units per threshold.
        readout_scale: integer units per float unit of a Linear readout; by default as many as fit.
        halvings: per layer how often to halve the weight units of an ALIF, whose weights keep their
            8 bits, or of an LI, as :func:`fit_scales` finds them.

    Returns:
        The integers; with a gradient to the network's parameters where these want one.

    Raises:
        TypeError: if a layer is neither LIF nor ALIF, or the readout neither linear nor an LI.
        ValueError: if something cannot be expressed; the message names the layer and the number.

    Example:
        >>> from neurolsc import LIF
        >>> quantized = quantize(Network([LIF(3, 2, reset="zero")], n_out=2))
        >>> bool(quantized.layers[0].weight.abs().max() <= 254)
        True
    """
    given = from_wrapped(network)
    network = delayed(given)
    leaky = integrates(network)
    if getattr(network.readout, "bias", None) is not None:
        raise ValueError("the readout has a bias, which a sum of spikes cannot hold: train with readout_bias=False.")
    for name, value in network.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(f"{name} must be finite, got NaN or infinity.")
    layers, remarks = [], []
    wider = 0
    for i, cell in enumerate(network.cells, start=1):
        layer, said = integer_layer(f"layer {i}", cell, force, halvings[i - 1] if halvings else 0)
        if wider:  # the neuron that stands for the bias below is not read
            layer = replace(layer, weight=torch.nn.functional.pad(layer.weight, (0, wider)))
        wider = layer.size - cell.n_hidden
        layers.append(layer)
        remarks += said
    extra = [layer.size - cell.n_hidden for layer, cell in zip(layers, network.cells, strict=True)]
    native = [i for i, layer in enumerate(layers, start=1) if not extra[i - 1] and layer.bias.any()]
    if any(extra) and native:
        raise ValueError(
            f"layer {extra.index(1) + 1} has a bias and a reset by subtraction, which needs a blank first step, and in that "
            f"step the bias of layer {native[0]} would act already: give all layers with a bias the same kind of reset."
        )
    if leaky:
        scale, readout = layers[-1].unit[0].item(), layers[-1].weight.new_zeros(0, network.n_out)
    else:
        w = network.readout.get_parameter("weight").double()
        most = W_MAX / largest("the readout", w)
        scale = most if readout_scale is None else min(readout_scale, most)
        readout = even(w * scale)
        check_matrix("the readout", readout)
        readout = torch.nn.functional.pad(readout, (0, wider))
    bias_neurons = tuple(layer.size - cell.n_hidden for layer, cell in zip(layers, given.cells, strict=True))
    latency = 0 if given.layer_delay else len(layers)
    return QuantizedNetwork(tuple(layers), readout, scale, bias_neurons, int(any(extra)), tuple(remarks), latency)


def fit_scales(network: Network, calibration: Tensor, *, force: bool = False) -> tuple[int, ...]:
    """How often to halve the weight units of an ALIF or LI so that half of its bits are enough.

    That is the bits of its states and inputs. Thresholds and states get coarser by that, weights of
    an ALIF do not: it stops where they would. Where that is not enough, the run on the calibration
    data overflows.

    Args:
        network: as in :func:`quantize`.
        calibration: samples (T, B, n_in), 0 or 1.
        force: as in :func:`quantize`.

    Returns:
        One number per layer, 0 where there is room or nothing to halve.

    Raises:
        TypeError: as :func:`quantize`.
        ValueError: as :func:`quantize`, or if the samples do not fit.
    """
    halvings = [0] * len(network.cells)
    quantized = quantize(network, force=force)
    while True:
        extremes = quantized.run(calibration).extremes[: len(halvings)]
        trial = [
            h + (math.ceil(math.log2(2 * e.reach)) if e.reach > 0.5 else 0)
            for h, e in zip(halvings, extremes, strict=True)
        ]
        coarser = quantize(network, force=force, halvings=trial)
        changed = [not torch.equal(a.unit, b.unit) for a, b in zip(quantized.layers, coarser.layers, strict=True)]
        if not any(changed):
            return tuple(halvings)
        halvings = [t if c else h for h, t, c in zip(halvings, trial, changed, strict=True)]
        quantized = coarser
