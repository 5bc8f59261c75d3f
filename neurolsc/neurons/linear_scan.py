r"""A linear recurrence over all steps at once, in a number of passes that grows as log T.

.. math:: x[t] = \lambda \circ x[t-1] + b[t]

Two steps are one step of the square of λ, so the odd steps are the same recurrence, half as long,

.. math:: x[2k+1] = \lambda^2 \circ x[2k-1] + (\lambda \circ b[2k] + b[2k+1])

and the even ones follow from them: twice the products of a loop, all of them in place. Where a step
alone keeps a processor busy, a CPU takes a loop in place instead. The gradient is the same
recurrence backwards in time, with the conjugate of λ.

Source: G. E. Blelloch, "Prefix sums and their applications", CMU-CS-90-190, 1990.
"""

from typing import Any

import torch
from torch import Tensor

BUSY = 2048
"""numbers in a step from which a CPU takes them one after the other (benchmarks/rate_cells.py)"""


def linear_scan(decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
    """The values after each of T steps, real or complex, differentiable any number of times.

    Args:
        decay: λ (N,).
        inputs: b (T, B, N), T >= 1.
        start: the value before the first step (B, N).

    Returns:
        x (T, B, N).

    Example:
        >>> half = torch.tensor([0.5])
        >>> linear_scan(half, torch.ones(4, 1, 1), torch.zeros(1, 1)).flatten()
        tensor([1.0000, 1.5000, 1.7500, 1.8750])
    """
    scanned: Tensor = _Scan.apply(decay, inputs, start)
    return scanned


class _Scan(torch.autograd.Function):
    """The recurrence with its gradient."""

    @staticmethod
    def forward(ctx: Any, decay: Tensor, inputs: Tensor, start: Tensor) -> Tensor:
        x = inputs.clone()
        x[0].addcmul_(decay, start)
        _scan(decay, x)
        ctx.save_for_backward(decay, x, start)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        decay, x, start = ctx.saved_tensors
        (gradient,) = gradients
        back = linear_scan(decay.conj(), gradient.flip(0), torch.zeros_like(start)).flip(0)
        by_decay = (x[:-1].conj() * back[1:]).sum((0, 1)) + (start.conj() * back[0]).sum(0)
        return by_decay, back, decay.conj() * back[0]


def _scan(decay: Tensor, x: Tensor) -> None:
    """In place from b to x, from a start of 0."""
    if len(x) == 1:
        return
    if x.device.type == "cpu" and x[0].numel() >= BUSY:
        for now, last in zip(x[1:].unbind(0), x[:-1].unbind(0), strict=True):
            now.addcmul_(decay, last)
        return
    even, odd = x[0::2], x[1::2]
    odd.addcmul_(decay, even[: len(odd)])
    _scan(decay.square(), odd)
    even[1:].addcmul_(decay, odd[: len(even) - 1])
