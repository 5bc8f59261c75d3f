"""Initialisers that set firing rates: by thresholds, by scales of each layer, by identity layers."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neurolsc.init.base import (
    Initialiser,
    InitReport,
    Layer,
    by_neuron,
    first_input,
    generator,
    layers_of,
    register,
    scaling,
    set_nonzero,
)
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import WeightMatrix, is_frozen, weight_matrices
from neurolsc.stability.conditions import NO_SURROGATE, Finding, surrogate_fault, surrogate_slope
from neurolsc.stability.profile import depth_radius, mean_time_radius
from neurolsc.stability.sampling import affordable
from neurolsc.stability.scale import (
    Points,
    layer_points,
    match_firing_rates,
    no_thresholds,
    rate,
    scale_to_rate,
    settle,
)
from neurolsc.stability.transitions import Transitions, draw_steps, flat, follow, without
from neurolsc.validation import number, whole


@register
@dataclass(frozen=True)
class FiringRate(Initialiser):
    r"""Thresholds scaled layer by layer until each fires at one rate; weights stay.

    .. math:: \vartheta_l \leftarrow c_l \vartheta_l, \quad
        \frac{1}{TBN} \sum_{t,b,i} z_{t,b,i}(c_l) = r

    With an ALIF's whole threshold, :math:`b_\vartheta` and :math:`\beta`, see :func:`neurolsc.match_firing_rates`. A
    rate that no scale from 1e-3 to 1e3 reaches within a tenth is approached as near as it goes, and is a finding.

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
            if abs(fires - self.rate) > 0.1 * self.rate:
                problem = f"fires {fires:.3g} spikes per neuron and step, not {self.rate:g}"
                jumps = "its rate moves in jumps; take a wider layer, or weaker recurrence"
                found.append(Finding(layer, problem, jumps if fires else "raise its weights"))
        return tuple(found)


def _require_thresholds(layer: Layer) -> None:
    thresholds = layer.cell.thresholds()
    if thresholds is None:
        raise TypeError(no_thresholds(layer.name))
    if any(is_frozen(layer.cell, name) for name in thresholds.names):
        raise ValueError(f"{layer.name} has frozen thresholds, which no rate may move.")


def _surrogate_faults(network: Network) -> list[Finding]:
    found = (surrogate_fault(network.cells[layer], layer) for layer in network.spiking)
    return [finding for finding in found if finding is not None]


# ---------------------------------------------------------------- by source

_REACH = 1e4  # largest factor of thresholds
_SETTLED = 0.01  # of a radius, as a share
_ROUNDS = 8  # most rounds for each layer
_MISSED = {  # what is reported of a target that is missed
    "depth": ("radius of the depth", "no scale of w_in moves it: let the layer below fire"),
    "recurrence": ("recurrent current as a share of the input's", "set recurrence=0"),
    "time": (
        "radius through time",
        "it is due to leaks, thresholds or the reset: no scale of the recurrence brings it down",
    ),
    "rate": ("firing rate", "it moves in jumps: take a wider layer or a weaker recurrence"),
}


def recurrence_share(t: Transitions) -> float:
    r"""The recurrent current as a share of the input's, with g the step and norms over all points.

    .. math:: \frac{\lVert g(x, z; W) - g(x, z; 0) \rVert}{\lVert g(x, z; W) - g(0, z; W) \rVert}

    0 without recurrent synapses; infinite where the input moves nothing.
    """
    with torch.no_grad():
        z = t.cell.output(t.before)
        step = flat(t.cell.update(t.x, z, t.before))
        by_input = (step - flat(t.cell.update(torch.zeros_like(t.x), z, t.before))).norm().item()
        with without(weight_matrices(t.cell, "time")):
            by_spikes = (step - flat(t.cell.update(t.x, z, t.before))).norm().item()
    return by_spikes / by_input if by_input else math.inf if by_spikes else 0.0


@register
@dataclass(frozen=True)
class LayerwiseScaling(Initialiser):
    r"""Scale each layer to a depth radius, a ratio of recurrent to input current, and a firing rate.

    .. math:: \mathrm{E}\,\rho\Big(\frac{\partial h[t, l]}{\partial h[t', l-1]}\Big) = \rho_{depth},
        \quad \lVert W_{rec, l}\, z_l \rVert \le c\, \lVert W_{in, l}\, z_{l-1} \rVert,
        \quad \mathrm{E}\, z_l = r

    bottom up, by scales of the input matrices, the recurrent matrices and the thresholds of each layer, in rounds. The
    radius through time of a spiking layer is mostly that of its leaks, which are its memory and no instability: time
    constants stay. So does the input matrix of the first layer, whose derivative by the input has no surrogate.

    Attributes:
        depth: wanted radius through depth of every layer but the first; 0: w_in stays.
        recurrence: c, a bound on the recurrent current as a share of the input current. Recurrent weights are only ever
            scaled down. 0: no recurrence before training.
        rate: spikes per neuron and step; 0: thresholds stay.
        time: bound on the mean radius through time; where it is above, the recurrence is scaled down until it is not.
        samples: samples of the first batch at which radii are taken.
        steps: time steps at which they are.

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
        for name in ("depth", "recurrence", "time"):
            number(name, getattr(self, name), zero_allowed=name != "time")
        whole("samples", self.samples)
        whole("steps", self.steps)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> InitReport:
        """Set all layers on the first batch; radii and rates that miss by 5 % are findings."""
        for layer in layers_of(network, "inputs"):
            if self.rate:
                _require_thresholds(layer)
        return self.set_all(network, inputs, seed, lambda layer, points: self.set_layer(layer, points, seed), [])

    def set_all(
        self,
        network: Network,
        inputs: Sequence[Tensor],
        seed: int,
        set_layer: Callable[[Layer, Points], list[Finding]],
        identity: list[int],
    ) -> InitReport:
        """Set layer after layer on the first input, and report rates and radii before and after on the last one.

        `set_layer` may append to `identity` layers, counted from 1, whose rates there are no findings.
        """
        found, x, last = list[Finding](), first_input(network, inputs), first_input(network, inputs[-1:])
        for fault in _surrogate_faults(network):
            if fault.name == NO_SURROGATE:
                raise ValueError(str(fault))

        def drawn(x: Tensor) -> tuple[Tensor, Tensor]:  # samples and steps of a batch
            draw = generator(seed, "points")
            some = torch.randperm(x.shape[1], generator=draw)[: self.samples].to(x.device)
            return some, draw_steps(x.shape[0], min(self.steps, x.shape[0]), draw)

        def measured() -> tuple[list[float], list[float], str, str]:
            some, times = drawn(last)
            spikes, layers = network.run(last).spikes, list(network.spiking)
            rates = [spikes[layer].double().mean().item() for layer in layers]
            transitions, _ = follow(network, last[:, some], times)
            radii = [mean_time_radius(transitions[layer], layer) for layer in layers]
            span = " to ".join(dict.fromkeys(f"{end:.2g}" for end in (min(rates), max(rates))))
            return rates, radii, span, f"{max(radii):.3g}"

        with eval_mode(network), torch.no_grad():
            _, _, rates_before, radius_before = measured()
            some, times = drawn(x)
            for index, points in enumerate(layer_points(network, x, some, times)):
                if index in network.spiking:
                    found += set_layer(Layer(network, index), points)
            rates, radii, rates_after, radius_after = measured()
        found = _surrogate_faults(network) + found
        known = {finding.layer for finding in found}
        for layer, fires, radius in zip((i + 1 for i in network.spiking), rates, radii, strict=True):
            if self.rate and layer not in known | set(identity) and abs(fires / self.rate - 1) > 0.25:
                problem = f"fires {fires:.2g} spikes per neuron and step on another batch, not {self.rate:g}"
                found.append(Finding(layer, problem, "give the initialisation a larger first batch"))
            if layer not in known and radius > 1.05 * self.time:
                problem = f"{_MISSED['time'][0]} {radius:.3g} on another batch, above {self.time:g}"
                found.append(Finding(layer, problem, _MISSED["time"][1]))
        summary = f"spikes per neuron and step {rates_before} -> {rates_after}, "
        return InitReport(found, f"{summary}largest radius through time {radius_before} -> {radius_after}")

    def set_layer(self, layer: Layer, points: Points, seed: int) -> list[Finding]:
        """Set one layer; the findings are what it misses."""
        cell, own = layer.cell, layer.recurrent
        below = weight_matrices(cell, "depth") if layer.index else ()
        for matrix in own if self.recurrence == 0 else ():
            set_nonzero(matrix, torch.zeros_like(matrix.weights))
        moved = {"depth": (below, self.depth), "recurrence": (own, self.recurrence)}
        wanted = {name: target for name, (matrices, target) in moved.items() if matrices and target}

        def measure(name: str) -> float:
            now = points.now()
            if name == "recurrence":
                return recurrence_share(now)
            if name == "time":
                return mean_time_radius(now, layer.index)
            now = now.at(affordable(len(now.x), min(now.states, now.states_below)))
            return depth_radius(now, layer.index, "submatrix", generator(seed, layer.index)).radius.mean().item()

        def fire() -> float:
            """Scale the thresholds to the rate wanted; the rate reached."""
            thresholds = cell.thresholds()
            if not self.rate or thresholds is None:
                return rate(cell, points.read)
            return scale_to_rate(cell, thresholds, points.read, self.rate, reach=_REACH)

        share = 1.0  # of the drawn recurrence

        def approach() -> None:
            nonlocal share
            for _ in range(_ROUNDS):
                fire()
                factors = {}
                for name, target in wanted.items():  # linear, at most tenfold in a round; 0 is moved by nothing
                    now = measure(name)
                    factors[name] = min(max(target / now, 0.1), 10.0) if now else 1.0
                if "recurrence" in factors:  # a bound: at most the weights as they were drawn
                    factors["recurrence"] = min(factors["recurrence"], 1 / share)
                    share *= factors["recurrence"]
                if all(abs(factor - 1) < _SETTLED for factor in factors.values()):
                    break
                for name, factor in factors.items():
                    for matrix in moved[name][0]:
                        set_nonzero(matrix, factor * matrix.weights)

        approach()
        bounded = bool(own) and measure("time") > (1 + _SETTLED) * self.time
        if bounded:  # scale the recurrence down until the radius through time is at its bound
            wanted.pop("recurrence", None)
            scale, reach, close = scaling(own), math.log(_REACH), _SETTLED * self.time
            settle(lambda log: (scale(log), fire()), lambda: measure("time"), self.time, reach=reach, close=close)
            approach()
        reached = {"rate": fire()} | {name: measure(name) for name in wanted}
        if "recurrence" in reached:
            reached["recurrence"] = max(reached["recurrence"], self.recurrence)
        if bounded:
            reached["time"], wanted["time"] = max(measure("time"), self.time), self.time
        if self.rate:
            wanted["rate"] = self.rate
        missed = [name for name, target in wanted.items() if abs(reached[name] / target - 1) > 0.05]
        texts = {name: f"{_MISSED[name][0]} {reached[name]:.3g}, not {wanted[name]:g}" for name in missed}
        return [layer.finding(texts[name], _MISSED[name][1]) for name in missed]


# ---------------------------------------------------------------- identity layers


_WHOLE = 0.95  # share of the spikes passed on below which a layer keeps its drawn weights instead
_KEEPS = "nothing to do: it keeps its drawn weights, and its thresholds are scaled to the rate"
_CLOSEST = 0.02  # least distance from the threshold at a spike of an identity layer, in thresholds


@register
@dataclass(frozen=True)
class Relay(Initialiser):
    r"""Layers above the lowest pass on every spike that they read.

    .. math:: W_{in, l} = (1 + m_l)\, \mathrm{diag}(\vartheta_l), \quad
        W_{rec, l} = -\mathrm{diag}(r_l)

    .. math:: v[t, l] = (1 + m_l)\, \vartheta_l\, z[t', l-1], \quad z[t, l] = z[t', l-1]

    where r is the voltage that a neuron without recurrence has left one step after its spike, if it reads nothing. A
    neuron without recurrent weights gets the m that leaves nothing. :math:`W_{in}` is divided by the share of a current
    that a voltage takes. Biases of these layers are 0.

    The margin m is the distance, in thresholds, at which the surrogate's derivative is a quarter of its largest, at
    most 1: 1 for a fast sigmoid of sharpness 1 and a threshold of 1. Under a narrow surrogate an identity layer at rest
    would pass next to no gradient: where it would be less than a tenth of the most, its threshold is lowered until it
    is that, or to where the drawn layer fires at ``rate`` if that is higher.

    The lowest layers keep their random weights, at a rate and with a bounded recurrence, as by
    :class:`LayerwiseScaling`.
    Resting thresholds of identity layers, where these can be set, are equal; what spikes add to a threshold is a share
    of what it was. A layer wider than the one below reads its neurons in turn. A layer is set as the lowest are where
    it is narrower, as an output layer often is, or where as an identity layer it would pass on less than 95 % of its
    spikes: a neuron that remembers, such as norse's LIF.

    Attributes:
        rate: spikes per neuron and step; 0: the thresholds of the lowest layers stay.
        recurrence: bound on the recurrent current of the lowest layers, as a share of their input current; 0: none.
        time: bound on their mean radius through time.
        adaptation: share that is left of what spikes add to the thresholds of identity layers.
        drawn: how many are the lowest; a network of no more has no identity layers.

    Source: ours; after the identity initialisation of rate networks, through time (Le, Jaitly & Hinton,
    arXiv:1504.00941) and through depth (Zhao, Schäfer & Anandkumar, arXiv:2110.12661).
    """

    rate: float = 0.15
    recurrence: float = 0.2
    time: float = 1.0
    adaptation: float = 0.01
    drawn: int = 2

    def __post_init__(self) -> None:
        self._lowest()  # refuses a rate or a bound
        number("adaptation", self.adaptation, zero_allowed=True)
        whole("drawn", self.drawn, at_least=0)

    def _lowest(self) -> LayerwiseScaling:
        return LayerwiseScaling(depth=0, recurrence=self.recurrence, rate=self.rate, time=self.time)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> InitReport:
        """Set all layers on the first batch; what is no identity layer, or is missed, is a finding."""
        lowest, identity, layers = self._lowest(), list[int](), layers_of(network, "inputs")
        for layer in layers:
            if layer.index < self.drawn:
                if self.rate:
                    _require_thresholds(layer)
                continue
            layer.require("membrane")
            if layer.cell.thresholds() is not None:  # of which an identity layer changes what spikes add
                _require_thresholds(layer)
            if any(matrix.weights.ndim > 2 for matrix in layer.matrices):
                raise TypeError(
                    f"{layer.name} is a convolution: an identity layer needs a matrix. Use FiringRate(0.15)."
                )

        def set_layer(layer: Layer, points: Points) -> list[Finding]:
            cell, read = layer.cell, points.read
            if layer.index < self.drawn:
                return lowest.set_layer(layer, points, seed)
            if not read.any():
                return [layer.finding("reads no spikes", "let the layer below fire")]
            if cell.n_hidden < read.shape[-1]:
                few = f"as an identity layer it would read {cell.n_hidden} of {read.shape[-1]} neurons"
                return [layer.finding(few, _KEEPS), *lowest.set_layer(layer, points, seed)]
            drawn = copy.deepcopy(cell.state_dict())
            missed = lowest.set_layer(layer, points, seed)
            at_rate, rate_matched = copy.deepcopy(cell.state_dict()), layer.resting_threshold().mean().item()
            cell.load_state_dict(drawn)
            same = self._make_identity(layer, read, rate_matched)
            if same >= _WHOLE:
                identity.append(layer.index + 1)
                return []
            cell.load_state_dict(at_rate)
            return [layer.finding(f"as an identity layer it would pass on {same:.0%} of its spikes", _KEEPS), *missed]

        report = lowest.set_all(network, inputs, seed, set_layer, identity)
        none = "; no identity layer" if any(layer.index >= self.drawn for layer in layers) else ""
        done = f"; identity: layer {', '.join(map(str, identity))}" if identity else none
        return InitReport(report, report.summary + done)

    def _make_identity(self, layer: Layer, read: Tensor, rate_matched: float) -> float:
        """Make a layer the identity; the share of its spikes that it has read and sends."""
        cell, own, thresholds = layer.cell, layer.recurrent, layer.cell.thresholds()
        theta = layer.resting_threshold().mean().item()
        along = torch.cat([torch.zeros(1), torch.logspace(-3, 0, 601)]).to(**cell.dtype_and_device) * theta
        slope = surrogate_slope(layer.membrane, along).mean(1).nan_to_num(0, 0, 0).clamp(min=0)
        quarter, tenth = (along[slope >= share * slope.max()][-1].item() for share in (0.25, 0.1))
        if thresholds is not None:
            theta = min(theta, max(tenth, rate_matched))
            rest = thresholds.rest()
            if rest is None:
                thresholds.scale(theta / layer.resting_threshold().mean().item())
            else:
                thresholds.scale(self.adaptation)
                thresholds.set_rest(torch.full_like(rest, theta))
        for module in cell.modules():
            if isinstance(module, nn.Linear) and module.bias is not None and module.bias.requires_grad:
                module.bias.zero_()
        theta, drawn = layer.resting_threshold(), [matrix.weights.clone() for matrix in own]
        # a voltage may take a share of what it reads, such as 1/tau; a current that lasts adds up
        first, second = layer.impulse_response(2).round(decimals=3)
        taken = torch.where((first > 0) & (second <= first), first, 1.0)
        wanted = read[..., torch.arange(cell.n_hidden, device=read.device) % read.shape[-1]]

        def left(drive: Tensor) -> Tensor:
            """Set the input weights, in thresholds; the voltage left of a spike without recurrence."""
            for matrix in layer.inputs:
                set_nonzero(matrix, _diagonal(matrix, drive * theta / taken))
            for matrix in own:
                matrix.set(torch.zeros_like(matrix.weights))
            start = cell.initial_state(1)
            one = torch.ones(1, cell.n_in, **cell.dtype_and_device)
            fired = cell.update(one, cell.output(start), start)
            return layer.membrane.voltage(cell.update(0 * one, cell.output(fired), fired))[0].double().cpu()

        def passed_on(drive: Tensor) -> float:
            remains = left(drive)
            for matrix, weights in zip(own, drawn, strict=True):
                matrix.set(weights)  # what is 0 in them is no connection, and stays
                set_nonzero(matrix, _diagonal(matrix, -remains))
            sent = cell.run(read, cell.initial_state(read.shape[1]))[0]
            total = 0.5 * (sent.sum() + wanted.sum()).item()
            return (sent * wanted).sum().item() / total if total else 0.0

        widest = torch.full_like(theta, 2.0)
        drive = 1 + (quarter / theta).clamp(_CLOSEST, 1)
        if not own:
            at_two, at_less = left(widest), left(widest - 0.5)  # linear in the drive, or 0 at both
            exact = widest - 0.5 * at_two / (at_two - at_less)
            drive = torch.where((exact > 1 + _CLOSEST) & (exact < 2), exact, drive)
        same = passed_on(drive)
        return same if same >= _WHOLE else passed_on(widest)


def _diagonal(matrix: WeightMatrix, values: Tensor) -> Tensor:
    """Weights by which neuron i reads input i, modulo their number, with the i-th value."""
    n_hidden, n_in = matrix.weights.shape
    read = torch.arange(n_hidden)[:, None] % n_in == torch.arange(n_in)
    return by_neuron(values, matrix) * read
