"""What is known of the eigenpairs of matrices before any product is made."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SHARE = 0.5
"""of the eigenvector's squared norm, that is to lie in the guessed ones"""


class Guess(NamedTuple):
    """What a part D of P matrices M, which is easily inverted, tells of their eigenpairs."""

    modulus: Tensor
    """the largest of an eigenvalue of D (P,)"""
    vectors: Tensor
    """those of the largest eigenvalues of D (P, k, n), real and orthonormal"""
    corrected: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(D - value)^-1 times complex vectors (p, n), for values (p,), at points (p,)"""

    def holds(self, x: Tensor, at: Tensor) -> Tensor:
        """Whether complex vectors of norm 1 lie mostly in the guessed ones.

        Vectors (p, n), at points (p,).
        """
        return (torch.stack((x.real, x.imag), 1) @ self.vectors[at].mT).square().sum((1, 2)) > SHARE
