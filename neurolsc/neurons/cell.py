"""What a cell is: its state, its pure step, and the parameters that answer for its radii."""

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from neurolsc.frames import frame, frames, frozen, stretch
from neurolsc.neurons.derivatives import Derivatives
from neurolsc.neurons.membrane import Membrane
from neurolsc.neurons.offers import withdraw, withdraw_here
from neurolsc.neurons.thresholds import Thresholds
from neurolsc.validation import tensor, whole

State = Any
"""The state of a cell: a NamedTuple of tensors of shape (B, ...)."""


@dataclass(frozen=True)
class Answer:
    """A parameter that answers for a radius.

    Attributes:
        parameter: its name on the cell; dotted, ``"layer.weight"``, where it belongs to a module of
            the cell.
        radius: the radius that it answers to, through ``"time"`` or ``"depth"``.
        through: what a multiplier multiplies: the ``"value"``; of a time constant tau in steps the
            ``"decay"`` exp(-1/tau); of a ``"share"``, a decay kept as such, the value, which stays
            below 1.
        sign: +1 where the radius grows with the parameter, -1 where it shrinks: a multiplier k acts
            as k**sign.
    """

    parameter: str
    radius: Literal["time", "depth"]
    through: Literal["value", "decay", "share"] = "value"
    sign: int = 1


class Cell(nn.Module, ABC):
    """A recurrent layer, seen one step at a time.

    A cell holds parameters and no state. With h the state, a NamedTuple of tensors (B, ...):

    - ``output(h)`` is what it sends to others, shape (B, n_hidden), a function of the state alone;
    - ``update(x, z, h)`` is the next state, given the input x (B, n_in) and the own last output z =
    ``output(h)``
      (an argument so that a time loop does not compute it twice);
    - ``step(x, h)`` is both: the next output and the next state.

    All three are pure and differentiable, and are all that a new neuron needs: a class with them,
    an :meth:`initial_state` and a state that is a NamedTuple is run, differentiated, pre-trained
    and trained like any other. Variables of a state may be complex; derivatives and radii are then
    those of their real and imaginary parts.

    Everything else is an offer, which describes the step of the class that makes it: :meth:`run`
    (all steps at once), :meth:`derivatives` (in closed form), :meth:`thresholds`, :meth:`membrane`,
    :meth:`gains`, and the attributes below. A subclass that overrides a part of the step loses the
    offers that it does not renew (:mod:`neurolsc.neurons.offers`), and is run step by step and
    differentiated by autograd.

    Attributes:
        answers: the parameters that answer for its radii, following its derivatives.
        paper_answers: the same after the paper, Sec. II-D and App. H.
        recurrent_synapses: neurons of its own layer that hear a neuron; None where the cell does
            not say.
        integrator: whether it sends its voltage and no spikes, as norse's LI. Starts, rates and
            diagnoses pass over such a layer.
        input_matrices: names of input weights that set no radius through depth, since what a step
            reads does not reach what it sends, as in norse's LSNN.
    """

    answers: tuple[Answer, ...] = ()
    paper_answers: tuple[Answer, ...] = ()
    recurrent_synapses: int | None = None
    integrator: bool = False
    input_matrices: tuple[str, ...] = ()

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        withdraw(cls, Cell)

    def __setattr__(self, name: str, value: Any) -> None:
        withdraw_here(self, Cell, name)
        super().__setattr__(name, value)

    def __init__(self, n_in: int, n_hidden: int) -> None:
        super().__init__()
        self.n_in = whole("n_in", n_in)
        self.n_hidden = whole("n_hidden", n_hidden)

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """The state at rest of `batch` samples."""

    @abstractmethod
    def output(self, state: State) -> Tensor:
        """What the cell sends to others in this state, shape (B, n_hidden)."""

    @abstractmethod
    def update(self, x: Tensor, z: Tensor, state: State) -> State:
        """The next state, from the input x (B, n_in) and the own last output z (B, n_hidden)."""

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One time step.

        Args:
            x: the input, shape (B, n_in).
            state: the state before.

        Returns:
            The output (B, n_hidden) and the state after.

        Raises:
            ValueError: if x has not the shape (B, n_in).
        """
        if tensor("x", x).ndim != 2 or x.shape[1] != self.n_in:
            raise ValueError(f"x must have shape (B, {self.n_in}), got {tuple(x.shape)}.")
        state = self.update(x, self.output(state), state)
        return self.output(state), state

    def run(
        self,
        x: Tensor,
        state: State,
        *,
        first: Tensor | None = None,
        lengths: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, State]:
        """Many time steps: those of :meth:`update` one by one, or an equal, faster way of the cell.

        Args:
            x: the input (T, B, n_in), dense or sparse (COO), of any real dtype.
            state: the state before.
            first: what the first step reads (B, n_in); x is then read one step late, and its last
                frame not at all.
            lengths: the number of steps after which the state of each sample stands still (B,), 0
                to T; by default T. Outputs after that mean nothing.
            recompute: keep the state of a few steps only, and run those between again for the
                gradient.

        Returns:
            The outputs (T, B, n_hidden) and the last state.
        """
        if not (recompute and torch.is_grad_enabled()):
            return self._by_steps(x, state, first, lengths)
        steps, outputs = x.shape[0], []
        length = math.isqrt(steps - 1) + 1
        for a in range(0, steps, length):
            part = stretch(x, a, min(length, steps - a))
            left = None if lengths is None else (lengths - a).clamp(0, part.shape[0])
            z, state = checkpoint(self._by_steps, part, state, first, left, use_reentrant=False)  # type: ignore[misc]
            first = None if first is None else frame(part, -1)
            outputs.append(z)
        return torch.cat(outputs), state

    def _by_steps(self, x: Tensor, state: State, first: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        dtype, z, outputs = state[0].real.dtype, self.output(state), []
        read = frames(x) if first is None else chain([first], islice(frames(x), x.shape[0] - 1))
        for t, now in enumerate(read):
            after = self.update(now.to(dtype), z, state)
            state = after if lengths is None else frozen(after, state, lengths > t)
            z = self.output(state)
            outputs.append(z)
        return torch.stack(outputs), state

    def derivatives(self) -> Derivatives | None:
        """The derivatives of the step in closed form; None if not known: then autograd has them."""
        return None

    def thresholds(self) -> Thresholds | None:
        """What scales the thresholds, and so the firing rates; None where none are known."""
        return None

    def membrane(self) -> Membrane | None:
        """What of the state is the voltage, and where it fires; None where there is no such."""
        return None

    def gains(self) -> dict[str, float]:
        """How far a unit of a parameter moves the state at rest, by its name; 1 where none is said.

        Of a constant input that is added at every step it is the sum of what is left of it. A
        training can divide learning rates by them.
        """
        return {}

    def config(self) -> dict[str, object]:
        """The constructor's arguments as JSON values; parameters are in the state_dict."""
        return {"n_in": self.n_in, "n_hidden": self.n_hidden}

    def extra_repr(self) -> str:
        return f"{self.n_in}, {self.n_hidden}"

    def pretrained(self) -> Iterable[nn.Parameter]:
        """What pre-training may optimize and shuffle: all parameters, unless a cell says less."""
        return self.parameters()

    @property
    def dtype_and_device(self) -> dict[str, Any]:
        """The dtype and device of the parameters, as keywords for a tensor's constructor."""
        return dtype_and_device(self)

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        """Refuse words of other libraries, and say what they are here.

        Raises:
            TypeError: if a setting has the name that it has elsewhere.
        """
        known = {name for each in cls.__mro__ for name in inspect.signature(each.__init__).parameters}
        for word in settings:
            if word in ELSEWHERE and word not in known:
                raise TypeError(f"{cls.__name__} takes no {word}: {ELSEWHERE[word]}.")
        return super().__new__(cls)

    def copy(self) -> "Cell":
        """An independent copy."""
        return copy.deepcopy(self)


ELSEWHERE = {
    "beta": "snnTorch's beta is a decay: give tau_v = -1 / ln(beta), in steps (the beta of an LSNN is adaptation here)",
    "alpha": "snnTorch's alpha is the decay of a synapse, which neurons here have not (neurolsc.wrap takes its layers); "
    "norse's is a sharpness: give spike=FastSigmoid(sharpness=alpha)",
    "threshold": "set the resting threshold afterwards: cell.theta_rest = threshold",
    "v_th": "norse's v_th is threshold here; of an ALIF set cell.theta_rest afterwards",
    "v_threshold": "spikingjelly's v_threshold is threshold here; of an ALIF set cell.theta_rest afterwards",
    "tau": "spikingjelly's tau is an Euler step: give tau_v = -1 / ln(1 - 1 / tau), in steps",
    "tau_mem_inv": "norse's tau_mem_inv is a rate per second: give tau_v = -1 / ln(1 - dt * tau_mem_inv), in steps",
    "tau_syn_inv": "neurons here have no synaptic current: neurolsc.wrap takes norse's layers",
    "tau_adapt_inv": "norse's rate per second: give tau_theta = -1 / ln(1 - dt * tau_adapt_inv), in steps",
    "spike_grad": "snnTorch's spike_grad is spike here",
    "surrogate_function": "spikingjelly's surrogate_function is spike here",
    "method": "norse's method is spike here, a surrogate object such as FastSigmoid()",
    "reset_mechanism": "snnTorch's reset_mechanism is reset here: 'subtract' or 'zero'",
    "learn_beta": "tau_v is learnt here; cell.log_tau_v.requires_grad_(False) freezes it",
    "init_hidden": "a state is an argument and a result here: z, state = cell.step(x, state)",
    "linear_features": "snnTorch's linear_features is n_hidden here, and n_in comes before it",
    "input_size": "input_size is n_in here",
    "hidden_size": "hidden_size is n_hidden here",
}
"""Words of snnTorch, norse, spikingjelly and PyTorch in constructors, and what they are here."""


def dtype_and_device(module: nn.Module) -> dict[str, Any]:
    """Those of a module's first parameter, else of its first buffer, else torch's defaults."""
    tensors = (t for t in chain(module.parameters(), module.buffers()) if t.is_floating_point())
    first = next(tensors, torch.empty(0))
    return {"dtype": first.dtype, "device": first.device}


def truncated_normal(mean: float, size: int) -> Tensor:
    """Draw positive values: a Gaussian of deviation 3/7 of its mean, cut at two deviations.

    Source: arXiv:2308.12075, App. H ("truncated Gaussian [...] that guarantees positive values").
    """
    std = 3 * mean / 7
    return nn.init.trunc_normal_(torch.empty(size), mean, std, mean - 2 * std, mean + 2 * std)
