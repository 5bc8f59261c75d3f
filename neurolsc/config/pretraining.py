"""How radii are set before training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from neurolsc.config.setting import setting
from neurolsc.network import Network
from neurolsc.stability import PretrainResult, pretrain, scale_to_radius
from neurolsc.stability.lsc import RELEASED
from neurolsc.stability.lsc.rules import RULES
from neurolsc.stability.lsc.targets import Target, as_target
from neurolsc.validation import whole

RuleName = Literal["default", "transition", "hold-threshold", "paper"]


@dataclass(frozen=True)
class PretrainSettings:
    """Radii before training.

    Raises:
        ValueError: if the target is none, or a number is out of range.
    """

    target: str = setting("none", "radius to pre-train to: a number, 'balanced', or 'none'")
    rule: RuleName = setting(
        "default",
        "which parameters follow which radius; default: paper for balanced and method released, else transition",
    )
    method: Literal["gradient", "released", "scale"] = setting(
        "gradient", "the paper's loop, the same as its released code has it, or root finding on layer scales"
    )
    pretrain_steps: int = setting(200, "give up after this many pre-training steps (not of scale)")
    pretrain_samples: int = setting(4, "samples looked at in each pre-training step")
    pretrain_times: int = setting(8, "time steps looked at in each pre-training step")

    def __post_init__(self) -> None:
        if (target := self.parsed_target()) is not None:
            as_target(target)
        for name in ("pretrain_steps", "pretrain_samples", "pretrain_times"):
            whole(name, getattr(self, name), at_least=int(name != "pretrain_steps"))
        if self.method == "scale" and self.pretrain_steps != PretrainSettings.pretrain_steps:
            raise ValueError("pretrain_steps: of a loop, which method = scale does without.")

    def parsed_target(self) -> Target | None:
        """The target as pretrain() takes it; None for no pre-training.

        Raises:
            ValueError: if it is neither a number, 'balanced' nor 'none'.
        """
        if self.target in ("none", "balanced"):
            return None if self.target == "none" else "balanced"
        try:
            return float(self.target)
        except ValueError:
            raise ValueError(f"target must be a number, 'balanced' or 'none', got {self.target!r}.") from None

    def run(
        self, network: Network, inputs: Sequence[Tensor], *, seed: int, progress: bool = True, **more: Any
    ) -> PretrainResult:
        """Set the radii of a network on batches of inputs (T, B, n_in).

        More keywords are those of :func:`neurolsc.pretrain`, or of
        :func:`neurolsc.scale_to_radius`.

        Raises:
            ValueError: if the target is 'none', a setting does not belong to the method, or as
                these.
        """
        target = self.parsed_target()
        if target is None:
            raise ValueError("target is 'none'; there is no radius to set.")
        more |= {
            "target": target,
            "seed": seed,
            "samples": self.pretrain_samples,
            "steps": min(self.pretrain_times, inputs[0].shape[0]),
            "progress": progress,
        }
        if self.rule != "default":
            more["rule"] = RULES[self.rule]
        if self.method == "released":
            more = {**RELEASED} | more
        if self.method != "scale":
            return pretrain(network, inputs, max_steps=self.pretrain_steps, **more)
        return scale_to_radius(network, inputs[0], **more)
