r"""Layers whose neurons do not read each other: a block of V x V for each neuron, V being its state variables.

V backward passes give all blocks of a wrapped layer without recurrent weights. Radii and singular values of the
blocks are in :mod:`neurolsc.stability.isolated`.

Shapes: P points (an input and a state each), V state variables of a neuron, n neurons. Blocks (P, V, V, n) hold the
derivative of each neuron's next state by its own last one: a row for each variable of the next state, a column for each
of the last one.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any, Protocol

import torch
from torch import Tensor

from neurolsc.neurons.blocks import DiagonalBlocks, dense_blocks
from neurolsc.neurons.derivatives import Derivatives, JacobianOperator, LinearOperator, Matrices, State, StepMap, Term
from neurolsc.surrogate import exact_values

OWN = Term("leak or reset", "lower its decays, or detach its reset", "raise its decays")
ONE_TO_ONE = Term("recurrence", "scale its recurrent weights down", "scale its recurrent weights up", "#009e73")


class BlockStep(DiagonalBlocks, StepMap):
    """d h[t] / d h[t-1] at P points, of n neurons that do not read each other.

    Args:
        parts: named terms of the blocks, each (P, V, V, n).
    """

    def __init__(self, parts: dict[str, Tensor]) -> None:
        super().__init__(reduce(torch.add, parts.values()))
        self.parts = parts
        self.same = False  # each point has terms of its own

    def take(self, index: Tensor) -> "BlockStep":
        return BlockStep({name: part[index] for name, part in self.parts.items()})

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        variables, neurons = self.k.shape[2:]
        columns = x.view(-1, 1, variables, neurons)
        rows = y.view(-1, variables, 1, neurons)
        return {name: (rows * part * columns).sum((1, 2, 3)) for name, part in self.parts.items()}


class NeuronwiseCell(Protocol):
    """A cell whose current and state have an entry for each neuron, all in the layer's own shape."""

    @property
    def affine(self) -> bool:
        """Whether the current is an affine function of the input."""
        ...

    def current(self, x: Tensor) -> Tensor:
        """The current of every neuron (P, ...) from an input (P, n_in)."""
        ...

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        """The next state, computed for each neuron from its own current, last output z and state."""
        ...

    def emitted(self, state: State) -> Tensor:
        """The output (P, ...) in a state, computed for each neuron from its own."""
        ...


class NeuronwiseDerivatives(Derivatives):
    """The derivatives of a layer in which no neuron reads another one, by autograd of all neurons at once.

    The gradient of the sum of a variable over all neurons and points holds the row of that variable in every block, so
    V backward passes give all blocks.

    Args:
        cell: the layer. That its neurons do not read each other must follow from its type: nothing here checks it.
        one_to_one: True if every neuron reads its own last output through a recurrent weight, and nowhere else.
    """

    def __init__(self, cell: NeuronwiseCell, *, one_to_one: bool = False) -> None:
        self.cell = cell
        self.one_to_one = one_to_one
        if one_to_one:
            self.terms = (OWN, ONE_TO_ONE)
        else:
            self.terms = (OWN,)

    def state_map(self, x: Tensor, state: State) -> BlockStep:
        by_state, by_output, _ = self._step_derivatives(x, state)
        # the last output depends on the last state: outer products (P, V, 1, n) times (P, 1, V, n)
        through_output = by_output.unsqueeze(2) * self._output_derivative(state).unsqueeze(1)
        if self.one_to_one:
            return BlockStep({OWN.name: by_state, ONE_TO_ONE.name: through_output})
        return BlockStep({OWN.name: by_state + through_output})

    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        step = self.state_map(x, state)
        return {name: dense_blocks(part) for name, part in step.parts.items()}

    def input_maps(self, x: Tensor, state: State) -> Sequence[LinearOperator]:
        _, _, by_current = self._step_derivatives(x, state)
        state_by_current = DiagonalBlocks(by_current.unsqueeze(2))
        if self.cell.affine:  # the current has the same derivative at all inputs
            return [Matrices(self._weights(x)), state_by_current]
        return [JacobianOperator(self._flat_current, x), state_by_current]

    def by_input(self, x: Tensor, state: State) -> Tensor:
        current_by_input, state_by_current = self.input_maps(x, state)
        if isinstance(current_by_input, Matrices):
            currents = current_by_input.m
        else:
            currents = current_by_input.matrices()  # type: ignore[attr-defined]
        return dense_blocks(state_by_current.k) @ currents  # type: ignore[attr-defined]

    def output_maps(self, state: State) -> Sequence[LinearOperator]:
        return [DiagonalBlocks(self._output_derivative(state).unsqueeze(1))]

    def of_output(self, state: State) -> Tensor:
        return dense_blocks(self._output_derivative(state).unsqueeze(1))

    def _step_derivatives(self, x: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return the derivatives of the next state at the inputs x (P, n_in) and the states before the step.

        Returns:
            Those by the last state (P, V, V, n), a row for each variable of the next state and a column for each of the
            last one; by the last output (P, V, n); and by the current (P, V, n). The last output counts as independent
            of the last state.
        """
        differentiable = torch.is_grad_enabled()  # by the parameters, as LSC needs it
        by_state = []
        by_output = []
        by_current = []
        with torch.enable_grad(), exact_values(self.cell):  # type: ignore[arg-type]  # the cell is a module
            before = _leaves(state)
            # cut off from the state: the derivative by the state does not go through the output
            z = self.cell.emitted(state).detach().requires_grad_()
            current = self.cell.current(x.detach())
            if not differentiable:
                current = current.detach()
            # 0 is added to the current, and the derivative taken by this 0: the current itself may be no leaf
            added = torch.zeros_like(current, requires_grad=True)
            after = self.cell.advance(current + added, z, before)
            for variable in after:
                row = _gradients(variable, [*before, z, added], create_graph=differentiable)
                *of_state, of_output, of_current = row
                by_state.append(torch.stack(of_state, 1))
                by_output.append(of_output)
                by_current.append(of_current)
        return torch.stack(by_state, 1), torch.stack(by_output, 1), torch.stack(by_current, 1)

    def _output_derivative(self, state: State) -> Tensor:
        """Return the derivative of the output by the state (P, V, n)."""
        differentiable = torch.is_grad_enabled()
        with torch.enable_grad(), exact_values(self.cell):  # type: ignore[arg-type]  # the cell is a module
            variables = _leaves(state)
            output = self.cell.emitted(variables)
            return torch.stack(_gradients(output, list(variables), create_graph=differentiable), 1)

    def _flat_current(self, x: Tensor) -> Tensor:
        """Return the current of every neuron (P, n) from an input (P, n_in)."""
        return self.cell.current(x).flatten(1)

    def _weights(self, x: Tensor) -> Tensor:
        """Return the weight matrix (1, n, n_in) of a current that is affine in x (P, n_in), in the dtype of x."""
        unit_vectors = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
        # the currents of unit vectors are the columns of the matrix, each plus the bias
        bias = self._flat_current(torch.zeros_like(unit_vectors[:1]))
        return (self._flat_current(unit_vectors) - bias).T.unsqueeze(0)


def _leaves(state: State) -> State:
    """Return a state of the same values, cut off from the graph, whose variables can be differentiated by."""
    return type(state)(*(leaf.detach().requires_grad_() for leaf in state))


def _gradients(value: Tensor, by: list[Tensor], *, create_graph: bool) -> list[Tensor]:
    """Return the gradient of the sum of a value (P, ...) by each variable, (P, n); zero if it does not depend on it."""
    if not value.requires_grad:
        return [torch.zeros_like(variable).flatten(1) for variable in by]
    options: Any = {"create_graph": create_graph, "retain_graph": True, "materialize_grads": True}
    gradients = torch.autograd.grad(value.sum(), by, **options)
    return [gradient.flatten(1) for gradient in gradients]
