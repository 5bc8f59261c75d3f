r"""Derivatives of a cell's step in closed form, as linear operators and as matrices.

With h the state before the step, x the input and z = output(h), all variables of a state side by side (a complex one as
its real and imaginary parts), a closed form has

.. math:: \frac{\partial h'}{\partial h} \; (S, S), \qquad
          \frac{\partial h'}{\partial x} \; (S, n_{in}), \qquad
          \frac{\partial z}{\partial h} \; (n_{hidden}, S)

A cell of your own gives matrices. LIF, ALIF and LRU also give operators, whose products with vectors cost less.

Shapes: B samples, or P points (step, sample) in their place; S numbers in a state.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

State = Any


class Factors(NamedTuple):
    """A factorised matrix M (n, n), as two functions of a vector b (n,)."""

    solve: Callable[[Tensor], Tensor]  # returns x with M x = b
    solve_adjoint: Callable[[Tensor], Tensor]  # returns x with M^H x = b


class EigenpairHint(NamedTuple):
    """A candidate for the leading eigenpair of each of P matrices, and what is known of it."""

    value: Tensor  # the eigenvalue (P,), complex
    vector: Tensor  # (P, n) complex, of norm 1; a right or a left eigenvector
    exists: Tensor  # (P,) bool: True if an eigenvalue is within half the tolerance of `value`, relative to it
    largest: Tensor  # (P,) bool: True if it exists, and no other is larger in modulus by more than the tolerance


class LinearOperator(ABC):
    """A matrix M (rows, columns) at each of P points, known by its products with vectors, one at each point."""

    rows: int
    columns: int
    same: bool = False  # True if M is the same at all points; products then take any number of vectors

    @abstractmethod
    def matvec(self, x: Tensor) -> Tensor:
        """Return M x (P, rows), of vectors x (P, columns); differentiable by the parameters."""

    @abstractmethod
    def rmatvec(self, y: Tensor) -> Tensor:
        """Return the transpose of M times y (P, columns), of vectors y (P, rows); differentiable by the parameters."""

    @abstractmethod
    def take(self, index: Tensor) -> "LinearOperator":
        """Return the operator at some of the points, by their indices (any number, also repeated)."""

    def dense(self) -> Tensor | None:
        """Return the matrices (P, rows, columns), or (1, ...) if the same; None if only products are available."""
        return None

    def eigenpair_hint(self, right: bool, tolerance: float) -> EigenpairHint | None:
        """Return the largest eigenvalue with its right or else left eigenvector; None if finding it takes products."""
        return None


@dataclass(frozen=True)
class Term:
    """A named part of the derivative by the state, for profiles and diagnoses."""

    name: str
    too_large: str = "scale the recurrent weights down"  # what to change if this term makes the radius too large
    too_small: str = "scale the recurrent weights up"
    color: str | None = None  # in pictures; None: any that is free


class StepMap(LinearOperator):
    """The derivative by the state at P points, and its named terms between two vectors."""

    @abstractmethod
    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return y^T A x (P,) for each named term A, at real vectors x and y (P, S)."""


class Derivatives(ABC):
    """The derivatives of a cell's step, at B inputs x (B, n_in) and the states before the step.

    Attributes:
        terms: the named terms of the derivative by the state, in the order of tables and pictures.
        reads_input: True if the derivative by the state depends on the input of the step.
    """

    terms: tuple[Term, ...] = ()
    reads_input: bool = True

    @abstractmethod
    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        """Return d h' / d h as named terms, each (B, S, S); their sum is the derivative."""

    @abstractmethod
    def by_input(self, x: Tensor, state: State) -> Tensor:
        """Return d h' / d x, shape (B, S, n_in); or (1, S, n_in) if it is the same for all samples."""

    @abstractmethod
    def of_output(self, state: State) -> Tensor:
        """Return d output / d h, shape (B, n_hidden, S)."""

    def state_map(self, x: Tensor, state: State) -> StepMap:
        """Return d h' / d h as an operator."""
        return SumOfMatrices(self.by_state(x, state))

    def input_maps(self, x: Tensor, state: State) -> Sequence[LinearOperator]:
        """Return d h' / d x as operators, whose product it is; the one that acts on x is first."""
        return [Matrices(self.by_input(x, state))]

    def output_maps(self, state: State) -> Sequence[LinearOperator]:
        """Return d output / d h as operators, whose product it is; the one that acts on h is first."""
        return [Matrices(self.of_output(state))]

    def depth_size(self, state: State) -> int:
        """Return of how many numbers of the state derivatives through depth are: of all S, or of the first few."""
        return flat(state).shape[1]


class Matrices(LinearOperator):
    """Matrices (P, rows, columns), or one (1, rows, columns) for all points."""

    def __init__(self, m: Tensor) -> None:
        self.m = m
        self.rows, self.columns = m.shape[1:]
        self.same = len(m) == 1

    def matvec(self, x: Tensor) -> Tensor:
        if self.same:
            return x @ self.m[0].T
        return (x.unsqueeze(1) @ self.m.mT).squeeze(1)

    def rmatvec(self, y: Tensor) -> Tensor:
        if self.same:
            return y @ self.m[0]
        return (y.unsqueeze(1) @ self.m).squeeze(1)

    def take(self, index: Tensor) -> "Matrices":
        if self.same:
            return self
        return Matrices(self.m[index])

    def dense(self) -> Tensor:
        return self.m


class SumOfMatrices(Matrices, StepMap):
    """A sum of named matrices, each (P, S, S) or (1, S, S)."""

    def __init__(self, parts: dict[str, Tensor]) -> None:
        points = max(len(part) for part in parts.values())
        self.parts = {name: part.expand(points, -1, -1) for name, part in parts.items()}
        super().__init__(torch.stack([*self.parts.values()]).sum(0))
        self.same = False  # each point has terms of its own

    def take(self, index: Tensor) -> "SumOfMatrices":
        return SumOfMatrices({name: part[index] for name, part in self.parts.items()})

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {name: ((y.unsqueeze(1) @ part).squeeze(1) * x).sum(1) for name, part in self.parts.items()}


class JacobianOperator(LinearOperator):
    """The derivative M of a function at P points, by autograd.

    A product with the transpose of M is one backward pass. A product with M is a backward pass through that one. Some
    surrogates cut the graph in their own backward, as by ``once_differentiable`` or ``.data``. Then M is put together
    from products with its transpose, and has no gradient by the parameters.

    Args:
        function: maps (P, columns) to (P, rows), each point by itself.
        at: the points (P, columns).
        context: further arguments of the function, each (P, ...), by which it is not differentiated.
        differentiable: whether a backward pass through the backward pass is right; None: to be found out.
    """

    def __init__(
        self, function: Callable[..., Tensor], at: Tensor, *context: Tensor, differentiable: bool | None = None
    ) -> None:
        self.function = function
        self.context = tuple(c.detach() for c in context)
        self.differentiable = differentiable
        with torch.enable_grad():  # also where the caller wants no gradient by the parameters
            self.at = at.detach().requires_grad_()
            self.value = function(self.at, *self.context)
        self.rows = self.value.shape[1]
        self.columns = at.shape[1]

    def matvec(self, x: Tensor) -> Tensor:
        if self._is_differentiable():
            return self._through_backward(x)
        return Matrices(self._by_rows()).matvec(x)

    def rmatvec(self, y: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self._is_differentiable()  # else an error: the product would lack a part of its gradient
        return _gradient(self.value, self.at, y, create_graph=torch.is_grad_enabled())

    def _through_backward(self, x: Tensor) -> Tensor:
        """M x, if the backward pass can be differentiated."""
        with torch.enable_grad():  # M^T w is linear in w, and its gradient by w along x is M x
            w = torch.zeros_like(self.value, requires_grad=True)
            transposed_product = _gradient(self.value, self.at, w, create_graph=True)
        return _gradient(transposed_product, w, x, create_graph=torch.is_grad_enabled())

    def _is_differentiable(self) -> bool:
        """Find out whether a backward pass through the backward pass is right: y^T (M x) is (M^T y)^T x.

        Raises:
            ValueError: if it is not, and the product is to have a gradient by the parameters.
        """
        if self.differentiable is None:
            generator = torch.Generator().manual_seed(0)
            x = torch.randn(len(self.at), self.columns, generator=generator).to(self.at)
            y = torch.randn(len(self.at), self.rows, generator=generator).to(self.at)
            with torch.no_grad():
                forwards = self._through_backward(x)
                backwards = _gradient(self.value, self.at, y, create_graph=False)
                apart = ((y * forwards).sum(1) - (backwards * x).sum(1)).abs()
                size = y.norm(dim=1) * forwards.norm(dim=1) + backwards.norm(dim=1) * x.norm(dim=1)
            # rounding is far below 1e-3; NaN counts as equal
            self.differentiable = not (apart > 1e-3 * size).any()
        if not self.differentiable and torch.is_grad_enabled():
            raise ValueError(
                "the backward of a surrogate cannot be differentiated, so that radii have no gradient: let it compute with "
                "differentiable functions, without once_differentiable, .data or detach()."
            )
        return self.differentiable

    def _by_rows(self) -> Tensor:
        """The Jacobians (P, rows, columns), by a product of their transposes with each unit vector."""
        units = torch.eye(self.rows, dtype=self.at.dtype, device=self.at.device)
        return torch.stack([self.rmatvec(unit.expand(len(self.at), -1)) for unit in units], 1)

    def matrices(self) -> Tensor:
        """The Jacobians (P, rows, columns), by a product with each unit vector."""
        if not self._is_differentiable():
            return self._by_rows()
        points = len(self.at)
        unit = torch.eye(self.columns, dtype=self.at.dtype, device=self.at.device)
        # every point once for each unit vector, so that one product gives all columns of all matrices
        index = torch.arange(points, device=unit.device).repeat_interleave(self.columns)
        columns = self.take(index).matvec(unit.repeat(points, 1))
        return columns.view(points, self.columns, -1).mT

    def take(self, index: Tensor) -> "JacobianOperator":
        context = (c[index] for c in self.context)
        differentiable = self._is_differentiable()  # found out once for all points, not again at each part of them
        return JacobianOperator(self.function, self.at[index], *context, differentiable=differentiable)


def _gradient(value: Tensor, by: Tensor, weights: Tensor, *, create_graph: bool) -> Tensor:
    """Return the gradient of the sum of value * weights (both of one shape), in the shape of `by`."""
    if not value.requires_grad:  # it does not depend on `by`
        return torch.zeros_like(by)
    options: Any = {"create_graph": create_graph, "retain_graph": True, "materialize_grads": True}
    return torch.autograd.grad(value, by, weights.clone(), **options)[0]  # a backward may change it in place


def flat(state: State) -> Tensor:
    """Put all variables of a state, each (B, ...), side by side: (B, S), a complex number as two real ones."""
    leaves = (torch.view_as_real(leaf) if leaf.is_complex() else leaf for leaf in state)
    return torch.cat([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], 1)


def unflat(h: Tensor, like: State) -> State:
    """Invert :func:`flat`: return a state with the values h (B, S), and the type and shapes of `like` (any batch)."""
    sizes = [leaf[0].numel() * (1 + leaf.is_complex()) for leaf in like]  # numbers in a sample, a complex one is two
    leaves = []
    for part, leaf in zip(h.split(sizes, 1), like, strict=True):
        shape = (-1, *leaf.shape[1:])
        if leaf.is_complex():
            real, imaginary = part.reshape(*shape, 2).unbind(-1)
            leaves.append(torch.complex(real, imaginary))
        else:
            leaves.append(part.view(shape))
    return type(like)(*leaves)


def lu_factors(m: Tensor) -> Factors:
    """Factorise one matrix m (n, n), real or complex, even if it is singular.

    A diagonal entry of U that is smaller than eps times the largest one is replaced by eps times the largest one, so
    that every system has a solution.
    """
    # one matrix at a time: torch's batched LU on the CPU is broken after torch.set_num_threads (pytorch#142815)
    lu, row_swaps, _ = torch.linalg.lu_factor_ex(m)
    diagonal = lu.diagonal()  # a view: what is written here is written into lu
    largest = diagonal.abs().max().clamp(min=torch.finfo(m.dtype).tiny)
    smallest = torch.finfo(m.dtype).eps * largest
    diagonal[diagonal.abs() < smallest] = smallest.to(m.dtype)

    def solve(b: Tensor, adjoint: bool = False) -> Tensor:
        return torch.linalg.lu_solve(lu, row_swaps, b.to(m.dtype).unsqueeze(1), adjoint=adjoint).squeeze(1)

    return Factors(solve, partial(solve, adjoint=True))
