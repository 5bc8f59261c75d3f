r"""CUBA, Loihi's neuron with a current and a voltage, and a fixed threshold.

.. math::
    u = \mathrm{wrap}(\mathrm{dec}(u, k_u) + 64\,\mathit{in}), \quad
    v = \mathrm{clip}(\mathrm{dec}(v, k_v) + u + 64\,b), \quad
    z = [v > 64\,\vartheta], \quad v = 0 \text{ where } z

with dec, wrap and clip as in :mod:`neurolsc.export.loihi.fixed_point`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.export.loihi.fixed_point import UNIT, IntegerLayer, Seen, Spike, clip, decay, wrap

__all__ = ["NEVER", "CubaLayer", "CubaState", "IntegratorLayer"]

NEVER = 2**17 - 1
"""the largest threshold, in weight units: 64 times it is a step below the largest voltage"""


class CubaState(NamedTuple):
    """State of a CUBA layer after a step, each (B, M)."""

    u: Tensor
    """current"""
    v: Tensor
    """voltage, 0 where the neuron has just fired"""


@dataclass(frozen=True, kw_only=True, repr=False)
class CubaLayer(IntegerLayer):
    """Neurons whose voltage starts again from zero.

    With v_decay 4095 the current is the voltage of a LIF with reset by subtraction.

    The bias is in weight units; weights have no exponents.
    """

    kind = "CUBA"

    i_decay: Tensor
    """(M,), 1 to 4096"""

    @property
    def decays(self) -> Tensor:
        return torch.stack((self.v_decay, self.i_decay))

    def initial_state(self, batch: int) -> CubaState:
        """u = v = 0."""
        zero = self.weight.new_zeros(batch, self.size)
        return CubaState(zero, zero)

    def step(self, drive: Tensor, state: CubaState, spike: Spike) -> tuple[Tensor, CubaState, Seen]:
        raw_u = decay(state.u, self.i_decay) + UNIT * drive
        u = wrap(raw_u)
        raw_v = decay(state.v, self.v_decay) + u + UNIT * self.bias
        v = clip(raw_v)
        distance = v - UNIT * self.threshold
        z = spike(distance / self.unit)
        return z, CubaState(u, v * (1 - z.detach())), Seen(drive, raw_u, raw_v, None, distance)

    def entries(self) -> dict[str, Tensor | int]:
        return {"neuron/iDecay": self.i_decay}

    @classmethod
    def from_entries(
        cls, vector: Callable[[str, int, int], Tensor], number: Callable[[str], int], shared: dict[str, Any]
    ) -> "CubaLayer":
        return cls(i_decay=vector("neuron/iDecay", 1, 4096), **shared)


@dataclass(frozen=True, kw_only=True, repr=False)
class IntegratorLayer(CubaLayer):
    """A readout: CUBA neurons with the largest threshold, whose voltages are read."""

    def step(self, drive: Tensor, state: CubaState, spike: Spike) -> tuple[Tensor, CubaState, Seen]:
        """As any CUBA layer's, with the voltage after the step in place of spikes."""
        _, after, seen = super().step(drive, state, spike)
        return after.v, after, seen
