"""Layers that hand on what they read: a deep network starts as the two layers at its ends."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.initialisers.by_source import BySource
from neurolsc.initialisers.cells import input_synapses, membrane, resting_threshold, told
from neurolsc.initialisers.initialiser import first_input, generator
from neurolsc.initialisers.spec import register
from neurolsc.modes import evaluating
from neurolsc.network import Network
from neurolsc.neurons.synapses import Synapses, synapses
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import bottom_up
from neurolsc.stability.profile import draw_steps
from neurolsc.validation import number, whole

_TOLD = 0.95
"""share of the spikes handed on below which it is told"""


@register
@dataclass(frozen=True)
class Relay(BySource):
    r"""Layers between the ends hand on every spike they read; the ends are set as by the base.

    .. math:: W_{in, l} = 2\, \mathrm{diag}(\vartheta), \quad W_{rec, l} = -\mathrm{diag}(r)
        \quad\Rightarrow\quad v[t, l] = 2 \vartheta\, z[t', l-1], \quad z[t, l] = z[t', l-1]

    where r is the voltage that a neuron without recurrence has left one step after its spike, of an
    input of 0: of a leaky neuron whose reset subtracts the threshold, :math:`r = (2 e^{-1/\tau_v} -
    1)\, \vartheta`. So what enters the first of them leaves the last as it was, and voltages are one
    threshold above the threshold or one below it, so that the surrogate's derivative is one number
    and the gradient comes back as it was too, times :math:`2 \vartheta\, \gamma f(\omega
    \vartheta)` for each layer, 0.25 at a threshold of 1. Random layers do the opposite: each
    scatters its input, and about ten of them leave nothing of what told samples apart, forward or
    backward, at whatever radius.

    Resting thresholds that can be set are set to their mean, and what spikes add to a threshold to
    a share of what it was, since a threshold that moves would let single spikes pass and a series
    not. The layers above the first and below the last ``top`` are relays; of two layers none is. A
    layer of another width than that below reads its spikes in turn, more than once or not all.

    Attributes:
        depth: as for :class:`BySource`, and likewise recurrence, rate, samples, steps and rounds.
        top: last layers that are no relays.
        adaptation: share that is left of what spikes add to the thresholds of relays.

    Source: ours; after the identity as a start of rate networks, Le, Jaitly & Hinton,
    arXiv:1504.00941 (through time), and Bartlett, Helmbold & Long, arXiv:1802.06093 (depth).
    """

    top: int = 1
    adaptation: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("top", self.top, at_least=0)
        number("adaptation", self.adaptation)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set all layers on the first batch; told are also relays that drop or add spikes."""
        x, found = first_input(network, inputs), []
        relays = range(1, len(network.cells) - self.top)
        self._refuse(network)
        for layer in relays:
            membrane(network, layer)
            for matrix in (*input_synapses(network, layer), *synapses(network.cells[layer], "time")):
                if matrix.weights.ndim > 2:
                    raise TypeError(f"{told(network, layer)} is a convolution: a relay needs a matrix.")
        draw = generator(seed, "points")
        some = torch.randperm(x.shape[1], generator=draw)[: self.samples].to(x.device)
        times = draw_steps(x.shape[0], min(self.steps, x.shape[0]), draw)
        with evaluating(network), torch.no_grad():
            for layer, (read, points) in enumerate(bottom_up(network, x, some, times)):
                if layer in relays:
                    found += self._hand_on(network, layer, read)
                else:
                    found += self._set(points, read, some, times, layer, seed)
        return tuple(found)

    def _hand_on(self, network: Network, layer: int, read: Tensor) -> list[Finding]:
        """Make a relay of a layer, which reads that; what it drops or adds."""
        cell, of = network.cells[layer], membrane(network, layer)
        thresholds, own = cell.thresholds(), synapses(cell, "time")
        rest = None if thresholds is None else thresholds.rest()
        if thresholds is not None and rest is not None:
            thresholds.scale(self.adaptation)
            thresholds.set_rest(rest.mean().expand_as(rest))
        threshold = resting_threshold(cell, of)
        for matrix in input_synapses(network, layer):
            _put_diagonal(matrix, 2 * threshold)
        for matrix in own:
            matrix.set(torch.zeros_like(matrix.weights))
        left = _left_of_a_spike(network, layer)
        for matrix in own:
            _put_diagonal(matrix, -left)
        sent = cell.run(read, cell.initial_state(read.shape[1]))[0]
        wanted = read[..., torch.arange(cell.n_hidden, device=read.device) % read.shape[-1]]
        same, total = (sent * wanted).sum().item(), 0.5 * (sent.sum() + wanted.sum()).item()
        if not total or same < _TOLD * total:
            problem = f"hands on {same / total:.0%} of its spikes" if total else "reads no spikes"
            return [Finding(layer + 1, problem, "a relay needs neurons that a spike sets back")]
        return []


def _put_diagonal(matrix: Synapses, values: Tensor) -> None:
    """Neuron i reads input i, or i modulo their number, with the i-th weight, and nothing else."""
    n_hidden, n_in = matrix.weights.shape
    weights = torch.zeros(n_hidden, n_in, dtype=values.dtype)
    neurons = torch.arange(n_hidden)
    weights[neurons, neurons % n_in] = values[neurons % len(values)]
    matrix.set(weights)


def _left_of_a_spike(network: Network, layer: int) -> Tensor:
    """The voltage of every neuron one step after it fired, without input (n_hidden,)."""
    cell, of = network.cells[layer], membrane(network, layer)
    rest = cell.initial_state(1)
    one = torch.ones(1, cell.n_in, **cell.dtype_and_device)
    fired = cell.update(one, cell.output(rest), rest)
    return of.voltage(cell.update(0 * one, cell.output(fired), fired))[0].double().cpu()
