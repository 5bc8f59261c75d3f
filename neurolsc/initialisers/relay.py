"""Layers that hand on what they read: however deep, a network starts as its first layers."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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
from neurolsc.initialisers.initialiser import Initialiser, first_input
from neurolsc.initialisers.spec import register
from neurolsc.modes import evaluating
from neurolsc.network import Network
from neurolsc.neurons.synapses import Synapses, synapses
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import bottom_up
from neurolsc.validation import number, whole

_WHOLE = 0.95
"""share of the spikes handed on below which a relay gets a finding"""
_WORTH_IT = 0.5
"""share below which a layer starts from its drawn weights instead"""
_CURE = "a relay needs recurrence, or a reset to zero, and a threshold that stays"
_NO_RELAY = "nothing to do: its drawn weights stay, thresholds are scaled to the rate"


@register
@dataclass(frozen=True)
class Relay(Initialiser):
    r"""Layers above the lowest hand on every spike that they read.

    .. math:: W_{in, l} = 2\, \mathrm{diag}(\vartheta_l), \quad W_{rec, l} = -\mathrm{diag}(r_l)
        \quad\Rightarrow\quad v[t, l] = 2 \vartheta_l\, z[t', l-1], \quad z[t, l] = z[t', l-1]

    where r is the voltage that a neuron without recurrence has left one step after its spike, if it
    reads nothing: of a leaky neuron whose reset subtracts the threshold, :math:`(2 e^{-1/\tau_v} -
    1)\, \vartheta`; :math:`W_{in}` is divided by the share of a current that a voltage takes, such
    as spikingjelly's :math:`1/\tau`. So what the last of the lowest layers sends leaves the network
    as it was. Every voltage is one threshold above the threshold or one below it, so that the
    surrogate's derivative is one number, and the gradient comes back as it was too, times :math:`2
    \vartheta_l\, \gamma f(\omega \vartheta_{l-1})` for each layer: 0.25 at a threshold of 1. Layers
    of random weights scatter what they read instead: of what told samples apart, ten of them left
    0.00 to 0.08 in the study, relays 0.86.

    The lowest layers keep their random weights. They fire at a given rate, and their recurrence is
    scaled down to a radius, or until their radius through time is at a bound, as :class:`BySource`
    sets them. So there are two layers to code the input and to mix it, and those
    above do no harm until they learn. Resting thresholds of relays, where they can be set, are set
    to their mean, and what spikes add to a threshold to a share of what it was: else the spikes of
    a series are not handed on. Recurrence and adaptation are there for the training to find. A
    layer of another width than the one below reads its neurons in turn, some more than once or not
    all.

    Attributes:
        rate: spikes per neuron and step; 0: the thresholds of the lowest layers stay.
        recurrence: bound on the radius of the recurrence of the lowest layers; 0: none.
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

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set all layers on the first batch; told is what is missed, dropped or added."""
        x, found, lowest = first_input(network, inputs), [], self._lowest()
        for layer in network.spiking:
            (lowest.refuse if layer < self.drawn else _refuse)(network, layer)
        some, times = lowest.sampled(x, seed)
        with evaluating(network), torch.no_grad():
            for layer, (read, points) in enumerate(bottom_up(network, x, some, times)):
                if layer not in network.spiking:
                    continue
                if layer < self.drawn:
                    found += lowest.set_layer(points, read, some, times, layer, seed)
                    continue
                drawn = copy.deepcopy(network.cells[layer].state_dict())
                self._set(network, layer)
                same = _handed_on(network, layer, read)
                if not read.any():
                    found.append(Finding(layer + 1, "reads no spikes", "let the layer below fire"))
                elif same < _WORTH_IT:
                    network.cells[layer].load_state_dict(drawn)
                    found.append(Finding(layer + 1, f"would hand on {same:.0%} of its spikes: no relay", _NO_RELAY))
                    found += lowest.set_layer(points, read, some, times, layer, seed)
                elif same < _WHOLE:
                    found.append(Finding(layer + 1, f"hands on {same:.0%} of its spikes", _CURE))
        return tuple(found)

    def _set(self, network: Network, layer: int) -> None:
        """Make a relay of a layer."""
        cell, of = network.cells[layer], membrane(network, layer)
        thresholds, own = cell.thresholds(), synapses(cell, "time")
        rest = None if thresholds is None else thresholds.rest()
        if thresholds is not None and rest is not None:
            thresholds.scale(self.adaptation)
            thresholds.set_rest(rest.mean().expand_as(rest))
        inputs = input_synapses(network, layer)
        # a voltage may take a share of what it reads, such as 1/tau; a current that lasts adds up
        first, second = impulse_response(cell, of, inputs, 2).round(decimals=3)
        share = torch.where((first > 0) & (second <= first), first, 1.0)
        drive = 2 * resting_threshold(cell, of) / share
        for matrix in inputs:
            put(matrix, _diagonal(matrix, drive))
        drawn = [matrix.weights.clone() for matrix in own]
        for matrix in own:
            matrix.set(torch.zeros_like(matrix.weights))
        left = _left_of_a_spike(network, layer)
        for matrix, weights in zip(own, drawn, strict=True):
            matrix.set(weights)  # what is 0 in them is no connection, and stays
            put(matrix, _diagonal(matrix, -left))


def _refuse(network: Network, layer: int) -> None:
    """Refuse a layer that can be no relay, before anything is changed."""
    membrane(network, layer)
    for matrix in (*input_synapses(network, layer), *synapses(network.cells[layer], "time")):
        if matrix.weights.ndim > 2:
            raise TypeError(f"{told(network, layer)} is a convolution: a relay needs a matrix. Use RateMatching(0.15).")


def _diagonal(matrix: Synapses, values: Tensor) -> Tensor:
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


def _handed_on(network: Network, layer: int, read: Tensor) -> float:
    """The share of its spikes that a relay has read and sends; 0 if there are none."""
    cell = network.cells[layer]
    sent = cell.run(read, cell.initial_state(read.shape[1]))[0]
    wanted = read[..., torch.arange(cell.n_hidden, device=read.device) % read.shape[-1]]
    total = 0.5 * (sent.sum() + wanted.sum()).item()
    return (sent * wanted).sum().item() / total if total else 0.0
