r"""The transition derivatives of a network, dense: through time and through depth.

.. math:: M^{time}_{t,l} = \frac{\partial h[t, l]}{\partial h[t-1, l]}, \qquad
          M^{depth}_{t,l} = \frac{\partial h[t, l]}{\partial h[t', l-1]}

with t' = t-1 for ``layer_delay=1`` and t' = t for 0. The state h is the whole state of a layer, all
its variables concatenated. Row 0 of the depth is the derivative of the first layer by its input.

The states along the run are taken as they are: a derivative depends on the parameters through its
own step only, which is what the loss of arXiv:2308.12075, eq. 2, differentiates.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.network import Network
from neurolsc.neurons.cell import Cell, State
from neurolsc.surrogate import exact_values


class Transitions(NamedTuple):
    """What one layer needs for its derivatives at K x B points (step, sample), as one batch."""

    cell: Cell
    x: Tensor
    """what the cell read (K B, n_in)"""
    before: State
    """its state before the step, leaves (K B, ...)"""
    below: Cell | None
    """the cell it reads from; None for the first"""
    state_below: State | None
    """the state that x is the output of; None for the first"""


def follow(network: Network, x: Tensor, steps: Tensor) -> tuple[list[Transitions], tuple[Tensor, ...]]:
    """Run the network without gradient and keep the points at which derivatives are taken.

    Args:
        network: the network.
        x: input (T, B, n_in).
        steps: the K steps to keep, increasing, each in 0 ... T-1.

    Returns:
        One :class:`Transitions` per layer, its points ordered (step, sample), and the outputs of
        every layer at all steps, each (T, B, n_hidden).
    """
    wanted = set(steps.tolist())
    kept, outputs = [], []
    with torch.no_grad():
        for t, moment in enumerate(network.moments(x)):
            outputs.append(moment.outputs)
            if t in wanted:
                kept.append(moment)
    transitions = []
    for i, cell in enumerate(network.cells):
        below = network.cells[i - 1] if i else None
        # with a delay x is the output of the layer below one step ago, without one of the same step
        side = [m.before if network.layer_delay else m.after for m in kept]
        state_below = stacked([s.layers[i - 1] for s in side]) if i else None
        inputs = torch.cat([m.inputs[i] for m in kept])
        transitions.append(Transitions(cell, inputs, stacked([m.before.layers[i] for m in kept]), below, state_below))
    return transitions, tuple(torch.stack(layer) for layer in zip(*outputs, strict=True))


def time_derivative(t: Transitions) -> Tensor:
    """d h[t, l] / d h[t-1, l], shape (K B, S, S); in closed form where the cell has one."""
    known = t.cell.derivatives()
    return time_derivative_by_autograd(t) if known is None else sum_of(known.by_state(t.x, t.before))


def depth_factors(t: Transitions) -> tuple[Tensor, Tensor | None]:
    """d h[t, l] / d x (K B or 1, S, n_in), and d x / d h below (K B, n_in, S_below).

    The depth derivative is their product; for the first layer the second is None, and the depth
    derivative is the first alone.
    """
    known = t.cell.derivatives()
    by_input = input_derivative_by_autograd(t) if known is None else known.by_input(t.x, t.before)
    if t.below is None:
        return by_input, None
    known = t.below.derivatives()
    return by_input, output_derivative_by_autograd(t) if known is None else known.of_output(t.state_below)


def depth_derivative(t: Transitions) -> Tensor:
    """d h[t, l] / d h[t', l-1], shape (K B, S, S_below).

    For the first layer it is that by the input, (K B or 1, S, n_in).
    """
    by_input, below = depth_factors(t)
    return by_input if below is None else by_input @ below


def sum_of(terms: dict[str, Tensor]) -> Tensor:
    """The sum of named terms of a derivative."""
    first, *rest = terms.values()
    return sum(rest, first)


def time_derivative_by_autograd(t: Transitions) -> Tensor:
    """The same as :func:`time_derivative` by autograd, for any cell."""
    return jacobian(step_by_state(t), flat(t.before), t.x)


def input_derivative_by_autograd(t: Transitions) -> Tensor:
    """d h[t] / d x by autograd, (K B, S, n_in)."""
    return jacobian(step_by_input(t), t.x, flat(t.before))


def output_derivative_by_autograd(t: Transitions) -> Tensor:
    """d x / d h below by autograd, (K B, n_in, S_below)."""
    return jacobian(output_below(t), flat(t.state_below))


def step_by_state(t: Transitions) -> Callable[[Tensor, Tensor], Tensor]:
    """The step as a function of the state (P, S), and the input (P, n_in)."""

    def step(h: Tensor, x: Tensor) -> Tensor:
        state = unflat(h, t.before)
        with exact_values(t.cell):
            return flat(t.cell.update(x, t.cell.output(state), state))

    return step


def step_by_input(t: Transitions) -> Callable[[Tensor, Tensor], Tensor]:
    """The same as a function of the input, and the state."""
    step = step_by_state(t)
    return lambda x, h: step(h, x)


def output_below(t: Transitions) -> Callable[[Tensor], Tensor]:
    """What the layer below sends, as a function of its state (P, S_below)."""
    below, like = t.below, t.state_below
    assert below is not None

    def output(h: Tensor) -> Tensor:
        with exact_values(below):
            return below.output(unflat(h, like))

    return output


def jacobian(function: Callable[..., Tensor], at: Tensor, *context: Tensor) -> Tensor:
    """The Jacobians of a function that treats the samples of a batch apart.

    Every sample is repeated once per output and one backward pass picks one output from each copy.
    It needs neither ``vmap`` nor ``jacrev``, which surrogates of other libraries refuse, and is
    differentiable by the parameters.

    Args:
        function: maps (n, M), and the context, to (n, N), sample by sample, for any n.
        at: where, shape (B, M).
        context: further arguments (B, ...), not differentiated.

    Returns:
        Shape (B, N, M).
    """
    with torch.enable_grad():
        at, context = at.detach(), tuple(c.detach() for c in context)
        batch, outputs = at.shape[0], function(at, *context).shape[1]
        copies = at.repeat_interleave(outputs, 0).requires_grad_()
        rows = function(copies, *(c.repeat_interleave(outputs, 0) for c in context))
        picked = rows.view(batch, outputs, outputs).diagonal(dim1=1, dim2=2).sum()
        (gradient,) = torch.autograd.grad(picked, copies, create_graph=True, materialize_grads=True)
    return gradient.view(batch, outputs, -1)


def flat(state: State) -> Tensor:
    """All variables of a state, leaves (B, ...), side by side (B, S); complex ones as two reals."""
    return torch.cat([_real(leaf).reshape(leaf.shape[0], -1) for leaf in state], 1)


def unflat(h: Tensor, like: State) -> State:
    """The state with the values h (B, S) and the shapes of another one (any batch)."""
    parts = h.split([_real(leaf)[0].numel() for leaf in like], 1)
    return type(like)(*(_leaf(part, leaf) for part, leaf in zip(parts, like, strict=True)))


def _real(leaf: Tensor) -> Tensor:
    return torch.view_as_real(leaf) if leaf.is_complex() else leaf


def _leaf(part: Tensor, like: Tensor) -> Tensor:
    shape = (-1, *like.shape[1:])
    return torch.complex(*part.reshape(*shape, 2).unbind(-1)) if like.is_complex() else part.view(shape)


def stacked(states: list[State]) -> State:
    """The states of several steps as one batch."""
    return type(states[0])(*(torch.cat(leaves) for leaves in zip(*states, strict=True)))
