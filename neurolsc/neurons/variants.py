"""Other spiking cells: with a synaptic current, an integrator that does not fire, and a low-pass threshold."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.display import state_repr
from neurolsc.neurons.cell import Cell, ScaledParameter, is_frozen, register, truncated_normal
from neurolsc.neurons.spiking import ALIF, LIF, ALIFPlus, ALIFState, SpikingCell
from neurolsc.neurons.spiking_derivatives import SpikingStep
from neurolsc.validation import LogParameter, number, set_value


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
        tau_i: mean starting time constant of the current, in steps.
        settings: those of :class:`neurolsc.LIF`.

    Attributes:
        tau_i: time constants of the current (n_hidden,), in steps; settable.
    """

    tau_i = LogParameter()
    scaled_parameters = (*LIF.scaled_parameters, ScaledParameter("tau_i", "time", through="decay"))

    def __init__(self, n_in: int, n_hidden: int, *, tau_i: float = 5.0, **settings: Any) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.tau_i = truncated_normal(number("tau_i", tau_i), n_hidden)

    @property
    def decay_i(self) -> Tensor:
        """exp(-1/tau_i), shape (n_hidden,)."""
        return torch.exp(-1 / self.tau_i)

    def initial_state(self, batch: int) -> CubaState:  # type: ignore[override]
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

    It sends its voltage v. As a readout it is the last cell: ``Network([LIF(784, 64), LI(64, 10)], nn.Identity())``.

    Args:
        tau_i: starting time constant of the current, in steps; 0.001 is a current without memory.
        tau_v: starting time constant of the voltage, in steps.

    Attributes:
        w_in: input weights (n_hidden, n_in), Glorot uniform.
        b_v: constant input (n_hidden,), zero and not trainable.
        tau_i: time constants of the current (n_hidden,), in steps; settable.
        tau_v: those of the voltage.
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

    decay_i = CubaLIF.decay_i
    decay_v = CubaLIF.decay_v
    initial_state = CubaLIF.initial_state

    def output(self, state: CubaState) -> Tensor:
        return state.v

    def update(self, x: Tensor, z: Tensor, state: CubaState) -> CubaState:
        i = self.decay_i * state.i + x @ self.w_in.T + self.b_v
        return CubaState(i, self.decay_v * state.v + i)


@register
class ALIFLowPass(ALIFPlus):
    r"""ALIF+ with a low-pass threshold: the neuron of the paper's *released code*, not of its text.

    With :math:`d_\vartheta = e^{-1/\tau_\vartheta}`,

    .. math::
        \vartheta[t] &= d_\vartheta \vartheta[t-1] + (1 - d_\vartheta) (b_\vartheta + \beta z[t-1]) \\
        v[t] &= e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \vartheta[t] z[t-1] \\
        z[t] &= H(v[t] - \vartheta[t])

    Three things differ from :class:`ALIFPlus`: a spike raises the threshold by :math:`(1 - d_\vartheta) \beta` and the
    resting threshold is :math:`b_\vartheta` itself, both a hundred times as low with the same starting values; the
    reset ``"subtract"`` takes off the new threshold, which the spike has raised already; and there are no
    self-connections: the diagonal of w_rec starts as 0 and is not read. With reset ``"static"`` or ``"zero"`` it is an
    ALIF+ of :math:`(1 - d_\vartheta) b_\vartheta` and :math:`(1 - d_\vartheta) \beta`. It runs step by step.

    Args:
        **settings: keywords of :class:`ALIF`, for the attributes below.

    Attributes:
        b_theta: resting threshold (n_hidden,), trainable; theta_rest is the same.
        adaptation: rise of the threshold of a neuron that fires at every step (n_hidden,), trainable.
        retention: of the threshold, exp(-1/tau_theta) (n_hidden,); setting it sets tau_theta, and moves the adaptation
            so that a spike adds as much. Frozen ones stay.

    Source: the released code of Herranz-Celotti & Rouat, arXiv:2308.12075.
    """

    scaled_parameters = (
        *SpikingCell.scaled_parameters,
        ScaledParameter("adaptation", "time"),
        ScaledParameter("retention", "time", through="share"),
    )

    def __init__(self, n_in: int, n_hidden: int, **settings: Any) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.recurrent_synapses = n_hidden - 1
        with torch.no_grad():
            self.w_rec.fill_diagonal_(0)

    @property
    def theta_rest(self) -> Tensor:  # type: ignore[override]
        """b_theta, shape (n_hidden,)."""
        return self.b_theta

    @theta_rest.setter
    def theta_rest(self, value: Tensor | float) -> None:
        set_value(self, "b_theta", torch.as_tensor(value))

    @property
    def retention(self) -> Tensor:
        return self.decay_theta

    @retention.setter
    def retention(self, value: Tensor) -> None:
        if is_frozen(self, "tau_theta"):
            return
        added = self._new_share * self.adaptation
        self.tau_theta = -1 / torch.log(value.clamp(min=torch.finfo(value.dtype).tiny))
        if not is_frozen(self, "adaptation"):
            set_value(self, "adaptation", (added / self._new_share).detach())

    @property
    def _new_share(self) -> Tensor:
        return -torch.expm1(-1 / self.tau_theta)

    @property
    def _w_between(self) -> Tensor:
        return self.w_rec - torch.diag(self.w_rec.diagonal())

    def update(self, x: Tensor, z: Tensor, state: ALIFState) -> ALIFState:
        theta = self.decay_theta * state.theta + self._new_share * (self.b_theta + self.adaptation * z)
        carried = self.reset.carry(self.decay_v * state.v, z, self.reset_threshold(theta))
        return ALIFState(carried + x @ self.w_in.T + z @ self._w_between.T + self.b_v, theta)

    def linearised(self, state: ALIFState) -> SpikingStep:
        s, z, rise = self.spike_derivative(state), self.output(state).detach(), self._new_share * self.adaptation
        theta = self.decay_theta * state.theta + self._new_share * self.b_theta + rise * z
        d, e, r = self.reset.derivatives(self.decay_v, state.v, z, self.reset_threshold(theta))
        # e is by the threshold that is subtracted, which the last one and the spikes have made
        return SpikingStep(self._w_between, s, d, e * self.decay_theta, r - e * rise, rise, self.decay_theta)

    closed_form = ALIF.closed_form  # from linearised, which is this class's own

    def gains(self) -> dict[str, float]:
        return {}
