"""The leaky integrate-and-fire cell."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neurolsc.display import state_repr
from neurolsc.neurons import fast
from neurolsc.neurons.equations import Constants, advance
from neurolsc.neurons.leaky import ALL_NEURONS, ANSWERS, PAPER_ANSWERS, LeakyDerivatives
from neurolsc.neurons.linearised import Linearised
from neurolsc.neurons.membrane import Membrane
from neurolsc.neurons.registry import register
from neurolsc.neurons.reset import ResetName
from neurolsc.neurons.spiking import Spike, SpikingCell
from neurolsc.neurons.thresholds import Thresholds
from neurolsc.validation import number


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
        return LeakyDerivatives.of(self, adapts=False)

    def thresholds(self) -> Thresholds:
        return Thresholds(self, ("theta",))

    def membrane(self) -> Membrane:
        return Membrane("v", lambda _: self.theta, self.spike)
