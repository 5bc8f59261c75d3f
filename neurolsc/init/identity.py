"""Upper layers that begin by passing on the spikes that they read, plus a part of their drawn weights."""

import copy
import math
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
from neurolsc.interop.sharing import shared_with
from neurolsc.network import Network
from neurolsc.neurons.cell import Cell
from neurolsc.neurons.weights import WeightMatrix, is_frozen, weight_matrices
from neurolsc.stability.conditions import NO_SURROGATE, Finding, surrogate_fault, surrogate_slope
from neurolsc.stability.scale import layer_inputs, rate, scale_to_rate, steps_from_rest
from neurolsc.stability.transitions import Transitions, flat, stacked, zeroed
from neurolsc.surroundings import eval_mode
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
# Of an identity layer:
CLOSEST = 0.02  # least distance of the voltage of a spike from the threshold, in thresholds
ROUNDING = 1e-3  # error that an impulse response may have from rounding: float32 near a resting voltage makes less
WIDEST = 2.0  # largest input weight, in thresholds: with more, what a subtracted threshold leaves would spike again
MARGIN = 0.25  # wanted derivative of the surrogate at a spike, as a share of its largest
AT_REST = 0.1  # wanted derivative at rest, as a share of the largest: with less, next to no gradient passes
BOUND_ROUNDS = 3  # most times that the recurrence is bounded and the thresholds are scaled again
POINT_SAMPLES = 4  # samples on which the recurrent current is measured


@register
@dataclass(frozen=True)
class Identity(Initialiser):
    r"""Upper layers begin as the identity, plus a part of their drawn weights, at a low firing rate.

    .. math:: W_{in, l} = (1 + m_l)\, \mathrm{diag}(\vartheta_l) + d\, W_{in, l}^{drawn}, \quad
        W_{rec, l} = -\mathrm{diag}(r_l) + d\, W_{rec, l}^{bounded}

    With d = 0 each neuron spikes when the neuron that it reads does,

    .. math:: v[t, l] = (1 + m_l)\, \vartheta_l\, z[t', l-1], \quad z[t, l] = z[t', l-1]

    where :math:`r_l` is the voltage that is left one step after a spike. A layer without recurrent weights gets the
    margin m that leaves nothing; elsewhere m is the distance at which the surrogate's derivative is a quarter of its
    largest, at most one threshold. :math:`W_{in}` and :math:`r_l` are divided by the part of a current that a voltage
    takes. :math:`W_{rec}^{bounded}` is the drawn matrix, scaled down until the recurrent current is at most c times the
    input current.

    The lowest layers keep their drawn weights; their recurrence is bounded and their thresholds are scaled to the
    rate. The same is done to an upper layer that is a convolution, that is narrower than the one below, or that as the
    identity would pass on less than 95 % of its spikes, as neurons with a long memory do. An output
    that spikes keeps weights and thresholds. Above the lowest layers biases begin at 0. Of a layer that shares weights
    with another layer or the readout the thresholds alone are scaled.

    A learning rate acts on a neuron by the spikes that it reads within its memory: one step of Adam moves the voltage
    by as many learning rates. So by default the rate is the one at which that number is k,

    .. math:: r = k\, \vartheta \Big/ \Big(N \sum_t h[t]\Big), \quad r_0 \le r \le 0.15

    for a neuron above that reads N neurons of the layer, with the voltage h[t] after an input of 1 at t = 0. Where the
    output spikes, k is 9, as too large steps silence or saturate it, and :math:`r_0` is 0.01; where it integrates or is
    linear, k is 30 and :math:`r_0` is 0.05.

    Attributes:
        rate: spikes per neuron and step; 0: chosen as above.
        drawn: d, the part of the drawn weights that is kept.
        lowest: how many layers keep their drawn weights.
        recurrence: c, a bound on the recurrent current of drawn weights, as a part of the layer's input current.
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
        reports = []
        findings: list[Finding] = []
        for index in network.spiking:
            fault = surrogate_fault(network.cells[index], index)
            if fault is None:
                continue
            if fault.name == NO_SURROGATE:  # nothing below it could be trained
                raise ValueError(str(fault))
            findings.append(fault)
        with eval_mode(network), torch.no_grad():
            before = network.run(x).spikes
            for index, layer_input in enumerate(layer_inputs(network, x)):
                layer = Layer(network, index)
                fired = before[index].ne(0).double().mean().item()
                report, found = self.set_layer(network, layer, layer_input, fired, seed)
                reports.append(report)
                findings += found
        return InitReport(findings, layers=tuple(reports), title=str(self))

    def set_layer(
        self, network: Network, layer: Layer, layer_input: Tensor, fired: float, seed: int
    ) -> tuple[LayerReport, list[Finding]]:
        """Set one layer in place.

        Args:
            network: the network.
            layer: one of its layers.
            layer_input: what it reads (T, B, n_in) now that the layers below are set.
            fired: its firing rate before the initialisation, for the report.
            seed: seed of the draw of samples.

        Returns:
            What was done to the layer, and findings on targets that it misses.
        """
        number_of_layer = layer.index + 1
        why = self.left_alone(network, layer)
        if why:
            return LayerReport(number_of_layer, "left", why), []
        if not layer_input.any():
            unread = layer.unread()
            return LayerReport(number_of_layer, "left", unread.problem), [unread]
        threshold = layer.resting_threshold().mean().item()
        if layer.index >= self.lowest and not layer.shares:
            # At a low rate spikes are few: where drawn biases stay, they alone decide which neurons fire.
            zero_biases(layer)
        if layer.index == len(network.cells) - 1 and output_spikes(network):
            # A lower threshold would make the first steps larger, which silence or saturate outputs for good.
            fires = rate(layer.cell, layer_input)
            return LayerReport(
                number_of_layer,
                "drawn",
                "output",
                rate_before=fired,
                rate_after=fires,
                threshold_before=threshold,
                threshold_after=threshold,
            ), []
        wanted = self.rate or self.chosen_rate(network, layer, layer_input.shape[0])
        as_drawn = copy.deepcopy(layer.cell.state_dict())
        found = self.scale_drawn(layer, layer_input, wanted, seed)
        done = "drawn"
        why = self.no_identity(layer, layer_input)
        if not why:
            # try the identity, from the weights as drawn; if it fails, go back to the drawn weights at the rate
            at_rate = copy.deepcopy(layer.cell.state_dict())
            threshold_at_rate = layer.resting_threshold().mean().item()
            bounded = [matrix.weights.clone() for matrix in layer.recurrent]
            layer.cell.load_state_dict(as_drawn)
            passed = self.make_identity(layer, layer_input, threshold_at_rate, bounded)
            if passed >= PASSED_ON:
                done = "identity"
                found = []
            else:
                layer.cell.load_state_dict(at_rate)
                why = f"passes on only {passed:.0%}"
        after = layer.resting_threshold().mean().item()
        fires = rate(layer.cell, layer_input)
        report = LayerReport(
            number_of_layer,
            done,
            why,
            rate_before=fired,
            rate_after=fires,
            threshold_before=threshold,
            threshold_after=after,
        )
        return report, found

    # ---- decisions

    def left_alone(self, network: Network, layer: Layer) -> str:
        """Return in words why a layer stays as it is; empty if it is to be set."""
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
        others = shared_with(network, layer.index, thresholds.names)
        if others:
            return f"shares thresholds with {' and '.join(others)}"
        if layer.normalised:
            return "normalised currents"
        return ""

    def no_identity(self, layer: Layer, layer_input: Tensor) -> str:
        """Return in words why a layer with an input (T, B, n_in) cannot begin as the identity; empty if it may."""
        if layer.index < self.lowest:
            return "lowest"
        if layer.shares:
            return f"shares weights with {' and '.join(layer.shares)}"
        if not layer.inputs:
            return "names no input weights"
        if any(matrix.weights.ndim > 2 for matrix in layer.matrices):
            return "convolution"
        if layer.cell.n_hidden < layer_input.shape[-1]:
            return f"narrower: {layer.cell.n_hidden} of {layer_input.shape[-1]}"
        return ""

    def chosen_rate(self, network: Network, layer: Layer, length: int) -> float:
        """Return the rate at which a neuron above reads 9 or 30 spikes within its memory, as the class says.

        `length` is the number of time steps, which bounds the memory. Above the last layer that spikes there are no
        such neurons: its own stand for them.
        """
        above = [index for index in spiking_layers(network) if index > layer.index]
        reader = layer
        if above:
            reader = Layer(network, above[0])
        n_read = layer.cell.n_hidden
        if above and reader.inputs:
            n_read = max(matrix.fan_in for matrix in reader.inputs)  # of a convolution, what its kernel covers
        response = reader.impulse_response(min(length, LONGEST_MEMORY)).clamp(min=0)
        memory = response.sum(0).mean().item()
        threshold = reader.resting_threshold().mean().item()
        spikes = SPIKES_OF_AN_INTEGRATOR
        lowest = LOWEST_OF_AN_INTEGRATOR
        if output_spikes(network):
            spikes = SPIKES_OF_A_SPIKING_OUTPUT
            lowest = LOWEST_OF_A_SPIKING_OUTPUT
        rate_of_spikes = spikes * threshold / (n_read * max(memory, 1e-3))  # a voltage may remember nothing
        return min(max(rate_of_spikes, lowest), HIGHEST_RATE)

    # ---- what is set

    def scale_drawn(self, layer: Layer, layer_input: Tensor, wanted: float, seed: int) -> list[Finding]:
        """Bound the recurrence of a layer with drawn weights and scale its thresholds to a rate, in place.

        Args:
            layer: the layer.
            layer_input: what it reads (T, B, n_in).
            wanted: the rate, in spikes per neuron and step.
            seed: seed of the draw of samples on which the recurrent current is measured.

        Returns:
            A finding if the rate is missed by more than a quarter, else nothing.
        """
        cell = layer.cell
        thresholds = cell.thresholds()
        assert thresholds is not None  # else the layer is left alone
        fires = scale_to_rate(cell, thresholds, layer_input, wanted, reach=THRESHOLDS_REACH)
        rounds = 0
        if layer.recurrent and not layer.shares:  # weights that another layer shares stay
            rounds = BOUND_ROUNDS
        # less recurrence changes the rate, and other thresholds change the recurrent current: in rounds
        for _ in range(rounds):
            ratio = recurrence_share(points_of(cell, layer_input, generator(seed, "points")))
            if ratio <= 1.05 * self.recurrence:  # 5 % above the bound are near enough
                break
            for matrix in layer.recurrent:
                set_nonzero(matrix, matrix.weights * self.recurrence / ratio)
            fires = scale_to_rate(cell, thresholds, layer_input, wanted, reach=THRESHOLDS_REACH)
        if abs(fires / wanted - 1) <= 0.25:
            return []
        problem = f"fires {fires:.2g} spikes per neuron and step, not {wanted:.2g}"
        return [layer.finding(problem, "its rate moves in jumps; take a wider layer" if fires else "raise its weights")]

    def make_identity(
        self, layer: Layer, layer_input: Tensor, threshold_at_rate: float, bounded: list[Tensor]
    ) -> float:
        """Make a layer the identity plus a part of its drawn weights, in place.

        Args:
            layer: the layer, with its drawn input weights.
            layer_input: what it reads (T, B, n_in).
            threshold_at_rate: the threshold at which the drawn layer fires at the rate; none is lowered below it.
            bounded: the drawn recurrent weights of each matrix, scaled down to the bound on their current.

        Returns:
            The share of its spikes that the identity alone passes on.
        """
        drawn = [matrix.weights.clone() for matrix in layer.inputs]
        margin = lower_thresholds(layer, threshold_at_rate, self.adaptation)
        passed = best_identity(layer, layer_input, margin)
        for matrix, weights in zip(layer.inputs, drawn, strict=True):
            matrix.set(matrix.weights + self.drawn * weights)
        for matrix, weights in zip(layer.recurrent, bounded, strict=True):
            matrix.set(matrix.weights + self.drawn * weights)
        return passed


# ---------------------------------------------------------------- the identity


def lower_thresholds(layer: Layer, lowest: float, adaptation: float) -> Tensor:
    """Lower thresholds until the surrogate's derivative at rest is a tenth of its largest; find the margin of a spike.

    Thresholds that cannot be set stay.

    Args:
        layer: the layer.
        lowest: the threshold below which none is lowered.
        adaptation: factor on what spikes add to the thresholds, of cells whose thresholds adapt.

    Returns:
        The margin (n_hidden,), in thresholds, by which the voltage of a spike is to exceed the threshold: there the
        surrogate's derivative is a quarter of its largest. It is between 0.02 and 1.
    """
    now = layer.resting_threshold().mean().item()
    shares = torch.cat([torch.zeros(1), torch.logspace(-3, 0, 601)])  # 200 distances in each power of ten
    distances = shares.to(**layer.cell.dtype_and_device) * now
    # mean over neurons; a derivative that is not finite, or below 0, counts as 0
    slope = surrogate_slope(layer.membrane, distances).mean(1).nan_to_num(0, 0, 0).clamp(min=0)

    def farthest(share: float) -> float:
        """Return the largest distance at which the derivative is at least this share of its largest."""
        return distances[slope >= share * slope.max()][-1].item()

    thresholds = layer.cell.thresholds()
    if thresholds is not None:
        wanted = min(now, max(farthest(AT_REST), lowest))
        rest = thresholds.rest()
        if rest is None:
            thresholds.scale(wanted / now)
        else:  # a threshold that adapts: scale what spikes add, then set what it is at rest
            thresholds.scale(adaptation)
            thresholds.set_rest(torch.full_like(rest, wanted))
    return (farthest(MARGIN) / layer.resting_threshold()).clamp(CLOSEST, 1)


def best_identity(layer: Layer, layer_input: Tensor, margin: Tensor) -> float:
    """Set the weights of a layer to the identity, in place, and measure how well it passes spikes on.

    Args:
        layer: the layer.
        layer_input: what it reads (T, B, n_in).
        margin: by how many thresholds the voltage of a spike is to exceed the threshold (n_hidden,).

    Returns:
        The share of its spikes that the layer passes on, as :func:`set_identity` defines it.
    """
    drawn = [matrix.weights.clone() for matrix in layer.recurrent]
    drive = 1 + margin
    if not layer.recurrent:  # nothing can take off the voltage that a spike leaves: leave none
        drive = exact_drive(layer, drive)
    passed = set_identity(layer, layer_input, drive, drawn)
    if passed >= PASSED_ON:
        return passed
    return set_identity(layer, layer_input, torch.full_like(margin, WIDEST), drawn)  # with the strongest input


def exact_drive(layer: Layer, otherwise: Tensor) -> Tensor:
    """Return input weights (n_hidden,), in thresholds, that leave no voltage one step after a spike.

    A neuron for which no weight between 1.02 and 2 does so gets the weight of `otherwise` (n_hidden,). The layer's
    weights are changed.
    """
    at_widest = voltage_left(layer, torch.full_like(otherwise, WIDEST))
    at_less = voltage_left(layer, torch.full_like(otherwise, WIDEST - 0.5))
    # The voltage is linear in the drive: take the root of the line. If it is 0 at both, this is NaN, and not chosen.
    exact = WIDEST - 0.5 * at_widest / (at_widest - at_less)
    return torch.where((exact > 1 + CLOSEST) & (exact < WIDEST), exact, otherwise)


def set_identity(layer: Layer, layer_input: Tensor, drive: Tensor, drawn: Sequence[Tensor]) -> float:
    """Set input weights to the identity, and recurrent weights that take off the voltage that a spike leaves.

    Args:
        layer: the layer.
        layer_input: what it reads (T, B, n_in).
        drive: the input weight of each neuron (n_hidden,), in thresholds.
        drawn: recurrent matrices as drawn, whose zeros are missing connections.

    Returns:
        The share of its spikes that the layer passes on: spikes that it reads and sends at the same place and step,
        over the mean of the numbers of spikes that it reads and that it sends.
    """
    cell = layer.cell
    first, second = layer.impulse_response(2)
    left = voltage_left(layer, drive)  # sets the input weights, too
    if layer.recurrent:
        set_recurrence(layer, -left, drawn)
        # A voltage may take only a part of this current, too: that part of `left` is gone. As in `voltage_left`, a
        # current that lasts shows no part; nor does a neuron that did not spike, or left next to nothing.
        part = (left - voltage_after_spike(layer)) / left
        lasts = second > first + ROUNDING
        shows = ~lasts & (left.abs() > ROUNDING) & (part > ROUNDING) & ((part - 1).abs() > ROUNDING)
        if shows.any():
            set_recurrence(layer, -left / torch.where(shows, part, 1.0), drawn)
    sent = cell.run(layer_input, cell.initial_state(layer_input.shape[1]))[0]
    # a wider layer reads the neurons below in turn
    wanted = layer_input[..., torch.arange(cell.n_hidden, device=layer_input.device) % layer_input.shape[-1]]
    total = 0.5 * (sent.sum() + wanted.sum()).item()
    if total:
        return (sent * wanted).sum().item() / total
    return 0.0


def set_recurrence(layer: Layer, values: Tensor, drawn: Sequence[Tensor]) -> None:
    """Set the recurrent weights of every neuron by its own spikes to values (n_hidden,), and others to 0.

    `drawn` are the recurrent matrices as drawn, whose zeros are missing connections.
    """
    for matrix, weights in zip(layer.recurrent, drawn, strict=True):  # known cells have one such matrix
        matrix.set(weights)  # so that set_nonzero sees which connections exist
        set_nonzero(matrix, diagonal(matrix, values))  # connections off the diagonal become 0, and can be trained


def voltage_left(layer: Layer, drive: Tensor) -> Tensor:
    """Return the voltage (n_hidden,) one step after a spike of a neuron that reads nothing more.

    To measure it, input weights are set to the identity times `drive` (n_hidden,), in thresholds, and recurrent weights
    to 0; they stay so.
    """
    first, second = layer.impulse_response(2)
    # `first` and `second` are the voltages at a step with a current of 1, and one step later. A voltage may take only a
    # part of a current, such as 1/tau: divide by that part, `first`. Where `second` is higher, the current itself
    # lasts, and `first` is not that part: divide by 1.
    taken = torch.where((first > ROUNDING) & (second <= first + ROUNDING), first, 1.0)
    for matrix in layer.inputs:
        set_nonzero(matrix, diagonal(matrix, drive * layer.resting_threshold() / taken))
    for matrix in layer.recurrent:
        matrix.set(torch.zeros_like(matrix.weights))
    return voltage_after_spike(layer)


def voltage_after_spike(layer: Layer) -> Tensor:
    """Return the voltage (n_hidden,) one step after a step in which every input was 1, from rest."""
    cell = layer.cell
    rest = cell.initial_state(1)
    spikes = torch.ones(1, cell.n_in, **cell.dtype_and_device)
    fired = cell.update(spikes, cell.output(rest), rest)
    after = cell.update(0 * spikes, cell.output(fired), fired)
    return layer.membrane.voltage(after)[0].double().cpu()


def diagonal(matrix: WeightMatrix, values: Tensor) -> Tensor:
    """Return weights in the shape of a matrix (n_hidden, n_in): neuron i reads input i modulo n_in by values[i]."""
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
    """True if the loss reads spikes: the last layer spikes, and the readout has no weights."""
    weights = list(network.readout.parameters())
    return not weights and len(network.cells) - 1 in spiking_layers(network)


def spiking_layers(network: Network) -> list[int]:
    """Return the indices of the layers that send spikes; others send numbers, such as a GRU, or are integrators."""
    return [index for index in network.spiking if network.cells[index].membrane() is not None]


def recurrence_share(t: Transitions) -> float:
    r"""Return the recurrent current as a share of the input current.

    .. math:: \frac{\lVert g(x, z; W) - g(x, z; 0) \rVert}{\lVert g(x, z; W) - g(0, z; W) \rVert}

    with g the state after a step from the input x and the layer's last spikes z, and W its recurrent weights. Norms are
    over the states at all points of t together. The share is 0 without recurrent weights, and infinite if the last
    spikes change the state but the input does not.
    """
    with torch.no_grad():
        z = t.cell.output(t.before)

        def step(x: Tensor) -> Tensor:
            return flat(t.cell.update(x, z, t.before))

        after = step(t.x)
        by_input = (after - step(torch.zeros_like(t.x))).norm().item()
        with zeroed(weight_matrices(t.cell, "time")):
            by_spikes = (after - step(t.x)).norm().item()
    if by_input:
        return by_spikes / by_input
    if by_spikes:
        return math.inf
    return 0.0


def points_of(cell: Cell, layer_input: Tensor, draw: torch.Generator) -> Transitions:
    """Return the transitions of a cell at all steps of a run on an input (T, B, n_in), of some samples drawn at random.

    They serve derivatives through time alone: the layer below is left out.
    """
    some = torch.randperm(layer_input.shape[1], generator=draw)[:POINT_SAMPLES].to(layer_input.device)
    states = [before for _, before, _ in steps_from_rest(cell, layer_input[:, some])]
    return Transitions(cell, layer_input[:, some].flatten(0, 1), stacked(states), None, None)
