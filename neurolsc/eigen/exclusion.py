r"""Where a matrix has no eigenvalue, as its products with a random start tell.

On the basis v_0 = q, v_1, ... of an Arnoldi process each vector is a polynomial of the matrix
applied to the start, :math:`v_k = \varphi_k(M) q`, and of all polynomials of degree m with p(μ) = 1
the smallest has

.. math:: \min_p \|p(M) q\| = K_m(\mu)^{-1/2}, \qquad K_m(\mu) = \sum_{k \le m} |\varphi_k(\mu)|^2.

If μ is an eigenvalue of M with left eigenvector y of norm 1, :math:`y^H p(M) q = p(\mu) y^H q`, so
:math:`|y^H q| \le K_m(\mu)^{-1/2}`. That holds for any M, normal or not. With n numbers of a start
drawn at random, :math:`\sqrt n |y^H q|` is about 1, and below a small z in z of all cases for a
real y, in z² of them for a complex one. So an eigenvalue at μ is excluded, but for such a chance,
where :math:`z^2 K_m(\mu) \ge n`.

Where others cluster near μ this takes many products, as it must; where what is left out is far
smaller, or one value stands alone, few. Nothing is asked of the spectrum.

Source: Kuczynski and Wozniakowski, SIAM J. Matrix Anal. Appl. 13 (1992), for symmetric matrices;
K is the Christoffel-Darboux kernel.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.eigen import compiled

ANGLES = 16
"""into so many parts the half circle is divided, beside the angle of the value itself"""
CHANCE = {"real": 0.003, "complex": 0.05}
"""z: of a real eigenvalue, and of one of a pair"""
_MOST = 1e30


class Shown(NamedTuple):
    """What the products so far exclude."""

    share: Tensor
    """(P,) z² K / n where that is least; from 1 on no larger eigenvalue is left out"""
    rate: Tensor
    """(P,) by which its logarithm rises with each product"""


def beyond(h: Tensor, value: Tensor, tolerance: float, n: int) -> Shown:
    """Whether eigenvalues larger by a tolerance are excluded, each point at some angles.

    Args:
        h: (P, m + 1, m) of Arnoldi processes, real.
        value: (P,) complex.
        tolerance: relative to the modulus of the value.
        n: size of the matrices.
    """
    radius = (1 + tolerance) * value.abs()
    around = torch.arange(ANGLES + 1, device=h.device, dtype=h.dtype) * (math.pi / ANGLES)
    angle = torch.cat((around.expand(len(h), -1), value.angle().unsqueeze(1)), 1)
    at = torch.polar(radius.unsqueeze(1).expand_as(angle), angle)
    k = kernel(h, at)
    chance = torch.where(angle.sin().abs() < 1e-6, CHANCE["real"], CHANCE["complex"])
    share, worst = (chance.square() * k[:, -1] / n).min(1)
    some = max(1, h.shape[2] // 4)
    before, now = (k[:, i].gather(1, worst.unsqueeze(1)).squeeze(1) for i in (-1 - some, -1))
    return Shown(torch.where(radius > 0, share, 0), (now / before).log() / some)


def kernel(h: Tensor, at: Tensor) -> Tensor:
    """K_j of all j up to m at complex numbers (P, k), of Arnoldi processes with h (P, m + 1, m).

    They are (P, m + 1, k).
    """
    columns = h.mT.contiguous()
    size = compiled.kernel(columns, at) if compiled.at_hand(h) else _kernel(columns, at)
    return size.nan_to_num_(_MOST, _MOST)  # the basis holds all of the start


def _kernel(columns: Tensor, at: Tensor) -> Tensor:
    p, steps, k = len(columns), columns.shape[1], at.shape[1]
    along, across = torch.cat((at.real, at.real), 1), torch.cat((-at.imag, at.imag), 1)
    phi = columns.new_zeros(p, steps + 1, 2 * k)  # real parts, then imaginary ones
    phi[:, 0, :k] = 1
    for j in range(steps):
        last = phi[:, j]
        new = along * last + across * last.roll(k, 1) - (columns[:, j : j + 1, : j + 1] @ phi[:, : j + 1]).squeeze(1)
        torch.div(new, columns[:, j, j + 1].unsqueeze(1), out=phi[:, j + 1])
    size = phi.square_().cumsum(1)
    return size[..., :k] + size[..., k:]
