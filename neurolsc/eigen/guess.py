"""What is known of the eigenpairs of matrices before any product is made."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

SHARE = 0.5
"""of the eigenvector's squared norm, that is to lie in the guessed ones"""


class Guess(NamedTuple):
    """What is known of the eigenpairs of P matrices M by a part D of them that is easily inverted."""

    modulus: Tensor
    """the largest of an eigenvalue of D (P,)"""
    vectors: Tensor
    """those of the largest eigenvalues of D (P, k, n), real and orthonormal"""
    corrected: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(D - value)^-1 times complex vectors (p, n), for values (p,), at points (p,)"""

    def holds(self, x: Tensor, at: Tensor) -> Tensor:
        """Whether complex vectors (p, n) of norm 1 lie mostly in the guessed ones at points (p,)."""
        return (torch.stack((x.real, x.imag), 1) @ self.vectors[at].mT).square().sum((1, 2)) > SHARE
