"""LIF and ALIF: eq. 49, with what they share."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypedDict, TypeGuard, Unpack

import torch
from torch import Tensor, nn

from neurolsc.display import state_repr
from neurolsc.neurons import fast
from neurolsc.neurons.cell import (
    SURROGATES,
    Answer,
    Cell,
    Membrane,
    State,
    Thresholds,
    is_frozen,
    register,
    truncated_normal,
)
from neurolsc.neurons.derivatives import LeakyDerivatives, Linearised
from neurolsc.neurons.equations import Constants, advance, next_threshold
from neurolsc.neurons.fast import hooked, known_reset, overridden
from neurolsc.neurons.reset import ResetName, StaticReset, make_reset
from neurolsc.positive import Positive, set_value
from neurolsc.surrogate import FastSigmoid, Surrogate
from neurolsc.validation import number, one_of

Spike = Callable[[Tensor], Tensor]
"""Any callable of v - theta that returns spikes: a surrogate of ours, or of another library."""


class SpikingCell(Cell):
    r"""A leaky voltage with recurrent spikes.

    .. math:: v[t] = e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \text{reset}, \quad
        z[t] = H(v[t] - \vartheta[t])

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        spike: the surrogate; by default a new ``FastSigmoid()``.
        tau_v: mean starting time constant of the voltage, in time steps, positive. The paper's 0.1
            means a decay of 4.5e-5: a voltage without memory.
        reset: ``"subtract"`` the current threshold (eq. 49), ``"static"``: the resting threshold,
            or to ``"zero"``.
        reset_gradient: let a gradient through the reset term; False detaches the whole term.
        recurrent_init: ``"glorot"`` uniform (App. H) or ``"orthogonal"`` (Sec. II-E).

    Attributes:
        w_in: input weights (n_hidden, n_in), Glorot uniform.
        w_rec: recurrent weights (n_hidden, n_hidden).
        tau_v: time constants of the voltage (n_hidden,), in steps; positive whatever the optimizer
            does; settable.
        b_v: constant input (n_hidden,), zero and not trainable.

    Source: arXiv:2308.12075, eq. 49 and App. H.
    """

    tau_v = Positive()
    b_v: Tensor

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
        self.reset = make_reset(reset, reset_gradient)
        self.w_in = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_hidden, n_in)))
        one_of("recurrent_init", recurrent_init, ("glorot", "orthogonal"))
        start = nn.init.orthogonal_ if recurrent_init == "orthogonal" else nn.init.xavier_uniform_
        self.w_rec = nn.Parameter(start(torch.empty(n_hidden, n_hidden)))
        self.tau_v = truncated_normal(number("tau_v", tau_v), n_hidden)
        self.register_buffer("b_v", torch.zeros(n_hidden))

    @abstractmethod
    def distance(self, state: State) -> Tensor:
        """The distance from the threshold, v - theta, (B, n_hidden); a spike where positive."""

    def output(self, state: State) -> Tensor:
        """The spikes of a state, 0 or 1, shape (B, n_hidden)."""
        return self.spike(self.distance(state))

    @property
    def decay_v(self) -> Tensor:
        """Share of the voltage kept from one step to the next, exp(-1/tau_v), shape (n_hidden,)."""
        return torch.exp(-1 / self.tau_v)

    def spike_derivative(self, state: State) -> Tensor:
        """The derivative of the spikes by the voltage, dampening f(sharpness (v - theta)).

        Shape (B, n_hidden).

        Raises:
            TypeError: if the spike is not one of our surrogates, whose derivative is known as a
                formula.
        """
        if not known_derivative(self.spike):
            raise TypeError(f"the derivative of {self.spike!r} is not known as a formula.")
        return self.spike.derivative(self.distance(state))

    def config(self) -> dict[str, object]:
        """The constructor's arguments as JSON values.

        Raises:
            TypeError: if the spike is not one of our surrogates, which no file can describe.
        """
        if not isinstance(self.spike, Surrogate):
            raise TypeError(f"only surrogates of neurolsc can be saved, got {self.spike!r}.")
        spike = {"name": SURROGATES.name_of(type(self.spike))} | self.spike.config()
        return super().config() | {
            "spike": spike,
            "reset": self.reset_name,
            "reset_gradient": self.reset.gradient,
        }

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reset={self.reset_name!r}, reset_gradient={self.reset.gradient}"


def spike_function(name: str, spike: Any) -> Spike:
    """The spike function that an argument of this name gave, if it is one."""
    if isinstance(spike, type):
        raise TypeError(f"{name} must be a surrogate object, got the class {spike.__name__}; write {spike.__name__}().")
    if callable(spike):
        return spike  # type: ignore[return-value]
    raise TypeError(
        f"{name} must be a surrogate, such as neurolsc.surrogate.FastSigmoid(), or another callable of v - theta, "
        f"got {type(spike).__name__} ({spike!r})."
    )


def known_derivative(spike: Spike) -> TypeGuard[Surrogate]:
    """Whether a spike function is a surrogate of ours whose formula is its spikes' derivative.

    A class that overrides its spikes, or one of a shape and its integral, says nothing about the
    other; nor does an object with hooks or methods of its own.
    """
    if not isinstance(spike, Surrogate) or hooked(spike) or overridden(spike):
        return False
    order = type(spike).__mro__

    def place(name: str) -> int:
        return next(i for i, c in enumerate(order) if name in vars(c))

    told = place("derivative") <= min(place("forward"), place("primitive"))
    return told and place("shape") == place("shape_integral")


ANSWERS = (
    Answer("w_in", "depth"),
    Answer("w_rec", "time"),
    Answer("tau_v", "time", through="decay"),
)
PAPER_ANSWERS = (
    Answer("w_in", "depth"),
    Answer("w_rec", "time"),
    Answer("tau_v", "time"),
)


class _Neurons:
    """As ``recurrent_synapses`` of a cell: how many neurons of the layer hear a neuron."""

    def __init__(self, without: int = 0) -> None:
        self.without = without

    def __get__(self, cell: Cell | None, owner: type | None = None) -> int | None:
        return None if cell is None else cell.n_hidden - self.without


ALL_NEURONS: Any = _Neurons()
OTHER_NEURONS: Any = _Neurons(without=1)
"""all but itself"""


def leaky_derivatives(cell: Any, adapts: bool) -> LeakyDerivatives | None:
    """The closed form of a LIF or ALIF; None if its surrogate or reset is custom."""
    return LeakyDerivatives(cell, adapts) if known_derivative(cell.spike) and known_reset(cell.reset) else None


class LIFState(NamedTuple):
    """State of a LIF cell."""

    v: Tensor
    """membrane potential (B, n_hidden)"""

    def __repr__(self) -> str:
        return state_repr(self)


@register
class LIF(SpikingCell):
    r"""Leaky integrate-and-fire neurons with recurrence; the ALIF of eq. 49 with a fixed threshold.

    .. math:: v[t] = e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \vartheta z[t-1],
        \quad z[t] = H(v[t] - \vartheta)

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        spike: the surrogate, as in :class:`SpikingCell`.
        threshold: the fixed threshold of all neurons, positive; the buffer ``theta`` may be set per
            neuron.
        tau_v: mean starting time constant of the voltage, in steps.
        reset: ``"subtract"``, ``"static"`` (here the same) or ``"zero"``.
        reset_gradient: let a gradient through the reset term.
        recurrent_init: ``"glorot"`` or ``"orthogonal"``.

    Raises:
        ValueError: if a size, the threshold or tau_v is not positive, or a name is unknown.

    Example:
        >>> cell = LIF(3, 2)
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> z.shape, state.v.shape
        (torch.Size([5, 2]), torch.Size([5, 2]))
    """

    theta: Tensor

    answers = ANSWERS
    paper_answers = PAPER_ANSWERS

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        spike: Spike | None = None,
        threshold: float = 1.0,
        tau_v: float = 0.1,
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
        self.register_buffer("theta", torch.full((n_hidden,), number("threshold", threshold)))

    def initial_state(self, batch: int) -> LIFState:
        """At rest: v = 0."""
        return LIFState(torch.zeros(batch, self.n_hidden, **self.dtype_and_device))

    def distance(self, state: LIFState) -> Tensor:
        return state.v - self.theta

    def constants(self) -> Constants:
        """The numbers that all steps have in common, with their gradients."""
        return Constants(self.w_in, self.w_rec, self.decay_v, self.b_v, self.theta)

    def update(self, x: Tensor, z: Tensor, state: LIFState) -> LIFState:
        v, _ = advance(self.reset, self.constants(), x, z, state.v, None)
        return LIFState(v)

    def linearised(self, state: LIFState) -> Linearised:
        """The step at B states, differentiated."""
        s, z = self.spike_derivative(state), self.output(state).detach()
        d, e, r = self.reset.derivatives(self.decay_v, state.v, z, self.theta)
        return Linearised(self.w_rec, s, d, e, r, None, None)

    run = fast.run
    recurrent_synapses: int | None = ALL_NEURONS

    def derivatives(self) -> LeakyDerivatives | None:
        return leaky_derivatives(self, adapts=False)

    def thresholds(self) -> Thresholds:
        return Thresholds(self, ("theta",))

    def membrane(self) -> Membrane:
        return Membrane("v", lambda _: self.theta, self.spike)


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
        return leaky_derivatives(self, adapts=True)

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


class ALIFOptions(TypedDict, total=False):
    """Keywords of an ALIF that are handed on."""

    spike: Spike | None
    tau_v: float
    tau_theta: float
    b_theta: float
    adaptation: float
    reset: ResetName
    reset_gradient: bool
    recurrent_init: Literal["glorot", "orthogonal"]


@register
class ALIFLowPass(ALIFPlus):
    r"""ALIF+ with a low-pass threshold: the neuron of the paper's *released code*, not of its text.

    With :math:`d_\vartheta = e^{-1/\tau_\vartheta}`,

    .. math::
        \vartheta[t] &= d_\vartheta \vartheta[t-1] + (1 - d_\vartheta) (b_\vartheta + \beta z[t-1])
        \\
        v[t] &= e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \vartheta[t] z[t-1] \\
        z[t] &= H(v[t] - \vartheta[t])

    The code writes the threshold as :math:`b_\vartheta + \beta a[t]` with a trace :math:`a[t] =
    d_\vartheta a[t-1] + (1 - d_\vartheta) z[t-1]` from 0, which is the same. Three things differ
    from :class:`ALIFPlus`:

    - a spike raises the threshold by :math:`(1 - d_\vartheta) \beta` and the resting threshold is
      :math:`b_\vartheta` itself, wherever tau_theta moves: with the same starting values both are
      about a hundred times as low;
    - the reset ``"subtract"`` takes off the new threshold, which the spike has raised already;
    - no neuron hears itself: the diagonal of w_rec starts as 0 and is not read.

    With :math:`b_\vartheta' = (1 - d_\vartheta) b_\vartheta` and :math:`\beta' = (1 - d_\vartheta)
    \beta` for an ALIF+ without self-connections, thresholds are equal, and so are, with reset
    ``"static"`` or ``"zero"``, voltages, spikes and derivatives. With ``"subtract"`` and the reset
    detached the derivatives at equal states are equal, and a spike takes off :math:`(1 -
    d_\vartheta) (b_\vartheta + \beta - \vartheta[t-1])` more than there. Where tau_v = tau_theta
    there is an ALIF+ of the same spikes then, too: with the constant input :math:`b_v'' = (1 -
    d_\vartheta) \beta'` and self-connections of :math:`-b_v''`, with :math:`b_\vartheta'' =
    b_\vartheta' + b_v''` and :math:`\beta'' = d_\vartheta \beta'`, started at :math:`v =
    \beta'`.

    It runs step by step, and is exported to no chip.

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        **options: keywords of :class:`ALIF`. Of these ``b_theta`` is the mean
            starting resting threshold, ``adaptation`` the mean starting rise of the threshold of a
            neuron that fires at every step, and ``reset`` is ``"subtract"`` the new threshold, the
            resting one (``"static"``), or to ``"zero"``; ``recurrent_init`` is before the diagonal
            is taken out.

    Attributes:
        b_theta: resting threshold (n_hidden,), trainable.
        theta_rest: the same.
        adaptation: rise of the threshold of a neuron that fires at every step (n_hidden,),
            trainable.
        kept: share of the threshold that is kept, exp(-1/tau_theta) (n_hidden,); setting it sets
            tau_theta, and holds what a spike adds by moving the adaptation. Frozen ones stay.

    Raises:
        ValueError: if a size or a starting value is not positive, or a name is unknown.

    Source: the released code of Herranz-Celotti & Rouat, arXiv:2308.12075.

    Example:
        >>> cell = ALIFLowPass(3, 2)
        >>> bool((cell.initial_state(1).theta == cell.b_theta).all())
        True
    """

    answers = (*ANSWERS, Answer("adaptation", "time"), Answer("kept", "time", through="share"))
    paper_answers = ALIF.paper_answers
    recurrent_synapses: int | None = OTHER_NEURONS
    derivatives = ALIF.derivatives
    membrane = ALIF.membrane

    def __init__(self, n_in: int, n_hidden: int, **options: Unpack[ALIFOptions]) -> None:
        super().__init__(n_in, n_hidden, **options)
        with torch.no_grad():
            self.w_rec.fill_diagonal_(0)

    @property
    def theta_rest(self) -> Tensor:  # type: ignore[override]
        """The resting threshold, b_theta, shape (n_hidden,)."""
        return self.b_theta

    @theta_rest.setter
    def theta_rest(self, value: Tensor | float) -> None:
        set_value(self, "b_theta", checked_rest(value, self.b_theta))

    @property
    def kept(self) -> Tensor:
        """Share of the threshold that is kept; setting it holds what a spike adds."""
        return self.decay_theta

    @kept.setter
    def kept(self, value: Tensor) -> None:
        if is_frozen(self, "tau_theta"):
            return
        added = self._new_share * self.adaptation
        tiny = torch.finfo(self.adaptation.dtype).tiny
        self.tau_theta = -1 / torch.log(value.clamp(min=tiny))
        if not is_frozen(self, "adaptation"):
            set_value(self, "adaptation", (added / self._new_share).detach())

    @property
    def _new_share(self) -> Tensor:
        """1 - exp(-1/tau_theta), what is not kept of the threshold."""
        return -torch.expm1(-1 / self.tau_theta)

    def constants(self) -> Constants:
        """Those of the ALIF+ that has the same thresholds."""
        c, new = super().constants(), self._new_share
        w_rec = c.w_rec - torch.diag(c.w_rec.diagonal())
        return c._replace(w_rec=w_rec, b_theta=new * self.b_theta, adaptation=new * self.adaptation)

    def update(self, x: Tensor, z: Tensor, state: ALIFState) -> ALIFState:
        c = self.constants()
        theta = _raised(c, state.theta, z)
        v, _ = advance(self.reset, c._replace(threshold=_subtracted(c, theta)), x, z, state.v, None)
        return ALIFState(v, theta)

    def linearised(self, state: ALIFState) -> Linearised:
        """The step at B states, differentiated."""
        c = self.constants()
        assert c.adaptation is not None and c.decay_theta is not None
        s, z = self.spike_derivative(state), self.output(state).detach()
        subtracted = _subtracted(c, _raised(c, state.theta, z))
        d, e, r = self.reset.derivatives(c.decay_v, state.v, z, subtracted)
        # e is by the threshold that is subtracted, which the last one and the spikes have made
        return Linearised(c.w_rec, s, d, e * c.decay_theta, r - e * c.adaptation, c.adaptation, c.decay_theta)

    def thresholds(self) -> Thresholds:
        """b_theta and adaptation: the whole threshold is a sum of multiples of them."""
        return Thresholds(self, ("b_theta", "adaptation"), rest="theta_rest")


def _raised(c: Constants, theta: Tensor, z: Tensor) -> Tensor:
    """The next threshold."""
    assert c.decay_theta is not None and c.b_theta is not None and c.adaptation is not None
    return next_threshold(theta, z, c.decay_theta, c.b_theta, c.adaptation)


def _subtracted(c: Constants, theta: Tensor) -> Tensor:
    """What a spike takes off the voltage, if the next threshold is theta."""
    return theta if c.threshold is None else c.threshold
