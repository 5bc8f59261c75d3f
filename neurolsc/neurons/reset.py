r"""What a spike does to the voltage, and its derivatives.

Each reset turns the leaked voltage :math:`d\,v` (with :math:`d = e^{-1/\tau_v}`) into what is
carried to the next step. ``gradient=False`` detaches the whole reset term. The derivatives name,
for :math:`v[t]` before input and recurrence,

.. math:: \frac{\partial v[t]}{\partial v[t-1]}\Big|_z = D, \quad \frac{\partial v[t]}{\partial
    \vartheta[t-1]}\Big|_z = E,
          \quad -\frac{\partial v[t]}{\partial z[t-1]} = R.

Source: arXiv:2308.12075, eq. 49 (``subtract``); the others are its variants in snnTorch, norse and
Loihi.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from neurolsc.validation import one_of

ResetName = Literal["subtract", "static", "zero"]


@dataclass(frozen=True)
class Reset:
    """Subtract the current threshold: carried = d v - theta z."""

    gradient: bool = False

    def carry(self, leaked: Tensor, z: Tensor, theta: Tensor) -> Tensor:
        """The voltage carried over, from d v, the spikes, and the threshold that is subtracted."""
        term = theta * z
        return leaked - (term if self.gradient else term.detach())

    def derivatives(self, decay: Tensor, v: Tensor, z: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """D, E and R, each (B, n_hidden); E and R are 0 where the reset is detached."""
        zero = torch.zeros_like(v)
        return decay.expand_as(v), (-z if self.gradient else zero), (theta.expand_as(v) if self.gradient else zero)


@dataclass(frozen=True)
class StaticReset(Reset):
    """Subtract the resting threshold, passed as theta: carried = d v - theta_rest z."""

    def derivatives(self, decay: Tensor, v: Tensor, z: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d, _, r = super().derivatives(decay, v, z, theta)
        return d, torch.zeros_like(v), r


@dataclass(frozen=True)
class ZeroReset(Reset):
    """Start again from zero: carried = d v (1 - z)."""

    def carry(self, leaked: Tensor, z: Tensor, theta: Tensor) -> Tensor:
        return leaked * (1 - (z if self.gradient else z.detach()))

    def derivatives(self, decay: Tensor, v: Tensor, z: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        zero = torch.zeros_like(v)
        return decay * (1 - z), zero, (decay * v if self.gradient else zero)


_RESETS = {"subtract": Reset, "static": StaticReset, "zero": ZeroReset}


def make_reset(name: ResetName, gradient: bool) -> Reset:
    """The reset of that name.

    Raises:
        ValueError: if the name is not one of ``"subtract"``, ``"static"``, ``"zero"``.
    """
    return _RESETS[one_of("reset", name, tuple(_RESETS))](gradient)
