"""What a cell knows of the largest eigenvalue without any product with the matrix."""

from typing import NamedTuple

from torch import Tensor


class Known(NamedTuple):
    """Eigenpairs of largest modulus of P matrices, each within the tolerance that was asked for."""

    value: Tensor
    """(P,) complex"""
    vector: Tensor
    """(P, n) complex, of norm 1; right or left, as was asked for"""
    holds: Tensor
    """(P,) bool: where it is known; the rest is to be found"""
