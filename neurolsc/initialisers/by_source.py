"""Local stability by source, at a given rate: what spikes do is set, leaks are left to the task."""

import math
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.initialisers.cells import input_synapses, put, told
from neurolsc.initialisers.initialiser import Initialiser, StartReport, first_input, generator, surrogate_faults
from neurolsc.initialisers.spec import register
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import Cell, WeightMatrix, weight_matrices
from neurolsc.stability.findings import Finding
from neurolsc.stability.lsc.rates import no_thresholds
from neurolsc.stability.one_layer import again, bottom_up, rate, recurrence_share, scale_to_rate, settle
from neurolsc.stability.profile import depth_radius, radius_profile, time_radius
from neurolsc.stability.transitions import Transitions, draw_steps
from neurolsc.validation import number, whole

_SETTLED = 0.01  # of a radius, as a share
_MISSED = 0.05  # likewise: told
_WIDEST = 10.0  # a factor of weights in one round
_REACH = 1e4  # likewise of thresholds
_UNSEEN = 0.25  # of a rate on another batch, as a share
_LARGER = "give the start a larger first batch"
_NAMES = {"depth": "radius of the depth", "recurrence": "recurrent current as a share of the input's"}
_CURES = {
    _NAMES["depth"]: "no scale of w_in moves it: let the layer below fire, where its surrogate has a derivative",
    _NAMES["recurrence"]: "no smaller scale of the recurrence lowers it: set recurrence=0",
    "radius through time": "its leaks hold it, or its thresholds: no scale of the recurrence brings it down",
    "firing rate": "it moves in jumps: take a wider layer or a weaker recurrence",
}


@register
@dataclass(frozen=True)
class BySource(Initialiser):
    r"""The radius through depth, the strength of the recurrence and the firing rate of each layer.

    .. math:: \mathrm{E}\,\rho\Big(\frac{\partial h[t, l]}{\partial h[t', l-1]}\Big) = \rho_{depth},
        \quad \lVert W_{rec, l}\, z_l \rVert \le c\, \lVert W_{in, l}\, z_{l-1} \rVert,
        \quad \mathrm{E}\, z_l = r

    bottom up, by a scale of the input matrices, one of the recurrent matrices and one of the
    thresholds of each layer, in rounds, since each moves the other two. The radius through time of
    a spiking layer is mostly that of its leaks, which are its memory and no instability: time
    constants stay as they are, for the task to set.

    The derivative of the first layer by the input holds no surrogate; its input matrix stays.

    Attributes:
        depth: wanted radius through depth of every layer but the first; 0: w_in stays.
        recurrence: c, a bound on the recurrent current as a share of the input current
            (:func:`neurolsc.stability.one_layer.recurrence_share`). Recurrent weights are only
            ever scaled down. As snnTorch draws them, the recurrent current of a first layer is
            five times its input. 0: no recurrence at the start.
        rate: spikes per neuron and step; 0: thresholds stay.
        time: bound on the mean radius through time; where it is above, the recurrence is scaled
            down until it is not.
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

    def measured(self, network: Network, inputs: Sequence[Tensor], seed: int) -> "Measured":
        """Rates and radii of the spiking layers on the last batch: of several it sets nothing."""
        x = first_input(network, inputs[-1:])
        some, times = self.sampled(x, seed)
        layers = list(network.spiking)
        with eval_mode(network), torch.no_grad():
            spikes = network.run(x).spikes
            rates = [spikes[layer].double().mean().item() for layer in layers]
            radii = radius_profile(network, x[:, some], steps=len(times), seed=seed).time_mean[layers]
        return Measured([layer + 1 for layer in layers], rates, radii.max().item())

    def report(
        self, before: "Measured", after: "Measured", found: Sequence[Finding], at_rate: Container[int], done: str = ""
    ) -> StartReport:
        """The findings, those on the last batch among them, and the line that says what was done.

        Args:
            before: measured before the start.
            after: measured after it.
            found: what the first batch showed.
            at_rate: the layers, counted from 1, that were set to the rate.
            done: the end of the line.
        """
        known = {finding.layer for finding in found}
        unseen = [
            Finding(layer, f"fires {rate:.2g} spikes per neuron and step on another batch, not {self.rate:g}", _LARGER)
            for layer, rate in zip(after.layers, after.rates, strict=True)
            if self.rate and layer in at_rate and layer not in known and abs(rate / self.rate - 1) > _UNSEEN
        ]
        rates = " -> ".join(_span(m.rates) for m in (before, after))
        radii = " -> ".join(f"{m.radius:.3g}" for m in (before, after))
        summary = f"spikes per neuron and step {rates}, largest radius through time {radii}{done}"
        return StartReport([*found, *unseen], summary)

    def refuse(self, network: Network, layer: int) -> None:
        """Refuse a layer that cannot be set, before anything is changed."""
        input_synapses(network, layer)
        if self.rate and network.cells[layer].thresholds() is None:
            raise TypeError(no_thresholds(told(network, layer)))

    def sampled(self, x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """The samples and the steps of a batch at which radii are taken."""
        draw = generator(seed, "points")
        some = torch.randperm(x.shape[1], generator=draw)[: self.samples].to(x.device)
        return some, draw_steps(x.shape[0], min(self.steps, x.shape[0]), draw)

    def set_layer(
        self, points: Transitions, read: Tensor, some: Tensor, times: Tensor, layer: int, seed: int
    ) -> list[Finding]:
        """Set one layer, which reads that and is looked at in some samples; what it misses."""
        cell = points.cell
        below, own = weight_matrices(cell, "depth") if layer else (), weight_matrices(cell, "time")
        for matrix in own if self.recurrence == 0 else ():
            put(matrix, torch.zeros_like(matrix.weights))
        moved = {"depth": (below, self.depth), "recurrence": (own, self.recurrence)}
        wanted = {name: target for name, (matrices, target) in moved.items() if matrices and target}

        def now() -> Transitions:
            return again(points, read[:, some], times)

        taken = {
            "depth": lambda: depth_radius(now(), layer, "submatrix", generator(seed, layer)).radius.mean().item(),
            "recurrence": lambda: recurrence_share(now()),
            "time": lambda: time_radius(now(), layer).radius.mean().item(),
        }
        share = 1.0  # of the drawn recurrence

        def approach() -> None:
            nonlocal share
            for _ in range(self.rounds):
                self._wake(cell, read)
                factors = {name: _factor(taken[name](), target) for name, target in wanted.items()}
                if "recurrence" in factors:  # a bound: at most the weights as they were drawn
                    factors["recurrence"] = min(factors["recurrence"], 1 / share)
                    share *= factors["recurrence"]
                if all(abs(factor - 1) < _SETTLED for factor in factors.values()):
                    break
                for name, factor in factors.items():
                    for matrix in moved[name][0]:
                        put(matrix, factor * matrix.weights)

        approach()
        bounded = bool(own) and taken["time"]() > (1 + _SETTLED) * self.time
        if bounded:
            wanted.pop("recurrence", None)
            self._calm(cell, own, read, taken["time"])
            approach()
        fires = self._wake(cell, read)
        reached = {name: taken[name]() for name in wanted}
        if "recurrence" in reached:
            reached["recurrence"] = max(reached["recurrence"], self.recurrence)
        missed = [(_NAMES[name], reached[name], target) for name, target in wanted.items()]
        missed += [("radius through time", max(taken["time"](), self.time), self.time)] if bounded else []
        missed += [("firing rate", fires, self.rate)] if self.rate else []
        return [
            Finding(layer + 1, f"{what} {is_now:.3g}, not {target:g}", _CURES[what])
            for what, is_now, target in missed
            if abs(is_now / target - 1) > _MISSED
        ]

    def _calm(self, cell: Cell, own: Sequence[WeightMatrix], read: Tensor, radius: Callable[[], float]) -> None:
        """Scale a recurrence down until the radius through time is at its bound."""
        drawn = [matrix.weights.clone() for matrix in own]

        def scale(log: float) -> None:
            for matrix, weights in zip(own, drawn, strict=True):
                put(matrix, math.exp(log) * weights)
            self._wake(cell, read)

        settle(scale, radius, self.time, reach=math.log(_REACH), close=_SETTLED * self.time)

    def _wake(self, cell: Cell, read: Tensor) -> float:
        """Scale the thresholds of a cell to the rate wanted; the rate reached."""
        thresholds = cell.thresholds()
        if not self.rate or thresholds is None:
            return rate(cell, read)
        return scale_to_rate(cell, thresholds, read, self.rate, reach=_REACH)


class Measured(NamedTuple):
    """What a start changes: see :meth:`BySource.measured`."""

    layers: list[int]
    """the spiking layers, counted from 1"""
    rates: list[float]
    """spikes per neuron and step of each"""
    radius: float
    """the largest of their mean radii through time"""


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2g}", f"{max(values):.2g}"
    return low if low == high else f"{low} to {high}"


def _factor(found: float, target: float) -> float:
    """What brings a linear radius to its target; 1 where nothing moves it."""
    return min(max(target / found, 1 / _WIDEST), _WIDEST) if found else 1.0
