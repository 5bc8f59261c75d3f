"""What LIF and ALIF share: weights, the leaky voltage, a spike and its reset."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from neurolsc.neurons import scan
from neurolsc.neurons.cell import Answer, Cell, State, truncated_normal
from neurolsc.neurons.equations import Constants
from neurolsc.neurons.positive import Positive
from neurolsc.neurons.reset import ResetName, make_reset
from neurolsc.surrogate import FastSigmoid, Surrogate
from neurolsc.validation import number, one_of

Spike = Callable[[Tensor], Tensor]
"""Any callable of v - theta that returns spikes: a surrogate of ours, or of another library."""


class SpikingCell(Cell):
    r"""A leaky voltage with recurrent spikes.

    .. math:: v[t] = e^{-1/\tau_v} v[t-1] + W_{rec} z[t-1] + W_{in} x[t] + b_v - \text{reset}, \quad z[t] = H(v[t] - \vartheta[t])

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

    Source: arXiv:2308.12075, eq. 49 and App. H.
    """

    tau_v = Positive()
    b_v: Tensor

    answers = (
        Answer("w_in", "depth"),
        Answer("w_rec", "time"),
        Answer("tau_v", "time", through="decay"),
    )
    paper_answers = (
        Answer("w_in", "depth"),
        Answer("w_rec", "time"),
        Answer("tau_v", "time"),
    )

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
        self.spike = FastSigmoid() if spike is None else spike
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
        """The distance from the threshold, v - theta, shape (B, n_hidden): a neuron spikes where it is positive."""

    def output(self, state: State) -> Tensor:
        """The spikes of a state, 0 or 1, shape (B, n_hidden)."""
        return self.spike(self.distance(state))

    @property
    def decay_v(self) -> Tensor:
        """Share of the voltage kept from one step to the next, exp(-1/tau_v), shape (n_hidden,)."""
        return torch.exp(-1 / self.tau_v)

    @abstractmethod
    def constants(self) -> Constants:
        """The numbers that all steps have in common, with their gradients."""

    def run(
        self,
        x: Tensor,
        state: State,
        *,
        first: Tensor | None = None,
        lengths: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, State]:
        ours = all(
            getattr(type(self), name).__module__.startswith("neurolsc.neurons.")
            for name in ("update", "output", "distance", "constants")
        )
        way = scan.run if ours else Cell.run
        return way(self, x, state, first=first, lengths=lengths, recompute=recompute)

    def has_closed_form(self) -> bool:
        """True for our surrogates, whose derivative is known as a formula."""
        return isinstance(self.spike, Surrogate)

    def spike_derivative(self, state: State) -> Tensor:
        """The derivative of the spikes by the voltage, dampening f(sharpness (v - theta)), shape (B, n_hidden)."""
        assert isinstance(self.spike, Surrogate)  # guarded by has_closed_form
        return self.spike.derivative(self.distance(state))

    def config(self) -> dict[str, object]:
        """The constructor's arguments as JSON values.

        Raises:
            TypeError: if the spike is not one of our surrogates, which no file can describe.
        """
        if not isinstance(self.spike, Surrogate):
            raise TypeError(f"only surrogates of neurolsc can be saved, got {self.spike!r}.")
        spike = {"name": type(self.spike).__name__} | self.spike.config()
        return super().config() | {
            "spike": spike,
            "reset": self.reset_name,
            "reset_gradient": self.reset.gradient,
        }

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reset={self.reset_name!r}, reset_gradient={self.reset.gradient}"
