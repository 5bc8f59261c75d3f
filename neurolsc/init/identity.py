"""Upper layers that begin by passing on the spikes that they read, plus a part of their drawn weights."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neurolsc.init.base import (
    Initialiser,
    InitReport,
    Layer,
    LayerReport,
    by_neuron,
    first_input,
    generator,
    register,
    set_nonzero,
)
from neurolsc.init.relay import recurrence_share
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import Cell, WeightMatrix, is_frozen
from neurolsc.stability.conditions import NO_SURROGATE, Finding, surrogate_fault, surrogate_slope
from neurolsc.stability.pretrain import put_back
from neurolsc.stability.scale import layer_inputs, rate, scale_to_rate, steps_from_rest
from neurolsc.stability.transitions import Transitions, stacked
from neurolsc.validation import number, whole

# Spikes that a neuron reads within its memory, N r sum_t h(t) / theta. One step of Adam moves the voltage by this many
# learning rates, in thresholds: with 9 and a learning rate of 0.01, by a tenth of the threshold. Outputs that spike
# bear no more: the first steps push all of them to silence or to a spike in every step, where no gradient is left.
# Outputs that integrate have no such ends, and more spikes carry more.
SPIKES_OF_A_SPIKING_OUTPUT = 9.0
SPIKES_OF_AN_INTEGRATOR = 30.0
# Firing rates that are chosen. Below the lowest a layer of 64 neurons sends a few spikes in a whole sample, and layers
# of 1,000 that fire 0.05 as they are built learn no better at 0.01. Above the highest, neurons begin to fire in most of
# the steps that they remember.
LOWEST_OF_A_SPIKING_OUTPUT = 0.01
LOWEST_OF_AN_INTEGRATOR = 0.05
HIGHEST_RATE = 0.15
LONGEST_MEMORY = 100  # steps of the impulse response that are summed
THRESHOLDS_REACH = 1e4  # largest factor of thresholds
PASSED_ON = 0.95  # share of its spikes that an identity layer must pass on; else it keeps its drawn weights
CLOSEST = 0.02  # least distance from the threshold at a spike of an identity layer, in thresholds
BOUND_ROUNDS = 3  # of bounding the recurrence and scaling the thresholds again
POINT_SAMPLES = 4  # samples on which the recurrent current is measured


@register
@dataclass(frozen=True)
class Identity(Initialiser):
    r"""Upper layers begin as the identity, plus a part of their drawn weights, at a low firing rate.

    .. math:: W_{in, l} = (1 + m_l)\, \mathrm{diag}(\vartheta_l) + d\, W_{in, l}^{drawn}, \quad
        W_{rec, l} = -\mathrm{diag}(r_l) + d\, c\, W_{rec, l}^{drawn}

    With d = 0 each neuron spikes when the neuron that it reads does,

    .. math:: v[t, l] = (1 + m_l)\, \vartheta_l\, z[t', l-1], \quad z[t, l] = z[t', l-1]

    where r is the voltage that is left one step after a spike. A layer without recurrent weights gets the margin m that
    leaves nothing; elsewhere m is the distance at which the surrogate's derivative is a quarter of its largest, at most
    one threshold. :math:`W_{in}` is divided by the part of a current that a voltage takes.

    The lowest layers keep their drawn weights; their recurrence is bounded and their thresholds are scaled to the
    rate. So is a layer that is narrower than the one below, or that would pass on less than 95 % of its spikes, as a
    neuron does that remembers, or that is a convolution. An output that spikes keeps weights and thresholds. Above the
    lowest layers biases begin at 0.

    A learning rate acts on a neuron by the spikes that it reads within its memory: one step of Adam moves the voltage
    by as many learning rates. So by default the rate is the one at which that number is k,

    .. math:: r = k\, \vartheta \Big/ \Big(N \sum_t h[t]\Big), \quad r_0 \le r \le 0.15

    with N neurons in the layer below and the voltage h[t] after an input of 1 at t = 0: k is 9 where the output spikes,
    as too large steps silence or saturate it, and 30 where it integrates or is linear; :math:`r_0` is 0.01 and 0.05.

    Attributes:
        rate: spikes per neuron and step; 0: chosen as above.
        drawn: d, the part of the drawn weights that is kept.
        lowest: how many layers keep their drawn weights.
        recurrence: c, a bound on the recurrent current of a layer with drawn weights, as a part of its input current.
        adaptation: factor on what spikes add to the thresholds of identity layers.

    Source: ours; after the identity as the initialisation of rate networks, through time (Le, Jaitly & Hinton,
    arXiv:1504.00941) and through depth (Zhao, Schäfer & Anandkumar, arXiv:2110.12661).
    """

    rate: float = 0.0
    drawn: float = 0.3
    lowest: int = 1
    recurrence: float = 0.2
    adaptation: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ValueError(f"rate must be spikes per neuron and step, in [0, 1), got {self.rate}.")
        number("drawn", self.drawn, zero_allowed=True)
        number("recurrence", self.recurrence, zero_allowed=True)
        number("adaptation", self.adaptation, zero_allowed=True)
        whole("lowest", self.lowest)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> InitReport:
        """Set all layers on the first batch, bottom up."""
        x = first_input(network, inputs)
        faults = [fault for i in network.spiking if (fault := surrogate_fault(network.cells[i], i))]
        for fault in faults:
            if fault.name == NO_SURROGATE:
                raise ValueError(str(fault))
        reports = []
        findings: list[Finding] = list(faults)
        with put_back(network), eval_mode(network), torch.no_grad():
            before = network.run(x).spikes
            for index, read in enumerate(layer_inputs(network, x)):
                layer = Layer(network, index)
                fired = before[index].ne(0).double().mean().item()
                report, found = self.set_layer(network, layer, read, fired, seed)
                reports.append(report)
                findings += found
        return InitReport(findings, layers=tuple(reports), title=str(self))

    def set_layer(
        self, network: Network, layer: Layer, read: Tensor, fired: float, seed: int
    ) -> tuple[LayerReport, list[Finding]]:
        """Set one layer on its input (T, B, n_in); what was done, and what is missed."""
        number_of_layer = layer.index + 1
        if why := self.left_alone(network, layer):
            return LayerReport(number_of_layer, "left", why), []
        if not read.any():
            silent = layer.finding("reads no spikes", "let the layer below fire")
            return LayerReport(number_of_layer, "left", "reads no spikes"), [silent]
        threshold = layer.resting_threshold().mean().item()
        if layer.index >= self.lowest:
            # At a low rate spikes are few: where drawn biases stay, they alone decide which neurons fire.
            zero_biases(layer)
        if layer.index == len(network.cells) - 1 and output_spikes(network):
            # A lower threshold would make the first steps larger, which silence or saturate outputs for good.
            fires = rate(layer.cell, read)
            return LayerReport(number_of_layer, "drawn", "output", fired, fires, threshold, threshold), []
        wanted = self.rate or self.chosen_rate(network, layer, read.shape[0])
        drawn = copy.deepcopy(layer.cell.state_dict())
        found = self.scale_drawn(layer, read, wanted, seed)
        done = "drawn"
        why = self.no_identity(layer, read)
        if not why:
            at_rate = copy.deepcopy(layer.cell.state_dict())
            scaled = layer.resting_threshold().mean().item()
            bounded = [matrix.weights.clone() for matrix in layer.recurrent]
            layer.cell.load_state_dict(drawn)
            passed = self.make_identity(layer, read, scaled, bounded)
            if passed >= PASSED_ON:
                done = "identity"
                found = []
            else:
                layer.cell.load_state_dict(at_rate)
                why = f"passes on only {passed:.0%}"
        after = layer.resting_threshold().mean().item()
        fires = rate(layer.cell, read)
        return LayerReport(number_of_layer, done, why, fired, fires, threshold, after), found

    # ---- decisions

    def left_alone(self, network: Network, layer: Layer) -> str:
        """Why a layer stays as it is; empty if it is to be set."""
        cell = layer.cell
        if cell.integrator:
            return "integrates"
        if layer.index not in network.spiking or cell.membrane() is None:
            return "sends no spikes"
        thresholds = cell.thresholds()
        if thresholds is None:
            return "thresholds unknown"
        if any(is_frozen(cell, name) for name in thresholds.names):
            return "frozen thresholds"
        if layer.normalised:
            return "normalised currents"
        return ""

    def no_identity(self, layer: Layer, read: Tensor) -> str:
        """Why a layer cannot begin as the identity; empty if it may."""
        if layer.index < self.lowest:
            return "lowest"
        if not layer.inputs:
            return "names no input weights"
        if any(matrix.weights.ndim > 2 for matrix in layer.matrices):
            return "convolution"
        if layer.cell.n_hidden < read.shape[-1]:
            return f"narrower: {layer.cell.n_hidden} of {read.shape[-1]}"
        return ""

    def chosen_rate(self, network: Network, layer: Layer, length: int) -> float:
        """The rate at which a neuron above reads 9 or 30 spikes within its memory, as the class says."""
        above = [index for index in network.spiking if index > layer.index]
        reader = Layer(network, above[0]) if above else layer
        response = reader.impulse_response(min(length, LONGEST_MEMORY)).clamp(min=0)
        memory = response.sum(0).mean().item()
        threshold = reader.resting_threshold().mean().item()
        spikes = SPIKES_OF_AN_INTEGRATOR
        lowest = LOWEST_OF_AN_INTEGRATOR
        if output_spikes(network):
            spikes = SPIKES_OF_A_SPIKING_OUTPUT
            lowest = LOWEST_OF_A_SPIKING_OUTPUT
        found = spikes * threshold / (layer.cell.n_hidden * max(memory, 1e-3))
        return min(max(found, lowest), HIGHEST_RATE)

    # ---- what is set

    def scale_drawn(self, layer: Layer, read: Tensor, wanted: float, seed: int) -> list[Finding]:
        """Bound the recurrence of a layer with drawn weights and scale its thresholds to a rate."""
        cell = layer.cell
        thresholds = cell.thresholds()
        assert thresholds is not None  # else the layer is left alone
        fires = scale_to_rate(cell, thresholds, read, wanted, reach=THRESHOLDS_REACH)
        for _ in range(BOUND_ROUNDS if layer.recurrent else 0):
            ratio = recurrence_share(points_of(cell, read, generator(seed, "points")))
            if ratio <= 1.05 * self.recurrence:
                break
            for matrix in layer.recurrent:
                set_nonzero(matrix, matrix.weights * self.recurrence / ratio)
            fires = scale_to_rate(cell, thresholds, read, wanted, reach=THRESHOLDS_REACH)
        if abs(fires / wanted - 1) <= 0.25:
            return []
        problem = f"fires {fires:.2g} spikes per neuron and step, not {wanted:.2g}"
        return [layer.finding(problem, "its rate moves in jumps; take a wider layer" if fires else "raise its weights")]

    def make_identity(self, layer: Layer, read: Tensor, scaled: float, bounded: list[Tensor]) -> float:
        """Make a layer the identity plus a part of what was drawn; the share of spikes that the identity passes on.

        `scaled` is the threshold at which the drawn layer fires at the rate, `bounded` its bounded recurrent weights.
        """
        inputs = [matrix.weights.clone() for matrix in layer.inputs]
        margin = self.lower_thresholds(layer, scaled)
        passed = best_identity(layer, read, margin)
        for matrix, weights in zip(layer.inputs, inputs, strict=True):
            matrix.set(matrix.weights + self.drawn * weights)
        for matrix, weights in zip(layer.recurrent, bounded, strict=True):
            matrix.set(matrix.weights + self.drawn * weights)
        return passed

    def lower_thresholds(self, layer: Layer, scaled: float) -> Tensor:
        """Lower thresholds until the surrogate of a neuron at rest passes a tenth of its most.

        They are not lowered below the one at which the drawn layer fires at the rate. Returns the margin by which a
        spike exceeds the threshold, in thresholds (n_hidden,).
        """
        thresholds = layer.cell.thresholds()
        assert thresholds is not None  # else the layer is left alone
        now = layer.resting_threshold().mean().item()
        distances = torch.cat([torch.zeros(1), torch.logspace(-3, 0, 601)]).to(**layer.cell.dtype_and_device) * now
        slope = surrogate_slope(layer.membrane, distances).mean(1).nan_to_num(0, 0, 0).clamp(min=0)
        quarter = distances[slope >= 0.25 * slope.max()][-1].item()
        tenth = distances[slope >= 0.1 * slope.max()][-1].item()
        wanted = min(now, max(tenth, scaled))
        rest = thresholds.rest()
        if rest is None:
            thresholds.scale(wanted / now)
        else:
            thresholds.scale(self.adaptation)
            thresholds.set_rest(torch.full_like(rest, wanted))
        return (quarter / layer.resting_threshold()).clamp(CLOSEST, 1)


# ---------------------------------------------------------------- the identity


def best_identity(layer: Layer, read: Tensor, margin: Tensor) -> float:
    """Set the weights of a layer to the identity; the share of its spikes that it has read and sends."""
    drawn = [matrix.weights.clone() for matrix in layer.recurrent]
    widest = torch.full_like(margin, 2.0)
    drive = 1 + margin
    if not layer.recurrent:
        drive = exact_drive(layer, drive)
    passed = set_identity(layer, read, drive, drawn)
    if passed >= PASSED_ON:
        return passed
    return set_identity(layer, read, widest, drawn)


def exact_drive(layer: Layer, otherwise: Tensor) -> Tensor:
    """The input weights, in thresholds, that leave no voltage one step after a spike, where there are such."""
    at_two = voltage_left(layer, torch.full_like(otherwise, 2.0))
    at_less = voltage_left(layer, torch.full_like(otherwise, 1.5))
    exact = 2 - 0.5 * at_two / (at_two - at_less)  # the voltage is linear in the drive, or 0 at both
    return torch.where((exact > 1 + CLOSEST) & (exact < 2), exact, otherwise)


def set_identity(layer: Layer, read: Tensor, drive: Tensor, drawn: Sequence[Tensor]) -> float:
    """Set the weights for a drive, in thresholds; the share of its spikes that the layer has read and sends."""
    cell = layer.cell
    left = voltage_left(layer, drive)
    for matrix, weights in zip(layer.recurrent, drawn, strict=True):
        matrix.set(weights)  # what is 0 in them is no connection, and stays
        set_nonzero(matrix, diagonal(matrix, -left))
    sent = cell.run(read, cell.initial_state(read.shape[1]))[0]
    wanted = read[..., torch.arange(cell.n_hidden, device=read.device) % read.shape[-1]]
    total = 0.5 * (sent.sum() + wanted.sum()).item()
    if total:
        return (sent * wanted).sum().item() / total
    return 0.0


def voltage_left(layer: Layer, drive: Tensor) -> Tensor:
    """The voltage one step after a spike, without recurrence, of input weights that are set, in thresholds."""
    cell = layer.cell
    first, second = layer.impulse_response(2).round(decimals=3)
    # A voltage may take a part of what it reads, such as 1/tau. Where a current lasts, it adds up.
    taken = torch.where((first > 0) & (second <= first), first, 1.0)
    for matrix in layer.inputs:
        set_nonzero(matrix, diagonal(matrix, drive * layer.resting_threshold() / taken))
    for matrix in layer.recurrent:
        matrix.set(torch.zeros_like(matrix.weights))
    rest = cell.initial_state(1)
    one = torch.ones(1, cell.n_in, **cell.dtype_and_device)
    fired = cell.update(one, cell.output(rest), rest)
    after = cell.update(0 * one, cell.output(fired), fired)
    return layer.membrane.voltage(after)[0].double().cpu()


def diagonal(matrix: WeightMatrix, values: Tensor) -> Tensor:
    """Weights by which neuron i reads input i, modulo their number, with the i-th value."""
    n_hidden, n_in = matrix.weights.shape
    chosen = torch.arange(n_hidden)[:, None] % n_in == torch.arange(n_in)
    return by_neuron(values, matrix) * chosen


def zero_biases(layer: Layer) -> None:
    """Set the biases of a layer's currents to 0; frozen ones stay."""
    for module in layer.cell.modules():
        currents = isinstance(module, nn.Linear | nn.modules.conv._ConvNd)
        if currents and module.bias is not None and module.bias.requires_grad:
            module.bias.zero_()


def output_spikes(network: Network) -> bool:
    """Whether what the loss reads are spikes: the last layer spikes, and the readout has no weights."""
    weights = any(True for _ in network.readout.parameters())
    return not weights and len(network.cells) - 1 in network.spiking


def points_of(cell: Cell, read: Tensor, draw: torch.Generator) -> Transitions:
    """All steps of a run of a layer, on some samples drawn at random."""
    some = torch.randperm(read.shape[1], generator=draw)[:POINT_SAMPLES].to(read.device)
    states = [before for _, before, _ in steps_from_rest(cell, read[:, some])]
    return Transitions(cell, read[:, some].flatten(0, 1), stacked(states), None, None)
