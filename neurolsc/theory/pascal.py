r"""The PascalRNN: the smallest network with time and depth, in which all is exact."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.display import state_repr
from neurolsc.neurons.cell import Cell
from neurolsc.neurons.derivatives import Derivatives, Term
from neurolsc.theory.paths import Delay, checked, log_derivative
from neurolsc.validation import number, whole


class PascalState(NamedTuple):
    """State of a layer of the PascalRNN."""

    h: Tensor  # (B, width)

    def __repr__(self) -> str:
        return state_repr(self)


class PascalRNN(Cell):
    r"""A layer of the paper's PascalRNN, in which every derivative is a number.

    .. math:: h[t, l] = \mathrm{time}\; h[t-1, l] + \mathrm{depth}\; h[t-1, l-1]

    That is ``layer_delay=1``; in a network with ``layer_delay=0`` the last term is
    :math:`h[t, l-1]`. Neurons are not connected to each other. Nothing in it is learnt, so its radii are
    ``time`` and ``depth`` exactly, at every step.

    Args:
        width: number of inputs and of neurons.
        time: the derivative through time, from 0; the paper's rho, which it has for both.
        depth: the derivative through depth, from 0.

    Example:
        >>> from torch import nn
        >>> from neurolsc import Network
        >>> network = Network([PascalRNN(time=1.0, depth=1.0) for _ in range(3)], nn.Identity())
        >>> x = torch.zeros(8, 1, 1)
        >>> x[0] = 1
        >>> network(x).flatten().tolist()  # paths to the top
        [0.0, 0.0, 0.0, 1.0, 3.0, 6.0, 10.0, 15.0]

    Source: arXiv:2308.12075, Sec. III-B and Fig. 1 c.
    """

    time: Tensor
    depth: Tensor

    def __init__(self, width: int = 1, *, time: float = 0.5, depth: float = 0.5) -> None:
        super().__init__(width, width)
        self.register_buffer("time", torch.tensor(number("time", time, zero_allowed=True)))
        self.register_buffer("depth", torch.tensor(number("depth", depth, zero_allowed=True)))

    def initial_state(self, batch: int) -> PascalState:
        """At rest: h = 0."""
        return PascalState(torch.zeros(batch, self.n_hidden, **self.dtype_and_device))

    def output(self, state: PascalState) -> Tensor:
        return state.h

    def update(self, x: Tensor, z: Tensor, state: PascalState) -> PascalState:
        return PascalState(self.time * state.h + self.depth * x)

    def closed_form(self) -> Derivatives:
        return _PascalDerivatives(self)

    def config(self) -> dict[str, object]:
        return {"width": self.n_hidden, "time": self.time.item(), "depth": self.depth.item()}


class _PascalDerivatives(Derivatives):
    """Multiples of the identity."""

    terms = (Term("leak", "lower time", "raise time", "#009e73"),)
    reads_input = False

    def __init__(self, cell: PascalRNN) -> None:
        self.cell = cell
        self.one = torch.eye(cell.n_hidden, **cell.dtype_and_device)

    def by_state(self, x: Tensor, state: PascalState) -> dict[str, Tensor]:
        return {"leak": (self.cell.time * self.one).expand(len(x), -1, -1)}

    def by_input(self, x: Tensor, state: PascalState) -> Tensor:
        return (self.cell.depth * self.one).unsqueeze(0)

    def of_output(self, state: PascalState) -> Tensor:
        return self.one.expand(len(state.h), -1, -1)


def input_paths(steps: int, layers: int, *, layer_delay: Delay) -> list[int]:
    r"""Count the paths from the tops of all steps down to the input of each step, exactly.

    .. math:: \binom{T-1-t}{L} \;\; (\mathrm{layer\_delay} = 1), \qquad
              \binom{T-1-t+L}{L} \;\; (\mathrm{layer\_delay} = 0)

    The derivative of the top outputs of a PascalRNN with both numbers 1, summed over time, by the input at each step.
    The input has no arrow through time of its own, so the last arrow of a path goes down.

    Args:
        steps: T, the steps of the run, from 1.
        layers: L, from 1.
        layer_delay: as in :func:`paths`.

    Returns:
        T numbers, of t = 0 first.

    Example:
        >>> input_paths(100, 10, layer_delay=0)[0], input_paths(100, 10, layer_delay=1)[0]
        (42634215112710, 15579278510796)

    Source: arXiv:2308.12075, Fig. 1 c.
    """
    whole("steps", steps)
    whole("layers", layers)
    above = 0 if checked(layer_delay) else layers
    return [math.comb(steps - 1 - t + above, layers) for t in range(steps)]


def log_input_derivatives(
    steps: int, layers: int, *, time: float = 1.0, depth: float = 1.0, layer_delay: Delay
) -> Tensor:
    r"""The logarithm of the derivative of the summed top outputs by the input at each step.

    .. math:: \sum_{n=0}^{T-1-t} \mathrm{depth}\; D(n - \mathrm{layer\_delay},\; L - 1)

    with D of :func:`log_derivative`, 0 where n is too small: :func:`input_paths` where both numbers are 1. Where
    time + depth = 1 it is the probability that of the arrows that there is time for at least L go down. So "the
    derivative follows the constant 1" (the paper, Sec. III-B) is true of the *sum* over all later outputs, and far from
    the end only: at the last step it is :math:`\mathrm{depth}^L` (0.000977 at 0.5 and 10 layers), with a delay 0. The
    derivative of one output n steps later vanishes as n grows.

    Args:
        steps: T, the steps of the run, from 1.
        layers: L, from 1.
        time: derivative through time, from 0.
        depth: likewise through depth.
        layer_delay: as in :func:`paths`.

    Returns:
        Logarithms (T,) in float64, of t = 0 first; ``-inf`` where it is 0.

    Example:
        >>> found = log_input_derivatives(100, 10, time=0.5, depth=0.5, layer_delay=0).exp()
        >>> print(*(f"{found[t]:.7f}" for t in (0, 80, 99)))
        1.0000000 0.9692858 0.0009766

    Source: arXiv:2308.12075, Fig. 1 c.
    """
    whole("steps", steps)
    whole("layers", layers)
    n = torch.arange(steps)
    each = log_derivative(n, layers - 1, time=time, depth=depth, layer_delay=layer_delay)
    if layer_delay:
        each = torch.cat([each.new_full((1,), -torch.inf), each[:-1]])
    return (each.logcumsumexp(0) + torch.tensor(float(depth), dtype=torch.float64).log()).flip(0)
