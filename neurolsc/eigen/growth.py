r"""How fast grows what an eigenpair leaves out: a ring of larger eigenvalues shows in norms long before any of them converges.

On the basis V of an Arnoldi process that started at q, :math:`M^k q = V H^k e_1` for every k below the size of H, so the
products' norms are known without any more products. With the eigenvalue λ taken out,

.. math:: s_k = \frac{\|H^k (H - \lambda)(H - \bar\lambda)\,e_1\|}{|\lambda|^k}

holds all that q has of the other eigenvectors, and next to nothing of those near λ. Many eigenvalues of one modulus leave the
values of H 5 to 10 % low, but let s_k grow at their own rate at once. A start at random has a part in all of them.
"""

import torch
from torch import Tensor

FLOOR = 100
"""in units of the rounding error: s below so much of the largest product is noise"""


def growth_beside(h: Tensor, value: Tensor) -> Tensor:
    """By what factor s grows at each step (P,), for matrices H (P, m, m) and eigenvalues (P,): above 1, something larger is left.

    It is fitted to the later half of the steps, and continued as it changed since the earlier half.
    """
    m = h.shape[1]
    if m < 8:
        return torch.zeros_like(h[:, 0, 0])
    size = value.abs()
    scaled = h / torch.where(size > 0, size, 1)[:, None, None]
    power, path = scaled, scaled.new_zeros(len(h), m, 1)
    path[:, 0] = 1
    while path.shape[2] < m:
        path = torch.cat((path, power @ path[:, :, : m - path.shape[2]]), 2)
        power = power @ power
    turn = 2 * value.real / torch.where(size > 0, size, 1)
    rest = path[:, :, 2:] - turn[:, None, None] * path[:, :, 1:-1] + path[:, :, :-2]
    largest = path.norm(dim=1).amax(1, keepdim=True)
    return _slope(torch.maximum(rest.norm(dim=1), FLOOR * torch.finfo(h.dtype).eps * largest).log())


def _slope(log_norm: Tensor) -> Tensor:
    half = log_norm.shape[1] // 2
    k = torch.arange(half, dtype=log_norm.dtype, device=log_norm.device)
    k = k - k.mean()
    fit = k / k.square().sum()
    early, late = log_norm[:, -2 * half : -half] @ fit, log_norm[:, -half:] @ fit
    return late.exp()
