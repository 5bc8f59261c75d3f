"""Other spiking cells, with a synaptic current, a low-pass threshold, a trained leak or two compartments.

:class:`LI` is an integrator that does not fire.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.display import state_repr
from neurolsc.neurons.blocks import RESET, NeuronCell, NeuronStep, matrix_of, uniform
from neurolsc.neurons.cell import Cell, ScaledParameter, register, truncated_normal
from neurolsc.neurons.derivatives import Term
from neurolsc.neurons.parameters import LogParameter, set_value
from neurolsc.neurons.spiking import LIF, ALIFPlus, ALIFState, LIFState, SpikingCell, alif_blocks
from neurolsc.neurons.weights import is_frozen
from neurolsc.validation import number

LEAK = Term("leak", "lower the decay", "raise the decay", "#0072b2")


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
        tau_i: mean initial time constant of the current, in steps.
        **settings: those of :class:`neurolsc.LIF`.

    Attributes:
        tau_i: time constants of the current (n_hidden,), in steps; settable.
    """

    tau_i = LogParameter()
    scaled_parameters = (*LIF.scaled_parameters, ScaledParameter("tau_i", "time", through="decay"))
    state_type = CubaState
    operator = NeuronStep  # since a current goes into both variables

    def __init__(self, n_in: int, n_hidden: int, *, tau_i: float = 5.0, **settings: Any) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.tau_i = truncated_normal(number("tau_i", tau_i), n_hidden)

    @property
    def decay_i(self) -> Tensor:
        """exp(-1/tau_i), shape (n_hidden,)."""
        return torch.exp(-1 / self.tau_i)

    def update(self, x: Tensor, z: Tensor, state: CubaState) -> CubaState:  # type: ignore[override]
        i = self.decay_i * state.i + x @ self.w_in.T + z @ self.w_rec.T + self.b_v
        carried = self.reset.carry(self.decay_v * state.v, z, self.theta)
        return CubaState(i, carried + i)

    def shares(self) -> Tensor:
        return torch.ones(2, self.n_hidden, **self.dtype_and_device)  # v reads the new i in the same step

    def blocks(self, state: CubaState, s: Tensor, z: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        d, _, r = self.reset.derivatives(self.decay_v, state.v, z, self.theta)
        return {
            "leak": matrix_of([[self.decay_i, 0.0], [self.decay_i, d]], s),
            "reset": matrix_of([[0.0, 0.0], [0.0, -r * s]], s),
        }


@register
class LI(Cell):
    r"""A leaky integrator with a synaptic current: norse's LI, a readout that never fires.

    .. math::
        i[t] = e^{-1/\tau_i} i[t-1] + W_{in} x[t] + b_v, \quad v[t] = e^{-1/\tau_v} v[t-1] + i[t]

    It sends its voltage v. As a readout it is the last cell: ``Network([LIF(784, 64), LI(64, 10)], nn.Identity())``.

    Args:
        tau_i: initial time constant of the current, in steps; 0.001 is a current without memory.
        tau_v: initial time constant of the voltage, in steps.

    Attributes:
        w_in: input weights (n_hidden, n_in), Glorot uniform.
        b_v: constant input (n_hidden,), zero and not trainable.
        tau_i: time constants of the current (n_hidden,), in steps; settable.
        tau_v: those of the voltage.
    """

    tau_i = LogParameter()
    tau_v = LogParameter()
    b_v: Tensor
    state_type = CubaState
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
    resting threshold is :math:`b_\vartheta` itself, both a hundred times as low with the same initial values; the
    reset ``"subtract"`` takes off the new threshold, which the spike has raised already; and there are no
    self-connections: the diagonal of w_rec starts as 0 and is not read. With reset ``"static"`` or ``"zero"`` it is an
    ALIF+ of :math:`(1 - d_\vartheta) b_\vartheta` and :math:`(1 - d_\vartheta) \beta`. It runs step by step.

    Args:
        **settings: keywords of :class:`ALIF`, for the attributes below.

    Attributes:
        b_theta: resting threshold (n_hidden,), trainable; theta_rest is the same.
        adaptation: rise of the threshold of a neuron that fires at every step (n_hidden,), trainable.
        retention: share of the threshold that a step leaves, exp(-1/tau_theta) (n_hidden,), below 1. Setting it sets
            tau_theta, and changes the adaptation so that a spike adds as much as before. Frozen parameters stay.

    Source: the released code of Herranz-Celotti & Rouat, arXiv:2308.12075.
    """

    scaled_parameters = (
        *SpikingCell.scaled_parameters,
        ScaledParameter("adaptation", "time"),
        ScaledParameter("retention", "time", through="decay_factor"),
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
        """exp(-1/tau_theta), shape (n_hidden,); see the class for what setting it does."""
        return self.decay_theta

    @retention.setter
    def retention(self, value: Tensor) -> None:
        if is_frozen(self, "tau_theta"):
            return
        # a spike raises the threshold by (1 - retention) * adaptation: keep this product
        rise = self._new_share * self.adaptation
        self.tau_theta = -1 / torch.log(value.clamp(min=torch.finfo(value.dtype).tiny))  # a retention of 0 has no tau
        if not is_frozen(self, "adaptation"):
            set_value(self, "adaptation", (rise / self._new_share).detach())

    @property
    def _new_share(self) -> Tensor:
        """1 - exp(-1/tau_theta), shape (n_hidden,)."""
        return -torch.expm1(-1 / self.tau_theta)

    def weights_between(self) -> Tensor:
        return self.w_rec - torch.diag(self.w_rec.diagonal())

    def update(self, x: Tensor, z: Tensor, state: ALIFState) -> ALIFState:
        theta = self.decay_theta * state.theta + self._new_share * (self.b_theta + self.adaptation * z)
        carried = self.reset.carry(self.decay_v * state.v, z, self.reset_threshold(theta))
        return ALIFState(carried + x @ self.w_in.T + z @ self.weights_between().T + self.b_v, theta)

    def blocks(self, state: ALIFState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        rise = self._new_share * self.adaptation
        theta = self.decay_theta * state.theta + self._new_share * self.b_theta + rise * z
        d, e, r = self.reset.derivatives(self.decay_v, state.v, z, self.reset_threshold(theta))
        # e is the derivative by the new threshold, which depends on the last one and on the spikes
        reset = (d, e * self.decay_theta, r - e * rise)
        return alif_blocks(s, reset, rise=rise, decay_theta=self.decay_theta)

    def gains(self) -> dict[str, float]:
        return {}  # b_theta is the resting threshold: its gain is 1


@register
class PLIF(NeuronCell):
    r"""Parametric LIF: one trained leak for the whole layer, and spikes that reset within the step.

    .. math:: v[t] = r + k\, (W_{in} x[t] + W_{rec} z[t-1] - r), \quad k = \frac{1}{1 + e^{-w}}, \quad
        r = v[t-1] (1 - z[t-1])

    or with a soft reset :math:`r = v[t-1] - \vartheta z[t-1]`; a gradient passes the reset. The state is the voltage
    before the reset. Below threshold the radius is 1 - k: no neuron can be unstable.

    Args:
        tau: 1/k before training, in steps, above 1.
        hard_reset: reset to 0; False: subtract the threshold.
        **settings: ``spike`` and ``threshold`` of :class:`NeuronCell`.

    Attributes:
        w: (1,), trainable.
        decay: 1 - k, (1,); settable.
        w_rec: recurrent weights, orthogonal; the published neuron has none: set them to 0 for it.

    Source: Fang et al., ICCV 2021, arXiv:2007.05785; spikingjelly's ``ParametricLIFNode``.
    """

    settings = ("hard_reset",)
    scaled_parameters = (*NeuronCell.scaled_parameters, ScaledParameter("decay", "time", through="decay_factor"))
    stored_in = (("decay", "w"),)
    block_terms = (LEAK, RESET)
    state_type = LIFState
    variable = "v"

    def __init__(self, n_in: int, n_hidden: int, *, tau: float = 2.0, hard_reset: bool = True, **settings: Any) -> None:
        super().__init__(n_in, n_hidden, **settings)
        if number("tau", tau) <= 1:
            raise ValueError(f"tau must be above 1 step, got {tau}: k = 1 / tau is a sigmoid.")
        self.w = nn.Parameter(torch.full((1,), -math.log(tau - 1)))
        self.hard_reset = hard_reset

    @property
    def decay(self) -> Tensor:
        """The share of a voltage that a step leaves, 1 - k, shape (1,)."""
        return torch.sigmoid(-self.w)

    @decay.setter
    def decay(self, value: Tensor) -> None:
        set_value(self, "w", -torch.logit(value.detach(), eps=1e-6))  # eps: decays 0 and 1 have no finite logit

    def shares(self) -> Tensor:
        return torch.sigmoid(self.w).expand(1, self.n_hidden)  # k

    def update(self, x: Tensor, z: Tensor, state: LIFState) -> LIFState:
        if self.hard_reset:
            r = state.v * (1 - z)
        else:
            r = state.v - self.theta * z
        return LIFState(r + torch.sigmoid(self.w) * (self.current(x, z) - r))

    def blocks(self, state: LIFState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        # the derivative of r is left - taken * s: what the reset leaves of v, and what a spike takes off it
        if self.hard_reset:
            left = 1 - z
            taken = state.v
        else:
            left = torch.ones_like(z)
            taken = self.theta
        return {"leak": matrix_of([[self.decay * left]], z), "reset": matrix_of([[-self.decay * taken * s]], z)}


class TCLIFState(NamedTuple):
    """State of a TC-LIF cell; both compartments are those before the reset by its spike."""

    d: Tensor  # dendritic compartment (B, n_hidden)
    v: Tensor  # somatic compartment, which spikes (B, n_hidden)
    __repr__ = state_repr


@register
class TCLIF(NeuronCell):
    r"""Two-compartment LIF, without a leak.

    .. math::
        d[t] &= r_d - \sigma_1 r_v + W_{in} x[t] + W_{rec} z[t-1], \quad r_d = d[t-1] - \gamma z[t-1] \\
        v[t] &= r_v + \sigma_2 d[t], \quad r_v = v[t-1] - \vartheta z[t-1], \quad z[t] = H(v[t] - \vartheta)

    with a gradient through both resets. Below threshold the determinant is 1 and the trace 2 - sigma_1 sigma_2: the
    radius of every neuron is **exactly 1 whatever the parameters are**, on the boundary of stability.

    Args:
        gamma: what a spike takes off the dendrite, zero or positive.
        **settings: ``spike`` and ``threshold`` of :class:`NeuronCell`.

    Attributes:
        c: logits of sigma_1 and sigma_2 (2,), one pair for the layer, 0 before training; trainable.

    Source: Zhang et al., AAAI 2024, arXiv:2308.13250; github.com/ZhangShimin1/TC-LIF.
    """

    settings = ("gamma",)
    block_terms = (Term("compartments", "lower the thresholds", "raise w_rec", "#0072b2"), RESET)
    state_type = TCLIFState
    variable = "v"

    def __init__(self, n_in: int, n_hidden: int, *, gamma: float = 0.5, **settings: Any) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.gamma = number("gamma", gamma, zero_allowed=True)
        self.c = nn.Parameter(torch.zeros(2))
        uniform(self.w_rec.data)

    def shares(self) -> Tensor:
        second = torch.sigmoid(self.c[1]).expand(self.n_hidden)  # v reads sigma_2 of the new d
        return torch.stack([torch.ones_like(second), second])

    def update(self, x: Tensor, z: Tensor, state: TCLIFState) -> TCLIFState:
        first, second = torch.sigmoid(self.c)
        v = state.v - self.theta * z
        d = state.d - self.gamma * z - first * v + self.current(x, z)
        return TCLIFState(d, v + second * d)

    def blocks(self, state: TCLIFState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        first, second = torch.sigmoid(self.c)
        # derivatives by v of what the resets add: to the new d, and to r_v
        d_by_reset = (first * self.theta - self.gamma) * s
        r_by_reset = -self.theta * s
        return {
            "compartments": matrix_of([[1.0, -first], [second, 1 - first * second]], z),
            "reset": matrix_of([[0.0, d_by_reset], [0.0, r_by_reset + second * d_by_reset]], z),
        }
