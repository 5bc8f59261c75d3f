"""The same sums as in `basis` and `exclusion`, by compiled loops, on a CPU."""

from functools import cache
from types import ModuleType

import torch
from torch import Tensor


def at_hand(like: Tensor) -> bool:
    """Whether there are compiled loops for tensors like this one."""
    return like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64)


@cache
def _kernels() -> ModuleType:
    from neurolsc.eigen import compiled_kernels  # the import of Numba takes half a second

    return compiled_kernels


def widen(vectors: Tensor, columns: Tensor, m: int, products: Tensor, again: float) -> None:
    """As :func:`neurolsc.eigen.basis.widen`, in place."""
    v, eps = vectors.numpy(), 10 * torch.finfo(vectors.dtype).eps
    numbers = (v.dtype.type(x) for x in (again, eps, 0, 1))
    _kernels().widen(v, columns.numpy(), products.detach().contiguous().numpy(), m, *numbers)


def kernel(columns: Tensor, at: Tensor) -> Tensor:
    """As :func:`neurolsc.eigen.exclusion.kernel`, given the columns of H (P, m, m + 1)."""
    size = columns.new_empty(len(columns), columns.shape[1] + 1, at.shape[1])
    _kernels().kernel(columns.numpy(), at.real.contiguous().numpy(), at.imag.contiguous().numpy(), size.numpy())
    return size
