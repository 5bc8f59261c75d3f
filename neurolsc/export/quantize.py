"""Networks in Loihi's integers: quantised, run, back in floats, trained through rounding.

LIF with reset to zero has its voltage in CUBA's voltage; with reset by subtraction in CUBA's *current*, and the reset
is a synapse of -1 to itself. CubaLIF is CUBA, ALIF with a static reset is ATRLIF, LI is CUBA that never fires. Rows of
weights are divided by their neuron's threshold (ALIF: by its step of adaptation), which changes no spike.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from neurolsc.display import shapes
from neurolsc.export.fixed_point import (
    FULL_DECAY,
    LIMIT,
    NEVER,
    UNIT,
    AtrlifLayer,
    CubaLayer,
    Extremes,
    IntegerLayer,
    integer_steps,
)
from neurolsc.export.wrapped import bias_neurons, delayed, exportable, exported_kind, restore_bias_neurons
from neurolsc.metrics import is_binary
from neurolsc.network import Network, NetworkState, Run, as_network
from neurolsc.neurons import ALIF, LI, LIF, Cell
from neurolsc.neurons.parameters import set_value
from neurolsc.surroundings import original

W_MAX = 254  # the largest weight: 8 signed bits times 2
B_MAX = 4095  # the largest bias of CUBA: 13 signed bits
LONGEST = 4095 / FULL_DECAY  # the largest share of a state that a step retains, a time constant of 4096 steps
COARSE = 62  # fewest weight units per threshold of a LIF; with half as many rounding decides what fires
COARSE_ALIF = 16  # fewest of an ALIF, whose weights have an exponent
PLENTY = 256  # weight units per threshold of an ALIF from which on more are of no use


@dataclass(frozen=True)
class IntegerRun:
    """What :meth:`QuantizedNetwork.run` returns."""

    logits: Tensor  # integer readout at every step (T, B, C), in units of the readout's scale
    spikes: tuple[Tensor, ...]  # of each layer (T, B, M), without bias neurons; an integrator has its voltages here
    # of each layer, and last of a linear readout, whose v is the sum of its logits over time
    extremes: tuple[Extremes, ...]

    def __repr__(self) -> str:
        return f"IntegerRun({shapes('TB', logits=self.logits, spikes=self.spikes)})"


@dataclass(frozen=True)
class QuantizedNetwork:
    """A network in integers. Its last layer is an integrator, or sends its spikes to a linear readout."""

    layers: tuple[IntegerLayer, ...]
    readout: Tensor  # integer weights (C, M of the last layer); (0, M) after an integrator: logits are its voltages
    readout_scale: float  # integer units per float unit of the readout
    bias_neurons: tuple[int, ...]  # how many neurons at the end of each layer fire at every step to stand for biases
    # Blank steps that `run` adds after the input. A network with layer_delay=0 needs as many as it has layers, as
    # its layer l spikes l steps later on the chip; `run` shifts spikes and logits back. Else 0.
    latency: int = 0

    def __repr__(self) -> str:
        sizes = [self.n_in, *(layer.size for layer in self.layers)]
        if not self.integrates:
            sizes.append(len(self.readout))
        return f"QuantizedNetwork({' -> '.join(map(str, sizes))})"

    @property
    def integrates(self) -> bool:
        """True if the last layer is an integrator."""
        return getattr(self.layers[-1], "integrates", False)

    @property
    def n_in(self) -> int:
        """Number of inputs."""
        return self.layers[0].weight.shape[1]

    @torch.no_grad()
    def run(self, x: Tensor) -> IntegerRun:
        """Run over time.

        Args:
            x: input spikes (T, B, n_in), 0 or 1, any dtype.

        Returns:
            Logits and spikes of each layer at the T steps of the input; and the largest integers, blank steps included.

        Raises:
            ValueError: if x has another shape or other values: a graded spike has no counterpart.
        """
        spikes_of_steps: list[tuple[Tensor, ...]] = []
        extremes = [Extremes()] * len(self.layers)
        for step in integer_steps(self.layers, self.padded(x)):
            spikes_of_steps.append(step.spikes)
            extremes = [so_far | Extremes.of(now) for so_far, now in zip(extremes, step.values, strict=True)]
        spikes = [torch.stack(layer) for layer in zip(*spikes_of_steps, strict=True)]
        logits = self.logits(spikes[-1])
        if not self.integrates:  # on the chip a linear readout adds up its logits over time
            total = UNIT * logits.cumsum(0).abs()
            extremes.append(Extremes(v=int(total.max()), overflows=int((total >= LIMIT).sum())))
        shown = []
        for i, (layer, hidden) in enumerate(zip(spikes, self.bias_neurons, strict=True), start=1):
            late = i if self.latency else 0
            shown.append(self.on_time(layer, late)[:, :, : layer.shape[2] - hidden])
        return IntegerRun(self.on_time(logits, self.latency), tuple(shown), tuple(extremes))

    def padded(self, x: Tensor) -> Tensor:
        """Return the input (T, B, n_in) of :meth:`run` in its own dtype, with `latency` blank steps after it.

        ValueError if its shape does not fit, or a value is neither 0 nor 1.
        """
        if x.ndim != 3 or x.shape[2] != self.n_in or 0 in x.shape:
            raise ValueError(f"input spikes must have shape (T, B, {self.n_in}) with T, B >= 1, got {tuple(x.shape)}.")
        if not is_binary(x):
            other = x[(x != 0) & (x != 1)][0].item()
            raise ValueError(f"input spikes must be 0 or 1, got {other:g}: graded spikes are not supported.")
        return pad(x.to(self.readout.device), (0, 0, 0, 0, 0, self.latency))

    def logits(self, last: Tensor) -> Tensor:
        """Return the logits (T, B, C) of the spikes (T, B, M) of the last layer, or of an integrator's voltages."""
        if self.integrates:
            return last
        return last @ self.readout.T

    def on_time(self, values: Tensor, late: int) -> Tensor:
        """Return the values that belong to the T steps of the input, from values that come `late` steps late.

        Args:
            values: values of all steps (T + latency, ...).
            late: how many steps late they come, at most the latency.

        Returns:
            The values (T, ...).
        """
        return values[late : len(values) + late - self.latency]


@torch.no_grad()
def quantize(network: Network, calibration: Tensor | None = None, *, force: bool = False) -> QuantizedNetwork:
    """Turn a network into integers.

    Args:
        network: LIF, CubaLIF and ALIF layers and at the end a Linear readout or an LI, or the same of
            :func:`neurolsc.wrap`, which makes a network of a module. With ``layer_delay=1`` the readout has no bias;
            with 0 the layers get a delay, as in :func:`neurolsc.export.delayed`.
        calibration: samples (T, B, n_in), 0 or 1. With them an ALIF and an LI get fewer integer units per float unit
            until their states use at most half of their range, and so does a readout whose sums overflow; a layer that
            still overflows is refused. Fewer units make thresholds coarser, but not the weights of an ALIF.
        force: accept fewer weight units per threshold than 62 (of an ALIF 16, and half as many for each time that the
            calibration data halve its units, which the report of :func:`neurolsc.export.to_netx` then says).

    Returns:
        The integers.

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
    network = as_network(network)
    if calibration is None:
        return _rounded(network, force)
    halvings, quantized, extremes = _fitted(network, calibration, force)
    for i, e in enumerate(extremes[: len(halvings)], start=1):  # without those of a linear readout
        if e.overflows:
            raise ValueError(
                f"layer {i}: on the calibration data {e.overflows} integers overflow; the largest input of a step is {e.drive} "
                f"units (of 32767), current {e.u}, voltage {e.v}, threshold {e.theta} (of 2^23 = {LIMIT} each): train with "
                "smaller weights or fewer spikes."
            )
    if not quantized.integrates and extremes[-1].overflows:  # coarser, so that the readout's sums use half of the range
        return _rounded(network, force, halvings, readout_scale=quantized.readout_scale * LIMIT / 2 / extremes[-1].v)
    return quantized


@torch.no_grad()
def _fitted(
    network: Network, calibration: Tensor, force: bool
) -> tuple[tuple[int, ...], QuantizedNetwork, tuple[Extremes, ...]]:
    """Halve the `unit` of layers until their states use at most half of their range on the calibration data.

    Returns:
        For each layer how often its `unit` was halved (0 but for ALIF and LI); the integers; and the extremes of their
        run, of each layer and of a linear readout.
    """
    halvings = [0] * len(network.cells)
    quantized = _rounded(network, force)
    while True:
        extremes = quantized.run(calibration).extremes
        trial = []
        for halved, extreme in zip(halvings, extremes, strict=False):  # those of a linear readout, if any, are left out
            # as many halvings more as bring the reach to a half; none where it is a half or less
            trial.append(halved + math.ceil(math.log2(2 * max(extreme.reach, 0.5))))
        coarser = _rounded(network, force, trial)
        changed = False
        for i, (old, new) in enumerate(zip(quantized.layers, coarser.layers, strict=True)):
            if not torch.equal(old.unit, new.unit):  # they are equal where `unit` is fixed, or at its limit
                halvings[i] = trial[i]
                changed = True
        if not changed:
            return tuple(halvings), quantized, extremes
        quantized = coarser


def _rounded(
    network: Network, force: bool, halvings: Sequence[int] | None = None, readout_scale: float = math.inf
) -> QuantizedNetwork:
    """Round a network to integers.

    Args:
        network: the network, as for :func:`quantize`.
        force: accept few weight units per threshold.
        halvings: for each layer how often its `unit` is halved; None: never.
        readout_scale: largest number of integer units per float unit of the readout.

    Raises:
        TypeError: as :func:`quantize`.
        ValueError: as :func:`quantize`.
    """
    own = exportable(network)
    chip = delayed(own)  # with bias neurons, if own has biases and no delay
    if getattr(chip.readout, "bias", None) is not None:
        raise ValueError(
            "the readout has a bias, which a sum of spikes cannot hold: train with readout_bias=False, or export the network "
            "with layer_delay=0."
        )
    layers: list[IntegerLayer] = []
    cell: Any
    for i, (cell, halved) in enumerate(zip(chip.cells, halvings or [0] * len(chip.cells), strict=True), start=1):
        name = f"layer {i}"
        integers = _cuba
        if exported_kind(cell) is ALIF:
            integers = _alif
        layers.append(integers(name, cell, force, halved))
        check_matrix(name, layers[-1].weight, layers[-1].weight_rec)
    if chip.cells[-1].integrator:  # its voltages are the logits
        scale = layers[-1].unit[0].item()
        readout = layers[-1].weight.new_zeros(0, chip.n_out)
    else:
        w = chip.readout.get_parameter("weight").double()
        scale = min(readout_scale, W_MAX / largest("the readout", w))
        readout = even(w * scale)
        check_matrix("the readout", readout)
    return QuantizedNetwork(
        layers=tuple(layers),
        readout=readout,
        readout_scale=scale,
        bias_neurons=tuple(bias_neurons(cell) for cell in chip.cells),
        latency=0 if own.layer_delay else len(layers),
    )


# rounding, through which gradients pass


def nearest(x: Tensor) -> Tensor:
    """Round to integers; gradients pass unchanged (straight through)."""
    return x + (x.round() - x).detach()


def even(x: Tensor) -> Tensor:
    """Round to even integers; gradients pass unchanged."""
    return x + (2 * (x / 2).round() - x).detach()


def trained(cell: Cell, values: Tensor) -> Tensor:
    """Return values of a cell's neurons (n_hidden, ...), those of its bias neurons, the last ones, without gradient."""
    count = bias_neurons(cell)
    if not count:
        return values
    return torch.cat((values[:-count], values[-count:].detach()))


def decay_bits(name: str, what: str, cell: Any) -> Tensor:
    """Return the decay in 12 bits (n,), 4096 (1 - exp(-1 / tau)), rounded, 1 to 4096.

    Args:
        name: the layer, for the ValueError if a time constant is longer than 4096 steps.
        what: the time constant, ``"tau_v"``, ``"tau_i"`` or ``"tau_theta"``.
        cell: the cell that has it.
    """
    tau = trained(cell, getattr(cell, what))
    retention = torch.exp(-1 / tau.double())
    if (retention > LONGEST).any():
        raise ValueError(f"{name}: {what} is {tau.max():g} steps, but a decay has 12 bits, for at most 4096 steps.")
    return nearest(FULL_DECAY * (1 - retention)).clamp(min=1)


def largest(name: str, *weights: Tensor) -> float:
    """Return the largest modulus of all weights of some matrices; ValueError if all weights are 0."""
    peak = max(w.detach().abs().max().item() for w in weights)
    if not peak:
        raise ValueError(f"{name}: all weights are zero.")
    return peak


def check_matrix(name: str, *weights: Tensor | None) -> None:
    """Refuse the matrices of one synapse memory, if programs that read the file would change their weights.

    That happens if no weight of theirs is positive, and the smallest is minus a power of 2.
    """
    low = min(int(w.min()) for w in weights if w is not None)
    if all(int(w.max()) <= 0 for w in weights if w is not None) and (-low).bit_count() == 1:
        raise ValueError(
            f"{name}: no weight is positive and the smallest is {low}, a power of 2, which readers change."
        )


def _exponent(value: float, limit: int) -> int:
    """Return the fewest bits by which a value >= 0 must be shifted right to lie within a limit."""
    if value:
        return max(0, math.ceil(math.log2(value / limit)))
    return 0


def _check_units(name: str, units: int, fewest: int) -> None:
    """Refuse a threshold, in weight units, that exceeds 17 bits or is so low that rounding decides what fires.

    The largest weight sets the unit: small weights make a threshold large, large ones make it small. `fewest` is the
    number of units wanted; ``force=True`` lowers it.
    """
    if units > NEVER:  # the largest threshold that the chip holds
        raise ValueError(f"{name}: a threshold of {units} weight units exceeds 17 bits: its weights are too small.")
    if units < fewest:
        raise ValueError(
            f"{name}: large weights leave {units} weight units per threshold, wanted {fewest} or more: train with smaller "
            "weights, or give force=True."
        )


# cells in integers


def _cuba(name: str, cell: Any, force: bool, halvings: int) -> CubaLayer:
    """Round a LIF, a CubaLIF with reset to zero, or an LI.

    Rows of weights are divided by their neuron's threshold and then share one scale. So do the rows of an LI, as the
    voltages of its neurons are compared with each other.

    Args:
        name: the layer, for errors.
        cell: the cell.
        force: accept few weight units per threshold.
        halvings: how often the `unit` of an LI is halved; that of other cells is fixed.
    """
    integrates = isinstance(cell, LI)
    leak = decay_bits(name, "tau_v", cell)
    if integrates:  # it has no threshold
        theta = torch.ones_like(leak)
    else:
        theta = cell.theta.double()
    w_in = trained(cell, cell.w_in).double() / theta.unsqueeze(1)
    if integrates:
        w_rec = w_in.new_zeros(len(w_in), len(w_in))
    else:
        w_rec = trained(cell, cell.w_rec).double() / theta.unsqueeze(1)
    # Share of CUBA's current that a step retains. Where it is not 0 a bias has no place: CUBA adds it to the voltage,
    # but in our cell it acts on the current.
    retained = torch.zeros_like(leak)
    i_decay = torch.full_like(leak, FULL_DECAY)
    v_decay = leak.clamp(max=4095)  # 12 bits
    subtracts = not integrates and cell.reset.name != "zero"
    if subtracts:  # CUBA resets its voltage to zero: the LIF's voltage is CUBA's current, its reset a synapse of -1
        retained = cell.decay_v
        i_decay = leak
        v_decay = torch.full_like(leak, 4095)
        w_rec = w_rec - torch.eye(len(theta)).to(w_rec)
    elif hasattr(cell, "tau_i"):
        retained = cell.decay_i
        i_decay = decay_bits(name, "tau_i", cell)
    scale: Any = W_MAX / largest(name, w_in, w_rec)
    bias_peak = (cell.b_v.detach().double() / theta).abs().max().item()  # in thresholds
    if bias_peak * scale > B_MAX:  # coarser, so that the bias fits
        scale = B_MAX / bias_peak
        fewest = 1 if force else COARSE
        if scale < fewest and not integrates:
            raise ValueError(
                f"{name}: a bias of {bias_peak:.3g} thresholds does not fit 13 bits with {fewest} or more weight units "
                "per threshold."
            )
    if integrates:
        scale /= 2**halvings
    else:  # the threshold is `scale` units, a whole number
        scale = math.floor(scale)
        if subtracts:  # the synapse of the reset is -scale, and weights are even
            scale -= scale % 2
            if scale.bit_count() == 1:  # a power of 2, as the smallest weight of a matrix of one sign, misleads readers
                scale -= 2
        _check_units(name, scale, 1 if force else COARSE)
    bias = nearest(cell.b_v.double() * scale / theta)
    if bias[retained > 1e-6].any():  # a share of 1e-6 or less is as good as none
        raise ValueError(
            f"{name}: a bias needs a LIF with reset to zero, an ALIF, or layer_delay=0, where a neuron of its own brings it."
        )
    round_weights = even
    if integrates and halvings:  # weights are then at most 127, and such may be odd
        round_weights = nearest
    return CubaLayer(
        weight=round_weights(w_in * scale),
        weight_rec=even(w_rec * scale) if w_rec.any() else None,
        bias=bias,
        i_decay=i_decay,
        v_decay=v_decay,
        threshold=torch.full_like(leak, NEVER if integrates else scale),
        integrates=integrates,
        unit=UNIT * scale / theta,
    )


def _alif(name: str, cell: ALIF, force: bool, halvings: int) -> AtrlifLayer:
    """Round an ALIF with static reset and positive adaptation.

    At a spike the chip's threshold rises by one step, the same for all neurons of a layer, and then decays; that of an
    ALIF decays first. So each neuron's rise is divided by its decay, and its row of weights by that.

    Args:
        name: the layer, for errors.
        cell: the cell.
        force: accept few weight units per threshold.
        halvings: how often the `unit` is halved, as far as that leaves weights and step their resolution.
    """
    if not (cell.adaptation > 0).all():
        raise ValueError(
            f"{name}: adaptation must be positive everywhere, got {cell.adaptation.min():g}: a threshold that falls can "
            "never stop its neuron from firing. Train neurolsc.ALIFPositive (--cell ALIFPositive), whose is positive."
        )
    rest = cell.theta_rest.double()
    # clamped to the least that a threshold retains on the chip, whose decay is at most 4095 of 4096
    step = cell.adaptation.double() / cell.decay_theta.double().clamp(min=1 / FULL_DECAY)
    rows = 1 / step.detach()  # factors of the rows of weights, in units of the step
    w_in = cell.w_in.double() * rows.unsqueeze(1)
    w_rec = cell.w_rec.double() * rows.unsqueeze(1)

    # `scale` is the number of weight units per step of adaptation. It begins at `full`, where the larger matrix uses
    # its 8 bits, and is doubled, as exponents allow,
    # - until the lowest threshold has COARSE_ALIF units,
    # - and until the smaller matrix uses its 8 bits, or the highest threshold has PLENTY units,
    # - but no further than the highest threshold has 17 bits.
    # Then it is halved `halvings` times, but not below `full`, and not below COARSE_ALIF.
    peaks = [largest(name, w_in), w_rec.detach().abs().max().item()]
    low = (rest.detach() * rows).min().item()  # thresholds in steps of adaptation
    high = (rest.detach() * rows).max().item()
    full = W_MAX / max(peaks)
    wanted = max(COARSE_ALIF / low, min(W_MAX / min(peak for peak in peaks if peak), PLENTY / high))
    doublings = min(math.ceil(math.log2(wanted / full)), math.floor(math.log2(NEVER / high / full)))
    fewest = min(doublings, math.ceil(math.log2(COARSE_ALIF / full)))
    scale = math.floor(full * 2 ** max(0, fewest, doublings - halvings))
    if scale < 1:
        raise ValueError(
            f"{name}: the step of the threshold rounds to 0: the adaptation is too small for the weights; "
            "train from an initialisation that leaves it, such as LayerwiseScaling()."
        )
    weight_exp = _exponent(peaks[0] * scale, W_MAX)
    rec_exp = _exponent(peaks[1] * scale, W_MAX)
    threshold = rest * rows * scale
    if force:
        enough = 1
    else:
        enough = max(1, COARSE_ALIF >> halvings)  # each halving also halves the units of thresholds
    for units in (threshold.min(), threshold.max()):
        # after halvings a threshold that rounds to 0 is taken as 1, below
        _check_units(name, max(round(units.item()), 1 if halvings else 0), enough)
    reset_exp = _exponent(threshold.max().item(), 255)  # 8 bits, as all resets of a layer have one sign
    reset = nearest(threshold / 2**reset_exp).clamp(min=1)
    # a reset that is rounded up too far: more than the threshold by half of what the threshold is after a spike
    if (reset * 2**reset_exp - threshold > (threshold + scale) / 2).any():
        raise ValueError(
            f"{name}: resting thresholds, in steps of adaptation, reach from {threshold.min() / scale:g} to "
            f"{threshold.max() / scale:g}: too far apart for the 8 bits of the reset."
        )
    bias = UNIT * cell.b_v.double() * rows * scale
    largest_bias = bias.abs().max().item()
    bias_exp = _exponent(largest_bias, B_MAX)
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


# back to floats, and training


@torch.no_grad()
def dequantize(network: Network, quantized: QuantizedNetwork) -> Network:
    """Return the float network with the parameters of the integer network, in float64.

    Its spectral radii are those of the exported network. It differs from the integer network in three ways: no state is
    rounded or overflows; an ALIF fires above its threshold only, not at it; and its reset subtracts the resting
    threshold itself, which the chip rounds to 8 bits.

    Args:
        network: the network that was quantised.
        quantized: the integers that :func:`quantize` returned for it.

    Returns:
        A copy with ``layer_delay=1``, as of :func:`neurolsc.export.delayed`.
    """

    def time_constant(decay: Tensor) -> Tensor:
        """Return tau in steps (n,). A decay of 4096 retains 0; as tau must be positive, e^-20 stands for that 0."""
        return -1 / (1 - decay / FULL_DECAY).clamp(min=2e-9).log()  # 2e-9 is e^-20

    floats = copy.deepcopy(delayed(exportable(network))).double()
    cell: Any
    layer: Any
    for cell, layer in zip(floats.cells, quantized.layers, strict=True):
        scale = layer.unit / UNIT  # weight units per float unit
        # CUBA resets its voltage to zero. A LIF that subtracts is therefore CUBA's current, with the current's decay.
        subtracts = isinstance(cell, LIF) and cell.reset.name != "zero"
        cell.tau_v = time_constant(layer.i_decay if subtracts else layer.v_decay)
        cell.w_in.copy_(layer.weight * 2**layer.weight_exp / scale.unsqueeze(1))
        if layer.weight_rec is not None:
            cell.w_rec.copy_(layer.weight_rec * 2**layer.weight_rec_exp / scale.unsqueeze(1))
        if isinstance(layer, AtrlifLayer):
            cell.b_v.copy_(layer.bias * 2**layer.bias_exp / layer.unit)  # ATRLIF's bias is in state units
            cell.tau_theta = time_constant(layer.theta_decay)
            cell.theta_rest = layer.threshold / scale
            # on the chip a threshold rises before it decays, in an ALIF after it
            set_value(cell, "adaptation", layer.theta_step * (1 - layer.theta_decay / FULL_DECAY) / scale)
            continue
        cell.b_v.copy_(layer.bias / scale)  # CUBA's bias is in weight units
        if hasattr(cell, "tau_i"):
            cell.tau_i = time_constant(layer.i_decay)
        if isinstance(cell, LIF):
            cell.theta.copy_(layer.threshold / scale)
        if subtracts:  # a LIF resets itself: without the synapse of -threshold that does so on the chip
            cell.w_rec.add_(torch.diag(cell.theta))
    if not quantized.integrates:  # after an integrator the readout is the identity
        floats.readout.get_parameter("weight").copy_(quantized.readout / quantized.readout_scale)
    return floats


class QuantizationAware(Network):
    """A network that runs in Loihi's integers and is trained in floats.

    It shares cells and readout with the original network, and ``neurolsc.train`` and ``neurolsc.evaluate`` take it as
    any other. Every run quantises the parameters anew and steps the integer equations; gradients pass through rounding
    (straight through), and spikes have the cells' surrogate gradient. Resets pass no gradient, except a LIF's reset by
    subtraction, which is one of the recurrent weights. A few epochs win back most of what rounding costs.

    Args:
        network: what :func:`quantize` accepts, with ``layer_delay=1``. For a network without the delay, or
            ``neurolsc.wrap(module)``, give what :func:`neurolsc.export.delayed` makes of it, and export that one: it is
            a copy.
        calibration: samples (T, B, n_in), by which the units of the layers are chosen as in :func:`quantize`.
        force: accept fewer weight units per threshold, as in :func:`quantize`.

    Raises:
        ValueError: as :func:`quantize`; also in a run, once training has taken a parameter out of what integers can
            express.
        TypeError: as :func:`quantize`.
    """

    def __init__(self, network: Network, calibration: Tensor | None = None, *, force: bool = False) -> None:
        network = original(network, parallel=False)
        if not isinstance(network, Network):
            raise TypeError(
                f"network must be a neurolsc.Network, got {type(network).__name__}: of a module train QuantizationAware("
                "tuned) with tuned = delayed(neurolsc.wrap(module)), a copy in cells of neurolsc, and export tuned."
            )
        if network.layer_delay != 1:
            raise ValueError(
                "the network has layer_delay=0, but on the chip each layer reads a step late: train QuantizationAware("
                "delayed(network)), of neurolsc.export, in its place. delayed makes a copy."
            )
        super().__init__(network.cells, network.readout)  # shared: training this trains `network`
        self.force = force
        _rounded(network, force)  # only for its errors, if the chip's integers cannot hold the network
        self.halvings = None  # for each layer how often its `unit` is halved so that its states fit; None: never
        if calibration is not None:
            self.halvings, _, _ = _fitted(network, calibration, force)

    def run(self, x: Tensor, states: NetworkState | None = None, *, mask: Tensor | None = None) -> Run:
        """Run over time in integers, from rest, on spikes x (T, B, n_in), 0 or 1.

        Returns:
            Logits in float units, spikes, and in place of a last state the state at rest.

        Raises:
            ValueError: if x is not 0 or 1, or there is a state or mask.
        """
        if states is not None or mask is not None:
            raise ValueError("an integer run starts at rest and has no mask.")
        for cell in self.cells:
            restore_bias_neurons(cell)
        quantized = _rounded(self, self.force, self.halvings)
        surrogates = [getattr(cell, "spike", torch.zeros_like) for cell in self.cells]  # an LI has none
        steps = integer_steps(quantized.layers, quantized.padded(x), surrogates)
        spikes = [torch.stack(layer) for layer in zip(*(step.spikes for step in steps), strict=True)]
        return Run(
            quantized.logits(spikes[-1]) / quantized.readout_scale, tuple(spikes), self.initial_states(x.shape[1])
        )
