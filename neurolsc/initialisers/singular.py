"""The local stability condition with the largest singular value in place of the radius."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.initialisers.cells import input_synapses
from neurolsc.initialisers.initialiser import Initialiser, first_input, generator
from neurolsc.initialisers.spec import register
from neurolsc.network import Network, eval_mode
from neurolsc.stability.findings import Finding
from neurolsc.stability.indicators import singular_through_depth, singular_through_time
from neurolsc.stability.lsc.inputs import pick
from neurolsc.stability.lsc.rules import TransitionRule
from neurolsc.stability.one_layer import settle
from neurolsc.stability.transitions import draw_steps, follow
from neurolsc.validation import number, whole

_REACH = math.log(1e4)
_RULE = TransitionRule(hold_threshold=True)  # or a longer tau_theta would silence the layer
_TURNS, _CLOSE = 6, 0.01
"""most turns of both directions, and the share of the target within which a value will do"""


@register
@dataclass(frozen=True)
class LSCSingular(Initialiser):
    r"""Mean largest singular values of the transition derivatives at a target.

    .. math:: \mathrm{E}\,\sigma_{max}\Big(\frac{\partial h[t, l]}{\partial h[t-1, l]}\Big) =
        \mathrm{E}\,\sigma_{max}\Big(\frac{\partial h[t, l]}{\partial h[t', l-1]}\Big) = \sigma

    The singular value bounds what one step can do to a gradient; the radius is what many equal
    steps do. Two scales a layer, bottom up, as in :func:`neurolsc.scale_to_radius`: through depth
    of the input matrices, through time of all entries of the derivative with the resting threshold
    held (:class:`neurolsc.TransitionRule`). Of unequal widths it is the same without ado.

    Attributes:
        target: sigma, through time and depth.
        samples: samples of the first batch that are looked at.
        steps: time steps that are looked at, no more than there are.

    Source: ours; the singular value as the measure: Miller & Hardt, arXiv:1805.10369.
    """

    target: float = 1.0
    samples: int = 4
    steps: int = 16

    def __post_init__(self) -> None:
        number("target", self.target)
        for name in ("samples", "steps"):
            whole(name, getattr(self, name))

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Scale all layers on some points of the first batch; told are misses of more than 5 %."""
        x = first_input(network, inputs)
        x = pick(x, torch.randperm(x.shape[1], generator=generator(seed, "samples"))[: self.samples])
        at = draw_steps(x.shape[0], min(self.steps, x.shape[0]), generator(seed, "steps"))
        found = []
        with eval_mode(network), torch.no_grad():
            for layer in range(len(network.cells)):
                input_synapses(network, layer)
            for layer in range(len(network.cells)):
                reached = self._set(network, x, layer, at)
                found += [
                    Finding(
                        layer + 1,
                        f"largest singular value {value:.3g} through {direction} against a target of {self.target:g}",
                        "shorten its time constants"
                        if value > self.target
                        else "let the layer below fire near its threshold",
                    )
                    for direction, value in reached.items()
                    if not abs(value / self.target - 1) <= 0.05
                ]
        return tuple(found)

    def _set(self, network: Network, x: Tensor, layer: int, at: Tensor) -> dict[str, float]:
        """Scale a layer through depth and time, in turn: in norse's cells one moves the other."""

        def measure() -> float:
            return singular_through_depth(follow(network, x, at)[0][layer]).mean().item()

        reached = {"depth": measure(), "time": 0.0}
        for _ in range(_TURNS):
            if reached["depth"]:
                scale = self.target / reached["depth"]
                _RULE.apply(network.cells[layer], time=1.0, depth=scale)
            reached["time"] = self._time(network, x, layer, at)
            reached["depth"] = measure()
            if abs(reached["depth"] / self.target - 1) <= _CLOSE:
                break
        return reached

    def _time(self, network: Network, x: Tensor, layer: int, at: Tensor) -> float:
        """Scale the derivative through time, whose states follow the scale."""
        cell = network.cells[layer]
        start = {name: value.clone() for name, value in cell.state_dict().items()}

        def scale(log: float) -> None:
            cell.load_state_dict(start)
            _RULE.apply(cell, time=math.exp(log), depth=1.0)

        def measure() -> float:
            return singular_through_time(follow(network, x, at)[0][layer]).mean().item()

        return settle(scale, measure, self.target, reach=_REACH, close=_CLOSE * self.target)
