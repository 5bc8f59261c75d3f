"""From a trained float network to Loihi's integers: scales per layer, rounding, and what cannot be expressed.

Rounding lets gradients pass and scales are constants to them, so that fine-tuning trains through :func:`quantize` itself.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from neurolsc.export.fixed_point import LIMIT, UNIT, AlifLayer, CubaLayer, Extremes, Layer, Spike, moments
from neurolsc.metrics import is_binary
from neurolsc.network import Network
from neurolsc.neurons import LIF, Cell
from neurolsc.neurons.alif import ALIF

__all__ = ["IntegerRun", "QuantizedNetwork", "quantize"]

W_MAX = 254
"""largest weight: 8 signed bits times 2"""
COARSE = 62
"""fewest weight units per threshold; at half of it rounding decides what fires"""
THRESHOLD_MAX = 2**17 - 1
LONGEST = 4095 / 4096
"""largest share of a state that is kept from one step to the next, a time constant of 4096 steps"""


@dataclass(frozen=True)
class IntegerRun:
    """What :meth:`QuantizedNetwork.run` returns."""

    logits: Tensor
    """integer readout at every step (T, B, C), in units of the readout's scale"""
    spikes: tuple[Tensor, ...]
    """of every layer (T, B, M), without bias neurons and blank steps"""
    extremes: tuple[Extremes, ...]
    """of every layer, and last of the readout, whose v is the sum of its logits over time"""


@dataclass(frozen=True)
class QuantizedNetwork:
    """A network in integers. The last layer's spikes go to a readout that adds them up.

    Attributes:
        layers: first layer first.
        readout: integer weights (C, M of the last layer).
        readout_scale: integer units per float unit of the readout.
        bias_neurons: per layer 1 if its last neuron fires at every step to stand for a bias, else 0.
        blank_steps: steps without input that come before the first one, for the bias neurons to start firing.
        remarks: what is worth knowing but no error, one sentence each.
    """

    layers: tuple[Layer, ...]
    readout: Tensor
    readout_scale: float
    bias_neurons: tuple[int, ...]
    blank_steps: int
    remarks: tuple[str, ...] = ()

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.layers[0].weight.shape[1]

    def run(self, x: Tensor, *, spikes: list[Spike] | None = None) -> IntegerRun:
        """Run over time.

        Args:
            x: input spikes (T, B, n_in), 0 or 1, dense or sparse, any dtype.
            spikes: one per layer, to train with; by default the step function.

        Returns:
            Logits, spikes, and how far the integers went.

        Raises:
            ValueError: if x has another shape or other values: a graded spike has no counterpart.
        """
        x = self.padded(x)
        out: list[tuple[Tensor, ...]] = []
        extremes: list[Extremes] = [Extremes()] * len(self.layers)
        for moment in moments(self.layers, x, spikes):
            out.append(moment.spikes)
            extremes = [so_far | Extremes.of(now) for so_far, now in zip(extremes, moment.seen, strict=True)]
        layers = [torch.stack(layer) for layer in zip(*out, strict=True)]
        whole = layers[-1] @ self.readout.T
        summed = UNIT * whole.detach().cumsum(0)
        extremes.append(Extremes(v=(int(summed.min()), int(summed.max())), wraps=int((summed.abs() >= LIMIT).sum())))
        cut = (layer[self.blank_steps :, :, : layer.shape[2] - b] for layer, b in zip(layers, self.bias_neurons, strict=True))
        return IntegerRun(whole[self.blank_steps :], tuple(cut), tuple(extremes))

    def padded(self, x: Tensor) -> Tensor:
        """The input as the layers read it: float64, dense, blank steps first; arguments and errors as in :meth:`run`."""
        x = x.to_dense() if x.is_sparse else x
        if x.ndim != 3 or x.shape[2] != self.n_in or 0 in x.shape:
            raise ValueError(f"input spikes must have shape (T, B, {self.n_in}) with T, B >= 1, got {tuple(x.shape)}.")
        if not is_binary(x):
            other = x[(x != 0) & (x != 1)][0].item()
            raise ValueError(f"input spikes must be 0 or 1, got {other:g}: graded spikes are not supported.")
        return torch.nn.functional.pad(x.double(), (0, 0, 0, 0, self.blank_steps, 0))


def quantize(network: Network, *, force: bool = False) -> QuantizedNetwork:
    """Turn a network into integers.

    LIF with reset by subtraction keeps its voltage in the *current* of CUBA neurons, with -1 on the diagonal of the
    recurrence; with reset to zero in their voltage; ALIF needs ``reset="static"``. Rows are divided by their neuron's
    threshold (ALIF: by its step of adaptation), which changes nothing.

    Args:
        network: LIF and ALIF layers, ``layer_delay=1``, no readout bias. Surrogates do not matter.
        force: accept fewer than 62 weight units per threshold.

    Returns:
        The integers; with a gradient to the network's parameters where these want one.

    Raises:
        TypeError: if a layer is neither LIF nor ALIF.
        ValueError: if something cannot be expressed; the message names the layer and the number.

    Example:
        >>> from neurolsc import LIF
        >>> quantized = quantize(Network([LIF(3, 2, reset="zero")], n_out=2))
        >>> bool(quantized.layers[0].weight.abs().max() == 254)
        True
    """
    if network.layer_delay != 1:
        raise ValueError(
            "the network has layer_delay=0, but on the chip each layer reads the one below one step late: train with layer_delay=1."
        )
    if network.readout.bias is not None:
        raise ValueError("the readout has a bias, which a sum of spikes cannot hold: train with readout_bias=False.")
    for name, value in network.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(f"{name} must be finite, got NaN or infinity.")
    layers, remarks = [], []
    wider = 0
    for i, cell in enumerate(network.cells, start=1):
        layer, said = _layer(f"layer {i}", cell, force)
        if wider:  # the neuron that stands for the bias below is not read
            layer = replace(layer, weight=torch.nn.functional.pad(layer.weight, (0, wider)))
        wider = layer.size - cell.n_hidden
        layers.append(layer)
        remarks += said
    bias_neurons = tuple(layer.size - cell.n_hidden for layer, cell in zip(layers, network.cells, strict=True))
    native = [i for i, layer in enumerate(layers, start=1) if not bias_neurons[i - 1] and layer.bias.any()]
    if any(bias_neurons) and native:
        raise ValueError(
            f"layer {bias_neurons.index(1) + 1} has a bias and a reset by subtraction, which needs a blank first step, and in that "
            f"step the bias of layer {native[0]} would act already: give all layers with a bias the same kind of reset."
        )
    w = network.readout.weight.double()
    scale = W_MAX / _largest("the readout", w)
    readout = _even(w * scale)
    check_matrix("the readout", readout)
    readout = torch.nn.functional.pad(readout, (0, wider))
    return QuantizedNetwork(tuple(layers), readout, scale, bias_neurons, int(any(bias_neurons)), tuple(remarks))


def _layer(name: str, cell: Cell, force: bool) -> tuple[Layer, list[str]]:
    if not isinstance(cell, LIF | ALIF):
        raise TypeError(f"{name} is a {type(cell).__name__}; only LIF and ALIF layers can be exported.")
    remarks = []
    kept = cell.decay_v.detach().double()
    if (kept > LONGEST).any():
        raise ValueError(f"{name}: tau_v is {cell.tau_v.max().item():g} steps, more than the 4096 that 12 bits can hold.")
    if kept.max() - kept.min() > 0.5 / 4096:
        remarks.append(
            f"{name}: the decays differ from neuron to neuron; the simulator runs them exactly, the file format only documents scalars."
        )
    layer, kind = _alif(name, cell, force) if isinstance(cell, ALIF) else _lif(name, cell, force)
    remarks += [f"{name}: {remark}" for remark in kind]
    check_matrix(name, *((layer.weight,) if layer.weight_rec is None else (layer.weight, layer.weight_rec)))
    threshold = int(layer.threshold.min())
    lost = cell.tau_v.detach().max().item() / UNIT
    if lost > 0.02 * threshold:
        remarks.append(
            f"{name}: with a time constant of {lost * UNIT:.0f} steps rounding takes up to {lost:.1f} of the threshold's {threshold} units."
        )
    return layer, remarks


def _lif(name: str, cell: LIF, force: bool) -> tuple[CubaLayer, list[str]]:
    theta = cell.theta.double().unsqueeze(1)
    if not (theta > 0).all():
        raise ValueError(f"{name}: thresholds must be positive, got {theta.min().item():g}.")
    m = cell.n_hidden
    w_in, w_rec, b = cell.w_in.double() / theta, cell.w_rec.double() / theta, cell.b_v.double() / theta[:, 0]
    leak = 4096 * (1 - cell.decay_v.double())
    full = torch.full_like(leak, 4096)
    if cell.reset_name == "zero":
        scale = math.floor(W_MAX / _largest(name, w_in, w_rec))
        threshold = torch.full_like(leak, _threshold(name, scale, force))
        v_decay, remarks = _v_decay(leak)
        bias = _round(b * scale)
        if (bias < -4096).any() or (bias > 4095).any():
            raise ValueError(f"{name}: a bias of {_extreme(bias):.0f} weight units does not fit 13 bits (-4096 to 4095).")
        rec = _even(w_rec * scale) if w_rec.any() else None
        unit = UNIT * scale / theta[:, 0].detach()
        return CubaLayer(_even(w_in * scale), rec, bias, full, v_decay, threshold, unit), remarks
    w_rec = w_rec - torch.eye(m, **_like(w_rec))
    scale = min(W_MAX, math.floor(W_MAX / _largest(name, w_in, w_rec, b)))
    scale -= scale % 2
    scale -= 2 * (scale.bit_count() == 1)  # a power of 2 is where readers disagree
    threshold = torch.full_like(leak, _threshold(name, scale, force))
    weight, rec = _even(w_in * scale), _even(w_rec * scale)
    i_decay = _round(leak).clamp(min=1)
    bias, v_decay = torch.zeros_like(leak), torch.full_like(leak, 4095)
    unit = UNIT * scale / theta[:, 0].detach()
    if b.any():
        pad = torch.nn.functional.pad
        column = torch.cat((_even(b * scale), b.new_zeros(1))).unsqueeze(1)
        weight, rec = pad(weight, (0, 0, 0, 1)), torch.cat((pad(rec, (0, 0, 0, 1)), column), 1)
        bias, i_decay = pad(bias, (0, 1), value=scale + 1), pad(i_decay, (0, 1), value=4096)
        v_decay, threshold, unit = pad(v_decay, (0, 1), value=4095), pad(threshold, (0, 1), value=scale), pad(unit, (0, 1), value=1.0)
    return CubaLayer(weight, rec, bias, i_decay, v_decay, threshold, unit), []


def _alif(name: str, cell: ALIF, force: bool) -> tuple[AlifLayer, list[str]]:
    if cell.reset_name != "static":
        raise ValueError(
            f"{name}: an ALIF with reset={cell.reset_name!r} has no counterpart on the chip; train it with reset='static'."
        )
    kept, rest, adaptation = cell.decay_theta.double(), cell.theta_rest.double(), cell.adaptation.double()
    theta_leak = 4096 * (1 - kept)
    if not (adaptation > 0).all():
        raise ValueError(
            f"{name}: adaptation must be positive in every neuron, got {adaptation.min().item():g}: the threshold's step is one number "
            "for the layer, and a threshold that falls can never stop its neuron from firing."
        )
    if not (rest > 0).all():
        raise ValueError(f"{name}: resting thresholds must be positive, got {rest.min().item():g}.")
    if (kept > LONGEST).any() or (_round(theta_leak) > 4095).any():
        taus = cell.tau_theta.detach()
        raise ValueError(
            f"{name}: tau_theta must lie between 0.12 and 4096 steps for its decay to fit 12 bits, got {taus.min().item():g} "
            f"to {taus.max().item():g}."
        )
    step = adaptation / kept
    rows = 1 / step.detach()  # the step is one number for the layer, so rows are scaled until it is
    w_in, w_rec, b = (
        cell.w_in.double() * rows.unsqueeze(1),
        cell.w_rec.double() * rows.unsqueeze(1),
        cell.b_v.double() * rows,
    )
    peaks = [_largest(name, w_in), w_rec.detach().abs().max().item()]
    scale = W_MAX / min(peak for peak in peaks if peak)
    thresholds = rest.detach() * rows
    scale *= 2.0 ** max(
        0, math.ceil(math.log2(2 * COARSE / (scale * thresholds.min()))), math.ceil(math.log2(512 / (scale * thresholds.max())))
    )
    scale = math.floor(scale)
    if scale < 1:
        raise ValueError(f"{name}: the threshold's step rounds to 0: adaptation is {adaptation.min().item():g}, too small for its weights.")
    weight_exp, rec_exp = (max(0, math.ceil(math.log2(peak * scale / W_MAX))) if peak else 0 for peak in peaks)
    threshold = _round(rest * rows * scale)
    _threshold(name, int(threshold.min()), force)
    _threshold(name, int(threshold.max()), force)
    reset_exp = max(0, math.ceil(math.log2(threshold.max().item() / W_MAX)))
    reset = _even(rest * rows * scale / 2**reset_exp)
    if not reset.all():
        raise ValueError(
            f"{name}: resting thresholds reach from {rest.min().item():g} to {rest.max().item():g}, measured in steps of adaptation more "
            "than 8 bits apart."
        )
    current = UNIT * b * scale
    bias_exp = max(0, math.ceil(math.log2(max(1.0, current.abs().max().item()) / 4095)))
    if bias_exp > 7:
        raise ValueError(f"{name}: a bias of {_extreme(current):.0f} state units does not fit 13 bits and an exponent of 7.")
    v_decay, remarks = _v_decay(4096 * (1 - cell.decay_v.double()))
    layer = AlifLayer(
        weight=_even(w_in * scale / 2**weight_exp),
        weight_rec=_even(w_rec * scale / 2**rec_exp),
        bias=_round(current / 2**bias_exp),
        v_decay=v_decay,
        theta_decay=_round(theta_leak).clamp(min=1),
        threshold=threshold,
        theta_step=_round(step * rows * scale),
        reset=reset,
        weight_exp=weight_exp,
        weight_rec_exp=rec_exp,
        bias_exp=bias_exp,
        reset_exp=reset_exp,
        unit=UNIT * scale * rows,
    )
    return layer, remarks


def check_matrix(name: str, *weights: Tensor) -> None:
    """Refuse integer matrices that share synapse memory and that a reader of the file would silently change.

    Raises:
        ValueError: if all are zero, or none is positive and the smallest entry is minus a power of 2.
    """
    low, high = min(int(w.min()) for w in weights), max(int(w.max()) for w in weights)
    if low == high == 0:
        raise ValueError(f"{name}: all weights are zero.")
    if high <= 0 and (-low).bit_count() == 1:
        raise ValueError(
            f"{name}: no weight is positive and the smallest is {low}, which readers change silently: scale the weights a little."
        )


def _threshold(name: str, units: int, force: bool) -> int:
    if units > THRESHOLD_MAX:
        raise ValueError(f"{name}: a threshold of {units} weight units does not fit 17 bits ({THRESHOLD_MAX}): its weights are too small to fire.")
    if units < (1 if force else COARSE):
        raise ValueError(
            f"{name}: weights up to {W_MAX / max(units, 1):.1f} thresholds leave {units} weight units per threshold, and below {COARSE} rounding "
            "decides what fires: train with smaller weights, or give force=True."
        )
    return units


def _v_decay(leak: Tensor) -> tuple[Tensor, list[str]]:
    """VDecay and what was said about it: 4096, no memory at all, becomes 4095."""
    remark = "a voltage without memory keeps 1/4096 of itself (vDecay 4095, the largest)."
    return _round(leak).clamp(1, 4095), [remark] if (leak.round() > 4095).any() else []


def _largest(name: str, *weights: Tensor) -> float:
    peak = max(w.detach().abs().max().item() for w in weights)
    if not peak:
        raise ValueError(f"{name}: all weights are zero.")
    return peak


def _extreme(x: Tensor) -> float:
    return x.flatten()[x.abs().argmax()].item()


def _round(x: Tensor) -> Tensor:
    """The nearest integer; the gradient passes."""
    return x + (x.round() - x).detach()


def _even(x: Tensor) -> Tensor:
    """The nearest even integer; the gradient passes."""
    return x + (2 * (x / 2).round() - x).detach()


def _like(x: Tensor) -> dict[str, object]:
    return {"dtype": x.dtype, "device": x.device}
