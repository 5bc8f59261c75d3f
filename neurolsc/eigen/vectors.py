"""Vectors to start from, and vectors of norm 1."""

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    """Vectors (..., n), real or complex, scaled to norm 1; zeros stay zeros."""
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / size.clamp(min=torch.finfo(x.dtype).tiny)


def start(n: int, like: Tensor) -> Tensor:
    """A fixed vector (n,) drawn at random, of a tensor's dtype and device.

    It has a part in every eigenvector, and the same run gives the same radii.
    """
    generator = torch.Generator().manual_seed(n)
    dtype = torch.complex128 if like.is_complex() else torch.float64
    return torch.randn(n, generator=generator, dtype=dtype).to(like)
