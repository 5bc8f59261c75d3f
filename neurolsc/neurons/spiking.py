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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypedDict, TypeGuard, Unpack

import torch
from torch import Tensor, nn

from neurolsc.display import state_repr
from neurolsc.neurons import fast
from neurolsc.neurons.cell import (
    SURROGATES,
    Cell,
    Membrane,
    ScaledParameter,
    State,
    Thresholds,
    is_frozen,
    register,
    truncated_normal,
)
from neurolsc.neurons.derivatives import SpikingDerivatives, SpikingStep
from neurolsc.surrogate import FastSigmoid, Surrogate
from neurolsc.validation import LogParameter, number, one_of, set_value

Spike = Callable[[Tensor], Tensor]  # of v - theta, returns spikes: a surrogate of ours, or of another library


ResetName = Literal["subtract", "static", "zero"]


@dataclass(frozen=True)
class Reset:
    r"""Subtract the threshold: d v becomes d v - theta z, with :math:`d = e^{-1/\tau_v}`.

    ``gradient=False`` detaches the whole reset term. The derivatives are, for :math:`v[t]` before input and recurrence,

    .. math:: D = \frac{\partial v[t]}{\partial v[t-1]}\Big|_z, \quad
        E = \frac{\partial v[t]}{\partial \vartheta[t-1]}\Big|_z, \quad R = -\frac{\partial v[t]}{\partial z[t-1]}.
    """

    gradient: bool = False
    zero: ClassVar[bool] = False

    def carry(self, leaked: Tensor, z: Tensor, theta: Tensor) -> Tensor:
        """The voltage after the reset, from d v, the spikes, and the threshold to subtract."""
        term = theta * z
        return leaked - (term if self.gradient else term.detach())

    def derivatives(self, decay: Tensor, v: Tensor, z: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """D, E and R, each (B, n_hidden); E and R are 0 where the reset is detached."""
        zero = torch.zeros_like(v)
        return decay.expand_as(v), (-z if self.gradient else zero), (theta.expand_as(v) if self.gradient else zero)


@dataclass(frozen=True)
class StaticReset(Reset):
    """Subtract the resting threshold, passed as theta."""

    def derivatives(self, decay: Tensor, v: Tensor, z: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        d, _, r = super().derivatives(decay, v, z, theta)
        return d, torch.zeros_like(v), r


@dataclass(frozen=True)
class ZeroReset(Reset):
    """Start again from zero: d v becomes d v (1 - z)."""

    zero: ClassVar[bool] = True

    def carry(self, leaked: Tensor, z: Tensor, theta: Tensor) -> Tensor:
        return leaked * (1 - (z if self.gradient else z.detach()))

    def derivatives(self, decay: Tensor, v: Tensor, z: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        zero = torch.zeros_like(v)
        return decay * (1 - z), zero, (decay * v if self.gradient else zero)


RESETS: dict[str, type[Reset]] = {"subtract": Reset, "static": StaticReset, "zero": ZeroReset}


class SpikingSettings(TypedDict, total=False):
    """Keywords of :class:`SpikingCell`."""

    spike: Spike | None
    tau_v: float
    reset: ResetName
    reset_gradient: bool
    recurrent_init: Literal["glorot", "orthogonal"]


class SpikingCell(Cell):
    r"""A leaky voltage with recurrent spikes.

    .. math:: v[t] = e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \text{reset}, \quad
        z[t] = H(v[t] - \vartheta[t])

    A spiking cell of one's own has the methods of a :class:`Cell`, with ``distance`` instead of ``output``.

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        spike: the surrogate; by default a new ``FastSigmoid()``.
        tau_v: mean starting time constant of the voltage, in time steps, positive. The paper's 0.1 means a decay of
            4.5e-5: a voltage without memory.
        reset: ``"subtract"`` the current threshold (eq. 49), ``"static"``: the resting threshold, or to ``"zero"``.
        reset_gradient: let a gradient through the reset term; False detaches the whole term.
        recurrent_init: ``"glorot"`` uniform (App. H) or ``"orthogonal"`` (Sec. II-E).

    Attributes:
        w_in: input weights (n_hidden, n_in), Glorot uniform.
        w_rec: recurrent weights (n_hidden, n_hidden).
        tau_v: time constants of the voltage (n_hidden,), in steps; positive whatever the optimizer does; settable.
        b_v: constant input (n_hidden,), zero and not trainable.

    Raises:
        TypeError: if the spike is not callable.
        ValueError: if a size or tau_v is not positive, or a name is unknown.
    """

    tau_v = LogParameter()
    b_v: Tensor
    scaled_parameters = (
        ScaledParameter("w_in", "depth"),
        ScaledParameter("w_rec", "time"),
        ScaledParameter("tau_v", "time", through="decay"),
    )
    paper_scaled_parameters = (*scaled_parameters[:2], ScaledParameter("tau_v", "time"))

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
        super().__init__(n_in, n_hidden)
        self.spike = FastSigmoid() if spike is None else spike_function("spike", spike)
        self.reset_name: ResetName = reset
        self.reset = RESETS[one_of("reset", reset, tuple(RESETS))](reset_gradient)
        self.w_in = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_hidden, n_in)))
        one_of("recurrent_init", recurrent_init, ("glorot", "orthogonal"))
        start = nn.init.orthogonal_ if recurrent_init == "orthogonal" else nn.init.xavier_uniform_
        self.w_rec = nn.Parameter(start(torch.empty(n_hidden, n_hidden)))
        self.tau_v = truncated_normal(number("tau_v", tau_v), n_hidden)
        self.register_buffer("b_v", torch.zeros(n_hidden))
        self.recurrent_synapses = n_hidden

    @abstractmethod
    def distance(self, state: State) -> Tensor:
        """The distance from the threshold, v - theta, (B, n_hidden); a spike where positive."""

    def output(self, state: State) -> Tensor:
        """The spikes of a state, 0 or 1, shape (B, n_hidden)."""
        return self.spike(self.distance(state))

    @property
    def decay_v(self) -> Tensor:
        """Retention of the voltage from step to step, exp(-1/tau_v), shape (n_hidden,)."""
        return torch.exp(-1 / self.tau_v)

    def spike_derivative(self, state: State) -> Tensor:
        """The spikes' derivative by the voltage, dampening f(sharpness (v - theta)), (B, n_hidden)."""
        return self.spike.derivative(self.distance(state))  # type: ignore[attr-defined]

    def config(self) -> dict[str, object]:
        """The constructor's arguments as JSON values.

        Raises:
            TypeError: if the spike is not one of our surrogates, which no file can describe.
        """
        if not isinstance(self.spike, Surrogate):
            raise TypeError(f"only surrogates of neurolsc can be saved, got {self.spike!r}.")
        spike = {"name": SURROGATES.name_of(type(self.spike))} | self.spike.config()
        return super().config() | {"spike": spike, "reset": self.reset_name, "reset_gradient": self.reset.gradient}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reset={self.reset_name!r}, reset_gradient={self.reset.gradient}"


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
        n_in: number of inputs.
        n_hidden: number of neurons.
        threshold: the fixed threshold of all neurons, positive; the buffer ``theta`` may be set per neuron.
        **settings: spike, tau_v, reset, reset_gradient and recurrent_init of :class:`SpikingCell`; the resets
            ``"subtract"`` and ``"static"`` are the same here.

    Raises:
        ValueError: if a size, the threshold or tau_v is not positive, or a name is unknown.

    Example:
        >>> cell = LIF(3, 2)
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> z.shape, state.v.shape
        (torch.Size([5, 2]), torch.Size([5, 2]))
    """

    theta: Tensor

    def __init__(
        self, n_in: int, n_hidden: int, *, threshold: float = 1.0, **settings: Unpack[SpikingSettings]
    ) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.register_buffer("theta", torch.full((n_hidden,), number("threshold", threshold)))

    def initial_state(self, batch: int) -> LIFState:
        """At rest: v = 0."""
        return LIFState(torch.zeros(batch, self.n_hidden, **self.dtype_and_device))

    def distance(self, state: LIFState) -> Tensor:
        return state.v - self.theta

    def update(self, x: Tensor, z: Tensor, state: LIFState) -> LIFState:
        carried = self.reset.carry(self.decay_v * state.v, z, self.theta)
        return LIFState(carried + x @ self.w_in.T + z @ self.w_rec.T + self.b_v)

    def constants(self) -> fast.Constants:
        """The numbers that all steps have in common, with their gradients."""
        return fast.Constants(self.w_in, self.w_rec, self.decay_v, self.b_v, self.theta)

    def run_at_once(
        self, x: Tensor, state: LIFState, lengths: Tensor | None, late: Tensor | None
    ) -> tuple[Tensor, LIFState] | None:
        return fast.run(self, x, state, lengths, late) if as_written(self.reset) else None

    def linearised(self, state: LIFState) -> SpikingStep:
        """The step at B states, differentiated."""
        s, z = self.spike_derivative(state), self.output(state).detach()
        d, e, r = self.reset.derivatives(self.decay_v, state.v, z, self.theta)
        return SpikingStep(self.w_rec, s, d, e, r)

    def closed_form(self) -> SpikingDerivatives | None:
        return SpikingDerivatives(self) if known_derivative(self.spike) and as_written(self.reset) else None

    def thresholds(self) -> Thresholds:
        return Thresholds(self, ("theta",))

    def membrane(self) -> Membrane:
        return Membrane("v", lambda _: self.theta, self.spike)


class ALIFState(NamedTuple):
    """State of an ALIF cell: voltage and dynamic threshold."""

    v: Tensor  # membrane potential (B, n_hidden)
    theta: Tensor  # dynamic threshold (B, n_hidden)
    __repr__ = state_repr


class ALIF(SpikingCell):
    r"""Neurons whose threshold moves at their own spikes.

    Use :class:`ALIFPlus` or :class:`ALIFPlusMinus`.

    .. math::
        v[t] &= e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \vartheta[t-1] z[t-1] \\
        \vartheta[t] &= e^{-1/\tau_\vartheta} \vartheta[t-1] + b_\vartheta + \beta z[t-1] \\
        z[t] &= H(v[t] - \vartheta[t])

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        tau_theta: mean starting time constant of the threshold, in steps, positive (100 for sl-MNIST, 250 for SHD).
        b_theta: mean starting constant input of the threshold, positive.
        adaptation: scale of the starting adaptation, positive.
        **settings: spike, tau_v, reset, reset_gradient and recurrent_init of :class:`SpikingCell`.

    Attributes:
        tau_theta: time constants of the threshold (n_hidden,), in steps; positive; settable.
        b_theta: constant input of the threshold (n_hidden,), trainable.
        adaptation: rise of the threshold at a spike, beta in the paper (n_hidden,), trainable.
        theta_rest: the resting threshold b_theta / (1 - exp(-1/tau_theta)), where a run starts; setting it sets
            b_theta.

    Raises:
        ValueError: if a size or a starting value is not positive, or a name is unknown.

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

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        tau_theta: float = 100.0,
        b_theta: float = 0.01,
        adaptation: float = 1.8,
        **settings: Unpack[SpikingSettings],
    ) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.tau_theta = truncated_normal(number("tau_theta", tau_theta), n_hidden)
        start = {
            "b_theta": truncated_normal(number("b_theta", b_theta), n_hidden),
            "adaptation": self.draw_adaptation(number("adaptation", adaptation), n_in, n_hidden),
        }
        for name, value in start.items():  # ALIFPositive stores their logarithms
            setattr(self, name, value if hasattr(type(self), name) else nn.Parameter(value))

    @staticmethod
    @abstractmethod
    def draw_adaptation(scale: float, n_in: int, n_hidden: int) -> Tensor:
        """Starting values of the adaptation, shape (n_hidden,)."""

    @property
    def decay_theta(self) -> Tensor:
        """Retention of the threshold from step to step, exp(-1/tau_theta), shape (n_hidden,)."""
        return torch.exp(-1 / self.tau_theta)

    @property
    def theta_rest(self) -> Tensor:
        """The resting threshold, b_theta / (1 - exp(-1/tau_theta)), shape (n_hidden,)."""
        return self.b_theta / -torch.expm1(-1 / self.tau_theta)

    @theta_rest.setter
    def theta_rest(self, value: Tensor | float) -> None:
        rest = _checked_rest(value, self.b_theta)
        set_value(self, "b_theta", (rest * -torch.expm1(-1 / self.tau_theta)).detach())

    def initial_state(self, batch: int) -> ALIFState:
        """At rest: v = 0 and theta = theta_rest."""
        theta = self.theta_rest.expand(batch, -1)
        return ALIFState(torch.zeros_like(theta), theta)

    def distance(self, state: ALIFState) -> Tensor:
        return state.v - state.theta

    def reset_threshold(self, theta: Tensor) -> Tensor:
        """What a spike subtracts: the resting threshold if the reset is static, else theta."""
        return self.theta_rest if isinstance(self.reset, StaticReset) else theta

    def update(self, x: Tensor, z: Tensor, state: ALIFState) -> ALIFState:
        carried = self.reset.carry(self.decay_v * state.v, z, self.reset_threshold(state.theta))
        v = carried + x @ self.w_in.T + z @ self.w_rec.T + self.b_v
        return ALIFState(v, self.decay_theta * state.theta + self.b_theta + self.adaptation * z)

    def constants(self) -> fast.Constants:
        """The numbers that all steps have in common, with their gradients."""
        subtracted = self.theta_rest if isinstance(self.reset, StaticReset) else None
        moving = (self.decay_theta, self.b_theta, self.adaptation)
        return fast.Constants(self.w_in, self.w_rec, self.decay_v, self.b_v, subtracted, *moving)

    def run_at_once(
        self, x: Tensor, state: ALIFState, lengths: Tensor | None, late: Tensor | None
    ) -> tuple[Tensor, ALIFState] | None:
        return fast.run(self, x, state, lengths, late) if as_written(self.reset) else None

    def linearised(self, state: ALIFState) -> SpikingStep:
        """The step at B states, differentiated."""
        s, z = self.spike_derivative(state), self.output(state).detach()
        d, e, r = self.reset.derivatives(self.decay_v, state.v, z, self.reset_threshold(state.theta))
        return SpikingStep(self.w_rec, s, d, e, r, self.adaptation, self.decay_theta)

    closed_form = LIF.closed_form  # from linearised, which is this class's own

    def thresholds(self) -> Thresholds:
        """b_theta and adaptation: the whole threshold is a sum of multiples of them."""
        return Thresholds(self, ("b_theta", "adaptation"), rest="theta_rest")

    def gains(self) -> dict[str, float]:
        """Of b_theta the mean of 1 / (1 - exp(-1/tau_theta)): 100 by default."""
        return {"b_theta": (1 / -torch.expm1(-1 / self.tau_theta.detach().double())).mean().item()}

    def membrane(self) -> Membrane:
        """v and the moving threshold."""
        return Membrane("v", lambda state: state.theta, self.spike)


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

    ALIF+ is only *initialized* with positive values (arXiv:2308.12075, Sec. II-E), and training turns some of them; no
    chip can hold those. Here both are trained as logarithms, as time constants are everywhere; the rest is
    :class:`ALIFPlus`.

    Raises:
        ValueError: as :class:`ALIF`, and if adaptation, b_theta or theta_rest is set to what is not positive.
    """

    b_theta = LogParameter()  # type: ignore[assignment]
    adaptation = LogParameter()  # type: ignore[assignment]


@register
class ALIFPlusMinus(ALIF):
    """ALIF±: a spike may raise or lower the threshold.

    Adaptation from N(0, (scale / n_in)²); see :class:`ALIF`.
    """

    @staticmethod
    def draw_adaptation(scale: float, n_in: int, n_hidden: int) -> Tensor:
        return torch.randn(n_hidden) * scale / n_in


class ALIFSettings(SpikingSettings, total=False):
    """Keywords of :class:`ALIF`."""

    tau_theta: float
    b_theta: float
    adaptation: float


@register
class ALIFLowPass(ALIFPlus):
    r"""ALIF+ with a low-pass threshold: the neuron of the paper's *released code*, not of its text.

    With :math:`d_\vartheta = e^{-1/\tau_\vartheta}`,

    .. math::
        \vartheta[t] &= d_\vartheta \vartheta[t-1] + (1 - d_\vartheta) (b_\vartheta + \beta z[t-1])
        \\
        v[t] &= e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \vartheta[t] z[t-1] \\
        z[t] &= H(v[t] - \vartheta[t])

    Three things differ from :class:`ALIFPlus`: a spike raises the threshold by :math:`(1 - d_\vartheta) \beta` and the
    resting threshold is :math:`b_\vartheta` itself, so that with the same starting values both are about a hundred
    times as low; the reset ``"subtract"`` takes off the new threshold, which the spike has raised already; and there
    are no self-connections: the diagonal of w_rec starts as 0 and is not read.

    An ALIF+ with :math:`(1 - d_\vartheta) b_\vartheta`, :math:`(1 - d_\vartheta) \beta` and no self-connections has the
    same thresholds and, with reset ``"static"`` or ``"zero"``, the same voltages, spikes and derivatives. With
    ``"subtract"`` a spike takes off :math:`(1 - d_\vartheta) (b_\vartheta + \beta - \vartheta[t-1])` more than there;
    derivatives at equal states are the same if the reset is detached. It runs step by step, and is exported to no chip.

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        **settings: keywords of :class:`ALIF`, for the attributes below.

    Attributes:
        b_theta: resting threshold (n_hidden,), trainable.
        theta_rest: the same.
        adaptation: rise of the threshold of a neuron that fires at every step (n_hidden,), trainable.
        retention: of the threshold, exp(-1/tau_theta) (n_hidden,); setting it sets tau_theta, and holds what a spike
            adds by moving the adaptation. Frozen ones stay.

    Raises:
        ValueError: if a size or a starting value is not positive, or a name is unknown.

    Source: the released code of Herranz-Celotti & Rouat, arXiv:2308.12075.

    Example:
        >>> cell = ALIFLowPass(3, 2)
        >>> bool((cell.initial_state(1).theta == cell.b_theta).all())
        True
    """

    scaled_parameters = (
        *SpikingCell.scaled_parameters,
        ScaledParameter("adaptation", "time"),
        ScaledParameter("retention", "time", through="share"),
    )

    def __init__(self, n_in: int, n_hidden: int, **settings: Unpack[ALIFSettings]) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.recurrent_synapses = n_hidden - 1
        with torch.no_grad():
            self.w_rec.fill_diagonal_(0)

    @property
    def theta_rest(self) -> Tensor:  # type: ignore[override]
        """The resting threshold, b_theta, shape (n_hidden,)."""
        return self.b_theta

    @theta_rest.setter
    def theta_rest(self, value: Tensor | float) -> None:
        set_value(self, "b_theta", _checked_rest(value, self.b_theta))

    @property
    def retention(self) -> Tensor:
        """Retention of the threshold; setting it holds what a spike adds."""
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

    def _next_threshold(self, theta: Tensor, z: Tensor) -> Tensor:
        return self.decay_theta * theta + self._new_share * (self.b_theta + self.adaptation * z)

    def update(self, x: Tensor, z: Tensor, state: ALIFState) -> ALIFState:
        theta = self._next_threshold(state.theta, z)
        carried = self.reset.carry(self.decay_v * state.v, z, self.reset_threshold(theta))
        return ALIFState(carried + x @ self.w_in.T + z @ self._w_between.T + self.b_v, theta)

    def linearised(self, state: ALIFState) -> SpikingStep:
        """The step at B states, differentiated."""
        s, z = self.spike_derivative(state), self.output(state).detach()
        rise = self._new_share * self.adaptation
        subtracted = self.reset_threshold(self._next_threshold(state.theta, z))
        d, e, r = self.reset.derivatives(self.decay_v, state.v, z, subtracted)
        # e is by the threshold that is subtracted, which the last one and the spikes have made
        return SpikingStep(self._w_between, s, d, e * self.decay_theta, r - e * rise, rise, self.decay_theta)

    closed_form = ALIF.closed_form  # from linearised, which is this class's own

    def gains(self) -> dict[str, float]:
        return {}


def _checked_rest(value: Tensor | float, like: Tensor) -> Tensor:
    value = torch.as_tensor(value)
    if not value.isfinite().all() or value.shape not in ((), like.shape):
        raise ValueError(f"theta_rest must be finite, one number or {tuple(like.shape)}, got {value}.")
    return value


def spike_function(name: str, spike: Any) -> Spike:
    """The spike function that an argument of this name passed; TypeError if it is a class, or not callable."""
    if isinstance(spike, type):
        raise TypeError(f"{name} must be a surrogate object, got the class {spike.__name__}; write {spike.__name__}().")
    if not callable(spike):
        raise TypeError(
            f"{name} must be a surrogate, such as neurolsc.surrogate.FastSigmoid(), or another callable of v - theta, "
            f"got {type(spike).__name__} ({spike!r})."
        )
    return spike  # type: ignore[return-value]


def as_written(reset: Reset) -> bool:
    """True if a reset is one of ours, and not of a class derived from them."""
    return type(reset) in RESETS.values() and not fast.overridden(reset)


def known_derivative(spike: Spike) -> TypeGuard[Surrogate]:
    """True if a spike function is a surrogate whose formula is its spikes' derivative.

    A class that overrides its spikes, or one of a shape and its integral, says nothing about the other; nor does an
    object with hooks or methods of its own.
    """
    if not isinstance(spike, Surrogate) or fast.hooked(spike) or fast.overridden(spike):
        return False
    order = type(spike).__mro__

    def place(name: str) -> int:
        return next(i for i, c in enumerate(order) if name in vars(c))

    as_stated = place("derivative") <= min(place("forward"), place("primitive"))
    return as_stated and place("shape") == place("shape_integral")
