"""Initialisers by the spectrum of derivatives and matrices: radii, exponents, singular values."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from neurolsc.init.base import Initialiser, bottom_up, first_input, generator, layers_of, register, scaling, set_nonzero
from neurolsc.network import Network
from neurolsc.neurons.cell import Cell
from neurolsc.stability.conditions import Finding
from neurolsc.stability.indicators import largest_singular, layer_exponents
from neurolsc.stability.pretrain import PretrainResult, pretrain
from neurolsc.stability.rules import PretrainOptions, TransitionRule
from neurolsc.stability.scale import OPTIONS, Points, layer_points, scale_to_radius, solve, steps_from_rest
from neurolsc.stability.transitions import Transitions, depth_operators, draw_steps, stacked, time_operator
from neurolsc.surroundings import eval_mode
from neurolsc.validation import number, one_of, setting, whole

_REACH = math.log(1e4)  # logarithm of the largest scale
_TURNS = 6  # most rounds of scaling through depth and then through time
_CLOSE = 0.01  # relative distance from the target at which scaling stops
Method = Literal["gradient", "scale"]


@register
@dataclass(frozen=True)
class LSC(PretrainOptions, Initialiser):
    r"""The local stability condition: mean spectral radii through time and depth at a target.

    .. math:: \mathrm{E}\,\rho\Big(\frac{\partial h[t, l]}{\partial h[t-1, l]}\Big) = \rho_{time},
        \quad \mathrm{E}\,\rho\Big(\frac{\partial h[t, l]}{\partial h[t', l-1]}\Big) = \rho_{depth}

    Attributes:
        method: ``"gradient"``, one of the loops of :func:`neurolsc.pretrain`, or ``"scale"``, root finding
            (:func:`neurolsc.scale_to_radius`), which takes fewer options. The other attributes are those of
            :class:`~neurolsc.stability.PretrainOptions`. ``LSC(0.5, loop="paper")`` is the paper to the letter, with
            batches of the size that training has.

    Source: arXiv:2308.12075, Sec. II-D and II-G; the method ``"scale"`` is ours.
    """

    method: Method = setting(
        "gradient", "a loop of optimizer steps, multipliers and shuffles, or root finding on layer scales"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("method", self.method, get_args(Method))
        unused = self._changed().keys() - {"target", *OPTIONS}
        if self.method == "scale" and unused:
            raise ValueError(f"{', '.join(sorted(unused))}: of the loop, which method='scale' does without.")

    def _changed(self) -> dict[str, Any]:
        """Return the options of pre-training that differ from their defaults, by name."""
        changed = {}
        for f in fields(PretrainOptions):
            value = getattr(self, f.name)
            if value != f.default:
                changed[f.name] = value
        return changed

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        return self.run(network, inputs, seed=seed).findings

    def run(
        self,
        network: Network,
        inputs: Sequence[Tensor],
        *,
        seed: int = 0,
        checkpoint: str | PathLike[str] | None = None,
        progress: bool = False,
    ) -> PretrainResult:
        """Set the radii, and return the whole result; the arguments are those of :func:`neurolsc.pretrain`.

        With ``method="scale"`` only the first input is used, and no checkpoint is written.
        """
        x = first_input(network, inputs)
        options = self._changed()
        if self.method == "scale":
            return scale_to_radius(network, x, seed=seed, progress=progress, **options)
        return pretrain(network, inputs, seed=seed, checkpoint=checkpoint, progress=progress, **options)


@register
@dataclass(frozen=True)
class LSCSingular(Initialiser):
    r"""Mean largest singular values of the transition derivatives at a target.

    .. math:: \mathrm{E}\,\sigma_{max}\Big(\frac{\partial h[t, l]}{\partial h[t-1, l]}\Big) =
        \mathrm{E}\,\sigma_{max}\Big(\frac{\partial h[t, l]}{\partial h[t', l-1]}\Big) = \sigma

    Each layer gets two scales, bottom up, as in :func:`neurolsc.scale_to_radius`; its resting threshold stays.

    Attributes:
        target: sigma, through time and depth.
        samples: samples of the first batch at which sigma is measured.
        steps: largest number of time steps at which sigma is measured.

    Source: ours; the singular value as the measure: Miller & Hardt, arXiv:1805.10369.
    """

    target: float = 1.0
    samples: int = 4
    steps: int = 16

    def __post_init__(self) -> None:
        number("target", self.target)
        whole("samples", self.samples)
        whole("steps", self.steps)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Scale the largest singular values of each layer to the target, on points of the first batch.

        A layer that misses the target by more than 5 % is a finding.
        """
        x = first_input(network, inputs)
        x = x[:, torch.randperm(x.shape[1], generator=generator(seed, "samples"))[: self.samples]]
        steps = draw_steps(x.shape[0], min(self.steps, x.shape[0]), generator(seed, "steps"))
        layers = {layer.index: layer for layer in layers_of(network, "inputs", integrators=True)}
        all_samples = torch.arange(x.shape[1], device=x.device)
        found = []
        with eval_mode(network), torch.no_grad():
            for index, points in enumerate(layer_points(network, x, all_samples, steps)):
                # The points of a layer are computed after the layers below it have been scaled.
                for direction, value in self._scale(points).items():
                    if abs(value / self.target - 1) <= 0.05:
                        continue
                    what = f"largest singular value {value:.3g} through {direction} against a target of {self.target:g}"
                    cure = "let the layer below fire near its threshold"
                    if value > self.target:
                        cure = "shorten its time constants"
                    found.append(layers[index].finding(what, cure))
        return tuple(found)

    def _scale(self, points: Points) -> dict[str, float]:
        """Scale a layer in place; return its mean largest singular values afterwards, by "depth" and "time"."""
        cell = points.transitions.cell
        rule = TransitionRule(hold_threshold=True)
        start: dict[str, Tensor] = {}  # parameters of the cell at the scale 1 through time

        def through_depth() -> float:
            t = points.now()
            return largest_singular(t, depth_operators(t)).mean().item()

        def through_time() -> float:
            t = points.now()
            return largest_singular(t, [time_operator(t)]).mean().item()

        def scale(log: float) -> None:
            """Scale the derivative through time by exp(log), from where the round began."""
            cell.load_state_dict(start)
            rule.apply(cell, time=math.exp(log), depth=1.0)

        depth = through_depth()
        time = 0.0
        for _ in range(_TURNS):  # in norse's cells each scale changes both values
            if depth:  # no scale moves 0
                rule.apply(cell, time=1.0, depth=self.target / depth)
            start = copy.deepcopy(cell.state_dict())
            time = solve(scale, through_time, self.target, reach=_REACH, tolerance=_CLOSE * self.target)
            depth = through_depth()
            if abs(depth / self.target - 1) <= _CLOSE:
                break
        return {"depth": depth, "time": time}


@register
@dataclass(frozen=True)
class LSCLyapunov(Initialiser):
    r"""Recurrence scaled until the largest finite-time Lyapunov exponent of each layer is at a target.

    .. math:: \lambda = \frac1T \sum_{t=1}^{T} \log \frac{\Vert M_t q_{t-1} \Vert}{\Vert q_{t-1}
        \Vert}, \quad q_t = M_t q_{t-1}, \quad M_t = \frac{\partial h[t, l]}{\partial h[t-1, l]}

    in the mean over samples. Recurrent matrices alone are scaled, bottom up, by root finding; with detached resets and
    silent neurons the exponent is no lower than the logarithm of the slowest leak.

    Attributes:
        exponent: the exponent wanted, per step; at 0 small changes of a state neither grow nor shrink.
        samples: samples of the first batch that are followed.

    Source: Benettin et al., Meccanica 15 (1980), for the exponents; as a target of initialisation: ours.
    """

    exponent: float = 0.0
    samples: int = 4

    def __post_init__(self) -> None:
        whole("samples", self.samples)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Scale the recurrence of all layers; an exponent that misses the target by more than 0.01 is a finding."""
        x = first_input(network, inputs)
        found = []
        x = x[:, torch.randperm(x.shape[1], generator=generator(seed, "samples"))[: self.samples]]
        with eval_mode(network):
            for layer, layer_input in bottom_up(network, x, layers_of(network, "recurrent")):
                # the defaults bind the layer of this turn of the loop
                def exponent(cell: Cell = layer.cell, layer_input: Tensor = layer_input) -> float:
                    return largest_exponent(cell, layer_input, seed).mean().item()

                reached = solve(scaling(layer.recurrent), exponent, self.exponent, reach=_REACH, tolerance=0.001)
                if not abs(reached - self.exponent) <= 0.01:  # NaN is a miss, too
                    problem = f"its largest Lyapunov exponent is {reached:.3g}, not {self.exponent:g}"
                    above = reached > self.exponent
                    cure = "let it fire more"
                    if above:
                        cure = "shorten its leaks: no recurrence makes it less"
                    found.append(layer.finding(problem, cure))
        return tuple(found)


def largest_exponent(cell: Cell, layer_input: Tensor, seed: int) -> Tensor:
    """Return the largest finite-time Lyapunov exponent (B,), in nats per step, of a cell on an input (T, B, n_in).

    The run starts from rest; the seed draws the first direction.
    """
    states = stacked([before for _, before, _ in steps_from_rest(cell, layer_input)])
    with torch.no_grad():
        return layer_exponents(
            Transitions(cell, layer_input.flatten(0, 1), states, below=None, state_below=None),
            layer_input.shape[1],
            count=1,
            seed=seed,
        )[:, 0]


@register
@dataclass(frozen=True)
class Orthogonal(Initialiser):
    r"""Recurrent matrices whose singular values are all the same.

    .. math:: W_{rec}^\top W_{rec} = g^2 I

    Drawn uniformly among all such (QR of a Gaussian matrix). Assumed: the recurrence passes through linear neurons,
    where it then preserves norms. Without connections of a neuron to itself the diagonal is 0 afterwards, and the rest
    nearly orthogonal.

    Attributes:
        gain: g.

    Source: Saxe, McClelland & Ganguli, arXiv:1312.6120; for recurrence: arXiv:2308.12075, Sec. II-E.
    """

    gain: float = 1.0

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        for layer in layers_of(network, "recurrent"):
            for matrix in layer.recurrent:
                set_nonzero(matrix, self.gain * layer.orthogonal(matrix, seed))
        return ()
