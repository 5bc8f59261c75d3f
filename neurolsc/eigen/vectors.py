"""Vectors to start from, norms, and vectors of norm 1."""

import torch
from torch import Tensor


def norm(x: Tensor) -> Tensor:
    """Norms of vectors (..., n), real or complex."""
    # torch's own takes fifty times as long for complex ones
    parts = torch.view_as_real(x).flatten(-2) if x.is_complex() else x
    return torch.linalg.vector_norm(parts, dim=-1)


def unit(x: Tensor) -> Tensor:
    """Vectors (..., n), real or complex, scaled to norm 1; zeros stay zeros.

    Whatever their size: the square of a component of 1e20 is infinite in float32.
    """
    tiny, parts = torch.finfo(x.dtype).tiny, torch.view_as_real(x).flatten(-2) if x.is_complex() else x
    x = x / parts.abs().amax(-1, keepdim=True).clamp(min=tiny)
    return x / norm(x).unsqueeze(-1).clamp(min=tiny)


def start(n: int, like: Tensor) -> Tensor:
    """A fixed vector (n,) drawn at random, of a tensor's dtype and device.

    It has a part in every eigenvector, and the same run gives the same radii.
    """
    generator = torch.Generator().manual_seed(n)
    dtype = torch.complex128 if like.is_complex() else torch.float64
    return torch.randn(n, generator=generator, dtype=dtype).to(like)
