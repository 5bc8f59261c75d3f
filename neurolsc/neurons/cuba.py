"""Cells with a synaptic current: one that fires, and one that only integrates."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.display import state_repr
from neurolsc.neurons.cell import Cell, ScaledParameter, register, truncated_normal
from neurolsc.neurons.spiking import LIF
from neurolsc.validation import LogParameter, number


class CubaState(NamedTuple):
    """State of a CubaLIF or LI cell."""

    i: Tensor  # synaptic current (B, n_hidden)
    v: Tensor  # membrane potential (B, n_hidden)
    __repr__ = state_repr


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
        ValueError: if a size, the threshold or a time constant is not positive, or a name is unknown.

    Example:
        >>> cell = CubaLIF(3, 2, tau_i=5.0, tau_v=10.0, reset="zero")
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> z.shape, state.i.shape
        (torch.Size([5, 2]), torch.Size([5, 2]))
    """

    tau_i = LogParameter()
    scaled_parameters = (*LIF.scaled_parameters, ScaledParameter("tau_i", "time", through="decay"))

    def __init__(self, n_in: int, n_hidden: int, *, tau_i: float = 5.0, **settings: Any) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.tau_i = truncated_normal(number("tau_i", tau_i), n_hidden)

    @property
    def decay_i(self) -> Tensor:
        """Retention of the current from step to step, exp(-1/tau_i), (n_hidden,)."""
        return torch.exp(-1 / self.tau_i)

    def initial_state(self, batch: int) -> CubaState:  # type: ignore[override]
        """At rest: i = v = 0."""
        zero = torch.zeros(batch, self.n_hidden, **self.dtype_and_device)
        return CubaState(zero, zero.clone())

    def update(self, x: Tensor, z: Tensor, state: CubaState) -> CubaState:  # type: ignore[override]
        i = self.decay_i * state.i + x @ self.w_in.T + z @ self.w_rec.T + self.b_v
        return CubaState(i, self.reset.carry(self.decay_v * state.v, z, self.theta) + i)


@register
class LI(Cell):
    r"""A leaky integrator with a synaptic current: norse's LI, a readout that never fires.

    .. math::
        i[t] = e^{-1/\tau_i} i[t-1] + W_{in} x[t] + b_v, \quad v[t] = e^{-1/\tau_v} v[t-1] + i[t]

    It sends its voltage v. As a readout it is the last cell of a network whose own readout is the identity:
    ``Network([LIF(784, 64), LI(64, 10)], nn.Identity())``.

    Args:
        n_in: number of inputs.
        n_hidden: number of voltages, such as classes.
        tau_i: starting time constant of the current, in steps; 0.001 is a current without memory.
        tau_v: starting time constant of the voltage, in steps.

    Attributes:
        w_in: input weights (n_hidden, n_in), Glorot uniform.
        b_v: constant input (n_hidden,), zero and not trainable.
        tau_i: time constants of the current (n_hidden,), in steps; settable.
        tau_v: those of the voltage.

    Raises:
        ValueError: if a size or a time constant is not positive.

    Example:
        >>> cell = LI(3, 2, tau_v=20.0)
        >>> v, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> v.shape, torch.equal(v, state.v)
        (torch.Size([5, 2]), True)
    """

    tau_i = LogParameter()
    tau_v = LogParameter()
    b_v: Tensor
    integrator = True
    recurrent_synapses = 0
    scaled_parameters = (
        ScaledParameter("w_in", "depth"),
        ScaledParameter("tau_v", "time", through="decay"),
        ScaledParameter("tau_i", "time", through="decay"),
    )

    def __init__(self, n_in: int, n_hidden: int, *, tau_i: float = 5.0, tau_v: float = 10.0) -> None:
        super().__init__(n_in, n_hidden)
        self.w_in = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_hidden, n_in)))
        self.tau_v = torch.full((n_hidden,), number("tau_v", tau_v))
        self.tau_i = torch.full((n_hidden,), number("tau_i", tau_i))
        self.register_buffer("b_v", torch.zeros(n_hidden))

    @property
    def decay_i(self) -> Tensor:
        """Retention of the current from step to step, exp(-1/tau_i), (n_hidden,)."""
        return torch.exp(-1 / self.tau_i)

    @property
    def decay_v(self) -> Tensor:
        """Retention of the voltage from step to step, exp(-1/tau_v), (n_hidden,)."""
        return torch.exp(-1 / self.tau_v)

    def initial_state(self, batch: int) -> CubaState:
        """At rest: i = v = 0."""
        zero = torch.zeros(batch, self.n_hidden, **self.dtype_and_device)
        return CubaState(zero, zero.clone())

    def output(self, state: CubaState) -> Tensor:
        """The voltage."""
        return state.v

    def update(self, x: Tensor, z: Tensor, state: CubaState) -> CubaState:
        i = self.decay_i * state.i + x @ self.w_in.T + self.b_v
        return CubaState(i, self.decay_v * state.v + i)
