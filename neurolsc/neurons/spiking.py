"""What LIF and ALIF share: weights, the leaky voltage, a spike and its reset."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn

from neurolsc.neurons.cell import Cell, State, truncated_normal
from neurolsc.neurons.fast import hooked, overridden
from neurolsc.neurons.registry import SURROGATES
from neurolsc.neurons.reset import ResetName, make_reset
from neurolsc.positive import Positive
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
