"""What a cell knows of the largest eigenvalue without any product with the matrix."""

from typing import NamedTuple

from torch import Tensor


class Known(NamedTuple):
    """Of an eigenpair of each of P matrices, what is known within the tolerance asked for."""

    value: Tensor
    """(P,) complex"""
    vector: Tensor
    """(P, n) complex, of norm 1; right or left, as was asked for"""
    exists: Tensor
    """(P,) bool: the matrix has such an eigenvalue, within half the tolerance"""
    largest: Tensor
    """(P,) bool: and has none that is larger by the tolerance"""
