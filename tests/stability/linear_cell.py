"""A linear layer, whose derivatives are its matrices: closed forms to measure against."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from neurolsc import Cell


class LinearState(NamedTuple):
    """State of a linear layer."""

    h: Tensor


class Linear(Cell):
    """h[t] = A h[t-1] + W x[t], sent as it is."""

    def __init__(self, a: Tensor, w: Tensor) -> None:
        super().__init__(w.shape[1], len(a))
        self.a, self.w = nn.Parameter(a.clone()), nn.Parameter(w.clone())

    def initial_state(self, batch: int) -> LinearState:
        return LinearState(torch.zeros(batch, len(self.a), dtype=self.a.dtype))

    def output(self, state: LinearState) -> Tensor:
        return state.h

    def update(self, x: Tensor, z: Tensor, state: LinearState) -> LinearState:
        return LinearState(state.h @ self.a.T + x @ self.w.T)
