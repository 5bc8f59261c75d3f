r"""What a cell may offer in place of autograd: the derivatives of its step in closed form.

With h the state before the step, x the input and z = output(h), all variables of a state side by
side (a complex one as its real and imaginary parts),

.. math:: \frac{\partial h'}{\partial h} \; (S, S), \qquad
          \frac{\partial h'}{\partial x} \; (S, n_{in}), \qquad
          \frac{\partial z}{\partial h} \; (n_{hidden}, S)

A cell gives them as matrices. Where products with vectors are cheaper than matrices it gives those
too; else the matrices are multiplied.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neurolsc.eigen.maps import Map

State = Any


@dataclass(frozen=True)
class Term:
    """A named part of the derivative by the state, for those who ask what holds a radius.

    Attributes:
        name: its name in tables.
        too_large: what to change where it holds a radius that is too large.
        too_small: likewise for one that is too small.
        color: its colour in pictures; None: one that is free.
    """

    name: str
    too_large: str = "scale the recurrent weights down"
    too_small: str = "scale the recurrent weights up"
    color: str | None = None


class StepMap(Map):
    """The derivative by the state at P points as products, and its terms between two vectors."""

    @abstractmethod
    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The sums y^T (term) x of the named terms, at real vectors (P, S); each (P,)."""


class Derivatives(ABC):
    """The derivatives of a cell's step, at B inputs and states.

    Attributes:
        terms: the named terms of the derivative by the state, in the order of tables and pictures.
        reads_input: whether the derivative by the state depends on the input of the step.
    """

    terms: tuple[Term, ...] = ()
    reads_input: bool = True

    @abstractmethod
    def by_state(self, x: Tensor, state: State) -> dict[str, Tensor]:
        """d h' / d h as named terms (B, S, S); their sum is the derivative."""

    @abstractmethod
    def by_input(self, x: Tensor, state: State) -> Tensor:
        """d h' / d x, shape (B, S, n_in); or (1, S, n_in) where it is the same for all samples."""

    @abstractmethod
    def of_output(self, state: State) -> Tensor:
        """d output / d h, shape (B, n_hidden, S)."""

    def state_map(self, x: Tensor, state: State) -> StepMap:
        """d h' / d h as products."""
        return _Terms.of(self.by_state(x, state))

    def input_maps(self, x: Tensor, state: State) -> Sequence[Map]:
        """d h' / d x as products, in the order in which they act."""
        return [Matrices(self.by_input(x, state))]

    def output_maps(self, state: State) -> Sequence[Map]:
        """d output / d h as products, likewise."""
        return [Matrices(self.of_output(state))]


class Matrices(Map):
    """Matrices (P, rows, columns), or one (1, rows, columns) that is the same at all points."""

    def __init__(self, m: Tensor) -> None:
        self.m = m
        self.rows, self.columns = m.shape[1:]
        self.same = len(m) == 1

    def times(self, x: Tensor) -> Tensor:
        return x @ self.m[0].T if self.same else (x.unsqueeze(1) @ self.m.mT).squeeze(1)

    def transposed(self, y: Tensor) -> Tensor:
        return y @ self.m[0] if self.same else (y.unsqueeze(1) @ self.m).squeeze(1)

    def take(self, index: Tensor) -> "Matrices":
        return self if self.same else Matrices(self.m[index])

    def dense(self) -> Tensor:
        return self.m


class _Terms(StepMap):
    """A sum of named matrices, each (P, S, S) or (1, S, S), at some of the P points."""

    def __init__(self, parts: dict[str, Tensor], whole: Tensor, at: Tensor) -> None:
        self.parts, self.whole, self.at = parts, whole, at
        self.rows, self.columns = whole.shape[1:]

    @classmethod
    def of(cls, parts: dict[str, Tensor]) -> "_Terms":
        """At all of the points."""
        whole = sum(parts.values(), torch.zeros(()).to(next(iter(parts.values()))))
        return cls(parts, whole, torch.arange(len(whole), device=whole.device))

    def times(self, x: Tensor) -> Tensor:
        return (x.unsqueeze(1) @ self.whole.mT).squeeze(1)

    def transposed(self, y: Tensor) -> Tensor:
        return (y.unsqueeze(1) @ self.whole).squeeze(1)

    def take(self, index: Tensor) -> "_Terms":
        return _Terms(self.parts, self.whole[index], self.at[index])

    def dense(self) -> Tensor:
        return self.whole

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        parts = {name: part if len(part) == 1 else part[self.at] for name, part in self.parts.items()}
        return {name: ((y.unsqueeze(1) @ part).squeeze(1) * x).sum(1) for name, part in parts.items()}
