"""Neurons that can be exported, in Loihi's integers.

LIF with reset to zero has its voltage in CUBA's voltage; with reset by subtraction in CUBA's *current*, and the reset
is a synapse of -1 to itself. CubaLIF is CUBA, ALIF with a static reset is ATRLIF, LI is CUBA that never fires. Rows of
weights are divided by their neuron's threshold (ALIF: by its step of adaptation), which changes nothing.
"""

import math
from typing import Any

import torch
from torch import Tensor

from neurolsc.export.fixed_point import NEVER, UNIT, AtrlifLayer, CubaLayer, IntegerLayer, IntegratorLayer
from neurolsc.neurons import ALIF, LI, LIF, Cell, CubaLIF
from neurolsc.neurons.cell import NO_STEP, step_of

__all__ = ["exported_kind", "integers"]

W_MAX = 254  # the largest weight: 8 signed bits times 2
LONGEST = 4095 / 4096  # the largest share of a state that a step retains, a time constant of 4096 steps
COARSE = 62  # fewest weight units per threshold of a LIF; with half as many rounding decides what fires
COARSE_ALIF, PLENTY = 16, 256  # of an ALIF, whose weights have an exponent; and the most that are of use
POSITIVE = "Train neurolsc.ALIFPositive (--cell ALIFPositive), whose are positive, in place of ALIF+ or ALIF±."
EXPORTED = (LIF, CubaLIF, ALIF, LI)


def exported_kind(layer: str, cell: Cell) -> type[Cell]:
    """LIF, CubaLIF, ALIF or LI: the class that defines the cell's step; a TypeError if it is another."""
    step = step_of(type(cell))
    if step in EXPORTED and not any(hasattr(type(cell), name) and name not in NO_STEP for name in vars(cell)):
        return step
    own = ", ".join(f", whose step is not that of {kind.__name__}" for kind in EXPORTED if isinstance(cell, kind))
    names = ", ".join(kind.__name__ for kind in EXPORTED)
    raise TypeError(f"{layer} is a {type(cell).__name__}{own}; only {names} can be exported.")


# rounding, through which gradients pass


def nearest(x: Tensor) -> Tensor:
    return x + (x.round() - x).detach()


def even(x: Tensor) -> Tensor:
    return x + (2 * (x / 2).round() - x).detach()


def decay_bits(name: str, what: str, cell: Any) -> Tensor:
    """The 12-bit decay 4096 (1 - retention) of a cell's ``tau_v``, ``tau_i`` or ``tau_theta``."""
    tau = getattr(cell, what)
    retention = torch.exp(-1 / tau.double())
    if (retention > LONGEST).any():
        raise ValueError(f"{name}: {what} is {tau.max():g} steps, but a decay has 12 bits, for at most 4096 steps.")
    return nearest(4096 * (1 - retention)).clamp(min=1)


def largest(name: str, *weights: Tensor) -> float:
    peak = max(w.detach().abs().max().item() for w in weights)
    if not peak:
        raise ValueError(f"{name}: all weights are zero.")
    return peak


def _exponent(value: float, limit: int) -> int:  # the fewest bits to shift a value right to lie within a limit
    return max(0, math.ceil(math.log2(value / limit))) if value else 0


def _check_units(name: str, units: int, fewest: int) -> None:
    """Refuse thresholds that exceed 17 bits, or so low that rounding decides what fires."""
    if units > NEVER:
        raise ValueError(f"{name}: a threshold of {units} weight units exceeds 17 bits: its weights are too small.")
    if units < fewest:
        raise ValueError(
            f"{name}: large weights leave {units} weight units per threshold, wanted {fewest} or more: train with smaller "
            "weights, or give force=True."
        )


def check_matrix(name: str, *weights: Tensor | None) -> None:
    """Refuse integer matrices of one synapse memory that are zero or that readers would change."""
    low = min(int(w.min()) for w in weights if w is not None)
    high = max(int(w.max()) for w in weights if w is not None)
    if low == high == 0:
        raise ValueError(f"{name}: all weights are zero.")
    if high <= 0 and (-low).bit_count() == 1:
        raise ValueError(
            f"{name}: no weight is positive and the smallest is {low}, a power of 2, which readers change."
        )


# cells in integers


def _current_bits(name: str, cell: CubaLIF | LI) -> Tensor:
    if cell.b_v[cell.decay_i > 1e-6].any():  # without memory the current is the voltage's input
        raise ValueError(f"{name}: a bias of the current needs layer_delay=0, where a neuron of its own brings it.")
    return decay_bits(name, "tau_i", cell)


def _native_bias(name: str, b: Tensor) -> Tensor:
    bias = nearest(b)
    if (bias < -4096).any() or (bias > 4095).any():
        worst = bias.detach()[bias.detach().abs().argmax()]
        raise ValueError(f"{name}: a bias of {worst:.0f} weight units does not fit 13 bits (-4096 to 4095).")
    return bias


def _lif(name: str, cell: LIF, force: bool) -> CubaLayer:
    """LIF with any reset, CubaLIF with reset to zero."""
    theta, zero = cell.theta.double(), cell.reset.name == "zero"
    if not (theta > 0).all():
        raise ValueError(f"{name}: thresholds must be positive, got {theta.min():g}.")
    leak, rows = decay_bits(name, "tau_v", cell), 1 / theta.unsqueeze(1)
    w_in, w_rec, b = cell.w_in.double() * rows, cell.w_rec.double() * rows, cell.b_v.double() / theta
    if zero:
        scale = math.floor(W_MAX / largest(name, w_in, w_rec))
        i_decay = _current_bits(name, cell) if isinstance(cell, CubaLIF) else torch.full_like(leak, 4096)
        v_decay = leak.clamp(max=4095)
    else:
        if isinstance(cell, CubaLIF):
            raise ValueError(f'{name}: CUBA resets its voltage to zero, and so can a CubaLIF only with reset="zero".')
        if b[leak < 4096].any():  # it acts on CUBA's voltage, which remembers nothing
            raise ValueError(f"{name}: a bias and a reset by subtraction need layer_delay=0, else use a reset to zero.")
        w_rec = w_rec - torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
        scale = min(W_MAX, math.floor(W_MAX / largest(name, w_in, w_rec)))
        scale -= scale % 2
        scale -= 2 * (scale.bit_count() == 1)  # one-sign matrices down to a power of 2 are where readers go wrong
        i_decay, v_decay = leak, torch.full_like(leak, 4095)
    _check_units(name, scale, 1 if force else COARSE)
    return CubaLayer(
        weight=even(w_in * scale),
        weight_rec=even(w_rec * scale) if w_rec.any() else None,
        bias=_native_bias(name, b * scale),
        i_decay=i_decay,
        v_decay=v_decay,
        threshold=torch.full_like(leak, scale),
        unit=UNIT * scale / theta,
    )


def _alif(name: str, cell: ALIF, force: bool, halvings: int) -> AtrlifLayer:
    """ALIF with static reset and positive adaptation.

    The chip has one step of the threshold per layer, before the decay; ours comes after it.
    """
    if (found := cell.reset.name) != "static":
        raise ValueError(f"{name}: an ALIF with reset={found!r} has no counterpart; train with reset='static'.")
    rest = cell.theta_rest.double()
    if not (cell.adaptation > 0).all():
        raise ValueError(
            f"{name}: adaptation must be positive everywhere, got {cell.adaptation.min():g}: a threshold that falls can "
            f"never stop its neuron from firing. {POSITIVE}"
        )
    if not (rest > 0).all():
        raise ValueError(f"{name}: resting thresholds must be positive, got {rest.min():g}. {POSITIVE}")
    step = cell.adaptation.double() / cell.decay_theta.double().clamp(min=1 / 4096)
    rows = 1 / step.detach()
    w_in, w_rec = cell.w_in.double() * rows.unsqueeze(1), cell.w_rec.double() * rows.unsqueeze(1)

    # Weight units per step of adaptation: the fewest that are fine enough. They are a power of 2
    # times the larger matrix's full range, of which the lowest threshold has enough, and the
    # smaller matrix its own full range, unless the highest threshold has plenty before, or leaves
    # 17 bits. Then halved `halvings` times, but never to less than that full range or enough units
    # for the step.
    peaks = [largest(name, w_in), w_rec.detach().abs().max().item()]
    low, high = (rest.detach() * rows).min().item(), (rest.detach() * rows).max().item()
    full = W_MAX / max(peaks)
    wanted = max(COARSE_ALIF / low, min(W_MAX / min(peak for peak in peaks if peak), PLENTY / high))
    doublings = min(math.ceil(math.log2(wanted / full)), math.floor(math.log2(NEVER / high / full)))
    fewest = min(doublings, math.ceil(math.log2(COARSE_ALIF / full)))
    scale = math.floor(full * 2 ** max(0, fewest, doublings - halvings))
    if scale < 1:
        raise ValueError(
            f"{name}: the step of the threshold rounds to 0: the adaptation is too small for the weights; "
            "train from a start that leaves it, such as BySource()."
        )
    weight_exp, rec_exp = (_exponent(peak * scale, W_MAX) for peak in peaks)
    threshold = rest * rows * scale
    for units in (threshold.min(), threshold.max()):
        enough = 1 if force else max(1, COARSE_ALIF >> halvings)
        _check_units(name, max(round(units.item()), halvings > 0), enough)
    reset_exp = _exponent(threshold.max().item(), 255)  # 8 bits, as all resets of a layer have one sign
    reset = nearest(threshold / 2**reset_exp).clamp(min=1)
    if (reset * 2**reset_exp - threshold > (threshold + scale) / 2).any():  # against the threshold after a spike
        raise ValueError(
            f"{name}: resting thresholds, in steps of adaptation, reach from {threshold.min() / scale:g} to "
            f"{threshold.max() / scale:g}: too far apart for the 8 bits of the reset."
        )
    bias = UNIT * cell.b_v.double() * rows * scale
    largest_bias = bias.abs().max().item()
    bias_exp = _exponent(largest_bias, 4095)
    if bias_exp > 7:
        raise ValueError(f"{name}: a bias of {largest_bias:.0f} state units does not fit 13 bits shifted by 7.")
    return AtrlifLayer(
        weight=even(w_in * scale / 2**weight_exp),
        weight_rec=even(w_rec * scale / 2**rec_exp),
        bias=nearest(bias / 2**bias_exp),
        v_decay=decay_bits(name, "tau_v", cell).clamp(max=4095),
        theta_decay=decay_bits(name, "tau_theta", cell).clamp(max=4095),
        threshold=nearest(threshold).clamp(min=1),
        theta_step=nearest(step * rows * scale),
        reset=reset,
        weight_exp=weight_exp,
        weight_rec_exp=rec_exp,
        bias_exp=bias_exp,
        reset_exp=reset_exp,
        unit=UNIT * scale * rows,
    )


def _li(name: str, cell: LI, halvings: int) -> IntegratorLayer:
    """A leaky integrator as the readout; its rows have one scale: their voltages are compared."""
    weight = cell.w_in.double()
    scale = W_MAX / largest(name, weight) / 2**halvings
    v_decay = decay_bits(name, "tau_v", cell)
    return IntegratorLayer(
        weight=nearest(weight * scale) if halvings else even(weight * scale),  # odd ones fit up to 127
        weight_rec=None,
        bias=_native_bias(name, cell.b_v.double() * scale),
        i_decay=_current_bits(name, cell),
        v_decay=v_decay.clamp(max=4095),
        threshold=torch.full_like(v_decay, NEVER),
        unit=torch.full_like(v_decay, UNIT * scale),
    )


def integers(name: str, cell: Any, force: bool, halvings: int) -> IntegerLayer:
    """A cell in integers."""
    kind = exported_kind(name, cell)
    if kind is ALIF:
        layer = _alif(name, cell, force, halvings)
    else:
        layer = _li(name, cell, halvings) if kind is LI else _lif(name, cell, force)
    check_matrix(name, layer.weight, layer.weight_rec)
    return layer
