"""The adaptive leaky integrate-and-fire cells of the paper: ALIF+ and ALIF±."""

from abc import abstractmethod
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.display import state_repr
from neurolsc.neurons import fast
from neurolsc.neurons.cell import Answer, truncated_normal
from neurolsc.neurons.equations import Constants, advance
from neurolsc.neurons.leaky import ALL_NEURONS, ANSWERS, PAPER_ANSWERS, LeakyDerivatives
from neurolsc.neurons.linearised import Linearised
from neurolsc.neurons.membrane import Membrane
from neurolsc.neurons.registry import register
from neurolsc.neurons.reset import ResetName, StaticReset
from neurolsc.neurons.spiking import Spike, SpikingCell
from neurolsc.neurons.thresholds import Thresholds
from neurolsc.positive import Positive, set_value
from neurolsc.validation import number


class ALIFState(NamedTuple):
    """State of an ALIF cell: voltage and dynamic threshold."""

    v: Tensor
    """membrane potential (B, n_hidden)"""
    theta: Tensor
    """dynamic threshold (B, n_hidden)"""

    def __repr__(self) -> str:
        return state_repr(self)


class ALIF(SpikingCell):
    r"""Neurons whose threshold moves at their own spikes.

    Use :class:`ALIFPlus` or :class:`ALIFPlusMinus`.

    .. math::
        v[t] &= e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \vartheta[t-1] z[t-1] \\
        \vartheta[t] &= e^{-1/\tau_\vartheta} \vartheta[t-1] + b_\vartheta + \beta z[t-1] \\
        z[t] &= H(v[t] - \vartheta[t])

    The reset acts at the step after the spike, and a neuron at v = theta does not spike.

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        spike: the surrogate, as in :class:`SpikingCell`.
        tau_v: mean starting time constant of the voltage, in steps, positive.
        tau_theta: mean starting time constant of the threshold, in steps, positive (100 for
            sl-MNIST, 250 for SHD).
        b_theta: mean starting constant input of the threshold, positive.
        adaptation: scale of the starting adaptation, positive.
        reset: ``"subtract"``, ``"static"`` or ``"zero"``.
        reset_gradient: let a gradient through the reset term.
        recurrent_init: ``"glorot"`` or ``"orthogonal"``.

    Attributes:
        tau_theta: time constants of the threshold (n_hidden,), in steps; positive; settable.
        b_theta: constant input of the threshold (n_hidden,), trainable.
        adaptation: rise of the threshold at a spike, beta in the paper (n_hidden,), trainable.
        theta_rest: the resting threshold b_theta / (1 - exp(-1/tau_theta)), where a run starts;
            setting it sets b_theta.

    Raises:
        ValueError: if a size or a starting value is not positive, or a name is unknown.

    Source: arXiv:2308.12075, eq. 49, App. H and Table S1.
    """

    tau_theta = Positive()
    b_theta: Tensor
    adaptation: Tensor

    answers = (
        *ANSWERS,
        Answer("adaptation", "time"),
        Answer("tau_theta", "time", through="decay"),
    )
    paper_answers = (
        *PAPER_ANSWERS,
        Answer("tau_theta", "time"),
        Answer("b_theta", "depth"),
        Answer("adaptation", "depth"),
    )

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        spike: Spike | None = None,
        tau_v: float = 0.1,
        tau_theta: float = 100.0,
        b_theta: float = 0.01,
        adaptation: float = 1.8,
        reset: ResetName = "subtract",
        reset_gradient: bool = False,
        recurrent_init: Literal["glorot", "orthogonal"] = "glorot",
    ) -> None:
        super().__init__(
            n_in,
            n_hidden,
            spike=spike,
            tau_v=tau_v,
            reset=reset,
            reset_gradient=reset_gradient,
            recurrent_init=recurrent_init,
        )
        self.tau_theta = truncated_normal(number("tau_theta", tau_theta), n_hidden)
        start = {
            "b_theta": truncated_normal(number("b_theta", b_theta), n_hidden),
            "adaptation": self.draw_adaptation(number("adaptation", adaptation), n_in, n_hidden),
        }
        for name, value in start.items():  # a class that keeps them positive says so, as for tau_theta
            setattr(self, name, value if hasattr(type(self), name) else nn.Parameter(value))

    @staticmethod
    @abstractmethod
    def draw_adaptation(scale: float, n_in: int, n_hidden: int) -> Tensor:
        """Starting values of the adaptation, shape (n_hidden,)."""

    @property
    def decay_theta(self) -> Tensor:
        """Share of the threshold kept from step to step, exp(-1/tau_theta), shape (n_hidden,)."""
        return torch.exp(-1 / self.tau_theta)

    @property
    def theta_rest(self) -> Tensor:
        """The resting threshold, b_theta / (1 - exp(-1/tau_theta)), shape (n_hidden,)."""
        return self.b_theta / -torch.expm1(-1 / self.tau_theta)

    @theta_rest.setter
    def theta_rest(self, value: Tensor | float) -> None:
        value = checked_rest(value, self.b_theta)
        set_value(self, "b_theta", (value * -torch.expm1(-1 / self.tau_theta)).detach())

    def initial_state(self, batch: int) -> ALIFState:
        """At rest: v = 0 and theta = theta_rest."""
        theta = self.theta_rest.expand(batch, -1)
        return ALIFState(torch.zeros_like(theta), theta)

    def distance(self, state: ALIFState) -> Tensor:
        return state.v - state.theta

    def reset_threshold(self, state: ALIFState) -> Tensor:
        """What a spike subtracts: the resting threshold if the reset is static, else theta."""
        return self.theta_rest if isinstance(self.reset, StaticReset) else state.theta

    def constants(self) -> Constants:
        """The numbers that all steps have in common, with their gradients."""
        subtracted = self.theta_rest if isinstance(self.reset, StaticReset) else None
        moving = (self.decay_theta, self.b_theta, self.adaptation)
        return Constants(self.w_in, self.w_rec, self.decay_v, self.b_v, subtracted, *moving)

    def update(self, x: Tensor, z: Tensor, state: ALIFState) -> ALIFState:
        v, theta = advance(self.reset, self.constants(), x, z, state.v, state.theta)
        assert theta is not None
        return ALIFState(v, theta)

    def linearised(self, state: ALIFState) -> Linearised:
        """The step at B states, differentiated."""
        s, z = self.spike_derivative(state), self.output(state).detach()
        d, e, r = self.reset.derivatives(self.decay_v, state.v, z, self.reset_threshold(state))
        return Linearised(self.w_rec, s, d, e, r, self.adaptation, self.decay_theta)

    run = fast.run
    recurrent_synapses: int | None = ALL_NEURONS

    def derivatives(self) -> LeakyDerivatives | None:
        return LeakyDerivatives.of(self, adapts=True)

    def thresholds(self) -> Thresholds:
        """b_theta and adaptation: the whole threshold is a sum of multiples of them."""
        return Thresholds(self, ("b_theta", "adaptation"), rest="theta_rest")

    def gains(self) -> dict[str, float]:
        """That of b_theta, the mean of 1 / (1 - exp(-1/tau_theta)): 100 by default."""
        return {"b_theta": (1 / -torch.expm1(-1 / self.tau_theta.detach().double())).mean().item()}

    def membrane(self) -> Membrane:
        """v and the moving threshold."""
        return Membrane("v", lambda state: state.theta, self.spike)


def checked_rest(value: Tensor | float, like: Tensor) -> Tensor:
    """Resting thresholds for as many neurons as another tensor has.

    Raises:
        ValueError: if one is not finite, or they do not fit.
    """
    value = torch.as_tensor(value)
    if not value.isfinite().all() or value.shape not in ((), like.shape):
        raise ValueError(f"theta_rest must be finite, one number or {tuple(like.shape)}, got {value}.")
    return value


@register
class ALIFPlus(ALIF):
    """ALIF+: a spike raises the threshold.

    Adaptation from a positive truncated Gaussian; see :class:`ALIF`.
    """

    @staticmethod
    def draw_adaptation(scale: float, n_in: int, n_hidden: int) -> Tensor:
        return truncated_normal(scale, n_hidden)


@register
class ALIFPositive(ALIFPlus):
    """ALIF+ whose adaptation and b_theta stay positive in training: for networks to be exported.

    ALIF+ is only *initialized* with positive values (arXiv:2308.12075, Sec. II-E), and training
    turns some of them; no chip can hold those. Here both are trained as logarithms, as time
    constants are everywhere; the rest is :class:`ALIFPlus`.

    Raises:
        ValueError: as :class:`ALIF`, and if adaptation, b_theta or theta_rest is set to what is not
            positive.
    """

    b_theta = Positive()  # type: ignore[assignment]
    adaptation = Positive()  # type: ignore[assignment]


@register
class ALIFPlusMinus(ALIF):
    """ALIF±: a spike may raise or lower the threshold.

    Adaptation from N(0, (scale / n_in)²); see :class:`ALIF`.
    """

    @staticmethod
    def draw_adaptation(scale: float, n_in: int, n_hidden: int) -> Tensor:
        return torch.randn(n_hidden) * scale / n_in
