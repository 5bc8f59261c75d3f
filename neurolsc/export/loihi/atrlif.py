r"""ATRLIF, Lava's neuron with an adaptive threshold; the file calls it ALIF.

.. math::
    v = \mathrm{clip}(\mathrm{dec}(v, k_v) + 64\,\mathit{in} + b\,2^{e}), \quad
    \vartheta = \mathrm{dec}(\vartheta - \vartheta_0, k_\vartheta) + \vartheta_0, \quad
    z = [v \ge \vartheta], \quad \vartheta \mathrel{+}= 64\,\beta z

with dec and clip as in :mod:`neurolsc.export.loihi.fixed_point`; the reset is a synapse to itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.export.loihi.fixed_point import UNIT, IntegerLayer, Seen, Spike, clip, decay

__all__ = ["AtrlifLayer", "AtrlifState"]


class AtrlifState(NamedTuple):
    """State of an ATRLIF layer after a step, each (B, M)."""

    v: Tensor
    """voltage"""
    theta: Tensor
    """threshold, raised already where the neuron has just fired"""


@dataclass(frozen=True, kw_only=True, repr=False)
class AtrlifLayer(IntegerLayer):
    """Neurons whose threshold rises at a spike, which takes a fixed amount from the voltage.

    The bias is in state units. Weights, bias and reset have an exponent each.
    """

    kind = "ALIF"

    weight_rec: Tensor
    """(M, M), mantissas"""
    theta_decay: Tensor
    """(M,), 1 to 4095"""
    theta_step: Tensor
    """(M,), rise at a spike, weight units; the same for all neurons"""
    reset: Tensor
    """(M,), mantissas of what a spike takes from the voltage, weight units"""
    bias_exp: int
    reset_exp: int

    @property
    def decays(self) -> Tensor:
        return torch.stack((self.v_decay, self.theta_decay))

    @property
    def rise(self) -> int:
        return int(self.theta_step[0])

    @property
    def taken(self) -> Tensor:
        return self.reset * 2**self.reset_exp

    def initial_state(self, batch: int) -> AtrlifState:
        """v = 0, the threshold at rest."""
        theta = (UNIT * self.threshold).expand(batch, -1)
        return AtrlifState(torch.zeros_like(theta), theta)

    def drive(self, below: Tensor, own: Tensor) -> Tensor:
        return super().drive(below, own) - own.detach() * self.taken

    def step(self, drive: Tensor, state: AtrlifState, spike: Spike) -> tuple[Tensor, AtrlifState, Seen]:
        raw_v = decay(state.v, self.v_decay) + UNIT * drive + self.bias * 2**self.bias_exp
        v = clip(raw_v)
        rest = UNIT * self.threshold
        theta = decay(state.theta - rest, self.theta_decay) + rest
        distance = v - theta
        z = spike((distance + 0.5) / self.unit)  # fires at equality, too: between integers a half more
        return z, AtrlifState(v, theta + UNIT * self.theta_step * z), Seen(drive, None, raw_v, theta, distance)

    def entries(self) -> dict[str, Tensor | int]:
        return {
            "weightExp": self.weight_exp,
            "weightRecExp": self.weight_rec_exp,
            "biasExp": self.bias_exp,
            "neuron/iDecay": 4096,
            "neuron/thDecay": self.theta_decay,
            "neuron/refDecay": 4096,
            "neuron/vThStep": self.theta_step,
            "neuron/resetMant": self.reset,
            "neuron/resetExp": self.reset_exp,
        }

    @classmethod
    def from_entries(
        cls, vector: Callable[[str, int, int], Tensor], number: Callable[[str], int], shared: dict[str, Any]
    ) -> "AtrlifLayer":
        return cls(
            theta_decay=vector("neuron/thDecay", 1, 4095),
            theta_step=vector("neuron/vThStep", 1, 2**17 - 1),
            reset=vector("neuron/resetMant", 0, 255),
            reset_exp=number("neuron/resetExp"),
            weight_exp=number("weightExp"),
            weight_rec_exp=number("weightRecExp"),
            bias_exp=number("biasExp"),
            **shared,
        )
