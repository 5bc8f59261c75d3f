"""The derivative of any function as a linear map, by autograd."""

from collections.abc import Callable

import torch
from torch import Tensor

from neurolsc.neurons.derivatives import LinearOperator


class Differentiated(LinearOperator):
    """The derivative of any function that treats the samples of a batch apart, by autograd.

    A product with the transpose is one backward pass; one with M itself is a backward pass through
    that one.

    Args:
        function: maps (P, columns) and the context to (P, rows), sample by sample.
        at: where (P, columns).
        context: further arguments (P, ...), not differentiated.
    """

    def __init__(self, function: Callable[..., Tensor], at: Tensor, *context: Tensor) -> None:
        self.function, self.context = function, tuple(c.detach() for c in context)
        with torch.enable_grad():
            self.at = at.detach().requires_grad_()
            self.value = function(self.at, *self.context)
        self.rows, self.columns = self.value.shape[1], at.shape[1]

    def matvec(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            probe = torch.zeros_like(self.value, requires_grad=True)
            back = self._gradient(self.value, self.at, probe, create_graph=True)
        return self._gradient(back, probe, x, create_graph=torch.is_grad_enabled())

    def rmatvec(self, y: Tensor) -> Tensor:
        return self._gradient(self.value, self.at, y, create_graph=torch.is_grad_enabled())

    @staticmethod
    def _gradient(value: Tensor, by: Tensor, weights: Tensor, *, create_graph: bool) -> Tensor:
        if not value.requires_grad:  # the function does not depend on what it is differentiated by
            return torch.zeros_like(by)
        (gradient,) = torch.autograd.grad(
            value, by, weights, create_graph=create_graph, retain_graph=True, materialize_grads=True
        )
        return gradient

    def take(self, index: Tensor) -> "Differentiated":
        return Differentiated(self.function, self.at[index], *(c[index] for c in self.context))
