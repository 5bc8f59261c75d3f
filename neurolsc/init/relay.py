"""Initialisers that set firing rates: by thresholds, by scales of each layer, by identity layers."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.init.base import (
    Initialiser,
    InitReport,
    Layer,
    first_input,
    generator,
    layers_of,
    register,
    scaling,
    set_nonzero,
)
from neurolsc.init.identity import PASSED_ON, best_identity, lower_thresholds, recurrence_share, zero_biases
from neurolsc.network import Network
from neurolsc.neurons.weights import WeightMatrix, is_frozen, weight_matrices
from neurolsc.stability.conditions import NO_SURROGATE, Finding, surrogate_fault
from neurolsc.stability.profile import depth_radius, mean_time_radius
from neurolsc.stability.sampling import affordable
from neurolsc.stability.scale import (
    Points,
    layer_points,
    match_firing_rates,
    no_thresholds,
    rate,
    scale_to_rate,
    solve,
)
from neurolsc.stability.transitions import draw_steps, follow
from neurolsc.surroundings import eval_mode
from neurolsc.validation import number, whole


@register
@dataclass(frozen=True)
class FiringRate(Initialiser):
    r"""Thresholds scaled layer by layer until each fires at one rate; weights stay.

    .. math:: \vartheta_l \leftarrow c_l \vartheta_l, \quad
        \frac{1}{TBN} \sum_{t,b,i} z_{t,b,i}(c_l) = r

    Of an ALIF the whole threshold is scaled, by :math:`b_\vartheta` and :math:`\beta`
    (:func:`neurolsc.match_firing_rates`). A rate that no scale from 1e-3 to 1e3 reaches within a tenth is approached as
    near as it goes, and is a finding.

    Attributes:
        rate: r, spikes per neuron and step.

    Source: threshold balancing of Diehl et al. (2015), *Fast-classifying, high-accuracy spiking deep networks through
    weight and threshold balancing*; here without a trained network.
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate < 1:
            raise ValueError(f"rate must be spikes per neuron and step, in (0, 1), got {self.rate}.")

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        x = first_input(network, inputs)
        for layer in layers_of(network):
            _require_thresholds(layer)
        reached = match_firing_rates(network, x, [self.rate] * len(network.cells), tolerance=math.inf)
        found = _surrogate_faults(network)
        for layer, fires in enumerate(reached, start=1):
            if abs(fires - self.rate) > 0.1 * self.rate:  # not of an integrator, whose rate is NaN
                problem = f"fires {fires:.3g} spikes per neuron and step, not {self.rate:g}"
                jumps = "its rate moves in jumps; take a wider layer, or weaker recurrence"
                found.append(Finding(layer, problem, jumps if fires else "raise its weights"))
        return tuple(found)


def _require_thresholds(layer: Layer) -> None:
    """Raise if the thresholds of a layer cannot be scaled: TypeError if it has none, ValueError if they are frozen."""
    thresholds = layer.cell.thresholds()
    if thresholds is None:
        raise TypeError(no_thresholds(layer.name))
    if any(is_frozen(layer.cell, name) for name in thresholds.names):
        raise ValueError(f"{layer.name} has frozen thresholds, which no rate may move.")


def _surrogate_faults(network: Network) -> list[Finding]:
    """Return a finding for each surrogate without a derivative, or with one that is not finite."""
    faults = (surrogate_fault(network.cells[layer], layer) for layer in network.spiking)
    return [fault for fault in faults if fault is not None]


# ---------------------------------------------------------------- layer by layer

_REACH = 1e4  # largest factor of thresholds
_SETTLED = 0.01  # relative distance from a target at which scaling stops: radii are found to 1 %
_ROUNDS = 8  # most rounds for each layer
_MOST_IN_A_ROUND = 10.0  # largest factor of weights in one round: further away a measure is not linear in them
_MISSED = 0.05  # relative distance from a target that is a finding
_OTHER_BATCH = 0.25  # likewise of a rate on another batch, as batches differ


class _Quantity(NamedTuple):
    """A quantity of a layer that is set to a target, and what to do if the target is missed."""

    name: str
    cure: str


_DEPTH = _Quantity("radius of the depth", "no scale of w_in moves it: let the layer below fire")
_RECURRENCE = _Quantity("recurrent current as a share of the input's", "set recurrence=0")
_TIME = _Quantity(
    "radius through time",
    "it is due to leaks, thresholds or the reset: no scale of the recurrence brings it down",
)
_RATE = _Quantity("firing rate", "it moves in jumps: take a wider layer or a weaker recurrence")


class _Goal(NamedTuple):
    """A target of a quantity, the matrices whose common scale moves it, and a function that measures it."""

    quantity: _Quantity
    target: float
    matrices: Sequence[WeightMatrix]
    measure: Callable[[], float]


@register
@dataclass(frozen=True)
class LayerwiseScaling(Initialiser):
    r"""Scale each layer to a depth radius, a ratio of recurrent to input current, and a firing rate.

    .. math:: \mathrm{E}\,\rho\Big(\frac{\partial h[t, l]}{\partial h[t', l-1]}\Big) = \rho_{depth},
        \quad \lVert W_{rec, l}\, z_l \rVert \le c\, \lVert W_{in, l}\, z_{l-1} \rVert,
        \quad \mathrm{E}\, z_l = r

    The input matrices, the recurrent matrices and the thresholds of each layer are scaled in rounds, bottom up. The
    radius through time of a spiking layer is mostly that of its leaks, which are its memory and no instability: time
    constants stay. So does the input matrix of the first layer, whose derivative by the input has no surrogate.

    Attributes:
        depth: wanted radius through depth of every layer but the first; 0: w_in stays.
        recurrence: c, a bound on the recurrent current as a share of the input current. Recurrent weights are only ever
            scaled down. 0: no recurrence before training.
        rate: spikes per neuron and step; 0: thresholds stay.
        time: bound on the mean radius through time; where the radius is above it, the recurrence is scaled down.
        samples: samples of the first batch at which radii are taken.
        steps: time steps at which radii are taken.

    Source: ours, after arXiv:2308.12075, where radii are set whatever they are due to.
    """

    depth: float = 0.6
    recurrence: float = 0.2
    rate: float = 0.15
    time: float = 1.0
    samples: int = 4
    steps: int = 8

    def __post_init__(self) -> None:
        if not 0 <= self.rate < 1:
            raise ValueError(f"rate must be spikes per neuron and step, in [0, 1), got {self.rate}.")
        number("depth", self.depth, zero_allowed=True)
        number("recurrence", self.recurrence, zero_allowed=True)
        number("time", self.time)
        whole("samples", self.samples)
        whole("steps", self.steps)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> InitReport:
        """Set all layers on the first batch; a target that is missed by more than 5 % is a finding."""
        for layer in layers_of(network, "inputs"):
            if self.rate:
                _require_thresholds(layer)
        return self.set_all(network, inputs, seed, self.set_layer, other_rates=[])

    def set_all(
        self,
        network: Network,
        inputs: Sequence[Tensor],
        seed: int,
        set_layer: Callable[[Layer, Points, int], list[Finding]],
        other_rates: list[int],
    ) -> InitReport:
        """Set layer after layer on the first input, and report rates and radii before and after on the last one.

        Args:
            network: the network.
            inputs: batches x (T, B, n_in).
            seed: seed of the draws of points, passed on to `set_layer`.
            set_layer: sets a layer in place, given its points and the seed, and returns findings on what it misses.
            other_rates: layers, counted from 1, that need not fire at `rate`. `set_layer` appends them while it runs.
        """
        if not network.spiking:
            raise TypeError("no layer spikes: all are integrators, of which there is nothing to scale.")
        x = first_input(network, inputs)
        last = first_input(network, inputs[-1:])
        for fault in _surrogate_faults(network):
            if fault.name == NO_SURROGATE:  # no radius, and nothing to train
                raise ValueError(str(fault))
        missed: list[Finding] = []
        with eval_mode(network), torch.no_grad():
            rates_before, radii_before = self._measured(network, last, seed)
            samples, steps = self._points(x, seed)
            for index, points in enumerate(layer_points(network, x, samples, steps)):
                if index in network.spiking:
                    missed += set_layer(Layer(network, index), points, seed)
            rates, radii = self._measured(network, last, seed)
        found = [*_surrogate_faults(network), *missed]
        known = {finding.layer for finding in found}
        for index, fires, radius in zip(network.spiking, rates, radii, strict=True):
            layer = index + 1
            if layer in known:  # it missed on the first batch already
                continue
            if self.rate and layer not in other_rates and abs(fires / self.rate - 1) > _OTHER_BATCH:
                problem = f"fires {fires:.2g} spikes per neuron and step on another batch, not {self.rate:g}"
                found.append(Finding(layer, problem, "give the initialisation a larger first batch"))
            if radius > (1 + _MISSED) * self.time:
                problem = f"{_TIME.name} {radius:.3g} on another batch, above {self.time:g}"
                found.append(Finding(layer, problem, _TIME.cure))
        return InitReport(
            found,
            f"spikes per neuron and step {_span(rates_before)} -> {_span(rates)}, "
            f"largest radius through time {max(radii_before):.3g} -> {max(radii):.3g}",
        )

    def _points(self, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Draw the indices of samples and of steps of an input (T, B, n_in) at which radii are taken."""
        draw = generator(seed, "points")
        samples = torch.randperm(x.shape[1], generator=draw)[: self.samples].to(x.device)
        return samples, draw_steps(x.shape[0], min(self.steps, x.shape[0]), draw)

    def _measured(self, network: Network, x: Tensor, seed: int) -> tuple[list[float], list[float]]:
        """Return, of each layer that spikes on x (T, B, n_in), its rate and its mean radius through time.

        Rates are those of all steps and samples, radii those of a few, which the seed draws.
        """
        samples, steps = self._points(x, seed)
        spikes = network.run(x).spikes
        transitions, _ = follow(network, x[:, samples], steps)
        rates = [spikes[layer].double().mean().item() for layer in network.spiking]
        radii = [mean_time_radius(transitions[layer], layer) for layer in network.spiking]
        return rates, radii

    def set_layer(self, layer: Layer, points: Points, seed: int) -> list[Finding]:
        """Set one layer in place; return findings on the targets that it misses.

        In rounds, thresholds are scaled to the rate, and matrices to the depth radius and the recurrent current. If
        the radius through time is then above its bound, the recurrence is scaled until the radius is at the bound, and
        the rounds are repeated for the depth radius and the rate.
        """
        cell = layer.cell
        recurrent = layer.recurrent
        if self.recurrence == 0:
            for matrix in recurrent:
                set_nonzero(matrix, torch.zeros_like(matrix.weights))

        def measure_depth() -> float:
            t = points.now()
            t = t.at(affordable(len(t.x), min(t.depth_shape)))
            return depth_radius(t, layer.index, "submatrix", generator(seed, layer.index)).radius.mean().item()

        def measure_recurrence() -> float:
            return recurrence_share(points.now())

        def measure_time() -> float:
            return mean_time_radius(points.now(), layer.index)

        def fire() -> float:
            """Scale the thresholds to the wanted rate, unless it is 0; return the rate."""
            thresholds = cell.thresholds()
            if not self.rate or thresholds is None:
                return rate(cell, points.x)
            return scale_to_rate(cell, thresholds, points.x, self.rate, reach=_REACH)

        goals: list[_Goal] = []
        inputs = weight_matrices(cell, "depth")
        if layer.index and inputs and self.depth:  # not of the first layer: its derivative has no surrogate
            goals.append(_Goal(_DEPTH, self.depth, inputs, measure_depth))
        if recurrent and self.recurrence:
            goals.append(_Goal(_RECURRENCE, self.recurrence, recurrent, measure_recurrence))
        share = 1.0  # of the drawn recurrence that is left

        def approach() -> None:
            """Scale thresholds and matrices in rounds until all goals are met."""
            nonlocal share
            for _ in range(_ROUNDS):
                fire()
                factors = []
                for goal in goals:
                    value = goal.measure()
                    factor = 1.0
                    if value:  # no factor moves 0
                        factor = min(max(goal.target / value, 1 / _MOST_IN_A_ROUND), _MOST_IN_A_ROUND)
                    if goal.quantity is _RECURRENCE:  # a bound: at most the weights as they were drawn
                        factor = min(factor, 1 / share)
                        share *= factor
                    factors.append(factor)
                if all(abs(factor - 1) < _SETTLED for factor in factors):
                    break
                for goal, factor in zip(goals, factors, strict=True):
                    for matrix in goal.matrices:
                        set_nonzero(matrix, factor * matrix.weights)

        approach()
        bounded = bool(recurrent) and measure_time() > (1 + _SETTLED) * self.time
        if bounded:  # scale the recurrence down until the radius through time is at its bound
            # from here on the radius, not the current, decides the scale of the recurrence
            goals = [goal for goal in goals if goal.quantity is not _RECURRENCE]
            scale = scaling(recurrent)

            def scale_and_fire(log: float) -> None:
                scale(log)
                fire()

            solve(scale_and_fire, measure_time, self.time, reach=math.log(_REACH), tolerance=_SETTLED * self.time)
            approach()  # less recurrence has changed the depth radius, too

        missed: list[Finding] = []

        def check(quantity: _Quantity, reached: float, target: float) -> None:
            """Add a finding to `missed` if the quantity is more than 5 % from its target."""
            if abs(reached / target - 1) > _MISSED:
                missed.append(layer.finding(f"{quantity.name} {reached:.3g}, not {target:g}", quantity.cure))

        fires = fire()
        for goal in goals:
            reached = goal.measure()
            if goal.quantity is _RECURRENCE:  # less than a bound is no miss
                reached = max(reached, goal.target)
            check(goal.quantity, reached, goal.target)
        if bounded:  # this is a bound, too
            check(_TIME, max(measure_time(), self.time), self.time)
        if self.rate:
            check(_RATE, fires, self.rate)
        return missed


def _span(rates: Sequence[float]) -> str:
    """Return the lowest and the highest rate as text; only one if they read alike."""
    ends = (f"{min(rates):.2g}", f"{max(rates):.2g}")
    return " to ".join(dict.fromkeys(ends))


# ---------------------------------------------------------------- identity layers


_KEEPS = "nothing to do: it keeps its drawn weights, and its thresholds are scaled to the rate"


@register
@dataclass(frozen=True)
class Relay(Initialiser):
    r"""Layers above the lowest pass on every spike that they read.

    .. math:: W_{in, l} = (1 + m_l)\, \mathrm{diag}(\vartheta_l), \quad
        W_{rec, l} = -\mathrm{diag}(r_l)

    .. math:: v[t, l] = (1 + m_l)\, \vartheta_l\, z[t', l-1], \quad z[t, l] = z[t', l-1]

    where :math:`r_l` is the voltage that a neuron without recurrence has left one step after its spike, if it reads
    nothing. A neuron without recurrent weights gets the m that leaves nothing. :math:`W_{in}` and :math:`r_l` are
    divided by the share of a current that a voltage takes. Biases of these layers are 0.

    The margin m is the distance, in thresholds, at which the surrogate's derivative is a quarter of its largest, at
    most 1: 1 for a fast sigmoid of sharpness 1 and a threshold of 1. Under a narrow surrogate an identity layer at rest
    would pass next to no gradient. So where the derivative at rest is less than a tenth of its largest, the threshold
    is lowered until it is a tenth, but not below the threshold at which the drawn layer fires at ``rate``.

    The lowest layers keep their random weights, at a rate and with a bounded recurrence, as by
    :class:`LayerwiseScaling`. Resting thresholds of identity layers, where they can be set, are equal; what spikes add
    to a threshold is scaled down to a share. A layer wider than the one below reads that layer's neurons in turn. A
    layer is set as the lowest are where it is narrower, as an output layer often is, or where as an identity layer it
    would pass on less than 95 % of its spikes, as with neurons that remember, such as norse's LIF.

    Attributes:
        rate: spikes per neuron and step of the lowest layers, and of others set like them; 0: their thresholds stay.
        recurrence: bound on the recurrent current of the lowest layers, as a share of their input current; 0: none.
        time: bound on the mean radius through time of the lowest layers.
        adaptation: share that is left of what spikes add to the thresholds of identity layers.
        drawn: how many layers are the lowest; a network of no more layers has no identity layers.

    Source: ours; after the identity initialisation of rate networks, through time (Le, Jaitly & Hinton,
    arXiv:1504.00941) and through depth (Zhao, Schäfer & Anandkumar, arXiv:2110.12661).
    """

    rate: float = 0.15
    recurrence: float = 0.2
    time: float = 1.0
    adaptation: float = 0.01
    drawn: int = 2

    def __post_init__(self) -> None:
        self._lowest()  # checks rate, recurrence and time
        number("adaptation", self.adaptation, zero_allowed=True)
        whole("drawn", self.drawn, at_least=0)

    def _lowest(self) -> LayerwiseScaling:
        """Return the initialiser of the lowest layers, which refuses a rate or a bound out of range."""
        return LayerwiseScaling(depth=0, recurrence=self.recurrence, rate=self.rate, time=self.time)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> InitReport:
        """Set all layers on the first batch; an upper layer that is no identity, or a missed target, is a finding."""
        layers = layers_of(network, "inputs")
        for layer in layers:
            if layer.index < self.drawn:
                if self.rate:
                    _require_thresholds(layer)
                continue
            layer.require("membrane")
            if layer.cell.thresholds() is not None:  # an identity layer lowers thresholds if it can
                _require_thresholds(layer)
            if any(matrix.weights.ndim > 2 for matrix in layer.matrices):
                raise TypeError(
                    f"{layer.name} is a convolution: an identity layer needs a matrix. Use FiringRate(0.15)."
                )
        lowest = self._lowest()
        identity: list[int] = []  # layers that become identities, counted from 1

        def set_layer(layer: Layer, points: Points, seed: int) -> list[Finding]:
            """Set a layer as the lowest are, or as an identity, which joins the list `identity`; return findings."""
            cell = layer.cell
            layer_input = points.x
            if layer.index < self.drawn:
                return lowest.set_layer(layer, points, seed)
            if not layer_input.any():
                return [layer.unread()]
            if cell.n_hidden < layer_input.shape[-1]:
                problem = f"as an identity layer it would read {cell.n_hidden} of {layer_input.shape[-1]} neurons"
                return [layer.finding(problem, _KEEPS), *lowest.set_layer(layer, points, seed)]
            # First set the layer as the lowest are. Its threshold is then the least that an identity may have, and its
            # parameters are what it goes back to if the identity fails.
            as_drawn = copy.deepcopy(cell.state_dict())
            missed = lowest.set_layer(layer, points, seed)
            at_rate = copy.deepcopy(cell.state_dict())
            threshold_at_rate = layer.resting_threshold().mean().item()
            cell.load_state_dict(as_drawn)
            zero_biases(layer)
            margin = lower_thresholds(layer, threshold_at_rate, self.adaptation)
            passed = best_identity(layer, layer_input, margin)
            if passed >= PASSED_ON:
                identity.append(layer.index + 1)
                return []
            cell.load_state_dict(at_rate)
            problem = f"as an identity layer it would pass on {passed:.0%} of its spikes"
            return [layer.finding(problem, _KEEPS), *missed]

        # an identity fires as the layer below does, not at the rate
        report = lowest.set_all(network, inputs, seed, set_layer, other_rates=identity)
        done = ""
        if identity:
            done = f"; identity: layer {', '.join(map(str, identity))}"
        elif any(layer.index >= self.drawn for layer in layers):
            done = "; no identity layer"
        return InitReport(report, report.summary + done)
