r"""The paper's lower bound: terms of the loss that keep updates from vanishing.

The determinant is multiplicative, and super-additive among positive semi-definite matrices. So
where all derivatives are such and :math:`\mathrm{E} \log |\det M| = 0`, updates have a lower bound,
as radii give an upper one; both ask for eigenvalues that are all 1. Neither is what networks are
like: a layer without memory, or with a neuron that is silent, has the determinant 0, and no
gradient leads a matrix past 0 from a negative determinant to a positive one.

Source: arXiv:2308.12075, Theorem 5 and what follows it in App. D.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from neurolsc.stability.transitions import Transitions, depth_derivative, time_derivative


def lower_bound(transitions: Sequence[Transitions], include_input: bool = True) -> Tensor:
    r"""How far derivatives are from the lower bound's conditions.

    .. math:: \frac{1}{|K|} \sum_{k \in K} \Big(\frac{\log |\det M_k|}{n}\Big)^2
              + \frac 1n \sum_j \min(\lambda_j(S_k), 0)^2, \qquad S_k = \frac{M_k + M_k^T}{2}

    over the derivatives through time, and the square ones through depth; n is their size. Of a
    determinant of 0, which no gradient moves, the first term is left out.

    Args:
        transitions: the points of every layer.
        include_input: count the first layer's derivative by the input.

    Returns:
        A number with a gradient.

    Cost: a factorisation and the eigenvalues of a symmetric matrix for each derivative, in float64.
    """
    terms = []
    for layer, t in enumerate(transitions):
        terms.append(_terms(time_derivative(t)))
        if (layer or include_input) and not t.non_square:
            terms.append(_terms(depth_derivative(t)))
    return torch.cat(terms).mean()


def _terms(matrices: Tensor) -> Tensor:
    """Both terms of each matrix (P,)."""
    m, n = matrices.double(), matrices.shape[-1]
    # one matrix at a time: torch's batched LU on the CPU is broken after torch.set_num_threads
    logs = torch.stack([torch.linalg.slogdet(one).logabsdet for one in m]) / n
    determinant = torch.where(logs.isfinite(), logs, 0).square()
    negative = torch.linalg.eigvalsh((m + m.mT) / 2).clamp(max=0)
    return determinant + negative.square().mean(1)
