"""Layers that hand on what they read: however deep, a network starts as its first layers."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neurolsc.initialisers.by_source import BySource
from neurolsc.initialisers.cells import (
    by_neuron,
    impulse_response,
    input_synapses,
    membrane,
    put,
    resting_threshold,
    told,
)
from neurolsc.initialisers.initialiser import Initialiser, StartReport, first_input, generator, surrogate_faults
from neurolsc.initialisers.spec import register
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import Cell, Membrane, WeightMatrix, weight_matrices
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import bottom_up, gradient_gain
from neurolsc.validation import number, whole

_WHOLE = 0.95
"""share of the spikes handed on below which a layer starts from its drawn weights instead"""
_QUARTER = 0.25
"""of its largest value: where the surrogate's derivative is at a spike of a relay"""
_CLOSEST = 0.02
"""least distance from the threshold at a spike of a relay, in thresholds"""
_PASSED = 0.1
"""factor of the gradient on its way back through a relay (gradient_gain) that always will do"""
_OF_DRAWN = 0.5
"""share of the factor with drawn weights that will do as well"""
_NO_RELAY = "nothing to do: it keeps its drawn weights and is woken"


@register
@dataclass(frozen=True)
class Relay(Initialiser):
    r"""Layers above the lowest hand on every spike that they read.

    .. math:: W_{in, l} = (1 + m_l)\, \mathrm{diag}(\vartheta_l), \quad
        W_{rec, l} = -\mathrm{diag}(r_l)

    .. math:: v[t, l] = (1 + m_l)\, \vartheta_l\, z[t', l-1], \quad z[t, l] = z[t', l-1]

    where r is the voltage that a neuron without recurrence has left one step after its spike, if it
    reads nothing: of a leaky neuron whose reset subtracts the threshold,
    :math:`((1 + m) e^{-1/\tau_v} - 1)\, \vartheta`. A neuron without recurrent weights gets the m
    that leaves nothing, :math:`m = e^{1/\tau_v} - 1`. :math:`W_{in}` is divided by the share of a
    current that a voltage takes, such as spikingjelly's :math:`1/\tau`. Biases of relays are 0. So
    what the last of the lowest layers sends leaves the network as it was.

    The margin m is the distance, in thresholds, at which the surrogate's derivative is a quarter of
    its largest, at most 1: 1 for a fast sigmoid of sharpness 1 and a threshold of 1, 0.04 for
    snnTorch's ``fast_sigmoid(slope=25)``, which at a margin of 1 would pass 1/676 of the gradient.
    Layers of random weights scatter what they read instead: of what set samples apart, ten of them
    left 0.00 to 0.08 in the study, relays 0.86.

    The lowest layers keep their random weights. They fire at a given rate, and their recurrence is
    scaled down to a share of their input, and until their radius through time is at a bound, as
    :class:`BySource` sets them. So there are two layers to code the input and to mix it, and those
    above do no harm until they learn. Resting thresholds of relays, where they can be set, are set
    to their mean, and what spikes add to a threshold to a share of what it was: else the spikes of
    a series are not handed on. Recurrence and adaptation are there for the training to find. A
    layer of another width than the one below reads its neurons in turn, some more than once or not
    all.

    A layer keeps its drawn weights, and is set as the lowest are, where as a relay it would hand on
    less than 95 % of its spikes (a neuron that remembers, such as norse's LIF), or pass back less
    than a tenth of the gradient and less than half of what its drawn weights pass (a leaky neuron
    without recurrence under a narrow surrogate).

    Attributes:
        rate: spikes per neuron and step; 0: the thresholds of the lowest layers stay.
        recurrence: bound on the recurrent current of the lowest layers, as a share of their input
            current; 0: none.
        time: bound on their mean radius through time.
        adaptation: share that is left of what spikes add to the thresholds of relays.
        drawn: how many are the lowest; a network of no more has no relays.

    Source: ours; after the identity as the start of rate networks, through time (Le, Jaitly &
    Hinton, arXiv:1504.00941) and through depth (Zhao, Schäfer & Anandkumar, arXiv:2110.12661).
    """

    rate: float = 0.15
    recurrence: float = 0.2
    time: float = 1.0
    adaptation: float = 0.01
    drawn: int = 2

    def __post_init__(self) -> None:
        self._lowest()  # refuses a rate or a radius
        number("adaptation", self.adaptation)
        whole("drawn", self.drawn)

    def _lowest(self) -> BySource:
        """What sets the lowest layers."""
        return BySource(depth=0, recurrence=self.recurrence, rate=self.rate, time=self.time)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> StartReport:
        """Set all layers on the first batch; what is no relay, or is missed, is a finding."""
        x, found, lowest, relays = first_input(network, inputs), [], self._lowest(), []
        for layer in network.spiking:
            (lowest.refuse if layer < self.drawn else _refuse)(network, layer)
        before = lowest.measured(network, inputs, seed)
        some, times = lowest.sampled(x, seed)
        with eval_mode(network), torch.no_grad():
            for layer, (read, points) in enumerate(bottom_up(network, x, some, times)):
                if layer not in network.spiking:
                    continue
                if layer < self.drawn:
                    found += lowest.set_layer(points, read, some, times, layer, seed)
                    continue
                if not read.any():
                    found.append(Finding(layer + 1, "reads no spikes", "let the layer below fire"))
                    continue
                cell = network.cells[layer]
                drawn = copy.deepcopy(cell.state_dict())
                woken = lowest.set_layer(points, read, some, times, layer, seed)
                gain, as_woken = gradient_gain(cell, read, generator(seed, layer)), copy.deepcopy(cell.state_dict())
                cell.load_state_dict(drawn)
                same = self._set(network, layer, read)
                passed = gradient_gain(cell, read, generator(seed, layer))
                if same >= _WHOLE and passed >= min(_PASSED, _OF_DRAWN * gain):
                    relays.append(layer + 1)
                    continue
                cell.load_state_dict(as_woken)
                lacks = f"hand on {same:.0%} of its spikes"
                if same >= _WHOLE:
                    lacks = f"pass back {passed:.2g} of the gradient, with drawn weights {gain:.2g}"
                found += [Finding(layer + 1, f"as a relay it would {lacks}", _NO_RELAY), *woken]
        none = "; no relays" if any(layer >= self.drawn for layer in network.spiking) else ""
        done = f"; relays: layer {', '.join(map(str, relays))}" if relays else none
        at_rate = set(range(1, len(network.cells) + 1)) - set(relays)
        after = lowest.measured(network, inputs, seed)
        return lowest.report(before, after, surrogate_faults(network) + found, at_rate, done)

    def _set(self, network: Network, layer: int, read: Tensor) -> float:
        """Make a relay of a layer; the share of its spikes that it hands on."""
        cell, of = network.cells[layer], membrane(network, layer)
        thresholds, own, below = cell.thresholds(), weight_matrices(cell, "time"), input_synapses(network, layer)
        rest = None if thresholds is None else thresholds.rest()
        if thresholds is not None and rest is not None:
            thresholds.scale(self.adaptation)
            thresholds.set_rest(rest.mean().expand_as(rest))
        for module in cell.modules():
            if isinstance(module, nn.Linear) and module.bias is not None and module.bias.requires_grad:
                module.bias.zero_()
        theta, drawn = resting_threshold(cell, of), [matrix.weights.clone() for matrix in own]
        # a voltage may take a share of what it reads, such as 1/tau; a current that lasts adds up
        first, second = impulse_response(cell, of, below, 2).round(decimals=3)
        taken = torch.where((first > 0) & (second <= first), first, 1.0)

        def left(drive: Tensor) -> Tensor:
            """Set the input weights, in thresholds; what a spike leaves without recurrence."""
            for matrix in below:
                put(matrix, _diagonal(matrix, drive * theta / taken))
            for matrix in own:
                matrix.set(torch.zeros_like(matrix.weights))
            return _left_of_a_spike(network, layer)

        def handed_on(drive: Tensor) -> float:
            remains = left(drive)
            for matrix, weights in zip(own, drawn, strict=True):
                matrix.set(weights)  # what is 0 in them is no connection, and stays
                put(matrix, _diagonal(matrix, -remains))
            return _handed_on(network, layer, read)

        widest = torch.full_like(theta, 2.0)
        drive = torch.full_like(theta, 1 + max(margin(cell, of), _CLOSEST))
        if not own:
            at_two, at_less = left(widest), left(widest - 0.5)  # linear in the drive, or 0 at both
            exact = widest - 0.5 * at_two / (at_two - at_less)
            drive = torch.where((exact > 1 + _CLOSEST) & (exact < 2), exact, drive)
        same = handed_on(drive)
        return same if same >= _WHOLE else handed_on(widest)


def _refuse(network: Network, layer: int) -> None:
    """Refuse a layer that can be no relay, before anything is changed."""
    membrane(network, layer)
    for matrix in (*input_synapses(network, layer), *weight_matrices(network.cells[layer], "time")):
        if matrix.weights.ndim > 2:
            raise TypeError(f"{told(network, layer)} is a convolution: a relay needs a matrix. Use RateMatching(0.15).")


def _diagonal(matrix: WeightMatrix, values: Tensor) -> Tensor:
    """Weights by which neuron i reads input i, modulo their number, with the i-th value."""
    n_hidden, n_in = matrix.weights.shape
    read = torch.arange(n_hidden)[:, None] % n_in == torch.arange(n_in)
    return by_neuron(values, matrix) * read


def _left_of_a_spike(network: Network, layer: int) -> Tensor:
    """The voltage of every neuron one step after it fired, if it reads nothing (n_hidden,)."""
    cell, of = network.cells[layer], membrane(network, layer)
    rest = cell.initial_state(1)
    one = torch.ones(1, cell.n_in, **cell.dtype_and_device)
    fired = cell.update(one, cell.output(rest), rest)
    return of.voltage(cell.update(0 * one, cell.output(fired), fired))[0].double().cpu()


def margin(cell: Cell, of: Membrane) -> float:
    """The distance above a threshold up to which the surrogate passes a quarter of its most.

    In thresholds, at most 1: of a fast sigmoid of sharpness 1 at a threshold of 1 it is 1, of
    snnTorch's ``fast_sigmoid(slope=25)`` 0.04. 1 where no derivative is finite and positive.
    """
    along = torch.cat([torch.zeros(1), torch.logspace(-3, 0, 601)]).to(**cell.dtype_and_device)[:, None, None]
    with torch.enable_grad():
        distance = (resting_threshold(cell, of).mean().to(along) * along).requires_grad_()
        (slope,) = torch.autograd.grad(of.spike(distance).sum(), distance)
    passed = slope.flatten().nan_to_num(0, 0, 0).clamp(min=0)
    return along.flatten()[passed >= _QUARTER * passed.max()][-1].item()


def _handed_on(network: Network, layer: int, read: Tensor) -> float:
    """The share of its spikes that a relay has read and sends; 0 if there are none."""
    cell = network.cells[layer]
    sent = cell.run(read, cell.initial_state(read.shape[1]))[0]
    wanted = read[..., torch.arange(cell.n_hidden, device=read.device) % read.shape[-1]]
    total = 0.5 * (sent.sum() + wanted.sum()).item()
    return (sent * wanted).sum().item() / total if total else 0.0
