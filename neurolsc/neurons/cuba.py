"""The leaky integrate-and-fire cell with a synaptic current."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.display import state_repr
from neurolsc.neurons.cell import Answer, truncated_normal
from neurolsc.neurons.lif import LIF
from neurolsc.neurons.membrane import Membrane
from neurolsc.neurons.registry import register
from neurolsc.neurons.thresholds import Thresholds
from neurolsc.positive import Positive
from neurolsc.validation import number


class CubaState(NamedTuple):
    """State of a CubaLIF cell."""

    i: Tensor
    """synaptic current (B, n_hidden)"""
    v: Tensor
    """membrane potential (B, n_hidden)"""

    def __repr__(self) -> str:
        return state_repr(self)


@register
class CubaLIF(LIF):
    r"""LIF neurons with a synaptic current: snnTorch's Synaptic, norse's LIF, Loihi's CUBA.

    .. math::
        i[t] &= e^{-1/\tau_i} i[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v \\
        v[t] &= e^{-1/\tau_v} v[t-1] + i[t] - \text{reset}, \quad z[t] = H(v[t] - \vartheta)

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        tau_i: mean starting time constant of the current, in steps.
        settings: those of :class:`neurolsc.LIF`.

    Attributes:
        tau_i: time constants of the current (n_hidden,), in steps; settable.

    Raises:
        ValueError: if a size, the threshold or a time constant is not positive, or a name is
            unknown.

    Example:
        >>> cell = CubaLIF(3, 2, tau_i=5.0, tau_v=10.0, reset="zero")
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> z.shape, state.i.shape
        (torch.Size([5, 2]), torch.Size([5, 2]))
    """

    tau_i = Positive()
    answers = (
        Answer("w_in", "depth"),
        Answer("w_rec", "time"),
        Answer("tau_v", "time", through="decay"),
        Answer("tau_i", "time", through="decay"),
    )

    def __init__(self, n_in: int, n_hidden: int, *, tau_i: float = 5.0, **settings: Any) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.tau_i = truncated_normal(number("tau_i", tau_i), n_hidden)

    @property
    def decay_i(self) -> Tensor:
        """Share of the current kept from one step to the next, exp(-1/tau_i), (n_hidden,)."""
        return torch.exp(-1 / self.tau_i)

    def initial_state(self, batch: int) -> CubaState:  # type: ignore[override]
        """At rest: i = v = 0."""
        zero = torch.zeros(batch, self.n_hidden, **self.dtype_and_device)
        return CubaState(zero, zero.clone())

    def distance(self, state: Any) -> Tensor:
        return state.v - self.theta

    def update(self, x: Tensor, z: Tensor, state: CubaState) -> CubaState:  # type: ignore[override]
        i = self.decay_i * state.i + x @ self.w_in.T + z @ self.w_rec.T + self.b_v
        return CubaState(i, self.reset.carry(self.decay_v * state.v, z, self.theta) + i)

    def thresholds(self) -> Thresholds:
        return Thresholds(self, ("theta",))

    def membrane(self) -> Membrane:
        return Membrane("v", lambda _: self.theta, self.spike)
