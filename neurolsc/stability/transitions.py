r"""One step of a network, differentiated: through time and through depth, as matrices and as products.

.. math:: M^{time}_{t,l} = \frac{\partial h[t, l]}{\partial h[t-1, l]}, \qquad
          M^{depth}_{t,l} = \frac{\partial h[t, l]}{\partial h[t', l-1]}

with t' = t-1 for ``layer_delay=1`` and t' = t for 0. The state h is the whole state of a layer, all its variables
concatenated. Row 0 of the depth is the derivative of the first layer by its input. The states along the run are
constants: a derivative depends on the parameters through its own step only, which is what the loss of
arXiv:2308.12075, eq. 2, differentiates.

Shapes: P = K B points (step, sample), a layer's state h as rows (P, S) of S numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from neurolsc.network import Network, StepRecord
from neurolsc.neurons.cell import Cell, State
from neurolsc.neurons.derivatives import (
    EigenpairHint,
    Factors,
    JacobianOperator,
    LinearOperator,
    flat,
    lu_factors,
    unflat,
)
from neurolsc.neurons.neuronwise import BlockStep
from neurolsc.neurons.parameters import replaced, value_of
from neurolsc.neurons.weights import WeightMatrix, owner_of
from neurolsc.stability.isolated import eigenpair_hint, shifted_factors
from neurolsc.surrogate import exact_values
from neurolsc.validation import whole

# What stands for the radius between layers of unequal widths: the radius of a random square sub-matrix (the paper's
# released code), or the largest singular value. The text of the paper does not say.
NonSquare = Literal["submatrix", "singular"]
NON_SQUARE: tuple[NonSquare, ...] = get_args(NonSquare)


class Transitions(NamedTuple):
    """What one layer needs for its derivatives at K x B points (step, sample), as one batch."""

    cell: Cell
    x: Tensor  # input of the cell (K B, n_in)
    before: State  # its state before the step (K B, ...)
    below: Cell | None  # the cell that it reads; None for the first
    state_below: State | None  # the state whose output is x; None for the first

    @property
    def states(self) -> int:
        """S, the number of state variables of the layer."""
        return flat(self.before).shape[1]

    @property
    def depth_shape(self) -> tuple[int, int]:
        """Rows and columns of the derivative through depth; the first layer's has a column for each input."""
        columns = self.cell.n_in
        if self.below is not None:
            columns = depth_size(self.below, self.state_below)
        return depth_size(self.cell, self.before), columns

    @property
    def non_square(self) -> bool:
        """True if the derivative through depth is not square."""
        rows, columns = self.depth_shape
        return rows != columns

    def at(self, points: slice | Tensor) -> "Transitions":
        """The transitions at some of the points."""
        before = type(self.before)(*(h[points] for h in self.before))
        below = self.state_below
        if below is not None:
            below = type(below)(*(h[points] for h in below))
        return Transitions(self.cell, self.x[points], before, self.below, below)

    def chunks(self, size: int) -> Iterator["Transitions"]:
        """Yield the transitions at all points in order, at most `size` points at a time."""
        for start in range(0, len(self.x), size):
            yield self.at(slice(start, start + size))


def depth_size(cell: Cell, state: State) -> int:
    """Of how many numbers of a cell's state derivatives through depth are."""
    if known := cell.derivatives():
        return known.depth_size(state)
    return flat(state).shape[1]


def follow(network: Network, x: Tensor, steps: Tensor) -> tuple[list[Transitions], tuple[Tensor, ...]]:
    """Run the network on an input (T, B, n_in) without gradient, and collect the points of K increasing steps.

    Returns:
        One :class:`Transitions` per layer, its points ordered (step, sample), and the outputs of every layer at all
        steps, each (T, B, n_hidden).
    """
    wanted = set(steps.tolist())
    moments = []
    outputs = []
    with torch.no_grad():
        for t, moment in enumerate(network.records(x)):
            outputs.append(moment.outputs)
            if t in wanted:
                moments.append(moment)
    return transitions_of(network, moments), tuple(torch.stack(layer) for layer in zip(*outputs, strict=True))


def transitions_of(network: Network, moments: Sequence[StepRecord]) -> list[Transitions]:
    """One :class:`Transitions` per layer at some steps of a run, its points ordered (step, sample)."""
    # With a layer delay, a layer's input x is the output below from the previous step; otherwise from the same step.
    sides = [m.before if network.layer_delay else m.after for m in moments]
    transitions: list[Transitions] = []
    below = state_below = None
    for i, cell in enumerate(network.cells):
        x = torch.cat([m.inputs[i] for m in moments])
        before = stacked([m.before.layers[i] for m in moments])
        if i:
            below = network.cells[i - 1]
            state_below = stacked([side.layers[i - 1] for side in sides])
        transitions.append(Transitions(cell, x, before, below, state_below))
    return transitions


@contextmanager
def zeroed(matrices: Sequence[WeightMatrix]) -> Iterator[None]:
    """Set weight matrices to 0 inside the block, and restore them after it."""
    places = [owner_of(matrix.cell, matrix.name) for matrix in matrices]
    with replaced([(owner, name, torch.zeros_like(value_of(owner, name))) for owner, name in places]):
        yield


def draw_steps(total: int, count: int | None, generator: torch.Generator) -> Tensor:
    """Draw `count` of `total` steps, one at random from each of `count` equal stretches, in order (count,).

    With a count of None all steps are returned. A mean over stretches is steadier than one over free draws: radii
    change along a run more than from sample to sample.
    """
    if count is None:
        return torch.arange(total)
    if whole("steps", count) > total:
        raise ValueError(f"steps must be at most the {total} steps of the input, got {count}.")
    edges = torch.arange(count + 1) * total // count  # of stretches of whole steps, so that none is drawn twice
    places = torch.rand(count, generator=generator, dtype=torch.float64) * edges.diff()
    return edges[:-1] + places.long()


def stacked(states: list[State]) -> State:
    """The states of several steps, each (B, ...), as one batch, step after step."""
    return type(states[0])(*(torch.cat(leaves) for leaves in zip(*states, strict=True)))


def step_of(t: Transitions) -> Callable[[Tensor, Tensor], Tensor]:
    """The step of t's cell as a function of its state h (P, S) and input x (P, n_in); it returns the next state."""

    def step(h: Tensor, x: Tensor) -> Tensor:
        state = unflat(h, t.before)
        with exact_values(t.cell):
            return flat(t.cell.update(x, t.cell.output(state), state))

    return step


def output_of(cell: Cell, like: State) -> Callable[[Tensor], Tensor]:
    """The output (P, n_hidden) of a cell as a function of its state h (P, S); `like` has the shapes of a state."""

    def output(h: Tensor) -> Tensor:
        with exact_values(cell):
            return cell.output(unflat(h, like))

    return output


# ---- derivatives as products with vectors


class OperatorProduct:
    """A product M of linear operators at P points, in the order in which they act; it must be square.

    The eigenvalues of A B and B A are the same but for zeros. So the order is rotated: the operator that reads the
    fewest numbers acts first, and the matrices of the product have this `size`.
    """

    def __init__(self, operators: Sequence[LinearOperator], points: int) -> None:
        widths = [part.columns for part in operators]
        first = widths.index(min(widths))
        self.operators = (*operators[first:], *operators[:first])
        self.size = widths[first]
        self.points = points

    def matvec(self, x: Tensor) -> Tensor:
        """M x, for vectors (P, size)."""
        for part in self.operators:
            x = part.matvec(x)
        return x

    def rmatvec(self, y: Tensor) -> Tensor:
        """The transpose of M times y, for vectors (P, size)."""
        for part in reversed(self.operators):
            y = part.rmatvec(y)
        return y

    def take(self, index: Tensor) -> "OperatorProduct":
        """The product at some of the points."""
        return OperatorProduct([part.take(index) for part in self.operators], len(index))

    def eigenpair_hint(self, right: bool, tolerance: float) -> EigenpairHint | None:
        """What is known of the largest eigenvalue and its right or left eigenvector without products; None: nothing."""
        if len(self.operators) != 1:
            return None
        return eigenpair_hint(self.operators[0], right, tolerance)

    def blocks(self) -> BlockStep | None:
        """The only operator, if it consists of blocks of single neurons; else None."""
        only = self.operators[0]
        if len(self.operators) == 1 and isinstance(only, BlockStep):
            return only
        return None

    def matrix(self, point: int, like: Tensor) -> Tensor:
        """M of one point (size, size), with the dtype and device of a tensor."""
        return self.take(torch.tensor([point], device=like.device)).matrices(like)[0]

    def matrices(self, like: Tensor) -> Tensor:
        """M of all points (P, size, size), with the dtype and device of a tensor."""
        dense: list[Any] = [part.dense() for part in self.operators]  # None for an operator with products only
        if all(m is not None for m in dense):
            product = dense[0]
            for m in dense[1:]:
                product = m @ product
            return product.expand(self.points, -1, -1)
        # The columns are products with unit vectors: each point is copied once for each unit vector.
        unit = torch.eye(self.size, dtype=like.dtype, device=like.device)
        copies = self.take(torch.arange(self.points, device=like.device).repeat_interleave(self.size))
        return copies.matvec(unit.repeat(self.points, 1)).view(self.points, self.size, self.size).mT

    def factors(self, point: int, shift: Tensor, like: Tensor) -> Factors:
        """Factorise M - shift I at one point, for a tensor shift (); the factors are real if the shift is."""
        if len(self.operators) == 1:
            one = self.operators[0].take(torch.tensor([point], device=like.device))
            if cheaper := shifted_factors(one, shift):
                return cheaper
        m = self.matrix(point, like).to(shift.dtype)
        return lu_factors(m - shift * torch.eye(self.size, dtype=shift.dtype, device=m.device))


class RowSelection(LinearOperator):
    """Selects the entries with the indices `chosen` (P, k) from vectors (P, long)."""

    def __init__(self, chosen: Tensor, long: int) -> None:
        self.chosen = chosen
        self.rows = chosen.shape[1]
        self.columns = long

    def matvec(self, x: Tensor) -> Tensor:
        return x.gather(1, self.chosen)

    def rmatvec(self, y: Tensor) -> Tensor:
        return y.new_zeros(y.shape[0], self.columns).scatter(1, self.chosen, y)

    def take(self, index: Tensor) -> "RowSelection":
        return RowSelection(self.chosen[index], self.columns)


class Transposed(LinearOperator):
    """The transpose of an operator."""

    def __init__(self, inner: LinearOperator) -> None:
        self.inner = inner
        self.rows = inner.columns
        self.columns = inner.rows

    def matvec(self, x: Tensor) -> Tensor:
        return self.inner.rmatvec(x)

    def rmatvec(self, y: Tensor) -> Tensor:
        return self.inner.matvec(y)

    def take(self, index: Tensor) -> "Transposed":
        return Transposed(self.inner.take(index))


def time_operator(t: Transitions) -> LinearOperator:
    """d h[t, l] / d h[t-1, l] at the points of t: in closed form if the cell has one, else by autograd."""
    if known := t.cell.derivatives():
        return known.state_map(t.x, t.before)
    return JacobianOperator(step_of(t), flat(t.before), t.x)


def input_operators(t: Transitions) -> Sequence[LinearOperator]:
    """d h[t, l] / d x at the points of t, in the order in which they act."""
    if known := t.cell.derivatives():
        return known.input_maps(t.x, t.before)
    return [JacobianOperator(lambda x, h: step_of(t)(h, x), t.x, flat(t.before))]


def depth_operators(t: Transitions) -> list[LinearOperator]:
    """d h[t, l] / d h[t', l-1] at the points of t, in the order in which they act."""
    outputs: Sequence[LinearOperator] = ()
    if t.below is not None:
        if known := t.below.derivatives():
            outputs = known.output_maps(t.state_below)
        else:
            outputs = [JacobianOperator(output_of(t.below, t.state_below), flat(t.state_below))]
    return [*outputs, *input_operators(t)]


def time_product(t: Transitions) -> OperatorProduct:
    """d h[t, l] / d h[t-1, l] at the points of t, square."""
    return OperatorProduct([time_operator(t)], len(t.x))


def gram(operators: Sequence[LinearOperator], points: int) -> OperatorProduct:
    """M^T M of a product M of operators at P points; its radius is the square of M's largest singular value."""
    return OperatorProduct([*operators, *(Transposed(part) for part in reversed(operators))], points)


def depth_product(t: Transitions, non_square: NonSquare, generator: torch.Generator) -> OperatorProduct:
    """The derivative M = d h[t, l] / d h[t', l-1] at the points of t, made square.

    If M is not square, a random square sub-matrix of it is drawn for each point, or with ``"singular"`` M^T M takes its
    place. If M is the same at all points, the product has one point, unless sub-matrices are drawn.
    """
    operators = depth_operators(t)
    rows = operators[-1].rows
    columns = operators[0].columns
    if all(part.same for part in operators):
        points = 1
    else:
        points = len(t.x)
    if rows == columns:
        return OperatorProduct(operators, points)
    if non_square == "singular":
        return gram(operators, points)
    points = len(t.x)  # each with a sub-matrix of its own
    long = max(rows, columns)
    # Of the longer side as many entries are chosen as the shorter side has.
    chosen = torch.rand(points, long, generator=generator).argsort(-1)[:, : min(rows, columns)]
    choice = RowSelection(chosen.to(t.x.device), long)
    if rows > columns:
        return OperatorProduct([*operators, choice], points)
    return OperatorProduct([Transposed(choice), *operators], points)
