"""LIF and LI as CUBA neurons, both ways.

With reset to zero the voltage is CUBA's voltage. With reset by subtraction it is CUBA's *current*:
the reset is a synapse of -1 to itself, a bias one from an extra neuron that fires at every step.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.export.loihi.cuba import NEVER, CubaLayer, IntegratorLayer
from neurolsc.export.loihi.fixed_point import UNIT, IntegerLayer
from neurolsc.export.loihi.mapping import LayerFloats, LoihiNeuron
from neurolsc.export.loihi.rounding import (
    LONGEST,
    W_MAX,
    check_threshold,
    decay_bits,
    even,
    extreme,
    largest,
    nearest,
    time_constant,
)
from neurolsc.export.neurons import find_reset
from neurolsc.neurons import LI, LIF, CubaLIF
from neurolsc.neurons.reset import Reset, StaticReset, ZeroReset

__all__ = ["LoihiLi", "LoihiLif"]

COARSE = 62
"""fewest weight units per threshold; with half as many rounding decides what fires"""


class _Rows(NamedTuple):
    """A LIF whose rows are divided by their neuron's threshold, which changes nothing."""

    w_in: Tensor
    w_rec: Tensor
    b: Tensor
    leak: Tensor
    """decays in 12 bits"""
    theta: Tensor
    """what they were divided by"""


class LoihiLif(LoihiNeuron[LIF]):
    """LIF with any reset, CubaLIF with reset to zero."""

    def floats(self, cell: LIF) -> LayerFloats:
        return LayerFloats(
            w_in=cell.w_in, w_rec=cell.w_rec, bias=cell.b_v, threshold=cell.theta, tau_v=cell.tau_v, spike=cell.spike
        )

    def integers(self, name: str, cell: LIF, *, force: bool, halvings: int) -> CubaLayer:
        theta = cell.theta.double()
        if not (theta > 0).all():
            raise ValueError(f"{name}: thresholds must be positive, got {theta.min():g}.")
        rows = 1 / theta.unsqueeze(1)
        if isinstance(cell, CubaLIF):
            _check_current(name, cell)
        weights = cell.w_in.double() * rows, cell.w_rec.double() * rows
        divided = _Rows(*weights, cell.b_v.double() / theta, decay_bits(cell.decay_v.double()), theta)
        layer = find_reset(name, cell, _FORMS)(name, divided, force)
        if isinstance(cell, CubaLIF):
            return replace(layer, i_decay=decay_bits(cell.decay_i.double()).clamp(min=1))
        return layer

    def leak(self, cell: LIF, layer: IntegerLayer) -> Tensor:
        assert isinstance(layer, CubaLayer)
        in_voltage = isinstance(cell.reset, ZeroReset)
        return layer.v_decay if in_voltage else layer.i_decay[: cell.n_hidden]

    def restore(self, cell: LIF, layer: IntegerLayer) -> None:
        n, m = cell.n_in, cell.n_hidden
        scale = layer.unit[:m] / UNIT
        rows = scale.unsqueeze(1)
        rec = torch.zeros_like(cell.w_rec) if layer.weight_rec is None else layer.weight_rec
        cell.theta.copy_(layer.threshold[:m] / scale)
        cell.w_in.copy_(layer.weight[:m, :n] / rows)
        cell.w_rec.copy_(rec[:m, :m] / rows)
        cell.tau_v = time_constant(self.leak(cell, layer))
        if isinstance(cell, CubaLIF):
            assert isinstance(layer, CubaLayer)
            cell.tau_i = time_constant(layer.i_decay)
        if isinstance(cell.reset, ZeroReset):
            cell.b_v.copy_(layer.bias / scale)
        else:
            cell.w_rec.add_(torch.diag(cell.theta))
            cell.b_v.copy_(rec[:m, m:].sum(1) / scale)

    def describe(self, cell: LIF) -> str:
        if isinstance(cell, CubaLIF):
            return "CubaLIF, reset to zero: CUBA, current in u and voltage in v"
        in_voltage = isinstance(cell.reset, ZeroReset)
        return "LIF, reset to zero: CUBA" if in_voltage else "LIF, reset by subtraction: CUBA, voltage in u"


class LoihiLi(LoihiNeuron[LI]):
    """A leaky integrator as the readout. All rows have one scale: their voltages are compared."""

    def floats(self, cell: LI) -> LayerFloats:
        return LayerFloats(
            w_in=cell.w_in,
            w_rec=cell.w_in[:, :0],
            bias=cell.b_v,
            threshold=torch.ones_like(cell.b_v),
            tau_v=cell.tau_v,
            spike=torch.zeros_like,
        )

    def integers(self, name: str, cell: LI, *, force: bool, halvings: int) -> IntegratorLayer:
        _check_current(name, cell)
        weight = cell.w_in.double()
        scale = W_MAX / largest(name, weight) / 2**halvings
        v_decay = decay_bits(cell.decay_v.double())
        return IntegratorLayer(
            weight=nearest(weight * scale) if halvings else even(weight * scale),  # odd ones fit up to 127
            weight_rec=None,
            bias=_native(name, cell.b_v.double() * scale),
            i_decay=decay_bits(cell.decay_i.double()).clamp(min=1),
            v_decay=v_decay.clamp(1, 4095),
            threshold=torch.full_like(v_decay, NEVER),
            unit=torch.full_like(v_decay, UNIT * scale),
        )

    def leak(self, cell: LI, layer: IntegerLayer) -> Tensor:
        return layer.v_decay

    def restore(self, cell: LI, layer: IntegerLayer) -> None:
        assert isinstance(layer, CubaLayer)
        scale = layer.unit / UNIT
        cell.w_in.copy_(layer.weight[:, : cell.n_in] / scale.unsqueeze(1))
        cell.b_v.copy_(layer.bias / scale)
        cell.tau_v, cell.tau_i = time_constant(layer.v_decay), time_constant(layer.i_decay)

    def describe(self, cell: LI) -> str:
        return "LI: CUBA that never fires, its voltage is read"


def _check_current(name: str, cell: CubaLIF | LI) -> None:
    if isinstance(cell, CubaLIF) and not isinstance(cell.reset, ZeroReset):
        raise ValueError(f'{name}: CUBA resets its voltage to zero, and so can a CubaLIF only with reset="zero".')
    if (cell.decay_i.double() > LONGEST).any():
        raise ValueError(
            f"{name}: tau_i is {cell.tau_i.max():g} steps, but a decay has 12 bits, for at most 4096 steps."
        )
    if cell.b_v[cell.decay_i > 1e-6].any():  # without memory the current is what the voltage gets
        raise ValueError(f"{name}: a bias of the current needs layer_delay=0, where a neuron of its own brings it.")


def _in_voltage(name: str, rows: _Rows, force: bool) -> CubaLayer:
    """Reset to zero: v is the voltage, u has no memory."""
    scale = math.floor(W_MAX / largest(name, rows.w_in, rows.w_rec))
    threshold = torch.full_like(rows.leak, check_threshold(name, scale, COARSE, force))
    return CubaLayer(
        weight=even(rows.w_in * scale),
        weight_rec=even(rows.w_rec * scale) if rows.w_rec.any() else None,
        bias=_native(name, rows.b * scale),
        i_decay=torch.full_like(rows.leak, 4096),
        v_decay=rows.leak.clamp(1, 4095),
        threshold=threshold,
        unit=UNIT * scale / rows.theta,
    )


def _native(name: str, b: Tensor) -> Tensor:
    bias = nearest(b)
    if (bias < -4096).any() or (bias > 4095).any():
        raise ValueError(f"{name}: a bias of {extreme(bias):.0f} weight units does not fit 13 bits (-4096 to 4095).")
    return bias


def _in_current(name: str, rows: _Rows, force: bool) -> CubaLayer:
    """Reset by subtraction: u is the voltage."""
    w_rec = rows.w_rec - torch.eye(len(rows.theta), dtype=rows.theta.dtype, device=rows.theta.device)
    scale = min(W_MAX, math.floor(W_MAX / largest(name, rows.w_in, w_rec, rows.b)))
    scale -= scale % 2
    scale -= 2 * (scale.bit_count() == 1)  # one-sign matrices down to a power of 2 are where readers go wrong
    layer = CubaLayer(
        weight=even(rows.w_in * scale),
        weight_rec=even(w_rec * scale),
        bias=torch.zeros_like(rows.leak),
        i_decay=rows.leak.clamp(min=1),
        v_decay=torch.full_like(rows.leak, 4095),
        threshold=torch.full_like(rows.leak, check_threshold(name, scale, COARSE, force)),
        unit=UNIT * scale / rows.theta,
    )
    return _with_bias_neuron(layer, even(rows.b * scale), scale) if rows.b.any() else layer


def _with_bias_neuron(layer: CubaLayer, b: Tensor, scale: int) -> CubaLayer:
    """One neuron more, the last, that fires at every step, with weights b to the others."""
    assert layer.weight_rec is not None
    pad = torch.nn.functional.pad
    column = pad(b, (0, 1)).unsqueeze(1)
    return CubaLayer(
        weight=pad(layer.weight, (0, 0, 0, 1)),
        weight_rec=torch.cat((pad(layer.weight_rec, (0, 0, 0, 1)), column), 1),
        bias=pad(layer.bias, (0, 1), value=scale + 1),
        i_decay=pad(layer.i_decay, (0, 1), value=4096),
        v_decay=pad(layer.v_decay, (0, 1), value=4095),
        threshold=pad(layer.threshold, (0, 1), value=scale),
        unit=pad(layer.unit, (0, 1), value=UNIT * scale),
    )


_FORMS: dict[type[Reset], Callable[[str, _Rows, bool], CubaLayer]] = {
    Reset: _in_current,
    StaticReset: _in_current,  # of a LIF they are the same
    ZeroReset: _in_voltage,
}
