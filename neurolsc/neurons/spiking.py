r"""LIF and ALIF, the spiking cells of eq. 49.

.. math::
    v[t] &= e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \vartheta[t-1] z[t-1] \\
    \vartheta[t] &= e^{-1/\tau_\vartheta} \vartheta[t-1] + b_\vartheta + \beta z[t-1] \\
    z[t] &= H(v[t] - \vartheta[t])

A LIF has a fixed threshold. The last term of v is the reset, which acts at the step after the spike; a neuron at v =
theta does not spike. H has a surrogate's derivative (:mod:`neurolsc.surrogate`).

Source: arXiv:2308.12075, eq. 49 and App. H.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from neurolsc.display import state_repr
from neurolsc.neurons import fast
from neurolsc.neurons.blocks import NeuronCell, Spike, SpikingStep, matrix_of
from neurolsc.neurons.cell import Cell, Membrane, ResetSwitch, ScaledParameter, Thresholds, register, truncated_normal
from neurolsc.neurons.derivatives import Term
from neurolsc.neurons.parameters import LogParameter, set_value
from neurolsc.validation import number, one_of

LEAK = Term(
    "leak",
    "shorten tau_theta and tau_v: a silent surrogate leaves exactly exp(-1/tau)",
    "lengthen tau_theta or tau_v",
    "#0072b2",
)
RAISE = "raise w_rec or the decays"
RESET = Term("reset", "detach the reset (reset_gradient=False), or lower the thresholds", RAISE, "#cc79a7")
FEEDBACK = Term(
    "feedback", "lower the adaptation, or use a rule under which it follows the radius through time", RAISE, "#d55e00"
)

ResetName = Literal["subtract", "static", "zero"]


@dataclass(frozen=True)
class Reset:
    r"""What a spike does to the voltage one step later.

    A voltage v that spiked (z = 1) leaks to d v, with :math:`d = e^{-1/\tau_v}`, and is then reset.

    Attributes:
        name: ``"subtract"``: to d v - theta z, with theta the current threshold. ``"static"``: likewise, with theta the
            resting threshold. ``"zero"``: to d v (1 - z).
        gradient: True if a gradient passes the reset, by z and theta; False if they are detached there.
    """

    name: ResetName = "subtract"
    gradient: bool = False

    def carry(self, leaked: Tensor, z: Tensor, theta: Tensor) -> Tensor:
        """Return the voltage after the reset (B, n_hidden), from d v, the spikes z, and the threshold to subtract."""
        if not self.gradient:
            z = z.detach()
            theta = theta.detach()
        if self.name == "zero":
            return leaked * (1 - z)
        return leaked - theta * z

    def derivatives(self, decay: Tensor, v: Tensor, z: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""Return D, E and R, each (B, n_hidden), the derivatives of the voltage that :meth:`carry` returns.

        .. math:: D = \frac{\partial v[t]}{\partial v[t-1]}\Big|_z, \quad
            E = \frac{\partial v[t]}{\partial \vartheta[t-1]}\Big|_z, \quad R = -\frac{\partial v[t]}{\partial z[t-1]}

        E is 0 where the reset subtracts no state variable, or detaches it. A LIF does not use E: its theta is fixed.

        Args:
            decay: d (n_hidden,).
            v: the voltage before the step (B, n_hidden).
            z: the spikes at that voltage (B, n_hidden).
            theta: the threshold to subtract, (B, n_hidden) or (n_hidden,).
        """
        e = torch.zeros_like(v)
        r = torch.zeros_like(v)
        if self.name == "zero":
            d = decay * (1 - z)
            if self.gradient:
                r = decay * v
            return d, e, r
        if self.gradient:
            r = theta.expand_as(v)
            if self.name == "subtract":  # this reset subtracts a state variable; the resting threshold is none
                e = -z
        return decay.expand_as(v), e, r


class SpikingCell(NeuronCell):
    r"""Base of LIF and ALIF: a leaky voltage with recurrent spikes. A subclass defines ``distance``, not ``output``.

    Args:
        spike: the surrogate; by default a new ``FastSigmoid()``.
        tau_v: mean initial time constant of the voltage, in time steps, positive. The paper's 0.1 means a decay of
            4.5e-5: a voltage without memory.
        reset: ``"subtract"``: subtract the current threshold (eq. 49); ``"static"``: the resting one; ``"zero"``: reset
            to 0.
        reset_gradient: let a gradient through the reset term; False detaches the whole term.
        recurrent_init: ``"glorot"`` uniform (App. H) or ``"orthogonal"`` (Sec. II-E).

    Attributes:
        w_in: input weights (n_hidden, n_in), Glorot uniform.
        w_rec: recurrent weights (n_hidden, n_hidden).
        tau_v: time constants of the voltage (n_hidden,), in steps; positive whatever the optimizer does; settable.
        b_v: constant input (n_hidden,), zero and not trainable.
    """

    tau_v = LogParameter()
    b_v: Tensor
    scaled_parameters = (*NeuronCell.scaled_parameters, ScaledParameter("tau_v", "time", through="decay"))
    paper_scaled_parameters = (*NeuronCell.scaled_parameters, ScaledParameter("tau_v", "time"))
    variable = "v"
    block_terms = (LEAK, RESET)
    operator = SpikingStep

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        spike: Spike | None = None,
        tau_v: float = 0.1,
        reset: ResetName = "subtract",
        reset_gradient: bool = False,
        recurrent_init: Literal["glorot", "orthogonal"] = "glorot",
    ) -> None:
        one_of("reset", reset, get_args(ResetName))
        one_of("recurrent_init", recurrent_init, ("glorot", "orthogonal"))
        if recurrent_init == "orthogonal":
            recurrent = nn.init.orthogonal_
        else:
            recurrent = nn.init.xavier_uniform_
        initial = (nn.init.xavier_uniform_, recurrent)
        super().__init__(n_in, n_hidden, spike=spike, threshold=None, initial=initial)
        self.reset = Reset(reset, reset_gradient)
        self.tau_v = truncated_normal(number("tau_v", tau_v), n_hidden)
        self.register_buffer("b_v", torch.zeros(n_hidden))

    @abstractmethod
    def distance(self, state: Any) -> Tensor:
        """v - theta (B, n_hidden); a spike where positive."""

    # Cell's return None. NeuronCell's would be wrong for a subclass with another distance().
    thresholds = Cell.thresholds
    membrane = Cell.membrane

    def reset_switch(self) -> ResetSwitch | None:
        if not self.reset.gradient:
            return None
        detached = replace(self.reset, gradient=False)
        return ResetSwitch(self, "reset", detached, "detach the reset (reset_gradient=False)")

    @property
    def decay_v(self) -> Tensor:
        """exp(-1/tau_v), shape (n_hidden,)."""
        return torch.exp(-1 / self.tau_v)

    def config(self) -> dict[str, object]:
        return super().config() | {"reset": self.reset.name, "reset_gradient": self.reset.gradient}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reset={self.reset.name!r}, reset_gradient={self.reset.gradient}"


class LIFState(NamedTuple):
    """State of a LIF cell."""

    v: Tensor  # membrane potential (B, n_hidden)
    __repr__ = state_repr


@register
class LIF(SpikingCell):
    r"""Leaky integrate-and-fire neurons with recurrence; the ALIF of eq. 49 with a fixed threshold.

    .. math:: v[t] = e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \vartheta z[t-1],
        \quad z[t] = H(v[t] - \vartheta)

    Args:
        threshold: the fixed threshold of all neurons, positive; the buffer ``theta`` may be set per neuron.
        **settings: those of :class:`SpikingCell`; the resets ``"subtract"`` and ``"static"`` are the same here.

    Example:
        >>> cell = LIF(3, 2)
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> z.shape, state.v.shape
        (torch.Size([5, 2]), torch.Size([5, 2]))
    """

    state_type = LIFState

    def __init__(self, n_in: int, n_hidden: int, *, threshold: float = 1.0, **settings: Any) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.register_buffer("theta", torch.full((n_hidden,), number("threshold", threshold)))

    def distance(self, state: LIFState) -> Tensor:
        return state.v - self.theta

    def update(self, x: Tensor, z: Tensor, state: LIFState) -> LIFState:
        carried = self.reset.carry(self.decay_v * state.v, z, self.theta)
        return LIFState(carried + x @ self.w_in.T + z @ self.w_rec.T + self.b_v)

    def constants(self) -> fast.Constants:
        """The parameters for a run of all steps at once."""
        return fast.Constants(self.w_in, self.w_rec, self.decay_v, self.b_v, threshold=self.theta)

    run_at_once = fast.run  # type: ignore[assignment]

    def blocks(self, state: LIFState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        d, _, r = self.reset.derivatives(self.decay_v, state.v, z, self.theta)
        return {"leak": matrix_of([[d]], s), "reset": matrix_of([[-r * s]], s)}

    # right for this distance(), unlike those of SpikingCell
    thresholds = NeuronCell.thresholds
    membrane = NeuronCell.membrane


class ALIFState(NamedTuple):
    """State of an ALIF cell: voltage and dynamic threshold."""

    v: Tensor  # membrane potential (B, n_hidden)
    theta: Tensor  # dynamic threshold (B, n_hidden)
    __repr__ = state_repr


class ALIF(SpikingCell):
    r"""Neurons whose own spikes change their threshold; base of :class:`ALIFPlus` and :class:`ALIFPlusMinus`.

    .. math:: \vartheta[t] = e^{-1/\tau_\vartheta} \vartheta[t-1] + b_\vartheta + \beta z[t-1]

    Args:
        tau_theta: mean initial time constant of the threshold, in steps, positive (100 for sl-MNIST, 250 for SHD).
        b_theta: mean initial constant input of the threshold, positive.
        adaptation: scale of the initial adaptation, positive.
        **settings: those of :class:`SpikingCell`.

    Attributes:
        tau_theta: time constants of the threshold (n_hidden,), in steps; positive; settable.
        b_theta: constant input of the threshold (n_hidden,), trainable.
        adaptation: rise of the threshold at a spike, beta in the paper (n_hidden,), trainable.
        theta_rest: the resting threshold b_theta / (1 - exp(-1/tau_theta)), where a run starts; setting it sets
            b_theta.

    Source: arXiv:2308.12075, eq. 49, App. H and Table S1.
    """

    tau_theta = LogParameter()
    b_theta: Tensor
    adaptation: Tensor
    scaled_parameters = (
        *SpikingCell.scaled_parameters,
        ScaledParameter("adaptation", "time"),
        ScaledParameter("tau_theta", "time", through="decay"),
    )
    paper_scaled_parameters = (
        *SpikingCell.paper_scaled_parameters,
        ScaledParameter("tau_theta", "time"),
        ScaledParameter("b_theta", "depth"),
        ScaledParameter("adaptation", "depth"),
    )
    state_type = ALIFState
    block_terms = (LEAK, RESET, FEEDBACK)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        tau_theta: float = 100.0,
        b_theta: float = 0.01,
        adaptation: float = 1.8,
        **settings: Any,
    ) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.tau_theta = truncated_normal(number("tau_theta", tau_theta), n_hidden)
        rest = truncated_normal(number("b_theta", b_theta), n_hidden)
        rise = self.draw_adaptation(number("adaptation", adaptation), n_in, n_hidden)
        for name, value in (("b_theta", rest), ("adaptation", rise)):
            is_log = hasattr(type(self), name)  # a LogParameter of the class, as in ALIFPositive
            setattr(self, name, value if is_log else nn.Parameter(value))

    @staticmethod
    @abstractmethod
    def draw_adaptation(scale: float, n_in: int, n_hidden: int) -> Tensor:
        """Initial values of the adaptation, shape (n_hidden,)."""

    @property
    def decay_theta(self) -> Tensor:
        """exp(-1/tau_theta), shape (n_hidden,)."""
        return torch.exp(-1 / self.tau_theta)

    @property
    def theta_rest(self) -> Tensor:
        """b_theta / (1 - exp(-1/tau_theta)), shape (n_hidden,)."""
        return self.b_theta / -torch.expm1(-1 / self.tau_theta)

    @theta_rest.setter
    def theta_rest(self, value: Tensor | float) -> None:
        set_value(self, "b_theta", (value * -torch.expm1(-1 / self.tau_theta)).detach())

    def initial_state(self, batch: int) -> ALIFState:
        """At rest: v = 0 and theta = theta_rest."""
        theta = self.theta_rest.expand(batch, -1)
        return ALIFState(torch.zeros_like(theta), theta)

    def distance(self, state: ALIFState) -> Tensor:
        return state.v - state.theta

    def reset_threshold(self, theta: Tensor) -> Tensor:
        """What a reset subtracts, (n_hidden,) or (B, n_hidden): the resting threshold, or the current one `theta`."""
        if self.reset.name == "static":
            return self.theta_rest
        return theta

    def update(self, x: Tensor, z: Tensor, state: ALIFState) -> ALIFState:
        carried = self.reset.carry(self.decay_v * state.v, z, self.reset_threshold(state.theta))
        v = carried + x @ self.w_in.T + z @ self.w_rec.T + self.b_v
        return ALIFState(v, self.decay_theta * state.theta + self.b_theta + self.adaptation * z)

    def constants(self) -> fast.Constants:
        """The parameters for a run of all steps at once; `threshold` is what a static reset subtracts."""
        return fast.Constants(
            self.w_in,
            self.w_rec,
            self.decay_v,
            self.b_v,
            threshold=self.theta_rest if self.reset.name == "static" else None,
            decay_theta=self.decay_theta,
            b_theta=self.b_theta,
            adaptation=self.adaptation,
        )

    run_at_once = fast.run  # type: ignore[assignment]

    def slopes(self, s: Tensor) -> Tensor:
        return torch.stack([s, -s], 1)  # spikes follow v - theta

    def blocks(self, state: ALIFState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        reset = self.reset.derivatives(self.decay_v, state.v, z, self.reset_threshold(state.theta))
        return alif_blocks(s, reset, rise=self.adaptation, decay_theta=self.decay_theta)

    def thresholds(self) -> Thresholds:
        return Thresholds(self, ("b_theta", "adaptation"), rest_name="theta_rest")

    def gains(self) -> dict[str, float]:
        # theta rests at b_theta / (1 - exp(-1/tau_theta))
        gain = 1 / -torch.expm1(-1 / self.tau_theta.detach().double())
        return {"b_theta": gain.mean().item()}

    def membrane(self) -> Membrane:
        return Membrane("v", lambda state: state.theta, self.spike)


@register
class ALIFPlus(ALIF):
    """ALIF+: a spike raises the threshold; adaptation from a positive truncated Gaussian; see :class:`ALIF`."""

    @staticmethod
    def draw_adaptation(scale: float, n_in: int, n_hidden: int) -> Tensor:
        return truncated_normal(scale, n_hidden)


@register
class ALIFPositive(ALIFPlus):
    """ALIF+ whose adaptation and b_theta stay positive in training, as on chips: both are trained as logarithms.

    ALIF+ only *starts* with positive values (arXiv:2308.12075, Sec. II-E); training makes some of them negative.
    """

    b_theta = LogParameter()  # type: ignore[assignment]
    adaptation = LogParameter()  # type: ignore[assignment]


@register
class ALIFPlusMinus(ALIF):
    """ALIF±: a spike may raise or lower the threshold; adaptation from N(0, (scale / n_in)²); see :class:`ALIF`."""

    @staticmethod
    def draw_adaptation(scale: float, n_in: int, n_hidden: int) -> Tensor:
        return torch.randn(n_hidden) * scale / n_in


def alif_blocks(
    s: Tensor, reset: tuple[Tensor, Tensor, Tensor], *, rise: Tensor, decay_theta: Tensor
) -> dict[str, Tensor]:
    r"""Return the derivative of an ALIF's next (v, theta) by its last one, without recurrence, as named terms.

    .. math:: \begin{pmatrix} D - R s & E + R s \\ \beta s & e^{-1/\tau_\vartheta} - \beta s \end{pmatrix}

    Args:
        s: derivative of a spike by v (P, n).
        reset: D, E and R of :meth:`Reset.derivatives`.
        rise: :math:`\beta`, what a spike adds to theta (n,).
        decay_theta: :math:`e^{-1/\tau_\vartheta}` (n,).

    Returns:
        "leak", "reset" and "feedback", each (P, 2, 2, n); their sum is the matrix above.
    """
    d, e, r = reset
    kick = r * s
    feedback = rise * s
    return {
        "leak": matrix_of([[d, 0.0], [0.0, decay_theta]], s),
        "reset": matrix_of([[-kick, e + kick], [0.0, 0.0]], s),
        "feedback": matrix_of([[0.0, 0.0], [feedback, -feedback]], s),
    }
