"""LSC: radii of the transition derivatives set by pre-training or by scales."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from neurolsc.initialisers.initialiser import Initialiser, first_input
from neurolsc.initialisers.spec import register
from neurolsc.network import Network
from neurolsc.stability import pretrain, scale_to_radius
from neurolsc.stability.findings import Finding
from neurolsc.stability.lsc import RELEASED
from neurolsc.stability.lsc.rules import RULES
from neurolsc.stability.lsc.targets import Along, Direction, Target, as_target
from neurolsc.validation import one_of, whole

Method = Literal["gradient", "released", "scale"]


@register
@dataclass(frozen=True)
class LSC(Initialiser):
    r"""The local stability condition: mean radii through time and depth at a target.

    .. math:: \mathrm{E}\,\rho\Big(\frac{\partial h[t, l]}{\partial h[t-1, l]}\Big) = \rho_{time},
        \quad \mathrm{E}\,\rho\Big(\frac{\partial h[t, l]}{\partial h[t', l-1]}\Big) = \rho_{depth}

    See :func:`neurolsc.pretrain` and :func:`neurolsc.scale_to_radius`.

    Attributes:
        target: a number for both, or ``"balanced"``: T/(T+L) and L/(T+L).
        rule: what multipliers move: ``"default"`` (that of the method or target), ``"transition"``,
            ``"hold-threshold"`` or ``"paper"``.
        method: ``"gradient"``, the paper's loop, ``"released"``, the same as its released code has
            it (:data:`neurolsc.stability.lsc.RELEASED`), or ``"scale"``, root finding.
        direction: which radius is set, that through ``"time"``, ``"depth"`` or ``"both"``; another
            is left as it is.
        gradient: of the loop: let the gradient of the radii move parameters.
        kappa: of the loop: multiply them by what brings the radius to its target.
        shuffle: of the loop: shuffle each parameter after every step.
        max_steps: most steps of the loop.
        samples: samples looked at in each step.
        steps: time steps looked at in each step, no more than there are.

    Source: arXiv:2308.12075, Sec. II-D and II-G; the method ``"scale"`` is ours.
    """

    target: float | str = 0.5
    rule: str = "default"
    method: Method = "gradient"
    direction: Literal["both", "time", "depth"] = "both"
    gradient: bool = True
    kappa: bool = True
    shuffle: bool = True
    max_steps: int = 200
    samples: int = 4
    steps: int = 8

    def __post_init__(self) -> None:
        one_of("direction", self.direction, ("both", *get_args(Direction)))
        self._target()  # refuses one
        one_of("rule", self.rule, ("default", *RULES))
        one_of("method", self.method, get_args(Method))
        for name in ("max_steps", "samples", "steps"):
            whole(name, getattr(self, name))
        if self.method == "scale" and not (self.gradient and self.kappa and self.shuffle):
            raise ValueError("gradient, kappa and shuffle are parts of the loop, which method='scale' does without.")

    def _target(self) -> Target:
        target = as_target(self.target)  # type: ignore[arg-type]
        return target if self.direction == "both" else Along(target, self.direction)

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        """Set the radii; the findings are those of the pre-training."""
        x = first_input(network, inputs)
        asked: dict[str, Any] = {"target": self._target(), "seed": seed, "samples": self.samples, "progress": False}
        asked |= {"steps": min(self.steps, x.shape[0])}
        ruled: dict[str, Any] = {} if self.rule == "default" else {"rule": RULES[self.rule]}
        if self.method == "scale":
            return scale_to_radius(network, x, **asked, **ruled).findings
        loop: dict[str, Any] = dict(RELEASED) if self.method == "released" else {}
        loop |= ruled | {"gradient": self.gradient, "max_steps": self.max_steps}
        loop |= {} if self.shuffle else {"shuffle": False}
        loop |= {} if self.kappa else {"multiplier": None}
        return pretrain(network, inputs, **asked, **loop).findings
