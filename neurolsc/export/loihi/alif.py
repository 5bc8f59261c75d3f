"""ALIF with a static reset as ATRLIF neurons, both ways.

The chip's step of the threshold is one number for a layer: the rows of the weights are divided by
their neuron's step, which changes nothing. The step comes before the decay there and after it here.
"""

import math

import torch
from torch import Tensor

from neurolsc.export.loihi.atrlif import AtrlifLayer
from neurolsc.export.loihi.fixed_point import UNIT, IntegerLayer
from neurolsc.export.loihi.mapping import LayerFloats, LoihiNeuron
from neurolsc.export.loihi.rounding import (
    LONGEST,
    THRESHOLD_MAX,
    W_MAX,
    check_threshold,
    decay_bits,
    even,
    exponent,
    extreme,
    largest,
    nearest,
    time_constant,
)
from neurolsc.export.neurons import RESET_NAMES, find_reset
from neurolsc.neurons import ALIF
from neurolsc.neurons.reset import StaticReset
from neurolsc.positive import set_value

__all__ = ["LoihiAlif"]

COARSE, PLENTY = 16, 256
"""weight units: fewest for the lowest threshold, as weights have an exponent of their own, and how
many for the highest are more than enough, because the input of a step has 16 bits"""
RESET_MAX = 255
"""largest mantissa of a layer's resets: 8 bits, as they all have one sign"""
POSITIVE = "Train neurolsc.ALIFPositive (--cell ALIFPositive), which keeps both positive, in place of ALIF+ or ALIF±."


class LoihiAlif(LoihiNeuron[ALIF]):
    """ALIF with ``reset="static"`` and positive adaptation."""

    def floats(self, cell: ALIF) -> LayerFloats:
        return LayerFloats(
            w_in=cell.w_in,
            w_rec=cell.w_rec,
            bias=cell.b_v,
            threshold=cell.theta_rest,
            tau_v=cell.tau_v,
            spike=cell.spike,
            tau_theta=cell.tau_theta,
        )

    def integers(self, name: str, cell: ALIF, *, force: bool, halvings: int) -> AtrlifLayer:
        _check(name, cell)
        kept, rest = cell.decay_theta.double(), cell.theta_rest.double()
        step = cell.adaptation.double() / kept
        rows = 1 / step.detach()
        w_in, w_rec = cell.w_in.double() * rows.unsqueeze(1), cell.w_rec.double() * rows.unsqueeze(1)
        peaks = [largest(name, w_in), w_rec.detach().abs().max().item()]
        scale = _scale(name, [peak for peak in peaks if peak], rest.detach() * rows, halvings)
        weight_exp, rec_exp = (exponent(peak * scale, W_MAX) for peak in peaks)
        threshold = rest * rows * scale
        fewest = max(1, COARSE >> halvings)
        for units in (threshold.min(), threshold.max()):
            check_threshold(name, max(round(units.item()), halvings > 0), fewest, force)
        reset, reset_exp = _reset(name, threshold, scale)
        bias = UNIT * cell.b_v.double() * rows * scale
        bias_exp = exponent(bias.abs().max().item(), 4095)
        if bias_exp > 7:
            raise ValueError(f"{name}: a bias of {extreme(bias):.0f} state units does not fit 13 bits shifted by 7.")
        return AtrlifLayer(
            weight=even(w_in * scale / 2**weight_exp),
            weight_rec=even(w_rec * scale / 2**rec_exp),
            bias=nearest(bias / 2**bias_exp),
            v_decay=decay_bits(cell.decay_v.double()).clamp(1, 4095),
            theta_decay=decay_bits(kept).clamp(min=1),
            threshold=nearest(threshold).clamp(min=1),
            theta_step=nearest(step * rows * scale),
            reset=reset,
            weight_exp=weight_exp,
            weight_rec_exp=rec_exp,
            bias_exp=bias_exp,
            reset_exp=reset_exp,
            unit=UNIT * scale * rows,
        )

    def leak(self, cell: ALIF, layer: IntegerLayer) -> Tensor:
        return layer.v_decay

    def restore(self, cell: ALIF, layer: IntegerLayer) -> None:
        assert isinstance(layer, AtrlifLayer)
        scale = layer.unit / UNIT
        rows = scale.unsqueeze(1)
        cell.w_in.copy_(layer.weight[:, : cell.n_in] * 2**layer.weight_exp / rows)
        cell.w_rec.copy_(layer.weight_rec * 2**layer.weight_rec_exp / rows)
        cell.b_v.copy_(layer.bias * 2**layer.bias_exp / layer.unit)
        cell.tau_v = time_constant(layer.v_decay)
        cell.tau_theta = time_constant(layer.theta_decay)
        cell.theta_rest = layer.threshold / scale
        set_value(cell, "adaptation", layer.theta_step * (1 - layer.theta_decay / 4096) / scale)

    def describe(self, cell: ALIF) -> str:
        return "ALIF, static reset: ALIF (ATRLIF)"


def _check(name: str, cell: ALIF) -> None:
    if type(cell.reset) is not StaticReset:
        reset = find_reset(name, cell, RESET_NAMES)
        raise ValueError(f"{name}: an ALIF with reset={reset!r} has no counterpart; train with reset='static'.")
    adaptation, rest, tau = (x.detach().double() for x in (cell.adaptation, cell.theta_rest, cell.tau_theta))
    if not (adaptation > 0).all():
        raise ValueError(
            f"{name}: adaptation must be positive everywhere, got {adaptation.min():g}: a layer has one step of "
            f"its threshold, and one that falls can never stop its neuron from firing. {POSITIVE}"
        )
    if not (rest > 0).all():
        raise ValueError(f"{name}: resting thresholds must be positive, got {rest.min():g}. {POSITIVE}")
    kept = torch.exp(-1 / tau)
    if (kept > LONGEST).any() or decay_bits(kept).max() > 4095:
        raise ValueError(
            f"{name}: tau_theta is {tau.min():g} to {tau.max():g} steps, but 12 bits hold 0.12 to 4096 steps."
        )


def _scale(name: str, peaks: list[float], rest: Tensor, halvings: int) -> int:
    """Weight units per step of adaptation: the fewest that are fine enough.

    They are a power of 2 times the larger matrix's full range, of which the lowest threshold has
    enough, and the smaller matrix its own full range, unless the highest threshold has plenty
    before, or leaves 17 bits. Then halved so many times, but never to less than that full range or
    enough units for the step.
    """
    scale = W_MAX / max(peaks)
    low, high = rest.min().item(), rest.max().item()
    wanted = max(COARSE / low, min(W_MAX / min(peaks), PLENTY / high))
    doublings = min(math.ceil(math.log2(wanted / scale)), math.floor(math.log2(THRESHOLD_MAX / high / scale)))
    fewest = min(doublings, math.ceil(math.log2(COARSE / scale)))
    scale = math.floor(scale * 2 ** max(0, fewest, doublings - halvings))
    if scale < 1:
        raise ValueError(
            f"{name}: the step of the threshold rounds to 0: the adaptation is too small beside the weights; "
            "train from a start that leaves it, such as BySource()."
        )
    return scale


def _reset(name: str, threshold: Tensor, scale: int) -> tuple[Tensor, int]:
    """What a spike takes from the voltage: mantissas (M,) and their exponent."""
    bits = exponent(threshold.max().item(), RESET_MAX)
    reset = nearest(threshold / 2**bits).clamp(min=1)
    if (reset * 2**bits - threshold > (threshold + scale) / 2).any():  # beside the threshold after a spike
        raise ValueError(
            f"{name}: resting thresholds, in steps of adaptation, reach from {threshold.min() / scale:g} to "
            f"{threshold.max() / scale:g}: too far apart for the 8 bits of the reset."
        )
    return reset, bits
