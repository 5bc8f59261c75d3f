"""Starts at a firing rate: thresholds alone, what spikes do by its source, layers as relays."""

import copy
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.initialisers.base import (
    Initialiser,
    StartReport,
    by_neuron,
    first_input,
    generator,
    impulse_response,
    input_matrices,
    layer_name,
    membrane,
    put,
    register,
    resting_threshold,
    scaling,
    surrogate_faults,
)
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import Cell, Membrane, WeightMatrix, weight_matrices
from neurolsc.stability.findings import Finding
from neurolsc.stability.one_layer import again, bottom_up, gradient_gain, rate, recurrence_share, scale_to_rate, settle
from neurolsc.stability.profile import depth_radius, radius_profile, time_radius
from neurolsc.stability.scale import match_firing_rates, no_thresholds
from neurolsc.stability.transitions import Transitions, draw_steps
from neurolsc.validation import number, whole


@register
@dataclass(frozen=True)
class RateMatching(Initialiser):
    r"""Thresholds scaled layer by layer until each fires at one rate; weights stay.

    .. math:: \vartheta_l \leftarrow c_l \vartheta_l, \quad
        \frac{1}{TBN} \sum_{t,b,i} z_{t,b,i}(c_l) = r

    With an ALIF's whole threshold, :math:`b_\vartheta` and :math:`\beta`, see :func:`neurolsc.match_firing_rates`. A
    rate that no scale from 1e-3 to 1e3 reaches is approached as near as it goes, and is a finding.

    Attributes:
        rate: r, spikes per neuron and step.
        tolerance: how far a rate may be from it, as a share, without a finding.

    Source: ours.
    """

    rate: float
    tolerance: float = 0.1

    def __post_init__(self) -> None:
        number("tolerance", self.tolerance, zero_allowed=True)
        if not number("rate", self.rate) < 1:
            raise ValueError(f"rate must be spikes per neuron and step, in (0, 1), got {self.rate}.")

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Scale the thresholds on the first batch."""
        x = first_input(network, inputs)
        for layer in network.spiking:
            cell = network.cells[layer]
            before = {name: p.detach().clone() for name, p in cell.named_parameters()}
            if (thresholds := cell.thresholds()) is None:
                continue  # match_firing_rates refuses it
            thresholds.scale(2.0)
            frozen = [n for n, p in cell.named_parameters() if not (p.requires_grad or torch.equal(p, before[n]))]
            thresholds.scale(1.0)
            with torch.no_grad():
                for name, p in cell.named_parameters():
                    p.copy_(before[name])
            if frozen:
                raise ValueError(f"{layer_name(network, layer)} has frozen thresholds, which no rate may move.")
        reached = match_firing_rates(network, x, [self.rate] * len(network.cells), tolerance=math.inf)
        jumps = "its rate moves in jumps; take a wider layer, or weaker recurrence"
        return tuple(surrogate_faults(network)) + tuple(
            Finding(
                layer,
                f"fires {rate:.3g} spikes per neuron and step, not {self.rate:g}",
                jumps if rate else "raise its weights",
            )
            for layer, rate in enumerate(reached, start=1)
            if abs(rate - self.rate) > self.tolerance * self.rate
        )


# ---------------------------------------------------------------- by source

_REACH = 1e4  # largest factor of thresholds
_SETTLED = 0.01  # of a radius, as a share
_NAMES = {"depth": "radius of the depth", "recurrence": "recurrent current as a share of the input's"}
_CURES = {
    _NAMES["depth"]: "no scale of w_in moves it: let the layer below fire, where its surrogate has a derivative",
    _NAMES["recurrence"]: "no smaller scale of the recurrence lowers it: set recurrence=0",
    "radius through time": "its leaks hold it, or its thresholds: no scale of the recurrence brings it down",
    "firing rate": "it moves in jumps: take a wider layer or a weaker recurrence",
}


class Measured(NamedTuple):
    """What a start changes, of the spiking layers."""

    layers: list[int]  # counted from 1
    rates: list[float]  # spikes per neuron and step
    radius: float  # the largest of their mean radii through time


@register
@dataclass(frozen=True)
class BySource(Initialiser):
    r"""The radius through depth, the strength of the recurrence and the firing rate of each layer.

    .. math:: \mathrm{E}\,\rho\Big(\frac{\partial h[t, l]}{\partial h[t', l-1]}\Big) = \rho_{depth},
        \quad \lVert W_{rec, l}\, z_l \rVert \le c\, \lVert W_{in, l}\, z_{l-1} \rVert,
        \quad \mathrm{E}\, z_l = r

    bottom up, by a scale of the input matrices, one of the recurrent matrices and one of the thresholds of each layer,
    in rounds, since each moves the other two. The radius through time of a spiking layer is mostly that of its leaks,
    which are its memory and no instability: time constants stay as they are, for the task to set.

    The derivative of the first layer by the input holds no surrogate; its input matrix stays.

    Attributes:
        depth: wanted radius through depth of every layer but the first; 0: w_in stays.
        recurrence: c, a bound on the recurrent current as a share of the input current. Recurrent weights are only ever
            scaled down. As snnTorch draws them, the recurrent current of a first layer is five times its input. 0: no
            recurrence at the start.
        rate: spikes per neuron and step; 0: thresholds stay.
        time: bound on the mean radius through time; where it is above, the recurrence is scaled down until it is not.
        samples: samples of the first batch at which radii are taken.
        steps: time steps at which they are.
        rounds: most rounds for each layer.

    Source: ours, after arXiv:2308.12075, where radii are set whatever holds them.
    """

    depth: float = 0.6
    recurrence: float = 0.2
    rate: float = 0.15
    time: float = 1.0
    samples: int = 4
    steps: int = 8
    rounds: int = 8

    def __post_init__(self) -> None:
        for name in ("depth", "recurrence", "rate"):
            number(name, getattr(self, name), zero_allowed=True)
        number("time", self.time)
        if self.rate >= 1:
            raise ValueError(f"rate must be spikes per neuron and step, below 1, got {self.rate}.")
        for name in ("samples", "steps", "rounds"):
            whole(name, getattr(self, name))

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> StartReport:
        """Set all layers on the first batch; radii and rates that miss by 5 % are findings."""
        x, found = first_input(network, inputs), []
        for layer in network.spiking:
            self.refuse(network, layer)
        before = self.measured(network, inputs, seed)
        some, times = self.sampled(x, seed)
        with eval_mode(network), torch.no_grad():
            for layer, (read, points) in enumerate(bottom_up(network, x, some, times)):
                if layer in network.spiking:
                    found += self.set_layer(points, read, some, times, layer, seed)
        after = self.measured(network, inputs, seed)
        return self.report(before, after, surrogate_faults(network) + found, range(1, len(network.cells) + 1))

    def refuse(self, network: Network, layer: int) -> None:
        """Refuse a layer that cannot be set, before anything is changed."""
        input_matrices(network, layer)
        if self.rate and network.cells[layer].thresholds() is None:
            raise TypeError(no_thresholds(layer_name(network, layer)))

    def sampled(self, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """The samples and the steps of a batch at which radii are taken."""
        draw = generator(seed, "points")
        some = torch.randperm(x.shape[1], generator=draw)[: self.samples].to(x.device)
        return some, draw_steps(x.shape[0], min(self.steps, x.shape[0]), draw)

    def measured(self, network: Network, inputs: Sequence[Tensor], seed: int) -> Measured:
        """Rates and radii of the spiking layers on the last batch, which of several sets nothing."""
        x = first_input(network, inputs[-1:])
        some, times = self.sampled(x, seed)
        layers = list(network.spiking)
        with eval_mode(network), torch.no_grad():
            spikes = network.run(x).spikes
            rates = [spikes[layer].double().mean().item() for layer in layers]
            radii = radius_profile(network, x[:, some], steps=len(times), seed=seed).time_mean[layers]
        return Measured([layer + 1 for layer in layers], rates, radii.max().item())

    def report(
        self, before: Measured, after: Measured, found: Sequence[Finding], at_rate: Container[int], done: str = ""
    ) -> StartReport:
        """The findings, those on the last batch among them, and the summary that ends in `done`.

        Rates on the last batch are compared of the layers `at_rate`, counted from 1, that have no other finding.
        """
        known = {finding.layer for finding in found}
        unseen = [
            Finding(
                layer,
                f"fires {rate:.2g} spikes per neuron and step on another batch, not {self.rate:g}",
                "give the start a larger first batch",
            )
            for layer, rate in zip(after.layers, after.rates, strict=True)
            if self.rate and layer in at_rate and layer not in known and abs(rate / self.rate - 1) > 0.25
        ]
        spans = [[f"{end:.2g}" for end in (min(m.rates), max(m.rates))] for m in (before, after)]
        rates = " -> ".join(" to ".join(dict.fromkeys(span)) for span in spans)
        radii = f"{before.radius:.3g} -> {after.radius:.3g}"
        summary = f"spikes per neuron and step {rates}, largest radius through time {radii}{done}"
        return StartReport([*found, *unseen], summary)

    def set_layer(
        self, points: Transitions, read: Tensor, some: Tensor, times: Tensor, layer: int, seed: int
    ) -> list[Finding]:
        """Set one layer, whose radii are measured in some samples of what it reads; what it misses."""
        cell = points.cell
        below, own = weight_matrices(cell, "depth") if layer else (), weight_matrices(cell, "time")
        for matrix in own if self.recurrence == 0 else ():
            put(matrix, torch.zeros_like(matrix.weights))
        moved = {"depth": (below, self.depth), "recurrence": (own, self.recurrence)}
        wanted = {name: target for name, (matrices, target) in moved.items() if matrices and target}

        def measure(name: str) -> float:
            now = again(points, read[:, some], times)
            if name == "recurrence":
                return recurrence_share(now)
            if name == "time":
                return time_radius(now, layer).radius.mean().item()
            return depth_radius(now, layer, "submatrix", generator(seed, layer)).radius.mean().item()

        def wake() -> float:
            """Scale the thresholds to the rate wanted; the rate reached."""
            thresholds = cell.thresholds()
            if not self.rate or thresholds is None:
                return rate(cell, read)
            return scale_to_rate(cell, thresholds, read, self.rate, reach=_REACH)

        share = 1.0  # of the drawn recurrence

        def approach() -> None:
            nonlocal share
            for _ in range(self.rounds):
                wake()
                factors = {}
                for name, target in wanted.items():  # linear, at most tenfold in a round; 0 is moved by nothing
                    found = measure(name)
                    factors[name] = min(max(target / found, 0.1), 10.0) if found else 1.0
                if "recurrence" in factors:  # a bound: at most the weights as they were drawn
                    factors["recurrence"] = min(factors["recurrence"], 1 / share)
                    share *= factors["recurrence"]
                if all(abs(factor - 1) < _SETTLED for factor in factors.values()):
                    break
                for name, factor in factors.items():
                    for matrix in moved[name][0]:
                        put(matrix, factor * matrix.weights)

        approach()
        bounded = bool(own) and measure("time") > (1 + _SETTLED) * self.time
        if bounded:  # scale the recurrence down until the radius through time is at its bound
            wanted.pop("recurrence", None)
            scale, reach, close = scaling(own), math.log(_REACH), _SETTLED * self.time
            settle(lambda log: (scale(log), wake()), lambda: measure("time"), self.time, reach=reach, close=close)
            approach()
        fires = wake()
        reached = {name: measure(name) for name in wanted}
        if "recurrence" in reached:
            reached["recurrence"] = max(reached["recurrence"], self.recurrence)
        missed = [(_NAMES[name], reached[name], target) for name, target in wanted.items()]
        missed += [("radius through time", max(measure("time"), self.time), self.time)] if bounded else []
        missed += [("firing rate", fires, self.rate)] if self.rate else []
        return [
            Finding(layer + 1, f"{what} {is_now:.3g}, not {target:g}", _CURES[what])
            for what, is_now, target in missed
            if abs(is_now / target - 1) > 0.05
        ]


# ---------------------------------------------------------------- relays

_WHOLE = 0.95  # share of the spikes passed on below which a layer starts from its drawn weights instead
_CLOSEST = 0.02  # least distance from the threshold at a spike of a relay, in thresholds


@register
@dataclass(frozen=True)
class Relay(Initialiser):
    r"""Layers above the lowest pass on every spike that they read.

    .. math:: W_{in, l} = (1 + m_l)\, \mathrm{diag}(\vartheta_l), \quad
        W_{rec, l} = -\mathrm{diag}(r_l)

    .. math:: v[t, l] = (1 + m_l)\, \vartheta_l\, z[t', l-1], \quad z[t, l] = z[t', l-1]

    where r is the voltage that a neuron without recurrence has left one step after its spike, if it reads nothing: of a
    leaky neuron whose reset subtracts the threshold, :math:`((1 + m) e^{-1/\tau_v} - 1)\, \vartheta`. A neuron without
    recurrent weights gets the m that leaves nothing, :math:`m = e^{1/\tau_v} - 1`. :math:`W_{in}` is divided by the
    share of a current that a voltage takes, such as spikingjelly's :math:`1/\tau`. Biases of relays are 0. So what the
    last of the lowest layers sends leaves the network as it was.

    The margin m is the distance, in thresholds, at which the surrogate's derivative is a quarter of its largest, at
    most 1: 1 for a fast sigmoid of sharpness 1 and a threshold of 1, 0.04 for snnTorch's ``fast_sigmoid(slope=25)``,
    which at a margin of 1 would pass 1/676 of the gradient. Layers of random weights scatter what they read instead: of
    what set samples apart, ten of them left 0.00 to 0.08 in the study, relays 0.86.

    The lowest layers keep their random weights. They fire at a given rate, and their recurrence is scaled down to a
    share of their input, and until their radius through time is at a bound, as :class:`BySource` sets them. So there
    are two layers to code the input and to mix it, and those above do no harm until they learn. Resting thresholds of
    relays, where they can be set, are set to their mean, and what spikes add to a threshold to a share of what it was:
    else the spikes of a series are not passed on. Recurrence and adaptation are there for the training to find. A layer
    of another width than the one below reads its neurons in turn, some more than once or not all.

    A layer keeps its drawn weights, and is set as the lowest are, where as a relay it would pass on less than 95 % of
    its spikes (a neuron that remembers, such as norse's LIF), or pass back less than a tenth of the gradient and less
    than half of what its drawn weights pass (a leaky neuron without recurrence under a narrow surrogate).

    Attributes:
        rate: spikes per neuron and step; 0: the thresholds of the lowest layers stay.
        recurrence: bound on the recurrent current of the lowest layers, as a share of their input current; 0: none.
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
            if layer < self.drawn:
                lowest.refuse(network, layer)
                continue
            membrane(network, layer)
            for matrix in (*input_matrices(network, layer), *weight_matrices(network.cells[layer], "time")):
                if matrix.weights.ndim > 2:
                    name = layer_name(network, layer)
                    raise TypeError(f"{name} is a convolution: a relay needs a matrix. Use RateMatching(0.15).")
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
                if same >= _WHOLE and passed >= min(0.1, 0.5 * gain):
                    relays.append(layer + 1)
                    continue
                cell.load_state_dict(as_woken)
                lacks = f"hand on {same:.0%} of its spikes"
                if same >= _WHOLE:
                    lacks = f"pass back {passed:.2g} of the gradient, with drawn weights {gain:.2g}"
                keeps = "nothing to do: it keeps its drawn weights and is woken"
                found += [Finding(layer + 1, f"as a relay it would {lacks}", keeps), *woken]
        none = "; no relays" if any(layer >= self.drawn for layer in network.spiking) else ""
        done = f"; relays: layer {', '.join(map(str, relays))}" if relays else none
        at_rate = set(range(1, len(network.cells) + 1)) - set(relays)
        after = lowest.measured(network, inputs, seed)
        return lowest.report(before, after, surrogate_faults(network) + found, at_rate, done)

    def _set(self, network: Network, layer: int, read: Tensor) -> float:
        """Make a relay of a layer; the share of its spikes that it has read and sends."""
        cell, of = network.cells[layer], membrane(network, layer)
        thresholds, own, below = cell.thresholds(), weight_matrices(cell, "time"), input_matrices(network, layer)
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
        wanted = read[..., torch.arange(cell.n_hidden, device=read.device) % read.shape[-1]]

        def left(drive: Tensor) -> Tensor:
            """Set the input weights, in thresholds; the voltage left of a spike without recurrence."""
            for matrix in below:
                put(matrix, _diagonal(matrix, drive * theta / taken))
            for matrix in own:
                matrix.set(torch.zeros_like(matrix.weights))
            start = cell.initial_state(1)
            one = torch.ones(1, cell.n_in, **cell.dtype_and_device)
            fired = cell.update(one, cell.output(start), start)
            return of.voltage(cell.update(0 * one, cell.output(fired), fired))[0].double().cpu()

        def passed_on(drive: Tensor) -> float:
            remains = left(drive)
            for matrix, weights in zip(own, drawn, strict=True):
                matrix.set(weights)  # what is 0 in them is no connection, and stays
                put(matrix, _diagonal(matrix, -remains))
            sent = cell.run(read, cell.initial_state(read.shape[1]))[0]
            total = 0.5 * (sent.sum() + wanted.sum()).item()
            return (sent * wanted).sum().item() / total if total else 0.0

        widest = torch.full_like(theta, 2.0)
        drive = torch.full_like(theta, 1 + max(margin(cell, of), _CLOSEST))
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
    return along.flatten()[passed >= 0.25 * passed.max()][-1].item()
