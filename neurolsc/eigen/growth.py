r"""How fast what an eigenpair leaves out grows: larger eigenvalues show in norms before any of them converges.

On the basis V of an Arnoldi process that started at q, :math:`M^k q = V H^k e_1` for every k below
the size of H, so the products' norms are known without any more products. With the eigenvalue λ
taken out,

.. math:: s_k = \frac{\|H^k (H - \lambda)(H - \bar\lambda)\,e_1\|}{|\lambda|^k}

holds all that q has of the other eigenvectors, and next to nothing of those near λ. A ring of many
eigenvalues of one modulus leaves the eigenvalues of H 5 to 10 % low, but s_k grows at its rate at once.
Transients of matrices that are far from normal make the rate too large while they grow, and too small
while they fade, which is why nothing counts before 24 steps.
"""

import torch
from torch import Tensor

FLOOR = 100
"""in units of the rounding error of the largest product; what is smaller counts as this, and does not grow"""


def growth_beside(h: Tensor, value: Tensor) -> Tensor:
    """The factor by which s_k grows at each of the later half of the steps (P,); 0 where there are too few.

    Args:
        h: matrices H of Arnoldi processes (P, m, m).
        value: an eigenvalue of each M (P,), complex.
    """
    m = h.shape[1]
    if m < 8:
        return torch.zeros_like(h[:, 0, 0])
    size = value.abs()
    scale = torch.where(size > 0, 1 / size, 1)
    power, path = h * scale[:, None, None], h.new_zeros(len(h), m, 1)
    path[:, 0] = 1
    while path.shape[2] < m:  # the columns H^k e1, twice as many each time
        path = torch.cat((path, power @ path[:, :, : m - path.shape[2]]), 2)
        power = power @ power
    turn = (2 * value.real * scale)[:, None, None]
    rest = path[:, :, 2:] - turn * path[:, :, 1:-1] + (size > 0)[:, None, None] * path[:, :, :-2]
    floor = FLOOR * torch.finfo(h.dtype).eps * path.square().sum(1).sqrt().amax(1, keepdim=True)
    return _slope(torch.maximum(rest.square().sum(1).sqrt(), floor).log()).exp()


def _slope(y: Tensor) -> Tensor:
    """The slopes of straight lines through the later half of the values (P, k)."""
    half = y.shape[1] // 2
    x = torch.arange(half, dtype=y.dtype, device=y.device)
    x = x - x.mean()
    return y[:, -half:] @ (x / x.square().sum())
