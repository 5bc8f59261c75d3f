"""From the floats of one layer to Loihi's integers: scale, rounding, and what cannot be expressed.

Rounding lets gradients pass and scales are constants to them: fine-tuning trains through these functions.
"""

import math

import torch
from torch import Tensor

from neurolsc.export.fixed_point import UNIT, AlifLayer, CubaLayer, Layer
from neurolsc.neurons import LIF, Cell
from neurolsc.neurons.alif import ALIF, ALIFPlus, ALIFPlusMinus, ALIFPositive

__all__ = ["W_MAX", "check_matrix", "even", "integer_layer", "largest"]

W_MAX = 254
"""largest weight: 8 signed bits times 2"""
RESET_MAX = 255
"""largest mantissa of an ALIF layer's resets: 8 bits, as they all have one sign"""
COARSE = 62
"""fewest weight units per threshold; with half as many rounding decides what fires"""
THRESHOLD_MAX = 2**17 - 1
LONGEST = 4095 / 4096
"""largest share of a state that is kept from one step to the next, a time constant of 4096 steps"""
ALIF_COARSE, PLENTY = 16, 256
"""the same for ALIF, whose weights have an exponent of their own: fewest for its lowest threshold, and how many for its highest are
more than enough, because the input of a step has 16 bits"""

POSITIVE = "Train neurolsc.ALIFPositive (--cell ALIFPositive), which keeps both positive, in place of ALIF+ or ALIF±."


def integer_layer(name: str, cell: Cell, force: bool, halvings: int = 0) -> tuple[Layer, list[str]]:
    """The integers of a cell, and remarks on them; arguments and errors as in :func:`neurolsc.export.quantize`."""
    if type(cell) not in (
        LIF,
        ALIFPlus,
        ALIFPlusMinus,
        ALIFPositive,
    ):  # one derived from these may compute something else
        raise TypeError(f"{name} is a {type(cell).__name__}; only LIF and ALIF layers can be exported.")
    assert isinstance(cell, LIF | ALIF)
    tau = cell.tau_v.detach().double()
    if (torch.exp(-1 / tau) > LONGEST).any():
        raise ValueError(f"{name}: tau_v is {tau.max():g} steps, but a decay has 12 bits, for at most 4096 steps.")
    layer = _alif(name, cell, force, halvings) if isinstance(cell, ALIF) else _lif(name, cell, force)
    check_matrix(name, *(w for w in (layer.weight, layer.weight_rec) if w is not None))
    remarks = []
    leak = (4096 * (1 - torch.exp(-1 / tau))).round()
    if leak.min() != leak.max():
        remarks.append(
            f"{name}: decays differ between neurons; the simulator takes them, the file format documents one per layer."
        )
    in_current = isinstance(cell, LIF) and cell.reset_name != "zero"  # whose decay may be 4096
    if leak.max() == 4096 and not in_current:
        remarks.append(f"{name}: a voltage without memory keeps 1/4096 of itself (vDecay 4095, the largest).")
    if isinstance(layer, AlifLayer):
        off = ((layer.reset * 2**layer.reset_exp - layer.threshold) / layer.threshold).abs().max().item()
        if off > 0.05:
            remarks.append(
                f"{name}: resting thresholds differ so much that 8 bits leave a reset {off:.0%} beside its threshold."
            )
    lost, units = tau.max().item() / UNIT, int(layer.threshold.min())
    if lost > 0.02 * units:
        remarks.append(
            f"{name}: at tau_v = {tau.max():.0f} steps rounding loses up to {lost:.1f} of the threshold's {units} units."
        )
    return layer, remarks


def _lif(name: str, cell: LIF, force: bool) -> CubaLayer:
    theta = cell.theta.double()
    if not (theta > 0).all():
        raise ValueError(f"{name}: thresholds must be positive, got {theta.min():g}.")
    rows = 1 / theta.unsqueeze(1)
    w_in, w_rec, b = cell.w_in.double() * rows, cell.w_rec.double() * rows, cell.b_v.double() / theta
    leak = 4096 * (1 - cell.decay_v.double())
    if cell.reset_name == "zero":
        return _voltage_lif(name, w_in, w_rec, b, leak, theta, force)
    return _current_lif(name, w_in, w_rec, b, leak, theta, force)


def _voltage_lif(
    name: str, w_in: Tensor, w_rec: Tensor, b: Tensor, leak: Tensor, theta: Tensor, force: bool
) -> CubaLayer:
    """Reset to zero: v is the voltage, u has no memory."""
    scale = math.floor(W_MAX / largest(name, w_in, w_rec))
    threshold = torch.full_like(leak, _threshold(name, scale, COARSE, force))
    bias = _round(b * scale)
    if (bias < -4096).any() or (bias > 4095).any():
        raise ValueError(f"{name}: a bias of {_extreme(bias):.0f} weight units does not fit 13 bits (-4096 to 4095).")
    return CubaLayer(
        weight=even(w_in * scale),
        weight_rec=even(w_rec * scale) if w_rec.any() else None,
        bias=bias,
        i_decay=torch.full_like(leak, 4096),
        v_decay=_round(leak).clamp(1, 4095),
        threshold=threshold,
        unit=UNIT * scale / theta,
    )


def _current_lif(
    name: str, w_in: Tensor, w_rec: Tensor, b: Tensor, leak: Tensor, theta: Tensor, force: bool
) -> CubaLayer:
    """Reset by subtraction: u is the voltage, the reset is a synapse of -1 to itself, a bias one from an extra neuron."""
    w_rec = w_rec - torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    scale = min(W_MAX, math.floor(W_MAX / largest(name, w_in, w_rec, b)))
    scale -= scale % 2
    scale -= 2 * (scale.bit_count() == 1)  # one-sign matrices down to a power of 2 are where readers go wrong
    layer = CubaLayer(
        weight=even(w_in * scale),
        weight_rec=even(w_rec * scale),
        bias=torch.zeros_like(leak),
        i_decay=_round(leak).clamp(min=1),
        v_decay=torch.full_like(leak, 4095),
        threshold=torch.full_like(leak, _threshold(name, scale, COARSE, force)),
        unit=UNIT * scale / theta,
    )
    return _with_bias_neuron(layer, even(b * scale), scale) if b.any() else layer


def _with_bias_neuron(layer: CubaLayer, b: Tensor, scale: int) -> CubaLayer:
    """One neuron more, the last one, that fires at every step, with synapses of weight b to the others."""
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


def _alif(name: str, cell: ALIF, force: bool, halvings: int) -> AlifLayer:
    _check_alif(name, cell)
    kept, rest = cell.decay_theta.double(), cell.theta_rest.double()
    step = cell.adaptation.double() / kept
    rows = 1 / step.detach()  # the step is one number for the layer: rows are scaled until it is
    w_in, w_rec = cell.w_in.double() * rows.unsqueeze(1), cell.w_rec.double() * rows.unsqueeze(1)
    peaks = [largest(name, w_in), w_rec.detach().abs().max().item()]
    scale = _alif_scale(name, [peak for peak in peaks if peak], rest.detach() * rows, halvings)
    weight_exp, rec_exp = (_exponent(peak * scale, W_MAX) for peak in peaks)
    threshold = rest * rows * scale
    for units in (threshold.min(), threshold.max()):
        _threshold(name, max(round(units.item()), halvings > 0), max(1, ALIF_COARSE >> halvings), force)
    reset_exp = _exponent(threshold.max().item(), RESET_MAX)
    reset = _round(threshold / 2**reset_exp).clamp(min=1)
    if (reset * 2**reset_exp - threshold > (threshold + scale) / 2).any():  # beside the threshold after a spike
        raise ValueError(
            f"{name}: resting thresholds, in steps of adaptation, reach from {threshold.min() / scale:g} to "
            f"{threshold.max() / scale:g}: too far apart for the 8 bits of the reset."
        )
    bias = UNIT * cell.b_v.double() * rows * scale
    bias_exp = _exponent(bias.abs().max().item(), 4095)
    if bias_exp > 7:
        raise ValueError(f"{name}: a bias of {_extreme(bias):.0f} state units does not fit 13 bits shifted by 7.")
    return AlifLayer(
        weight=even(w_in * scale / 2**weight_exp),
        weight_rec=even(w_rec * scale / 2**rec_exp),
        bias=_round(bias / 2**bias_exp),
        v_decay=_round(4096 * (1 - cell.decay_v.double())).clamp(1, 4095),
        theta_decay=_round(4096 * (1 - kept)).clamp(min=1),
        threshold=_round(threshold).clamp(min=1),
        theta_step=_round(step * rows * scale),
        reset=reset,
        weight_exp=weight_exp,
        weight_rec_exp=rec_exp,
        bias_exp=bias_exp,
        reset_exp=reset_exp,
        unit=UNIT * scale * rows,
    )


def _check_alif(name: str, cell: ALIF) -> None:
    if cell.reset_name != "static":
        raise ValueError(
            f"{name}: an ALIF with reset={cell.reset_name!r} has no counterpart; train with reset='static'."
        )
    adaptation, rest, tau = (x.detach().double() for x in (cell.adaptation, cell.theta_rest, cell.tau_theta))
    if not (adaptation > 0).all():
        raise ValueError(
            f"{name}: adaptation must be positive everywhere, got {adaptation.min():g}: a layer has one step of its threshold, "
            f"and one that falls can never stop its neuron from firing. {POSITIVE}"
        )
    if not (rest > 0).all():
        raise ValueError(f"{name}: resting thresholds must be positive, got {rest.min():g}. {POSITIVE}")
    kept = torch.exp(-1 / tau)
    if (kept > LONGEST).any() or (4096 * (1 - kept)).round().max() > 4095:
        raise ValueError(
            f"{name}: tau_theta is {tau.min():g} to {tau.max():g} steps, but 12 bits hold 0.12 to 4096 steps."
        )


def _alif_scale(name: str, peaks: list[float], rest: Tensor, halvings: int) -> int:
    """Weight units per step of adaptation, the fewest, in powers of 2 times the larger matrix's full range, that are fine enough.

    That is: the lowest threshold has enough of them, and the smaller matrix its own full range, unless the highest threshold has
    plenty before, or leaves 17 bits. Then halved so many times, but never to less than that full range or enough units
    for the step.
    """
    scale = W_MAX / max(peaks)
    low, high = rest.min().item(), rest.max().item()
    wanted = max(ALIF_COARSE / low, min(W_MAX / min(peaks), PLENTY / high))
    doublings = min(math.ceil(math.log2(wanted / scale)), math.floor(math.log2(THRESHOLD_MAX / high / scale)))
    fewest = min(doublings, math.ceil(math.log2(ALIF_COARSE / scale)))
    scale = math.floor(scale * 2 ** max(0, fewest, doublings - halvings))
    if scale < 1:
        raise ValueError(
            f"{name}: the step of the threshold rounds to 0: the adaptation is too small beside the weights."
        )
    return scale


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
            f"{name}: no weight is positive and the smallest is {low}, a power of 2, which readers change silently."
        )


def largest(name: str, *weights: Tensor) -> float:
    """The largest modulus.

    Raises:
        ValueError: if all weights are zero.
    """
    peak = max(w.detach().abs().max().item() for w in weights)
    if not peak:
        raise ValueError(f"{name}: all weights are zero.")
    return peak


def even(x: Tensor) -> Tensor:
    """The nearest even integer; the gradient passes."""
    return x + (2 * (x / 2).round() - x).detach()


def _round(x: Tensor) -> Tensor:
    """The nearest integer; the gradient passes."""
    return x + (x.round() - x).detach()


def _exponent(value: float, limit: int) -> int:
    """The fewest bits by which a value must be shifted right to lie within a limit."""
    return max(0, math.ceil(math.log2(value / limit))) if value else 0


def _threshold(name: str, units: int, fewest: int, force: bool) -> int:
    if units > THRESHOLD_MAX:
        raise ValueError(
            f"{name}: a threshold of {units} weight units does not fit 17 bits: its weights are too small to fire."
        )
    if units < (1 if force else fewest):
        raise ValueError(
            f"{name}: large weights leave {units} weight units per threshold, and below {fewest} rounding decides what fires: "
            "train with smaller weights, or give force=True."
        )
    return units


def _extreme(x: Tensor) -> float:
    return x.detach().flatten()[x.detach().abs().argmax()].item()
