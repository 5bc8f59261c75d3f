"""Local stability by source, at a given rate: what spikes do is set, leaks are left to the task."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.initialisers.cells import input_synapses, put, told
from neurolsc.initialisers.initialiser import Initialiser, first_input, generator
from neurolsc.initialisers.spec import register
from neurolsc.modes import evaluating
from neurolsc.network import Network
from neurolsc.neurons.cell import Cell
from neurolsc.neurons.synapses import Synapses, synapses
from neurolsc.stability.findings import Finding
from neurolsc.stability.lsc.rates import no_thresholds
from neurolsc.stability.measure import depth_radius, time_radius
from neurolsc.stability.one_layer import again, bottom_up, rate, scale_to_rate
from neurolsc.stability.profile import draw_steps
from neurolsc.stability.recurrence import recurrence_radius
from neurolsc.stability.roots import settle
from neurolsc.stability.transition import Transitions
from neurolsc.validation import number, whole

_SETTLED = 0.01  # of a radius, as a share
_MISSED = 0.05  # likewise: told
_WIDEST = 10.0  # a factor of weights in one round
_REACH = 1e4  # likewise of thresholds
_CURES = {
    "radius of the depth": "no scale of w_in moves it: let the layer below fire, where its surrogate has a derivative",
    "radius of the recurrence": "no smaller scale of the recurrence lowers it: set recurrence=0",
    "radius through time": "its leaks hold it, or its thresholds: no scale of the recurrence brings it down",
    "firing rate": "it moves in jumps: take a wider layer or a weaker recurrence",
}


@register
@dataclass(frozen=True)
class BySource(Initialiser):
    r"""Radii of what spikes do, through depth and through the recurrence, at a given firing rate.

    .. math:: \mathrm{E}\,\rho\Big(\frac{\partial h[t, l]}{\partial h[t', l-1]}\Big) = \rho_{depth},
        \quad \mathrm{E}\,\rho(\mathrm{diag}(s_l)\, W_{rec, l}) \le \rho_{rec},
        \quad \mathrm{E}\, z_l = r

    bottom up, by a scale of the input matrices, one of the recurrent matrices and one of the
    thresholds of each layer, in rounds, since each moves the other two. The radius through time of
    a spiking layer is mostly that of its leaks, which are its memory and no instability: time
    constants stay as they are, for the task to set.

    The derivative of the first layer by the input holds no surrogate; its input matrix stays.

    Attributes:
        depth: wanted radius through depth of every layer but the first; 0: w_in stays.
        recurrence: bound on the mean radius of the recurrence, see
            :mod:`neurolsc.stability.recurrence`. Recurrent weights are only ever scaled down: a
            narrow surrogate (snnTorch's ``fast_sigmoid(slope=25)``) passes next to no derivative,
            and weights that were raised until the radius is there would drown the input. 0: no
            recurrence at the start. Layers without recurrent matrices have none to set.
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

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set all layers on the first batch; told are radii and rates that miss by 5 %."""
        x, found = first_input(network, inputs), []
        for layer in network.spiking:
            self.refuse(network, layer)
        some, times = self.sampled(x, seed)
        with evaluating(network), torch.no_grad():
            for layer, (read, points) in enumerate(bottom_up(network, x, some, times)):
                if layer in network.spiking:
                    found += self.set_layer(points, read, some, times, layer, seed)
        return tuple(found)

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
        below, own = synapses(cell, "depth") if layer else (), synapses(cell, "time")
        for matrix in own if self.recurrence == 0 else ():
            put(matrix, torch.zeros_like(matrix.weights))
        moved = {"depth": (below, self.depth), "recurrence": (own, self.recurrence)}
        wanted = {name: target for name, (matrices, target) in moved.items() if matrices and target}

        def now() -> Transitions:
            return again(points, read[:, some], times)

        taken = {
            "depth": lambda: depth_radius(now(), layer, "submatrix", generator(seed, layer)).radius,
            "recurrence": lambda: recurrence_radius(now()),
            "time": lambda: time_radius(now(), layer).radius,
        }

        def radius(name: str) -> float:
            return taken[name]().mean().item()

        share = 1.0  # of the drawn recurrence

        def approach() -> None:
            nonlocal share
            for _ in range(self.rounds):
                self._wake(cell, read)
                factors = {name: _factor(radius(name), target) for name, target in wanted.items()}
                if "recurrence" in factors:  # a bound: at most the weights as they were drawn
                    factors["recurrence"] = min(factors["recurrence"], 1 / share)
                    share *= factors["recurrence"]
                if all(abs(factor - 1) < _SETTLED for factor in factors.values()):
                    break
                for name, factor in factors.items():
                    for matrix in moved[name][0]:
                        put(matrix, factor * matrix.weights)

        approach()
        bounded = bool(own) and radius("time") > (1 + _SETTLED) * self.time
        if bounded:
            wanted.pop("recurrence", None)
            self._calm(cell, own, read, lambda: radius("time"))
            approach()
        fires = self._wake(cell, read)
        reached = {name: radius(name) for name in wanted}
        if "recurrence" in reached:
            reached["recurrence"] = max(reached["recurrence"], self.recurrence)
        missed = [(f"radius of the {name}", reached[name], target) for name, target in wanted.items()]
        missed += [("radius through time", max(radius("time"), self.time), self.time)] if bounded else []
        missed += [("firing rate", fires, self.rate)] if self.rate else []
        return [
            Finding(layer + 1, f"{what} {is_now:.3g}, not {target:g}", _CURES[what])
            for what, is_now, target in missed
            if abs(is_now / target - 1) > _MISSED
        ]

    def _calm(self, cell: Cell, own: Sequence[Synapses], read: Tensor, radius: Callable[[], float]) -> None:
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


def _factor(found: float, target: float) -> float:
    """What brings a linear radius to its target; 1 where nothing moves it."""
    return min(max(target / found, 1 / _WIDEST), _WIDEST) if found else 1.0
